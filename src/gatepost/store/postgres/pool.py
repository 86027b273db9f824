"""The connections of one store: few, set up alike, each used by one call at a time, and never trusted again after a fault.

Every call runs in a task of its own within a time limit: a caller that is cancelled leaves behind a call that ends by itself,
not a connection in the middle of a statement. It knows no table. Used by everything in this package but the session.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from gatepost.clock import SYSTEM_CLOCK
from gatepost.errors import ConfigurationError, GatepostError, Overloaded, StoreError
from gatepost.store.postgres.address import PostgresAddress
from gatepost.store.postgres.failures import connection_is_lost, is_drivers, may_be_repeated, translated

Connection: TypeAlias = Any
"""An `asyncpg.Connection`, whose methods the package does not type."""
T = TypeVar("T")

TRANSACTION_MAX: Final = 10.0
"""Seconds any statement or transaction may last: T_max of the marker protocol (`settle.IDLE_WAIT`), and of low-water reads."""
CONNECT_MAX: Final = 5.0
WAITING_MAX: Final = 1_000
"""Calls that wait for a connection; the callers' own limits are far below."""
REPEAT_FIRST: Final = 0.02
REPEAT_MAX: Final = 0.5
"""Seconds between two tries, doubling."""

_SETTINGS: Final = {
    "statement_timeout": f"{TRANSACTION_MAX:.0f}s",
    "lock_timeout": f"{TRANSACTION_MAX / 2:.0f}s",
    "idle_in_transaction_session_timeout": f"{TRANSACTION_MAX:.0f}s",
    # A peer that vanished must be noticed in seconds on either side, since its session lock says that it lives.
    "tcp_keepalives_idle": "3",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
    # Every statement of ours finds its rows by a key: a plan made while a table was empty must not scan it when it is not.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "default_transaction_isolation": "read committed",
    "client_min_messages": "error",
}
_TRANSACTION_TIMEOUT_SINCE: Final = 17


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What a pool may take, and how long."""

    connections: int = 8
    """Two enqueues, two settles, reads, and what operators ask; more would only queue at the server's cores."""
    call: float = TRANSACTION_MAX + 2.0
    """Seconds until a call is given up on our side, when neither the server nor the network says anything."""
    repeat_for: float = 3.0
    """Seconds within which a call that a fault interrupted is made again: a restart of the server takes one or two."""


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A snapshot."""

    open: int
    idle: int
    waiting: int
    lost: int
    """Connections given up since the start."""
    repeated: int
    """Calls made again since the start."""


async def connect(address: PostgresAddress) -> Connection:
    """A connection set up as all of ours. Raises what the driver raises, `ConfigurationError` without it."""
    try:
        import asyncpg
    except ImportError:
        raise ConfigurationError("postgresql:// needs asyncpg: pip install 'gatepost[postgres]'") from None
    by_transaction = address.pooling == "transaction"
    connection = await asyncpg.connect(
        address.url,
        timeout=CONNECT_MAX,
        statement_cache_size=0 if by_transaction else 200,
        # Ours are always text; a plan that the server makes anew is the same plan.
        max_cached_statement_lifetime=0,
    )
    try:
        if not by_transaction:
            await connection.execute(_set(connection, "SET"))
    except BaseException:
        connection.terminate()
        raise
    return connection


def _set(connection: Connection, verb: str) -> str:
    settings = dict(_SETTINGS)
    if connection.get_server_version().major >= _TRANSACTION_TIMEOUT_SINCE:
        settings["transaction_timeout"] = f"{TRANSACTION_MAX:.0f}s"
    return "; ".join(f"{verb} {name} = '{value}'" for name, value in settings.items())


async def in_its_place(
    address: PostgresAddress, connection: Connection, work: Callable[[Connection], Awaitable[T]]
) -> T:
    """The result of `work`; behind a pooler that shares connections by transaction, inside of one with our settings.

    There a statement alone may be prepared on one server connection and run on another, and what is set outlives its session.
    """
    if address.pooling == "session":
        return await work(connection)
    async with connection.transaction():
        await connection.execute(_set(connection, "SET LOCAL"))
        return await work(connection)


class Pool:
    """Connections to one database."""

    def __init__(self, address: PostgresAddress, limits: PoolLimits | None = None) -> None:
        self._address = address
        self.limits: Final = limits or PoolLimits()
        self._idle: list[Connection] = []
        self._open = 0
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._calls: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._lost = 0
        self._repeated = 0

    def __repr__(self) -> str:
        return f"Pool({self._address.place}, {self._open} open, {len(self._waiting)} waiting)"

    def statistics(self) -> PoolStatistics:
        """How it is doing."""
        return PoolStatistics(self._open, len(self._idle), len(self._waiting), self._lost, self._repeated)

    @property
    def address(self) -> PostgresAddress:
        """Where it connects to."""
        return self._address

    def check_open(self) -> None:
        """Raises `StoreError` when it is closed."""
        if self._closed:
            raise StoreError("the store is closed")

    async def run(self, work: Callable[[Connection], Awaitable[T]], *, repeat: bool = True) -> T:
        """The result of `work` on a connection; made again when a fault interrupted it, unless not `repeat`.

        `work` must be safe to repeat, since the commit of a broken connection is of unknown outcome. Raises `StoreError` and
        its subclasses, `Overloaded` when too many calls wait, and whatever `work` raises of its own.
        """
        self.check_open()
        call = asyncio.get_running_loop().create_task(self._call(work, repeat), name="gatepost postgres call")
        self._calls.add(call)
        call.add_done_callback(self._ended)
        return await asyncio.shield(call)

    async def run_repeated(self, work: Callable[[Connection, bool], Awaitable[T]]) -> T:
        """As `run`, for work that must know whether an earlier try of it was interrupted, and may have been done."""
        tries = 0

        async def once(connection: Connection) -> T:
            nonlocal tries
            tries += 1
            return await work(connection, tries > 1)

        return await self.run(once)

    async def fetch(self, statement: str, *arguments: object) -> list[Any]:
        """Rows of one statement."""

        async def work(connection: Connection) -> list[Any]:
            rows: list[Any] = await connection.fetch(statement, *arguments)
            return rows

        return await self.run(work)

    async def aclose(self) -> None:
        """Let the calls under way end, then close. Idempotent."""
        self._closed = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(StoreError("the store is closed"))
        self._waiting.clear()
        if self._calls:
            await asyncio.wait(self._calls)
        idle, self._idle = self._idle, []
        for connection in idle:
            await self._close(connection)

    # -- one call

    def _ended(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # a caller that was cancelled does not look

    async def _call(self, work: Callable[[Connection], Awaitable[T]], repeat: bool) -> T:
        give_up_at = SYSTEM_CLOCK.monotonic() + self.limits.repeat_for
        pause = REPEAT_FIRST
        while True:
            try:
                return await self._try(work)
            except Exception as error:
                if isinstance(error, GatepostError) or not is_drivers(error):
                    raise
                again = repeat and may_be_repeated(error) and not self._closed
                if not again or SYSTEM_CLOCK.monotonic() + pause > give_up_at:
                    raise translated(error, self._address.place) from error
            self._repeated += 1
            await asyncio.sleep(pause)
            pause = min(2 * pause, REPEAT_MAX)

    async def _try(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        connection = await self._acquire()
        try:
            async with asyncio.timeout(self.limits.call):
                result = await in_its_place(self._address, connection, work)
        except BaseException as error:
            # In the middle of a statement or a transaction, or the loop is ending: nobody may use it after us.
            if connection_is_lost(error) or connection.is_closed() or connection.is_in_transaction():
                self._drop(connection)
            else:
                self._release(connection)
            raise
        self._release(connection)
        return result

    # -- connections

    async def _acquire(self) -> Connection:
        while True:
            self.check_open()
            while self._idle:
                connection = self._idle.pop()
                if not connection.is_closed():
                    return connection
                self._drop(connection)
            if self._open < self.limits.connections:
                self._open += 1
                try:
                    return await connect(self._address)
                except BaseException:
                    self._open -= 1
                    self._wake_one()
                    raise
            if len(self._waiting) >= WAITING_MAX:
                raise Overloaded(f"{WAITING_MAX} calls wait for {self._address.place}", retry_after=1.0)
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                async with asyncio.timeout(self.limits.call):
                    handed = await waiter
            except BaseException:
                if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                    self._pass_on(waiter.result())
                elif waiter in self._waiting:
                    self._waiting.remove(waiter)
                raise
            if handed is not None:
                return handed

    def _pass_on(self, connection: Connection | None) -> None:
        if connection is None:
            self._wake_one()
        else:
            self._release(connection)

    def _release(self, connection: Connection) -> None:
        if connection.is_closed():
            self._drop(connection)
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        self._idle.append(connection)

    def _drop(self, connection: Connection) -> None:
        self._open -= 1
        self._lost += 1
        connection.terminate()
        self._wake_one()

    def _wake_one(self) -> None:
        """There is room for a new connection."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _close(self, connection: Connection) -> None:
        self._open -= 1
        try:
            async with asyncio.timeout(CONNECT_MAX):
                await connection.close()
        except Exception:  # noqa: BLE001 - whatever it was, it is gone afterwards
            connection.terminate()
