"""The one connection that says this process lives: it holds the session locks of its nodes, hears pokes, and carries heartbeats.

When it is lost, everybody who waits for a poke is told at once, and the next heartbeat or wait makes a new one. Behind a pooler
that shares connections by transaction there is no session: heartbeats still go through here, pokes are not heard.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import struct
from collections.abc import Awaitable, Callable, Collection, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeVar

from gatepost.clock import SYSTEM_ENTROPY
from gatepost.errors import StoreError
from gatepost.store.postgres.failures import connection_is_lost, translated
from gatepost.store.postgres.pool import CONNECT_MAX, Connection, Pool, connect, in_its_place
from gatepost.store.postgres.time import StoreClock
from gatepost.store.rows import Poke

T = TypeVar("T")

CHANNEL: Final = "gatepost_poke"
"""One for all: what is said concerns any node (a part that is free), and each leaves alone what it does not own."""
LOCK_SPACE: Final = 0x6750
"""The upper half of a session lock's key, so that ours are told from others' in pg_locks."""
ANSWER_MAX: Final = 5.0
"""Seconds within which the session must answer; each node asks twice a second (`nodes`). Less than the nine that the server takes
to notice a peer that is gone (`pool`: keepalives), so that a node behind a dead network stops before others take its parts."""
POKES_MAX: Final = 10_000
"""Pokes kept until somebody fetches them; beyond it the oldest go, and polling heals what is lost."""
POKES_PER_MESSAGE: Final = 280
"""20 bytes each, 27 in base 64: a message may have 8,000."""
POKES_PER_CALL: Final = 4_096
"""Beyond them a poke would cost more than the polling that replaces it."""
_POKE: Final = struct.Struct(">iqq")
_SENDER_BYTES: Final = 6

# Not waiting for the disk: a poke that a crash loses is healed by polling, and notifying commits go one after the other.
_NOTIFY: Final = """
SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, m.payload) FROM unnest($2::text[]) AS m(payload)"""


def session_key(node: str) -> int:
    """The advisory lock of a node: 64 bits, of which the lower 48 are its name's."""
    return LOCK_SPACE << 48 | int.from_bytes(blake2b(node.encode(), digest_size=6).digest(), "big")


class Session:
    """One process's session. All use of its connection is serialised."""

    def __init__(self, pool: Pool, clock: StoreClock) -> None:
        self._pool = pool
        self._clock = clock
        self._sender = SYSTEM_ENTROPY.token(_SENDER_BYTES)
        self._connection: Connection | None = None
        self._opened_at = 0.0
        self._nodes: set[str] = set()
        self._turn = asyncio.Lock()
        self._pokes: dict[tuple[int, int], Poke] = {}
        self._news = asyncio.Event()
        self._lost = False
        self._closed = False
        self._calls: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        state = "no connection" if self._connection is None else f"{self.age:.0f} s old"
        return f"Session({state}, {len(self._nodes)} nodes)"

    @property
    def by_session(self) -> bool:
        """There are sessions: locks and pokes work."""
        return self._pool.address.pooling == "session"

    @property
    def age(self) -> float:
        """Seconds this session has lasted."""
        return 0.0 if self._connection is None else self._clock.monotonic() - self._opened_at

    @property
    def server_pid(self) -> int | None:
        """The server's process; None while there is no session."""
        connection = self._connection
        return None if connection is None or connection.is_closed() else int(connection.get_server_pid())

    # -- heartbeats

    async def run(self, node: str | None, work: Callable[[Connection], Awaitable[T]]) -> T:
        """The result of `work` on the session's connection, after the lock of `node` was taken on it.

        Not made again after a fault: the caller must learn that the session was lost. Raises `StoreError`.
        """
        self._check_open()
        call = asyncio.get_running_loop().create_task(self._run(node, work), name="gatepost postgres session")
        self._calls.add(call)
        call.add_done_callback(self._ended)
        return await asyncio.shield(call)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")

    def _ended(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # a caller that was cancelled does not look

    async def _run(self, node: str | None, work: Callable[[Connection], Awaitable[T]]) -> T:
        async with self._turn:
            try:
                async with asyncio.timeout(min(ANSWER_MAX, self._pool.limits.call)):
                    connection = await self._connected()
                    if node is not None and self.by_session and node not in self._nodes:
                        await connection.execute("SELECT pg_advisory_lock_shared($1)", session_key(node))
                        self._nodes.add(node)
                    return await in_its_place(self._pool.address, connection, work)
            except BaseException as error:
                connection = self._connection
                # A deadlock or a lock that was not had in time ends the call, not the session: others would take our parts.
                if connection is None or connection_is_lost(error) or connection.is_in_transaction():
                    self._drop()
                if isinstance(error, Exception):
                    raise translated(error, self._pool.address.place) from error
                raise

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._check_open()
            self._drop()
            connection = await connect(self._pool.address)
            try:
                if self.by_session:
                    await connection.add_listener(CHANNEL, self._heard)
                    connection.add_termination_listener(self._ended_by_server)
            except BaseException:
                connection.terminate()
                raise
            self._connection, self._opened_at = connection, self._clock.monotonic()
        return self._connection

    def _ended_by_server(self, connection: Connection) -> None:
        if connection is self._connection:
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._nodes.clear()
        if connection is not None:
            connection.terminate()
            self._lost = True
            self._news.set()

    # -- pokes

    async def poke(self, pokes: Collection[Poke]) -> None:
        """Tell all other processes, in one statement of a few messages at most."""
        chosen = list(pokes)[:POKES_PER_CALL]
        messages = [
            self._message(chosen[at : at + POKES_PER_MESSAGE]) for at in range(0, len(chosen), POKES_PER_MESSAGE)
        ]
        if messages and self.by_session:
            await self._pool.fetch(_NOTIFY, CHANNEL, messages)

    def _message(self, pokes: Sequence[Poke]) -> str:
        return base64.b64encode(self._sender + b"".join(_POKE.pack(*poke) for poke in pokes)).decode()

    async def wait_pokes(self) -> Sequence[Poke]:
        """Pokes by others since the last call; waits for the first. Raises `StoreError` when the session is lost."""
        if not self.by_session:
            await asyncio.get_running_loop().create_future()  # nothing is ever heard
        while not self._pokes:
            if self._lost:
                self._lost = False
                raise StoreError(f"{self._pool.address.place}: the session was lost")
            if self._connection is None:
                await self.run(None, _nothing)
            self._news.clear()
            if not self._pokes and not self._lost:
                await self._news.wait()
            self._check_open()
        pokes, self._pokes = list(self._pokes.values()), {}
        return pokes

    def _heard(self, _connection: Connection, _pid: int, _channel: str, payload: str) -> None:
        try:
            message = base64.b64decode(payload, validate=True)
            if message[:_SENDER_BYTES] == self._sender:
                return
            pokes = [Poke(*fields) for fields in _POKE.iter_unpack(message[_SENDER_BYTES:])]
        except (binascii.Error, struct.error):
            return  # somebody else's use of the channel, or a version that we do not know: polling heals it
        for poke in pokes:
            known = self._pokes.pop((poke.part, poke.lane), poke)
            self._pokes[poke.part, poke.lane] = min(known, poke)
        while len(self._pokes) > POKES_MAX:
            del self._pokes[next(iter(self._pokes))]
        self._news.set()

    # -- the end

    async def aclose(self) -> None:
        """End the session in order: the others see at once that its nodes are gone. Idempotent."""
        self._closed = True
        if self._calls:
            await asyncio.wait(self._calls)
        connection, self._connection = self._connection, None
        self._nodes.clear()
        self._lost = True
        self._news.set()
        if connection is None:
            return
        try:
            async with asyncio.timeout(CONNECT_MAX):
                await connection.close()
        except Exception:  # noqa: BLE001 - whatever it was, it is gone afterwards
            connection.terminate()


async def _nothing(_connection: Connection) -> None:
    """Only that there is a session."""
