"""Endpoints that change or go while something of theirs is under way, on virtual time: nothing is lost, held or left behind."""

from __future__ import annotations

import asyncio

import pytest

from gatepost.delivery.ids import DELIVERY, encode_id
from gatepost.delivery.records import EndpointStatus
from gatepost.dispatch.maintenance import EXPIRE_EVERY
from gatepost.dispatch.scheduler import SchedulerStatistics
from gatepost.errors import ConfigurationError, NotFound
from gatepost.store.rows import DeadFilter
from gatepost.testing.fake_client import responds, silent
from tests.simulation.harness import Line, Simulation, simulate

OLD = "https://old.receivers.net/hook"
NEW = "https://new.receivers.net/hook"


def test_a_410_of_the_old_url_does_not_disable_the_new_one() -> None:
    """The owner has just moved the endpoint because the old one is gone: exactly then a 410 may still be under way."""

    async def main(sim: Simulation) -> None:
        sim.client.on(OLD, responds(410, delay=3.0))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(OLD)
            await gp.publish("t", b"1")
            await asyncio.sleep(1.0)
            await gp.endpoints.update(endpoint.id, url=NEW)
            await asyncio.sleep(5.0)
            assert (await gp.endpoints.get(endpoint.id)).status is EndpointStatus.ACTIVE
            assert "endpoint_disabled" not in sim.heard.kinds()
            await gp.endpoints.update(endpoint.id, url=OLD)
            await gp.publish("t", b"2")
            await asyncio.sleep(5.0)
            assert (await gp.endpoints.get(endpoint.id)).status is EndpointStatus.DISABLED
            assert "endpoint_disabled" in sim.heard.kinds()

    simulate(main)


def test_dead_letters_of_a_removed_endpoint_survive_a_replay() -> None:
    """They were cancelled, some minutes after a replay that reported success: the last copy of the event was gone."""

    async def main(sim: Simulation) -> None:
        sim.client.on(OLD, responds(413))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(OLD)
            await gp.publish("t", b"1")
            await asyncio.sleep(1.0)
            (letter,) = await sim.dead(endpoint)
            await gp.endpoints.delete(endpoint.id)
            with pytest.raises(NotFound, match="is gone"):
                await gp.dead_letters.replay(DeadFilter(endpoint=endpoint.number))
            with pytest.raises(NotFound, match="is gone"):
                await gp.deliveries.replay(encode_id(DELIVERY, letter.delivery_id))
            assert await gp.dead_letters.replay(DeadFilter(tenant="default")) == 1, "a wider filter takes it along"
            await asyncio.sleep(2 * EXPIRE_EVERY)
            (again,) = await sim.dead(endpoint)
            assert (again.delivery_id, again.why) == (letter.delivery_id, "gone")
            assert (await gp.dead_letters.get(encode_id(DELIVERY, letter.delivery_id))).body == b"1"

    simulate(main)


def test_a_removed_endpoint_leaves_nothing_in_memory() -> None:
    """Its lanes stayed loaded as long as rows had waited in them: a leak for every endpoint that ever went."""

    async def main(sim: Simulation) -> None:
        sim.client.on(OLD, responds(500))
        async with sim.dispatcher() as gp:
            for url, pause in ((OLD, False), (NEW, True)):
                endpoint = await gp.endpoints.create(url)
                if pause:
                    await gp.endpoints.pause(endpoint.id)
                await gp.publish("t", b"1")
                await gp.publish("t", b"2", ordering_key="k")
                await asyncio.sleep(1.0)
                await gp.endpoints.delete(endpoint.id)
            await asyncio.sleep(2 * EXPIRE_EVERY)
            seen: SchedulerStatistics = gp.statistics().scheduler
            assert (seen.lanes, seen.endpoints, seen.hosts, seen.tenants, seen.timers) == (0, 0, 0, 0, 0)
            fresh = await gp.endpoints.create(NEW)
            await gp.publish("t", b"3")
            await asyncio.sleep(1.0)
            assert [sent.body for sent in sim.sent_to(fresh)] == [b"3"]

    simulate(main)


def test_what_was_learned_about_a_removed_endpoint_leaves_the_store() -> None:
    """With it, and again after the attempts that were still in flight have taught their lesson to nobody."""

    async def main(sim: Simulation) -> None:
        sim.client.on(OLD, *[responds(500)] * 3, responds(500, delay=8.0))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(OLD)
            for _ in range(3):
                await gp.publish("t", b"1")
                await asyncio.sleep(1.0)
            await gp.publish("t", b"1", ordering_key="k")
            await asyncio.sleep(20.0)
            await gp.publish("t", b"2", ordering_key="k")
            await asyncio.sleep(1.0)
            assert await sim.store.load_states([endpoint.number])
            await gp.endpoints.delete(endpoint.id)
            assert not await sim.store.load_states([endpoint.number])
            await asyncio.sleep(60.0)
        assert not await sim.store.load_states([endpoint.number])

    simulate(main)


def test_a_cancellation_ends_when_its_attempts_are_given_up_with_the_parts() -> None:
    """A store that takes no results to the end of a drain left whoever cancelled a delivery waiting for ever."""

    async def main(sim: Simulation) -> None:
        sim.client.on(OLD, silent(1.0))
        line = Line(sim.store)
        gp = sim.make(store=line.as_store)
        await gp.prepare()
        gp.run_in_background()
        endpoint = await gp.endpoints.create(OLD)
        await gp.publish("t", b"1")
        await asyncio.sleep(0.5)
        line.cut_calls = {"settle"}
        (info,) = await sim.deliveries(endpoint)
        cancelling = asyncio.ensure_future(gp.deliveries.cancel(delivery_id=encode_id(DELIVERY, info.delivery_id)))
        await asyncio.sleep(2.0)
        assert not cancelling.done()
        await gp.drain(5.0)
        async with asyncio.timeout(1.0):
            assert await cancelling == [info.delivery_id]
        await gp.aclose()

    simulate(main)


@pytest.mark.parametrize("rate", [0.0, 5e-324, 1e-300, 1e-9, float("inf"), float("nan")])
def test_a_rate_that_breaks_arithmetic_is_refused(rate: float) -> None:
    """One endpoint with a rate of 1e-310 made every turn of the scheduler fail, and with it everybody's deliveries."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher(run=False) as gp:
            with pytest.raises(ConfigurationError, match="attempts per second"):
                await gp.endpoints.create(NEW, rate=rate)
            with pytest.raises(ConfigurationError, match="deliveries per second"):
                await gp.dead_letters.replay(DeadFilter(tenant="default"), rate=rate)

    simulate(main)


def test_an_endpoint_may_not_hold_a_slot_for_a_day() -> None:
    """Four endpoints of one tenant that never answer, with such limits, were all the slots there are."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher(run=False) as gp:
            month = 30 * 86_400.0
            with pytest.raises(ConfigurationError, match="answer at once and work afterwards"):
                await gp.endpoints.create(NEW, limits={"read_timeout": 86_400.0}, schedule=(0.0,), window=month)
            endpoint = await gp.endpoints.create(NEW, limits={"read_timeout": 60.0})
            assert endpoint.limits == {"read_timeout": 60.0}

    simulate(main)
