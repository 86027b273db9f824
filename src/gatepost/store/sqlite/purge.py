"""Erases a tenant: finds its rows on a reader's connection, deletes them in small transactions of the writer, records last.

What is deleted is overwritten with zeros in the file. The caller has stopped the tenant, so that nothing new comes and
nothing of it is in flight. Called by `store`; one call at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from gatepost.delivery.ids import ENDPOINT, decode_id
from gatepost.store.paging import check_limit
from gatepost.store.port import event_type_id
from gatepost.store.rows import TenantPurge
from gatepost.store.sqlite.bulk import where_any, where_in
from gatepost.store.sqlite.meta import read_meta
from gatepost.store.sqlite.operate import take_waiting
from gatepost.store.sqlite.reader import ReaderThread
from gatepost.store.sqlite.work import QueueWork
from gatepost.store.sqlite.writer import WriterThread

CHUNK: Final = 250
"""Rows erased per transaction, so that a delivery's result never waits long behind it."""
STRETCH: Final = 10_000
"""Events of all tenants looked at per query: tens of milliseconds on the reader that operators' lists share."""
STRETCHES_MAX: Final = 10
"""Stretches per call, so that a call ends soon also where others own most events."""

_OUTBOX = "SELECT event_id FROM outbox WHERE tenant = ? LIMIT ?"
_TAIL = """
SELECT o.endpoint, h.id FROM history AS h JOIN destination AS o ON o.endpoint = h.lane >> 8
 WHERE h.id > ? AND o.tenant = ? LIMIT ?"""
_LISTED = """
SELECT l.endpoint, l.id FROM destination AS o JOIN endpoint_history AS l ON l.endpoint = o.endpoint
 WHERE o.tenant = ? LIMIT ?"""
_EVENTS_END = "SELECT max(id) FROM (SELECT id FROM event WHERE id > ? ORDER BY id LIMIT ?)"
_EVENTS = "SELECT id, key FROM event WHERE id > ? AND id <= ? AND tenant = ? ORDER BY id LIMIT ?"

_DELETE_OUTBOX = where_in("DELETE FROM outbox WHERE event_id IN")
_DELETE_DEAD = where_in("DELETE FROM dead WHERE id IN")
_DELETE_ATTEMPTS = where_in("DELETE FROM attempt WHERE delivery_id IN")
_DELETE_HISTORY = where_in("DELETE FROM history WHERE id IN")
_DELETE_LISTED = where_any("DELETE FROM endpoint_history WHERE", "endpoint = ? AND id = ?")
_DELETE_EVENTS = where_in("DELETE FROM event WHERE id IN")
_CHANGED = """
INSERT INTO change (kind, id, number) VALUES (?, ?, (SELECT coalesce(max(number), 0) + 1 FROM change))
 ON CONFLICT (kind, id) DO UPDATE SET number = excluded.number"""


class _Delivery(NamedTuple):
    endpoint: int
    delivery_id: int


class _Events(NamedTuple):
    rows: Sequence[tuple[int, bytes | None]]
    """(id, key fingerprint) of the tenant's events."""
    end: int | None
    """Up to where was looked; None: there are no more."""


class Purge:
    """Erases tenants of one store."""

    __slots__ = ("_events_at", "_reader", "_work", "_writer")

    def __init__(self, writer: WriterThread, reader: ReaderThread, work: QueueWork) -> None:
        self._writer = writer
        self._reader = reader
        self._work = work
        self._events_at: dict[str, int] = {}  # by tenant: events up to this id have been looked at

    async def run(self, tenant: str, limit: int) -> TenantPurge:
        """Erase about `limit` rows; the records go with the call that finds no row left."""
        check_limit(limit)
        await self._writer.call(1, _delete_fan_outs, tenant)
        outbox = await self._erase_outbox(tenant, limit)
        if outbox == limit:
            return TenantPurge(outbox=outbox, more=True)
        left = limit - outbox
        deliveries = dead = attempts = 0
        while left > 0:
            found = await self._reader.run(_deliveries, tenant, min(CHUNK, left))
            if not found:
                break
            one = await self._writer.call(5 * len(found), self._erase_deliveries, found)
            deliveries, dead, attempts = deliveries + one[0], dead + one[1], attempts + one[2]
            left -= len(found)
        events = keys = 0
        more = left <= 0
        if not more:
            events, keys, more = await self._erase_events(tenant, left)
        if more:
            return TenantPurge(deliveries, events, attempts, dead, outbox, keys, more=True)
        endpoints, api_keys = await self._writer.call(100, self._erase_records, tenant)
        return TenantPurge(deliveries, events, attempts, dead, outbox, keys, endpoints, api_keys)

    async def _erase_outbox(self, tenant: str, limit: int) -> int:
        erased = 0
        while erased < limit:
            ids = await self._reader.run(_column, _OUTBOX, tenant, min(CHUNK, limit - erased))
            if not ids:
                break
            erased += await self._writer.call(len(ids), _delete_outbox, ids)
        return erased

    def _erase_deliveries(self, connection: sqlite3.Connection, found: Sequence[_Delivery]) -> tuple[int, int, int]:
        """Returns how many deliveries, dead letters and attempts."""
        ids = [row.delivery_id for row in found]
        tally = self._work.tally
        with _overwriting(connection):
            tally.leave(lane for number in ids if (lane := take_waiting(connection, number)) is not None)
            dead = _DELETE_DEAD.run(connection, ids)
            attempts = _DELETE_ATTEMPTS.run(connection, ids)
            deliveries = _DELETE_HISTORY.run(connection, ids)
            _DELETE_LISTED.run(connection, [number for row in found for number in row])
        tally.count("dead", -dead)
        tally.count("attempts", -attempts)
        return deliveries, dead, attempts

    async def _erase_events(self, tenant: str, limit: int) -> tuple[int, int, bool]:
        """Returns how many events and keys, and whether there may be more."""
        events = keys = 0
        for _ in range(STRETCHES_MAX):
            if events >= limit:
                break
            found = await self._reader.run(_events, tenant, self._events_at.get(tenant, 0), min(CHUNK, limit - events))
            if found.end is None:
                self._events_at.pop(tenant, None)
                return events, keys, False
            if found.rows:
                one = await self._writer.call(2 * len(found.rows), self._erase_some_events, found.rows)
                events, keys = events + one[0], keys + one[1]
            self._events_at[tenant] = found.end
        return events, keys, True

    def _erase_some_events(
        self, connection: sqlite3.Connection, rows: Sequence[tuple[int, bytes | None]]
    ) -> tuple[int, int]:
        with _overwriting(connection):
            events = _DELETE_EVENTS.run(connection, [number for number, _ in rows])
            keys = self._work.keys.forget([key for _, key in rows if key is not None])
        self._work.tally.count("events", -events)
        return events, keys

    def _erase_records(self, connection: sqlite3.Connection, tenant: str) -> tuple[int, int]:
        """Returns how many endpoints and API keys."""
        endpoints = _column(connection, "SELECT id FROM endpoint WHERE tenant = ?", tenant)
        keys = _column(connection, "SELECT id FROM api_key WHERE tenant = ?", tenant)
        numbers = {decode_id(ENDPOINT, endpoint) for endpoint in endpoints}
        numbers.update(_column(connection, "SELECT endpoint FROM destination WHERE tenant = ?", tenant))
        with _overwriting(connection):
            for number in numbers:
                connection.execute("DELETE FROM endpoint_state WHERE endpoint = ?", (number,))
            connection.execute("DELETE FROM endpoint WHERE tenant = ?", (tenant,))
            connection.execute("DELETE FROM api_key WHERE tenant = ?", (tenant,))
            existed = connection.execute("DELETE FROM tenant WHERE name = ?", (tenant,)).rowcount
            connection.execute("DELETE FROM destination WHERE tenant = ?", (tenant,))
        self._work.tally.disown(tenant)
        types = sorted(set(_column(connection, "SELECT type FROM event_type WHERE tenant = ?", tenant)))
        connection.execute("DELETE FROM event_type WHERE tenant = ?", (tenant,))
        changed = [*(("endpoint", one) for one in endpoints), *(("api_key", one) for one in keys)]
        changed += [("event_type", event_type_id(tenant, one)) for one in types]
        connection.executemany(_CHANGED, changed + [("tenant", tenant)] * existed)
        return len(endpoints), len(keys)


@contextmanager
def _overwriting(connection: sqlite3.Connection) -> Iterator[None]:
    """Deleted content becomes zeros, instead of staying readable in unused pages."""
    connection.execute("PRAGMA secure_delete = ON")
    try:
        yield
    finally:
        connection.execute("PRAGMA secure_delete = OFF")


def _delete_fan_outs(connection: sqlite3.Connection, tenant: str) -> None:
    connection.execute("DELETE FROM fan_out WHERE tenant = ?", (tenant,))


def _delete_outbox(connection: sqlite3.Connection, ids: Sequence[int]) -> int:
    with _overwriting(connection):
        return _DELETE_OUTBOX.run(connection, ids)


def _deliveries(connection: sqlite3.Connection, tenant: str, limit: int) -> list[_Delivery]:
    """Of whatever state: what the endpoints' lists hold, and the tail of history that they do not hold yet."""
    tail = connection.execute(_TAIL, (read_meta(connection, "listed_upto"), tenant, limit)).fetchall()
    listed = connection.execute(_LISTED, (tenant, limit - len(tail))).fetchall()
    return list(map(_Delivery._make, dict.fromkeys(tail + listed)))


def _events(connection: sqlite3.Connection, tenant: str, begin: int, limit: int) -> _Events:
    end = connection.execute(_EVENTS_END, (begin, STRETCH)).fetchone()[0]
    if end is None:
        return _Events((), None)
    rows = connection.execute(_EVENTS, (begin, end, tenant, limit)).fetchall()
    return _Events(rows, rows[-1][0] if len(rows) == limit else end)


def _column(connection: sqlite3.Connection, query: str, *values: object) -> list[Any]:
    return [row[0] for row in connection.execute(query, values)]
