"""What is shown of an endpoint's learned limits: live by its owner, and as it was stored by everybody else."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gatepost.admission.breaker import BreakerState
from gatepost.admission.evidence import Sign
from gatepost.admission.outcome_hours import Ended
from gatepost.admission.phase_times import Budgeted
from gatepost.service.api.learned_view import learned_view
from gatepost.service.cli.learned import learned_lines
from gatepost.testing.fake_client import responds
from tests.simulation.harness import Simulation, simulate

URL = "https://receiver.receivers.net/hook"


def test_a_process_shows_what_it_learned_and_what_another_one_stored() -> None:
    """Whoever is asked answers: only the owner of a part has its endpoints in memory."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(200, delay=0.4))
        async with sim.dispatcher() as owner:
            endpoint = await owner.endpoints.create(URL, probe=False)
            assert await owner.learned.of(endpoint.number) is None
            assert await owner.learned.of(endpoint.number + 1) is None
            for _ in range(220):
                await owner.publish("a.b", b"x")
                await asyncio.sleep(1)
            live = await owner.learned.of(endpoint.number)
            assert live is not None
            view = learned_view(live)
            assert (view["live"], view["state"], view["samples"], view["in_force"]) == (True, "learning", 220, True)
            assert (view["read_timeout"], view["read_timeout_in_force"], view["in_flight"]) == (3.0, 3.0, 0)
            assert view["breaker"] == {
                "state": "closed",
                "cause": None,
                "level": 0,
                "open_until": None,
                "recovered_at": None,
            }
            assert learned_lines(view)[1].startswith("read timeout now: 3 s, learned since ")
        async with sim.dispatcher(run=False) as other:
            stored = await other.learned.of(endpoint.number)
            assert stored is not None
            kept = learned_view(stored)
            whole_seconds = view["learned_at"][:19] + ".000Z"  # what is stored knows no fractions
            assert kept == {**view, "live": False, "in_flight": None, "learned_at": whole_seconds}
            assert learned_lines(kept)[-1].startswith("as its owner stored it")
            await sim.store.save_states({endpoint.number: b'{"limits":"of another version"}'})
            assert await other.learned.of(endpoint.number) is None
            await sim.store.save_states({endpoint.number: b'{"limits":["of another version"]}'})
            assert await other.learned.of(endpoint.number) is None

    simulate(main)


def test_an_open_breaker_is_shown_with_its_cause_and_its_end() -> None:
    """At 3 a.m.: what holds this endpoint, why, and until when."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(500))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            for _ in range(20):
                await gp.publish("a.b", b"x")
            await asyncio.sleep(2)
            known = await gp.learned.of(endpoint.number)
            assert known is not None
            assert known.statistics.state is BreakerState.OPEN
            view = learned_view(known)
            assert (view["breaker"]["cause"], view["cap"]) == ("failures", 0)
            lines = learned_lines(view)
            assert lines[0].startswith("learned: cold, 0 samples: ")
            assert lines[2] == f"breaker: open for failures until {view['breaker']['open_until']}"
            sim.client.on(URL, responds(200))
            await asyncio.sleep(600)
            after = await gp.learned.of(endpoint.number)
            assert after is not None
            assert after.statistics.state is BreakerState.CLOSED
            assert after.statistics.recovered_at > 0
            assert "breaker: closed, recovered at " in "\n".join(learned_lines(learned_view(after)))
            alarmed = replace(after, statistics=replace(after.statistics, alarm=Sign.TIMEOUT, level=2))
            assert learned_lines(learned_view(alarmed))[-1].endswith("end in timeout")
            assert "(pause number 3 in a row)" in learned_lines(learned_view(alarmed))[2]

    simulate(main)
    assert learned_lines(None) == ["learned: nothing yet"]


def test_the_story_of_an_endpoint_is_told_by_whoever_is_asked() -> None:
    """Its page shows how attempts ended by the hour and what its breaker did, also when another process owns the endpoint."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, *[responds(500)] * 7, responds(200))
        async with sim.dispatcher() as owner:
            endpoint = await owner.endpoints.create(URL, probe=False)
            for _ in range(30):
                await owner.publish("a.b", b"x")
            await asyncio.sleep(900)
            live = (await owner.looks.of([endpoint.number]))[endpoint.number]
            assert live.limits is not None
            states = [turn.state for turn in live.turns]
            assert states[0] == "open"
            assert states[-2:] == ["ramping", "closed"]
            assert live.turns[0].cause == "failures"
            assert live.turns[0].until > live.turns[0].at
            counts = [
                sum(column)
                for column in zip(*[hour.counts for hour in live.hours.hours(owner.store_time())], strict=True)
            ]
            assert counts[Ended.DELIVERED] == 30
            assert counts[Ended.FAILED] == 7
            assert live.times.count(Budgeted.ANSWER) == 37
        async with sim.dispatcher(run=False) as other:
            stored = (await other.looks.of([endpoint.number, 5]))[endpoint.number]
            assert stored.limits is not None
            assert not stored.limits.live
            assert stored.turns == live.turns
            assert stored.hours.hours(other.store_time()) == live.hours.hours(other.store_time())
            assert (await other.looks.of([5]))[5].limits is None
            odd = b'{"policy":{"h":"##","b":[["of another version"],7]}}'
            await sim.store.save_states({endpoint.number: odd})
            assert not (await other.looks.of([endpoint.number]))[endpoint.number].turns

    simulate(main)
