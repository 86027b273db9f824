"""A dispatcher follows producers' SQLite files: each committed event arrives once, and no row or file holds up another."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gatepost import Dispatcher, EgressPolicy, Publisher
from gatepost.delivery.ids import EVENT, decode_id
from gatepost.delivery.records import Tenant, TenantLimits
from gatepost.dispatch.dispatcher import DispatcherSettings
from gatepost.dispatch.new_event import MAX_PAYLOAD
from gatepost.errors import ConfigurationError
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation
from gatepost.testing.receiver import Receiver
from tests.fleet.outbox_drivers import database, run_sql

LOOPBACK = EgressPolicy(schemes=("http",), allow_cidrs=("127.0.0.0/8",))
PATIENCE = 30.0
WAITING = "SELECT count(*) FROM gatepost_outbox WHERE done_at IS NULL"


class Heard:
    """Operational events of a dispatcher."""

    def __init__(self) -> None:
        self.all: list[OperationalObservation] = []

    def attempt_finished(self, observation: AttemptObservation) -> None: ...

    def delivery_decided(self, observation: DeliveryObservation) -> None: ...

    def operational(self, observation: OperationalObservation) -> None:
        self.all.append(observation)

    def kinds(self) -> list[str]:
        """Their kinds in order."""
        return [observation.kind for observation in self.all]


async def until(done: Callable[[], bool]) -> None:
    """Wait for what must happen soon."""
    async with asyncio.timeout(PATIENCE):
        while not done():  # noqa: ASYNC110 - there is nothing to wait on but the numbers
            await asyncio.sleep(0.01)


async def until_count(url: str, query: str, expected: int) -> None:
    """Wait until a query of one number says so."""
    async with asyncio.timeout(PATIENCE):
        while await run_sql(url, query) != [(expected,)]:  # noqa: ASYNC110 - a database sets no event
            await asyncio.sleep(0.02)


@asynccontextmanager
async def following(
    *urls: str, heard: Heard | None = None, max_payload: int = MAX_PAYLOAD
) -> AsyncIterator[tuple[Dispatcher, Receiver]]:
    """A dispatcher in memory that follows these databases, with one endpoint."""
    async with (
        Receiver() as receiver,
        Dispatcher.open(
            "memory://",
            egress=LOOPBACK,
            observer=heard,
            run=True,
            outboxes=urls,
            settings=DispatcherSettings(max_payload=max_payload),
        ) as gp,
    ):
        for tenant in ("default", "slow"):
            await gp.endpoints.create(f"{receiver.url}/ok", tenant=tenant)
        yield gp, receiver


def connect(url: str) -> sqlite3.Connection:
    """A producer's connection."""
    return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20)


async def test_a_committed_event_arrives_once_and_soon_and_its_row_is_gone(tmp_path: Path) -> None:
    """Seven in ten applications need no more than this."""
    url = await database("sqlite", tmp_path)
    async with following(url) as (gp, receiver):
        publisher = Publisher()
        connection = connect(url)
        receipts = [publisher.publish_sync("order.paid", {"n": n}, connection=connection) for n in range(300)]
        await asyncio.sleep(0.5)
        assert receiver.requests == 0
        connection.commit()
        committed = time.monotonic()
        await until(lambda: len(receiver.ledger) > 0)
        assert time.monotonic() - committed < 5
        await until(lambda: len(receiver.ledger) == 300)
        publisher.publish_sync("order.paid", {}, connection=connection)
        connection.rollback()
        connection.close()
        await asyncio.sleep(0.5)
        assert dict(receiver.ledger) == {receipt.event_id: 1 for receipt in receipts}
        assert await run_sql(url, "SELECT count(*) FROM gatepost_outbox") == [(0,)]
        [status] = gp.statistics().outboxes
        assert (status.state, status.taken, status.set_aside, status.place) == ("following", 300, 0, url)


async def test_an_event_stored_before_a_crash_is_not_stored_again(tmp_path: Path) -> None:
    """The crash between the two databases: the row waits, and the event is here already."""
    url = await database("sqlite", tmp_path)
    own = f"sqlite:///{tmp_path / 'gatepost.db'}"
    connection = connect(url)
    receipt = Publisher().publish_sync("order.paid", {"n": 1}, connection=connection)
    connection.commit()
    connection.execute("BEGIN IMMEDIATE")  # the end of what is taken cannot be recorded
    async with Receiver() as receiver:
        async with Dispatcher.open(own, egress=LOOPBACK, run=True, outboxes=[url]) as gp:
            await gp.endpoints.create(f"{receiver.url}/ok")
            await until(lambda: len(receiver.ledger) == 1)
            await asyncio.sleep(0.7)  # read again and again meanwhile
            assert gp.statistics().outboxes[0].taken == 1
        connection.rollback()
        connection.close()
        assert await run_sql(url, WAITING) == [(1,)]
        async with Dispatcher.open(own, egress=LOOPBACK, run=True, outboxes=[url]) as gp:
            await until_count(url, WAITING, 0)
            assert gp.statistics().outboxes[0].taken == 0
        assert dict(receiver.ledger) == {receipt.event_id: 1}


async def test_bad_rows_are_set_aside_with_a_reason_and_the_others_go_on(tmp_path: Path) -> None:
    """Anybody can write rows with SQL; one that nobody can take must not stop the queue, nor vanish."""
    url = await database("sqlite", tmp_path)
    heard = Heard()
    publisher = Publisher()
    connection = connect(url)
    first = publisher.publish_sync("order.paid", {"n": 1}, idempotency_key="k", connection=connection)
    publisher.publish_sync("order.paid", {"n": 2}, idempotency_key="k", connection=connection)
    publisher.publish_sync("order.paid", b"x" * 2_000, connection=connection)
    now = time.time_ns() // 1_000
    raw = "INSERT INTO gatepost_outbox (event_id, tenant, type, created_at, body) VALUES (?, ?, ?, ?, ?)"
    base = decode_id(EVENT, first.event_id)
    connection.execute(raw, (base + 5_000_000, "default", "no spaces allowed", now, b"x"))
    connection.execute(raw, (base + 5_000_001, "white space", "a", now, b"x"))
    connection.execute(raw, (base + 5_000_002, "default", "a", now, "a text"))
    connection.execute(raw, (base + 5_000_003, "default", "a", "late", b"x"))
    last = publisher.publish_sync("order.paid", {"n": 3}, connection=connection)
    connection.commit()
    connection.close()
    async with following(url, heard=heard, max_payload=1_000) as (gp, receiver):
        await until(lambda: len(receiver.ledger) == 2 and gp.statistics().outboxes[0].set_aside == 6)
        assert dict(receiver.ledger) == {first.event_id: 1, last.event_id: 1}
        aside = [one for one in heard.all if one.kind == "outbox_set_aside"]
        codes = sorted(str((one.fields or {})["code"]) for one in aside)
        assert codes == ["idempotency_conflict", *["invalid_event"] * 4, "payload_too_large"]
        assert all("set done_at to null" in one.message for one in aside)
        await until_count(url, "SELECT count(*) FROM gatepost_outbox WHERE done_at < 0", 6)
        # Mended by hand: it is taken.
        await run_sql(url, f"UPDATE gatepost_outbox SET created_at = {now}, done_at = NULL WHERE created_at = 'late'")
        await until(lambda: len(receiver.ledger) == 3)


async def test_a_tenant_over_its_limits_waits_and_nobody_else_does(tmp_path: Path) -> None:
    """What was committed cannot be refused any more: it waits in the producer's database."""
    url = await database("sqlite", tmp_path)
    async with following(url) as (gp, receiver):
        await gp.store.put_tenant(Tenant("slow", limits=TenantLimits(events_per_second=5.0)))
        await until(lambda: gp._catalogue.tenant("slow") is not None)
        connection = connect(url)
        publisher = Publisher()
        for n in range(20):
            publisher.publish_sync("a", {"n": n}, tenant="slow", connection=connection)
        other = publisher.publish_sync("a", {}, connection=connection)
        connection.commit()
        connection.close()
        await until(lambda: other.event_id in receiver.ledger)
        assert len(receiver.ledger) < 15
        await until(lambda: len(receiver.ledger) == 21)
        assert set(receiver.ledger.values()) == {1}


async def test_a_row_that_waited_for_days_gets_a_new_id_and_its_whole_window(tmp_path: Path) -> None:
    """Retention goes by ids: an old one would lose its body while it is being delivered."""
    url = await database("sqlite", tmp_path)
    old, ahead = 5, decode_id(EVENT, "evt_" + "7" + "z" * 12)
    raw = "INSERT INTO gatepost_outbox (event_id, type, created_at, body) VALUES (?, 'a', 1, ?)"
    connection = connect(url)
    connection.execute(raw, (old, b"old"))
    connection.execute(raw, (ahead, b"ahead"))
    connection.commit()
    connection.close()
    async with following(url) as (_, receiver):
        await until(lambda: len(receiver.ledger) == 2)
        assert set(receiver.ledger.values()) == {1}
        ids = [decode_id(EVENT, name) for name in receiver.ledger]
        assert all(old < number < ahead for number in ids)


async def test_a_database_that_is_down_disturbs_nothing_and_comes_back(tmp_path: Path) -> None:
    """Two producers: one's file is not there yet; it is named, and followed once it is."""
    up = await database("sqlite", tmp_path)
    (tmp_path / "other").mkdir()
    down = f"sqlite:///{tmp_path / 'other' / 'app.db'}"
    heard = Heard()
    async with following(up, down, heard=heard) as (gp, receiver):
        connection = connect(up)
        Publisher().publish_sync("a", {}, connection=connection)
        connection.commit()
        connection.close()
        await until(lambda: len(receiver.ledger) == 1 and gp.statistics().outboxes[1].state == "failing")
        assert "SQLITE_CANTOPEN" in (gp.statistics().outboxes[1].error or "")
        assert heard.kinds().count("outbox_unavailable") == 1
        assert await database("sqlite", tmp_path / "other") == down
        connection = connect(down)
        Publisher().publish_sync("a", {}, connection=connection)
        connection.commit()
        connection.close()
        await until(lambda: len(receiver.ledger) == 2)
        await until(lambda: {status.state for status in gp.statistics().outboxes} == {"following"})


async def test_a_file_without_the_table_says_the_command(tmp_path: Path) -> None:
    """Most first attempts look like this."""
    url = await database("sqlite", tmp_path, outbox=False)
    async with following(url) as (gp, _):
        await until(lambda: gp.statistics().outboxes[0].state == "failing")
        assert "gatepost migrate --outbox URL" in (gp.statistics().outboxes[0].error or "")


def test_outboxes_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    """Before anything is opened."""
    own = f"sqlite:///{tmp_path / 'gatepost.db'}"
    for urls, message in (
        ([own], "own database"),
        (["sqlite:///a.db", "sqlite:///a.db"], "twice"),
        (["mysql://host/db"], "names no producer's database"),
        (["postgresql+asyncpg://host/db"], "without the driver"),
        ("sqlite:///a.db", "write a list"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Dispatcher.open(own, outboxes=urls)
