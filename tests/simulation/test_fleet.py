"""A fleet on virtual time: every endpoint is contacted by one process at a time, whoever comes, goes, crashes or hangs."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from gatepost.delivery.policy import ClientPolicy
from gatepost.dispatch.dispatcher import DispatcherSettings
from gatepost.errors import ConfigurationError
from gatepost.store.rows import PART_LEASE
from gatepost.testing.fake_client import responds
from tests.simulation.fleet import PARTS, Fleet, Member


def test_parts_are_shared_by_weight_and_every_endpoint_has_one_sender() -> None:
    """What makes per-endpoint caps exact: three processes, and no endpoint hears from two of them."""

    async def main(fleet: Fleet) -> None:
        heavy = await fleet.add("heavy", settings=DispatcherSettings(weight=2.0))
        light = [await fleet.add("light-1"), await fleet.add("light-2")]
        await fleet.balanced()
        assert [member.parts for member in (heavy, *light)] == [8, 4, 4]
        endpoints = await fleet.endpoints(heavy.gp, 40, concurrency=4)
        for number in range(10):
            for member in (heavy, *light):
                await member.gp.publish("a.b", b"%d %s" % (number, member.name.encode()))
        await asyncio.sleep(3.0)
        assert len(fleet.receiver.sent) == 40 * 30
        senders: dict[str, set[str]] = {}
        for sent, by in zip(fleet.receiver.sent, fleet.receiver.by, strict=True):
            senders.setdefault(sent.url, set()).add(by)
        assert all(len(names) == 1 for names in senders.values())
        assert {name for names in senders.values() for name in names} == {"heavy", "light-1", "light-2"}
        assert max(fleet.receiver.most_in_flight[endpoint.url] for endpoint in endpoints) <= 4
        assert fleet.doubled() == 0

    Fleet().run(main)


def test_what_one_process_stores_its_owner_starts_at_once() -> None:
    """A poke, not a poll: half of all events are published in a process that does not own their endpoint."""

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a", "b") as (a, b):
            endpoints = await fleet.endpoints(a.gp, 12)
            calls = a.line.calls.get("poke", 0)
            published = fleet.clock.monotonic()
            await asyncio.gather(*(a.gp.publish("a.b", b"%d" % number) for number in range(5)))
            await asyncio.sleep(0.5)
            assert len(fleet.receiver.sent) == 12 * 5
            assert max(sent.at for sent in fleet.receiver.sent) - published < 0.3
            assert set(fleet.receiver.by) == {"a", "b"}
            assert a.line.calls["poke"] - calls <= 5, "not one for each row"
            assert b.gp.statistics().attempts.delivered + a.gp.statistics().attempts.delivered == 60
            assert len(endpoints) == 12

    Fleet().run(main)


def test_lost_pokes_are_healed_by_looking() -> None:
    """A poke is best effort: a row that nobody told of starts within the recheck interval."""

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a", "b") as (a, _):
            await fleet.endpoints(a.gp, 12)
            a.line.cut_calls.add("poke")
            for number in range(3):
                await a.gp.publish("a.b", b"%d" % number)
                await asyncio.sleep(16.0)
                assert len(fleet.receiver.sent) == 12 * (number + 1)

    Fleet().run(main)


def test_lanes_that_fall_idle_are_let_go_although_they_are_looked_at() -> None:
    """Looking for lost pokes must not keep everything in memory that ever had a row."""

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a", "b") as (a, b):
            await fleet.endpoints(a.gp, 12)
            await a.gp.publish("a.b", b"x")
            await asyncio.sleep(5.0)
            assert a.gp.statistics().scheduler.lanes + b.gp.statistics().scheduler.lanes == 12
            await asyncio.sleep(200.0)
            assert a.gp.statistics().scheduler.lanes + b.gp.statistics().scheduler.lanes == 0

    Fleet().run(main)


def test_an_order_that_was_published_through_two_processes_is_kept() -> None:
    """A producer behind a load balancer: each event is acknowledged by one process, and the next goes to another."""

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a", "b", "c") as members:
            endpoints = await fleet.endpoints(members[0].gp, 8)
            for member in members:
                member.line.cut_calls.add("poke")  # the worst: nobody is told
            for number in range(60):
                await members[number % 3].gp.publish("a.b", b"%d" % number, ordering_key="k")
                await asyncio.sleep(0.03)
            await fleet.settled()
            for endpoint in endpoints:
                assert [int(body) for body in fleet.delivered(endpoint)] == list(range(60))

    Fleet().run(main)


def test_a_killed_process_is_followed_within_three_seconds() -> None:
    """Unordered lanes: the database noticed the connection, so nobody waits for the lease."""

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a", "b") as (a, b):
            await fleet.endpoints(a.gp, 30)
            await asyncio.sleep(6.0)  # sessions old enough to be believed
            b.kill()
            killed = fleet.clock.monotonic()
            await a.gp.publish("a.b", b"after")
            await asyncio.sleep(3.0)
            urls = Counter(sent.url for sent in fleet.receiver.sent if sent.at >= killed)
            assert len(urls) == 30
            assert set(urls.values()) == {1}
            assert a.parts == PARTS

    Fleet().run(main)


def test_a_drained_stop_is_taken_over_within_a_second_with_nothing_doubled() -> None:
    """The usual way out: each part goes as soon as nothing of it is in flight."""

    async def main(fleet: Fleet) -> None:
        slow = "https://e0.receivers.net/"
        fleet.answers[slow] = (responds(200, delay=9.0),)
        async with fleet.started("a", "b", "c") as (a, b, c):
            endpoints = await fleet.endpoints(a.gp, 30)
            await a.gp.publish("a.b", b"before")
            await asyncio.sleep(1.0)
            stopping = [asyncio.ensure_future(member.stop()) for member in (b, c)]
            await asyncio.sleep(0)
            stopped = fleet.clock.monotonic()
            await a.gp.publish("a.b", b"after")
            await asyncio.sleep(1.0)
            after = [sent.url for sent in fleet.receiver.sent if sent.at >= stopped]
            (busy,) = [endpoint.number % PARTS for endpoint in endpoints if endpoint.url == slow]
            others = {endpoint.url for endpoint in endpoints if endpoint.number % PARTS != busy}
            assert others <= set(after), "all but those whose part has an attempt of nine seconds under way"
            await asyncio.gather(*stopping)
            await fleet.settled()
            assert fleet.doubled() == 0
            assert all(fleet.delivered(endpoint) == [b"before", b"after"] for endpoint in endpoints)

    Fleet().run(main)


def test_a_rolling_restart_loses_and_doubles_nothing_under_load() -> None:
    """Figure 5 of the fleet: one process after the other, each followed by its successor, while events keep coming."""

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a", "b", "c") as members:
            entry = await fleet.add("entry", run=False)  # publishes, never restarted, owns nothing
            endpoints = await fleet.endpoints(entry.gp, 20, concurrency=4)
            ordered = set()
            done = asyncio.Event()

            async def produce() -> int:
                number = 0
                while not done.is_set():
                    key = f"k{number % 3}" if number % 2 else None
                    await entry.gp.publish("a.b", b"%d" % number, ordering_key=key)
                    if key is not None:
                        ordered.add(number)
                    number += 1
                    await asyncio.sleep(0.05)
                return number

            producing = asyncio.ensure_future(produce())
            await asyncio.sleep(2.0)
            for number, member in enumerate(members):
                await member.stop()
                await fleet.add(f"next-{number}")
                await fleet.balanced()
            await asyncio.sleep(2.0)
            done.set()
            count = await producing
            await fleet.settled()
            assert fleet.doubled() == 0
            for endpoint in endpoints:
                bodies = [int(body) for body in fleet.delivered(endpoint)]
                assert sorted(bodies) == list(range(count))
                for key in range(3):
                    chain = [number for number in bodies if number in ordered and number % 3 == key]
                    assert chain == sorted(chain)
            assert max(fleet.receiver.most_in_flight.values()) <= 4

    Fleet().run(main)


def test_crashes_lose_nothing_and_keep_ordered_lanes_in_order() -> None:
    """Three processes killed one after the other under load, each while attempts are under way."""

    async def main(fleet: Fleet) -> None:
        for number in range(12):
            fleet.answers[f"https://e{number}.receivers.net/"] = (responds(200, delay=0.3),)
        async with fleet.started("a", "b", "c") as members:
            entry = await fleet.add("entry", run=False)
            endpoints = await fleet.endpoints(entry.gp, 12)
            await asyncio.sleep(6.0)

            async def produce(first: int, count: int) -> None:
                for number in range(first, first + count):
                    await entry.gp.publish("a.b", b"%d" % number, ordering_key="k")
                    await entry.gp.publish("a.c", b"u%d" % number)
                    await asyncio.sleep(0.2)

            victims: list[Member] = list(members)
            for round_ in range(3):
                producing = asyncio.ensure_future(produce(round_ * 40, 40))
                await asyncio.sleep(1.55)
                victims[round_].kill()
                await fleet.add(f"next-{round_}")
                await producing
            await fleet.settled(600.0)
            for endpoint in endpoints:
                bodies = fleet.delivered(endpoint)
                chain = [int(body) for body in bodies if not body.startswith(b"u")]
                assert chain == list(range(120)), "in order, none lost"
                assert sum(body.startswith(b"u") for body in bodies) == 120
            assert fleet.doubled() <= 3 * 12 * 7, "only what was in flight at the kills"

    Fleet().run(main)


def test_an_ordered_lane_of_a_killed_process_waits_for_its_lease() -> None:
    """What the dead process may have had on the wire must be over before the next one speaks."""

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a", "b") as (a, b):
            endpoints = await fleet.endpoints(a.gp, 20)
            await asyncio.sleep(6.0)
            b.kill()
            killed = fleet.clock.monotonic()
            await a.gp.publish("a.b", b"x", ordering_key="k")
            await asyncio.sleep(33.0)
            starts = {sent.url: sent.at - killed for sent in fleet.receiver.sent if sent.at >= killed}
            assert len(starts) == len(endpoints)
            waited = sorted(starts.values())
            assert waited[0] < 1.0, "those of a itself"
            assert 20.0 < waited[-1] < 33.0, "those of b: what was left of its lease"

    Fleet().run(main)


def test_a_process_cut_off_from_the_store_stops_before_others_take_over() -> None:
    """Its network swallows everything and its connection stays up: only its own clock can tell it to stop."""

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a", "b") as (a, b):
            endpoints = await fleet.endpoints(a.gp, 20, rate=5.0)
            await asyncio.sleep(6.0)
            for number in range(400):  # 80 seconds of work at each endpoint, much of it in the memory of its owner
                await a.gp.publish("a.b", b"%d" % number)
            await asyncio.sleep(2.0)
            b.line.freeze()
            frozen = fleet.clock.monotonic()
            await asyncio.sleep(60.0)
            last: dict[str, float] = {}
            first: dict[str, float] = {}
            for sent, by in zip(fleet.receiver.sent, fleet.receiver.by, strict=True):
                if by == "b":
                    last[sent.url] = sent.at
                else:
                    first.setdefault(sent.url, sent.at)
            moved = [url for url in last if url in first]
            assert moved
            assert all(last[url] < first[url] for url in moved), "never two senders at once"
            assert max(last.values()) - frozen < PART_LEASE
            b.line.thaw()
            await fleet.settled(300.0)
            await fleet.balanced()
            assert b.parts == PARTS // 2
            for endpoint in endpoints:
                assert len(fleet.delivered(endpoint)) == 400

    Fleet().run(main)


def test_losing_the_session_stops_starts_until_the_store_has_spoken() -> None:
    """The others may take the parts from that moment on."""

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a") as (a,):
            await fleet.endpoints(a.gp, 8)
            await asyncio.sleep(6.0)
            a.line.cut_calls.update({"heartbeat", "nodes"})
            a.view.lose_session()
            await asyncio.sleep(0.1)
            await a.gp.publish("a.b", b"x")
            await asyncio.sleep(5.0)
            assert fleet.receiver.sent == [], "20 s of the leases are left, and mean nothing"
            assert a.gp.statistics().lease_seconds_left == 0
            a.line.cut_calls.clear()
            await asyncio.sleep(2.0)
            assert len(fleet.receiver.sent) == 8

    Fleet().run(main)


@pytest.mark.parametrize("jump", [PART_LEASE, -PART_LEASE])
def test_clocks_that_lie_lose_nothing_and_keep_the_order(jump: float) -> None:
    """I12: machines off by five seconds each way, and a store whose clock jumps by a lease under load."""

    async def main(fleet: Fleet) -> None:
        early = await fleet.add("early", wall_off=-5.0)
        late = await fleet.add("late", wall_off=5.0)
        await fleet.balanced()
        endpoints = await fleet.endpoints(early.gp, 12, concurrency=4)
        for number in range(200):
            if number == 100:
                fleet.store_clock.seconds += jump
            publisher = (early, late)[number % 2]
            key = "k" if number % 4 == 0 else None
            await publisher.gp.publish("a.b", b"%d" % number, ordering_key=key)
            await asyncio.sleep(0.1)
        await fleet.settled(300.0)
        for endpoint in endpoints:
            bodies = [int(body) for body in fleet.delivered(endpoint)]
            assert sorted(bodies) == list(range(200)), "I1: none lost"
            assert max(fleet.receiver.most_in_flight.values()) <= 8, "I2: at most a zombie's beside the owner's"
            if jump > 0:
                chain = [number for number in bodies if number % 8 == 0]
                assert chain == sorted(chain), "I3, as far as one producer saw it"

    Fleet().run(main)


def test_a_machine_half_a_minute_off_signs_and_starts_nothing() -> None:
    """Receivers would refuse its signatures; the others do its work once it holds nothing."""

    async def main(fleet: Fleet) -> None:
        good = await fleet.add("good")
        bad = await fleet.add("bad", wall_off=45.0)
        await asyncio.sleep(10.0)
        await fleet.endpoints(good.gp, 20)
        await good.gp.publish("a.b", b"x")
        await asyncio.sleep(5.0)
        assert "bad" not in fleet.receiver.by
        assert not bad.gp.statistics().clock_trusted
        assert len(fleet.receiver.sent) == 20
        bad.clock.seconds = 0.0
        await fleet.balanced(30.0)
        assert bad.parts == PARTS // 2

    Fleet().run(main)


def test_an_attempt_that_could_outlast_the_lease_is_refused_on_ordered_lanes() -> None:
    """With the arithmetic, so that it can be mended."""

    async def main(fleet: Fleet) -> None:
        gp = (await fleet.add("a")).gp
        await fleet.endpoints(gp, 1)
        await gp.publish("a.b", b"1")
        with pytest.raises(ConfigurationError, match=r"may take 38 s.*30 s less the margin of 2 s is 28 s"):
            await gp.publish("a.b", b"2", ordering_key="k")

    Fleet(policy=ClientPolicy(read_timeout=30.0)).run(main)


def test_cancelled_deliveries_are_forgotten_by_their_owner_elsewhere() -> None:
    """An operator asks one process; the rows are in the memory of another."""

    async def main(fleet: Fleet) -> None:
        async with fleet.started("a", "b") as (a, b):
            endpoints = await fleet.endpoints(a.gp, 10, rate=0.2)
            for number in range(4):
                await a.gp.publish("a.b", b"%d" % number)
            await asyncio.sleep(1.0)
            for endpoint in endpoints:
                await b.gp.deliveries.withdraw(endpoint.number)
            sent = len(fleet.receiver.sent)
            assert sent == 10
            await asyncio.sleep(60.0)
            assert len(fleet.receiver.sent) == sent

    Fleet().run(main)
