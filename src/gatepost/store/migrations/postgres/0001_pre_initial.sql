-- Runs before the code that needs it ("pre"). Times are UTC microseconds by the database's clock. Tables are named gp_… and live in
-- the connection's current schema: no right to create schemas is needed, whoever wants a schema of its own sets search_path, and
-- a role named gatepost does not divert the outbox into a schema of that name. No foreign keys: each would lock a row per insert.

-- Numbers that belong to the database as a whole.
CREATE TABLE gp_meta (
  name  text   PRIMARY KEY,
  value bigint NOT NULL
);
INSERT INTO gp_meta (name, value) VALUES ('parts', 1024);  -- fixed at install: endpoints are assigned to parts by this number

-- Node numbers for ids, each handed out again 4,096 calls later. A sequence, so that nobody waits for anybody.
CREATE SEQUENCE gp_node_number MINVALUE 0 MAXVALUE 4095 CYCLE;

-- ------------------------------------------------------------------------------------------------------------ owning

-- Processes that dispatch. The part lease is the node's: renewing it is one small write whatever it owns, and a part changes only
-- when it changes hands, so that settling (which locks the parts of its retries) and renewing never wait for each other.
CREATE TABLE gp_node (
  name        text    PRIMARY KEY,
  address     text,
  weight      real    NOT NULL,
  draining    boolean NOT NULL,
  seen_at     bigint  NOT NULL,
  lease_until bigint  NOT NULL,
  session_key bigint            -- the session advisory lock it holds; null: it has none (a pooler in transaction mode)
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 200);

CREATE TABLE gp_part (
  part        integer PRIMARY KEY,
  owner       text,                      -- gp_node.name; null: nobody's
  epoch       bigint NOT NULL,           -- fencing token, raised whenever the part is taken
  strict_from bigint NOT NULL DEFAULT 0  -- before it an earlier owner may still be at work on a FIFO lane
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 500);
INSERT INTO gp_part (part, owner, epoch) SELECT part, NULL, 0 FROM generate_series(0, 1023) AS part;

-- ------------------------------------------------------------------------------------------------------------ the queue

-- A row exists exactly while its delivery waits. lane = endpoint << 8 | sub. One index, and vacuum that keeps up with it.
CREATE TABLE gp_delivery (
  lane     bigint  NOT NULL,
  due_at   bigint  NOT NULL,
  id       bigint  NOT NULL,
  event_id bigint  NOT NULL,
  born_at  bigint  NOT NULL,            -- start of the delivery window
  part     integer NOT NULL,
  attempt  integer NOT NULL DEFAULT 0,  -- attempts used up
  PRIMARY KEY (lane, due_at, id)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);

-- A lane has a marker while it may hold rows. It goes in two steps, so that no enqueue whose commit comes late can lose its
-- wake-up: first idle_at is set; then, when every enqueue that saw it unset has ended and the lane is still empty, the row is
-- deleted. An enqueue writes only to markers that are missing or idle.
CREATE TABLE gp_active (
  part    integer NOT NULL,
  lane    bigint  NOT NULL,
  idle_at bigint,
  tenant  text    NOT NULL,  -- whose endpoint it is: what waits for a tenant is found by its lanes
  PRIMARY KEY (part, lane)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
CREATE INDEX gp_active_tenant ON gp_active (tenant, lane);

-- Payload once per event, whatever its fan-out; a partition per day of ids, since ids rise with time. The default partition takes
-- what has none, so that nothing is lost because one is missing.
CREATE TABLE gp_event (
  id           bigint NOT NULL,
  created_at   bigint NOT NULL,
  tenant       text   NOT NULL,
  type         text   NOT NULL,
  content_type text   NOT NULL,
  body         bytea  NOT NULL,
  PRIMARY KEY (id)
) PARTITION BY RANGE (id);
ALTER TABLE gp_event ALTER COLUMN body SET STORAGE EXTERNAL;  -- compressing costs the server more than the disk is worth
CREATE TABLE gp_event_default PARTITION OF gp_event DEFAULT;

-- Every delivery from its acceptance until retention forgets it; no write at all when it is delivered. Partitions as above.
CREATE TABLE gp_history (
  id       bigint   NOT NULL,           -- the delivery's
  lane     bigint   NOT NULL,
  at       bigint   NOT NULL,           -- due_at of its delivery row; when dead or cancelled: since when
  event_id bigint   NOT NULL,
  state    smallint NOT NULL DEFAULT 0, -- 0 waiting if its delivery row exists, else delivered; 1 dead; 2 cancelled
  tenant   text     NOT NULL,
  PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE INDEX gp_history_event ON gp_history (event_id, id);
CREATE INDEX gp_history_endpoint ON gp_history ((lane >> 8), id);
CREATE INDEX gp_history_tenant ON gp_history (tenant, id);
-- Dead and cancelled ones are few among many: they are listed without walking the others.
CREATE INDEX gp_history_ended ON gp_history ((lane >> 8), state, id) WHERE state > 0;
CREATE INDEX gp_history_tenant_ended ON gp_history (tenant, state, id) WHERE state > 0;
CREATE TABLE gp_history_default PARTITION OF gp_history DEFAULT;

-- Idempotency keys: a fingerprint of 16 bytes, whatever the key's length. Ids rise with time, so expiry begins at the index's
-- left end, and a new key is written to its right one (by block, BRIN would not do: blocks are used again, and stay "old").
CREATE TABLE gp_dedup (
  tenant   text   NOT NULL,
  key      bytea  NOT NULL,
  event_id bigint NOT NULL,
  PRIMARY KEY (tenant, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX gp_dedup_event ON gp_dedup (event_id);

-- An event with more targets than one transaction takes: how far its deliveries have been made.
CREATE TABLE gp_fan_out (
  event_id bigint  PRIMARY KEY,
  part     integer NOT NULL,   -- its owner expands it
  tenant   text    NOT NULL,
  type     text    NOT NULL,
  sub      integer NOT NULL,
  due_at   bigint  NOT NULL,
  after    bigint  NOT NULL    -- endpoints up to this number have their delivery
) WITH (fillfactor = 50);
CREATE INDEX gp_fan_out_part ON gp_fan_out (part, event_id);

-- What the owner learned about an endpoint (latencies, breaker), opaque here; losing it costs a warm start.
CREATE TABLE gp_endpoint_state (
  endpoint bigint PRIMARY KEY,
  state    bytea  NOT NULL
) WITH (fillfactor = 70);

-- ------------------------------------------------------------------------------------------------------------ results

-- The attempt log. Columns in the order of store.rows.AttemptRow; partitions by the delivery's day, so that they go together.
CREATE TABLE gp_attempt (
  delivery_id  bigint  NOT NULL,
  number       integer NOT NULL,
  event_id     bigint  NOT NULL,
  endpoint     bigint  NOT NULL,
  tenant       text    NOT NULL,
  started_at   bigint  NOT NULL,
  outcome      text    NOT NULL,
  phase        text    NOT NULL,
  reason       text    NOT NULL,
  retry_safety text    NOT NULL,
  blame        text    NOT NULL,
  status       integer,
  elapsed_us   bigint  NOT NULL,
  phases_us    text    NOT NULL,
  address      text,
  response     bytea   NOT NULL,
  decision     text    NOT NULL,
  worker       text    NOT NULL,
  PRIMARY KEY (delivery_id, started_at)  -- an attempt that uses up no number leaves it to the next one
) PARTITION BY RANGE (delivery_id);
CREATE TABLE gp_attempt_default PARTITION OF gp_attempt DEFAULT;

-- Given up, with its own copy of what would have been sent. A partition per day of death.
CREATE TABLE gp_dead (
  id           bigint  NOT NULL,  -- the delivery's
  event_id     bigint  NOT NULL,
  tenant       text    NOT NULL,
  endpoint     bigint  NOT NULL,
  event_type   text    NOT NULL,
  content_type text    NOT NULL,
  attempts     integer NOT NULL,
  why          text    NOT NULL,
  outcome      text,
  status       integer,
  died_at      bigint  NOT NULL,
  body         bytea   NOT NULL,
  PRIMARY KEY (died_at, id)
) PARTITION BY RANGE (died_at);
ALTER TABLE gp_dead ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX gp_dead_id ON gp_dead (id);
CREATE INDEX gp_dead_endpoint ON gp_dead (endpoint, died_at);
CREATE INDEX gp_dead_tenant ON gp_dead (tenant, died_at);
CREATE INDEX gp_dead_event ON gp_dead (event_id);
CREATE TABLE gp_dead_default PARTITION OF gp_dead DEFAULT;

-- ------------------------------------------------------------------------------------------------------------ the outbox

-- As migrations/outbox/postgres.sql, which makes the same table in a producer's database (a test compares the two).
-- Events that wait for Gatepost: written in the producer's own transaction, read by state, never by "id above the last seen",
-- because a transaction may commit long after ids above its own. Safe to run again. Times are UTC microseconds.
CREATE TABLE IF NOT EXISTS gatepost_outbox (
  event_id     bigint PRIMARY KEY,
  tenant       text   NOT NULL DEFAULT 'default',
  key          text,                                        -- idempotency key
  type         text   NOT NULL,
  content_type text   NOT NULL DEFAULT 'application/json',
  ordering_key text,
  priority     text   NOT NULL DEFAULT 'normal',            -- high, normal or bulk
  not_before   bigint,
  created_at   bigint NOT NULL,
  body         bytea  NOT NULL,                             -- what is sent, byte for byte
  done_at      bigint                                       -- null: waits. Below zero: set aside since then, the log says why
);

-- Holds only what waits, so that looking costs the same however much is set aside.
CREATE INDEX IF NOT EXISTS gatepost_outbox_waiting ON gatepost_outbox (event_id) WHERE done_at IS NULL;

-- Rows live for milliseconds: without this their remains would be walked over at every look.
ALTER TABLE gatepost_outbox SET (
  autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);
