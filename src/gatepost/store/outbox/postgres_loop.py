"""Puts events into an outbox on PostgreSQL from an event loop: one connection, and while a group is stored the next one gathers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gatepost.errors import ConfigurationError, StoreError
from gatepost.store.outbox.postgres_common import (
    NAMES,
    PATIENCE,
    PROBE,
    SAME,
    TRIES,
    Numbers,
    all_values_of,
    connection_lost,
    no_id,
    translated,
    unknown_fate,
)
from gatepost.store.outbox.schema import TABLE, TRACED
from gatepost.store.postgres.address import PostgresAddress
from gatepost.store.rows import OutboxEvent

if TYPE_CHECKING:
    import asyncpg

GROUP_EVENTS_MAX: Final = 250
GROUP_BYTES_MAX: Final = 4 * 1_048_576
WAITING_EVENTS_MAX: Final = 10_000
"""Events of one process that wait for the statement before theirs; more are refused at once."""

_CASTS: Final[Mapping[str, str]] = {
    "event_id": "bigint",
    "not_before": "bigint",
    "created_at": "bigint",
    "body": "bytea",
}
_INSERT_GROUP: Final = (
    f"INSERT INTO {TABLE} ({NAMES}) SELECT * FROM unnest("  # noqa: S608 - constants
    + ", ".join(f"${number}::{_CASTS.get(name, 'text')}[]" for number, name in enumerate(TRACED, 1))
    + ") ON CONFLICT (event_id) DO NOTHING RETURNING event_id"
)


@dataclass(slots=True, eq=False)
class _Waiting:
    event: OutboxEvent
    future: asyncio.Future[OutboxEvent]


class LoopSide:
    """One connection; while a group is stored, the next one gathers."""

    def __init__(self, address: PostgresAddress, numbers: Numbers) -> None:
        try:
            import asyncpg
        except ImportError:
            raise ConfigurationError("PostgreSQL needs asyncpg: pip install 'gatepost[postgres]'") from None
        self._asyncpg = asyncpg
        # The driver's internal one comes from a connection that the server has just ended.
        self._driver_failures = (asyncpg.InterfaceError, asyncpg.InternalClientError)
        self._failures = (OSError, TimeoutError, EOFError, asyncpg.PostgresError, *self._driver_failures)
        self._address = address
        self._place = address.place
        self._numbers = numbers
        self._connection: asyncpg.Connection[Any] | None = None
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Connect and find the table."""
        try:
            async with asyncio.timeout(2 * PATIENCE):
                await (await self._connected()).execute(PROBE)
        except self._failures as error:
            self.terminate()
            raise translated(error, self._place) from error

    async def put(self, event: OutboxEvent) -> OutboxEvent:
        """Store an event; returns it with its id."""
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
                raise (unknown_fate if sent else translated)(error, self._place) from error
            sent = True
            try:
                async with asyncio.timeout(2 * PATIENCE):
                    todo = await self._put(connection, todo)
            except self._failures as error:
                self.terminate()
                failure = error
                if not (connection_lost(error) or isinstance(error, self._driver_failures)):
                    raise translated(error, self._place) from error
            else:
                if not todo:
                    return
                failure = None
        raise unknown_fate(failure, self._place) if failure else no_id(self._place)

    async def _put(self, connection: asyncpg.Connection[Any], todo: list[_Waiting]) -> list[_Waiting]:
        """Those whose id is another event's stay to be done under a new one; and under the same one when it has just gone."""
        columns = list(zip(*(all_values_of(waiting.event) for waiting in todo), strict=True))
        stored = {row[0] for row in await connection.fetch(_INSERT_GROUP, *columns)}
        again = []
        for waiting in todo:
            event = waiting.event
            if event.event_id not in stored:
                row = await connection.fetchrow(SAME + "$1", event.event_id)
                if row is None or tuple(row) != all_values_of(event):
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
                self._address.url, timeout=PATIENCE, command_timeout=PATIENCE, statement_cache_size=0
            )
        return self._connection

    def terminate(self) -> None:
        """Let go of the connection at once."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def aclose(self) -> None:
        """Finish what was accepted, then close."""
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
