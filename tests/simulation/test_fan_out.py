"""Events for more endpoints than one transaction takes: everybody gets them once, in order where asked, and nobody waits behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from gatepost.delivery.ids import ENDPOINT, encode_id, new_endpoint_number
from gatepost.delivery.records import Endpoint, EndpointSecret, Secret
from gatepost.dispatch.fan_out import PORTION
from gatepost.dispatch.intake import BATCH_ROWS_MAX
from gatepost.errors import StoreError
from gatepost.store.memory import MemoryStore
from gatepost.store.port import Store
from gatepost.store.rows import DeliveryFilter, FanOut, OutboxEvent, Target, part_of_tenant
from gatepost.wire.signing import new_secret
from tests.simulation.harness import Line, Simulation, simulate
from tests.simulation.test_intake import Weighed

MANY = 3 * PORTION + 70


async def register(
    sim: Simulation, count: int, *, tenant: str = "big", types: Sequence[str] = ("*",)
) -> list[Endpoint]:
    """Endpoints put straight into the registry, since a thousand checks of URLs are not the subject."""
    endpoints = []
    secret = EndpointSecret(Secret(new_secret(sim.entropy.token(32))), sim.clock.wall_us())
    for _ in range(count):
        number = new_endpoint_number(sim.entropy)
        endpoint = Endpoint(
            encode_id(ENDPOINT, number),
            tenant,
            f"https://e{number}.receivers.net/",
            event_types=tuple(types),
            created_at=sim.clock.wall_us(),
            secrets=(secret,),
        )
        await sim.store.create_endpoint(endpoint)
        endpoints.append(endpoint)
    return endpoints


def received(sim: Simulation) -> Counter[str]:
    """Requests by endpoint."""
    return Counter(str(sent.endpoint_id) for sent in sim.client.sent)


async def quiet(sim: Simulation) -> None:
    """Until no cursor is left and nothing waits."""
    async with asyncio.timeout(120):
        while await sim.store.fan_outs([0], 1) or (await sim.store.totals()).waiting:  # noqa: ASYNC110 - a store sets no event
            await asyncio.sleep(0.1)


def test_everybody_gets_the_event_once_and_the_receipt_says_how_many() -> None:
    """The answer comes after one transaction of bounded size; the rest follows by itself."""

    async def main(sim: Simulation) -> None:
        store = Weighed(sim.store)
        endpoints = await register(sim, MANY)
        await register(sim, 5, types=["other"])
        async with sim.dispatcher(store=store.as_store) as gp:
            receipt = await gp.publish("t", b"x", tenant="big")
            assert receipt.deliveries == MANY
            assert max(store.rows) <= BATCH_ROWS_MAX + 1
            await quiet(sim)
            await asyncio.sleep(1)
            assert received(sim) == Counter(endpoint.id for endpoint in endpoints)
            assert store.calls["extend"] == 3
            assert len({sent.webhook_id for sent in sim.client.sent}) == 1

    simulate(main)


def test_who_comes_after_the_event_gets_nothing_and_who_goes_is_left_out() -> None:
    """The cursor meets the registry as it is by then; an endpoint that is paused keeps its delivery."""

    async def main(sim: Simulation) -> None:
        endpoints = sorted(await register(sim, MANY), key=lambda endpoint: endpoint.number)
        line = Line(sim.store)
        async with sim.dispatcher(store=line.as_store) as gp:
            line.cut_calls = {"extend"}
            await gp.publish("t", b"x", tenant="big")
            await asyncio.sleep(1)
            late = await register(sim, 20)
            gone, paused = endpoints[-1], endpoints[-2]
            await gp.endpoints.delete(gone.id)
            await gp.endpoints.pause(paused.id)
            line.cut_calls = set()
            await asyncio.sleep(30)
            assert await sim.store.fan_outs([0], 1) == []
            assert received(sim) == Counter(endpoint.id for endpoint in endpoints[:-2])
            assert [info.state for info in await sim.deliveries(paused)] == ["waiting"]
            assert not any([await sim.deliveries(endpoint) for endpoint in (gone, *late)])

    simulate(main)


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_a_crash_at_any_portion_loses_and_repeats_nothing(before: int) -> None:
    """The cursor and the deliveries are one transaction (the store's contract); the next owner goes on where it stands."""

    class Dying(Line):
        """A process that dies after so many portions: nothing it says reaches the store any more."""

        left = before

        async def extend(self, *arguments: Any) -> bool:
            self.cut = self.cut or self.left == 0
            self.left -= 1
            if self.cut:
                raise StoreError("the process is dead")
            return await self._store.extend(*arguments)

    async def main(sim: Simulation) -> None:
        endpoints = await register(sim, MANY)
        line = Dying(sim.store)
        async with sim.dispatcher(store=line.as_store) as first:
            await first.publish("t", b"x", tenant="big")
            await asyncio.sleep(20)
            line.cut = True
        async with sim.dispatcher():
            await asyncio.sleep(40)  # the dead owner's lease runs out
            await quiet(sim)
        page = await sim.store.deliveries(DeliveryFilter(tenant="big"), None, 10_000)
        assert Counter(info.endpoint for info in page.items) == Counter(endpoint.number for endpoint in endpoints)
        assert {info.state for info in page.items} == {"delivered"}

    simulate(main)


def test_other_tenants_publishes_are_not_delayed_by_a_huge_fan_out() -> None:
    """Portions are small, with pauses between; two tenants' cursors take turns."""

    class Slow(Weighed):
        """`extend` takes time by its size too."""

        async def extend(self, fan_out: FanOut, targets: Sequence[Target], after: int | None) -> bool:
            await asyncio.sleep(len(targets) * 20e-6)
            self.turns.append(fan_out.tenant)
            return await self._store.extend(fan_out, targets, after)

        def __init__(self, store: Store) -> None:
            super().__init__(store)
            self.turns: list[str] = []

    async def main(sim: Simulation) -> None:
        sim.client.keep = False
        store = Slow(sim.store)
        await register(sim, 10 * PORTION, tenant="big")
        await register(sim, 4 * PORTION, tenant="large")
        await register(sim, 1, tenant="small")
        async with sim.dispatcher(store=store.as_store) as gp:
            await gp.publish("t", b"", tenant="big")
            await gp.publish("t", b"", tenant="large")
            slowest = 0.0
            while await sim.store.fan_outs([0], 1):
                began = sim.clock.monotonic()
                await gp.publish("t", b"", tenant="small")
                slowest = max(slowest, sim.clock.monotonic() - began)
                await asyncio.sleep(0.02)
            assert slowest < 0.05
            assert store.turns.count("big") == 9
            assert set(store.turns[2:7]) == {"big", "large"}, "they take turns"

    simulate(main)


def test_ordered_events_do_not_overtake_an_unfinished_fan_out() -> None:
    """An event for one endpoint, published while an earlier one is still on its way to all, waits behind it."""

    async def main(sim: Simulation) -> None:
        endpoints = await register(sim, 2 * PORTION + 10)
        last = max(endpoints, key=lambda endpoint: endpoint.number)
        narrow = await register(sim, 1, types=["narrow"])
        async with sim.dispatcher() as gp:
            await gp.publish("wide", b"0", tenant="big", ordering_key="k")
            for number in range(1, 6):
                receipt = await gp.publish("wide", b"%d" % number, tenant="big", ordering_key="k")
                assert receipt.deliveries == len(endpoints)
            receipt = await gp.publish("narrow", b"n", tenant="big", ordering_key="k")
            assert receipt.deliveries == len(endpoints) + 1
            await quiet(sim)
            assert [sent.body for sent in sim.sent_to(last)] == [b"0", b"1", b"2", b"3", b"4", b"5", b"n"]
            assert [sent.body for sent in sim.sent_to(narrow[0])] == [b"n"]
            began = sim.clock.monotonic()
            await gp.publish("narrow", b"m", tenant="big", ordering_key="k")
            await quiet(sim)
            assert sim.sent_to(narrow[0])[-1].at - began < 1.0

    simulate(main)


def test_an_event_of_a_publisher_is_fanned_out_in_portions_too() -> None:
    """Transactions stay bounded, whoever published."""

    async def main(sim: Simulation) -> None:
        endpoints = await register(sim, MANY)
        store = Weighed(sim.store)
        async with sim.dispatcher(store=store.as_store):
            now = sim.clock.wall_us()
            number = (now // 1_000 - 1_735_689_600_000) << 22
            event = OutboxEvent(0, number, "big", None, "t", "text/plain", b"x", None, "normal", None, now)
            await sim.store.outbox_put([event])
            await asyncio.sleep(1)
            await quiet(sim)
            assert max(store.rows) <= BATCH_ROWS_MAX + 1
            assert received(sim) == Counter(endpoint.id for endpoint in endpoints)

    simulate(main)


def test_in_a_fleet_one_process_expands_and_each_delivers_its_parts() -> None:
    """Wherever it was published; the owner of the cursor dies on the way, and the next one goes on."""

    async def main(sim: Simulation) -> None:
        shared = MemoryStore(sim.clock, parts=8)
        sim.store = shared
        endpoints = await register(sim, MANY)
        lines = [Line(shared.peer()) for _ in range(2)]
        async with sim.dispatcher(store=lines[0].as_store) as one, sim.dispatcher(store=lines[1].as_store) as two:
            await asyncio.sleep(30)  # until both hold their share
            assert one.statistics().parts == two.statistics().parts == 4
            owner = part_of_tenant("big", 8)
            first = 0 if owner in one._leases.epochs else 1
            for line in lines:
                line.cut_calls = {"extend"}
            publisher = two if first == 0 else one
            receipt = await publisher.publish("t", b"x", tenant="big")
            assert receipt.deliveries == MANY
            await asyncio.sleep(3)
            lines[first].cut = True
            lines[1 - first].cut_calls = set()
            await asyncio.sleep(150)
            assert await shared.fan_outs(range(8), 1) == []
            page = await shared.deliveries(DeliveryFilter(tenant="big"), None, 10_000)
            assert Counter(info.endpoint for info in page.items) == Counter(endpoint.number for endpoint in endpoints)
            assert {info.state for info in page.items} == {"delivered"}

    simulate(main)


def test_in_a_fleet_one_key_is_one_event_whoever_publishes_it() -> None:
    """I7 over processes: the store decides, not the process; all hear the same event id."""

    async def main(sim: Simulation) -> None:
        shared = MemoryStore(sim.clock, parts=8)
        sim.store = shared
        (endpoint,) = await register(sim, 1)
        async with sim.dispatcher(store=shared.peer()) as one, sim.dispatcher(store=shared.peer()) as two:
            calls = [gp.publish("t", b"x", tenant="big", idempotency_key="k") for gp in (one, two) * 10]
            receipts = await asyncio.gather(*calls)
            await asyncio.sleep(60)
            assert len({receipt.event_id for receipt in receipts}) == 1
            assert sum(not receipt.duplicate for receipt in receipts) == 1
            assert len(sim.sent_to(endpoint)) == 1

    simulate(main)
