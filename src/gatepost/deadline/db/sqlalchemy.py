"""SQLAlchemy on PostgreSQL within the deadline: `install(engine)`, for sync and async engines with any driver.

Before each statement the server is told what is left (statement and lock timeout, in the transaction where there is one); a
statement ended by that raises `DeadlineExceeded`. With the pools given here the wait for a connection counts too. Nothing is
done for other databases: `install` refuses them.
"""

from __future__ import annotations

from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

try:
    from sqlalchemy import event
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.exc import TimeoutError as PoolTimeout
    from sqlalchemy.pool import AsyncAdaptedQueuePool, QueuePool
except ImportError as error:
    raise ImportError("gatepost.deadline.db.sqlalchemy needs SQLAlchemy 2: pip install sqlalchemy") from error

from gatepost.deadline.context import current
from gatepost.deadline.db.budget import (
    CALL_MIN,
    LOCK_MAX,
    QUERY_CANCELED,
    RESERVE,
    RESTORE_FORMATTED,
    RESTORE_NUMBERED,
    SET_FORMATTED,
    SET_NUMBERED,
    Budget,
    Plan,
    Set,
    ends_settings,
    exceeded,
)
from gatepost.deadline.tiers import Tier
from gatepost.deadline.value import DeadlineExceeded
from gatepost.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

_BUDGET: Final = "gatepost_deadline"
"""Key in the DBAPI connection's `info`."""
_CONNECT_ARGUMENT: Final = {"asyncpg": "timeout"}
"""Drivers that take their connect timeout as a fraction of a second."""


class _Waiting:
    """A queue pool whose wait is never longer than what is left."""

    _longest_wait: float = 30.0

    @property
    def _timeout(self) -> float:
        # SQLAlchemy reads its limit here at each wait, and has no other place to say it.
        deadline = current()
        return self._longest_wait if deadline is None else deadline.timeout_for(self._longest_wait, where="pool")

    @_timeout.setter
    def _timeout(self, seconds: float) -> None:
        self._longest_wait = seconds

    def timeout(self) -> float:
        """The longest wait in seconds, whatever is left."""
        return self._longest_wait

    def recreate(self) -> Any:
        """As SQLAlchemy's, which copies the limit: the whole one, whatever is left while it does so."""
        return Context().run(super().recreate)  # type: ignore[misc]  # of the pool class beside

    def _do_get(self) -> Any:
        try:
            return super()._do_get()  # type: ignore[misc]  # of the pool class beside
        except PoolTimeout as error:
            deadline = current()
            if deadline is not None and deadline.remaining() < CALL_MIN:
                raise exceeded(deadline, "pool") from error
            raise


class DeadlineQueuePool(_Waiting, QueuePool):
    """`poolclass=` for `create_engine`: `pool_timeout` holds, less when less is left; raises `DeadlineExceeded` then."""


class AsyncDeadlineQueuePool(_Waiting, AsyncAdaptedQueuePool):
    """`poolclass=` for `create_async_engine`, as `DeadlineQueuePool`."""


def install(
    engine: Engine | AsyncEngine,
    *,
    tier: Tier | None = None,
    reserve: float = RESERVE,
    lock_max: float = LOCK_MAX,
) -> None:
    """Let every statement of `engine` end with the ambient deadline.

    `tier` adds limits that hold without a deadline too: its `read` for each statement and its `connect` for connecting.
    `reserve` seconds of what is left are kept for the way back; no lock is waited for longer than `lock_max`. Limits that
    the operator set (role, database) stay when they are tighter. Raises `ConfigurationError` for other databases.
    """
    target: Engine = engine if isinstance(engine, Engine) else engine.sync_engine
    if target.dialect.name != "postgresql":
        raise ConfigurationError(
            f"a {target.dialect.name} engine: only PostgreSQL takes statement timeouts from here; for others use "
            "`check()` before statements, and the driver's own limits"
        )
    longest = None if tier is None else tier.read
    numbered = target.dialect.paramstyle == "numeric_dollar"
    Budget(reserve=reserve, lock_max=lock_max, longest=longest)  # refuses bad numbers here and not at the first query

    def budget_of(connection: Connection) -> Budget:
        found: Budget | None = connection.info.get(_BUDGET)
        if found is None:
            found = connection.info[_BUDGET] = Budget(reserve=reserve, lock_max=lock_max, longest=longest)
        return found

    sending: set[int] = set()

    @event.listens_for(target, "before_cursor_execute")
    def tell(connection: Connection, _cursor: Any, statement: str, *_rest: Any) -> None:
        if id(connection) in sending:
            return
        budget = budget_of(connection)
        deadline = current()
        raw = connection.connection.dbapi_connection
        assert raw is not None
        plan = budget.plan(deadline, transaction=not connection.dialect.detect_autocommit_setting(raw))
        if plan is not None:
            sending.add(id(connection))
            try:
                # Through SQLAlchemy, so that a lost connection is found and wrapped as ever.
                rows = connection.exec_driver_sql(*_statement(plan, numbered)).all()
            finally:
                sending.discard(id(connection))
            if isinstance(plan, Set):
                budget.set_done(rows[0][0], rows[0][1])
        if ends_settings(statement):
            budget.forget()

    @event.listens_for(target, "handle_error")
    def name(context: Any) -> Any:
        original = context.original_exception
        if isinstance(original, DeadlineExceeded):
            # Raised before anything was sent: SQLAlchemy takes any TimeoutError for a broken connection otherwise.
            context.is_disconnect = False
            return None
        state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
        deadline = current()
        if state != QUERY_CANCELED or deadline is None or context.connection is None:
            return None
        return exceeded(deadline, "db") if budget_of(context.connection).is_late(deadline) else None

    def forget(connection: Connection, *_savepoint: Any) -> None:
        if not connection.invalidated:
            budget_of(connection).forget()

    for ending in ("begin", "commit", "rollback", "rollback_savepoint"):
        event.listen(target, ending, forget)

    @event.listens_for(target, "reset")
    def undo(raw: Any, record: Any, state: Any) -> None:
        budget: Budget | None = record.info.get(_BUDGET)
        plan = None if budget is None else budget.undo()
        if plan is None:
            return
        if state.terminate_only or not state.asyncio_safe:
            record.invalidate()  # it cannot be asked any more: nobody may get a connection with our limits
            return
        raw.rollback()
        cursor = raw.cursor()
        try:
            cursor.execute(*_statement(plan, numbered))
        finally:
            cursor.close()
        raw.commit()

    @event.listens_for(target, "do_connect")
    def connect(dialect: Any, _record: Any, _arguments: Any, options: dict[str, Any]) -> None:
        argument = _CONNECT_ARGUMENT.get(dialect.driver)
        deadline = current()
        if deadline is not None:
            deadline.check(CALL_MIN, where="db connect")
        if argument is None:
            return
        limits = [
            limit for limit in (options.get(argument), None if tier is None else tier.connect + tier.tls) if limit
        ]
        if deadline is not None:
            limits.append(max(CALL_MIN, deadline.remaining()))
        if limits:
            options[argument] = min(limits)


def _statement(plan: Plan, numbered: bool) -> tuple[str, tuple[Any, ...]]:
    assert plan is not None
    if isinstance(plan, Set):
        return (SET_NUMBERED if numbered else SET_FORMATTED), plan.values
    if numbered:
        return RESTORE_NUMBERED, (plan.statement, plan.lock, plan.local)
    return RESTORE_FORMATTED, (plan.statement, plan.local, plan.lock, plan.local)
