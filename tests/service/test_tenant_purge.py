"""A tenant is erased while the service runs: nothing of it is left, others notice nothing, and there is a receipt."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest
from typer.testing import CliRunner

from gatepost.dispatch.dispatcher import Dispatcher
from gatepost.errors import NotFound
from gatepost.service.cli.root import app
from gatepost.store.outbox.schema import Dialect, outbox_statements
from gatepost.testing.postgres_store import KEYS, gatepost_database
from gatepost.testing.receiver import Receiver
from tests.service.running import ADMIN_KEY, EGRESS, POLICY, Api, api, ok, problem, until

PAYLOAD = "a payload that must not be found again"
_ROW = f"INSERT INTO gatepost_outbox (event_id, tenant, done_at, type, created_at, body) VALUES (?, ?, ?, 'a', 1, '{PAYLOAD}')"
_ROW_POSTGRES = _ROW.replace("?, ?, ?", "$1, $2, $3")


async def settle_down(service: Api, tenant: str, state: str, count: int) -> None:
    """Wait until the tenant has so many deliveries in a state."""

    async def reached() -> bool:
        page = await ok(service.client.get("/v1/deliveries", params={"tenant": tenant, "state": state}))
        return len(page["items"]) == count

    await until(reached)


async def test_a_tenant_is_erased_while_the_service_runs(tmp_path: Path) -> None:
    """Delivered, waiting and failing ones, by the API: 200 with a receipt, the audit log has its digest, and the file no payload."""
    async with api(tmp_path, keyed=True) as service, Receiver(keep=100) as receiver:
        client = service.client
        for tenant in ("acme", "other"):
            await ok(client.post("/v1/tenants", json={"name": tenant}), 201)
            key = await ok(client.post("/v1/api-keys", json={"name": "ci", "tenant": tenant}), 201)
            for path in ("/ok", "/status/500"):
                body = {"url": receiver.url + path, "probe": False, "tenant": tenant}
                await ok(client.post("/v1/endpoints", json=body), 201)
            for number in range(5):
                event = {"type": "a", "payload": f"{PAYLOAD} {number}", "tenant": tenant}
                await ok(client.post("/v1/events", json=event, headers={"idempotency-key": f"k{number}"}), 202)
            await settle_down(service, tenant, "delivered", 5)
        async with service.as_key(key["key"]) as other:
            await problem(other.delete("/v1/tenants/acme"), 404, "not_found")
        receipt = await ok(client.delete("/v1/tenants/acme"))
        assert receipt["state"] == "erased"
        assert not receipt["resumed"]
        erased = receipt["erased"]
        assert (erased["deliveries"], erased["events"], erased["endpoints"], erased["api_keys"]) == (10, 5, 2, 1)
        assert erased["attempts"] >= 10
        assert await ok(client.delete("/v1/tenants/acme")) == receipt, "a lost answer is given again"
        await problem(client.get("/v1/tenants/acme"), 404, "not_found")
        await problem(client.delete("/v1/tenants/nobody"), 404, "not_found")
        assert (await ok(client.get("/v1/deliveries", params={"tenant": "acme"})))["items"] == []
        [entry] = [
            one
            for one in (await service.running.service.store.audit_log("acme", None, 9)).items
            if one.action == "tenant.purge"
        ]
        assert entry.detail == receipt["digest"]
        again = await ok(client.post("/v1/events", json={"type": "a", "payload": 1, "tenant": "acme"}), 202)
        assert again["deliveries"] == 0, "its name can be used again, and its endpoints are gone"
        assert len((await ok(client.get("/v1/deliveries", params={"tenant": "other"})))["items"]) == 10
        await ok(client.delete("/v1/tenants/other"))
    content = (tmp_path / "gatepost.db").read_bytes()
    assert PAYLOAD.encode() not in content, "deleted content is overwritten, not only unlinked"


async def test_the_command_asks_and_prints_a_receipt(tmp_path: Path) -> None:
    """A wrong name erases nothing; --yes does not ask."""
    async with api(tmp_path, keyed=True) as service:
        await ok(service.client.post("/v1/tenants", json={"name": "acme"}), 201)
        base = ["tenant", "purge", "acme", "--url", service.running.url, "--api-key", ADMIN_KEY]
        runner = CliRunner()
        refused = await asyncio.to_thread(runner.invoke, app, base, "acmee\n")
        assert refused.exit_code == 1
        assert "nothing was erased" in refused.stderr
        done = await asyncio.to_thread(runner.invoke, app, [*base, "--json"], "acme\n")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout.splitlines()[-1])["erased"]["events"] == 0
        again = await asyncio.to_thread(runner.invoke, app, [*base, "--yes"])
        assert again.exit_code == 0, again.output
        assert "digest" in again.stdout


@pytest.mark.filterwarnings("ignore:a second DispatchClient")  # two processes of a fleet, in one loop
async def test_a_stopped_tenant_takes_no_events_and_starts_nothing(tmp_path: Path) -> None:
    """In a fleet every process stops it first; on PostgreSQL, with rows in all states."""
    url = await asyncio.to_thread(gatepost_database)
    async with Receiver(keep=1_000) as receiver:
        policy = POLICY.evolve(connect_timeout=0.3, write_timeout=0.3, read_timeout=0.9)
        opening = Dispatcher.open(url, policy=policy, egress=EGRESS, keys=KEYS, run=True)
        peer = Dispatcher.open(url, policy=policy, egress=EGRESS, keys=KEYS, run=True)
        async with opening as gp, peer as other, asyncio.timeout(50):
            for tenant in ("acme", "other"):
                await gp.endpoints.create(receiver.url + "/ok", tenant=tenant, probe=False)
                await gp.endpoints.create(receiver.url + "/status/500", tenant=tenant, probe=False)
            await asyncio.sleep(2.0)  # both processes know them
            for number in range(40):
                await (gp if number % 2 else other).publish("a", {"n": number}, tenant=("acme", "other")[number // 20])
            while sum(one.target == "/ok" for one in receiver.received) < 40:  # noqa: ASYNC110 - another process's work
                await asyncio.sleep(0.05)
            purging = asyncio.ensure_future(gp.tenants.purge("acme"))
            await asyncio.sleep(2.0)
            for process in (gp, other):
                with pytest.raises(NotFound, match="is being erased"):
                    await process.publish("a", 1, tenant="acme")
            receipt = await purging
            assert (receipt.erased["deliveries"], receipt.erased["events"], receipt.erased["endpoints"]) == (40, 20, 2)
            for table in ("gp_event", "gp_history", "gp_attempt", "gp_delivery", "gp_active"):
                column = "NULL" if table == "gp_delivery" else "tenant"
                rows = await gp.store._pool.fetch(f"SELECT count(*) FROM {table} WHERE {column} = 'acme'")  # type: ignore[attr-defined]
                assert rows[0][0] == 0, table
            assert await gp.store.backlog_of("other") == 20


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
async def test_followed_outboxes_of_producers_are_erased_too(tmp_path: Path, dialect: Dialect) -> None:
    """Rows that wait there, and those set aside, hold payloads as well; one that does not answer is named, and stops nothing."""
    if dialect == "sqlite":
        place = f"sqlite:///{tmp_path / 'shop.db'}"
        shop = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
        with closing(shop):
            for statement in outbox_statements("sqlite"):
                shop.execute(statement)
            shop.executemany(_ROW, [(1, "acme", None), (2, "acme", -5), (3, "other", None)])
    else:
        place = await asyncio.to_thread(gatepost_database)  # its own outbox is like any other
        producer = await asyncpg.connect(place)
        for number, tenant, done in ((1, "acme", None), (2, "acme", -5), (3, "other", None)):
            await producer.execute(_ROW_POSTGRES, number, tenant, done)
    gone = [f"sqlite:///{tmp_path / 'gone.db'}"] if dialect == "sqlite" else []
    async with Dispatcher.open(f"sqlite:///{tmp_path / 'own.db'}", outboxes=[place, *gone], egress=EGRESS) as gp:
        await gp.endpoints.create("http://127.0.0.1:4444/hook", tenant="acme", probe=False)
        receipt = await gp.tenants.purge("acme")
    assert list(receipt.outboxes.values()) == [2, *(None for _ in gone)]
    assert receipt.erased["endpoints"] == 1
    if dialect == "sqlite":
        with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
            assert shop.execute("SELECT tenant FROM gatepost_outbox").fetchall() == [("other",)]
        assert (tmp_path / "shop.db").read_bytes().count(PAYLOAD.encode()) == 1, "deleted content is overwritten"
    else:
        assert [row[0] for row in await producer.fetch("SELECT tenant FROM gatepost_outbox")] == ["other"]
        await producer.close()
