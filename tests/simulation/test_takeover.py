"""The moment in which parts change hands: what happens while the new owner still reads what it has won."""

from __future__ import annotations

import asyncio
from typing import Any

from gatepost.delivery.ids import EVENT, decode_id
from gatepost.store.rows import DeliveryFilter
from gatepost.testing.fake_client import responds
from tests.simulation.fleet import Fleet
from tests.simulation.harness import Line, Simulation, simulate


class SlowStates(Line):
    """Reads what is kept about endpoints slowly, and lets something happen meanwhile."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim.store)
        self.asked = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        target = super().__getattr__(name)
        if name != "load_states":
            return target

        async def call(*arguments: Any) -> Any:
            self.asked.set()
            await asyncio.sleep(0.5)
            return await target(*arguments)

        return call


def test_rows_that_waited_before_a_takeover_are_found_although_newer_ones_came_during_it() -> None:
    """A lane that is first heard of by a fresh row may have older ones: until its part was searched, nobody knows."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher(run=False) as before:
            endpoint = await before.endpoints.create("https://a.receivers.net/")
            for number in range(10):
                await before.publish("a.b", b"old %d" % number)
        line = SlowStates(sim)
        async with sim.dispatcher(store=line.as_store) as gp:
            await line.asked.wait()
            await gp.publish("a.b", b"new")
            await asyncio.sleep(3.0)
            assert len(sim.sent_to(endpoint)) == 11

    simulate(main)


def test_an_ordered_lane_goes_on_when_its_failing_head_is_cancelled_elsewhere() -> None:
    """The head waits for its next attempt, hours away; whoever cancels it hardly ever is the process that owns the lane."""

    async def main(fleet: Fleet) -> None:
        fleet.answers["https://e0.receivers.net/"] = (*[responds(500)] * 5, responds(200))
        async with fleet.started("a", "b") as members:
            (endpoint,) = await fleet.endpoints(members[0].gp, 1)
            first = await members[0].gp.publish("a.b", b"1", ordering_key="k")
            await members[0].gp.publish("a.b", b"2", ordering_key="k")
            await asyncio.sleep(1_500.0)
            assert fleet.delivered(endpoint) == [], "two minutes, ten minutes, half an hour"
            (owner,) = {by for by, sent in zip(fleet.receiver.by, fleet.receiver.sent, strict=True)}
            (other,) = [member for member in members if member.name != owner]
            number = decode_id(EVENT, first.event_id)
            assert len(await other.gp.deliveries.cancel(DeliveryFilter(event_id=number))) == 1
            await asyncio.sleep(3.0)
            assert fleet.receiver.sent[-1].body == b"2"

    Fleet().run(main)


def test_an_ordered_lane_goes_on_when_its_failing_head_is_cancelled_while_nobody_runs() -> None:
    """The back-off of a head outlives its owner; the head itself may not."""

    async def main(sim: Simulation) -> None:
        sim.client.on("https://a.receivers.net/", *[responds(500)] * 5, responds(200))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create("https://a.receivers.net/")
            first = await gp.publish("a.b", b"1", ordering_key="k")
            await gp.publish("a.b", b"2", ordering_key="k")
            await asyncio.sleep(1_500.0)
            failed = len(sim.sent_to(endpoint))
        async with sim.dispatcher():
            await asyncio.sleep(5.0)
            assert len(sim.sent_to(endpoint)) == failed, "its back-off is remembered"
        where = DeliveryFilter(event_id=decode_id(EVENT, first.event_id))
        assert len(await sim.store.cancel(where, None, 10)) == 1
        async with sim.dispatcher():
            await asyncio.sleep(5.0)
            assert sim.sent_to(endpoint)[-1].body == b"2"

    simulate(main)


def test_an_order_is_kept_behind_a_large_fan_out_that_another_process_began() -> None:
    """A balancer sends one request here and the next there: the second event must not pass the first one's cursor."""

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a", "b") as (a, b):
            both = []
            for number in range(1_200):
                types = ("a.b", "a.c") if number % 4 == 0 else ("a.b",)
                made = await a.gp.endpoints.create(f"https://e{number}.receivers.net/", event_types=types)
                both += [made] if len(types) == 2 else []
            await asyncio.sleep(2.0)
            await a.gp.publish("a.b", b"1", ordering_key="k")
            await b.gp.publish("a.c", b"2", ordering_key="k")
            await asyncio.sleep(20.0)
            assert [fleet.delivered(endpoint) for endpoint in both] == [[b"1", b"2"]] * len(both)

    Fleet().run(main)
