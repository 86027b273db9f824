"""asyncpg within the deadline: `create_pool(dsn)` here, or `connection_class=DeadlineConnection`.

Each call ends with the ambient deadline, by a cancel request of the client; the server is told too, so that a query whose
client died ends by itself. The wait for a pooled connection counts. Prepared statements and cursors are bounded by the scope
that runs them (`async with deadline`) and by what the server was told last. Commits and rollbacks are not cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

try:
    import asyncpg
    from asyncpg.pool import Pool
    from asyncpg.transaction import Transaction
except ImportError as error:
    raise ImportError("gatepost.deadline.db.asyncpg needs asyncpg: pip install asyncpg") from error

from gatepost.deadline.context import current
from gatepost.deadline.db.budget import (
    CALL_MIN,
    RESTORE_NUMBERED,
    SET_NUMBERED,
    Budget,
    Restore,
    Set,
    ends_settings,
    exceeded,
    finishes,
    of_session,
)
from gatepost.deadline.tiers import DATASTORE, Tier
from gatepost.errors import ConfigurationError


class DeadlineConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg has no types
    """A connection whose calls end with the ambient deadline; raises `DeadlineExceeded`. A shorter `timeout=` still holds."""

    __slots__ = ("_budget", "_cleaning")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._budget = Budget()
        self._cleaning = False

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        """As asyncpg's."""
        return await self._bounded(
            query, lambda: super(DeadlineConnection, self).execute(query, *args, timeout=timeout)
        )

    async def executemany(self, command: str, args: Any, *, timeout: float | None = None) -> Any:
        """As asyncpg's."""
        return await self._bounded(
            command, lambda: super(DeadlineConnection, self).executemany(command, args, timeout=timeout)
        )

    async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
        """As asyncpg's."""
        return await self._bounded(query, lambda: super(DeadlineConnection, self).fetch(query, *args, **options))

    async def fetchval(self, query: str, *args: Any, **options: Any) -> Any:
        """As asyncpg's."""
        return await self._bounded(query, lambda: super(DeadlineConnection, self).fetchval(query, *args, **options))

    async def fetchrow(self, query: str, *args: Any, **options: Any) -> Any:
        """As asyncpg's."""
        return await self._bounded(query, lambda: super(DeadlineConnection, self).fetchrow(query, *args, **options))

    async def fetchmany(self, query: str, args: Any, **options: Any) -> Any:
        """As asyncpg's."""
        return await self._bounded(query, lambda: super(DeadlineConnection, self).fetchmany(query, args, **options))

    async def prepare(self, query: str, **options: Any) -> Any:
        """As asyncpg's; the server is told what is left for the statement as well."""
        return await self._bounded(query, lambda: super(DeadlineConnection, self).prepare(query, **options))

    def transaction(
        self, *, isolation: Any = None, readonly: bool | None = False, deferrable: bool | None = False
    ) -> Transaction:
        """As asyncpg's."""
        self._check_open()
        return _Forgetting(self, isolation, readonly, deferrable)

    async def reset(self, *, timeout: float | None = None) -> None:
        """As asyncpg's, which undoes what was set for the session; outside of any deadline, since it cleans up."""
        self._cleaning = True
        try:
            await super().reset(timeout=timeout)
        finally:
            self._cleaning = False
            self._budget = Budget()

    def forget_limits(self) -> None:
        """The transaction or a savepoint ended."""
        self._budget.forget()

    async def _bounded(self, query: str, run: Callable[[], Awaitable[Any]]) -> Any:
        if self._cleaning or finishes(query):
            try:
                return await run()
            finally:
                self._budget.forget()
        self._check_open()  # asyncpg asks after the transaction of a closed connection in vain
        deadline = current()
        budget = self._budget
        plan = budget.plan(deadline, transaction=self.is_in_transaction())
        try:
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline.remaining())):
                if plan is not None:
                    await self._tell(plan)
                return await run()
        except TimeoutError as error:
            if deadline is not None and deadline.remaining() < CALL_MIN:
                raise exceeded(deadline, "db") from error
            raise
        except asyncpg.QueryCanceledError as error:
            if deadline is not None and budget.is_late(deadline):
                raise exceeded(deadline, "db") from error
            raise
        finally:
            if ends_settings(query):
                budget.forget()

    async def _tell(self, plan: Set | Restore) -> None:
        try:
            if isinstance(plan, Set):
                row = await super().fetchrow(SET_NUMBERED, *plan.values)
                assert row is not None
                self._budget.set_done(row[0], row[1])
            else:
                await super().fetchrow(RESTORE_NUMBERED, plan.statement, plan.lock, plan.local)
        except BaseException:
            if of_session(plan):
                self.terminate()
            raise


class _Forgetting(Transaction):  # type: ignore[misc]  # as above
    """A transaction or savepoint that takes the limits set in it along when it ends."""

    async def __aexit__(self, *error: object) -> None:
        try:
            await super().__aexit__(*error)
        finally:
            self._connection.forget_limits()

    async def commit(self) -> None:
        try:
            await super().commit()
        finally:
            self._connection.forget_limits()

    async def rollback(self) -> None:
        try:
            await super().rollback()
        finally:
            self._connection.forget_limits()


def create_pool(dsn: str | None = None, *, tier: Tier = DATASTORE, **options: Any) -> Pool:
    """`asyncpg.create_pool` (same arguments) with `DeadlineConnection` and the tier's connect and statement limits."""
    options.setdefault("timeout", tier.connect + tier.tls)
    options.setdefault("command_timeout", tier.read)
    chosen = options.setdefault("connection_class", DeadlineConnection)
    if not issubclass(chosen, DeadlineConnection):
        raise ConfigurationError(f"connection_class={chosen.__name__}: write a subclass of DeadlineConnection")
    return asyncpg.create_pool(dsn, **options)


@asynccontextmanager
async def acquire(pool: Pool, *, tier: Tier = DATASTORE) -> AsyncIterator[Any]:
    """A connection of `pool`, waited for at most the tier's `pool` seconds and what is left of the deadline.

    Raises `DeadlineExceeded` when the deadline passed, `TimeoutError` when the tier's limit did.
    """
    deadline = current()
    limit = tier.pool if deadline is None else deadline.timeout_for(tier.pool, where="pool")
    try:
        connection = await pool.acquire(timeout=limit)
    except TimeoutError as error:
        if deadline is not None and deadline.remaining() < CALL_MIN:
            raise exceeded(deadline, "pool") from error
        raise
    try:
        yield connection
    finally:
        await pool.release(connection)
