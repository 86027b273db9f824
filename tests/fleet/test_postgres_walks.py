"""Cancelling in portions on PostgreSQL: each portion goes on where the last one ended, but not behind a caller that gave up."""

from __future__ import annotations

from gatepost.store.postgres.operators import WALK_KEPT_FOR
from gatepost.store.rows import DeliveryFilter
from gatepost.testing.postgres_store import new_postgres
from gatepost.testing.store_builder import Owner
from gatepost.testing.virtual import VirtualClock


async def test_a_cancel_that_was_abandoned_hides_nothing_from_the_next_one() -> None:
    """A client hangs up in the middle, more is published, and somebody cancels again: all that waits is meant."""
    clock = VirtualClock()
    store = await new_postgres(clock, 1)
    try:
        owner = await Owner.take(store, clock)
        where = DeliveryFilter(endpoint=1)
        await owner.enqueue(*[owner.event(1) for _ in range(6)])
        assert len(await store.cancel(where, None, 2)) == 2
        await owner.enqueue(*[owner.event(1) for _ in range(3)])
        clock.advance(WALK_KEPT_FOR)
        cancelled = 0
        while portion := await store.cancel(where, None, 2):
            cancelled += len(portion)
        assert cancelled == 7
    finally:
        await store.aclose()
