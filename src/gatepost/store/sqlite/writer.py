"""The one thread that writes to a file: takes waiting operations, applies them in one transaction, answers them together.

It decides only when to commit (group commit with an adaptive linger); what an operation means is its `Work`'s business. When
a group fails it is repeated one operation at a time, so that no operation fails for another's sake.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar

from gatepost.clock import SYSTEM_CLOCK
from gatepost.errors import StoreError
from gatepost.store.sqlite.connection import BUSY_TIMEOUT, is_busy, store_error

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

GROUP_ROWS_MAX: Final = 500
"""Rows per commit after which no more operations join: binding them holds the interpreter lock, and a commit of 500 keeps
the event loop's lag near 10 ms."""
LINGER: Final = 0.002
"""Seconds to wait for more operations when many wait already; a lone operation is committed at once."""
LINGER_ABOVE: Final = 16
"""Waiting operations from which lingering pays: below, the group is small because the load is."""
BUSY_RETRY: Final = 0.001
"""Seconds between tries for the write lock while another process has it: a commit takes about as long."""
WATCH_INTERVAL: Final = 0.025
"""Seconds, of the real clock, between looks at what other processes committed: half of the 50 ms within which a dispatcher must notice."""


class Kind(Enum):
    """What an operation asks for. Those with a name of their own are merged with their like."""

    ENQUEUE = "enqueue"
    SETTLE = "settle"
    CALL = "call"


@dataclass(slots=True, eq=False)
class Operation:
    """One write that a caller awaits."""

    kind: Kind
    argument: Any
    """The batch, or for a call (function, args, kwargs)."""
    rows: int
    """Roughly how many rows it writes."""
    future: asyncio.Future[Any]


class Reply(NamedTuple):
    """What became of an operation."""

    operation: Operation
    result: Any
    error: BaseException | None


class Work(Protocol):
    """What happens between BEGIN and COMMIT. Memory may follow only in `committed`."""

    def apply(self, group: Sequence[Operation]) -> Sequence[Reply]:
        """Apply a group; an exception rolls all of it back."""
        ...

    def committed(self) -> None:
        """The transaction is durable."""
        ...

    def rolled_back(self) -> None:
        """Nothing of it happened."""
        ...


class CallWork:
    """Work that knows calls only: each in a savepoint, so that a refused one undoes itself alone."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def apply(self, group: Sequence[Operation]) -> Sequence[Reply]:
        return [self.call(operation) for operation in group]

    def call(self, operation: Operation) -> Reply:
        """Run one call. SQLite's own errors end the whole group, anything else only this call."""
        self._connection.execute("SAVEPOINT call")
        try:
            function, args, kwargs = operation.argument
            result = function(self._connection, *args, **kwargs)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - it is the caller's: raised there, not here
            self._connection.execute("ROLLBACK TO call")
            self._connection.execute("RELEASE call")
            return Reply(operation, None, error)
        self._connection.execute("RELEASE call")
        return Reply(operation, result, None)

    def committed(self) -> None:
        """Nothing is kept in memory."""

    def rolled_back(self) -> None:
        """Nothing is kept in memory."""


@dataclass(slots=True)
class WriterStatistics:
    """How the writer has been doing."""

    waiting: int = 0
    commits: int = 0
    operations: int = 0
    rows: int = 0
    failures: int = 0
    """Operations answered with an error."""
    largest_group: int = 0
    last_commit: float = 0.0
    """Seconds from BEGIN to the end of the last commit."""


@dataclass(slots=True, eq=False)
class WriterThread:
    """Owns the writing connection."""

    connection: sqlite3.Connection
    path: str
    work: Work
    _queue: SimpleQueue[Operation | None] = field(default_factory=SimpleQueue)
    _statistics: WriterStatistics = field(default_factory=WriterStatistics)
    _closing: threading.Event = field(default_factory=threading.Event)
    _pause: threading.Event = field(default_factory=threading.Event)
    """Never set: a wait on it is a pause."""
    _ended: threading.Event = field(default_factory=threading.Event)
    _failure: Exception | None = None
    _thread: threading.Thread | None = None
    _under_way: list[Operation] = field(default_factory=list)
    _carried: Operation | None = None
    """It no longer fitted into the group under way."""
    _foreign_commit: Callable[[], None] | None = None
    _seen_version: int = -1
    _look_at: float = 0.0

    def start(self) -> None:
        """Start the thread. It is a daemon: a process that ends without closing must not hang on it."""
        self._thread = threading.Thread(target=self._run, name="gatepost-store-writer", daemon=True)
        self._thread.start()

    def submit(self, kind: Kind, argument: Any, rows: int) -> asyncio.Future[Any]:
        """Hand an operation over; the future is resolved after its commit. Raises `StoreError` when closed.

        An operation whose future is cancelled before its group begins is not carried out.
        """
        if self._closing.is_set():
            raise self._closed()
        future = asyncio.get_running_loop().create_future()
        self._queue.put(Operation(kind, argument, rows, future))
        if self._ended.is_set():
            self._refuse_waiting()  # the thread ended in this very moment
        return future

    def call(
        self,
        rows: int,
        function: Callable[Concatenate[sqlite3.Connection, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> asyncio.Future[Result]:
        """Run `function(connection, …)`, which writes roughly so many rows, inside a transaction."""
        return self.submit(Kind.CALL, (function, args, kwargs), rows)

    def watch(self, on_foreign_commit: Callable[[], None]) -> None:
        """From now on call this (in the writer's thread) soon after another process has committed, and once at first."""
        self._foreign_commit = on_foreign_commit
        # The thread may be waiting without a limit: an operation that nobody wants any more makes it look around.
        self.submit(Kind.CALL, None, 0).cancel()

    def statistics(self) -> WriterStatistics:
        """A snapshot."""
        s = self._statistics
        return WriterStatistics(
            self._queue.qsize(), s.commits, s.operations, s.rows, s.failures, s.largest_group, s.last_commit
        )

    def begin_close(self) -> None:
        """Accept no more. From the thread that submits, so that nothing slips in behind the end; idempotent."""
        if not self._closing.is_set():
            self._closing.set()
            self._queue.put(None)

    def join(self) -> None:
        """Wait until everything accepted is done, then close the connection. Blocks; idempotent."""
        if self._thread is not None:
            self._thread.join()
        self.connection.close()

    # -- in the thread

    def _run(self) -> None:
        self.connection.execute("PRAGMA busy_timeout = 0")  # `_begin` waits, in shorter steps
        try:
            self._work_on()
        except Exception as error:  # noqa: BLE001 - a bug of ours: everybody waiting must hear of it, not hang
            self._failure = error
        self._closing.set()
        self._ended.set()
        self._refuse_waiting()

    def _work_on(self) -> None:
        while (first := self._carried or self._next()) is not None:
            self._under_way, self._carried = self._gather(first)
            if self._under_way:
                _answer(self._commit(self._under_way))
                self._under_way = []
            self._look()

    def _closed(self) -> StoreError:
        if self._failure is None:
            return StoreError("the store is closed")
        return StoreError(f"the store's writer has stopped: {self._failure!r}; restart the process")

    def _refuse_waiting(self) -> None:
        """Answer what is not carried out any more."""
        refused = [*self._under_way, *([self._carried] if self._carried else [])]
        self._under_way, self._carried = [], None
        while True:
            try:
                operation = self._queue.get_nowait()
            except Empty:
                break
            if operation is not None:
                refused.append(operation)
        _answer([Reply(operation, None, self._closed()) for operation in refused])

    def _next(self) -> Operation | None:
        """The next operation, or None at the end; looks around while there is none."""
        while True:
            try:
                return self._queue.get(timeout=WATCH_INTERVAL if self._foreign_commit else None)
            except Empty:
                self._look()

    def _gather(self, first: Operation) -> tuple[list[Operation], Operation | None]:
        """A group, and the operation that no longer fits."""
        group: list[Operation] = []
        rows, lingered = 0, False
        operation: Operation | None = first
        while operation is not None:
            if group and rows + operation.rows > GROUP_ROWS_MAX:
                return group, operation
            if not operation.future.cancelled():
                group.append(operation)
                rows += operation.rows
            try:
                operation = self._queue.get_nowait()
            except Empty:
                if lingered or len(group) <= LINGER_ABOVE:
                    return group, None
                lingered = True
                self._closing.wait(LINGER)
                try:
                    operation = self._queue.get_nowait()
                except Empty:
                    return group, None
        self._queue.put(None)  # the end came up while gathering: keep it for `_next`
        return group, None

    def _commit(self, group: list[Operation]) -> Sequence[Reply]:
        began = SYSTEM_CLOCK.monotonic()
        try:
            replies = self._transact(group)
        except Exception as error:  # noqa: BLE001 - it is the callers': raised there, and the thread must live
            # Alone, each shows whose fault it was; but a file that others hold keeps every one of them waiting as long.
            if len(group) > 1 and not (isinstance(error, sqlite3.Error) and is_busy(error)):
                return [reply for operation in group for reply in self._commit([operation])]
            replies = [Reply(operation, None, self._reason(error)) for operation in group]
        else:
            self.work.committed()
        statistics = self._statistics
        statistics.commits += 1
        statistics.operations += len(group)
        statistics.rows += sum(operation.rows for operation in group)
        statistics.failures += sum(reply.error is not None for reply in replies)
        statistics.largest_group = max(statistics.largest_group, len(group))
        statistics.last_commit = SYSTEM_CLOCK.monotonic() - began
        return replies

    def _transact(self, group: list[Operation]) -> Sequence[Reply]:
        try:
            self._begin()
            replies = self.work.apply(group)
            self.connection.execute("COMMIT")
        except BaseException:
            self.work.rolled_back()
            # Some errors (a full disk) have rolled back already.
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise
        return replies

    def _begin(self) -> None:
        """Take the write lock, asking often: SQLite's own waiting backs off to 100 ms a look, and busy publishers would be first
        every time, while results of attempts wait to be stored.
        """
        until = SYSTEM_CLOCK.monotonic() + BUSY_TIMEOUT
        while True:
            try:
                self.connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not is_busy(error) or SYSTEM_CLOCK.monotonic() > until:
                    raise
            else:
                return
            self._pause.wait(BUSY_RETRY)

    def _reason(self, error: Exception) -> Exception:
        return store_error(error, self.path) if isinstance(error, sqlite3.Error) else error

    def _look(self) -> None:
        """Tell the watcher when another connection has written. Our own commits do not change this number."""
        if self._foreign_commit is None or SYSTEM_CLOCK.monotonic() < self._look_at:
            return
        self._look_at = SYSTEM_CLOCK.monotonic() + WATCH_INTERVAL
        try:
            version = self.connection.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            version = -1  # a file in trouble: let the watcher find out by itself
        if version != self._seen_version:
            self._seen_version = version
            self._foreign_commit()


def _answer(replies: Sequence[Reply]) -> None:
    """Resolve all futures of a commit with one wake-up per event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[Reply]] = {}
    for reply in replies:
        loops.setdefault(reply.operation.future.get_loop(), []).append(reply)
    for loop, own in loops.items():
        try:
            loop.call_soon_threadsafe(_resolve, own)
        except RuntimeError:
            pass  # the loop is closed, nobody waits any more


def _resolve(replies: Sequence[Reply]) -> None:
    for operation, result, error in replies:
        if operation.future.done():
            continue
        if error is None:
            operation.future.set_result(result)
        else:
            operation.future.set_exception(error)
