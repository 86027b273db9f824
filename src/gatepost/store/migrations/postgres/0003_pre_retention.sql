-- Events of a day that is about to be dropped which are needed again: a trigger on that day's partition notes every row that is
-- put into it late (from an outbox that waited for days, or by the replay of a dead letter).
CREATE TABLE gp_keep (
  id bigint PRIMARY KEY
);
CREATE FUNCTION gp_note_late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO gp_keep (id) VALUES (NEW.id) ON CONFLICT DO NOTHING;
  RETURN NEW;
END $$;

-- One process at a time does the chores of retention.
CREATE TABLE gp_maintainer (
  one         boolean PRIMARY KEY DEFAULT true CHECK (one),
  token       bigint  NOT NULL,
  lease_until bigint  NOT NULL
);
INSERT INTO gp_maintainer (token, lease_until) VALUES (0, 0);
