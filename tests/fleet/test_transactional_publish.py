"""From a producer's transaction to the receiver, on real databases: delivered once and soon when it commits, never when it does not."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from gatepost import DispatchClient, Dispatcher, Publisher
from gatepost.clock import SYSTEM_CLOCK
from gatepost.errors import ConfigurationError, StoreError
from gatepost.store.memory import MemoryStore
from gatepost.store.outbox.schema import Dialect, outbox_statements
from gatepost.store.outbox.source import open_source
from gatepost.store.port import Store
from gatepost.testing.postgres import PostgresServer, shared_server
from gatepost.testing.postgres_store import gatepost_database, open_postgres
from gatepost.testing.receiver import Receiver
from tests.fleet.outbox_drivers import WAYS, Abandon, database, run_sql
from tests.fleet.test_outbox_sqlite import LOOPBACK, WAITING, following, until, until_count

CHILD = Path(__file__).with_name("outbox_kill_child.py")


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
async def test_every_driver_delivers_what_it_committed_and_nothing_else(dialect: Dialect, tmp_path: Path) -> None:
    """Commit, rollback and savepoint, on each kind of connection, with the dispatcher running beside it."""
    url = await database(dialect, tmp_path)
    committed = set()
    async with following(url) as (gp, receiver):
        for number, way in enumerate(way for way in WAYS if way.dialect == dialect):
            async with way.open(url) as producer:
                async with producer.transaction():
                    await producer.execute(f"INSERT INTO orders VALUES ({number})")
                    committed.add((await producer.publish(number)).event_id)
                with pytest.raises(Abandon):  # noqa: PT012 - a block that rolls back
                    async with producer.transaction():
                        await producer.publish(number)
                        raise Abandon
                async with producer.transaction():
                    with pytest.raises(Abandon):  # noqa: PT012
                        async with producer.savepoint():
                            await producer.publish(number)
                            raise Abandon
                    committed.add((await producer.publish(number)).event_id)
        await until(lambda: len(receiver.ledger) >= len(committed))
        await until_count(url, "SELECT count(*) FROM gatepost_outbox", 0)
        assert dict(receiver.ledger) == dict.fromkeys(committed, 1)
        assert gp.statistics().outboxes[0].taken == len(committed)


async def test_a_dispatcher_takes_a_connection_too(tmp_path: Path) -> None:
    """`await gp.publish` and, in any thread, `gp.publish_sync`: also in the loop's own, where nothing has to wait for the loop."""
    url = await database("postgres", tmp_path)
    file = await database("sqlite", tmp_path)
    loose, plain = await asyncpg.connect(url), sqlite3.connect(tmp_path / "app.db")
    try:
        async with following(url, file) as (gp, receiver):
            async with loose.transaction():
                first = await gp.publish("a", {"n": 1}, connection=loose)
            second = gp.publish_sync("a", {"n": 2}, connection=plain)
            assert gp.statistics().intake.published == 0
            plain.commit()
            await until(lambda: len(receiver.ledger) == 2)
            assert dict(receiver.ledger) == {first.event_id: 1, second.event_id: 1}
            assert (first.duplicate, first.deliveries) == (None, None)
            with pytest.raises(TypeError, match="write `publish_sync"):
                await gp.publish("a", {}, connection=plain)
    finally:
        plain.close()
        await loose.close()


async def test_a_transaction_that_was_open_for_long_is_delivered_soon_after_its_commit(tmp_path: Path) -> None:
    """Ids say when an event was published, not when it was committed: whoever reads "id above the last seen" loses this one."""
    url = await database("postgres", tmp_path)
    publisher = Publisher()
    slow, quick = await asyncpg.connect(url), await asyncpg.connect(url)
    try:
        async with following(url) as (_, receiver):
            transaction = slow.transaction()
            await transaction.start()
            late = await publisher.publish("a", {"late": True}, connection=slow)
            for n in range(20):
                async with quick.transaction():
                    await publisher.publish("a", {"n": n}, connection=quick)
            await until(lambda: len(receiver.ledger) == 20)
            await asyncio.sleep(1.0)
            assert late.event_id not in receiver.ledger
            await transaction.commit()
            committed = time.monotonic()
            await until(lambda: late.event_id in receiver.ledger)
            assert time.monotonic() - committed < 5  # 250 ms on a machine that is not shared
    finally:
        await slow.close()
        await quick.close()


@asynccontextmanager
async def dispatcher_on(store: Store, client: DispatchClient, *outboxes: str) -> AsyncIterator[Dispatcher]:
    """One of several in this process, which share a client."""
    dispatcher = Dispatcher(store, client, outboxes=[open_source(outbox) for outbox in outboxes])
    try:
        await dispatcher.prepare()
        dispatcher.run_in_background()
        yield dispatcher
    finally:
        await dispatcher.aclose()
        await store.aclose()


async def test_two_dispatchers_share_an_outbox_without_doubling(tmp_path: Path) -> None:
    """Two installations that follow one database by mistake, or two processes during a hand-over: SKIP LOCKED parts the rows."""
    url = await database("postgres", tmp_path)
    publisher = Publisher()
    connection = await asyncpg.connect(url)
    try:
        async with (
            Receiver() as receiver,
            DispatchClient(egress=LOOPBACK) as client,
            dispatcher_on(MemoryStore(SYSTEM_CLOCK), client, url) as one,
            dispatcher_on(MemoryStore(SYSTEM_CLOCK), client, url) as other,
        ):
            for gp in (one, other):
                await gp.endpoints.create(f"{receiver.url}/ok")
            receipts = []
            for _ in range(10):
                async with connection.transaction():
                    receipts += [await publisher.publish("a", {"n": n}, connection=connection) for n in range(50)]
            await until(lambda: len(receiver.ledger) >= 500)
            await until_count(url, WAITING, 0)
            assert dict(receiver.ledger) == {receipt.event_id: 1 for receipt in receipts}
            assert sum(gp.statistics().outboxes[0].taken for gp in (one, other)) == 500
    finally:
        await connection.close()


async def test_in_a_fleet_one_process_follows_and_another_takes_over(tmp_path: Path) -> None:
    """Whoever owns part 0 follows; when it stops, the next owner does, and nobody else asks the producer's database."""
    url = await database("sqlite", tmp_path)
    publisher, connection = Publisher(), sqlite3.connect(tmp_path / "app.db")
    store = MemoryStore(SYSTEM_CLOCK, parts=4)
    async with Receiver() as receiver, DispatchClient(egress=LOOPBACK) as client:
        async with dispatcher_on(store, client, url) as first:
            await first.endpoints.create(f"{receiver.url}/ok")
            await until(lambda: first.statistics().outboxes[0].state == "following")
            async with dispatcher_on(store.peer(), client, url) as second:
                receipts = [publisher.publish_sync("a", {"n": n}, connection=connection) for n in range(20)]
                connection.commit()
                await until(lambda: len(receiver.ledger) == 20)
                states = [gp.statistics().outboxes[0].state for gp in (first, second)]
                owner = first if states == ["following", "idle"] else second
                assert sorted(states) == ["following", "idle"]
                heir = second if owner is first else first
                await owner.drain(5.0)
                receipts += [publisher.publish_sync("a", {"n": n}, connection=connection) for n in range(20)]
                connection.commit()
                await until(lambda: len(receiver.ledger) == 40)
                assert heir.statistics().outboxes[0].taken > 0
        connection.close()
        assert dict(receiver.ledger) == {receipt.event_id: 1 for receipt in receipts}


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
async def test_a_kill_between_storing_and_putting_away_doubles_nothing(dialect: Dialect, tmp_path: Path) -> None:
    """The one moment at which both databases hold the event."""
    url = await database(dialect, tmp_path)
    way = next(way for way in WAYS if way.dialect == dialect)
    async with way.open(url) as producer, producer.transaction():
        receipts = [await producer.publish(n) for n in range(30)]
    own = tmp_path / "gatepost.db"
    async with Receiver() as receiver:
        async with Dispatcher.open(f"sqlite:///{own}", egress=LOOPBACK) as gp:
            await gp.endpoints.create(f"{receiver.url}/ok")
        child = await asyncio.create_subprocess_exec(sys.executable, CHILD, own, url, stdout=asyncio.subprocess.PIPE)
        output, _ = await child.communicate()
        assert (child.returncode, output) == (-signal.SIGKILL, b"30\n")
        assert await run_sql(url, WAITING) == [(30,)]
        async with Dispatcher.open(f"sqlite:///{own}", egress=LOOPBACK, run=True, outboxes=[url]) as gp:
            await until_count(url, "SELECT count(*) FROM gatepost_outbox", 0)
            await until(lambda: len(receiver.ledger) == 30)
            assert gp.statistics().outboxes[0].taken == 0
        assert dict(receiver.ledger) == {receipt.event_id: 1 for receipt in receipts}


async def test_a_server_that_restarts_is_followed_again_and_published_to_again(tmp_path: Path) -> None:
    """`pg_ctl -m immediate`: follower and publishers lose their connections, and no event is lost or doubled."""
    server = await asyncio.to_thread(PostgresServer)
    try:
        url = await asyncio.to_thread(server.create_database)
        await run_sql(url, *outbox_statements("postgres"))
        async with following(url) as (gp, receiver), Publisher.open(url) as publisher:
            with Publisher.open_sync(url) as threaded:
                receipts = [await publisher.publish("a", {"n": 1}), threaded.publish_sync("a", {"n": 2})]
                await until(lambda: len(receiver.ledger) == 2)
                await asyncio.to_thread(server.stop, "immediate")
                await until(lambda: gp.statistics().outboxes[0].state == "failing")
                with pytest.raises(StoreError, match="127"):
                    await publisher.publish("a", {"n": 3})
                with pytest.raises(StoreError, match="127"):
                    threaded.publish_sync("a", {"n": 3})
                await asyncio.to_thread(server.start)
                receipts += [await publisher.publish("a", {"n": 4}), threaded.publish_sync("a", {"n": 5})]
            await until(lambda: len(receiver.ledger) == 4)
            assert dict(receiver.ledger) == {receipt.event_id: 1 for receipt in receipts}
    finally:
        await asyncio.to_thread(server.close)


async def test_publishers_write_to_postgresql_from_loops_and_threads(tmp_path: Path) -> None:
    """Many at once on one connection each; receipts name what arrives."""
    url = await database("postgres", tmp_path)
    async with following(url) as (_, receiver):
        async with Publisher.open(url) as publisher:
            receipts = list(await asyncio.gather(*(publisher.publish("a", {"n": n}) for n in range(300))))
        with Publisher.open_sync(url) as threaded:
            receipts += [threaded.publish_sync("a", {"n": n}, priority="high") for n in range(30)]
            receipts += await asyncio.gather(*(asyncio.to_thread(threaded.publish_sync, "a", n) for n in range(30)))
        await until(lambda: len(receiver.ledger) == 360)
        assert dict(receiver.ledger) == {receipt.event_id: 1 for receipt in receipts}
        with pytest.raises(StoreError, match="closed"):
            threaded.publish_sync("a", {})


async def test_a_fleet_on_postgresql_takes_what_is_published_into_its_own_database(tmp_path: Path) -> None:
    """Publishers, and producers whose tables live beside Gatepost's: one outbox, two dispatchers, each event once. A row that makes
    no sense stays behind and holds up nobody."""
    url = await asyncio.to_thread(gatepost_database)
    connection = await asyncpg.connect(url)
    publisher = Publisher()
    try:
        await connection.execute(
            "INSERT INTO gatepost_outbox (event_id, type, priority, created_at, body) VALUES (1, 'a', 'urgent', 1, 'x')"
        )
        async with (
            Receiver() as receiver,
            DispatchClient(egress=LOOPBACK) as client,
            dispatcher_on(await open_postgres(url), client) as one,
            dispatcher_on(await open_postgres(url), client) as other,
            Publisher.open(url) as elsewhere,
        ):
            await one.endpoints.create(f"{receiver.url}/ok")
            with Publisher.open_sync(url) as threaded:
                receipts = [threaded.publish_sync("a", {"n": n}) for n in range(20)]
            receipts += await asyncio.gather(*(elsewhere.publish("a", {"n": n}) for n in range(100)))
            async with connection.transaction():
                receipts += [await publisher.publish("a", {"n": n}, connection=connection) for n in range(20)]
            await until(lambda: len(receiver.ledger) >= 140)
            await until_count(url, "SELECT count(*) FROM gatepost_outbox", 1)
            assert dict(receiver.ledger) == {receipt.event_id: 1 for receipt in receipts}
            assert sum(gp.statistics().intake.published for gp in (one, other)) == 140
    finally:
        await connection.close()


async def test_a_publisher_says_at_the_start_what_is_wrong(tmp_path: Path) -> None:
    """Not at the first event, and never with the password in it."""
    empty = await database("postgres", tmp_path, outbox=False)
    nobody = "postgresql://someone:geheim@127.0.0.1:1/orders"
    with pytest.raises(ConfigurationError, match="gatepost migrate"):
        async with Publisher.open(empty):
            pass
    with pytest.raises(ConfigurationError, match="gatepost migrate"), Publisher.open_sync(empty):
        pass
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1/orders") as caught:
        async with Publisher.open(nobody):
            pass
    assert "geheim" not in str(caught.value)
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1/orders") as again, Publisher.open_sync(nobody):
        pass
    assert "geheim" not in str(again.value)
    with pytest.raises(ConfigurationError, match="belongs to one process"), Publisher.open_sync("memory://"):
        pass
    assert shared_server().running
