"""Fan-outs too large for one transaction, and what was learned about endpoints. Each call is one statement."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gatepost.store.postgres.enqueue import MARK_AND_WAIT, target_columns
from gatepost.store.postgres.pool import Connection
from gatepost.store.rows import FanOut, Target

_LIST: Final = """
SELECT event_id, part, tenant, type, sub, due_at, after FROM gp_fan_out WHERE part = ANY($1::integer[])
 ORDER BY event_id LIMIT $2::bigint"""
# Whoever moves the cursor stores the rows; whoever comes second waits for that, finds another cursor and stores nothing.
_MOVE: Final = (
    "UPDATE gp_fan_out SET after = $3::bigint WHERE event_id = $1::bigint AND after = $2::bigint RETURNING event_id"
)
_END: Final = "DELETE FROM gp_fan_out WHERE event_id = $1::bigint AND after = $2::bigint AND $3::bigint IS NULL RETURNING event_id"
_EXTEND: Final = f"""
WITH cursor AS ({{step}}),
t AS MATERIALIZED (
 SELECT x.event_id, x.lane, x.due_at, x.id, coalesce(e.created_at, x.born_at) AS born_at, x.part, x.tenant
  FROM unnest($4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::integer[], $10::text[])
   AS x(event_id, lane, due_at, id, born_at, part, tenant)
  LEFT JOIN gp_event AS e ON e.id = $1::bigint
  WHERE EXISTS (SELECT 1 FROM cursor)),
{MARK_AND_WAIT}
SELECT EXISTS (SELECT 1 FROM cursor)"""  # noqa: S608 - our own words
_MADE: Final = "SELECT EXISTS (SELECT 1 FROM gp_history WHERE id = $1::bigint)"
_SAVE: Final = """
INSERT INTO gp_endpoint_state (endpoint, state) SELECT * FROM unnest($1::bigint[], $2::bytea[])
 ON CONFLICT (endpoint) DO UPDATE SET state = excluded.state"""
_FORGET: Final = "DELETE FROM gp_endpoint_state WHERE endpoint = ANY($1::bigint[])"
_LOAD: Final = "SELECT endpoint, state FROM gp_endpoint_state WHERE endpoint = ANY($1::bigint[])"


async def fan_outs(connection: Connection, parts: Collection[int], limit: int) -> list[FanOut]:
    """Unfinished ones of these parts, oldest event first."""
    return [FanOut(*row) for row in await connection.fetch(_LIST, list(parts), limit)]


async def extend(
    connection: Connection, fan_out: FanOut, targets: Sequence[Target], after: int | None, *, repeated: bool
) -> bool:
    """Add targets and move the cursor, or end it; False when it stands elsewhere.

    `repeated`: an earlier try of this very call was interrupted; if it moved the cursor, its deliveries are there.
    """
    moved: bool = await connection.fetchval(
        _EXTEND.format(step=_END if after is None else _MOVE),
        fan_out.event_id,
        fan_out.after,
        after,
        *target_columns([(fan_out.event_id, fan_out.due_at, fan_out.tenant, targets)]),
    )
    if not moved and repeated and targets:
        moved = await connection.fetchval(_MADE, targets[0].delivery_id)
    return moved


async def save_states(connection: Connection, states: Mapping[int, bytes]) -> None:
    """Keep them, replacing what was kept; none where empty. Sorted, so that two who save do not wait for each other in a ring."""
    endpoints = sorted(endpoint for endpoint, state in states.items() if state)
    if endpoints:
        await connection.execute(_SAVE, endpoints, [states[endpoint] for endpoint in endpoints])
    gone = sorted(endpoint for endpoint, state in states.items() if not state)
    if gone:
        await connection.execute(_FORGET, gone)


async def load_states(connection: Connection, endpoints: Collection[int]) -> Mapping[int, bytes]:
    """What was kept about these."""
    return dict(await connection.fetch(_LOAD, list(endpoints)))
