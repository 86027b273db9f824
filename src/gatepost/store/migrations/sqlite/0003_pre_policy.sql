-- Every version of the policy that people change while everything runs, with who changed it, when and why. The newest counts.
CREATE TABLE policy (
  version  INTEGER PRIMARY KEY,
  at       INTEGER NOT NULL,
  actor    TEXT NOT NULL,
  action   TEXT NOT NULL,
  why      TEXT NOT NULL,
  document TEXT NOT NULL  -- JSON
) STRICT;
