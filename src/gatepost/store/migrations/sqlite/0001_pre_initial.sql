-- Runs before the code that needs it ("pre"). Times are UTC microseconds. What is written for every delivery is kept to
-- appends and to one narrow queue row, because a page touched at random costs more than the row itself (bench/store_cost.py).

-- The queue: a row exists exactly while its delivery waits. lane = endpoint << 8 | sub.
CREATE TABLE delivery (
  lane     INTEGER NOT NULL,
  due_at   INTEGER NOT NULL,
  id       INTEGER NOT NULL,
  event_id INTEGER NOT NULL,
  born_at  INTEGER NOT NULL,            -- start of the delivery window
  attempt  INTEGER NOT NULL DEFAULT 0,  -- attempts used up
  PRIMARY KEY (lane, due_at, id)
) STRICT, WITHOUT ROWID;

-- Payload once per event, whatever its fan-out. Body last, so that the other columns are read without it.
CREATE TABLE event (
  id           INTEGER PRIMARY KEY,
  tenant       TEXT NOT NULL,
  type         TEXT NOT NULL,
  content_type TEXT NOT NULL,
  created_at   INTEGER NOT NULL,
  key          BLOB,           -- fingerprint of the idempotency key; idempotency_key is derived from it
  targets      TEXT NOT NULL,  -- its delivery ids, a JSON array
  body         BLOB NOT NULL
) STRICT;

-- Every delivery from its acceptance until retention forgets it; an append, and no write at all when it is delivered.
CREATE TABLE history (
  id       INTEGER PRIMARY KEY,  -- the delivery's
  lane     INTEGER NOT NULL,
  at       INTEGER NOT NULL,     -- due_at of its delivery row; when dead or cancelled: since when
  event_id INTEGER NOT NULL,
  state    INTEGER NOT NULL DEFAULT 0  -- 0 waiting if its delivery row exists, else delivered; 1 dead; 2 cancelled
) STRICT;
CREATE INDEX history_ended ON history (lane >> 8, state, id) WHERE state > 0;

-- (endpoint, delivery id) of history rows up to meta.listed_upto, filled later in sorted strips; newer ones are found in
-- the tail of history. Rows may outlive their history row.
CREATE TABLE endpoint_history (
  endpoint INTEGER NOT NULL,
  id       INTEGER NOT NULL,
  PRIMARY KEY (endpoint, id)
) STRICT, WITHOUT ROWID;

-- Every endpoint that ever got a delivery, and whose it is.
CREATE TABLE destination (
  endpoint INTEGER PRIMARY KEY,
  tenant   TEXT NOT NULL
) STRICT;
CREATE INDEX destination_tenant ON destination (tenant);

-- Fingerprints of idempotency keys, derived from event.key and filled later in sorted strips: those of events after
-- meta.keys_upto are in the dispatcher's memory. Two generations, so that expiry empties one in key order.
CREATE TABLE idempotency_key (
  generation INTEGER NOT NULL,
  key        BLOB NOT NULL,
  event_id   INTEGER NOT NULL,
  PRIMARY KEY (generation, key)
) STRICT, WITHOUT ROWID;

-- The attempt log. Columns in the order of store.rows.AttemptRow.
CREATE TABLE attempt (
  delivery_id  INTEGER NOT NULL,
  number       INTEGER NOT NULL,
  event_id     INTEGER NOT NULL,
  endpoint     INTEGER NOT NULL,
  tenant       TEXT NOT NULL,
  started_at   INTEGER NOT NULL,
  outcome      TEXT NOT NULL,
  phase        TEXT NOT NULL,
  reason       TEXT NOT NULL,
  retry_safety TEXT NOT NULL,
  blame        TEXT NOT NULL,
  status       INTEGER,
  elapsed_us   INTEGER NOT NULL,
  phases_us    TEXT NOT NULL,
  address      TEXT,
  response     BLOB NOT NULL,
  decision     TEXT NOT NULL,
  worker       TEXT NOT NULL,
  PRIMARY KEY (delivery_id, started_at)  -- an attempt that uses up no number leaves it to the next one
) STRICT, WITHOUT ROWID;

-- Given up, with its own copy of what would have been sent. Columns in the order of store.rows.DeadLetter.
CREATE TABLE dead (
  id           INTEGER PRIMARY KEY,  -- the delivery's
  event_id     INTEGER NOT NULL,
  tenant       TEXT NOT NULL,
  endpoint     INTEGER NOT NULL,
  event_type   TEXT NOT NULL,
  content_type TEXT NOT NULL,
  attempts     INTEGER NOT NULL,
  why          TEXT NOT NULL,
  outcome      TEXT,
  status       INTEGER,
  died_at      INTEGER NOT NULL,
  body         BLOB NOT NULL
) STRICT;
CREATE INDEX dead_died ON dead (died_at);
CREATE INDEX dead_endpoint ON dead (endpoint, died_at);
CREATE INDEX dead_tenant ON dead (tenant, died_at);
CREATE INDEX dead_event ON dead (event_id);

-- Events put by publishers, before fan-out. The event's id names the row, so that a put of unknown outcome can be repeated.
CREATE TABLE outbox (
  event_id     INTEGER PRIMARY KEY,
  tenant       TEXT NOT NULL,
  key          TEXT,
  type         TEXT NOT NULL,
  content_type TEXT NOT NULL,
  ordering_key TEXT,
  priority     TEXT NOT NULL,
  not_before   INTEGER,
  created_at   INTEGER NOT NULL,
  body         BLOB NOT NULL
) STRICT;

CREATE TABLE part (
  part  INTEGER PRIMARY KEY,
  epoch INTEGER NOT NULL  -- fencing token, raised by every start and every acquisition
) STRICT;
INSERT INTO part (part, epoch) VALUES (0, 0);

-- Numbers that belong to the file as a whole.
CREATE TABLE meta (
  name  TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO meta (name, value) VALUES
  ('oldest_code', 1),          -- the oldest schema number whose code may still use this file
  ('node', 0),                 -- node number handed out last
  ('listed_upto', 0),
  ('keys_upto', 0),
  ('key_generation', 0),       -- the generation that new keys go to
  ('key_generation_at', 0),    -- since when
  ('events', 0), ('attempts', 0), ('dead', 0);  -- row counts

-- Records that users own, as JSON documents; secrets and headers inside are sealed.
CREATE TABLE tenant (
  name     TEXT PRIMARY KEY,
  document TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE endpoint (
  id         TEXT PRIMARY KEY,
  tenant     TEXT NOT NULL,
  generation INTEGER NOT NULL,
  document   TEXT NOT NULL
) STRICT;
CREATE INDEX endpoint_tenant ON endpoint (tenant, id);

CREATE TABLE api_key (
  id         TEXT PRIMARY KEY,
  hash       BLOB NOT NULL UNIQUE,
  tenant     TEXT,
  name       TEXT NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;

-- The last change of each record: a reader that asks for what came after its cursor gets each record once.
CREATE TABLE change (
  kind   TEXT NOT NULL,
  id     TEXT NOT NULL,
  number INTEGER NOT NULL UNIQUE,
  PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit (
  number  INTEGER PRIMARY KEY,
  at      INTEGER NOT NULL,
  actor   TEXT NOT NULL,
  action  TEXT NOT NULL,
  subject TEXT NOT NULL,
  tenant  TEXT,
  detail  TEXT NOT NULL
) STRICT;
CREATE INDEX audit_tenant ON audit (tenant, number);

-- One sealed word per key id, to tell a wrong key at start instead of at the first delivery.
CREATE TABLE key_check (
  key_id TEXT PRIMARY KEY,
  sealed TEXT NOT NULL
) STRICT, WITHOUT ROWID;
