"""The store's benchmark does what it says it measures: everything it stores is read, loaded and settled."""

from __future__ import annotations

from bench.store_cost import STRIDE, Bench, Spending
from gatepost.clock import SYSTEM_CLOCK
from gatepost.store.memory import MemoryStore


async def test_a_stride_stores_reads_and_settles_each_row_once() -> None:
    """A settle that names no row costs nothing, and would look wonderful."""
    store = MemoryStore(SYSTEM_CLOCK)
    bench = await Bench.on(store, endpoints=10)
    spending = Spending(None)
    before = (await store.totals()).events
    await bench.stride(spending, 500, 0)
    assert dict(spending.rows) == {
        "enqueue": STRIDE,
        "peek": min(STRIDE, 10 * 24),
        "load bodies": STRIDE,
        "settle": STRIDE,
    }
    assert (await store.totals()).events - before == STRIDE
    assert await store.backlog_of("default") == 0
    assert all(cost > 0 for cost in spending.us(spending.client).values())
