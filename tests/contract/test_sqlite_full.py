"""A full disk stops new events and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gatepost.errors import StoreFull
from gatepost.store.rows import Retention, lane_of
from gatepost.store.sqlite.connection import CHECKPOINT_PAGES
from gatepost.store.sqlite.space import disk_reserve
from gatepost.store.sqlite.store import SqliteStore
from gatepost.testing.store_builder import Owner
from gatepost.testing.virtual import VirtualClock

MIB = 1 << 20
LANE = lane_of(1, 0)


async def fill(owner: Owner) -> int:
    """Enqueue until the store is full; returns how many events were accepted."""
    accepted = 0
    while accepted < 10_000:
        try:
            await owner.enqueue(*[owner.event(1, key=f"{accepted}-{at}", body=b"x" * 1_000) for at in range(5)])
        except StoreFull:
            return accepted
        accepted += 5
    raise AssertionError("the file never got full")


async def test_deliveries_go_on_when_ingest_is_refused(tmp_path: Path) -> None:
    """The reserve is what their results are written to; after retention there is room again."""
    clock = VirtualClock()
    store = SqliteStore.open(tmp_path / "gatepost.db", clock=clock, max_bytes=2 * MIB, reserve_bytes=MIB // 2)
    try:
        owner = await Owner.take(store, clock)
        accepted = await fill(owner)
        assert accepted > 500
        rows = await owner.rows(LANE, 10_000)
        assert len(rows) == accepted
        for at in range(0, accepted, 50):
            chunk = rows[at : at + 50]
            await owner.settle(owner.done(*chunk[:-2]))
            await owner.settle(owner.dead(chunk[-2]))
            await owner.settle(owner.retry(chunk[-1]))
        assert len(await owner.rows(LANE)) == 0
        with pytest.raises(StoreFull, match="kept for finishing deliveries"):
            await owner.enqueue(owner.event(1))
        with pytest.raises(StoreFull):
            await store.outbox_put([owner.outbox_event()])
        clock.advance(8 * 86_400)
        while (await store.maintain(Retention(), owner.now, 1_000)).more:
            pass
        await owner.enqueue(owner.event(1))
    finally:
        await store.aclose()


async def test_a_disk_that_is_full_to_the_last_page_fails_only_what_needs_room(tmp_path: Path) -> None:
    """SQLITE_FULL in a group: each operation of it is tried alone, and what is refused left no trace."""
    clock = VirtualClock()
    store = SqliteStore.open(tmp_path / "gatepost.db", clock=clock, max_bytes=MIB, reserve_bytes=0)
    try:
        owner = await Owner.take(store, clock)
        accepted = await fill(owner)
        rows = await owner.rows(LANE, 10_000)
        assert len(rows) == accepted
        bare = owner.done(*rows[:40])
        results = await asyncio.gather(
            owner.enqueue(owner.event(1, body=b"x" * 500_000)),
            owner.settle(type(bare)(bare.epochs, done=bare.done)),
            store.ping(),
            return_exceptions=True,
        )
        assert isinstance(results[0], StoreFull)
        assert not isinstance(results[1], BaseException)
        assert results[2] is None
        assert len(await owner.rows(LANE, 10_000)) == accepted - 40
        assert (await store.totals()).events == accepted
        assert await store.backlog_of("acme") == accepted - 40
    finally:
        await store.aclose()


async def test_the_disk_itself_is_watched(tmp_path: Path) -> None:
    """A reserve that no disk has: ingest is refused at once, and says why."""
    clock = VirtualClock()
    store = SqliteStore.open(tmp_path / "gatepost.db", clock=clock, reserve_bytes=1 << 60)
    try:
        owner = await Owner.take(store, clock)
        with pytest.raises(StoreFull, match=r"the disk of .* bytes free"):
            await owner.enqueue(owner.event(1))
        await store.ping()
    finally:
        await store.aclose()


def test_a_small_disk_keeps_room_for_emptying_the_log() -> None:
    """5 % of 200 MB is less than one write-ahead log: once it cannot be copied into the file, nothing finds room any more."""
    log_bytes = CHECKPOINT_PAGES * 4_096
    assert disk_reserve(200 * MIB) >= 2 * log_bytes
    assert disk_reserve(24 * MIB) == 12 * MIB, "but not more than half of what there is"
    assert disk_reserve(2_000 * MIB) == 100 * MIB
    assert disk_reserve(1_000_000 * MIB) == 1_024 * MIB
