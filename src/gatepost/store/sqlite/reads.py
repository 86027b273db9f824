"""What the owner reads: due rows by lane, event bodies, outbox rows. Plain queries on a reader's connection."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gatepost.store.rows import Backlog, EventBody, LaneRows, LaneStat, LaneWant, OutboxEvent, Row, StoreTotals
from gatepost.store.sqlite.bulk import where_in
from gatepost.store.sqlite.tally import Tally

OUTBOX_COUNT_MAX: Final = 10_000
"""Outbox rows counted for metrics; more are reported as this many."""

# The second half tells when the lane is due again after these rows; it is one step of the primary key.
_PEEK = """
SELECT lane, due_at, id, event_id, attempt, born_at, 0 FROM (
 SELECT lane, due_at, id, event_id, attempt, born_at FROM delivery
  WHERE lane = ?1 AND due_at >= ?2 AND due_at <= ?3 ORDER BY due_at, id LIMIT ?4)
UNION ALL
SELECT lane, due_at, id, event_id, attempt, born_at, 0 FROM (
 SELECT lane, due_at, id, event_id, attempt, born_at FROM delivery
  WHERE lane = ?1 AND due_at > ?3 AND due_at >= ?2 ORDER BY due_at LIMIT 1)"""
_EVENTS = where_in("SELECT id, tenant, type, content_type, body, trace FROM event WHERE id IN")
_OUTBOX = """
SELECT event_id, event_id, tenant, key, type, content_type, body, ordering_key, priority, not_before, created_at, trace
 FROM outbox ORDER BY event_id LIMIT ?"""


def peek(connection: sqlite3.Connection, wants: Sequence[LaneWant], now: int) -> list[LaneRows]:
    """Due rows of the wanted lanes, in order, one answer per want."""
    return [_peek_lane(connection, want, now) for want in wants]


def _peek_lane(connection: sqlite3.Connection, want: LaneWant, now: int) -> LaneRows:
    lane, limit, low_water = want
    # One row more than wanted tells whether the limit or the lane ended.
    rows = list(map(Row._make, connection.execute(_PEEK, (lane, low_water, now, limit + 1))))
    if len(rows) > limit:
        return LaneRows(lane, rows[:limit], rows[limit].due_at)
    if rows and rows[-1].due_at > now:
        return LaneRows(lane, rows[:-1], rows[-1].due_at)
    return LaneRows(lane, rows, None)


def load_events(connection: sqlite3.Connection, ids: Collection[int]) -> Mapping[int, EventBody]:
    """Bodies by event id; absent ones are left out."""
    return {row[0]: EventBody._make(row) for row in _EVENTS.fetch(connection, list(ids))}


def outbox_peek(connection: sqlite3.Connection, limit: int) -> list[OutboxEvent]:
    """The oldest outbox rows."""
    return [OutboxEvent(*row) for row in connection.execute(_OUTBOX, (limit,))]


def lane_stats(connection: sqlite3.Connection, tally: Tally, lanes: Collection[int], depth_cap: int) -> list[LaneStat]:
    """Depth and oldest due time of each lane."""
    stats = []
    for lane in lanes:
        row = connection.execute("SELECT min(due_at) FROM delivery WHERE lane = ?", (lane,)).fetchone()
        stats.append(LaneStat(lane, min(tally.depth.get(lane, 0), depth_cap), row[0]))
    return stats


def backlogs(
    connection: sqlite3.Connection, tally: Tally, endpoints: Collection[int], depth_cap: int
) -> dict[int, Backlog]:
    """What waits for each endpoint; those without any are left out."""
    found: dict[int, Backlog] = {}
    for number in endpoints:
        lanes = [lane for lane in range(number << 8, (number + 1) << 8) if tally.depth.get(lane)]
        stats = lane_stats(connection, tally, lanes, depth_cap)
        if stats:
            due = [stat.oldest_due for stat in stats if stat.oldest_due is not None]
            found[number] = Backlog(min(depth_cap, sum(stat.depth for stat in stats)), min(due, default=None))
    return found


def totals(connection: sqlite3.Connection, tally: Tally, path: str) -> StoreTotals:
    """Sizes for metrics; no table is counted."""
    query = "SELECT count(*) FROM (SELECT 1 FROM outbox LIMIT ?)"
    outbox: int = connection.execute(query, (OUTBOX_COUNT_MAX,)).fetchone()[0]
    waiting = sum(list(tally.backlog.values()))
    return StoreTotals(
        waiting, tally.total("dead"), tally.total("events"), tally.total("attempts"), outbox, _size(path)
    )


def _size(path: str) -> int:
    """Bytes on the disk, the write-ahead log included."""
    size = 0
    for name in (path, f"{path}-wal"):
        try:
            size += os.stat(name).st_size
        except FileNotFoundError:
            pass  # no log yet
    return size
