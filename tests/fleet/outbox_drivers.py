"""Every kind of connection that an event can be published on, each with its own way to begin, commit and roll back."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from gatepost import Publisher
from gatepost.delivery.records import Receipt
from gatepost.store.outbox.schema import Dialect, outbox_statements

ORDERS = "CREATE TABLE orders (number integer PRIMARY KEY)"


class Abandon(Exception):
    """Raised inside a transaction to roll it back."""


@dataclass(frozen=True, slots=True)
class Way:
    """One kind of connection. `open(url)` yields a `Session`-like object for one producer."""

    name: str
    dialect: Dialect
    open: Callable[[str], AbstractAsyncContextManager[Producer]]


class Producer:
    """A program with one connection: writes an order and publishes it, in one transaction."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.publisher = Publisher()

    async def publish(self, number: int, **options: Any) -> Receipt:
        """On the connection, inside the transaction."""
        return self.publisher.publish_sync("order.paid", {"number": number}, connection=self.connection, **options)

    async def execute(self, sql: str) -> None:
        """A statement of the program's own."""
        self.connection.execute(sql)

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """Commits, or rolls back when the block raises."""
        raise NotImplementedError

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Rolls back to its beginning when the block raises."""
        await self.execute("SAVEPOINT s")
        try:
            yield
        except BaseException:
            await self.execute("ROLLBACK TO s")
            raise
        await self.execute("RELEASE s")


class _Plain(Producer):
    """sqlite3 and psycopg: transactions begin by themselves."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            self.connection.rollback()
            raise
        self.connection.commit()


class _SqlAlchemy(Producer):
    async def execute(self, sql: str) -> None:
        self.connection.execute(sqlalchemy.text(sql))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        with self.connection.begin():
            yield

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        with self.connection.begin_nested():
            yield


class _Async(Producer):
    async def publish(self, number: int, **options: Any) -> Receipt:
        return await self.publisher.publish("order.paid", {"number": number}, connection=self.connection, **options)

    async def execute(self, sql: str) -> None:
        await self.connection.execute(sql)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self.connection.transaction():
            yield

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        async with self.connection.transaction():
            yield


class _SqlAlchemyAsync(_Async):
    async def execute(self, sql: str) -> None:
        await self.connection.execute(sqlalchemy.text(sql))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self.connection.begin():
            yield

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        async with self.connection.begin_nested():
            yield


@asynccontextmanager
async def _sqlite3(url: str) -> AsyncIterator[Producer]:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20)
    try:
        yield _Plain(connection)
    finally:
        connection.close()


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Producer]:
    with psycopg.connect(url) as connection:
        yield _Plain(connection)


@asynccontextmanager
async def _psycopg_async(url: str) -> AsyncIterator[Producer]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield _Async(connection)


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[Producer]:
    connection = await asyncpg.connect(url)
    try:
        yield _Async(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def _asyncpg_pool(url: str) -> AsyncIterator[Producer]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield _Async(connection)


def _sqlalchemy(driver: str, session: bool) -> Callable[[str], AbstractAsyncContextManager[Producer]]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Producer]:
        engine = sqlalchemy.create_engine(url.replace("postgresql:", driver))
        with Session(engine) if session else engine.connect() as connection:
            yield _SqlAlchemy(connection)
        engine.dispose()

    return opened


def _sqlalchemy_async(driver: str, session: bool) -> Callable[[str], AbstractAsyncContextManager[Producer]]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Producer]:
        engine = create_async_engine(url.replace("postgresql:", driver))
        connection: AsyncSession | AsyncConnection = AsyncSession(engine) if session else engine.connect()
        async with connection:
            yield _SqlAlchemyAsync(connection)
        await engine.dispose()

    return opened


SQLITE_WITHOUT_TRACE = """CREATE TABLE gatepost_outbox (
  event_id     INTEGER PRIMARY KEY,
  tenant       TEXT    NOT NULL DEFAULT 'default',
  key          TEXT,                                        -- idempotency key
  type         TEXT    NOT NULL,
  content_type TEXT    NOT NULL DEFAULT 'application/json',
  ordering_key TEXT,
  priority     TEXT    NOT NULL DEFAULT 'normal',           -- high, normal or bulk
  not_before   INTEGER,
  created_at   INTEGER NOT NULL,
  body         BLOB    NOT NULL,                            -- what is sent, byte for byte
  done_at      INTEGER                                      -- null: waits. Below zero: set aside since then, the log says why
)"""
"""As the version before trace contexts made it."""

WAYS = (
    Way("sqlite3", "sqlite", _sqlite3),
    Way("sqlalchemy connection on sqlite", "sqlite", _sqlalchemy("", session=False)),
    Way("sqlalchemy session on sqlite", "sqlite", _sqlalchemy("", session=True)),
    Way("asyncpg", "postgres", _asyncpg),
    Way("asyncpg pool", "postgres", _asyncpg_pool),
    Way("psycopg", "postgres", _psycopg),
    Way("psycopg async", "postgres", _psycopg_async),
    Way("sqlalchemy connection", "postgres", _sqlalchemy("postgresql+psycopg:", session=False)),
    Way("sqlalchemy session", "postgres", _sqlalchemy("postgresql+psycopg:", session=True)),
    Way("sqlalchemy async connection", "postgres", _sqlalchemy_async("postgresql+asyncpg:", session=False)),
    Way("sqlalchemy async session", "postgres", _sqlalchemy_async("postgresql+asyncpg:", session=True)),
    Way("sqlalchemy async psycopg", "postgres", _sqlalchemy_async("postgresql+psycopg_async:", session=True)),
)


async def database(dialect: Dialect, tmp_path: Path, *, outbox: bool = True) -> str:
    """The URL of a producer's database with a table of orders."""
    statements = [ORDERS, *(outbox_statements(dialect) if outbox else ())]
    if dialect == "sqlite":
        path = tmp_path / "app.db"
        connection = sqlite3.connect(path)
        for statement in statements:
            connection.execute(statement)
        connection.close()
        return f"sqlite:///{path}"
    from gatepost.testing.postgres import empty_database

    url = await asyncio.to_thread(empty_database)
    await run_sql(url, *statements)
    return url


async def run_sql(url: str, *statements: str) -> list[Any]:
    """Run statements on a connection of its own; the rows of the last one."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20)
        try:
            rows: list[Any] = []
            for statement in statements:
                rows = connection.execute(statement).fetchall()
            connection.commit()
            return rows
        finally:
            connection.close()
    server = await asyncpg.connect(url)
    try:
        found: list[Any] = []
        for statement in statements:
            found = [tuple(row) for row in await server.fetch(statement)]
        return found
    finally:
        await server.close()
