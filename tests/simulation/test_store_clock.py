"""Whose clock it is: due times, ids and retention go by the store's, also before the first heartbeat and where none is ever made."""

from __future__ import annotations

import asyncio

import pytest

from gatepost.delivery.ids import EVENT, decode_id, id_time_us
from gatepost.store.rows import OutboxEvent
from tests.simulation.fleet import Fleet

HOUR = 3_600.0
DAY = 86_400.0


@pytest.mark.parametrize("off", [HOUR, -HOUR])
def test_what_a_machine_whose_clock_is_off_only_publishes_is_due_by_the_store_s_clock(off: float) -> None:
    """A web server that delivers nothing makes no heartbeat: an hour ahead, its events would be an hour late."""

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a") as (a,):
            web = await fleet.add("web", wall_off=off, run=False)
            (endpoint,) = await fleet.endpoints(a.gp, 1)
            receipt = await web.gp.publish("a.b", b"1")
            await asyncio.sleep(1.0)
            assert fleet.delivered(endpoint) == [b"1"]
            made = id_time_us(decode_id(EVENT, receipt.event_id))
            assert abs(made - fleet.store_clock.wall_us()) < 2e6, "its id belongs to the day on which it was published"

    Fleet().run(main)


def test_an_order_that_was_published_through_a_machine_whose_clock_drifts_is_kept() -> None:
    """Two web servers publish in turn; one of them drifts by a second each minute, and is set right by asking."""

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a") as (a,):
            left, right = await fleet.add("left", run=False), await fleet.add("right", run=False)
            (endpoint,) = await fleet.endpoints(a.gp, 1)
            bodies = []
            for number in range(20):
                fleet.store_clock.seconds -= 1.0  # theirs run ahead of it
                web = (left, right)[number % 2]
                await asyncio.sleep(60.0)
                bodies.append(b"%d" % number)
                await web.gp.publish("a.b", bodies[-1], ordering_key="k")
            await asyncio.sleep(5.0)
            assert fleet.delivered(endpoint) == bodies

    Fleet().run(main)


def test_a_machine_whose_clock_is_days_ahead_deletes_nothing_when_it_starts() -> None:
    """Retention is the first thing that a process does, before its first heartbeat is answered."""

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a") as (a,):
            first = await a.gp.publish("a.b", b"1", idempotency_key="k")
            await fleet.add("ahead", wall_off=2 * DAY)
            await asyncio.sleep(5.0)
            again = await a.gp.publish("a.b", b"1", idempotency_key="k")
            assert again.event_id == first.event_id
            assert again.duplicate

    Fleet().run(main)


def test_an_event_that_waited_in_the_outbox_for_longer_than_its_window_is_tried_all_the_same() -> None:
    """Nobody followed the outbox for a week, or the publisher's clock was wrong: it has not been tried once."""

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a", "b") as (a, _):
            endpoints = await fleet.endpoints(a.gp, 12)
            old = fleet.store_clock.wall_us() - round(7 * DAY * 1e6)
            row = OutboxEvent(0, 1, "default", None, "a.b", "text/plain", b"1", None, "normal", None, old)
            await fleet.store.outbox_put([row])
            await asyncio.sleep(5.0)
            assert [fleet.delivered(endpoint) for endpoint in endpoints] == [[b"1"]] * 12

    Fleet().run(main)
