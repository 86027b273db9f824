"""Fault cases of class queue: nothing lost, nothing stuck, and nothing sent twice that need not be, whatever dies when."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.ids import DELIVERY, EVENT, decode_id, encode_id
from gatepost.dispatch.dispatcher import Dispatcher, DispatcherSettings
from gatepost.dispatch.maintenance import RETENTION_EVERY
from gatepost.dispatch.publisher import Publisher
from gatepost.errors import NotFound
from gatepost.store.rows import PART_LEASE, DeliveryFilter, EventBody
from gatepost.store.sqlite.store import SqliteStore
from gatepost.testing.fake_client import OK, FakeClient, responds
from tests.simulation.harness import EGRESS, Line, Simulation, simulate

URL = "https://receiver.receivers.net/hook"
OTHER = "https://other.receivers.net/hook"
BEAT_AND_LOOK = 8.0
"""Seconds beyond a lease until the next process has noticed and begun."""


@asynccontextmanager
async def dying(sim: Simulation) -> AsyncIterator[tuple[Dispatcher, Line]]:
    """A dispatcher that a test kills by `line.cut = True`: nothing it says reaches the store from then on."""
    line = Line(sim.store)
    victim = sim.make(store=line.as_store)
    await victim.prepare()
    victim.run_in_background()
    try:
        yield victim, line
    finally:
        line.cut = True
        await victim.aclose()


async def states(sim: Simulation) -> Counter[str]:
    """Deliveries of the default tenant by state."""
    page = await sim.store.deliveries(DeliveryFilter(tenant="default"), None, 1_000)
    return Counter(info.state for info in page.items)


def test_queue_02_rows_in_the_buffer_do_not_outlive_their_lease() -> None:
    """One slot, fifty milliseconds each, more rows than a lease is long; a second process stands idle. No duplicate."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher(settings=DispatcherSettings(slots=1)) as gp, sim.dispatcher():
            await gp.endpoints.create(URL, probe=False)
            for number in range(800):
                await gp.publish("a.b", b"%d" % number)
            await asyncio.sleep(800 * 0.06)
            assert sim.clock.monotonic() - 1_000 > PART_LEASE
            assert len(sim.client.sent) == 800
            assert await states(sim) == {"delivered": 800}

    simulate(main)


def test_queue_03_a_lease_that_was_lost_is_noticed_before_the_result_is_written() -> None:
    """The heartbeat does not get through during an attempt that outlasts the lease: the late result changes nothing."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(500, delay=PART_LEASE + 25), OK)
        line = Line(sim.store)
        async with sim.dispatcher(store=line.as_store) as first, sim.dispatcher():
            endpoint = await first.endpoints.create(URL, probe=False)
            await first.publish("a.b", b"x")
            await asyncio.sleep(1)
            line.cut_calls = {"heartbeat"}
            await asyncio.sleep(PART_LEASE + 2 * BEAT_AND_LOOK)
            assert first.statistics().lease_seconds_left == 0
            assert len(sim.client.sent) == 2, "the next owner has sent it"
            await asyncio.sleep(60)
            [info] = await sim.deliveries(endpoint)
            assert info.state == "delivered", "and the late 500 moved nothing"
            assert len({sent.webhook_id for sent in sim.client.sent}) == 1
            assert first.statistics().parts == 0

    simulate(main)


def test_queue_04_what_was_in_flight_at_a_kill_is_sent_again_after_the_lease() -> None:
    """Five deliveries held by their receiver while the process dies; nothing says 'sending' for ever."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, *[responds(200, delay=500)] * 5, OK)
        async with dying(sim) as (victim, line):
            endpoint = await victim.endpoints.create(URL, probe=False)
            for number in range(5):
                await victim.publish("a.b", b"%d" % number)
            await asyncio.sleep(1)
            assert len(sim.client.sent) == 5
            line.cut = True
            async with sim.dispatcher():
                await asyncio.sleep(PART_LEASE + BEAT_AND_LOOK)
                assert Counter(sent.body for sent in sim.client.sent) == {b"%d" % number: 2 for number in range(5)}
                assert {info.state for info in await sim.deliveries(endpoint)} == {"delivered"}

    simulate(main)


@pytest.mark.parametrize("call", ["maintain", "discover"])
def test_queue_06_a_sweep_that_died_runs_again_by_itself(call: str) -> None:
    """It is a loop of the owner, no job with a lock: a bug in one pass costs that pass, a killed process its lease."""

    class Faulty(Line):
        """The second call of its kind hits a bug."""

        def __getattr__(self, name: str) -> Any:
            target = super().__getattr__(name)
            if name != call:
                return target

            async def once_broken(*arguments: Any) -> Any:
                if self.calls.get(name, 0) == 1:
                    self.calls[name] += 1
                    raise RuntimeError("a bug")
                return await target(*arguments)

            return once_broken

    async def main(sim: Simulation) -> None:
        line = Faulty(sim.store)
        async with sim.dispatcher(store=line.as_store):
            await asyncio.sleep(4 * RETENTION_EVERY)
            assert line.calls[call] >= 4
            assert any(kind.startswith("loop_") for kind in sim.heard.kinds())
            line.cut = True
            async with sim.dispatcher():
                await asyncio.sleep(PART_LEASE + BEAT_AND_LOOK + RETENTION_EVERY)

    simulate(main)


def test_queue_07_a_crash_in_the_last_attempt_leaves_a_row_that_ends() -> None:
    """An attempt counts when its result is stored: after a crash it is made again, and then the row is delivered or dead."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(200, delay=500), responds(500), OK)
        async with dying(sim) as (victim, line):
            endpoint = await victim.endpoints.create(URL, probe=False, schedule=[0])
            await victim.publish("a.b", b"x")
            await asyncio.sleep(1)
            line.cut = True
            async with sim.dispatcher() as gp:
                await asyncio.sleep(PART_LEASE + BEAT_AND_LOOK)
                [letter] = await sim.dead(endpoint)
                assert (letter.why, letter.attempts, letter.status) == ("attempts_exhausted", 1, 500)
                await gp.deliveries.replay(encode_id(DELIVERY, letter.delivery_id))
                await asyncio.sleep(5)
                assert {info.state for info in await sim.deliveries(endpoint)} == {"delivered"}

    simulate(main)


@pytest.mark.parametrize("change", ["cancel", "pause", "delete"])
def test_queue_08_a_change_by_somebody_else_during_an_attempt_harms_no_worker(change: str) -> None:
    """The attempt ends in a 500 afterwards: its result is compared, not assumed, and others go on."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(500, delay=5))
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, event_types=["a.b"], probe=False)
            other = await gp.endpoints.create(OTHER, event_types=["c.d"], probe=False)
            await gp.publish("a.b", b"x")
            await asyncio.sleep(1)
            [info] = await sim.deliveries(endpoint)
            if change == "cancel":
                await gp.deliveries.cancel(delivery_id=encode_id(DELIVERY, info.delivery_id))
            elif change == "pause":
                await gp.endpoints.pause(endpoint.id)
            else:
                await gp.endpoints.delete(endpoint.id)
            await asyncio.sleep(60)
            await gp.publish("c.d", b"y")
            await asyncio.sleep(1)
            assert {one.state for one in await sim.deliveries(other)} == {"delivered"}
            expected = "waiting" if change == "pause" else "cancelled"
            assert [one.state for one in await sim.deliveries(endpoint)] == [expected]
            assert len(sim.sent_to(endpoint)) == 1
            assert not [kind for kind in sim.heard.kinds() if kind.startswith("loop_")]

    simulate(main)


def test_queue_10_events_of_a_deleted_endpoint_are_cancelled_once_and_for_all() -> None:
    """Also when a process that does not know of the deletion yet would send them: nothing puts them in again."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher(run=False) as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            for _ in range(20):
                await gp.publish("a.b", b"x")
            await sim.store.delete_endpoint(endpoint.id)
        async with sim.dispatcher():
            await asyncio.sleep(1_300)
            assert sim.client.sent == []
            assert {info.state for info in await sim.deliveries(endpoint)} == {"cancelled"}

    simulate(main)


def test_queue_10_a_row_without_its_payload_ends_and_harms_nobody() -> None:
    """Only damage to the store can do this. It is said, cancelled, and not tried for ever."""

    class Damaged(Line):
        """Has lost one event's row."""

        lost = 0

        async def load_events(self, ids: Collection[int]) -> Mapping[int, EventBody]:
            self.calls["load_events"] = self.calls.get("load_events", 0) + 1
            found = await self._store.load_events(ids)
            return {number: body for number, body in found.items() if number != self.lost}

    async def main(sim: Simulation) -> None:
        line = Damaged(sim.store)
        async with sim.dispatcher(run=False) as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            receipts = [await gp.publish("a.b", b"%d" % number) for number in range(10)]
            line.lost = decode_id(EVENT, receipts[4].event_id)
        async with sim.dispatcher(store=line.as_store):
            await asyncio.sleep(1_300)
            assert await states(sim) == {"delivered": 9, "cancelled": 1}
            assert "event_missing" in sim.heard.kinds()
            assert len(sim.sent_to(endpoint)) == 9
            assert line.calls["load_events"] < 20

    simulate(main)


def test_queue_12_recovery_takes_a_lease_and_no_more() -> None:
    """Thirty seconds of lease, and a look each second at what is free."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(200, delay=500), OK)
        async with dying(sim) as (victim, line):
            await victim.endpoints.create(URL, probe=False)
            await victim.publish("a.b", b"x")
            await asyncio.sleep(1)
            line.cut = True
            began = sim.clock.monotonic()
            async with sim.dispatcher():
                while len(sim.client.sent) < 2:  # noqa: ASYNC110 - the fake client sets no event
                    await asyncio.sleep(0.2)
                assert sim.clock.monotonic() - began < PART_LEASE + 3

    simulate(main)


async def test_queue_13_no_transaction_spans_an_attempt(tmp_path: Path) -> None:
    """Twenty receivers hold their answers for half a second; another process writes to the same file meanwhile."""
    hold = 0.5
    path = tmp_path / "gatepost.db"
    client = FakeClient(egress=EGRESS)
    client.on(URL, responds(200, delay=hold))
    store = SqliteStore.open(path)
    gp = Dispatcher(store, client)
    waits: list[float] = []
    try:
        await gp.prepare()
        gp.run_in_background()
        await gp.endpoints.create(URL, probe=False, concurrency=20)
        for number in range(40):
            await gp.publish("a.b", b"%d" % number)
        await asyncio.sleep(0.1)
        with Publisher.open_sync(f"sqlite:///{path}") as publisher:
            while client.in_flight.get(URL) and len(waits) < 60:
                began = SYSTEM_CLOCK.monotonic()
                await asyncio.to_thread(publisher.publish_sync, "c.d", b"y", tenant="other")
                waits.append(SYSTEM_CLOCK.monotonic() - began)
                await asyncio.sleep(0.01)
        assert len(waits) > 10
        assert statistics.median(waits) < hold / 10
        assert store.statistics().last_commit < hold / 2
    finally:
        await gp.aclose()
        await store.aclose()
        await client.aclose()


def test_queue_14_one_failure_does_not_stop_the_others() -> None:
    """Nineteen are delivered in the same pass, the third goes on its own schedule and is not taken up again before."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, OK, OK, responds(500), OK)
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False, concurrency=1)
            for number in range(20):
                await gp.publish("a.b", b"%d" % number)
            await asyncio.sleep(2)
            assert await states(sim) == {"delivered": 19, "waiting": 1}
            assert len(sim.sent_to(endpoint)) == 20
            await asyncio.sleep(10)
            assert await states(sim) == {"delivered": 20}
            assert [sent.body for sent in sim.sent_to(endpoint)][20:] == [b"2"]

    simulate(main)


def test_queue_17_two_calls_with_one_key_make_one_delivery() -> None:
    """At the same time, whatever the interleaving; both hear the same event id."""

    async def main(sim: Simulation) -> None:
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False)
            receipts = await asyncio.gather(
                *(gp.publish("a.b", b"x", idempotency_key="order-7") for _ in range(20)),
            )
            await asyncio.sleep(2)
            assert len({receipt.event_id for receipt in receipts}) == 1
            assert sum(not receipt.duplicate for receipt in receipts) == 1
            assert len(await sim.deliveries(endpoint)) == 1
            assert len(sim.client.sent) == 1

    simulate(main)


def test_queue_18_only_what_is_dead_is_replayed() -> None:
    """In flight, waiting for its retry, or delivered: refused, and nothing is sent twice.

    A delivered one is not sent again on request either: publish the event anew, which says so by its id.
    """

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(500, delay=5), responds(500), OK)
        async with sim.dispatcher() as gp:
            endpoint = await gp.endpoints.create(URL, probe=False, schedule=[0, 30])
            await gp.publish("a.b", b"x")
            await asyncio.sleep(1)
            [info] = await sim.deliveries(endpoint)
            public = encode_id(DELIVERY, info.delivery_id)

            async def refused() -> None:
                with pytest.raises(NotFound, match="only dead letters"):
                    await gp.deliveries.replay(public)

            await refused()  # in flight
            await asyncio.sleep(10)
            await refused()  # its retry is due in a while
            await asyncio.sleep(60)
            assert await states(sim) == {"dead": 1}
            await gp.deliveries.replay(public)
            await asyncio.sleep(5)
            assert await states(sim) == {"delivered": 1}
            await refused()  # delivered
            await asyncio.sleep(60)
            assert len(sim.client.sent) == 3

    simulate(main)


def test_queue_19_what_ends_within_the_grace_is_stored_before_the_store_closes() -> None:
    """The answer comes while the process is told to stop: no new starts, wait, write, give back, close. Sent once."""

    async def main(sim: Simulation) -> None:
        sim.client.on(URL, responds(200, delay=0.2))
        async with sim.dispatcher() as gp:
            await gp.endpoints.create(URL, probe=False, concurrency=1)
            for _ in range(3):
                await gp.publish("a.b", b"x")
            await asyncio.sleep(0.1)
            await gp.drain(grace=0.5)
            assert await states(sim) == {"delivered": 1, "waiting": 2}
        async with sim.dispatcher():
            await asyncio.sleep(2)
            assert await states(sim) == {"delivered": 3}
            assert set(Counter(sent.webhook_id for sent in sim.client.sent).values()) == {1}

    simulate(main)
