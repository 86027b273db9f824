"""What waits for an endpoint that takes nothing is left where it is, on every engine: no row of it is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.records import Endpoint
from gatepost.dispatch.dispatcher import Dispatcher, DispatcherSettings
from gatepost.dispatch.lanes import window_of
from gatepost.dispatch.maintenance import EXPIRE_ROWS
from gatepost.store.memory import MemoryStore
from gatepost.store.port import Store
from gatepost.store.sqlite.store import SqliteStore
from gatepost.testing.counting_store import CountingStore
from gatepost.testing.fake_client import FakeClient, responds, silent
from gatepost.testing.postgres_store import new_postgres

GOOD, BAD = "https://good.example.com/hook", "https://bad.example.com/hook"
EVENTS = 400
PATIENCE = 30.0


async def open_engine(name: str, directory: Path) -> Store:
    """A new store."""
    if name == "memory":
        return MemoryStore()
    if name == "sqlite":
        return SqliteStore.open(directory / "gatepost.db")
    return await new_postgres()


@asynccontextmanager
async def dispatching(engine: str, directory: Path) -> AsyncIterator[tuple[Dispatcher, CountingStore, FakeClient]]:
    """A dispatcher that is not running yet, on a store that counts."""
    store = await open_engine(engine, directory)
    client = FakeClient(ClientPolicy())
    client.on(GOOD, responds(200, delay=0.001))
    client.on(BAD, silent(600.0))
    counting = CountingStore(store)
    gp = Dispatcher(counting.as_store, client, settings=DispatcherSettings(slots=64, grace=0.0))
    try:
        await gp.prepare()
        yield gp, counting, client
    finally:
        await gp.aclose()
        await store.aclose()
        await client.aclose()


async def publish(gp: Dispatcher) -> None:
    """As many events for the bad endpoint as for the good one."""
    for type_ in ("bad", "good"):
        await gp.publish_batch([{"type": type_, "payload": b"{}"}] * EVENTS)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - counts of others
            await asyncio.sleep(0.01)


async def register(gp: Dispatcher) -> tuple[Endpoint, Endpoint]:
    """The good and the bad endpoint."""
    return (
        await gp.endpoints.create(GOOD, event_types=("good",)),
        await gp.endpoints.create(BAD, event_types=("bad",)),
    )


@pytest.mark.parametrize("engine", ["memory", "sqlite", "postgres"])
async def test_no_row_of_a_paused_endpoint_is_read(engine: str, tmp_path: Path) -> None:
    """Half of a backlog may belong to an endpoint that is paused for days; reading it again and again is what killed others."""
    async with dispatching(engine, tmp_path) as (gp, counting, client):
        good, bad = await register(gp)
        await gp.endpoints.pause(bad.id)
        await publish(gp)  # nothing runs yet: all of it is in the store alone
        gp.run_in_background()
        await until(lambda: client.count == EVENTS)
        await publish(gp)
        await until(lambda: client.count == 2 * EVENTS)
        assert counting.rows_of(good.number) > 0
        # The head of a closed lane is looked at every ten minutes, in one read: its window may be over.
        assert counting.reads_of(bad.number) <= 1
        assert counting.rows_of(bad.number) <= EXPIRE_ROWS
        assert counting.probes_of(bad.number) == 0
        await until(lambda: gp.statistics().attempts.delivered == 2 * EVENTS)


@pytest.mark.parametrize("engine", ["memory", "sqlite", "postgres"])
async def test_an_endpoint_that_is_full_is_not_read_beyond_its_window(engine: str, tmp_path: Path) -> None:
    """A receiver that never answers holds its own few slots and a few rows in memory, however much waits for it."""
    async with dispatching(engine, tmp_path) as (gp, counting, client):
        good, bad = await register(gp)
        await publish(gp)
        gp.run_in_background()
        await until(lambda: client.count - client.in_flight.get(BAD, 0) == EVENTS)
        read = counting.rows_of(bad.number)
        assert read <= window_of(client.policy.per_endpoint_concurrency)
        await publish(gp)
        await until(lambda: client.count - client.in_flight.get(BAD, 0) == 2 * EVENTS)
        assert counting.rows_of(bad.number) == read
        assert counting.reads_of(bad.number) == 1
        assert counting.rows_of(good.number) > 0
