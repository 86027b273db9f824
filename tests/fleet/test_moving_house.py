"""A house is moved from an SQLite file to PostgreSQL: everything, once, whatever is killed, and then it is lived in."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.ids import ENDPOINT, EVENT, encode_id
from gatepost.delivery.records import ApiKey, Endpoint, EndpointSecret, Secret, Tenant, TenantLimits
from gatepost.dispatch.dispatcher import Dispatcher
from gatepost.errors import ConfigurationError, StoreError, StoreLocked
from gatepost.store.house import Kind
from gatepost.store.migrate import migrate_database
from gatepost.store.moving import Moved, move_house
from gatepost.store.open import open_store
from gatepost.store.port import AuditEntry, EventSchema, PolicyVersion
from gatepost.store.rows import DeadFilter, FanOut, lane_of
from gatepost.store.secretbox import SecretBox
from gatepost.store.sqlite.outbox import SqliteOutbox
from gatepost.store.sqlite.store import SqliteStore
from gatepost.testing.contract_queue import TRACE
from gatepost.testing.contract_registry import FULL
from gatepost.testing.postgres import empty_database, shared_server
from gatepost.testing.receiver import Receiver
from gatepost.testing.store_builder import Owner
from gatepost.testing.virtual import VirtualClock
from gatepost.wire.egress import EgressPolicy

KEY = SecretBox.new_key()
DAY = 86_400.0
SECRET = "whsec_" + "bmV3" * 8
EVERYTHING = {
    Kind.TENANTS: 2,
    Kind.ENDPOINTS: 2,
    Kind.API_KEYS: 1,
    Kind.POLICIES: 2,
    Kind.EVENT_TYPES: 1,
    Kind.AUDIT: 3,
    Kind.EVENTS: 42,
    Kind.DELIVERIES: 41,
    Kind.DEAD_LETTERS: 1,
    Kind.ATTEMPTS: 2,
    Kind.IDEMPOTENCY_KEYS: 44,
    Kind.FAN_OUTS: 1,
    Kind.ENDPOINT_STATES: 1,
    Kind.OUTBOX: 1,
}


SCHEMA = EventSchema("acme", "invoice.paid", 1, 5, "alice", '{"type": "object"}')


@dataclass(frozen=True)
class House:
    """What the old house is remembered by."""

    waiting: int
    """A delivery that has used an attempt."""
    dead: int
    event: int
    """Its first event, with the key `k0`."""


async def furnish(path: Path, url: str) -> House:
    """One of everything and some more, in a new file; `url` is where its endpoint is."""
    store = SqliteStore.open(path)
    owner = await Owner.take(store, SYSTEM_CLOCK)  # type: ignore[arg-type]  # real time, since the new house has it
    await store.put_tenant(Tenant("acme", 7, TenantLimits(events_per_second=1_000.0)))
    await store.put_tenant(Tenant("other"))
    secrets = (EndpointSecret(Secret(SECRET), 5),)
    await store.create_endpoint(Endpoint(encode_id(ENDPOINT, 1), "acme", url, secrets=secrets))
    await store.create_endpoint(replace(FULL, id=encode_id(ENDPOINT, 2)))
    await store.put_api_key(ApiKey("k1", b"\x01" * 32, "acme", "ci", 5))
    for number in range(3):
        await store.audit(AuditEntry(number, "alice", "endpoint.update", "ep", "acme", ""))
    for number in (1, 2):
        await store.put_policy(PolicyVersion(number, 5, "alice", "set", "why", "{}"))
    await store.put_event_type(SCHEMA)
    events = [owner.event(1, key=f"k{number}", body=b"%d" % number, trace=TRACE) for number in range(43)]
    await owner.enqueue(*events)
    first, second, third, *_ = await owner.rows(lane_of(1, 0))
    await owner.settle(owner.retry(first, delay=0))
    await owner.settle(owner.dead(second))
    await owner.settle(owner.done(third))
    wide = owner.event(key="wide", body=b"wide")
    fan_out = FanOut(wide.event_id, 0, "acme", wide.type, 0, owner.now + int(DAY * 1e6), 3)
    await owner.enqueue(replace(wide, fan_out=fan_out))
    await store.save_states({1: b"learned"})
    await store.outbox_put([replace(owner.outbox_event(key="from-outbox"), ordering_key=None)])
    await store.aclose()
    return House(first.delivery_id, second.delivery_id, events[0].event_id)


async def move(path: Path, target: str) -> Moved:
    """Move it."""
    return await move_house(f"sqlite:///{path}", target, keys=[KEY], idempotency=DAY)


CHILD = """
import asyncio, os, sys
from gatepost.store.house import Kind
from gatepost.store.migrate import migrate_database
from gatepost.store.moving import move_house

def progress(kind, done, total):
    if kind == Kind(sys.argv[4]) and done:
        os._exit(9)

asyncio.run(move_house(sys.argv[1], sys.argv[2], keys=[sys.argv[3]], idempotency=86400.0, on_progress=progress))
"""


async def test_a_house_is_moved_although_the_mover_is_killed_and_then_delivers(tmp_path: Path) -> None:
    """Killed twice on the way, repeated: nothing is missing, nothing is there twice, and everything due arrives with its old id."""
    async with Receiver(keep=100) as receiver:
        path = tmp_path / "gatepost.db"
        house = await furnish(path, receiver.url + "/ok")
        target = await asyncio.to_thread(empty_database)
        for kind in (Kind.DELIVERIES, Kind.OUTBOX):
            child = [sys.executable, "-c", CHILD, f"sqlite:///{path}", target, KEY, kind.value]
            killed = await asyncio.to_thread(subprocess.run, child, capture_output=True, text=True)
            assert killed.returncode == 9, killed.stderr
            with pytest.raises(StoreError, match="is not finished: repeat gatepost migrate --from"):
                await open_store(target, keys=[KEY])
        moved = await move(path, target)
        assert (moved.counts, moved.resumed) == (EVERYTHING, True)
        again = await move(path, target)
        assert (again.counts, again.resumed) == (EVERYTHING, True)
        with pytest.raises(StoreError, match="was moved to another database"):
            SqliteStore.open(path)
        with pytest.raises(StoreError, match="was moved to another database"):
            SqliteOutbox(path)

        store = await open_store(target, keys=[KEY])
        endpoint = await store.endpoint(encode_id(ENDPOINT, 1))
        assert endpoint is not None
        assert endpoint.secrets[0].secret.reveal() == SECRET
        full = await store.endpoint(encode_id(ENDPOINT, 2))
        assert full is not None
        assert full.headers == FULL.headers
        assert await store.event_type("acme", "invoice.paid") == SCHEMA
        info = await store.delivery(house.waiting)
        assert info is not None
        assert (await store.load_events([info.event_id]))[info.event_id].trace == TRACE
        assert (info.state, info.attempts) == ("waiting", 1)
        assert len(await store.attempts_of(house.waiting)) == 1
        letter = await store.dead_letter(house.dead)
        assert letter is not None
        assert letter.body == b"1"
        assert [entry.at for entry in (await store.audit_log("acme", None, 10)).items] == [2, 1, 0]
        await store.audit(AuditEntry(9, "bob", "x", "y", "acme", ""))
        assert [entry.at for entry in (await store.audit_log("acme", None, 1)).items] == [9]
        changed, _ = await store.changes_since(0)
        assert len(changed) == 5
        owner = Owner(store, SYSTEM_CLOCK, "probe", 0, await store.new_node())  # type: ignore[arg-type]  # real time
        [repeated] = await owner.enqueue(owner.event(1, key="k0", body=b"0"))
        assert (repeated.event_id, repeated.duplicate) == (house.event, True)
        await store.aclose()

        egress = EgressPolicy(schemes=("http",), allow_cidrs=("127.0.0.0/8",))
        async with Dispatcher.open(target, egress=egress, keys=[KEY], run=True) as gp, asyncio.timeout(30):
            while len(receiver.received) < 42:  # noqa: ASYNC110 - another process's table, in effect
                await asyncio.sleep(0.05)
            await gp.dead_letters.replay(DeadFilter(delivery_id=house.dead))
            while len(receiver.received) < 43:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        ids = [request.headers["webhook-id"] for request in receiver.received]
        assert len(set(ids)) == 43
        assert encode_id(EVENT, house.event) in ids


async def test_a_house_is_moved_only_when_nobody_dispatches_from_it(tmp_path: Path) -> None:
    """Nor into a database that holds something, nor without keys; and a run that was cut does not go on behind a dispatcher."""
    path = tmp_path / "gatepost.db"
    await furnish(path, "http://127.0.0.1:1/")
    target = await asyncio.to_thread(empty_database)
    store = SqliteStore.open(path)
    try:
        with pytest.raises(StoreLocked):
            await move(path, target)
    finally:
        await store.aclose()
    with pytest.raises(ConfigurationError, match=r"security\.keys"):
        await move_house(f"sqlite:///{path}", target, keys=None, idempotency=DAY)
    with pytest.raises(ConfigurationError, match="there is no file"):
        await move(tmp_path / "missing.db", target)
    used = await asyncio.to_thread(empty_database)
    other = await open_store(used, keys=[KEY], create=True)
    await other.put_tenant(Tenant("somebody"))
    await other.aclose()
    with pytest.raises(ConfigurationError, match="holds tenants already"):
        await move(path, used)

    child = [sys.executable, "-c", CHILD, f"sqlite:///{path}", target, KEY, Kind.EVENTS.value]
    assert (await asyncio.to_thread(subprocess.run, child, capture_output=True)).returncode == 9
    await SqliteStore.open(path).aclose()
    with pytest.raises(ConfigurationError, match="a dispatcher has used"):
        await move(path, target)


async def test_a_house_is_not_moved_into_one_that_is_lived_in(tmp_path: Path) -> None:
    """A service started too early would deliver what is being carried; then the counts differ, and the old house delivers it too."""
    path = tmp_path / "gatepost.db"
    await furnish(path, "http://127.0.0.1:1/")
    target = await asyncio.to_thread(empty_database)
    await migrate_database(target)
    async with Dispatcher.open(target, keys=[KEY], run=True) as gp:
        async with asyncio.timeout(30):
            while not await gp.store.nodes():  # noqa: ASYNC110 - its heartbeat
                await asyncio.sleep(0.02)
        with pytest.raises(ConfigurationError, match=r"dispatches from .* already: stop it"):
            await move(path, target)
    assert (await move(path, target)).counts == EVERYTHING


async def test_a_publisher_that_has_the_old_house_open_is_told(tmp_path: Path) -> None:
    """Its events would be read by nobody."""
    path = tmp_path / "gatepost.db"
    await furnish(path, "http://127.0.0.1:1/")
    outbox = SqliteOutbox(path)
    try:
        event = Owner(None, VirtualClock(), "x", 0, 1).outbox_event()  # type: ignore[arg-type]
        outbox.put([event])
        target = await asyncio.to_thread(empty_database)
        moved = await move(path, target)
        assert moved.counts[Kind.OUTBOX] == 2
        with pytest.raises(StoreError):
            outbox.put([event])
    finally:
        outbox.close()
    rows = await asyncio.to_thread(
        shared_server().run_sql, "SELECT count(*) FROM gatepost_outbox", target.rpartition("/")[2]
    )
    assert rows.strip() == "2"
