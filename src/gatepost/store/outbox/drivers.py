"""Tells whose connection it is that a producer passed, and writes one outbox row on it, in the transaction it is in.

A connection is recognised by its type, and only among libraries that the process has loaded: nothing is imported for it. One
INSERT each: no thread, no loop, no commit. Called by `store.outbox.transactional`.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Generic, TypeVar

from gatepost.errors import ConfigurationError
from gatepost.store.outbox.schema import (
    HAS_TRACE,
    TABLE,
    UNDEFINED_COLUMN,
    UNDEFINED_TABLE,
    columns_of,
    insert_statement,
    missing_column,
    missing_table,
    sqlstate_of,
    values_of,
)
from gatepost.store.rows import OutboxEvent

Answer = TypeVar("Answer", bool, Awaitable[bool])

_RETURNING: Final = " RETURNING event_id"
_HAS_TABLE: Final = f"SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{TABLE}'"  # noqa: S608 - a constant


@cache
def _numbered(names: tuple[str, ...]) -> str:
    return insert_statement(", ".join(f"${number}" for number in range(1, len(names) + 1)), names)


@cache
def _format(names: tuple[str, ...]) -> str:
    return insert_statement(", ".join(["%s"] * len(names)), names)


@cache
def _qmark(names: tuple[str, ...]) -> str:
    return insert_statement(", ".join(["?"] * len(names)), names)


@dataclass(frozen=True, slots=True)
class Driver(Generic[Answer]):
    """What is known of one kind of connection."""

    what: str
    """Its name in messages."""
    types: tuple[tuple[str, str], ...]
    """Module and class."""
    insert: Callable[[Any, OutboxEvent], Answer]
    """False: the id is taken, and nothing was written."""
    in_transaction: Callable[[Any], bool]
    """False: the row would be committed by itself, as far as the driver can tell."""

    def takes(self, connection: object) -> bool:
        """Whether this is one."""
        for module, name in self.types:
            loaded = sys.modules.get(module)
            kind = getattr(loaded, name, None)
            if isinstance(kind, type) and isinstance(connection, kind):
                return True
        return False


def sync_driver(connection: object) -> Driver[bool]:
    """Raises `TypeError` naming what is accepted."""
    for driver in SYNC:
        if driver.takes(connection):
            return driver
    for other in ASYNC:
        if other.takes(connection):
            raise TypeError(
                f"connection is {other.what}, which is asynchronous: write `await publish(..., connection=…)`"
            )
    raise TypeError(_not_a_connection(connection, SYNC))


def async_driver(connection: object) -> Driver[Awaitable[bool]]:
    """Raises `TypeError` naming what is accepted."""
    for driver in ASYNC:
        if driver.takes(connection):
            return driver
    for other in SYNC:
        if other.takes(connection):
            raise TypeError(
                f"connection is {other.what}, which is synchronous: write `publish_sync(..., connection=…)`, one INSERT in the "
                "thread that called it"
            )
    raise TypeError(_not_a_connection(connection, ASYNC))


def _not_a_connection(connection: object, drivers: tuple[Driver[Any], ...]) -> str:
    kind = type(connection)
    accepted = ", ".join(driver.what for driver in drivers)
    return (
        f"connection is a {kind.__module__}.{kind.__qualname__}: pass the connection that your transaction runs on "
        f"({accepted}), not a pool, an engine, a cursor or a URL"
    )


# ----------------------------------------------------------------------------------------------- synchronous


def _sqlite3(connection: sqlite3.Connection, event: OutboxEvent) -> bool:
    try:
        return connection.execute(_qmark(columns_of(event)), values_of(event)).rowcount == 1
    except sqlite3.OperationalError as error:
        # SQLite has no code of its own for a table or a column that is missing.
        if connection.execute(_HAS_TABLE).fetchone() is None:
            raise missing_table() from error
        if event.trace is not None and connection.execute(HAS_TRACE).fetchone() is None:
            raise missing_column() from error
        raise


def _sqlite3_in_transaction(connection: sqlite3.Connection) -> bool:
    # Python 3.12 can leave transactions to SQLite (autocommit=True); before, isolation_level None means the same.
    autocommit = getattr(connection, "autocommit", -1)
    by_itself = autocommit is True or (autocommit is not False and connection.isolation_level is None)
    return connection.in_transaction or not by_itself


def _psycopg(connection: Any, event: OutboxEvent) -> bool:
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    try:
        # Not `connection.execute`: the connection's own kinds of cursor and row are for the program's statements.
        cursor = Cursor(connection, row_factory=tuple_row)
        return cursor.execute(_format(columns_of(event)) + _RETURNING, values_of(event)).fetchone() is not None
    except Exception as error:
        _explain(error, event)
        raise


def _psycopg_in_transaction(connection: Any) -> bool:
    return not connection.autocommit or connection.info.transaction_status.name != "IDLE"


def _sqlalchemy(connection: Any, event: OutboxEvent) -> bool:
    used = connection if _is_sqlalchemy_core(connection) else connection.connection()  # a session's own transaction
    _check_dialect(used.dialect.name)
    try:
        return used.execute(*_clause_and_values(event)).first() is not None
    except Exception as error:
        if used.dialect.name == "sqlite":
            if used.exec_driver_sql(_HAS_TABLE).first() is None:
                raise missing_table() from error
            if event.trace is not None and used.exec_driver_sql(HAS_TRACE).first() is None:
                raise missing_column() from error
        _explain(error, event)
        raise


def _is_sqlalchemy_core(connection: Any) -> bool:
    return hasattr(connection, "exec_driver_sql")


def _sqlalchemy_in_transaction(connection: Any) -> bool:
    used = connection if _is_sqlalchemy_core(connection) else connection.connection()
    if used.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return False
    # An engine made with isolation_level="AUTOCOMMIT" shows in the driver's connection only; sqlite3 has a number there.
    return getattr(used.connection.dbapi_connection, "autocommit", None) is not True


def _django(connection: Any, event: OutboxEvent) -> bool:
    _check_dialect(connection.vendor)
    try:
        with connection.cursor() as cursor:
            cursor.execute(_format(columns_of(event)), values_of(event))
            return bool(cursor.rowcount == 1)
    except Exception as error:
        if connection.vendor == "sqlite" and not _django_finds(connection, _HAS_TABLE):
            raise missing_table() from error
        if connection.vendor == "sqlite" and event.trace is not None and not _django_finds(connection, HAS_TRACE):
            raise missing_column() from error
        _explain(error, event)
        raise


def _django_finds(connection: Any, query: str) -> bool:
    if connection.needs_rollback:
        return True  # the error is another one: a block that is to be rolled back takes no statement
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone() is not None


def _django_in_transaction(connection: Any) -> bool:
    return bool(connection.in_atomic_block or not connection.get_autocommit())


# ---------------------------------------------------------------------------------------------- asynchronous


async def _asyncpg(connection: Any, event: OutboxEvent) -> bool:
    try:
        return await connection.fetchval(_numbered(columns_of(event)) + _RETURNING, *values_of(event)) is not None
    except Exception as error:
        _explain(error, event)
        raise


async def _psycopg_async(connection: Any, event: OutboxEvent) -> bool:
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row

    try:
        cursor = AsyncCursor(connection, row_factory=tuple_row)
        await cursor.execute(_format(columns_of(event)) + _RETURNING, values_of(event))
        return await cursor.fetchone() is not None
    except Exception as error:
        _explain(error, event)
        raise


async def _sqlalchemy_async(connection: Any, event: OutboxEvent) -> bool:
    used = connection if _is_sqlalchemy_core(connection) else await connection.connection()
    _check_dialect(used.dialect.name)
    try:
        result = await used.execute(*_clause_and_values(event))
        return result.first() is not None
    except Exception as error:
        if used.dialect.name == "sqlite":
            if (await used.exec_driver_sql(_HAS_TABLE)).first() is None:
                raise missing_table() from error
            if event.trace is not None and (await used.exec_driver_sql(HAS_TRACE)).first() is None:
                raise missing_column() from error
        _explain(error, event)
        raise


def _sqlalchemy_async_in_transaction(connection: Any) -> bool:
    return _is_sqlalchemy_core(connection) is False or _sqlalchemy_in_transaction(connection.sync_connection)


# --------------------------------------------------------------------------------------------------- helpers


def _explain(error: Exception, event: OutboxEvent) -> None:
    """Raises what says more than PostgreSQL's error, if anything does."""
    code = sqlstate_of(error)
    if code == UNDEFINED_TABLE:
        raise missing_table() from error
    if code == UNDEFINED_COLUMN and event.trace is not None:
        raise missing_column() from error


def _clause_and_values(event: OutboxEvent) -> tuple[Any, dict[str, object]]:
    names = columns_of(event)
    return _clause(names), dict(zip(names, values_of(event), strict=True))


@cache
def _clause(names: tuple[str, ...]) -> Any:
    """The INSERT for SQLAlchemy, with types: it would guess 32-bit integers."""
    from sqlalchemy import BigInteger, LargeBinary, Text, bindparam, text

    numbers = {"event_id", "not_before", "created_at"}
    types = {name: BigInteger() if name in numbers else LargeBinary() if name == "body" else Text() for name in names}
    statement = insert_statement(", ".join(f":{name}" for name in names), names)
    return text(statement + _RETURNING).bindparams(*(bindparam(name, type_=types[name]) for name in names))


def _check_dialect(name: str) -> None:
    if name not in ("postgresql", "sqlite"):
        raise ConfigurationError(
            f"an outbox can be kept in PostgreSQL and SQLite, not in {name}: publish after your commit, with an idempotency_key"
        )


SYNC: Final[tuple[Driver[bool], ...]] = (
    Driver("a sqlite3.Connection", (("sqlite3", "Connection"),), _sqlite3, _sqlite3_in_transaction),
    Driver("a psycopg.Connection", (("psycopg", "Connection"),), _psycopg, _psycopg_in_transaction),
    Driver(
        "a SQLAlchemy Connection or Session",
        (
            ("sqlalchemy.engine", "Connection"),
            ("sqlalchemy.orm", "Session"),
            ("sqlalchemy.orm", "scoped_session"),
        ),
        _sqlalchemy,
        _sqlalchemy_in_transaction,
    ),
    Driver(
        "a Django connection",
        (("django.db.backends.base.base", "BaseDatabaseWrapper"), ("django.utils.connection", "ConnectionProxy")),
        _django,
        _django_in_transaction,
    ),
)
ASYNC: Final[tuple[Driver[Awaitable[bool]], ...]] = (
    Driver(
        "an asyncpg connection",
        (("asyncpg.connection", "Connection"), ("asyncpg.pool", "PoolConnectionProxy")),
        _asyncpg,
        lambda connection: bool(connection.is_in_transaction()),
    ),
    Driver("a psycopg.AsyncConnection", (("psycopg", "AsyncConnection"),), _psycopg_async, _psycopg_in_transaction),
    Driver(
        "a SQLAlchemy AsyncConnection or AsyncSession",
        (
            ("sqlalchemy.ext.asyncio", "AsyncConnection"),
            ("sqlalchemy.ext.asyncio", "AsyncSession"),
            ("sqlalchemy.ext.asyncio", "async_scoped_session"),
        ),
        _sqlalchemy_async,
        _sqlalchemy_async_in_transaction,
    ),
)
