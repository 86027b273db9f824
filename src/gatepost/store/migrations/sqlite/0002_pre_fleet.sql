-- An event with more targets than one transaction takes: how far its deliveries have been made.
CREATE TABLE fan_out (
  event_id INTEGER PRIMARY KEY,
  tenant   TEXT NOT NULL,
  type     TEXT NOT NULL,
  sub      INTEGER NOT NULL,
  due_at   INTEGER NOT NULL,
  after    INTEGER NOT NULL  -- endpoints up to this number have their delivery
) STRICT;

-- What the dispatcher learned about an endpoint (latencies, breaker), opaque here; losing it costs a warm start.
CREATE TABLE endpoint_state (
  endpoint INTEGER PRIMARY KEY,
  state    BLOB NOT NULL
) STRICT;
