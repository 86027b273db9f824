"""Group commit: operations that wait together share a transaction, never a fate."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gatepost.errors import Conflict, NotFound, StoreError
from gatepost.store.rows import DeliveryFilter, lane_of
from gatepost.store.sqlite.connection import BUSY_TIMEOUT, connect
from gatepost.store.sqlite.store import SqliteStore
from gatepost.testing.contract_registry import FULL
from gatepost.testing.store_builder import Owner
from gatepost.testing.virtual import VirtualClock

LANE = lane_of(1, 0)


async def test_a_failing_operation_takes_no_other_with_it(tmp_path: Path) -> None:
    """One caller's mistake must not fail requests that only waited beside it."""
    clock = VirtualClock()
    store = SqliteStore.open(tmp_path / "gatepost.db", clock=clock)
    try:
        owner = await Owner.take(store, clock)
        await owner.enqueue(owner.event(1))
        [row] = await owner.rows(LANE)
        taken = owner.event(1)
        [target] = taken.targets
        bad = replace(taken, targets=(target._replace(delivery_id=row.delivery_id),))
        await store.create_endpoint(FULL)
        results = await asyncio.gather(
            owner.enqueue(owner.event(1)),
            owner.enqueue(bad),
            owner.settle(owner.done(row)),
            store.create_endpoint(FULL),
            store.update_endpoint(replace(FULL, id="ep_0000000000009"), 1),
            store.enqueue([replace(owner.event(1), body="text")]),  # type: ignore[arg-type]  # a caller's mistake
            owner.enqueue(owner.event(2), owner.event(1)),
            return_exceptions=True,
        )
        kinds = [type(result) for result in results]
        assert kinds[1] is StoreError
        assert kinds[3:6] == [Conflict, NotFound, StoreError]
        for at in (0, 2, 6):
            assert not isinstance(results[at], BaseException)
        assert len(await owner.rows(LANE)) == 2
        assert await store.backlog_of("acme") == 3
        totals = await store.totals()
        assert (totals.waiting, totals.events, totals.attempts) == (3, 4, 1)
        assert len((await store.deliveries(DeliveryFilter(tenant="acme"), None, 10)).items) == 4
    finally:
        await store.aclose()


async def test_operations_that_wait_together_are_committed_together(tmp_path: Path) -> None:
    """500 callers at once must not mean 500 syncs; a lone one does not wait for company."""
    clock = VirtualClock()
    store = SqliteStore.open(tmp_path / "gatepost.db", clock=clock)
    try:
        owner = await Owner.take(store, clock)
        before = store.statistics()
        await asyncio.gather(*(owner.enqueue(owner.event(1)) for _ in range(500)))
        after = store.statistics()
        assert after.operations - before.operations == 500
        assert after.commits - before.commits < 50
        assert after.largest_group > 16
        assert (after.waiting, after.failures) == (0, 0)
        for _ in range(5):
            await owner.enqueue(owner.event(1))
        assert store.statistics().commits - after.commits == 5
    finally:
        await store.aclose()


async def test_a_group_has_a_bound(tmp_path: Path) -> None:
    """Binding rows holds the interpreter lock: too many per commit would stall the event loop."""
    clock = VirtualClock()
    store = SqliteStore.open(tmp_path / "gatepost.db", clock=clock)
    try:
        owner = await Owner.take(store, clock)
        before = store.statistics().commits
        await asyncio.gather(*(owner.enqueue(*[owner.event(1) for _ in range(100)]) for _ in range(10)))
        assert store.statistics().commits - before >= 5
        assert (await store.totals()).waiting == 1_000
    finally:
        await store.aclose()


async def test_a_write_that_is_cancelled_before_its_turn_is_not_carried_out(tmp_path: Path) -> None:
    """A publish that gave up waiting was told that nothing was stored, as far as that is in anyone's power."""
    clock = VirtualClock()
    store = SqliteStore.open(tmp_path / "gatepost.db", clock=clock)
    try:
        owner = await Owner.take(store, clock)
        calls = [asyncio.ensure_future(owner.enqueue(owner.event(1))) for _ in range(200)]
        await asyncio.sleep(0)
        for call in calls[100:]:
            call.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert not any(isinstance(result, BaseException) for result in results[:100])
        assert all(isinstance(result, asyncio.CancelledError) for result in results[100:])
        rows = await owner.rows(LANE)
        assert 100 <= len(rows) <= 200
        assert (await store.totals()).waiting == len(rows)
    finally:
        await store.aclose()


async def test_closing_finishes_what_was_accepted(tmp_path: Path) -> None:
    """The last settle of a drain must reach the disk."""
    clock = VirtualClock()
    store = SqliteStore.open(tmp_path / "gatepost.db", clock=clock)
    owner = await Owner.take(store, clock)
    calls = [asyncio.ensure_future(owner.enqueue(owner.event(1))) for _ in range(100)]
    await asyncio.sleep(0)
    await store.aclose()
    await asyncio.gather(*calls)
    with pytest.raises(StoreError, match="closed"):
        await owner.enqueue(owner.event(1))
    store = SqliteStore.open(tmp_path / "gatepost.db", clock=clock)
    try:
        assert (await store.totals()).waiting == 100
    finally:
        await store.aclose()


async def test_reading_due_rows_does_not_wait_behind_a_list(tmp_path: Path) -> None:
    """They have threads of their own: a list that takes its time delays no delivery."""
    clock = VirtualClock()
    store = SqliteStore.open(tmp_path / "gatepost.db", clock=clock)
    try:
        owner = await Owner.take(store, clock)
        await owner.enqueue(*[owner.event(1, body=b"x" * 500) for _ in range(2_000)])
        order: list[str] = []

        async def look() -> None:
            for _ in range(10):
                await store.deliveries(DeliveryFilter(tenant="acme"), None, 1_000)
            order.append("lists")

        async def peek() -> None:
            assert len(await owner.rows(LANE, 5)) == 5
            order.append("rows")

        await asyncio.gather(look(), peek())
        assert order == ["rows", "lists"]
    finally:
        await store.aclose()


async def test_a_file_that_another_process_holds_fails_the_group_at_once(tmp_path: Path) -> None:
    """Not one operation after the other, each after the whole wait."""
    clock = VirtualClock()
    path = tmp_path / "gatepost.db"
    store = SqliteStore.open(path, clock=clock)
    other = connect(path)
    try:
        owner = await Owner.take(store, clock)
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        calls = [owner.enqueue(owner.event(1)) for _ in range(20)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(result) for result in results} == {StoreError}
        assert "held by another writer" in str(results[0])
        assert time.monotonic() - began < 3 * BUSY_TIMEOUT
        other.execute("ROLLBACK")
        await owner.enqueue(owner.event(1))
        assert (await store.totals()).waiting == 1
    finally:
        other.close()
        await store.aclose()


async def test_a_clean_close_leaves_no_log_behind(tmp_path: Path) -> None:
    """So that the file alone is a backup."""
    store = SqliteStore.open(tmp_path / "gatepost.db")
    await store.ping()
    await store.aclose()
    assert sorted(file.name for file in files(tmp_path)) == ["gatepost.db", "gatepost.db.key", "gatepost.db.lock"]


def files(directory: Path) -> list[Path]:
    """All that lies there."""
    return list(directory.iterdir())
