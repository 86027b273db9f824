"""What operators change: cancel waiting deliveries, replay and purge dead letters. Each function is one statement, one transaction.

Which rows are meant was found before (`views`); here each is taken only if it still is what it was found as, so a call may be
repeated. Rows are locked in the order of their keys. Called by `operators`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gatepost.store.postgres.pool import Connection
from gatepost.store.postgres.time import DATABASE_NOW
from gatepost.store.postgres.views import DeadKey
from gatepost.store.rows import SUB_BULK

_CANCEL: Final = f"""
WITH chosen AS MATERIALIZED (
 SELECT id, lane, at FROM gp_history WHERE id = ANY($1::bigint[]) AND state = 0 ORDER BY lane, at, id),
gone AS (
 DELETE FROM gp_delivery AS d USING chosen AS c WHERE d.lane = c.lane AND d.due_at = c.at AND d.id = c.id RETURNING d.id)
UPDATE gp_history AS h SET state = 2, at = coalesce($2::bigint, {DATABASE_NOW}) FROM gone WHERE h.id = gone.id RETURNING h.id"""  # noqa: S608
# A dead letter brings its own copy of the event, for when retention has taken the event. An event that is still there is touched,
# by which retention, which may be about to delete it, learns that it is needed again (`leaving`).
_REPLAY: Final = f"""
WITH gone AS (
 DELETE FROM gp_dead AS x USING unnest($1::bigint[], $2::bigint[]) AS k(died_at, id)
  WHERE x.died_at = k.died_at AND x.id = k.id
  RETURNING x.died_at, x.id, x.event_id, x.tenant, x.endpoint, x.event_type, x.content_type, x.body),
t AS MATERIALIZED (
 SELECT id, event_id, tenant, endpoint << 8 | {SUB_BULK} AS lane,
   $3::bigint + (row_number() OVER (ORDER BY died_at, id) - 1) * $4::bigint AS due_at,
   (endpoint % (SELECT value FROM gp_meta WHERE name = 'parts'))::integer AS part
  FROM gone),
restored AS (
 INSERT INTO gp_event (id, created_at, tenant, type, content_type, body)
  SELECT DISTINCT ON (event_id) event_id, $3::bigint, tenant, event_type, content_type, body FROM gone ORDER BY event_id
  ON CONFLICT (id) DO UPDATE SET created_at = excluded.created_at),
marked AS (
 INSERT INTO gp_active (part, lane, tenant) SELECT part, lane, min(tenant) FROM t GROUP BY 1, 2 ORDER BY 1, 2
  ON CONFLICT (part, lane) DO UPDATE SET idle_at = NULL),
queued AS (
 INSERT INTO gp_delivery (lane, due_at, id, event_id, born_at, part)
  SELECT lane, due_at, id, event_id, due_at, part FROM t ORDER BY lane, due_at, id),
shown AS (
 UPDATE gp_history AS h SET state = 0, lane = t.lane, at = t.due_at FROM t WHERE h.id = t.id)
SELECT part, lane, due_at FROM t ORDER BY due_at, id"""  # noqa: S608 - our own words
_PURGE: Final = """
WITH gone AS (
 DELETE FROM gp_dead AS x USING unnest($1::bigint[], $2::bigint[]) AS k(died_at, id)
  WHERE x.died_at = k.died_at AND x.id = k.id RETURNING x.id),
attempts AS (DELETE FROM gp_attempt AS a USING gone WHERE a.delivery_id = gone.id),
history AS (DELETE FROM gp_history AS h USING gone WHERE h.id = gone.id)
SELECT count(*) FROM gone"""


async def cancel(connection: Connection, ids: Sequence[int], now: int | None) -> list[int]:
    """Cancel those of `ids` that still wait; returns them."""
    return [row[0] for row in await connection.fetch(_CANCEL, list(ids), now)]


async def replay(
    connection: Connection, keys: Sequence[DeadKey], first_due: int, spacing_us: int
) -> list[tuple[int, int, int]]:
    """Put those of `keys` that still are dead letters back to wait, in order; returns (part, lane, due_at) of each."""
    rows = await connection.fetch(_REPLAY, *_columns(keys), first_due, spacing_us)
    return [(part, lane, due_at) for part, lane, due_at in rows]


async def purge_dead(connection: Connection, keys: Sequence[DeadKey]) -> int:
    """Delete those of `keys` that still are dead letters, with all that is known of their deliveries; returns how many."""
    purged: int = await connection.fetchval(_PURGE, *_columns(keys))
    return purged


def _columns(keys: Sequence[DeadKey]) -> tuple[list[int], list[int]]:
    ordered = sorted(keys)
    return [key.died_at for key in ordered], [key.delivery_id for key in ordered]
