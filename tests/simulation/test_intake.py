"""Publishing on virtual time: a large fan-out is cut into bounded transactions, and no tenant stands before the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from gatepost.delivery.ids import IdSource
from gatepost.delivery.records import Receipt
from gatepost.dispatch.intake import BATCH_ROWS_MAX, CLOSE_MARGIN, PUBLISH_TIMEOUT, WAITING_ROWS_MAX
from gatepost.dispatch.leases import RELEASE_PATIENCE
from gatepost.errors import Overloaded
from gatepost.store.port import Store
from gatepost.store.rows import EnqueueResult, NewEvent, OutboxEvent
from tests.simulation.harness import Line, Simulation, simulate

GOOD = "https://good.receivers.net/hook"


class Weighed(Line):
    """A store whose writes take time by their size, as a disk's do."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.batches: list[list[tuple[str, bytes]]] = []
        self.rows: list[int] = []

    async def enqueue(self, batch: Sequence[NewEvent]) -> Sequence[EnqueueResult]:
        self.batches.append([(event.tenant, event.body) for event in batch])
        self.rows.append(sum(1 + len(event.targets) for event in batch))
        await asyncio.sleep(self.rows[-1] * 20e-6)
        return await self._store.enqueue(batch)


def test_a_tenant_with_a_large_fan_out_does_not_stand_before_the_others() -> None:
    """250 events for 2,000 endpoints in one transaction held the writer for eight seconds, and everybody's publish failed."""

    async def main(sim: Simulation) -> None:
        store = Weighed(sim.store)
        async with sim.dispatcher(run=False, store=store.as_store) as gp:
            for number in range(300):
                await gp.endpoints.create(f"https://e{number}.receivers.net/", tenant="big")
            await gp.endpoints.create(GOOD, tenant="small")
            flood = asyncio.create_task(
                gp.publish_batch([{"type": "t", "payload": b"%d" % n, "tenant": "big"} for n in range(200)])
            )
            await asyncio.sleep(0.01)
            began = sim.clock.monotonic()
            for number in range(5):
                await gp.publish("t", b"%d" % number, tenant="small")
            assert sim.clock.monotonic() - began < 5 * 0.05
            assert not flood.done()
            assert all(isinstance(answer, Receipt) for answer in await flood)
            assert max(store.rows) <= BATCH_ROWS_MAX
            stored = [body for batch in store.batches for tenant, body in batch if tenant == "big"]
            assert stored == [b"%d" % n for n in range(200)], "in the order of publishing, within a tenant"

    simulate(main)


def test_a_flood_of_deliveries_is_refused_before_it_fills_memory() -> None:
    """The bound is on rows: a few hundred events may be millions of deliveries."""

    async def main(sim: Simulation) -> None:
        store = Weighed(sim.store)
        async with sim.dispatcher(run=False, store=store.as_store) as gp:
            for number in range(300):
                await gp.endpoints.create(f"https://e{number}.receivers.net/", tenant="big")
            events = WAITING_ROWS_MAX // 301 + 50
            answers = await gp.publish_batch([{"type": "t", "payload": b"", "tenant": "big"} for _ in range(events)])
            refused = [answer for answer in answers if isinstance(answer, Overloaded)]
            assert 40 <= len(refused) <= 50
            assert all("nothing was stored" in str(answer) for answer in refused)
            assert sum(len(batch) for batch in store.batches) == events - len(refused)
            assert (await gp.publish("t", b"", tenant="big")).deliveries == 300, "and there is room again"

    simulate(main)


def test_events_of_publishers_are_fanned_out_in_transactions_of_bounded_size() -> None:
    """The outbox is read 250 events at a time, whatever their fan-out."""

    async def main(sim: Simulation) -> None:
        store = Weighed(sim.store)
        async with sim.dispatcher(store=store.as_store) as gp:
            for number in range(100):
                await gp.endpoints.create(f"https://e{number}.receivers.net/")
            ids = IdSource(1, sim.clock)
            await sim.store.outbox_put(
                [
                    OutboxEvent(0, ids.next(), "default", None, "t", "text/plain", b"x", None, "normal", None, 1)
                    for _ in range(40)
                ]
            )
            await asyncio.sleep(5.0)
            assert sum(store.rows) == 40 * 101
            assert max(store.rows) <= BATCH_ROWS_MAX

    simulate(main)


class Hanging(Line):
    """A store of which some calls never come back, as of a disk that does not answer."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.hung: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        answering = super().__getattr__(name)
        if name not in self.hung:
            return answering

        async def never(*_: Any) -> None:
            await asyncio.Event().wait()

        return never


def test_a_store_that_hangs_holds_up_neither_publishers_nor_the_end() -> None:
    """Closing took the timer away that answers publishers, and then waited for the store for ever; giving parts back did too."""

    async def main(sim: Simulation) -> None:
        store = Hanging(sim.store)
        gp = sim.make(store=store.as_store)
        await gp.prepare()
        gp.run_in_background()
        await gp.endpoints.create(GOOD)
        await asyncio.sleep(1.0)
        store.hung = {"enqueue", "release", "heartbeat", "settle", "peek"}
        publishing = [asyncio.ensure_future(gp.publish("t", b"%d" % number)) for number in range(3)]
        await asyncio.sleep(0.5)
        began = sim.clock.monotonic()
        await gp.aclose()
        assert sim.clock.monotonic() - began < RELEASE_PATIENCE + PUBLISH_TIMEOUT + 2 * CLOSE_MARGIN
        answers = await asyncio.gather(*publishing, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Overloaded] * 3
        assert gp.statistics().parts == 0

    simulate(main)
