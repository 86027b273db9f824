"""A change of the policy on its way out, on virtual time: what a shadow finds, how a rollout goes on, ends, and is taken back."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from gatepost.admission.compare import Ending
from gatepost.admission.rollout import RolloutPlan, Stage, cohort_of
from gatepost.admission.shadow import JUDGED
from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.policy_layers import LayerName, LayerValue, settable
from gatepost.delivery.records import Endpoint
from gatepost.dispatch.dispatcher import Dispatcher, DispatcherSettings
from gatepost.errors import ConfigurationError, Conflict
from gatepost.testing.fake_client import responds, silent
from tests.simulation.fleet import Fleet
from tests.simulation.harness import UNGUARDED, Simulation

BY: Final = "alice"
WHY: Final = "a test"
TIGHT: Final = {"read_timeout": LayerValue(4.0)}
QUICK: Final = RolloutPlan(1_800.0, 3_600.0, 3_600.0, (0.2, 0.6), None)


async def publish_for(gp: Dispatcher, seconds: float, every: float) -> None:
    """An event for everybody now and then."""
    for _ in range(round(seconds / every)):
        await gp.publish("t", {})
        await asyncio.sleep(every)


def test_a_shadow_ends_nothing_and_counts_what_would_be_lost() -> None:
    """A slow receiver keeps getting its deliveries; the report names it, its host and an override that would spare it."""
    simulation = Simulation()

    async def main(simulation: Simulation) -> None:
        async with simulation.dispatcher(settings=DispatcherSettings(limits=UNGUARDED)) as gp:
            slow = await gp.endpoints.create("https://slow.receivers.net/")
            fast = await gp.endpoints.create("https://fast.receivers.net/")
            spared = await gp.endpoints.create("https://spared.receivers.net/", limits={"read_timeout": 9.0})
            for endpoint in (slow, spared):
                simulation.client.on(endpoint.url, responds(200, delay=5.0))
            await gp.policies.try_in_shadow(TIGHT, by=BY, why=WHY)
            await publish_for(gp, 300, 10)
            await asyncio.sleep(20)
            assert (await simulation.store.totals()).waiting == 0
            assert gp.policies.explain(slow.id).effective.policy.read_timeout == 10.0
            report = await gp.policy_reports.shadow(gp.policies.book.shadow_number)
            assert (report.judged, report.delivered, report.lost, report.losing, report.unspared) == (90, 90, 30, 1, 1)
            (loss,) = report.endpoints
            assert (loss.endpoint_id, loss.host, loss.lost) == (slow.id, "https://slow.receivers.net:443", 30)
            assert loss.limits["read_timeout"] == 30
            assert loss.limits["breaker"] == 6  # every five in a row
            assert loss.proposed["read_timeout"] == pytest.approx(15.0, rel=0.25)
            assert gp.policy_trips[("https://slow.receivers.net:443", "read_timeout")] == 30
            assert not [one for one in gp.policy_trips if "fast" in one[0] or "spared" in one[0]]
            applied = {one.endpoint_id: one.proposed for one in report.endpoints}
            assert await gp.policies.override(applied, by=BY, why=WHY) == 1
            assert (await gp.policy_reports.shadow(report.number)).unspared == 0
            await gp.policies.set(LayerName.FLEET, TIGHT, by=BY, why=WHY)
            assert gp.policies.explain(slow.id).effective.policy.read_timeout == loss.proposed["read_timeout"]
            assert gp.policies.explain(fast.id).effective.policy.read_timeout == 4.0
            await gp.policies.try_in_shadow({}, by=BY, why=WHY)
            assert not gp.policies.book.shadow

    simulation.run(main)


def test_a_loss_by_the_whole_attempts_limit_holds_a_rollout_in_shadow_too() -> None:
    """It bounds no phase of its own; such losses passed for spared ones, and the rollout went on to cut them off."""
    simulation = Simulation()
    total = {"total_timeout": LayerValue(4.0)}

    async def main(simulation: Simulation) -> None:
        async with simulation.dispatcher(settings=DispatcherSettings(limits=UNGUARDED)) as gp:
            slow = await gp.endpoints.create("https://slow.receivers.net/")
            simulation.client.on(slow.url, responds(200, delay=5.0))
            await gp.policies.begin_rollout(total, QUICK, by=BY, why=WHY)
            await publish_for(gp, 3_000, 60)
            report = await gp.policy_reports.shadow(gp.policies.book.shadow_number)
            assert (report.lost > 40, report.losing, report.unspared) == (True, 1, 1)
            rollout = gp.policies.book.rollout
            assert rollout is not None
            assert rollout.stage is Stage.SHADOW
            assert "would lose successful deliveries" in gp.rollout.told
            (loss,) = report.endpoints
            assert loss.proposed["total_timeout"] >= 14.0
            await gp.policies.override({slow.id: loss.proposed}, by=BY, why=WHY)
            assert (await gp.policy_reports.shadow(report.number)).unspared == 0

    simulation.run(main)


def test_one_endpoint_is_taken_back_from_a_rollout_that_also_changes_what_all_share() -> None:
    """Somebody on call takes back what one endpoint can have for itself, and is told where that is nothing."""
    simulation = Simulation()

    async def main(simulation: Simulation) -> None:
        async with simulation.dispatcher(settings=DispatcherSettings(limits=UNGUARDED)) as gp:
            one = await gp.endpoints.create("https://one.receivers.net/")
            mixed = {**TIGHT, "total_timeout": LayerValue(9.0), "per_endpoint_concurrency": LayerValue(3)}
            await gp.policies.begin_rollout(mixed, QUICK, by=BY, why=WHY)
            pinned = {"read_timeout": 10.0, "total_timeout": 18.0}  # 3 to connect, 5 to write, 10 to read
            assert await gp.policies.roll_back_endpoint(one.id, by="bob", why="slow by nature") == pinned
            assert (await gp.policies.history())[0].actor == "bob"
            await gp.policies.abort_rollout(by=BY, why=WHY)
            await gp.policies.begin_rollout({"breaker.consecutive": LayerValue(2)}, QUICK, by=BY, why=WHY)
            with pytest.raises(Conflict, match="gatepost rollout abort"):
                await gp.policies.roll_back_endpoint(one.id, by="bob", why="slow by nature")

    simulation.run(main)


def test_a_lower_cap_in_shadow_is_a_wait_and_no_loss() -> None:
    """Work over a cap waits in its lane: it is counted apart from deliveries that would fail."""
    simulation = Simulation()

    async def main(simulation: Simulation) -> None:
        async with simulation.dispatcher(settings=DispatcherSettings(limits=UNGUARDED)) as gp:
            await gp.endpoints.create("https://a.receivers.net/")
            simulation.client.on("https://a.receivers.net/", responds(200, delay=2.0))
            await gp.policies.try_in_shadow({"per_endpoint_concurrency": LayerValue(2)}, by=BY, why=WHY)
            for _ in range(6):
                await gp.publish("t", {})
            await asyncio.sleep(10)
            report = await gp.policy_reports.shadow(gp.policies.book.shadow_number)
            assert (report.judged, report.lost) == (6, 0)
            assert gp.policy_trips == {("https://a.receivers.net:443", "per_endpoint_concurrency"): 4}

    simulation.run(main)


def test_a_shadow_judges_every_limit_that_can_be_judged_and_refuses_the_others() -> None:
    """A limit of which no attempt shows anything would be reported as harming nobody, and go on by itself."""
    simulation = Simulation(policy=ClientPolicy(max_per_host=50))

    async def main(simulation: Simulation) -> None:
        async with simulation.dispatcher(settings=DispatcherSettings(limits=UNGUARDED)) as gp:
            policies = gp.policies
            for name in settable():
                value: float | bool = True if name in ("follow_redirects", "redirect_cross_origin") else 2
                if name in JUDGED:
                    continue
                with pytest.raises(ConfigurationError, match=f"{name}: what it would do shows in no attempt"):
                    await policies.try_in_shadow({name: LayerValue(value)}, by=BY, why=WHY)
            await gp.endpoints.create("https://a.receivers.net/1")
            await gp.endpoints.create("https://a.receivers.net/2")
            for number in "12":
                simulation.client.on(f"https://a.receivers.net/{number}", responds(200, delay=2.0))
            await gp.publish("t", {})
            await asyncio.sleep(5)  # the host is known to answer
            await policies.try_in_shadow({"max_per_host": LayerValue(3)}, by=BY, why=WHY)
            for _ in range(2):
                await gp.publish("t", {})
            await asyncio.sleep(10)
            report = await gp.policy_reports.shadow(policies.book.shadow_number)
            assert (report.judged, report.lost) == (4, 0)
            assert gp.policy_trips == {("https://a.receivers.net:443", "max_per_host"): 1}

    simulation.run(main)


async def at_stage(gp: Dispatcher, stage: Stage, share: float, within: float) -> None:
    """Until a rollout is somewhere, in virtual seconds."""
    async with asyncio.timeout(within):
        while True:
            rollout = gp.policies.book.rollout
            if rollout is not None and rollout.stage is stage and rollout.share == share:
                return
            await asyncio.sleep(5)


async def deliver(gp: Dispatcher) -> None:
    """Events until cancelled."""
    while True:
        await gp.publish("t", {})
        await asyncio.sleep(30)


def fleet_settings() -> DispatcherSettings:
    """No breakers: they would hide failures that the comparison is about."""
    return DispatcherSettings(limits=UNGUARDED)


async def two(fleet: Fleet) -> tuple[Dispatcher, Dispatcher, list[Endpoint]]:
    """Two processes with forty endpoints."""
    for name in ("a-1", "b-1"):
        await fleet.add(name, settings=fleet_settings())
    await fleet.balanced()
    first, second = (member.gp for member in fleet.members)
    return first, second, await fleet.endpoints(first, 40)


def test_a_harmless_change_goes_from_shadow_to_all_by_itself() -> None:
    """Shadow, one process, cohorts, all: by the owner of part 0 alone, each stage after its hold with a verdict that names n."""
    fleet = Fleet()

    async def main(fleet: Fleet) -> None:
        first, second, endpoints = await two(fleet)
        traffic = asyncio.ensure_future(deliver(first))
        plan = RolloutPlan(1_800.0, 1_800.0, 1_800.0, (0.5,), None, tolerance=0.05)
        await first.policies.begin_rollout({"write_timeout": LayerValue(4.0)}, plan, by=BY, why=WHY, canary="b-1")
        await at_stage(second, Stage.CANARY, 0.0, 2_500)
        await asyncio.sleep(2)
        assert first.policies.of_process().policy.write_timeout == 5.0
        assert second.policies.of_process().policy.write_timeout == 4.0
        await at_stage(first, Stage.COHORT, 0.5, 2_500)
        await asyncio.sleep(2)
        for gp in (first, second):
            for endpoint in endpoints:
                expected = 4.0 if cohort_of(endpoint.number) < 0.5 else 5.0
                assert gp.policies.explain(endpoint.id).effective.policy.write_timeout == expected
        await at_stage(first, Stage.ALL, 1.0, 2_500)
        await asyncio.sleep(2)
        assert second.policies.of_process().of("write_timeout").layer == "fleet"
        history = [version.action for version in await first.policies.history()]
        assert history == [
            "rollout all",
            "rollout cohort 0.5",
            "rollout canary",
            "rollout start write_timeout=4.0",
        ]
        assert "n = " in (await first.policies.history())[0].why
        traffic.cancel()

    fleet.run(main)


def test_a_harmful_change_is_aborted_by_itself_and_everywhere_within_two_seconds() -> None:
    """Endpoints of the canary begin to fail with it: the old value is back before the hold is over, and the history says why."""
    fleet = Fleet()

    async def main(fleet: Fleet) -> None:
        first, second, endpoints = await two(fleet)
        traffic = asyncio.ensure_future(deliver(first))
        await first.policies.begin_rollout({"write_timeout": LayerValue(4.0)}, QUICK, by=BY, why=WHY, canary="b-1")
        await at_stage(second, Stage.CANARY, 0.0, 2_500)
        for endpoint in endpoints:
            fleet.members[1].client.on(
                endpoint.url, *[answer for _ in range(500) for answer in (silent(1.0), responds(200))]
            )
        await at_stage(first, Stage.ABORTED, 0.0, 3_500)
        await asyncio.sleep(2)
        for gp in (first, second):
            assert gp.policies.of_process().policy.write_timeout == 5.0
        newest = (await first.policies.history())[0]
        assert (newest.actor, newest.action) == ("rollout", "rollout aborted")
        assert "makes deliveries fail" in newest.why
        assert "rollout_aborted" in fleet.heard.kinds()
        traffic.cancel()

    fleet.run(main)


def test_an_operator_advances_aborts_and_takes_back_one_endpoint_or_all() -> None:
    """One command each, in force at once here and within two seconds elsewhere, with who and why kept."""
    fleet = Fleet()

    async def main(fleet: Fleet) -> None:
        first, second, endpoints = await two(fleet)
        policies = first.policies
        await policies.begin_rollout(TIGHT, QUICK, by=BY, why=WHY)
        with pytest.raises(Conflict, match="in its shadow stage"):
            await policies.begin_rollout(TIGHT, QUICK, by=BY, why=WHY)
        for _ in range(4):  # canary, two cohorts, all
            await policies.advance_rollout(["a-1", "b-1"], by=BY, why="seen enough")
        await asyncio.sleep(2)
        assert second.policies.of_process().policy.read_timeout == 4.0
        one, other = endpoints[:2]
        assert await second.policies.roll_back_endpoint(one.id, by="bob", why="eleven consumers") == {
            "read_timeout": 10.0
        }
        await asyncio.sleep(2)
        assert policies.explain(one.id).effective.policy.read_timeout == 10.0
        assert policies.explain(other.id).effective.policy.read_timeout == 4.0
        newest = (await policies.history())[0]
        assert (newest.actor, newest.why) == ("bob", "rollout 1 taken back: eleven consumers")
        await policies.abort_rollout(by="bob", why="all of them")
        await asyncio.sleep(2)
        assert second.policies.explain(other.id).effective.policy.read_timeout == 10.0
        with pytest.raises(Conflict, match="aborted before"):
            await second.policies.abort_rollout(by=BY, why=WHY)

    fleet.run(main)


def test_two_operators_who_say_go_on_at_once_mean_one_step() -> None:
    """The second would push a stage on that nobody has looked at."""
    fleet = Fleet()

    async def main(fleet: Fleet) -> None:
        first, second, _ = await two(fleet)
        await first.policies.begin_rollout(TIGHT, QUICK, by=BY, why=WHY)
        results = await asyncio.gather(
            *(gp.policies.advance_rollout(["a-1", "b-1"], by=BY, why=WHY, step=0) for gp in (first, second)),
            return_exceptions=True,
        )
        refused = [result for result in results if isinstance(result, Conflict)]
        assert len(refused) == 1
        assert "meanwhile" in str(refused[0])
        rollout = first.policies.book.rollout
        assert rollout is not None
        assert rollout.stage is Stage.CANARY

    fleet.run(main)


def test_overrides_of_endpoints_that_are_gone_or_refused_leave_a_history_of_the_others() -> None:
    """An endpoint is deleted while a report is read; the overrides before and after it are in force, so the history says so."""
    simulation = Simulation()

    async def main(simulation: Simulation) -> None:
        async with simulation.dispatcher() as gp:
            kept = [await gp.endpoints.create(f"https://{name}.receivers.net/") for name in "abc"]
            gone = await gp.endpoints.create("https://gone.receivers.net/")
            await gp.endpoints.delete(gone.id)
            one, other, wrong = (endpoint.id for endpoint in kept)
            own = {"read_timeout": 9.0}
            assert await gp.policies.override({one: own, gone.id: own, other: own}, by=BY, why=WHY) == 2
            action = (await gp.policies.history())[0].action
            assert action == f"override 2: {one} read_timeout=9, {other} read_timeout=9"
            with pytest.raises(ConfigurationError):
                await gp.policies.override({one: {"write_timeout": 4.0}, wrong: {"read_timeout": -1.0}}, by=BY, why=WHY)
            assert (await gp.policies.history())[0].action == f"override {one} write_timeout=4"
            with pytest.raises(ConfigurationError, match="say why"):
                await gp.policies.override({other: {"write_timeout": 4.0}}, by=BY, why=" ")
            assert gp.policies.explain(other).effective.of("write_timeout").layer == "built_in"

    simulation.run(main)


def test_a_review_comes_an_hour_after_a_start_and_keeps_only_what_does_not_fit() -> None:
    """A process that is deployed every few days would never come to a weekly one."""
    simulation = Simulation()

    async def main(simulation: Simulation) -> None:
        async with simulation.dispatcher(settings=DispatcherSettings(limits=UNGUARDED)) as gp:
            slow = await gp.endpoints.create("https://slow.receivers.net/")
            simulation.client.on(slow.url, responds(200, delay=6.0))
            await publish_for(gp, 600, 10)
            began = simulation.clock.wall_us()
            await asyncio.sleep(3_700)
            (found,) = await gp.policy_reports.review()
            assert [phase.since < began + 3_600_000_000 for phase in found.review.phases if phase.fit != "fits"] == [
                True
            ]

    simulation.run(main)


def test_what_endpoints_count_goes_on_with_their_next_owner() -> None:
    """A process is stopped in the middle of a stage: the comparison loses nothing."""
    fleet = Fleet()

    async def main(fleet: Fleet) -> None:
        first, _, endpoints = await two(fleet)
        await first.policies.begin_rollout({"write_timeout": LayerValue(4.0)}, QUICK, by=BY, why=WHY)
        await asyncio.sleep(2)
        await publish_for(first, 600, 20)
        await asyncio.sleep(30)
        await fleet.members[1].stop()
        await fleet.balanced()
        rollout = first.policies.book.rollout
        assert rollout is not None
        cases = await first.policy_reports.cases(rollout)
        assert len(cases) == len(endpoints)
        assert {case.since for case in cases} == {Ending(30, 0)}

    fleet.run(main)


def test_a_review_says_which_budgets_do_not_fit_and_since_when() -> None:
    """Weekly by itself and on demand; it suggests, and changes nothing."""
    simulation = Simulation()

    async def main(simulation: Simulation) -> None:
        async with simulation.dispatcher(settings=DispatcherSettings(limits=UNGUARDED)) as gp:
            slow = await gp.endpoints.create("https://slow.receivers.net/")
            simulation.client.on(slow.url, responds(200, delay=6.0))
            await publish_for(gp, 600, 10)
            first = (await gp.policy_reports.review())[0]
            assert first.endpoint_id == slow.id
            (phase,) = first.review.phases
            assert (phase.limit, phase.fit, phase.budget) == ("read_timeout", "tight", 10.0)
            assert phase.p99 == pytest.approx(6.0, rel=0.2)
            assert phase.suggested == pytest.approx(18.0, rel=0.2)
            await gp.rollout.review()
            noted_at = simulation.clock.wall_us()
            await asyncio.sleep(3_600)
            again = (await gp.policy_reports.review())[0].review.phases[0]
            assert again.since == pytest.approx(noted_at, abs=1e6)
            assert gp.policies.explain(slow.id).effective.policy.read_timeout == 10.0
        async with simulation.dispatcher() as gp:
            assert (await gp.policy_reports.review())[0].review.phases[0].since == pytest.approx(noted_at, abs=1e6)

    simulation.run(main)
