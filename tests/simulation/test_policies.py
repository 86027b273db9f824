"""The policy of a fleet on virtual time: in force within two seconds everywhere, explained, checked, and taken back."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from gatepost.admission.breaker import BreakerState, TripCause
from gatepost.admission.rollout import cohort_of
from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.policy_layers import LayerName, LayerValue
from gatepost.dispatch.dispatcher import DispatcherSettings
from gatepost.errors import ConfigurationError, Conflict, NotFound
from gatepost.store.memory import MemoryStore
from gatepost.store.port import PolicyVersion
from gatepost.testing.fake_client import responds, silent
from tests.simulation.fleet import Fleet
from tests.simulation.harness import UNGUARDED, Simulation

URL: Final = "https://a.receivers.net/"
FLEET: Final = LayerName.FLEET
BY: Final = "alice"
WHY: Final = "a test"


def limit(number: float | bool, *, floor: float | None = None, ceiling: float | None = None) -> LayerValue:
    """What a layer says."""
    return LayerValue(number, floor, ceiling)


def test_a_change_is_in_force_in_every_process_within_two_seconds() -> None:
    """What one process stores the other one goes by, without a restart, and says who set it and what it beat."""
    fleet = Fleet()

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a", "b") as (first, second):
            (endpoint,) = await fleet.endpoints(first.gp, 1)
            change = await first.gp.policies.set(FLEET, {"read_timeout": limit(8.0)}, by=BY, why=WHY)
            assert change.version == 1
            assert first.gp.policies.of_process().policy.read_timeout == 8.0
            await asyncio.sleep(2)
            row = second.gp.policies.explain(endpoint.id).effective.of("read_timeout")
            assert (row.value, row.layer, row.by, row.why) == (8.0, "fleet", BY, WHY)
            assert [(one.layer, one.value) for one in row.beat] == [("built_in", 10.0)]
            assert (row.floor, row.ceiling) == (3.0, 8.0)
            await second.gp.policies.roll_back(None, by="bob", why="too tight")
            await asyncio.sleep(2)
            assert first.gp.policies.of_process().policy.read_timeout == 10.0
            history = [(one.version, one.actor, one.action, one.why) for one in await first.gp.policies.history()]
            assert history == [(2, "bob", "roll back to 0", "too tight"), (1, BY, "set fleet read_timeout=8.0", WHY)]

    fleet.run(main)


def test_a_process_that_starts_later_starts_with_what_is_in_force() -> None:
    """The configuration of a new process may be several deploys behind: the fleet's word counts from its first attempt."""
    simulation = Simulation()

    async def main(simulation: Simulation) -> None:
        async with simulation.dispatcher() as gp:
            await gp.policies.set(FLEET, {"write_timeout": limit(2.0), "keepalive_expiry": limit(4.0)}, by=BY, why=WHY)
        async with simulation.dispatcher() as gp:
            assert gp.policies.of_process().policy.write_timeout == 2.0
            assert gp.client.policy.keepalive_expiry == 4.0

    simulation.run(main)


def test_a_cohort_and_a_canary_have_their_own_values() -> None:
    """A cohort is a share of the endpoints, a canary one process with all it owns; the endpoint's own override beats both."""
    fleet = Fleet()

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a-1", "b-1") as (first, second):
            endpoints = await fleet.endpoints(first.gp, 40)
            policies = first.gp.policies
            await policies.set(LayerName.COHORT, {"read_timeout": limit(7.0)}, by=BY, why=WHY, share=0.5)
            await policies.set(LayerName.CANARY, {"write_timeout": limit(3.0)}, by=BY, why=WHY, process="b-7")
            await second.gp.endpoints.update(endpoints[0].id, limits={"read_timeout": 9.0})
            await asyncio.sleep(2)
            for endpoint in endpoints[1:]:
                expected = 7.0 if cohort_of(endpoint.number) < 0.5 else 10.0
                assert first.gp.policies.explain(endpoint.id).effective.policy.read_timeout == expected
            assert {cohort_of(endpoint.number) < 0.5 for endpoint in endpoints} == {True, False}
            assert first.gp.policies.explain(endpoints[0].id).effective.of("read_timeout").layer == "endpoint"
            assert first.gp.policies.of_process().policy.write_timeout == 5.0
            assert second.gp.policies.of_process().policy.write_timeout == 3.0

    fleet.run(main)


def test_a_lower_cap_of_endpoints_is_felt_at_once() -> None:
    """The scheduler is told: no restart, and no endpoint's record is touched."""
    simulation = Simulation(policy=ClientPolicy(max_per_host=50))

    async def main(simulation: Simulation) -> None:
        async with simulation.dispatcher(settings=DispatcherSettings(limits=UNGUARDED)) as gp:
            await gp.endpoints.create(URL)
            await gp.policies.set(FLEET, {"per_endpoint_concurrency": limit(2)}, by=BY, why=WHY)
            for _ in range(20):
                await gp.publish("t", {})
            await asyncio.sleep(5)
            assert simulation.client.count == 20
            assert simulation.client.most_in_flight[URL] == 2
            await gp.policies.set(FLEET, {"max_per_host": limit(1)}, by=BY, why=WHY)
            simulation.client.most_in_flight.clear()
            for _ in range(5):
                await gp.publish("t", {})
            await asyncio.sleep(5)
            assert simulation.client.most_in_flight[URL] == 1
            assert gp.client.pool.leases.per_host_max == 1

    simulation.run(main)


def test_what_a_layer_cannot_say_is_refused_and_says_where_it_belongs() -> None:
    """A wrong limit for a whole fleet must not be found out by its deliveries."""
    simulation = Simulation()

    async def main(simulation: Simulation) -> None:
        async with simulation.dispatcher() as gp:
            policies = gp.policies

            async def refused(match: str, layer: LayerName = FLEET, /, why: str = WHY, **values: LayerValue) -> None:
                with pytest.raises(ConfigurationError, match=match):
                    await policies.set(layer, values, by=BY, why=why)

            await refused("belongs to each process", max_connections=limit(10))
            await refused("shapes connections that endpoints share", LayerName.COHORT, max_per_host=limit(4))
            await refused("is no limit: write one of connect_timeout", read_time=limit(4))
            await refused("there is no 'never'", read_timeout=limit(0))
            await refused("write a number", read_timeout=limit(True))
            await refused("is not learned", connect_timeout=limit(1.0, ceiling=2.0))
            await refused("floor 5 is above ceiling 4", read_timeout=limit(4.0, floor=5.0, ceiling=4.0))
            await refused("say why", why=" ", read_timeout=limit(4.0))
            await refused("write which share", LayerName.COHORT, read_timeout=limit(4.0))
            await refused(r"does not fit the delivery window.*connect 80000 \+ write", connect_timeout=limit(80_000.0))
            assert await simulation.store.policy() is None
            with pytest.raises(Conflict, match="nothing to take back"):
                await policies.roll_back(None, by=BY, why=WHY)
            await policies.try_in_shadow({}, by=BY, why=WHY)
            with pytest.raises(Conflict, match="never others than now"):
                await policies.roll_back(None, by=BY, why=WHY)
            change = await policies.set(FLEET, {"read_timeout": limit(20.0)}, by=BY, why=WHY)
            assert "stay at or below it" in change.said[0]
            change = await policies.set(FLEET, {"dns_timeout": limit(9.0)}, by=BY, why=WHY)
            assert change.said == ("dns_timeout=9 is cut to connect_timeout=3, which covers it",)
            assert policies.of_process().policy.dns_timeout == 3.0
            with pytest.raises(NotFound, match="version 7"):
                await policies.roll_back(7, by=BY, why=WHY)
            with pytest.raises(ConfigurationError, match="says nothing of write_timeout"):
                await policies.clear(FLEET, ["write_timeout"], by=BY, why=WHY)

    simulation.run(main)


def test_a_budget_that_outlasts_a_part_lease_is_refused_where_parts_change_hands() -> None:
    """With the sum in the message: ordered lanes would refuse every event from then on. Whoever means it forces it."""
    simulation = Simulation(store=MemoryStore(parts=4))

    async def main(simulation: Simulation) -> None:
        async with simulation.dispatcher() as gp:
            with pytest.raises(
                ConfigurationError, match=r"connect 3 \+ write 5 \+ read_timeout 25 = 33 s.*part lease of 30"
            ):
                await gp.policies.set(FLEET, {"read_timeout": limit(25.0)}, by=BY, why=WHY)
            await gp.policies.set(FLEET, {"read_timeout": limit(25.0)}, by=BY, why=WHY, force=True)
            assert any("part lease" in doubt for doubt in gp.policies.doubts())

    simulation.run(main)


def test_an_override_that_does_not_go_with_a_new_value_is_found_before() -> None:
    """The endpoint is named: its override and the new limit would be impossible together."""
    simulation = Simulation()

    async def main(simulation: Simulation) -> None:
        async with simulation.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, limits={"tls_timeout": 2.5})
            with pytest.raises(ConfigurationError, match=f"{endpoint.id}: tls_timeout=2.5 is longer"):
                await gp.policies.set(FLEET, {"connect_timeout": limit(2.0)}, by=BY, why=WHY)

    simulation.run(main)


def test_a_tier_gives_its_profile_and_its_bounds_to_learning() -> None:
    """Seconds for a stranger, tens of milliseconds for a neighbour: and no learning beyond either."""
    simulation = Simulation()

    async def main(simulation: Simulation) -> None:
        async with simulation.dispatcher() as gp:
            near = await gp.endpoints.create(URL, tier="same_dc")
            effective = gp.policies.explain(near.id).effective
            assert (effective.policy.connect_timeout, effective.policy.read_timeout) == (0.05, 1.0)
            assert effective.learning == (0.05, 5.0)
            assert effective.of("connect_timeout").layer == "tier same_dc"
            await gp.policies.set(FLEET, {"read_timeout": LayerValue(2.0, 0.5, 4.0)}, by=BY, why=WHY)
            assert gp.policies.explain(near.id).effective.learning == (0.5, 4.0)
            with pytest.raises(ConfigurationError, match="tier='next_door': write one of same_dc"):
                await gp.endpoints.create(URL, tier="next_door")

    simulation.run(main)


def test_the_profile_of_a_tier_is_changed_while_everything_runs() -> None:
    """A layer as any other: in force elsewhere within two seconds, beaten by the fleet, said who and why, and taken back."""
    fleet = Fleet()

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a", "b") as (first, second):
            near = await first.gp.endpoints.create(URL, tier="same_dc")
            far = await first.gp.endpoints.create(URL, tier="third_party")
            policies, others = first.gp.policies, second.gp.policies
            values = {"read_timeout": limit(6.0), "connect_timeout": limit(0.1)}
            await policies.set(LayerName.TIER, values, by=BY, why=WHY, tier="same_dc")
            await asyncio.sleep(2)
            effective = others.explain(near.id).effective
            assert (effective.policy.connect_timeout, effective.policy.read_timeout) == (0.1, 6.0)
            assert effective.learning == (0.05, 6.0), "the profile's own bounds, with room for the value"
            row = effective.of("connect_timeout")
            assert (row.layer, row.by, row.why) == ("tier same_dc", BY, WHY)
            assert effective.of("write_timeout").value == 0.1, "what nobody changed is the profile's"
            assert others.explain(far.id).effective.policy.connect_timeout == 3.1
            await others.set(FLEET, {"connect_timeout": limit(1.0)}, by=BY, why=WHY)
            assert others.explain(near.id).effective.policy.connect_timeout == 1.0
            await others.clear(LayerName.TIER, ["read_timeout"], by=BY, why=WHY, tier="same_dc")
            await asyncio.sleep(2)
            assert policies.explain(near.id).effective.learning == (0.05, 5.0)
            await policies.roll_back(1, by=BY, why="as it was first")
            assert policies.explain(near.id).effective.policy.read_timeout == 6.0
            await policies.clear(LayerName.TIER, None, by=BY, why=WHY, tier="same_dc")
            assert policies.book.tiers == {}
            actions = [one.action for one in await policies.history()]
            assert actions[-1] == "set tier same_dc read_timeout=6.0 connect_timeout=0.1"
            assert actions[0] == "clear tier same_dc all"
            for tier in (None, "next_door"):
                with pytest.raises(ConfigurationError, match="write one of same_dc"):
                    await policies.set(LayerName.TIER, values, by=BY, why=WHY, tier=tier)
            with pytest.raises(ConfigurationError, match="a tier is a part of the endpoints"):
                await policies.set(LayerName.TIER, {"dns_ttl": limit(1.0)}, by=BY, why=WHY, tier="same_dc")
            with pytest.raises(ConfigurationError, match="or no tier"):
                await policies.set(FLEET, values, by=BY, why=WHY, tier="same_dc")

    fleet.run(main)


def test_breakers_are_set_tried_and_switched_off_while_everything_runs() -> None:
    """Two timeouts are enough for one tier; a shadow says what one more would have done; and off lets go what a breaker holds."""
    simulation = Simulation()

    async def main(simulation: Simulation) -> None:
        async with simulation.dispatcher() as gp:
            policies = gp.policies
            dead = await gp.endpoints.create(URL, tier="third_party")
            simulation.client.on(URL, silent(1.0))
            await policies.set(
                LayerName.TIER,
                {"breaker.consecutive": limit(2), "breaker.open_first": limit(1_200.0)},
                by=BY,
                why=WHY,
                tier="third_party",
            )
            await policies.try_in_shadow({"breaker.consecutive": limit(1)}, by=BY, why=WHY)
            for _ in range(2):
                await gp.publish("t", {})
            await asyncio.sleep(60)
            known = policies.explain(dead.id)
            assert known.learned is not None
            assert (known.learned.state, known.learned.cause) == (BreakerState.OPEN, TripCause.TIMEOUTS)
            rows = {row.name: row for row in known.breaker}
            assert (rows["breaker.consecutive"].value, rows["breaker.consecutive"].layer) == (2, "tier third_party")
            assert [one.value for one in rows["breaker.consecutive"].beat] == [5]
            assert rows["breaker.probes"].layer == "built_in"
            assert gp.policy_trips[("https://a.receivers.net:443", "breaker")] == 2
            sent = simulation.client.count
            await asyncio.sleep(300)
            assert simulation.client.count == sent, "held"
            simulation.client.on(URL, responds(200))
            await policies.set(FLEET, {"breaker.mode": LayerValue("off")}, by=BY, why="let them go")
            await asyncio.sleep(30)
            assert (await simulation.store.totals()).waiting == 0
            assert not gp.limits.breakers(10).endpoint_states
            for name, value, match in (
                ("breaker.mode", "of", "write one of on, off, dry_run|write one of off, dry_run, on"),
                ("breaker.consecutive", 2.5, "whole number"),
                ("breaker.failure_share", 50.0, "a share up to 1"),
                ("breaker.probes", 0, "more than 0"),
                ("breaker.slow_window", 99, "slow_window at most"),
                ("breaker.colour", 1, "no setting of a breaker"),
                ("breaker.open_max", 10.0, "0 < open_first <= open_max"),
            ):
                with pytest.raises(ConfigurationError, match=match):
                    await policies.set(FLEET, {name: LayerValue(value)}, by=BY, why=WHY)
            with pytest.raises(ConfigurationError, match="not learned"):
                await policies.set(FLEET, {"breaker.probes": limit(2, floor=1.0)}, by=BY, why=WHY)
            with pytest.raises(ConfigurationError, match="as a number"):
                await policies.set(FLEET, {"read_timeout": LayerValue("8")}, by=BY, why=WHY)
            await policies.roll_back(1, by=BY, why=WHY)
            assert policies.explain(dead.id).breaker[0].value == "on"

    simulation.run(main)


def test_a_version_that_cannot_be_in_force_leaves_the_last_one() -> None:
    """Written by a newer version, or against another configuration: said, and deliveries go on."""
    simulation = Simulation()

    async def main(simulation: Simulation) -> None:
        async with simulation.dispatcher() as gp:
            await gp.policies.set(FLEET, {"read_timeout": limit(8.0)}, by=BY, why=WHY)
            strange = '{"fleet":{"connect_timeout":{"value":-1}}}'
            await simulation.store.put_policy(PolicyVersion(2, 0, BY, "set", WHY, strange))
            await asyncio.sleep(2)
            assert gp.policies.version == 1
            assert gp.policies.of_process().policy.read_timeout == 8.0
            assert "policy_refused" in simulation.heard.kinds()

    simulation.run(main)


def test_two_changes_at_once_are_both_kept() -> None:
    """The second is made again on the version of the first."""
    simulation = Simulation()

    async def main(simulation: Simulation) -> None:
        async with simulation.dispatcher() as gp:
            await asyncio.gather(
                gp.policies.set(FLEET, {"read_timeout": limit(8.0)}, by=BY, why=WHY),
                gp.policies.set(FLEET, {"write_timeout": limit(4.0)}, by=BY, why=WHY),
            )
            policy = gp.policies.of_process().policy
            assert (policy.read_timeout, policy.write_timeout) == (8.0, 4.0)
            await gp.policies.roll_back(None, by=BY, why=WHY)
            await gp.policies.try_in_shadow({"read_timeout": limit(5.0)}, by=BY, why=WHY)
            await gp.policies.roll_back(None, by=BY, why="the one before that, whatever is in shadow")
            assert gp.policies.of_process().policy.write_timeout == 4.0
            with pytest.raises(ConfigurationError, match="write what to set"):
                await gp.policies.set(FLEET, {}, by=BY, why=WHY)
            with pytest.raises(NotFound):
                gp.policies.explain("ep_nonsense")
            with pytest.raises(Conflict, match="no rollout to abort"):
                await gp.policies.abort_rollout(by=BY, why=WHY)
            with pytest.raises(Conflict, match="no rollout has changed"):
                await gp.policies.roll_back_endpoint("ep_1", by=BY, why=WHY)
            with pytest.raises(Conflict, match="no rollout to advance"):
                await gp.policies.advance_rollout(["a"], by=BY, why=WHY)

    simulation.run(main)
