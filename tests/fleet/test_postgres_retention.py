"""Retention on PostgreSQL: days are dropped whole, what is needed is carried over, and nobody waits behind a lock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from gatepost.store.postgres.partitions import partitions
from gatepost.store.postgres.pool import connect
from gatepost.store.postgres.store import PostgresStore
from gatepost.store.rows import DeadFilter, DeliveryFilter, MaintenanceReport, Retention, lane_of
from gatepost.testing.contract_queue import DAY
from gatepost.testing.postgres_store import new_postgres
from gatepost.testing.store_builder import Owner
from gatepost.testing.virtual import VirtualClock

LANE = lane_of(1, 0)


@asynccontextmanager
async def owned() -> AsyncIterator[tuple[Owner, PostgresStore]]:
    """An owner on a new database whose days are there, also those of the virtual clock."""
    clock = VirtualClock()
    store = await new_postgres(clock, 1)
    try:
        owner = await Owner.take(store, clock)
        await maintain(owner)
        yield owner, store
    finally:
        await store.aclose()


async def maintain(owner: Owner, retention: Retention | None = None) -> None:
    """Until there is nothing more to do."""
    for _ in range(500):
        if not (await owner.store.maintain(retention or Retention(), owner.now, 2_000)).more:
            return
    raise AssertionError("maintain has more to do for ever")


async def rows_in(store: PostgresStore, table: str) -> int:
    """Exactly."""
    return int((await store._pool.fetch(f"SELECT count(*) FROM {table}"))[0][0])


async def days_of(store: PostgresStore, parent: str) -> int:
    """Partitions of a table, without the default one."""
    found = await store._pool.run(partitions)
    return sum(one.parent == parent for one in found)


async def test_a_day_is_dropped_and_what_is_needed_is_carried_over() -> None:
    """One waits for ten days, one is a dead letter, one was cancelled late, one ended late; the others go with their day."""
    async with owned() as (owner, store):
        events = [owner.event(1, body=b"%d" % number) for number in range(40)]
        await owner.enqueue(*events, owner.event(2, due_in=10 * 86_400), owner.event(3, due_in=10 * 86_400))
        dead, late, *others = await owner.rows(LANE)
        await owner.settle(owner.done(*others))
        await owner.settle(owner.dead(dead))
        await owner.settle(owner.retry(late, delay=6 * 86_400))
        assert await rows_in(store, "gp_history_default") == 0, "today has a partition of its own"
        owner.clock.advance(6.5 * DAY)
        [late] = await owner.rows(LANE)
        await owner.settle(owner.done(late))
        await store.cancel(DeliveryFilter(endpoint=3), None, 10)
        owner.clock.advance(2 * DAY)
        await maintain(owner)
        assert (await rows_in(store, "gp_history"), await rows_in(store, "gp_history_default")) == (4, 4)
        assert (await rows_in(store, "gp_event"), await rows_in(store, "gp_attempt")) == (1, 3)
        assert await store.delivery(others[0].delivery_id) is None
        info = await store.delivery(late.delivery_id)
        assert info is not None
        assert (info.state, info.attempts) == ("delivered", 2)
        owner.clock.advance(2 * DAY)
        [waiting] = await owner.rows(lane_of(2, 0))
        assert (await store.load_events([waiting.event_id]))[waiting.event_id].body == b"{}"
        await owner.settle(owner.done(waiting))
        [letter] = (await store.dead_letters(DeadFilter(), None, 10)).items
        assert letter.delivery_id == dead.delivery_id
        assert len(await store.replay(DeadFilter(), owner.now, 0, 10)) == 1
        await maintain(owner)
        [replayed] = await owner.rows(lane_of(1, 2))
        assert (await store.load_events([replayed.event_id]))[replayed.event_id].body == b"0"
        await owner.settle(owner.done(replayed))
        owner.clock.advance(31 * DAY)
        await maintain(owner)
        for table in ("gp_event", "gp_history", "gp_attempt", "gp_dead", "gp_keep"):
            assert await rows_in(store, table) == 0, table
        assert await days_of(store, "gp_dead") <= 36


async def test_what_comes_late_into_a_day_that_leaves_is_kept() -> None:
    """An event that waited in an outbox for a week, put between the look at its day and the drop."""
    async with owned() as (owner, store):
        old = owner.event(1, body=b"old")
        await owner.enqueue(owner.event(1))
        await owner.settle(owner.done(*await owner.rows(LANE)))
        owner.clock.advance(9 * DAY)
        blocker = await connect(store._pool.address)
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.fetch("SELECT count(*) FROM gp_event")
        days = await days_of(store, "gp_event")
        started = asyncio.get_running_loop().time()
        working = asyncio.ensure_future(store.maintain(Retention(), owner.now, 2_000))
        longest = 0.0
        while not working.done():
            begun = asyncio.get_running_loop().time()
            await store.load_events([1])
            longest = max(longest, asyncio.get_running_loop().time() - begun)
            await asyncio.sleep(0.01)
        await working
        assert await days_of(store, "gp_event") >= days, "the day is in use: it stays for now"
        assert asyncio.get_running_loop().time() - started < 5
        assert longest < 2.0, "readers wait for the short lock time at most"
        late = replace(old, created_at=owner.now)
        await owner.enqueue(late)
        keep = await store._pool.fetch("SELECT id FROM gp_keep")
        assert [row[0] for row in keep] == [late.event_id]
        await transaction.rollback()
        await blocker.close()
        await maintain(owner)
        assert (await rows_in(store, "gp_keep"), await rows_in(store, "gp_event_default")) == (0, 1)
        [row] = await owner.rows(LANE)
        assert (await store.load_events([row.event_id]))[row.event_id].body == b"old"


async def test_a_day_in_which_much_is_needed_is_thinned() -> None:
    """Carrying thousands of rows over would hold everybody up: the others are deleted in portions instead."""
    async with owned() as (owner, store):
        wide = [owner.event(*range(1, 401), due_in=20 * 86_400) for _ in range(6)]
        await owner.enqueue(*wide, *[owner.event(999) for _ in range(50)])
        await owner.settle(owner.done(*await owner.rows(lane_of(999, 0))))
        owner.clock.advance(9 * DAY)
        await maintain(owner)
        assert (await rows_in(store, "gp_history"), await rows_in(store, "gp_history_default")) == (2_400, 0)
        assert await rows_in(store, "gp_attempt") == 0
        assert await rows_in(store, "gp_event") == 6
        owner.clock.advance(12 * DAY)
        for lane in range(1, 401):
            await owner.settle(owner.done(*await owner.rows(lane_of(lane, 0))))
        owner.clock.advance(8 * DAY)
        await maintain(owner)
        assert (await rows_in(store, "gp_history"), await rows_in(store, "gp_event")) == (0, 0)


async def test_one_process_does_the_chores_and_lanes_get_their_markers_back() -> None:
    """A second one is sent away; a marker that was lost is made again within ten minutes."""
    async with owned() as (owner, store):
        other = await PostgresStore.open(store.url, box=store._box, clock=owner.clock)
        try:
            await owner.enqueue(*[owner.event(number) for number in range(1, 20)])
            await store._pool.fetch("DELETE FROM gp_active")
            assert await other.maintain(Retention(), owner.now, 100) == MaintenanceReport()
            owner.clock.advance(601)
            await maintain(owner)
            assert len(await store.discover([0])) == 19
            assert await store.backlog_of("acme") == 19
            owner.clock.advance(601)
            await other.maintain(Retention(), owner.now, 100)
            assert not (await store.maintain(Retention(), owner.now, 100)).more
        finally:
            await other.aclose()
