"""Fault cases of class breaker: what a sick endpoint may cost, and what becomes of one that is stopped and resumed."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest

from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.records import EndpointStatus
from gatepost.dispatch.dispatcher import DispatcherSettings
from gatepost.dispatch.streaks import DISABLE_ATTEMPTS_MIN
from gatepost.testing.fake_client import OK, Answer, answers_after, refused, responds, silent
from tests.simulation.harness import UNGUARDED, Simulation, simulate

URL = "https://receiver.receivers.net/hook"
HANGS = answers_after(math.inf)
HOUR = 3_600.0


def test_breaker_01_a_backlog_meets_a_hanging_endpoint_one_probe_at_a_time() -> None:
    """Half-open is not open: of two hundred waiting, one is tried per pause, and none of the others is charged."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, HANGS)
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            for _ in range(200):
                await gp.publish("a.b", b"x")
            await asyncio.sleep(25)
            tried = sim.client.count
            assert tried <= 6
            await asyncio.sleep(600)
            assert sim.client.count - tried <= 4, "after about 30, 60, 120 and 240 s"
            assert sum(info.attempts for info in await sim.deliveries(endpoint)) <= 10
            sim.client.on(URL, responds(200))
            await asyncio.sleep(3_600)
            assert {info.state for info in await sim.deliveries(endpoint)} == {"delivered"}

    simulate(main)


@pytest.mark.parametrize(
    "dead", [responds(500, delay=0.002), refused(), silent(3.0)], ids=["says 500", "refuses", "hangs"]
)
def test_breaker_04_a_flapping_endpoint_gets_no_burst_at_each_short_recovery(dead: Answer) -> None:
    """50 ms good, 500 ms dead, a thousand events: one success closes nothing, pauses grow, and for a day failures are rare."""

    async def main(sim: Simulation) -> None:
        attempts: list[tuple[float, bool, int]] = []  # when, whether it will fail, how many are in flight with it

        def law(at: float) -> Answer:
            good = at % 0.55 < 0.05
            attempts.append((at, not good, sim.client.in_flight.get(URL, 0) + 1))
            return responds(200, delay=0.002) if good else dead

        sim.client.follow(URL, law)
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            for _ in range(1_000):
                await gp.publish("a.b", b"x")
            await asyncio.sleep(24 * HOUR)
            assert {info.state for info in await sim.deliveries(endpoint)} <= {"waiting", "delivered"}
        # Of a thousand events; few attempts must prove their share of failures, which costs some more of them (104 where it hangs).
        assert sum(failed for _, failed, _ in attempts) <= 110
        spells = spells_of(attempts)
        assert sum(len(spell) > 3 for spell in spells) >= 2, "it recovered, and was believed"
        for spell in spells[1:]:
            flying = [together for _, _, together in spell]
            assert flying[:4] == [1] * min(4, len(spell)), "three probes and the first of the ramp"
            assert max(flying[:6], default=0) <= 2
            assert max(flying[:10], default=0) <= 4
            assert sum(failed for _, failed, _ in spell) <= 8, "five in a row, and those in flight with them"
        pauses = [later[0][0] - earlier[-1][0] for earlier, later in pairwise(spells) if len(earlier) <= 3]
        growing = pauses[:5]
        assert growing == sorted(growing)
        assert growing[-1] > 8 * growing[0]

    simulate(main)


def spells_of(attempts: Sequence[tuple[float, bool, int]]) -> list[list[tuple[float, bool, int]]]:
    """Attempts, parted where nothing was started for longer than any of them takes."""
    spells = [[attempts[0]]]
    for earlier, later in pairwise(attempts):
        if later[0] - earlier[0] > 20:
            spells.append([])
        spells[-1].append(later)
    return spells


def test_breaker_06_queued_retries_of_a_stopped_endpoint_are_not_sent() -> None:
    """Disabled: they stay, and are sent after a resume. Deleted: they are cancelled. Looked at right before each start."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(500))
        async with sim.dispatcher(settings=DispatcherSettings(limits=UNGUARDED)) as gp:
            endpoint = await gp.endpoints.create(URL, probe=False, schedule=[0, 60, 60])
            for _ in range(100):
                await gp.publish("a.b", b"x")
            await asyncio.sleep(30)
            assert len(sim.client.sent) == 100
            record = await gp.endpoints.get(endpoint.id)
            assert await gp.endpoints.disable(endpoint.id, "by hand", record.generation)
            await asyncio.sleep(HOUR)
            assert len(sim.client.sent) == 100
            assert Counter(info.state for info in await sim.deliveries(endpoint)) == {"waiting": 100}
            sim.client.on(URL, *[OK] * 20, responds(500))
            await gp.endpoints.resume(endpoint.id)
            await asyncio.sleep(2)
            await gp.endpoints.delete(endpoint.id)
            sent = len(sim.client.sent)
            await asyncio.sleep(HOUR)
            assert len(sim.client.sent) == sent
            found = Counter(info.state for info in await sim.deliveries(endpoint))
            assert found["cancelled"] + found["delivered"] == 100
            assert found["delivered"] <= 20

    simulate(main)


def test_breaker_07_slow_failures_of_one_host_do_not_congest_the_others() -> None:
    """A thousand events for a silent host, twenty for each of fifty healthy ones, sixteen slots in all."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, silent(10))
        settings = DispatcherSettings(slots=16)
        async with sim.dispatcher(settings=settings) as gp:
            await gp.endpoints.create(URL, event_types=["hang"], probe=False)
            urls = [f"https://e{number}.receivers.net/" for number in range(50)]
            for number, url in enumerate(urls):
                sim.client.on(url, responds(200, delay=0.02))
                await gp.endpoints.create(url, event_types=[f"t{number}"], probe=False)
            await asyncio.gather(*(gp.publish("hang", b"%d" % number) for number in range(1_000)))
            await asyncio.sleep(1)
            for _ in range(20):
                for number in range(50):
                    await gp.publish(f"t{number}", b"x")
                    await asyncio.sleep(0.004)
            await asyncio.sleep(2)
            waited = sorted(one.waited for one in sim.heard.decisions if one.event_type != "hang")
            assert len(waited) == 1_000
            assert waited[989] < 0.5
            assert sim.client.most_in_flight[URL] <= ClientPolicy().per_endpoint_concurrency

    simulate(main)


def test_breaker_08_a_resumed_endpoint_is_not_disabled_again_by_its_first_failure() -> None:
    """What it did before it was mended is over: the count begins anew."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(500))
        async with sim.dispatcher(settings=DispatcherSettings(disable_after=HOUR)) as gp:
            endpoint = await gp.endpoints.create(URL, probe=False, schedule=[0])

            async def fail(times: int) -> EndpointStatus:
                for _ in range(times):
                    await gp.publish("a.b", b"x")
                    await asyncio.sleep(HOUR / 5)
                return (await gp.endpoints.get(endpoint.id)).status

            assert await fail(DISABLE_ATTEMPTS_MIN - 1) is EndpointStatus.ACTIVE
            assert await fail(2) is EndpointStatus.DISABLED
            await gp.endpoints.resume(endpoint.id)
            assert await fail(DISABLE_ATTEMPTS_MIN - 2) is EndpointStatus.ACTIVE

    simulate(main)


def test_breaker_09_a_burst_to_a_dead_endpoint_stops_after_ten_failures() -> None:
    """What is undecided does not count as well: those in flight and ten failures, the rest is not sent."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(500))
        async with sim.dispatcher() as gp:
            await gp.endpoints.create(URL, probe=False)
            for _ in range(500):
                await gp.publish("a.b", b"x")
            await asyncio.sleep(20)
            assert sim.client.count <= 10 + 6

    simulate(main)


def test_breaker_11_what_comes_during_a_pause_is_delivered_after_it() -> None:
    """All ten, in their order, slowly at first; a pause between two attempts uses up none."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            sim.client.on(URL, responds(500), OK)
            await gp.publish("a.b", b"retried")
            await asyncio.sleep(1)
            await gp.endpoints.pause(endpoint.id)
            for number in range(10):
                await gp.publish("a.b", b"%d" % number, ordering_key="k")
            await asyncio.sleep(5 * HOUR)
            assert len(sim.client.sent) == 1
            await gp.endpoints.resume(endpoint.id)
            await asyncio.sleep(0.04)
            assert len(sim.client.sent) == 2, "one at a time at first"
            await asyncio.sleep(30)
            assert [sent.body for sent in sim.client.sent if sent.body != b"retried"] == [b"%d" % n for n in range(10)]
            infos = await sim.deliveries(endpoint)
            assert {info.state for info in infos} == {"delivered"}
            assert sorted(info.attempts for info in infos) == [1] * 10 + [2]

    simulate(main)


def test_breaker_11_a_pause_longer_than_the_window_ends_in_dead_letters_with_their_reason() -> None:
    """Expiry by age is said, and what expired can be replayed."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False, schedule=[0], window=HOUR)
            await gp.endpoints.pause(endpoint.id)
            await gp.publish("a.b", b"x")
            await asyncio.sleep(2 * HOUR)
            [letter] = await sim.dead(endpoint)
            assert (letter.why, letter.attempts) == ("window_over", 0)
            await gp.endpoints.resume(endpoint.id)
            assert sim.client.sent == []

    simulate(main)
