-- The trace context under which an event was published (traceparent, and tracestate after a space), so that its deliveries can be
-- linked to it by whatever process makes them. Code that does not know the column leaves it null.
ALTER TABLE event ADD COLUMN trace TEXT;
ALTER TABLE outbox ADD COLUMN trace TEXT;

-- JSON Schemas of event types: every version, with who set it and when. The newest counts.
CREATE TABLE event_type (
  tenant   TEXT NOT NULL,
  type     TEXT NOT NULL,
  version  INTEGER NOT NULL,
  at       INTEGER NOT NULL,
  actor    TEXT NOT NULL,
  document TEXT,             -- JSON; null: from here on there is none
  PRIMARY KEY (tenant, type, version)
) STRICT, WITHOUT ROWID;
