-- A house moved into this database: while it is not finished no dispatcher may open it, and once it is, it is not begun again.
CREATE TABLE gp_move (
  one         boolean PRIMARY KEY DEFAULT true CHECK (one),
  house       bigint  NOT NULL,  -- the source's own number
  epoch       bigint  NOT NULL,  -- the source's epoch: another one says that a dispatcher has been there since
  source      text    NOT NULL,  -- its name, for people
  started_at  bigint  NOT NULL,
  finished_at bigint,
  counts      text               -- JSON: rows by kind
);
