"""Endpoints that take nothing for days, what their tenant hears of it, and what waits for them meanwhile. On virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gatepost.delivery.records import Endpoint, EndpointStatus, Tenant, TenantLimits
from gatepost.dispatch.dispatcher import Dispatcher, DispatcherSettings
from gatepost.dispatch.streaks import DISABLE_ATTEMPTS_MIN
from gatepost.errors import ConfigurationError
from gatepost.testing.fake_client import OK, faulty, refused, responds
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from tests.simulation.harness import UNGUARDED, Line, Simulation, gaps, simulate

GOOD = "https://good.receivers.net/hook"
BAD = "https://bad.receivers.net/hook"
OPS = "https://ops.receivers.net/hook"
HOUR = 3_600.0
FIVE_HOURS = DispatcherSettings(disable_after=5 * HOUR, limits=UNGUARDED)
"""Days of the default would only cost time."""


def notices(sim: Simulation) -> list[dict[str, Any]]:
    """What the operational endpoint received."""
    return [json.loads(sent.body) for sent in sim.client.sent if sent.url == OPS]


async def publish_for(gp: Dispatcher, hours: float) -> None:
    """An event every quarter of an hour."""
    for _ in range(round(hours * 4)):
        await gp.publish("a.b", b"x")
        await asyncio.sleep(HOUR / 4)


async def status_of(sim: Simulation, endpoint: Endpoint) -> EndpointStatus:
    """As it is stored."""
    record = await sim.store.endpoint(endpoint.id)
    assert record is not None
    return record.status


def test_an_endpoint_that_failed_for_the_span_is_disabled_and_its_tenant_hears_of_it() -> None:
    """Not before; what waits stays stored, and the event goes to the operational endpoint alone."""

    async def main(sim: Simulation) -> None:
        sim.client.on(BAD, refused())
        async with sim.dispatcher(settings=FIVE_HOURS) as gp:
            bad = await gp.endpoints.create(BAD, probe=False)
            await gp.endpoints.create(GOOD, probe=False)
            await gp.endpoints.create(OPS, event_types=["gatepost.*"], probe=False)
            await publish_for(gp, 4.9)
            assert await status_of(sim, bad) is EndpointStatus.ACTIVE
            await publish_for(gp, 1.5)
            assert await status_of(sim, bad) is EndpointStatus.DISABLED
            record = await gp.endpoints.get(bad.id)
            assert record.status_reason == "failing"
            (notice,) = notices(sim)
            assert notice["type"] == "gatepost.endpoint.disabled"
            assert notice["data"]["endpoint_id"] == bad.id
            assert notice["data"]["reason"] == "failing"
            assert {sent.url for sent in sim.client.sent if sent.body == b"x"} == {BAD, GOOD}
            before = len(sim.sent_to(bad))
            await publish_for(gp, 2)
            assert len(sim.sent_to(bad)) == before, "nothing more is sent"
            assert sum(info.state == "waiting" for info in await sim.deliveries(bad)) > 4

    simulate(main)


def test_one_delivery_ends_a_streak() -> None:
    """Four hours of failure, one success, four hours of failure: somebody is there."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher(settings=FIVE_HOURS) as gp:
            bad = await gp.endpoints.create(BAD, probe=False)
            for _ in range(3):
                sim.client.on(BAD, responds(500))
                await publish_for(gp, 4)
                sim.client.on(BAD, OK)
                await gp.publish("a.b", b"y")
                await asyncio.sleep(1)
            assert await status_of(sim, bad) is EndpointStatus.ACTIVE

    simulate(main)


def test_the_beginning_of_a_streak_survives_restarts() -> None:
    """A process that is replaced every hour must still see five hours of failure."""

    async def main(sim: Simulation) -> None:
        sim.client.on(BAD, responds(503))
        async with sim.dispatcher(settings=FIVE_HOURS) as gp:
            bad = await gp.endpoints.create(BAD, probe=False)
        for _ in range(4):
            async with sim.dispatcher(settings=FIVE_HOURS) as gp:
                await publish_for(gp, 1)
        line = Line(sim.store)
        async with sim.dispatcher(settings=FIVE_HOURS, store=line.as_store) as gp:
            await publish_for(gp, 0.9)
            line.cut = True  # a crash: nothing is saved on the way out
        assert await status_of(sim, bad) is EndpointStatus.ACTIVE
        async with sim.dispatcher(settings=FIVE_HOURS) as gp:
            await asyncio.sleep(60)
            await publish_for(gp, 0.5)
        assert await status_of(sim, bad) is EndpointStatus.DISABLED

    simulate(main)


def test_what_is_ours_is_held_against_nobody() -> None:
    """A proxy of ours that is down for long disables no endpoint."""

    async def main(sim: Simulation) -> None:
        sim.client.on(BAD, faulty(Reason.PROXY_CONNECT_FAILED, Phase.CONNECT))
        async with sim.dispatcher(settings=FIVE_HOURS) as gp:
            bad = await gp.endpoints.create(BAD, probe=False)
            await publish_for(gp, 5.5)
            assert len(sim.sent_to(bad)) > 1_000
            assert await status_of(sim, bad) is EndpointStatus.ACTIVE

    simulate(main)


def test_a_few_failures_far_apart_say_little() -> None:
    """A streak needs attempts, not only time."""

    async def main(sim: Simulation) -> None:
        sim.client.on(BAD, responds(500))
        async with sim.dispatcher(settings=FIVE_HOURS) as gp:
            bad = await gp.endpoints.create(BAD, probe=False, schedule=[0])
            for _ in range(DISABLE_ATTEMPTS_MIN - 1):
                await gp.publish("a.b", b"x")
                await asyncio.sleep(2 * HOUR)
            assert await status_of(sim, bad) is EndpointStatus.ACTIVE
            await gp.publish("a.b", b"x")
            await asyncio.sleep(1)
            assert await status_of(sim, bad) is EndpointStatus.DISABLED

    simulate(main)


def test_the_span_is_the_dispatchers_or_the_endpoints_own_and_zero_is_never() -> None:
    """Some receivers are switched off for the weekend, and some for the season."""

    async def main(sim: Simulation) -> None:
        urls = [f"https://e{number}.receivers.net/" for number in range(3)]
        for url in urls:
            sim.client.on(url, responds(500))
        async with sim.dispatcher(settings=DispatcherSettings(disable_after=2 * HOUR)) as gp:
            usual = await gp.endpoints.create(urls[0], probe=False)
            patient = await gp.endpoints.create(urls[1], probe=False, disable_after=4 * HOUR)
            never = await gp.endpoints.create(urls[2], probe=False, disable_after=0)
            with pytest.raises(ConfigurationError, match="disable_after"):
                await gp.endpoints.create(GOOD, disable_after=-1)
            await publish_for(gp, 3)
            found = [await status_of(sim, endpoint) for endpoint in (usual, patient, never)]
            assert found == [EndpointStatus.DISABLED, EndpointStatus.ACTIVE, EndpointStatus.ACTIVE]
            await publish_for(gp, 6)
            found = [await status_of(sim, endpoint) for endpoint in (usual, patient, never)]
            assert found == [EndpointStatus.DISABLED, EndpointStatus.DISABLED, EndpointStatus.ACTIVE]

    simulate(main)


def test_what_waited_is_delivered_on_resume_at_a_ramped_rate() -> None:
    """1, 2, 4 … in flight, a second each: the receiver has only just come back."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(GOOD, probe=False)
            await gp.endpoints.pause(endpoint.id)
            for number in range(200):
                await gp.publish("a.b", b"%d" % number)
            await asyncio.sleep(HOUR)
            assert sim.client.sent == []
            began = sim.clock.monotonic()
            await gp.endpoints.resume(endpoint.id)
            await asyncio.sleep(30)
            sent = sim.sent_to(endpoint)
            assert sorted(int(one.body) for one in sent) == list(range(200))
            by_second = [sum(second <= one.at - began < second + 1 for one in sent) for second in range(3)]
            # Answers take 50 ms: one slot makes twenty attempts a second.
            assert 15 <= by_second[0] <= 21
            assert 30 <= by_second[1] <= 42
            assert 60 <= by_second[2] <= 84
            assert {info.attempts for info in await sim.deliveries(endpoint)} == {1}

    simulate(main)


def test_a_long_back_off_of_an_ordered_head_survives_a_restart() -> None:
    """Its row keeps its place by its due time, so the store alone would start it at once."""

    async def main(sim: Simulation) -> None:
        sim.client.on(BAD, *[responds(500)] * 5, OK)
        async with sim.dispatcher(settings=FIVE_HOURS) as gp:
            bad = await gp.endpoints.create(BAD, probe=False)
            await gp.publish("a.b", b"1", ordering_key="k")
            await gp.publish("a.b", b"2", ordering_key="k")
            await asyncio.sleep(300)
            assert len(sim.sent_to(bad)) == 4, "the fifth comes ten minutes after the fourth"
        async with sim.dispatcher():
            await asyncio.sleep(200)
            assert len(sim.sent_to(bad)) == 4
            await asyncio.sleep(HOUR)
        assert [sent.body for sent in sim.sent_to(bad)] == [b"1"] * 6 + [b"2"]
        assert gaps(sim.sent_to(bad))[3] > 0.8 * 600

    simulate(main)


def test_an_owner_that_must_act_is_told_once_an_hour_and_limits_do_not_silence_us() -> None:
    """A tenant over its limit of events must still hear that its endpoint is broken."""

    async def main(sim: Simulation) -> None:
        sim.client.on(BAD, responds(404))
        await sim.store.put_tenant(Tenant("default", limits=TenantLimits(events_per_second=1.0)))
        async with sim.dispatcher(settings=FIVE_HOURS) as gp:
            bad = await gp.endpoints.create(BAD, probe=False)
            await gp.endpoints.create(OPS, event_types=["gatepost.endpoint.*"], probe=False)
            await gp.publish("a.b", b"x")
            await asyncio.sleep(1)
            (notice,) = notices(sim)
            assert notice["type"] == "gatepost.endpoint.needs_owner"
            assert notice["data"] == {
                "endpoint_id": bad.id,
                "reason": "status_404",
                "message": notice["data"]["message"],
            }
            assert notice["timestamp"].endswith("Z")
            await asyncio.sleep(600)
            assert len(notices(sim)) == 1

    simulate(main)


def test_types_of_our_own_cannot_be_published_by_others() -> None:
    """Whoever reads an operational event must be able to believe it."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher() as gp:
            with pytest.raises(ConfigurationError, match="Gatepost's own"):
                await gp.publish("gatepost.endpoint.disabled", b"x")

    simulate(main)
