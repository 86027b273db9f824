"""Breakers, learned timeouts and caps at work in a dispatcher, on virtual time; fault cases: `tests/faults/test_breaker.py`."""

from __future__ import annotations

import asyncio
import math

import pytest

from gatepost.admission.adapt import AdaptMode, AdaptRules
from gatepost.admission.breaker import BreakerMode, BreakerRules, BreakerState
from gatepost.delivery.outcome import End
from gatepost.delivery.policy import ClientPolicy
from gatepost.dispatch.dispatcher import DispatcherSettings
from gatepost.dispatch.limits import LimitSettings
from gatepost.store.rows import DeliveryFilter
from gatepost.testing.fake_client import Answer, answers_after, responds
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from tests.simulation.harness import Line, Simulation, simulate

URL = "https://receiver.receivers.net/hook"
HANGS = answers_after(math.inf)
UNREACHABLE = Answer(End.LIMIT, None, Phase.CONNECT, Reason.CONNECT_TIMEOUT, 3.0)
DAY = 86_400.0


def test_a_thousand_endpoints_of_a_dead_host_cost_two_hundred_slot_seconds() -> None:
    """They are seen once: few at first, then one probe for all. Two hours, with retries."""

    async def main(sim: Simulation) -> None:
        settings = DispatcherSettings(slots=1_000, auto_host_cap=True)
        async with sim.dispatcher(settings=settings) as gp:
            for number in range(1_000):
                url = f"https://dead.receivers.net/{number}"
                sim.client.on(url, UNREACHABLE)
                await gp.endpoints.create(url, event_types=[f"t{number}"], probe=False)
            for number in range(1_000):
                await gp.publish(f"t{number}", b"x")
            await asyncio.sleep(7_200)
            assert sim.client.count * UNREACHABLE.delay <= 200
            assert gp.limits.statistics().host_opened > 5
            for number in range(1_000):
                sim.client.on(f"https://dead.receivers.net/{number}", responds(200))
            await asyncio.sleep(7_200)
            assert gp.statistics().attempts.delivered == 1_000

    simulate(main, policy=ClientPolicy(max_connections=1_000))


def test_a_host_is_probed_although_the_store_s_clock_was_set_back_meanwhile() -> None:
    """Our own time then runs slower than the loop's: who waits by the loop's comes too early, and must come again."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, UNREACHABLE)
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            for _ in range(20):
                await gp.publish("a.b", b"x")
            await asyncio.sleep(10)
            assert gp.limits.statistics().host_opened == 1
            sim.clock.step_wall(-5)
            sim.client.on(URL, responds(200))
            await asyncio.sleep(600)
            assert {info.state for info in await sim.deliveries(endpoint)} == {"delivered"}

    simulate(main)


def test_an_endpoint_that_turns_slow_is_believed_and_served() -> None:
    """From 0.2 s to 4.5 s under a learned limit of 3 s: a handful fails, its probes go at the ceiling, and it is served."""

    async def main(sim: Simulation) -> None:
        rules = LimitSettings(adapt=AdaptRules(force_from=50))
        async with sim.dispatcher(settings=DispatcherSettings(limits=rules)) as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            sim.client.on(URL, answers_after(0.2))
            for _ in range(100):
                await gp.publish("a.b", b"x")
                await asyncio.sleep(1)
            known = gp.limits.endpoint(endpoint.number)
            assert known is not None
            assert (known.read_timeout, known.learned.in_force) == (3.0, True)
            sim.client.on(URL, answers_after(4.5))
            for _ in range(300):
                await gp.publish("a.b", b"x")
                await asyncio.sleep(1)
            await asyncio.sleep(600)
            infos = await sim.deliveries(endpoint)
            assert {info.state for info in infos} == {"delivered"}
            assert sum(info.attempts - 1 for info in infos) <= 10
            known = gp.limits.endpoint(endpoint.number)
            assert known is not None
            assert known.state is BreakerState.CLOSED
            assert known.read_timeout == pytest.approx(11.25)

    simulate(main)


def test_an_endpoint_within_its_policy_s_timeout_is_served_however_slow() -> None:
    """30 s configured and 20 s taken: its breaker opens for its slowness, and its probes, and what is learned, let it back."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, answers_after(20.0))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            for _ in range(500):
                await gp.publish("a.b", b"x")
                await asyncio.sleep(5)
            await asyncio.sleep(600)
            infos = await sim.deliveries(endpoint)
            assert {(info.state, info.attempts) for info in infos} == {("delivered", 1)}

    simulate(main, policy=ClientPolicy(read_timeout=30.0))


def test_a_process_that_stood_still_blames_nobody() -> None:
    """Suspended for a while, it finds all that is in flight old: that shows nothing of those who owe the answers."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, answers_after(4.0))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            for _ in range(6):
                await gp.publish("a.b", b"x")
            await asyncio.sleep(1)
            sim.clock.advance(5.0)
            await asyncio.sleep(10)
            assert "circuit_opened" not in sim.heard.kinds()
            assert {info.state for info in await sim.deliveries(endpoint)} == {"delivered"}

    simulate(main)


def test_a_breaker_that_was_saved_by_a_clock_far_ahead_is_not_believed() -> None:
    """A day in the future when it opened, set right before the next start: half an hour is the longest pause there is."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, HANGS)
        sim.clock.step_wall(DAY)
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            for _ in range(10):
                await gp.publish("a.b", b"x")
            await asyncio.sleep(30)
            assert "circuit_opened" in sim.heard.kinds()
        sim.clock.step_wall(-DAY)
        sim.client.on(URL, responds(200))
        async with sim.dispatcher() as gp:
            await gp.publish("a.b", b"x")
            await asyncio.sleep(60)
            assert "delivered" in {info.state for info in await sim.deliveries(endpoint)}

    simulate(main)


def test_a_breaker_closed_by_a_pause_is_closed_after_a_restart() -> None:
    """What was learned of an endpoint that was idle for long waits packed; the pause must reach it there, too."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(500))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            for _ in range(12):
                await gp.publish("a.b", b"x")
            await asyncio.sleep(20)
            assert "circuit_opened" in sim.heard.kinds()
            await gp.deliveries.cancel(DeliveryFilter(endpoint=endpoint.number))
        async with sim.dispatcher() as gp:
            await asyncio.sleep(1)
            await gp.endpoints.pause(endpoint.id)
            await asyncio.sleep(1)
        async with sim.dispatcher() as gp:
            await asyncio.sleep(1)
            known = gp.limits.endpoint(endpoint.number)
            assert known is not None
            assert known.state is BreakerState.CLOSED

    simulate(main)


def test_a_restart_neither_forgets_what_was_learned_nor_lets_a_backlog_loose() -> None:
    """The next owner starts warm, and a held endpoint stays held."""

    async def main(sim: Simulation) -> None:
        rules = DispatcherSettings(limits=LimitSettings(adapt=AdaptRules(force_from=50)))
        sim.client.on(URL, answers_after(0.2))
        async with sim.dispatcher(settings=rules) as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            for _ in range(100):
                await gp.publish("a.b", b"x")
                await asyncio.sleep(1)
            sim.client.on(URL, HANGS)
            for _ in range(50):
                await gp.publish("a.b", b"x")
            await asyncio.sleep(10)
            before = gp.limits.endpoint(endpoint.number)
            assert before is not None
            assert before.state is BreakerState.OPEN
        count = sim.client.count
        async with sim.dispatcher(settings=rules) as gp:
            await asyncio.sleep(5)
            assert sim.client.count == count
            after = gp.limits.endpoint(endpoint.number)
            assert after is not None
            assert (after.state, after.open_until, after.read_timeout) == (before.state, before.open_until, 3.0)
            assert after.learned.samples == before.learned.samples
            sim.client.on(URL, answers_after(0.2))
            await asyncio.sleep(600)
            assert {info.state for info in await sim.deliveries(endpoint)} == {"delivered"}

    simulate(main)


def test_what_is_published_before_the_saved_breakers_are_read_waits_for_them() -> None:
    """A start under traffic: the first row must not find its endpoint unknown, and then replace what was saved of it."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, HANGS)
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            for _ in range(20):
                await gp.publish("a.b", b"x")
            await asyncio.sleep(12)
            before = gp.limits.endpoint(endpoint.number)
            assert before is not None
            assert before.state is BreakerState.OPEN
        count = sim.client.count
        line = Line(sim.store)
        line.cut_calls.add("load_states")
        async with sim.dispatcher(store=line.as_store) as gp:
            for _ in range(10):
                await gp.publish("a.b", b"x")
                await asyncio.sleep(0.2)
            line.cut_calls.clear()
            await asyncio.sleep(10)
            after = gp.limits.endpoint(endpoint.number)
            assert after is not None
            assert (after.state, after.open_until) == (before.state, before.open_until)
            assert sim.client.count == count
            await asyncio.sleep(before.open_until / 1e6 - sim.clock.wall_us() / 1e6 + 14)
            assert sim.client.count == count + 1, "the probe, alone"
            sim.client.on(URL, responds(200))
            await asyncio.sleep(600)
            assert {info.state for info in await sim.deliveries(endpoint)} == {"delivered"}

    simulate(main)


def test_a_dry_run_holds_nobody_and_counts() -> None:
    """To be watched before it is trusted."""

    async def main(sim: Simulation) -> None:
        rules = LimitSettings(breaker=BreakerRules(mode=BreakerMode.DRY_RUN), adapt=AdaptRules(mode=AdaptMode.SHADOW))
        sim.client.on(URL, responds(500))
        async with sim.dispatcher(settings=DispatcherSettings(limits=rules)) as gp:
            await gp.endpoints.create(URL, probe=False)
            for _ in range(100):
                await gp.publish("a.b", b"x")
            await asyncio.sleep(3)
            assert sim.client.count == 100
            statistics = gp.limits.statistics()
            assert statistics.would_open >= 1
            assert statistics.would_refuse > 50
            assert "circuit_would_open" in sim.heard.kinds()

    simulate(main)


def test_an_endpoint_that_is_resumed_gets_a_closed_breaker() -> None:
    """Its owner has mended it and waits for what is due."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(500))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            for _ in range(50):
                await gp.publish("a.b", b"x")
            await asyncio.sleep(300)
            assert "circuit_opened" in sim.heard.kinds()
            sim.client.on(URL, responds(200))
            await gp.endpoints.pause(endpoint.id)
            await gp.endpoints.resume(endpoint.id)
            before = sim.client.count
            await asyncio.sleep(30)
            assert sim.client.count > before + 10
            known = gp.limits.endpoint(endpoint.number)
            assert known is not None
            assert known.state is BreakerState.CLOSED

    simulate(main)


def test_a_busy_healthy_endpoint_gets_more_in_flight() -> None:
    """20 a second of 1 s each need twenty at once; a fixed cap of six would let the backlog grow without end."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, answers_after(1.0))
        async with sim.dispatcher() as gp:
            await gp.endpoints.create(URL, probe=False)
            mine = "https://mine.receivers.net/"
            sim.client.on(mine, answers_after(1.0))
            await gp.endpoints.create(mine, concurrency=3, probe=False)
            for _ in range(1_200):
                await gp.publish("a.b", b"x")
                await asyncio.sleep(0.05)
            assert sim.client.most_in_flight[URL] >= 20
            assert sim.client.most_in_flight[mine] == 3

    simulate(main, policy=ClientPolicy(max_per_host=64))
