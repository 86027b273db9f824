"""What the database says after a chaos run, as `bench.chaos_invariants` takes it; and a watcher of markers and owners while it runs.

Reads only. Everything is about the events that producers made, whose types begin with `chaos.`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import asyncpg

from bench.chaos_overlaps import NOBODY, AttemptLine, Hold
from gatepost.delivery.ids import EVENT, encode_id

WATCH_EVERY: Final = 0.5
"""Seconds between two looks at the markers."""

_STATES: Final = """
SELECT h.event_id, h.lane >> 8 AS endpoint, h.state, d.id IS NOT NULL AS waiting, x.id IS NOT NULL AS dead
  FROM gp_history AS h JOIN gp_event AS e ON e.id = h.event_id AND e.type LIKE 'chaos.%'
  LEFT JOIN gp_delivery AS d ON d.id = h.id LEFT JOIN gp_dead AS x ON x.id = h.id
UNION ALL
SELECT d.event_id, d.lane >> 8, 0, true, false FROM gp_delivery AS d JOIN gp_event AS e ON e.id = d.event_id AND e.type LIKE 'chaos.%'
 WHERE NOT EXISTS (SELECT 1 FROM gp_history AS h WHERE h.id = d.id)"""
_ATTEMPTS: Final = """
SELECT a.delivery_id, a.number, a.started_at, a.worker, a.blame <> 'us' AS uses_up, a.elapsed_us, a.endpoint
  FROM gp_attempt AS a JOIN gp_event AS e ON e.id = a.event_id AND e.type LIKE 'chaos.%'"""
# One statement, hence one snapshot: an enqueue writes rows and marker in one transaction.
_UNMARKED: Final = """
SELECT DISTINCT d.lane FROM gp_delivery AS d
 WHERE NOT EXISTS (SELECT 1 FROM gp_active AS a WHERE a.part = d.part AND a.lane = d.lane)"""


async def read_states(connection: asyncpg.Connection, ours: Mapping[int, int]) -> dict[str, Counter[str]]:
    """Rows of each delivery by state; `ours` is our number of an endpoint by the store's."""
    states: dict[str, Counter[str]] = defaultdict(Counter)
    for row in await connection.fetch(_STATES):
        name = f"{encode_id(EVENT, row['event_id'])}/{ours.get(row['endpoint'], row['endpoint'])}"
        found = states[name]
        found["waiting"] += row["waiting"]
        found["dead"] += row["dead"]
        found["cancelled"] += row["state"] == 2
        found["delivered"] += row["state"] == 0 and not row["waiting"] and not row["dead"]
    return states


async def read_attempts(connection: asyncpg.Connection, ours: Mapping[int, int]) -> list[AttemptLine]:
    """The whole log."""
    lines = []
    for row in await connection.fetch(_ATTEMPTS):
        delivery, number, started_at, worker, uses_up, elapsed, endpoint = row
        lines.append(AttemptLine(delivery, number, started_at, worker, uses_up, elapsed, ours.get(endpoint, endpoint)))
    return lines


async def count_events(connection: asyncpg.Connection) -> int:
    """Events of producers."""
    return int(await connection.fetchval("SELECT count(*) FROM gp_event WHERE type LIKE 'chaos.%'"))


class Watch:
    """Looks for lanes with rows and without marker, and at who owns the endpoints' parts, until cancelled; a database that is just
    restarting is asked again. `numbers` is the store's number of an endpoint by ours."""

    def __init__(self, url: str, numbers: Mapping[int, int]) -> None:
        self._url = url
        self._numbers = numbers
        self._now: dict[int, Hold] = {}
        self.holds: list[Hold] = []
        """Those that are over; `all_holds` has the others too."""
        self.looks = 0
        self.unmarked: list[int] = []

    async def run(self) -> None:
        """Look every `WATCH_EVERY` seconds."""
        while True:
            try:
                await self._look()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(WATCH_EVERY)

    async def _look(self) -> None:
        connection = await asyncpg.connect(self._url)
        try:
            while True:
                self.unmarked += [row[0] for row in await connection.fetch(_UNMARKED)]
                await self._look_at_owners(connection)
                self.looks += 1
                await asyncio.sleep(WATCH_EVERY)
        finally:
            connection.terminate()

    @property
    def all_holds(self) -> list[Hold]:
        """In time."""
        return sorted([*self.holds, *self._now.values()], key=lambda hold: hold.since)

    async def _look_at_owners(self, connection: asyncpg.Connection) -> None:
        asked = time.monotonic()
        rows = {row["part"]: row for row in await connection.fetch("SELECT part, owner, epoch FROM gp_part")}
        answered = time.monotonic()
        for endpoint, stored in self._numbers.items():
            row = rows[stored % len(rows)]
            pid = NOBODY if row["owner"] is None else int(row["owner"].partition("-")[0])
            last = self._now.get(endpoint)
            if last is not None and (last.pid, last.epoch) == (pid, row["epoch"]):
                self._now[endpoint] = replace(last, until=asked)
                continue
            if last is not None:
                self.holds.append(last)
            self._now[endpoint] = Hold(endpoint, row["epoch"], pid, answered, answered)
