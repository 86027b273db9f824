"""Fault cases of class clock: clocks that jump neither lose nor repeat nor reorder a delivery."""

from __future__ import annotations

import asyncio

from gatepost.testing.fake_client import OK, responds
from tests.simulation.harness import Simulation, simulate

URL = "https://receiver.receivers.net/hook"
REARMED = 60.0
"""Seconds within which a jump of the wall clock is noticed."""


def test_clock_01_overdue_work_starts_soon_after_a_suspend() -> None:
    """The wall clock jumps an hour while the monotonic one stands still: a timer of monotonic time alone would sleep it again."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(500), OK)
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False, schedule=[0, 1_800])
            await gp.publish("a.b", b"retry")
            await gp.publish("a.b", b"later", not_before=sim.clock.wall_us() / 1e6 + 1_800)
            await asyncio.sleep(10)
            assert len(sim.client.sent) == 1
            sim.clock.step_wall(3_600)
            jumped = sim.clock.monotonic()
            await asyncio.sleep(REARMED)
            assert sorted(sent.body for sent in sim.client.sent) == [b"later", b"retry", b"retry"]
            assert all(sent.at < jumped + REARMED for sent in sim.client.sent)
            assert {info.state for info in await sim.deliveries(endpoint)} == {"delivered"}

    simulate(main)


def test_clock_01_attempts_in_flight_are_not_judged_by_the_wall_clock() -> None:
    """A jump forwards or back during an attempt changes neither its outcome nor its duration."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(200, delay=5))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            for jump in (3_600, -3_600):
                await gp.publish("a.b", b"x")
                await asyncio.sleep(1)
                sim.clock.step_wall(jump)
                await asyncio.sleep(30)
            assert [info.state for info in await sim.deliveries(endpoint)] == ["delivered"] * 2
            assert len(sim.client.sent) == 2
            assert all(decision.attempt and abs(decision.attempt.elapsed - 5) < 0.1 for decision in sim.heard.decisions)

    simulate(main)


def test_clock_01_ordered_events_keep_their_order_over_a_step_back_and_a_restart() -> None:
    """A new process begins with the clock as it is now; what it takes in must still come after what is stored."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(503))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False, schedule=[0, *[60] * 30])
            for number in range(3):
                await gp.publish("a.b", b"%d" % number, ordering_key="k")
            await asyncio.sleep(1)
        sim.clock.step_wall(-600)
        sim.client.on(URL, OK)
        async with sim.dispatcher() as gp:
            for number in range(3, 6):
                await gp.publish("a.b", b"%d" % number, ordering_key="k")
                await gp.publish("a.b", b"other", ordering_key="another key")
            waiting = [info for info in await sim.deliveries(endpoint) if info.state == "waiting"]
            assert len(waiting) >= 6
            await asyncio.sleep(3_600)
            keyed = [sent.body for sent in sim.sent_to(endpoint) if sent.body != b"other"]
            assert list(dict.fromkeys(keyed)) == [b"0", b"1", b"2", b"3", b"4", b"5"]
            assert {info.state for info in await sim.deliveries(endpoint)} == {"delivered"}

    simulate(main)
