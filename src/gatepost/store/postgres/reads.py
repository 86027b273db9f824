"""What the owner reads: markers, due rows by lane, event bodies. Plain queries that write and lock nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gatepost.store.postgres.pool import Connection
from gatepost.store.rows import EventBody, LaneRows, LaneWant, Row

_DISCOVER: Final = "SELECT part, lane FROM gp_active WHERE part = ANY($1::integer[])"
# The second half tells when the lane is due again after these rows; it is one step of the primary key. Starting at the low-water
# mark keeps the scan clear of what was settled since, which stays in the index while any old transaction is open.
_PEEK: Final = """
SELECT w.place, x.lane, x.due_at, x.id, x.event_id, x.attempt, x.born_at, x.part
 FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS w(lane, rows, low_water, place)
 CROSS JOIN LATERAL (
  (SELECT d.lane, d.due_at, d.id, d.event_id, d.attempt, d.born_at, d.part FROM gp_delivery AS d
    WHERE d.lane = w.lane AND d.due_at >= w.low_water AND d.due_at <= $4::bigint
    ORDER BY d.due_at, d.id LIMIT w.rows)
  UNION ALL
  (SELECT d.lane, d.due_at, d.id, d.event_id, d.attempt, d.born_at, d.part FROM gp_delivery AS d
    WHERE d.lane = w.lane AND d.due_at >= w.low_water AND d.due_at > $4::bigint
    ORDER BY d.due_at, d.id LIMIT 1)) AS x"""
# A join, so that each id is looked for in the partition of its day only; `= ANY` would look in all.
_EVENTS: Final = """
SELECT e.id, e.tenant, e.type, e.content_type, e.body, e.trace FROM unnest($1::bigint[]) AS k(id) JOIN gp_event AS e ON e.id = k.id"""


async def discover(connection: Connection, parts: Collection[int]) -> list[tuple[int, int]]:
    """(part, lane) of every marker of these parts."""
    return [(part, lane) for part, lane in await connection.fetch(_DISCOVER, list(parts))]


async def peek(connection: Connection, wants: Sequence[LaneWant], now: int) -> list[LaneRows]:
    """Due rows of the wanted lanes, in order, one answer per want."""
    # One row more than wanted tells whether the limit or the lane ended.
    found = await connection.fetch(
        _PEEK,
        [want.lane for want in wants],
        [want.limit + 1 for want in wants],
        [want.low_water for want in wants],
        now,
    )
    rows: list[list[Row]] = [[] for _ in wants]
    for place, *fields in found:
        rows[place - 1].append(Row(*fields))
    return [_lane_rows(want, own, now) for want, own in zip(wants, rows, strict=True)]


def _lane_rows(want: LaneWant, rows: list[Row], now: int) -> LaneRows:
    if len(rows) > want.limit and rows[want.limit].due_at <= now:
        return LaneRows(want.lane, rows[: want.limit], rows[want.limit].due_at)
    if rows and rows[-1].due_at > now:
        return LaneRows(want.lane, rows[:-1], rows[-1].due_at)
    return LaneRows(want.lane, rows, None)


async def load_events(connection: Connection, ids: Collection[int]) -> Mapping[int, EventBody]:
    """Bodies by event id; absent ones are left out."""
    return {row[0]: EventBody(*row) for row in await connection.fetch(_EVENTS, list(ids))}
