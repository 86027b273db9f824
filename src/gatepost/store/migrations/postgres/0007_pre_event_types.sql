-- The trace context under which an event was published (traceparent, and tracestate after a space), so that its deliveries can be
-- linked to it by whatever process makes them. Code that does not know the column leaves it null.
ALTER TABLE gp_event ADD COLUMN trace text;
ALTER TABLE gatepost_outbox ADD COLUMN IF NOT EXISTS trace text;

-- JSON Schemas of event types: every version, with who set it and when. The newest counts.
CREATE TABLE gp_event_type (
  tenant   text COLLATE "C" NOT NULL,
  type     text COLLATE "C" NOT NULL,
  version  bigint NOT NULL,
  at       bigint NOT NULL,
  actor    text   NOT NULL,
  document text,             -- JSON; null: from here on there is none
  PRIMARY KEY (tenant, type, version)
);
