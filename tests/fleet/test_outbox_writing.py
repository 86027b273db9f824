"""Publishing in a producer's own transaction, on every kind of connection: what is committed is there, and nothing else is."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.rows import class_row
from sqlalchemy.ext.asyncio import create_async_engine

from gatepost import Publisher
from gatepost.delivery.ids import EVENT, ScatteredIds, decode_id
from gatepost.errors import ConfigurationError, PayloadTooLarge
from gatepost.store.migrate import install_outbox
from gatepost.store.outbox.schema import Dialect, outbox_statements
from gatepost.store.outbox.transactional import TransactionalOutbox
from gatepost.store.rows import OutboxEvent
from tests.fleet.outbox_drivers import SQLITE_WITHOUT_TRACE, WAYS, Abandon, Way, database, run_sql

ROWS = """SELECT event_id, tenant, key, type, content_type, ordering_key, priority, not_before, body, done_at
 FROM gatepost_outbox ORDER BY event_id"""

EARLIER: dict[Dialect, tuple[str, ...]] = {
    "postgres": ("ALTER TABLE gatepost_outbox DROP COLUMN trace", "DELETE FROM gatepost_outbox"),
    "sqlite": ("DROP TABLE gatepost_outbox", SQLITE_WITHOUT_TRACE),
}
"""Makes the table what an earlier version made, without a row."""


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
async def test_an_event_shares_the_fate_of_the_transaction_it_was_published_in(way: Way, tmp_path: Path) -> None:
    """That is the whole promise: an order that exists is told, an order that was rolled back is not."""
    url = await database(way.dialect, tmp_path)
    async with way.open(url) as producer:
        async with producer.transaction():
            await producer.execute("INSERT INTO orders VALUES (1)")
            kept = await producer.publish(1, tenant="acme", idempotency_key="k1", ordering_key="o")
        with pytest.raises(Abandon):  # noqa: PT012 - a block that rolls back
            async with producer.transaction():
                await producer.execute("INSERT INTO orders VALUES (2)")
                await producer.publish(2)
                raise Abandon
        async with producer.transaction():
            await producer.execute("INSERT INTO orders VALUES (3)")
            with pytest.raises(Abandon):  # noqa: PT012
                async with producer.savepoint():
                    await producer.publish(4)
                    raise Abandon
            last = await producer.publish(3)
    assert await run_sql(url, "SELECT number FROM orders ORDER BY number") == [(1,), (3,)]
    rows = await run_sql(url, ROWS)
    json = "application/json"
    assert rows == [
        (decode_id(EVENT, kept.event_id), "acme", "k1", "order.paid", json, "o", "normal", None, b'{"number":1}', None),
        (
            decode_id(EVENT, last.event_id),
            "default",
            None,
            "order.paid",
            json,
            None,
            "normal",
            None,
            b'{"number":3}',
            None,
        ),
    ]
    assert (kept.duplicate, kept.deliveries) == (None, None)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
async def test_a_database_without_the_table_is_named_with_the_remedy(way: Way, tmp_path: Path) -> None:
    """The first thing that goes wrong for everybody: it must say the command, not SQLSTATE 42P01."""
    url = await database(way.dialect, tmp_path, outbox=False)
    async with way.open(url) as producer:
        with pytest.raises(ConfigurationError, match="gatepost migrate --outbox URL"):
            async with producer.transaction():
                await producer.publish(1)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
async def test_a_trace_context_is_written_where_there_is_a_column_for_it(way: Way, tmp_path: Path) -> None:
    """A table that an earlier version made goes on working, and says the command to whoever wants more of it."""
    url = await database(way.dialect, tmp_path)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with way.open(url) as producer, producer.transaction():
        await producer.publish(1, traceparent=parent, tracestate="a=1")
        await producer.publish(2)
    assert await run_sql(url, "SELECT trace FROM gatepost_outbox ORDER BY event_id") == [(f"{parent} a=1",), (None,)]
    await run_sql(url, *EARLIER[way.dialect])
    async with way.open(url) as producer:
        async with producer.transaction():
            await producer.publish(3)
        with pytest.raises(ConfigurationError, match=r"no column trace.*gatepost migrate --outbox URL"):
            async with producer.transaction():
                await producer.publish(4, traceparent=parent)
    await install_outbox(url)
    assert await run_sql(url, "SELECT trace FROM gatepost_outbox") == [(None,)]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
async def test_other_errors_of_the_connection_are_left_as_they_are(way: Way, tmp_path: Path) -> None:
    """Programs catch their driver's exceptions; only what we can explain better is translated."""
    url = await database(way.dialect, tmp_path)
    await run_sql(url, "DROP TABLE gatepost_outbox", "CREATE TABLE gatepost_outbox (event_id bigint PRIMARY KEY)")
    async with way.open(url) as producer:
        with pytest.raises(Exception, match="tenant") as caught:
            async with producer.transaction():
                await producer.publish(1)
    assert not isinstance(caught.value, ConfigurationError)


async def test_an_id_that_is_taken_is_replaced(tmp_path: Path) -> None:
    """Producers have no node number, so two may draw one id; neither event may be lost."""
    url = await database("sqlite", tmp_path)
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    event = OutboxEvent(0, 0, "acme", None, "a", "text/plain", b"x", None, "normal", None, 1)
    one, other = (TransactionalOutbox(ScatteredIds(_Stopped(), _Zeros())) for _ in range(2))  # same time, same dice
    first, second = one.put(connection, event), other.put(connection, event)
    connection.commit()
    connection.close()
    assert first.event_id != second.event_id
    assert await run_sql(url, "SELECT count(*) FROM gatepost_outbox") == [(2,)]


def test_ids_of_a_process_rise_whoever_publishes() -> None:
    """Events of one ordering key keep their order, also from programs that make a Publisher for each request."""
    connection = sqlite3.connect(":memory:")
    for statement in outbox_statements("sqlite"):
        connection.execute(statement)
    ids = [Publisher().publish_sync("a", {}, connection=connection).event_id for _ in range(500)]
    connection.close()
    assert ids == sorted(ids)
    assert len(set(ids)) == 500


class _Zeros:
    def token(self, size: int) -> bytes:
        return bytes(size)

    def uniform(self) -> float:
        return 0.0


class _Stopped:
    def wall_us(self) -> int:
        return 2_000_000_000_000_000

    def monotonic(self) -> float:
        return 0.0

    def monotonic_ns(self) -> int:
        return 0


async def test_a_connection_outside_a_transaction_is_warned_of(tmp_path: Path) -> None:
    """The event would be told although the order fails: easy to write, and found only in production."""
    url = await database("sqlite", tmp_path)
    publisher = Publisher()
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    with pytest.warns(RuntimeWarning, match="outside a transaction") as caught:
        publisher.publish_sync("a", {}, connection=connection)
    assert caught[0].filename == __file__
    connection.execute("BEGIN")
    publisher.publish_sync("a", {}, connection=connection)
    connection.execute("COMMIT")
    connection.close()
    assert await run_sql(url, "SELECT count(*) FROM gatepost_outbox") == [(2,)]


async def test_the_servers_drivers_warn_too(tmp_path: Path) -> None:
    """asyncpg commits by itself unless told otherwise, which is how most people meet it."""
    url = await database("postgres", tmp_path)
    publisher = Publisher()
    loose = await asyncpg.connect(url)
    with pytest.warns(RuntimeWarning, match="outside a transaction") as caught:
        await publisher.publish("a", {}, connection=loose)
    assert caught[0].filename == __file__
    await loose.close()
    with psycopg.connect(url, autocommit=True) as connection:
        with pytest.warns(RuntimeWarning, match="outside a transaction"):
            publisher.publish_sync("a", {}, connection=connection)
        with connection.transaction():
            publisher.publish_sync("a", {}, connection=connection)
    for driver in ("psycopg", "asyncpg"):
        engine = create_async_engine(url.replace("postgresql", f"postgresql+{driver}", 1), isolation_level="AUTOCOMMIT")
        async with engine.connect() as wrapped:
            with pytest.warns(RuntimeWarning, match="outside a transaction"):
                await publisher.publish("a", {}, connection=wrapped)
        await engine.dispose()


class _Order:
    """What a program makes of its own rows."""

    def __init__(self, number: int) -> None:
        self.number = number


async def test_a_connections_own_kinds_of_row_and_cursor_are_left_alone(tmp_path: Path) -> None:
    """A psycopg connection whose rows are the program's records, or whose placeholders are the server's, publishes as any other."""
    url = await database("postgres", tmp_path)
    publisher = Publisher()
    ways: list[dict[str, Any]] = [{"row_factory": class_row(_Order)}, {"cursor_factory": psycopg.RawCursor}]
    for options in ways:
        with psycopg.connect(url, **options) as connection:
            publisher.publish_sync("a", {}, connection=connection)
    asynchronous: dict[str, Any] = {"row_factory": class_row(_Order), "cursor_factory": psycopg.AsyncRawCursor}
    async with await psycopg.AsyncConnection.connect(url, **asynchronous) as loose:
        await publisher.publish("a", {}, connection=loose)
    assert await run_sql(url, "SELECT count(*) FROM gatepost_outbox") == [(3,)]


async def test_what_is_no_connection_is_refused_with_what_is_accepted(tmp_path: Path) -> None:
    """Pools, engines and URLs are the usual mistakes; a wrong colour of function is the other one."""
    url = await database("postgres", tmp_path)
    publisher = Publisher()
    with pytest.raises(TypeError, match=r"builtins\.str: pass the connection .* sqlite3\.Connection.* Django"):
        publisher.publish_sync("a", {}, connection=url)
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
        with pytest.raises(TypeError, match=r"asyncpg\.pool\.Pool: pass the connection"):
            await publisher.publish("a", {}, connection=pool)
        async with pool.acquire() as connection:
            with pytest.raises(TypeError, match=r"asynchronous: write `await publish"):
                publisher.publish_sync("a", {}, connection=connection)
    with sqlite3.connect(":memory:") as file, pytest.raises(TypeError, match=r"synchronous: write `publish_sync"):
        await publisher.publish("a", {}, connection=file)
    file.close()


def test_arguments_are_checked_before_anything_is_written() -> None:
    """A row that no dispatcher can take would be found hours later, in another process."""
    publisher = Publisher(max_payload=10)
    with pytest.raises(PayloadTooLarge):
        publisher.publish_sync("a", b"x" * 11, connection=object())
    with pytest.raises(ConfigurationError, match="this Publisher has no database of its own"):
        publisher.publish_sync("a", b"x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TypeError):
            publisher.publish_sync("a", b"x", connection=object())


def test_no_library_is_loaded_for_being_recognised() -> None:
    """A program on sqlite3 has no drivers of servers, and a connection is told apart by what is loaded already."""
    program = """
import sqlite3, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"asyncpg", "psycopg", "sqlalchemy", "django"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
from gatepost import Dispatcher, Publisher
from gatepost.errors import ConfigurationError
from gatepost.store.outbox.schema import outbox_statements
connection = sqlite3.connect(":memory:")
for statement in outbox_statements("sqlite"):
    connection.execute(statement)
Publisher().publish_sync("a", {}, connection=connection)
assert connection.execute("SELECT count(*) FROM gatepost_outbox").fetchone() == (1,)
connection.close()
for ask in (
    lambda: Publisher().publish_sync("a", {}, connection=object()),
    lambda: Dispatcher.open("memory://", outboxes=["postgresql://host/db"]),
    lambda: Publisher.open_sync("postgresql://host/db").__enter__(),
):
    try:
        ask()
    except (TypeError, ConfigurationError) as error:
        print(str(error).partition(": ")[2].partition(" (")[0])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines() == [
        "pass the connection that your transaction runs on",
        "pip install 'gatepost[postgres]'",
        "pip install 'psycopg[binary]'",
    ], done.stderr
