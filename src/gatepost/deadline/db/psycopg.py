"""psycopg 3 within the deadline: `DeadlineConnection.connect(dsn)` and `AsyncDeadlineConnection.connect(dsn)`.

Connecting ends with it too, up to 0.1 s late. Each `execute` tells the server what is left (statement and lock timeout). psycopg
has no timeout for a call, so when a server does not keep its own limit the client sends a cancel request, and closes the
connection when even that is not answered. Commits and rollbacks are not cut: they are how a cut statement is cleaned up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Self, TypeVar

try:
    import psycopg
    from psycopg.pq import TransactionStatus
    from psycopg.rows import TupleRow
    from psycopg.waiting import Ready
except ImportError as error:
    raise ImportError("gatepost.deadline.db.psycopg needs psycopg 3: pip install 'psycopg[binary]'") from error

from gatepost.deadline.context import current
from gatepost.deadline.db.budget import (
    CALL_MIN,
    RESTORE_FORMATTED,
    SET_FORMATTED,
    Budget,
    Plan,
    Restore,
    Set,
    ends_settings,
    exceeded,
    of_session,
)
from gatepost.deadline.value import Deadline

LOOK_INTERVAL: Final = 0.05
"""Seconds between looks at the clock while the server is silent; its own limit comes first, ours is the belt."""
CANCEL_LIMIT: Final = 1.0
"""Seconds for the cancel request, and again for the server to obey it, before the connection is given up."""

T = TypeVar("T")


class _Late(Exception):
    """The deadline passed while the server was silent. No `TimeoutError`: psycopg takes that for a lost socket."""


class _Limits:
    """What both kinds of connection keep."""

    budget: Budget
    in_force: Deadline | None

    def _start(self: Any) -> None:
        self.budget = Budget()
        self.in_force = None

    @classmethod
    def _connect_gen(cls, *args: Any, **options: Any) -> Any:
        # psycopg's own step to one host: its limit is in whole seconds, at least two, and anew for each host.
        limit = current()
        connecting = super()._connect_gen(*args, **options)  # type: ignore[misc]  # of the connection class beside
        return connecting if limit is None else _until(connecting, limit)

    def plan(self: Any) -> Plan:
        """What to tell the server before the next statement."""
        in_transaction = not self.autocommit or self.info.transaction_status != TransactionStatus.IDLE
        if self.info.transaction_status == TransactionStatus.IDLE and not self.autocommit:
            self.budget.forget()  # the last transaction ended, however
        plan: Plan = self.budget.plan(current(), transaction=in_transaction)
        return plan


class DeadlineConnection(_Limits, psycopg.Connection[TupleRow]):
    """A blocking connection whose statements end with the ambient deadline; raises `DeadlineExceeded`."""

    @classmethod
    def connect(cls, *args: Any, **options: Any) -> Self:
        """As psycopg's."""
        with _connecting():
            return super().connect(*args, **options)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._start()
        self.cursor_factory = DeadlineCursor

    def wait(self, gen: Any, interval: float = LOOK_INTERVAL, timeout: float | None = None) -> Any:
        """As psycopg's; ends when the statement's deadline passes."""
        limit = self.in_force
        if limit is None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(_until(gen, limit), min(interval, LOOK_INTERVAL), timeout)
        except _Late:
            pass
        self.in_force = None
        try:
            self.cancel_safe(timeout=CANCEL_LIMIT)
            super().wait(_until(gen, Deadline.after(CANCEL_LIMIT), begun=True), LOOK_INTERVAL)
        except psycopg.errors.QueryCanceled:
            pass
        except (_Late, psycopg.Error):
            self.close()  # in the middle of an answer: of no use to anybody
        raise exceeded(limit, "db")

    def commit(self) -> None:
        """As psycopg's."""
        super().commit()
        self.budget.forget()

    def rollback(self) -> None:
        """As psycopg's."""
        super().rollback()
        self.budget.forget()

    @contextmanager
    def transaction(self, *args: Any, **options: Any) -> Iterator[Any]:
        """As psycopg's."""
        try:
            with super().transaction(*args, **options) as inner:
                yield inner
        finally:
            self.budget.forget()

    def restore_limits(self) -> None:
        """Undo what was set for the session in autocommit: the `reset` function of a pool."""
        plan = self.budget.undo()
        if plan is not None:
            self.tell(plan)

    def tell(self, plan: Set | Restore) -> None:
        """Send `plan`; a connection whose limits are not known after it is closed."""
        try:
            # A plain cursor, so that this is not told about itself.
            row: Any = psycopg.Cursor(self).execute(*_statement(plan)).fetchone()
        except BaseException:
            if of_session(plan):
                self.close()
            raise
        if isinstance(plan, Set):
            self.budget.set_done(row[0], row[1])


class DeadlineCursor(psycopg.Cursor[Any]):
    """The cursor of a `DeadlineConnection`."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """As psycopg's."""
        with self._told(query):
            return super().execute(query, params, **options)

    def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
        """As psycopg's."""
        with self._told(query):
            super().executemany(query, params_seq, **options)

    @contextmanager
    def copy(self, statement: Any, *args: Any, **options: Any) -> Iterator[Any]:
        """As psycopg's."""
        with self._told(statement), super().copy(statement, *args, **options) as copy:
            yield copy

    def stream(self, query: Any, params: Any = None, **options: Any) -> Iterator[Any]:
        """As psycopg's."""
        with self._told(query):
            yield from super().stream(query, params, **options)

    @contextmanager
    def _told(self, query: Any) -> Iterator[None]:
        connection: Any = self.connection
        deadline = current()
        plan = connection.plan()
        connection.in_force = deadline
        try:
            if plan is not None:
                connection.tell(plan)
            yield
        except psycopg.errors.QueryCanceled as error:
            if deadline is not None and connection.budget.is_late(deadline):
                raise exceeded(deadline, "db") from error
            raise
        finally:
            connection.in_force = None
            if _ends(query):
                connection.budget.forget()


class AsyncDeadlineConnection(_Limits, psycopg.AsyncConnection[TupleRow]):
    """An async connection whose statements end with the ambient deadline; raises `DeadlineExceeded`."""

    @classmethod
    async def connect(cls, *args: Any, **options: Any) -> Self:
        """As psycopg's."""
        with _connecting():
            return await super().connect(*args, **options)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._start()
        self.cursor_factory = AsyncDeadlineCursor

    async def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """As psycopg's; ends when the statement's deadline passes, and cancels the statement."""
        limit = self.in_force
        if limit is None:
            return await super().wait(gen, *args, **options)
        try:
            # psycopg answers a cancelled task with a cancel request, and waits for its end.
            async with asyncio.timeout(max(0.0, limit.remaining())):
                return await super().wait(gen, *args, **options)
        except TimeoutError as error:
            if limit.remaining() < CALL_MIN:
                raise exceeded(limit, "db") from error
            raise

    async def commit(self) -> None:
        """As psycopg's."""
        await super().commit()
        self.budget.forget()

    async def rollback(self) -> None:
        """As psycopg's."""
        await super().rollback()
        self.budget.forget()

    @asynccontextmanager
    async def transaction(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """As psycopg's."""
        try:
            async with super().transaction(*args, **options) as inner:
                yield inner
        finally:
            self.budget.forget()

    async def restore_limits(self) -> None:
        """Undo what was set for the session in autocommit: the `reset` function of a pool."""
        plan = self.budget.undo()
        if plan is not None:
            await self.tell(plan)

    async def tell(self, plan: Set | Restore) -> None:
        """Send `plan`; a connection whose limits are not known after it is closed."""
        try:
            cursor = await psycopg.AsyncCursor(self).execute(*_statement(plan))
            row: Any = await cursor.fetchone()
        except BaseException:
            if of_session(plan):
                await self.close()
            raise
        if isinstance(plan, Set):
            self.budget.set_done(row[0], row[1])


class AsyncDeadlineCursor(psycopg.AsyncCursor[Any]):
    """The cursor of an `AsyncDeadlineConnection`."""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """As psycopg's."""
        async with self._told(query):
            return await super().execute(query, params, **options)

    async def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
        """As psycopg's."""
        async with self._told(query):
            await super().executemany(query, params_seq, **options)

    @asynccontextmanager
    async def copy(self, statement: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """As psycopg's."""
        async with self._told(statement), super().copy(statement, *args, **options) as copy:
            yield copy

    async def stream(self, query: Any, params: Any = None, **options: Any) -> AsyncIterator[Any]:
        """As psycopg's."""
        async with self._told(query):
            async for row in super().stream(query, params, **options):
                yield row

    @asynccontextmanager
    async def _told(self, query: Any) -> AsyncIterator[None]:
        connection: Any = self.connection
        deadline = current()
        plan = connection.plan()
        connection.in_force = deadline
        try:
            if plan is not None:
                await connection.tell(plan)
            yield
        except psycopg.errors.QueryCanceled as error:
            if deadline is not None and connection.budget.is_late(deadline):
                raise exceeded(deadline, "db") from error
            raise
        finally:
            connection.in_force = None
            if _ends(query):
                connection.budget.forget()


@contextmanager
def _connecting() -> Iterator[None]:
    limit = current()
    if limit is not None and limit.remaining() < CALL_MIN:
        raise exceeded(limit, "db connect")
    try:
        yield
    except _Late:
        assert limit is not None
        raise exceeded(limit, "db connect") from None


def _until(gen: Generator[Any, Any, T], limit: Deadline, *, begun: bool = False) -> Generator[Any, Any, T]:
    """`gen`, given up by `_Late` at the first look after `limit`; it is left as it stands, to be gone on with (`begun`)."""
    try:
        wanted = gen.send(Ready.NONE) if begun else next(gen)
        while True:
            ready = yield wanted
            if limit.expired:
                raise _Late
            wanted = gen.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result


def _statement(plan: Set | Restore) -> tuple[Any, tuple[Any, ...]]:
    if isinstance(plan, Set):
        return SET_FORMATTED, plan.values
    return RESTORE_FORMATTED, (plan.statement, plan.local, plan.lock, plan.local)


def _ends(query: Any) -> bool:
    if isinstance(query, bytes):
        query = query.decode("utf-8", "replace")
    # A composed statement may be anything.
    return ends_settings(query) if isinstance(query, str) else True
