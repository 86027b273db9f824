"""A role that owns nothing but its schema: everything works with it, and what it is refused loses no event."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gatepost import Dispatcher, Publisher
from gatepost.clock import SYSTEM_CLOCK
from gatepost.store.migrate import install_outbox, migrate_database
from gatepost.store.rows import Retention
from gatepost.testing.postgres import shared_server
from gatepost.testing.postgres_store import KEYS, open_postgres
from gatepost.testing.receiver import Receiver
from tests.fleet.outbox_drivers import database, run_sql
from tests.fleet.test_outbox_sqlite import LOOPBACK, WAITING, Heard, until, until_count

DAY_US = 86_400_000_000


def owned_schema() -> tuple[str, str]:
    """A new database with a role that owns one schema of it: its URL as the role, and as the superuser."""
    server = shared_server()
    url = server.create_database()
    name = url.rpartition("/")[2]
    server.run_sql(
        f"CREATE ROLE role_of_{name} LOGIN; CREATE SCHEMA own AUTHORIZATION role_of_{name};"
        f" REVOKE ALL ON SCHEMA public FROM PUBLIC; ALTER ROLE role_of_{name} SET search_path = own",
        name,
    )
    return url.replace("postgres@", f"role_of_{name}@"), url


async def test_a_role_that_owns_one_schema_can_do_everything(tmp_path: Path) -> None:
    """Migrate, deliver, drop days, erase a tenant: no right beyond its schema, which is what administrators give."""
    url, _ = await asyncio.to_thread(owned_schema)
    assert not (await migrate_database(url)).blocked
    await install_outbox(url)
    async with (
        Receiver() as receiver,
        Dispatcher.open(url, keys=KEYS, egress=LOOPBACK, run=True) as gp,
        Publisher.open(url) as publisher,
    ):
        await gp.endpoints.create(f"{receiver.url}/ok")
        receipts = [await gp.publish("a", {"n": 1}), await publisher.publish("a", {"n": 2})]
        await until(lambda: len(receiver.ledger) == 2)
        assert dict(receiver.ledger) == {receipt.event_id: 1 for receipt in receipts}
    store = await open_postgres(url)
    try:
        now = SYSTEM_CLOCK.wall_us()
        for day in (0, 12, 12):
            while (await store.maintain(Retention(), now + day * DAY_US, 1_000)).more:
                pass
        assert (await store.totals()).events == 0
        purged = await store.purge_tenant("default", 1_000)
        assert (purged.endpoints, purged.more) == (1, False)
    finally:
        await store.aclose()


async def test_a_store_that_refuses_us_sets_no_event_aside(tmp_path: Path) -> None:
    """A right that was taken, a password that was changed, a pool that is full: our trouble. The events wait for its end, in
    producers' outboxes and in our own; they were once put away as if they made no sense."""
    url, as_superuser = await asyncio.to_thread(owned_schema)
    await migrate_database(url)
    theirs = await database("postgres", tmp_path)
    heard = Heard()
    async with (
        Receiver() as receiver,
        Dispatcher.open(url, keys=KEYS, egress=LOOPBACK, observer=heard, run=True, outboxes=[theirs]) as gp,
        Publisher.open(url) as own,
        Publisher.open(theirs) as producer,
    ):
        await gp.endpoints.create(f"{receiver.url}/ok")
        role = url.partition("://")[2].partition("@")[0]
        await run_sql(as_superuser, f"REVOKE INSERT ON own.gp_event FROM {role}")
        receipts = [await producer.publish("a", {"n": 1}), await own.publish("a", {"n": 2})]
        await until(lambda: any("42501" in one.message for one in heard.all if one.kind == "outbox_waits"))
        await asyncio.sleep(1.5)  # both were looked at
        assert await run_sql(theirs, WAITING) == [(1,)]
        assert gp.statistics().outboxes[0].set_aside == 0
        await run_sql(as_superuser, f"GRANT INSERT ON own.gp_event TO {role}")
        await until(lambda: len(receiver.ledger) == 2)
        assert dict(receiver.ledger) == {receipt.event_id: 1 for receipt in receipts}
        await until_count(theirs, "SELECT count(*) FROM gatepost_outbox", 0)
        assert "outbox_set_aside" not in heard.kinds()
