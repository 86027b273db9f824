"""What a `Publisher` writes to on PostgreSQL: one statement a group, one connection a process, and no ownership of anything.

An event of unknown fate (the connection died while it was stored) is put again under its id, which the dispatcher drops if it
has it; a row that is there counts as ours only if it holds what we wrote, else the event takes a new id. asyncpg serves event
loops, psycopg everything else.
"""

from __future__ import annotations

import os

from gatepost.errors import StoreError
from gatepost.store.outbox.postgres_common import Numbers
from gatepost.store.outbox.postgres_loop import LoopSide
from gatepost.store.outbox.postgres_thread import ThreadSide
from gatepost.store.postgres.address import postgres_address
from gatepost.store.rows import OutboxEvent


class PostgresOutbox:
    """The outbox in Gatepost's own database, or in any other that a dispatcher follows."""

    def __init__(self, url: str) -> None:
        address = postgres_address(url)
        self._address = address
        self._numbers = Numbers()
        self._process = os.getpid()
        self._closed = False
        self._loop_side: LoopSide | None = None
        self._thread_side: ThreadSide | None = None

    def __repr__(self) -> str:
        return f"PostgresOutbox({self._address.place})"

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

    def _sync(self) -> ThreadSide:
        if self._thread_side is None:
            self._thread_side = ThreadSide(self._address, self._numbers)
        return self._thread_side

    def _async(self) -> LoopSide:
        if self._loop_side is None:
            self._loop_side = LoopSide(self._address, self._numbers)
        return self._loop_side

    def _check_open(self) -> None:
        if self._process != os.getpid():
            # Two processes on one socket garble each other's conversation.
            raise RuntimeError("this publisher was opened before a fork: open one in each process, after the fork")
        if self._closed:
            raise StoreError("the outbox is closed")
