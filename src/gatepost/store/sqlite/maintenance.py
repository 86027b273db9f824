"""Retention: finds what is past its time on a reader's connection and deletes it in small transactions of the writer.

A sweep goes through the ids from the oldest on, a bounded stretch at a time, and remembers where it stopped. Events go when
no delivery of theirs waits; a delivery and its attempts go together once it has ended and its last attempt is old enough.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gatepost.delivery.ids import first_id_at
from gatepost.store.paging import check_limit
from gatepost.store.rows import MaintenanceReport, Retention
from gatepost.store.sqlite.bulk import where_any, where_in
from gatepost.store.sqlite.finder import NEWEST
from gatepost.store.sqlite.operate import purge_dead
from gatepost.store.sqlite.reader import ReaderThread
from gatepost.store.sqlite.strips import STRIP_ROWS
from gatepost.store.sqlite.work import QueueWork
from gatepost.store.sqlite.writer import WriterThread

CHUNK: Final = 250
"""Rows deleted per transaction, so that a delivery's result never waits long behind retention."""
STRETCH: Final = 2_000
"""Rows looked at per query: some milliseconds on the reader that operators' lists share."""
STRETCHES_MAX: Final = 20
"""Stretches per kind and call, so that a call ends soon also where nothing may be deleted."""
VACUUM_PAGES: Final = 256
"""Unused pages given back to the disk per call."""
VACUUM_SHARE: Final = 0.25
"""Only what is unused beyond this share of the file is given back: the rest will be used again soon."""

_EVENTS_END = "SELECT max(id) FROM (SELECT id FROM event WHERE id > ? AND id < ? ORDER BY id LIMIT ?)"
NOT_NEEDED = """
NOT EXISTS (SELECT 1 FROM fan_out AS f WHERE f.event_id = e.id)
 AND NOT EXISTS (SELECT 1 FROM json_each(e.targets) AS t JOIN history AS h ON h.id = t.value
 JOIN delivery AS d ON d.lane = h.lane AND d.due_at = h.at AND d.id = h.id WHERE h.state = 0)"""
_EVENTS = f"SELECT e.id FROM event AS e WHERE e.id > ? AND e.id <= ? AND {NOT_NEEDED} ORDER BY e.id LIMIT ?"  # noqa: S608
_ENDED_END = "SELECT max(id) FROM (SELECT id FROM history WHERE id > ? AND id < ? ORDER BY id LIMIT ?)"
_ENDED = """
SELECT h.id FROM history AS h WHERE h.id > ?1 AND h.id <= ?2 AND h.state <> 1
 AND NOT EXISTS (SELECT 1 FROM delivery AS d WHERE d.lane = h.lane AND d.due_at = h.at AND d.id = h.id)
 AND NOT (h.state = 2 AND h.at >= ?4)
 AND NOT EXISTS (SELECT 1 FROM attempt AS a WHERE a.delivery_id = h.id AND a.started_at + a.elapsed_us >= ?4)
 ORDER BY h.id LIMIT ?3"""
_DEAD = "SELECT id FROM dead WHERE died_at < ? ORDER BY died_at LIMIT ?"
_LISTED = """
SELECT id FROM (SELECT id FROM endpoint_history WHERE endpoint = ? AND id < ? ORDER BY id LIMIT ?) AS l
 WHERE NOT EXISTS (SELECT 1 FROM history AS h WHERE h.id = l.id) LIMIT ?"""
_DESTINATIONS = "SELECT endpoint FROM destination WHERE endpoint > ? ORDER BY endpoint LIMIT ?"
# Tested again by the writer: a replay may have come between.
_DELETE_EVENTS = where_in(f"DELETE FROM event AS e WHERE {NOT_NEEDED} AND e.id IN")  # noqa: S608 - our own words
_DELETE_HISTORY = where_in("DELETE FROM history WHERE state <> 1 AND id IN")
# By range, so that attempts settled after their delivery was forgotten go too.
_DELETE_ATTEMPTS = """
DELETE FROM attempt WHERE delivery_id > ? AND delivery_id <= ?
 AND NOT EXISTS (SELECT 1 FROM history AS h WHERE h.id = delivery_id)"""
_DELETE_LISTED = where_any("DELETE FROM endpoint_history WHERE", "endpoint = ? AND id = ?")


class _Stretch(NamedTuple):
    """Ids to delete, and up to where was looked; `end` None: nothing is left below the cutoff."""

    ids: Sequence[int]
    end: int | None


class _Budget:
    """Rows that one kind may still delete: its share of what the kinds before it have left."""

    __slots__ = ("_kinds", "_total", "left")

    def __init__(self, total: int, kinds: int) -> None:
        self._total = total
        self._kinds = kinds
        self.left = 0

    def next_kind(self) -> None:
        """Share what is left with the kinds that come after, so that none starves behind another's backlog."""
        self.left = max(1, self._total // self._kinds)
        self._kinds -= 1

    def spend(self, rows: int) -> None:
        """So many rows are gone."""
        self.left -= rows
        self._total -= rows

    @property
    def exhausted(self) -> bool:
        """This kind has had its share."""
        return self.left <= 0


class Maintenance:
    """The sweeps of one store. One call at a time."""

    __slots__ = ("_ended_at", "_events_at", "_listed_at", "_reader", "_work", "_writer")

    def __init__(self, writer: WriterThread, reader: ReaderThread, work: QueueWork) -> None:
        self._writer = writer
        self._reader = reader
        self._work = work
        self._events_at = 0
        self._ended_at = 0
        self._listed_at = 0

    async def run(self, retention: Retention, now: int, budget: int) -> MaintenanceReport:
        """Delete about `budget` rows at most. Attempts go with their delivery and are not counted against it."""
        check_limit(budget)
        rest = _Budget(budget, kinds=5)
        keys, more_keys = await self._expire_keys(now, _micro(retention.idempotency), rest)
        dead, more_dead = await self._expire_dead(now - _micro(retention.dead_letters), rest)
        attempts, more_ended = await self._forget_ended(now - _micro(retention.attempts), rest)
        events, more_events = await self._forget_events(now - _micro(retention.events), rest)
        more_listed = await self._forget_listed(now - _micro(retention.attempts), rest)
        more_unused = await self._writer.call(VACUUM_PAGES, _give_back)
        more = more_keys or more_dead or more_ended or more_events or more_listed or more_unused
        return MaintenanceReport(events, attempts, dead, keys, more)

    async def _expire_keys(self, now: int, keep_us: int, rest: _Budget) -> tuple[int, bool]:
        rest.next_kind()
        expired, more = 0, True
        while more and not rest.exhausted:
            limit = min(CHUNK, rest.left)
            deleted, more = await self._writer.call(limit, self._expire_some_keys, now, keep_us, limit)
            expired += deleted
            rest.spend(max(1, deleted) if more else deleted)  # strips of keys that were written cost as well
        return expired, more

    def _expire_some_keys(self, _: sqlite3.Connection, now: int, keep_us: int, limit: int) -> tuple[int, bool]:
        return self._work.keys.expire(now, keep_us, limit)

    async def _expire_dead(self, before: int, rest: _Budget) -> tuple[int, bool]:
        rest.next_kind()
        expired = 0
        while not rest.exhausted:
            ids = await self._reader.run(_dead_before, before, min(CHUNK, rest.left))
            if not ids:
                return expired, False
            expired += await self._writer.call(4 * len(ids), purge_dead, self._work.tally, ids)
            rest.spend(len(ids))
        return expired, True

    async def _forget_ended(self, before: int, rest: _Budget) -> tuple[int, bool]:
        rest.next_kind()
        attempts = 0
        for _ in range(STRETCHES_MAX):
            if rest.exhausted:
                break
            begin = self._ended_at
            stretch = await self._reader.run(_ended_in_stretch, begin, before, min(CHUNK, rest.left))
            if stretch.end is None:
                self._ended_at = 0
                return attempts, False
            attempts += await self._writer.call(4 * len(stretch.ids), self._forget, begin, stretch)
            self._ended_at = stretch.end
            rest.spend(len(stretch.ids))
        return attempts, True

    def _forget(self, connection: sqlite3.Connection, begin: int, stretch: _Stretch) -> int:
        _DELETE_HISTORY.run(connection, stretch.ids)
        attempts = connection.execute(_DELETE_ATTEMPTS, (begin, stretch.end)).rowcount
        self._work.tally.count("attempts", -attempts)
        return attempts

    async def _forget_events(self, before: int, rest: _Budget) -> tuple[int, bool]:
        rest.next_kind()
        events = 0
        # A key that is only in memory is read again from its event after a crash: it must reach its table first.
        while not await self._writer.call(STRIP_ROWS, self._settle_keys, _first_id_at(before)):
            pass
        for _ in range(STRETCHES_MAX):
            if rest.exhausted:
                break
            stretch = await self._reader.run(_events_in_stretch, self._events_at, before, min(CHUNK, rest.left))
            if stretch.end is None:
                self._events_at = 0
                return events, False
            if stretch.ids:
                events += await self._writer.call(len(stretch.ids), self._delete_events, stretch.ids)
            self._events_at = stretch.end
            rest.spend(len(stretch.ids))
        return events, True

    def _settle_keys(self, _: sqlite3.Connection, before_id: int) -> bool:
        return self._work.keys.settle_before(before_id)

    def _delete_events(self, connection: sqlite3.Connection, ids: Sequence[int]) -> int:
        events = _DELETE_EVENTS.run(connection, ids)
        self._work.tally.count("events", -events)
        return events

    async def _forget_listed(self, before: int, rest: _Budget) -> bool:
        """The endpoints' lists, endpoint by endpoint: their oldest rows lie together there."""
        rest.next_kind()
        for _ in range(STRETCHES_MAX):
            if rest.exhausted:
                break
            pairs, end = await self._reader.run(_listed_in_vain, self._listed_at, _first_id_at(before))
            if pairs:
                await self._writer.call(len(pairs) // 2, _delete_listed, pairs)
                rest.spend(len(pairs) // 2)
            self._listed_at = end or 0
            if end is None:
                return False
        return True


def _dead_before(connection: sqlite3.Connection, before: int, limit: int) -> list[int]:
    return _ids(connection.execute(_DEAD, (before, limit)))


def _ended_in_stretch(connection: sqlite3.Connection, begin: int, before: int, limit: int) -> _Stretch:
    end = connection.execute(_ENDED_END, (begin, _first_id_at(before), STRETCH)).fetchone()[0]
    return _stretch(end, limit, connection.execute(_ENDED, (begin, end, limit, before)))


def _events_in_stretch(connection: sqlite3.Connection, begin: int, before: int, limit: int) -> _Stretch:
    end = connection.execute(_EVENTS_END, (begin, _first_id_at(before), STRETCH)).fetchone()[0]
    return _stretch(end, limit, connection.execute(_EVENTS, (begin, end, limit)))


def _stretch(end: int | None, limit: int, rows: Iterable[tuple[int]]) -> _Stretch:
    if end is None:
        return _Stretch((), None)
    ids = _ids(rows)
    return _Stretch(ids, ids[-1] if len(ids) == limit else end)


def _listed_in_vain(connection: sqlite3.Connection, begin: int, before_id: int) -> tuple[list[int], int | None]:
    """(endpoint, id) pairs, flattened, that no history row stands behind, and the endpoint looked at last."""
    pairs: list[int] = []
    endpoints = _ids(connection.execute(_DESTINATIONS, (begin, CHUNK)))
    for endpoint in endpoints:
        room = CHUNK - len(pairs) // 2
        ids = _ids(connection.execute(_LISTED, (endpoint, before_id, STRETCH, room)))
        for number in ids:
            pairs += (endpoint, number)
        if len(ids) == room:
            return pairs, endpoint - 1  # there may be more of this endpoint
    return pairs, endpoints[-1] if len(endpoints) == CHUNK else None


def _delete_listed(connection: sqlite3.Connection, pairs: Sequence[int]) -> None:
    _DELETE_LISTED.run(connection, pairs)


def _give_back(connection: sqlite3.Connection) -> bool:
    """Shrink the file a little when much of it is unused; True when there is more to give."""
    unused: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    pages: int = connection.execute("PRAGMA page_count").fetchone()[0]
    surplus = unused - int(pages * VACUUM_SHARE)
    if surplus <= VACUUM_PAGES:
        return False
    connection.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()
    return surplus > 2 * VACUUM_PAGES


def _first_id_at(time_us: int) -> int:
    return min(first_id_at(time_us), NEWEST)


def _micro(seconds: float) -> int:
    return round(seconds * 1e6)


def _ids(rows: Iterable[tuple[int]]) -> list[int]:
    return [row[0] for row in rows]
