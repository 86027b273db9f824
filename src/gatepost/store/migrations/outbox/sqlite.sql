-- Events that wait for Gatepost: written in the producer's own transaction and read by state. Safe to run again. Times are UTC
-- microseconds. Columns as in the file for PostgreSQL beside this one.
CREATE TABLE IF NOT EXISTS gatepost_outbox (
  event_id     INTEGER PRIMARY KEY,
  tenant       TEXT    NOT NULL DEFAULT 'default',
  key          TEXT,                                        -- idempotency key
  type         TEXT    NOT NULL,
  content_type TEXT    NOT NULL DEFAULT 'application/json',
  ordering_key TEXT,
  priority     TEXT    NOT NULL DEFAULT 'normal',           -- high, normal or bulk
  not_before   INTEGER,
  created_at   INTEGER NOT NULL,
  body         BLOB    NOT NULL,                            -- what is sent, byte for byte
  done_at      INTEGER,                                     -- null: waits. Below zero: set aside since then, the log says why
  trace        TEXT                                         -- traceparent of whoever published, tracestate after a space
);

-- Holds only what waits, so that looking costs the same however much is set aside.
CREATE INDEX IF NOT EXISTS gatepost_outbox_waiting ON gatepost_outbox (event_id) WHERE done_at IS NULL;
