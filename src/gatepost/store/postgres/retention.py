"""The chores of one database: partitions ahead, what is past retention, idempotency keys, lanes that lost their marker.

One process at a time does them, whoever asks first; each call does a bounded piece and says whether there is more. What it has
looked at is remembered in this process only: another one starts anew. Called by `operators`.
"""

from __future__ import annotations

from typing import Final

from gatepost.clock import SYSTEM_ENTROPY
from gatepost.delivery.ids import first_id_at
from gatepost.store.paging import check_limit
from gatepost.store.postgres import operate
from gatepost.store.postgres.leaving import Leaving
from gatepost.store.postgres.partitions import bounds, drop, make_ahead, partitions, take_away
from gatepost.store.postgres.pool import Connection, Pool
from gatepost.store.postgres.views import NEWEST, DeadKey
from gatepost.store.rows import MaintenanceReport, Retention

CHUNK: Final = 1_000
"""Rows deleted in one statement: some tens of milliseconds."""
LEASE_US: Final = 180_000_000
"""The chores stay with the process that did them last: three of its rounds."""
AHEAD_EVERY_US: Final = 3_600_000_000
SWEEP_EVERY_US: Final = 600_000_000
SWEEP_LANES: Final = 1_000
"""Lanes looked at per call, one index step each."""

_LEASE: Final = """
UPDATE gp_maintainer SET token = $1::bigint, lease_until = $2::bigint
 WHERE token = $1::bigint OR lease_until < $3::bigint RETURNING token"""
_EXPIRE_KEYS: Final = """
DELETE FROM gp_dedup WHERE ctid = ANY(ARRAY(
 SELECT ctid FROM gp_dedup WHERE event_id < $1::bigint ORDER BY event_id LIMIT $2::bigint FOR UPDATE SKIP LOCKED)) RETURNING 1"""
_DEAD_IN_DEFAULT: Final = """
SELECT died_at, id FROM gp_dead_default WHERE died_at < $1::bigint ORDER BY died_at, id LIMIT $2::bigint"""
# A loose scan: one step of the primary key per lane, however deep it is.
_LANES: Final = """
WITH RECURSIVE l(lane, count) AS (
 (SELECT lane, 1 FROM gp_delivery WHERE lane > $1::bigint ORDER BY lane LIMIT 1)
 UNION ALL
 SELECT n.lane, l.count + 1 FROM l CROSS JOIN LATERAL (
  SELECT d.lane FROM gp_delivery AS d WHERE d.lane > l.lane ORDER BY d.lane LIMIT 1) AS n WHERE l.count < $2::integer)
SELECT lane FROM l"""
_MARK: Final = """
INSERT INTO gp_active (part, lane, tenant)
 SELECT d.part, l.lane, coalesce(h.tenant, '') FROM unnest($1::bigint[]) AS l(lane)
  CROSS JOIN LATERAL (SELECT part, id FROM gp_delivery AS x WHERE x.lane = l.lane ORDER BY due_at, id LIMIT 1) AS d
  LEFT JOIN gp_history AS h ON h.id = d.id
  WHERE (SELECT 1 FROM gp_active AS a WHERE a.part = d.part AND a.lane = l.lane AND a.idle_at IS NULL LIMIT 1) IS NULL
  ORDER BY 1, 2
 ON CONFLICT (part, lane) DO UPDATE SET idle_at = NULL RETURNING 1"""


class Chores:
    """The chores of one store. One call at a time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._token = int.from_bytes(SYSTEM_ENTROPY.token(8), "big") >> 1
        self._ended = Leaving("gp_history")
        self._events = Leaving("gp_event")
        self._ahead_at = -AHEAD_EVERY_US
        self._swept_at = -SWEEP_EVERY_US
        self._lane: int | None = None  # the sweep under way has come so far

    async def run(self, retention: Retention, now: int, budget: int) -> MaintenanceReport:
        """Do a piece of everything; about `budget` rows are deleted at most, beside days that are dropped."""
        check_limit(budget)
        if not await self._pool.fetch(_LEASE, self._token, now + LEASE_US, now):
            return MaintenanceReport()  # another process is at it
        if now - self._ahead_at >= AHEAD_EVERY_US:
            await self._pool.run(lambda connection: make_ahead(connection, now))
            self._ahead_at = now
        share = max(1, min(budget // 4, CHUNK))
        keys = len(await self._pool.fetch(_EXPIRE_KEYS, _before(now, retention.idempotency), share))
        dead, more_dead = await self._expire_dead(_micro(now, retention.dead_letters), share)
        days = await self._pool.run(partitions)
        for day in days:
            if not day.attached:  # a process ended between taking it away and dropping it
                await self._pool.run(lambda connection, day=day: drop(connection, day))  # type: ignore[misc]  # bound now
        recent = _micro(now, retention.attempts)
        ended = await self._pool.run(
            lambda connection: self._ended.run(connection, days, _first_id(recent), recent, now, share)
        )
        horizon = _micro(now, retention.events)
        events = await self._pool.run(
            lambda connection: self._events.run(connection, days, _first_id(horizon), horizon, now, share)
        )
        more_lanes = await self._sweep(now)
        more = keys == share or more_dead or ended.more or events.more or more_lanes
        return MaintenanceReport(events.rows, ended.attempts, dead, keys, more)

    async def _expire_dead(self, before: int, limit: int) -> tuple[int, bool]:
        """Whole days, and what has no day of its own; returns how many letters, and whether there are more."""

        async def work(connection: Connection) -> tuple[int, bool]:
            dropped = 0
            for day in await partitions(connection):
                past = day.parent == "gp_dead" and day.attached and bounds(day.parent, day.day)[1] <= before
                if past and await take_away(connection, [day], ()):
                    dropped += day.rows
                    await drop(connection, day)
            keys = [DeadKey(*row) for row in await connection.fetch(_DEAD_IN_DEFAULT, before, limit)]
            return dropped + (await operate.purge_dead(connection, keys) if keys else 0), len(keys) == limit

        return await self._pool.run(work)

    async def _sweep(self, now: int) -> bool:
        """Mark lanes that hold rows and have no marker: nobody would look for them. True while a sweep is under way."""
        if self._lane is None:
            if now - self._swept_at < SWEEP_EVERY_US:
                return False
            self._lane, self._swept_at = -1, now
        lanes = [row[0] for row in await self._pool.fetch(_LANES, self._lane, SWEEP_LANES)]
        if lanes:
            await self._pool.fetch(_MARK, lanes)
        self._lane = lanes[-1] if len(lanes) == SWEEP_LANES else None
        return self._lane is not None


def _micro(now: int, seconds: float) -> int:
    """So many seconds ago."""
    return now - round(seconds * 1e6)


def _before(now: int, seconds: float) -> int:
    return _first_id(_micro(now, seconds))


def _first_id(time_us: int) -> int:
    return min(first_id_at(time_us), NEWEST)
