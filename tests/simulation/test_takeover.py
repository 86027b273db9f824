"""The moment in which parts change hands: what happens while the new owner still reads what it has won."""

from __future__ import annotations

import asyncio
from typing import Any

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
