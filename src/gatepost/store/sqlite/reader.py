"""A thread with a connection that only reads: runs one query function after the other, each on a consistent snapshot.

The store has two, so that reading due rows never waits behind an operator's list. It decides nothing.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from gatepost.errors import StoreError
from gatepost.store.sqlite.connection import store_error

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class _Job(NamedTuple):
    query: Callable[[sqlite3.Connection], Any]
    future: asyncio.Future[Any]


class ReaderThread:
    """Owns one query-only connection."""

    __slots__ = ("_closed", "_connection", "_path", "_queue", "_thread")

    def __init__(self, connection: sqlite3.Connection, path: str, name: str) -> None:
        self._connection = connection
        self._path = path
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._closed = False
        # A daemon: a process that ends without closing must not hang on it.
        self._thread = threading.Thread(target=self._run, name=f"gatepost-store-{name}", daemon=True)
        self._thread.start()

    async def run(
        self,
        query: Callable[Concatenate[sqlite3.Connection, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """The result of `query(connection, …)`; what it raises is raised here. Raises `StoreError` when closed."""
        if self._closed:
            raise StoreError("the store is closed")
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.put(_Job(partial(_apply, query, args, kwargs), future))
        return await future

    def begin_close(self) -> None:
        """Accept no more; idempotent."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)

    def join(self) -> None:
        """Wait until the thread has closed its connection. Blocks."""
        self._thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            if job.future.cancelled():
                continue
            result: Any = None
            error: Exception | None = None
            try:
                self._connection.execute("BEGIN")
                result = job.query(self._connection)
            except sqlite3.Error as failure:
                error = store_error(failure, self._path)
            except Exception as failure:  # noqa: BLE001 - it is the caller's: raised there
                error = failure
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            try:
                job.future.get_loop().call_soon_threadsafe(_resolve, job.future, result, error)
            except RuntimeError:
                pass  # the loop is closed, nobody waits any more
        self._connection.close()


def _apply(
    query: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], connection: sqlite3.Connection
) -> Any:
    return query(connection, *args, **kwargs)


def _resolve(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
