"""What a `Publisher` writes to on PostgreSQL: one statement a group, one connection a process, and no ownership of anything.

An event of unknown fate (the connection died while it was stored) is put again under its id, which the dispatcher drops if it
has it; a row that is there counts as ours only if it holds what we wrote, else the event takes a new id. asyncpg serves event
loops, psycopg everything else.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from gatepost.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from gatepost.delivery.ids import ScatteredIds
from gatepost.errors import ConfigurationError, StoreError, StoreFull
from gatepost.store.outbox.schema import COLUMNS, TABLE, UNDEFINED_TABLE, missing_table, sqlstate_of, values_of
from gatepost.store.postgres.address import postgres_address
from gatepost.store.rows import OutboxEvent

if TYPE_CHECKING:
    import asyncpg
    import psycopg

PATIENCE: Final = 5.0
"""Seconds for connecting and for one statement: what a publisher on SQLite waits for other writers."""
GROUP_EVENTS_MAX: Final = 250
GROUP_BYTES_MAX: Final = 4 * 1_048_576
WAITING_EVENTS_MAX: Final = 10_000
"""Events of one process that wait for the statement before theirs; more are refused at once."""
TRIES: Final = 3
"""A group is put again after its connection was lost, and events again whose id was taken."""
DISK_FULL: Final = "53100"
_FAILOVER: Final = frozenset({"57P01", "57P02", "57P03", "25006"})
"""The server stops, starts, or is a standby now: the next connection may find the new primary."""

_CASTS: Final[Mapping[str, str]] = {
    "event_id": "bigint",
    "not_before": "bigint",
    "created_at": "bigint",
    "body": "bytea",
}
_NAMES: Final = ", ".join(COLUMNS)
_INSERT_GROUP: Final = (
    f"INSERT INTO {TABLE} ({_NAMES}) SELECT * FROM unnest("  # noqa: S608 - constants
    + ", ".join(f"${number}::{_CASTS.get(name, 'text')}[]" for number, name in enumerate(COLUMNS, 1))
    + ") ON CONFLICT (event_id) DO NOTHING RETURNING event_id"
)
_INSERT_ONE: Final = (
    f"INSERT INTO {TABLE} ({_NAMES}) VALUES ({', '.join(['%s'] * len(COLUMNS))})"  # noqa: S608 - constants
    " ON CONFLICT (event_id) DO NOTHING RETURNING event_id"
)
_SAME: Final = f"SELECT {_NAMES} FROM {TABLE} WHERE event_id = "  # noqa: S608 - constants
_PROBE: Final = f"SELECT event_id FROM {TABLE} LIMIT 0"  # noqa: S608 - a constant


def translated(error: BaseException, place: str) -> ConfigurationError | StoreError:
    """What is raised for an error of a driver, by its code."""
    code = sqlstate_of(error)
    if code == UNDEFINED_TABLE:
        return missing_table()
    if code == DISK_FULL:
        return StoreFull(f"{place} has no room for new events")
    what = f"{type(error).__name__} {code}" if code is not None else type(error).__name__
    return StoreError(f"{place}: {what}: {error}")


def connection_lost(error: BaseException) -> bool:
    """Whether another connection may do better: the network failed, or the server went away."""
    code = sqlstate_of(error)
    return isinstance(error, OSError | TimeoutError | EOFError) or code in _FAILOVER or (code or "")[:2] == "08"


class PostgresOutbox:
    """The outbox in Gatepost's own database, or in any other that a dispatcher follows."""

    def __init__(self, url: str) -> None:
        address = postgres_address(url)
        self._url = address.url
        self._place = address.place
        self._numbers = _Numbers()
        self._process = os.getpid()
        self._closed = False
        self._loop_side: _LoopSide | None = None
        self._thread_side: _ThreadSide | None = None

    def __repr__(self) -> str:
        return f"PostgresOutbox({self._place})"

    def prepare(self) -> None:
        """Connect for `put` and find the table."""
        self._sync().prepare()

    async def prepare_async(self) -> None:
        """Connect for `put_async` and find the table."""
        await self._async().prepare()

    def put(self, event: OutboxEvent) -> OutboxEvent:
        """Store an event; from any thread, one at a time."""
        self._check_open()
        return self._sync().put(event)

    async def put_async(self, event: OutboxEvent) -> OutboxEvent:
        """Store an event together with those that wait."""
        self._check_open()
        return await self._async().put(event)

    def close(self) -> None:
        """After a fork it is the parent's to close."""
        self._closed = True
        if self._process != os.getpid():
            return
        if self._thread_side is not None:
            self._thread_side.close()
        if self._loop_side is not None:
            self._loop_side.terminate()

    async def aclose(self) -> None:
        """Finish what was accepted, then close."""
        self._closed = True
        if self._loop_side is not None and self._process == os.getpid():
            await self._loop_side.aclose()
        self.close()

    def _sync(self) -> _ThreadSide:
        if self._thread_side is None:
            self._thread_side = _ThreadSide(self._url, self._place, self._numbers)
        return self._thread_side

    def _async(self) -> _LoopSide:
        if self._loop_side is None:
            self._loop_side = _LoopSide(self._url, self._place, self._numbers)
        return self._loop_side

    def _check_open(self) -> None:
        if self._process != os.getpid():
            # Two processes on one socket garble each other's conversation.
            raise RuntimeError("this publisher was opened before a fork: open one in each process, after the fork")
        if self._closed:
            raise StoreError("the outbox is closed")


class _Numbers:
    """Ids for both sides."""

    def __init__(self) -> None:
        self._ids = ScatteredIds(SYSTEM_CLOCK, SYSTEM_ENTROPY)
        self._lock = threading.Lock()

    def give(self, event: OutboxEvent) -> OutboxEvent:
        """The event under a new id."""
        with self._lock:
            return replace(event, event_id=self._ids.next())


# ----------------------------------------------------------------------------------------------- event loops


@dataclass(slots=True, eq=False)
class _Waiting:
    event: OutboxEvent
    future: asyncio.Future[OutboxEvent]


class _LoopSide:
    """One connection; while a group is stored, the next one gathers."""

    def __init__(self, url: str, place: str, numbers: _Numbers) -> None:
        try:
            import asyncpg
        except ImportError:
            raise ConfigurationError("PostgreSQL needs asyncpg: pip install 'gatepost[postgres]'") from None
        self._asyncpg = asyncpg
        self._failures = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)
        self._url = url
        self._place = place
        self._numbers = numbers
        self._connection: asyncpg.Connection[Any] | None = None
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        try:
            async with asyncio.timeout(2 * PATIENCE):
                await (await self._connected()).execute(_PROBE)
        except self._failures as error:
            self.terminate()
            raise translated(error, self._place) from error

    async def put(self, event: OutboxEvent) -> OutboxEvent:
        if len(self._waiting) >= WAITING_EVENTS_MAX:
            raise StoreError(f"{self._place} cannot keep up: {WAITING_EVENTS_MAX} events of this process wait already")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(self._numbers.give(event), loop.create_future())
        self._waiting.append(waiting)
        if self._task is None:
            # A task of its own: a publisher that is cancelled must not take its neighbours' events with it.
            self._task = loop.create_task(self._store_groups(), name="gatepost outbox")
        return await waiting.future

    async def _store_groups(self) -> None:
        try:
            while self._waiting:
                group = self._next_group()
                try:
                    await self._store_group(group)
                except Exception as error:  # noqa: BLE001 - it is the publishers', and raised there
                    failure = (
                        error if isinstance(error, StoreError | ConfigurationError) else translated(error, self._place)
                    )
                    for waiting in group:
                        if not waiting.future.done():
                            waiting.future.set_exception(failure)
                            waiting.future.exception()  # a publisher that gave up does not look
        finally:
            self._task = None

    def _next_group(self) -> list[_Waiting]:
        size = count = 0
        for waiting in self._waiting[:GROUP_EVENTS_MAX]:
            size += len(waiting.event.body)
            if count and size > GROUP_BYTES_MAX:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return [waiting for waiting in group if not waiting.future.cancelled()]

    async def _store_group(self, group: Sequence[_Waiting]) -> None:
        todo, sent = list(group), False
        failure: BaseException | None = None
        for _ in range(TRIES):
            try:
                async with asyncio.timeout(2 * PATIENCE):
                    connection = await self._connected()
            except self._failures as error:
                raise (_unknown if sent else translated)(error, self._place) from error
            sent = True
            try:
                async with asyncio.timeout(2 * PATIENCE):
                    todo = await self._put(connection, todo)
            except self._failures as error:
                self.terminate()
                failure = error
                if not (connection_lost(error) or isinstance(error, self._asyncpg.InterfaceError)):
                    raise translated(error, self._place) from error
            else:
                if not todo:
                    return
                failure = None
        raise _unknown(failure, self._place) if failure else _no_id(self._place)

    async def _put(self, connection: asyncpg.Connection[Any], todo: list[_Waiting]) -> list[_Waiting]:
        """Those whose id is another event's stay to be done under a new one; and under the same one when it has just gone."""
        columns = list(zip(*(values_of(waiting.event) for waiting in todo), strict=True))
        stored = {row[0] for row in await connection.fetch(_INSERT_GROUP, *columns)}
        again = []
        for waiting in todo:
            event = waiting.event
            if event.event_id not in stored:
                row = await connection.fetchrow(_SAME + "$1", event.event_id)
                if row is None or tuple(row) != values_of(event):
                    if row is not None:
                        waiting.event = self._numbers.give(event)
                    again.append(waiting)
                    continue
            if not waiting.future.done():
                waiting.future.set_result(event)
        return again

    async def _connected(self) -> asyncpg.Connection[Any]:
        if self._connection is None or self._connection.is_closed():
            # No prepared statements: a PgBouncer that pools by transaction would mix them up.
            self._connection = await self._asyncpg.connect(
                self._url, timeout=PATIENCE, command_timeout=PATIENCE, statement_cache_size=0
            )
        return self._connection

    def terminate(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def aclose(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task], timeout=2 * PATIENCE)
        if self._task is not None:
            self._task.cancel()
        if self._connection is not None:
            try:
                await self._connection.close(timeout=1.0)
            except self._failures:
                pass  # `terminate` follows
            self._connection = None


# --------------------------------------------------------------------------------------------------- threads


class _ThreadSide:
    """One connection, one event at a time; no event loop and no thread."""

    def __init__(self, url: str, place: str, numbers: _Numbers) -> None:
        try:
            import psycopg
        except ImportError:
            raise ConfigurationError(
                "publishing to PostgreSQL from synchronous code needs psycopg: pip install 'psycopg[binary]'"
            ) from None
        self._psycopg = psycopg
        self._url = url
        self._place = place
        self._numbers = numbers
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._lock = threading.Lock()

    def prepare(self) -> None:
        with self._lock:
            try:
                self._connected().execute(_PROBE)
            except self._psycopg.Error as error:
                self._drop()
                raise translated(error, self._place) from error

    def put(self, event: OutboxEvent) -> OutboxEvent:
        event, sent = self._numbers.give(event), False
        failure: BaseException | None = None
        with self._lock:
            for _ in range(TRIES):
                try:
                    connection = self._connected()
                except self._psycopg.Error as error:
                    raise (_unknown if sent else translated)(error, self._place) from error
                sent = True
                try:
                    if connection.execute(_INSERT_ONE, values_of(event)).fetchone() is not None:
                        return event
                    row = connection.execute(_SAME + "%s", (event.event_id,)).fetchone()
                except self._psycopg.Error as error:
                    failure, lost = error, connection.closed or connection_lost(error)
                    self._drop()
                    if not lost:
                        raise translated(error, self._place) from error
                else:
                    failure = None
                    if row is not None:
                        if row == values_of(event):
                            return event
                        event = self._numbers.give(event)
        raise _unknown(failure, self._place) if failure else _no_id(self._place)

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            self._connection = self._psycopg.connect(
                self._url,
                autocommit=True,
                prepare_threshold=None,  # a PgBouncer that pools by transaction would mix prepared statements up
                connect_timeout=int(PATIENCE),
                # A peer that has vanished must not hold a web worker longer than other writers would.
                tcp_user_timeout=int(PATIENCE * 1_000),
            )
        return self._connection

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _unknown(error: BaseException, place: str) -> StoreError:
    failure = translated(error, place)
    return StoreError(
        f"{failure}; whether the event was stored is not known: publish it again with the same idempotency_key"
    )


def _no_id(place: str) -> StoreError:
    return StoreError(f"{TRIES} ids in a row were taken in {TABLE} of {place}: nothing was stored, look at this table")
