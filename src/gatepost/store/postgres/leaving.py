"""Takes rows that are past retention: whole days by dropping their partitions, the rest in portions.

A stretch of rows is looked at, oldest first; those still needed (a delivery waits, a dead letter or a recent attempt exists) are
kept. A day in which few are needed is detached, the few are carried over to the default partition in the same transaction, and
the day is dropped. A day in which many are needed, and the default partition, lose the others in portions. What is not needed
is never needed again, but for events: those put or replayed late are noted by a trigger, or touched. Called by `retention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gatepost.store.postgres.partitions import Partition, bounds, briefly_locked, drop, take_away
from gatepost.store.postgres.pool import Connection

STRETCH: Final = 2_000
"""Rows looked at in one statement: some 40 ms of the server."""
STRETCHES_MAX: Final = 10
"""Stretches per call, so that a call ends soon also where nothing may go."""
CARRY_MAX: Final = 2_000
"""Rows carried over while everybody waits for the lock: some tens of milliseconds."""
AGAIN_AFTER: Final = 6 * 3_600_000_000
"""Microseconds until a day in which too many rows were needed is looked at again."""

# Scalar subqueries with a limit are asked row by row; EXISTS may be answered from a hash of a whole table.
_HISTORY: Final = """
WITH s AS MATERIALIZED (
 SELECT id, lane, at, state FROM {table} WHERE id > $1::bigint AND id < $2::bigint ORDER BY id LIMIT $3::bigint)
SELECT s.id, 0::bigint, CASE s.state
  WHEN 0 THEN (SELECT 1 FROM gp_delivery AS d WHERE d.lane = s.lane AND d.due_at = s.at AND d.id = s.id LIMIT 1) IS NOT NULL
  WHEN 1 THEN (SELECT 1 FROM gp_dead AS x WHERE x.died_at = s.at AND x.id = s.id LIMIT 1) IS NOT NULL
  ELSE s.at >= $4::bigint END
 OR (SELECT 1 FROM gp_attempt AS a WHERE a.delivery_id = s.id AND a.started_at + a.elapsed_us >= $4::bigint LIMIT 1) IS NOT NULL
 FROM s ORDER BY s.id"""
_EVENTS: Final = """
WITH s AS MATERIALIZED (
 SELECT id, created_at FROM {table} WHERE id > $1::bigint AND id < $2::bigint ORDER BY id LIMIT $3::bigint)
SELECT s.id, s.created_at, (
  SELECT 1 FROM gp_history AS h CROSS JOIN LATERAL (
    SELECT 1 FROM gp_delivery AS d WHERE d.lane = h.lane AND d.due_at = h.at AND d.id = h.id LIMIT 1) AS waiting
   WHERE h.event_id = s.id AND h.state = 0 LIMIT 1) IS NOT NULL
 OR (SELECT 1 FROM gp_fan_out AS f WHERE f.event_id = s.id LIMIT 1) IS NOT NULL
 FROM s WHERE $4::bigint IS NOT NULL ORDER BY s.id"""
_DELETE_HISTORY: Final = """
WITH gone AS (DELETE FROM {table} WHERE id = ANY($1::bigint[]) RETURNING id),
log AS (DELETE FROM gp_attempt WHERE delivery_id = ANY($1::bigint[]) RETURNING 1)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM log)"""
# A replay that comes between touches the event: then `created_at` is another, also for a delete that waited for its lock.
_DELETE_EVENTS: Final = """
WITH gone AS (
 DELETE FROM {table} AS e USING unnest($1::bigint[], $2::bigint[]) AS k(id, created_at)
  WHERE e.id = k.id AND e.created_at = k.created_at RETURNING 1)
SELECT count(*), 0::bigint FROM gone"""
# Attempts that were settled after their delivery was forgotten.
_DELETE_STRAYS: Final = """
WITH gone AS (
 DELETE FROM gp_attempt_default AS a WHERE a.delivery_id > $1::bigint AND a.delivery_id <= $2::bigint
  AND (SELECT 1 FROM gp_history AS h WHERE h.id = a.delivery_id LIMIT 1) IS NULL RETURNING 1)
SELECT count(*) FROM gone"""
_NOTE_LATE: Final = """
CREATE OR REPLACE TRIGGER gp_note_late BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION gp_note_late()"""


@dataclass(slots=True)
class _Walk:
    """A pass over one table."""

    table: str
    position: int = 0
    keep: list[int] = field(default_factory=list)
    """Needed rows found so far; not collected while thinning."""
    seen: int = 0
    thinning: bool = False
    """The others are deleted in portions, since too many are needed to be carried over."""


@dataclass(slots=True)
class Taken:
    """What one call removed, and whether there is more to do."""

    rows: int = 0
    attempts: int = 0
    more: bool = False


class Leaving:
    """One kind of rows: `gp_history` with `gp_attempt`, or `gp_event`. Remembers where it stopped; a new process starts anew."""

    def __init__(self, parent: str) -> None:
        self._parent = parent
        self._events = parent == "gp_event"
        self._look = _EVENTS if self._events else _HISTORY
        self._delete = _DELETE_EVENTS if self._events else _DELETE_HISTORY
        self._rest = _Walk(f"{parent}_default", thinning=True)
        self._day: _Walk | None = None
        self._crowded: dict[int, int] = {}  # day to when it was found to hold many rows that are needed

    async def run(
        self, connection: Connection, days: Sequence[Partition], before: int, recent: int, now: int, budget: int
    ) -> Taken:
        """Take what is below the id `before` and not needed. `recent`: attempts that ended since (microseconds) are still kept;
        `days` are all partitions there are."""
        taken = Taken()
        await self._thin(connection, self._rest, before, recent, budget, taken)
        if taken.rows < budget:
            await self._leave(connection, days, before, recent, now, budget - taken.rows, taken)
        return taken

    async def _leave(
        self,
        connection: Connection,
        days: Sequence[Partition],
        before: int,
        recent: int,
        now: int,
        budget: int,
        taken: Taken,
    ) -> None:
        """Go on with the oldest day that is past retention."""
        due = [
            day
            for day in days
            if day.parent == self._parent
            and day.attached
            and bounds(day.parent, day.day)[1] <= before
            and now >= self._crowded.get(day.day, 0)
        ]
        if not due:
            self._day = None
            return
        day = due[0]
        end = bounds(day.parent, day.day)[1]
        if self._day is None or self._day.table != day.name:
            if self._events and not await briefly_locked(connection, [_NOTE_LATE.format(table=day.name)]):
                return  # not now; the day is still there in a minute
            self._day = _Walk(day.name)
        walk = self._day
        if walk.thinning:
            if not await self._thin(connection, walk, end, recent, budget, taken):
                return
            self._crowded[day.day] = now + AGAIN_AFTER
            self._day = None
            taken.more = True
            return
        for _ in range(STRETCHES_MAX):
            rows = await self._stretch(connection, walk, end, recent, STRETCH)
            walk.keep += [number for number, _, needed in rows if needed]
            walk.seen += len(rows)
            if len(walk.keep) > CARRY_MAX:
                self._day = _Walk(day.name, thinning=True)
                taken.more = True
                return
            if len(rows) < STRETCH:
                await self._take(connection, days, day, walk, taken)
                return
        taken.more = True

    async def _take(
        self, connection: Connection, days: Sequence[Partition], day: Partition, walk: _Walk, taken: Taken
    ) -> None:
        """Detach and drop a day that was looked through."""
        group = [day] + [one for one in days if one.parent == "gp_attempt" and one.day == day.day and one.attached]
        if self._events:
            group = [day]
        if not await take_away(connection, group, self._carry(group, walk.keep)):
            return  # its table is in use: tried again in a minute, and what comes meanwhile is noted
        taken.rows += walk.seen - len(walk.keep)
        for one in group:
            if one.parent == "gp_attempt":
                taken.attempts += one.rows
            await drop(connection, one)
        taken.more = True
        self._day = None

    def _carry(self, group: Sequence[Partition], keep: Sequence[int]) -> list[str]:
        listed = f"'{{{','.join(map(str, keep))}}}'::bigint[]"
        statements = []
        for day in group:
            begin, end = bounds(day.parent, day.day)
            key = "delivery_id" if day.parent == "gp_attempt" else "id"
            chosen = f"SELECT unnest({listed})"
            if self._events:
                chosen += f" UNION SELECT id FROM gp_keep WHERE id >= {begin} AND id < {end}"  # noqa: S608 - numbers
            # The detached day's values now belong to the default partition.
            statements.append(f"INSERT INTO {day.parent} SELECT * FROM {day.name} WHERE {key} IN ({chosen})")  # noqa: S608
            if self._events:
                statements.append(f"DELETE FROM gp_keep WHERE id >= {begin} AND id < {end}")  # noqa: S608 - numbers
        return statements

    async def _thin(
        self, connection: Connection, walk: _Walk, end: int, recent: int, budget: int, taken: Taken
    ) -> bool:
        """Delete what is not needed, a portion at a time; True when the table has been gone through."""
        left = budget
        for _ in range(STRETCHES_MAX):
            begin, limit = walk.position, min(STRETCH, left)
            rows = await self._stretch(connection, walk, end, recent, limit)
            ended = len(rows) < limit
            gone = [(number, version) for number, version, needed in rows if not needed]
            if gone:
                values = [[number for number, _ in gone], [version for _, version in gone]]
                statement = self._delete.format(table=walk.table)
                count, attempts = await connection.fetchrow(statement, *values[: 2 if self._events else 1])
                taken.rows += count
                taken.attempts += attempts
                left -= len(gone)
            if not self._events and walk is self._rest:
                taken.attempts += await connection.fetchval(_DELETE_STRAYS, begin, end - 1 if ended else walk.position)
            if ended:
                walk.position = 0
                return True
            if left <= 0:
                break
        taken.more = True
        return False

    async def _stretch(
        self, connection: Connection, walk: _Walk, end: int, recent: int, limit: int
    ) -> list[tuple[int, int, bool]]:
        """(id, version, needed) of the next rows."""
        rows = await connection.fetch(self._look.format(table=walk.table), walk.position, end, limit, recent)
        if rows:
            walk.position = rows[-1][0]
        return [tuple(row) for row in rows]
