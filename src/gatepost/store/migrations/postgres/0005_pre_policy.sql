-- Every version of the policy that people change while everything runs, with who changed it, when and why. The newest counts.
CREATE TABLE gp_policy (
  version  bigint PRIMARY KEY,
  at       bigint NOT NULL,
  actor    text   NOT NULL,
  action   text   NOT NULL,
  why      text   NOT NULL,
  document text   NOT NULL   -- JSON
);
