-- The newest attempts at an endpoint, for whoever looks at its page. Only what is remarkable is in the index: a first attempt that
-- delivered within ten seconds of the delivery's making is found by the delivery's id, so that healthy traffic pays nothing.
-- An id's upper 41 bits are milliseconds since 2025 (delivery/ids.py). Holds up settling while it reads the log once.
CREATE INDEX gp_attempt_remarkable ON gp_attempt (endpoint, started_at)
 WHERE number > 1 OR decision <> 'complete' OR started_at / 1000 - (delivery_id >> 22) > 1735689600000::bigint + 10000;
