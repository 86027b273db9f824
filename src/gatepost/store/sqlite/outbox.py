"""What a `Publisher` writes to: outbox rows only, from any process and without owning the file.

`put` is for synchronous code and may be called from any thread; `put_async` groups what an event loop publishes. Fan-out,
deduplication and limits are the dispatcher's; secrets are never touched.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.ids import NODES
from gatepost.errors import StoreError
from gatepost.store.rows import OutboxEvent
from gatepost.store.sqlite.connection import connect, store_error
from gatepost.store.sqlite.identity import FileIdentity
from gatepost.store.sqlite.intake import put_outbox
from gatepost.store.sqlite.meta import next_node
from gatepost.store.sqlite.schema import prepare
from gatepost.store.sqlite.space import SpaceGuard
from gatepost.store.sqlite.writer import CallWork, WriterThread

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class SqliteOutbox:
    """The outbox of one SQLite file. Creates the file when there is none; refuses one of an older schema.

    Raises `SchemaMismatch`, `StoreError`, `ConfigurationError` when opening.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._lock = threading.Lock()  # one transaction at a time on the synchronous connection
        self._connection = self._open()
        self._identity = FileIdentity(self._path)
        self._space = SpaceGuard(self._connection, self._path)
        self._process = os.getpid()
        self._writer: WriterThread | None = None
        self._closed = False

    def _open(self) -> sqlite3.Connection:
        connection = connect(self._path)
        try:
            prepare(connection, self._path, SYSTEM_CLOCK, may_migrate=False)
        except BaseException:
            connection.close()
            raise
        return connection

    def __repr__(self) -> str:
        return f"SqliteOutbox({self._path})"

    def new_node(self) -> int:
        """A node number for this process's `IdSource`, different for each call until 4,096 calls later."""
        return self._transact(next_node, NODES)

    def put(self, events: Sequence[OutboxEvent]) -> None:
        """Store events; durable on return, and safe to repeat. Waits up to 5 s for other writers.

        Raises `StoreFull` when the disk has no room, `StoreError` for anything else.
        """
        self._transact(put_outbox, self._identity, self._space, events)

    def _transact(
        self,
        write: Callable[Concatenate[sqlite3.Connection, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        self._check_open()  # before the lock: a fork may have copied it held
        with self._lock:
            self._check_open()
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                result = write(self._connection, *args, **kwargs)
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise store_error(error, self._path) from error
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            return result

    async def put_async(self, events: Sequence[OutboxEvent]) -> None:
        """The same for an event loop: calls that wait together are committed together."""
        self._check_open()
        writer = self._writer or self._start_writer(await asyncio.to_thread(self._open))
        await writer.call(len(events), put_outbox, self._identity, self._space, events)

    def _start_writer(self, connection: sqlite3.Connection) -> WriterThread:
        if self._writer is not None:
            connection.close()  # another task was quicker
            return self._writer
        self._writer = WriterThread(connection, self._path, CallWork(connection))
        self._writer.start()
        return self._writer

    def close(self) -> None:
        """Finish what was accepted, then close. Idempotent; blocks. After a fork it is the parent's to close."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._closed = True
            self._connection.close()
        if self._writer is not None:
            self._writer.begin_close()
            self._writer.join()

    async def aclose(self) -> None:
        """`close` without blocking the event loop."""
        if self._writer is not None and self._process == os.getpid():
            self._writer.begin_close()
        await asyncio.to_thread(self.close)

    def _check_open(self) -> None:
        if self._process != os.getpid():
            # Both processes would make the same event ids, so that one's event counts as a repetition of the other's and is
            # lost; and an SQLite connection must not be carried over a fork.
            raise RuntimeError("this publisher was opened before a fork: open one in each process, after the fork")
        if self._closed:
            raise StoreError("the outbox is closed")
