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
  done_at      bigint,                                      -- null: waits. Below zero: set aside since then, the log says why
  trace        text                                         -- traceparent of whoever published, tracestate after a space
);
ALTER TABLE gatepost_outbox ADD COLUMN IF NOT EXISTS trace text;  -- an earlier version made the table without it

-- Holds only what waits, so that looking costs the same however much is set aside.
CREATE INDEX IF NOT EXISTS gatepost_outbox_waiting ON gatepost_outbox (event_id) WHERE done_at IS NULL;

-- Rows live for milliseconds: without this their remains would be walked over at every look.
ALTER TABLE gatepost_outbox SET (
  autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);
