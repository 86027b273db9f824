"""The fleet's half of the store contract, for engines that several processes may share: who owns a part, and from when.

Two processes, A and B, with a session each, on one store whose clock is the test's. Not part of `StoreContract`: an engine for
one process has nothing to say here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from gatepost.errors import StoreError
from gatepost.store.port import Store
from gatepost.store.rows import (
    PART_LEASE,
    POKE_PART_FREE,
    SESSION_SETTLED,
    STRICT_AFTER_EXPIRY,
    SUB_FIFO_FIRST,
    DeadRow,
    DoneRow,
    Heartbeat,
    Lease,
    Node,
    Poke,
    RetryRow,
    SettleBatch,
    Target,
    lane_of,
)
from gatepost.testing.contract_queue import ContractBase
from gatepost.testing.store_builder import SECOND, Owner, key_of
from gatepost.testing.virtual import VirtualClock

A = Node("node-a", "http://127.0.0.1:8081")
B = Node("node-b", "http://127.0.0.1:8082", 2.0)
PATIENCE = 5.0
"""Seconds a message between two connections may take on a busy machine."""


class Fleet:
    """Two processes on one store."""

    def __init__(self, clock: VirtualClock, a: Store, b: Store) -> None:
        self.clock = clock
        self.a = a
        self.b = b
        self.count = a.capabilities.parts

    async def beat_a(self, held: Mapping[int, int] | None = None, want: int = 0) -> Heartbeat:
        """A heartbeat of A, which holds `held`."""
        return await self.a.heartbeat(A, held or {}, want)

    async def beat_b(self, held: Mapping[int, int] | None = None, want: int = 0) -> Heartbeat:
        """A heartbeat of B."""
        return await self.b.heartbeat(B, held or {}, want)

    async def pass_time(self, seconds: float, held_b: Mapping[int, int] | None = None) -> None:
        """Let the store's clock run, B beating all the while so that its node stays known."""
        while seconds > 0:
            step = min(seconds, 8.0)
            self.clock.advance(step)
            seconds -= step
            await self.beat_b(held_b)


def epochs(leases: Mapping[int, Lease]) -> dict[int, int]:
    """What the next heartbeat holds."""
    return {part: lease.epoch for part, lease in leases.items()}


class OwnershipContract(ContractBase):
    """Leases, epochs, fencing, takeover, nodes and pokes. An engine overrides `open_peer` and `lose_session` too."""

    async def open_peer(self, store: Store) -> Store:
        """The same store as another process sees it, with a session of its own."""
        raise NotImplementedError("return a second connection to the store that open_store made")

    async def lose_session(self, store: Store) -> None:
        """End the store's session as a crash would; returns once the others may notice."""
        raise NotImplementedError("end the store's session")

    @asynccontextmanager
    async def fleet(self) -> AsyncIterator[Fleet]:
        """Two processes on a new store, their sessions old enough to count."""
        clock = VirtualClock()
        a = await self.open_store(clock)
        try:
            b = await self.open_peer(a)
            try:
                fleet = Fleet(clock, a, b)
                await fleet.beat_a()
                await fleet.beat_b()
                clock.advance(SESSION_SETTLED + 1)
                yield fleet
            finally:
                await b.aclose()
        finally:
            await a.aclose()

    # -- order

    async def test_ordered_rows_keep_the_order_of_acknowledgements_whatever_publishers_think_the_time_is(self) -> None:
        """I3: who waits for one acknowledgement before the next event gets that order, through whichever process it goes."""
        async with self.fleet() as fleet:
            owner = await Owner.take(fleet.a, fleet.clock)
            other = Owner(fleet.b, fleet.clock, owner.name, owner.epoch, await fleet.b.new_node())
            ahead = owner.event(5, sub=SUB_FIFO_FIRST, due_in=30)
            await fleet.a.enqueue([ahead])
            fleet.clock.advance(0.001)
            behind = other.event(5, sub=SUB_FIFO_FIRST, due_in=-30)
            await fleet.b.enqueue([behind])
            fleet.clock.advance(0.001)
            rows = await owner.rows(lane_of(5, SUB_FIFO_FIRST))
            assert [row.event_id for row in rows] == [ahead.event_id, behind.event_id]
            await owner.settle(owner.done(rows[0]))
            assert [row.event_id for row in await owner.rows(lane_of(5, SUB_FIFO_FIRST))] == [behind.event_id]

    # -- taking and keeping

    async def test_a_heartbeat_takes_no_more_parts_than_it_wants(self) -> None:
        """Shares are the node's business; a part is never in two hands."""
        async with self.fleet() as fleet:
            mine = await fleet.beat_a(want=3)
            assert len(mine.leases) == 3
            theirs = await fleet.beat_b(want=fleet.count)
            assert len(theirs.leases) == fleet.count - 3
            assert mine.leases.keys().isdisjoint(theirs.leases)
            assert (await fleet.beat_a(epochs(mine.leases), want=5)).leases.keys() == mine.leases.keys()

    async def test_the_store_tells_its_clock_as_a_heartbeat_does(self) -> None:
        """A process that only publishes makes no heartbeats, and what it publishes is due by the same clock."""
        async with self.fleet() as fleet:
            fleet.clock.advance(1.5)
            assert await fleet.b.store_time() == (await fleet.beat_a()).store_time

    async def test_renewing_keeps_the_epoch_and_takes_nothing_unasked(self) -> None:
        """A part held for hours is held under one epoch."""
        async with self.fleet() as fleet:
            held = epochs((await fleet.beat_a(want=2)).leases)
            for _ in range(5):
                fleet.clock.advance(PART_LEASE * 0.8)
                beat = await fleet.beat_a(held)
                assert epochs(beat.leases) == held
                assert beat.lost == frozenset()
                assert all(0 < lease.valid_for <= PART_LEASE for lease in beat.leases.values())
                assert {lease.strict_in for lease in beat.leases.values()} == {0.0}

    async def test_a_part_nobody_ever_had_may_start_its_fifo_lanes_at_once(self) -> None:
        """There is no earlier owner to wait for."""
        async with self.fleet() as fleet:
            beat = await fleet.beat_a(want=fleet.count)
            assert {lease.strict_in for lease in beat.leases.values()} == {0.0}

    async def test_a_wrong_epoch_renews_nothing(self) -> None:
        """A node that slept through a takeover must hear of it, whoever holds the part now."""
        async with self.fleet() as fleet:
            held = epochs((await fleet.beat_a(want=1)).leases)
            stale = {part: epoch - 1 for part, epoch in held.items()}
            beat = await fleet.beat_a(stale)
            assert (beat.leases, beat.lost) == ({}, frozenset(stale))

    # -- taking over

    async def test_a_released_part_is_taken_at_once_and_owes_nothing(self) -> None:
        """A drained stop: everything was settled before the part was given back."""
        async with self.fleet() as fleet:
            held = epochs((await fleet.beat_a(want=fleet.count)).leases)
            part = min(held)
            await fleet.a.release({part: held[part]})
            [(taken, lease)] = (await fleet.beat_b(want=fleet.count)).leases.items()
            assert (taken, lease.strict_in) == (part, 0.0)
            assert lease.epoch > held[part]
            assert (await fleet.beat_a(held)).lost == frozenset({part})

    async def test_a_release_under_an_old_epoch_changes_nothing(self) -> None:
        """A zombie must not give away what is not its own."""
        async with self.fleet() as fleet:
            held = epochs((await fleet.beat_a(want=1)).leases)
            await fleet.b.release({part: epoch - 1 for part, epoch in held.items()})
            assert (await fleet.beat_a(held)).leases.keys() == held.keys()

    async def test_parts_of_a_node_without_heartbeats_are_free_when_their_leases_end(self) -> None:
        """A process that hangs with its connection open; FIFO lanes wait a moment longer."""
        async with self.fleet() as fleet:
            held = epochs((await fleet.beat_a(want=2)).leases)
            await fleet.pass_time(PART_LEASE - 1)
            assert held.keys().isdisjoint((await fleet.beat_b(want=fleet.count)).leases)
        async with self.fleet() as fleet:
            held = epochs((await fleet.beat_a(want=2)).leases)
            await fleet.pass_time(PART_LEASE + 1)
            taken = (await fleet.beat_b(want=fleet.count)).leases
            for part, epoch in held.items():
                assert taken[part].epoch > epoch
                assert 0 < taken[part].strict_in <= STRICT_AFTER_EXPIRY
            late = await fleet.beat_a(held)
            assert (late.leases, late.lost) == ({}, frozenset(held))

    async def test_parts_of_a_node_that_lost_its_session_are_free_at_once_but_for_fifo_lanes(self) -> None:
        """A killed process; what it may still have in flight must not overtake on an ordered lane."""
        async with self.fleet() as fleet:
            held = epochs((await fleet.beat_a(want=2)).leases)
            await fleet.pass_time(10)
            await self.lose_session(fleet.a)
            taken = (await fleet.beat_b(want=fleet.count)).leases
            for part, epoch in held.items():
                assert taken[part].epoch > epoch
                assert PART_LEASE - 12 <= taken[part].strict_in <= PART_LEASE - 9
            assert A.name not in [info.node.name for info in await fleet.b.nodes()]

    async def test_a_clock_that_steps_back_makes_no_quarantine_longer_than_a_lease(self) -> None:
        """The database's clock was an hour ahead when the owner renewed, and was set right: nobody is at work for an hour."""
        async with self.fleet() as fleet:
            held = epochs((await fleet.beat_a(want=2)).leases)
            await fleet.pass_time(10)
            fleet.clock.step_wall(-3_600.0)
            await fleet.beat_b()
            await fleet.pass_time(SESSION_SETTLED + 1)
            await self.lose_session(fleet.a)
            taken = (await fleet.beat_b(want=fleet.count)).leases
            for part in held:
                assert 0 < taken[part].strict_in <= PART_LEASE

    async def test_a_young_session_leaves_others_parts_alone(self) -> None:
        """After a restart of the database nobody has a session: all owners are on their way back."""
        async with self.fleet() as fleet:
            held = epochs((await fleet.beat_a(want=2)).leases)
            await self.lose_session(fleet.a)
            await self.lose_session(fleet.b)
            await fleet.beat_b()
            fleet.clock.advance(SESSION_SETTLED - 1)
            assert held.keys().isdisjoint((await fleet.beat_b(want=fleet.count)).leases)
            back = await fleet.beat_a(held)
            assert epochs(back.leases) == held, "the owner came back in time"
            assert {lease.strict_in for lease in back.leases.values()} == {0.0}
            fleet.clock.advance(2)
            assert held.keys().isdisjoint((await fleet.beat_b(want=fleet.count)).leases)

    async def test_a_fifo_quarantine_outlives_the_owners_that_come_and_go_meanwhile(self) -> None:
        """The first owner may be at work until its lease ends, however often the part changes hands."""
        async with self.fleet() as fleet:
            [(part, first)] = (await fleet.beat_a(want=1)).leases.items()
            await self.lose_session(fleet.a)
            second = (await fleet.beat_b(want=fleet.count)).leases
            fleet.clock.advance(4)
            await fleet.b.release({part: second[part].epoch})
            await fleet.beat_a()
            third = (await fleet.beat_a(want=1)).leases[part]
            assert third.epoch > second[part].epoch > first.epoch
            assert PART_LEASE - 6 <= third.strict_in <= PART_LEASE - 3

    async def test_a_heartbeat_whose_answer_was_lost_is_made_good_by_the_next(self) -> None:
        """The node does not know what it took, and nobody else may have it for half a minute."""
        async with self.fleet() as fleet:
            unheard = (await fleet.beat_a(want=fleet.count)).leases
            again = (await fleet.beat_a(want=fleet.count)).leases
            assert again.keys() == unheard.keys()
            assert all(again[part].epoch > unheard[part].epoch for part in again)

    # -- fencing

    async def test_a_stale_owners_failures_change_nothing_and_its_success_counts(self) -> None:
        """I8: what was delivered was delivered; everything else belongs to the new owner."""
        async with self.fleet() as fleet:
            held = epochs((await fleet.beat_a(want=fleet.count)).leases)
            ids = Owner(fleet.a, fleet.clock, A.name, 0, await fleet.a.new_node())
            numbers = [fleet.count + 1, 2 * fleet.count + 1, 3 * fleet.count + 2]
            stored = []
            for number in numbers:
                event = ids.event(number)
                [made] = event.targets
                target = Target(made.lane, number % fleet.count, made.delivery_id, made.due_at)
                stored.append(ids.event(number, targets=(target,)))
            await fleet.a.enqueue(stored)
            rows = [(await ids.rows(lane_of(number, 0)))[0] for number in numbers]
            assert [row.part for row in rows] == [1, 1, 2]
            await fleet.a.release({1: held[1]})
            taken = (await fleet.beat_b(want=1)).leases
            assert set(taken) == {1}
            retry, dead, own = rows
            batch = SettleBatch(
                {1: held[1], 2: held[2]},
                retry=[
                    RetryRow(key_of(row), row.part, 0, 1, fleet.clock.wall_us() + 60 * SECOND) for row in (retry, own)
                ],
                dead=[DeadRow(key_of(dead), 1, 0, 1, dead.event_id, "gone", None, None, fleet.clock.wall_us())],
            )
            assert (await fleet.a.settle(batch)).fenced == {1}
            assert await ids.rows(retry.lane) == [retry]
            assert await ids.rows(dead.lane) == [dead]
            assert await ids.rows(own.lane) == [], "the part that is still ours was settled"
            done = SettleBatch({1: held[1]}, done=[DoneRow(key_of(retry), retry.event_id)])
            assert (await fleet.a.settle(done)).fenced == {1}
            assert await ids.rows(retry.lane) == []
            fresh = SettleBatch({1: taken[1].epoch}, done=[DoneRow(key_of(dead), dead.event_id)])
            assert (await fleet.b.settle(fresh)).fenced == frozenset()

    async def test_discovery_finds_the_lanes_of_the_parts_asked_for(self) -> None:
        """I10: an owner that takes a part finds every lane of it, and no others."""
        async with self.fleet() as fleet:
            ids = Owner(fleet.a, fleet.clock, A.name, 0, await fleet.a.new_node())
            for number in (fleet.count + 1, fleet.count + 2, 5 * fleet.count + 2):
                event = ids.event(number)
                [made] = event.targets
                await fleet.a.enqueue([ids.event(number, targets=(made._replace(part=number % fleet.count),))])
            assert list(await fleet.b.discover([1])) == [(1, lane_of(fleet.count + 1, 0))]
            expected = {(2, lane_of(fleet.count + 2, 0)), (2, lane_of(5 * fleet.count + 2, 0))}
            assert set(await fleet.b.discover([2, 3])) == expected

    # -- looking, and telling each other

    async def test_the_nodes_alive_are_told_with_what_they_hold(self) -> None:
        """Every node computes its share from this, so all must see the same."""
        async with self.fleet() as fleet:
            await fleet.beat_a(want=3)
            beat = await fleet.b.heartbeat(Node(B.name, B.address, B.weight, draining=True), {}, 0)
            nodes = await fleet.a.nodes()
            assert list(beat.nodes) == list(nodes)
            assert [(info.node.name, info.node.address, info.parts) for info in nodes] == [
                (A.name, A.address, 3),
                (B.name, B.address, 0),
            ]
            assert [(info.node.weight, info.node.draining) for info in nodes] == [(1.0, False), (2.0, True)]
            assert all(abs(info.seen_at - fleet.clock.wall_us()) <= 2 * SECOND for info in nodes)

    async def test_a_node_that_was_not_heard_of_for_a_lease_is_not_alive(self) -> None:
        """Its share goes to the others."""
        async with self.fleet() as fleet:
            await fleet.pass_time(PART_LEASE + 1)
            assert [info.node.name for info in await fleet.b.nodes()] == [B.name]

    async def test_a_closed_store_is_no_node_any_more(self) -> None:
        """A process that drained and ended counts for nobody's share from that moment on."""
        async with self.fleet() as fleet:
            third = await self.open_peer(fleet.a)
            await third.heartbeat(Node("node-c"), {}, 0)
            assert "node-c" in [info.node.name for info in await fleet.a.nodes()]
            await third.aclose()
            assert "node-c" not in [info.node.name for info in await fleet.a.nodes()]

    async def test_every_part_is_told_with_its_owner(self) -> None:
        """For status: who owns what, and for how long."""
        async with self.fleet() as fleet:
            held = (await fleet.beat_a(want=2)).leases
            fleet.clock.advance(10)
            parts = await fleet.b.parts()
            assert [info.part for info in parts] == list(range(fleet.count))
            for info in parts:
                if info.part in held:
                    assert (info.owner, info.epoch) == (A.name, held[info.part].epoch)
                    assert PART_LEASE - 12 <= info.lease_left <= PART_LEASE - 9
                else:
                    assert (info.owner, info.lease_left) == (None, 0.0)

    async def test_pokes_reach_the_other_processes_and_not_the_one_that_sent_them(self) -> None:
        """One message however many lanes; a lane poked twice is told once or twice, never less."""
        async with self.fleet() as fleet:
            waiter = asyncio.ensure_future(fleet.b.wait_pokes())
            own = asyncio.ensure_future(fleet.a.wait_pokes())
            await asyncio.sleep(0)
            sent = [Poke(3, lane_of(3, 0), 100), Poke(4, lane_of(4, 0), 200), Poke(5, POKE_PART_FREE, 0)]
            await fleet.a.poke(sent)
            heard: list[Poke] = []
            async with asyncio.timeout(PATIENCE):
                heard += await waiter
                while set(heard) != set(sent):
                    heard += await fleet.b.wait_pokes()
            assert not own.done()
            own.cancel()
            await asyncio.gather(own, return_exceptions=True)

    async def test_pokes_that_nobody_waited_for_are_kept_for_the_next_wait(self) -> None:
        """The owner was busy with the ones before."""
        async with self.fleet() as fleet:
            await self._hear(fleet.b, fleet.a, [Poke(1, lane_of(1, 0), 1)])
            await fleet.a.poke([Poke(3, lane_of(3, 0), 100)])
            await fleet.a.poke([Poke(4, lane_of(4, 0), 200)])
            heard: set[Poke] = set()
            async with asyncio.timeout(PATIENCE):
                while len(heard) < 2:
                    heard.update(await fleet.b.wait_pokes())

    async def test_a_wait_for_pokes_fails_when_the_session_is_lost(self) -> None:
        """That is how a process hears, at once, that others may take what it holds."""
        async with self.fleet() as fleet:
            await self._hear(fleet.b, fleet.a, [Poke(1, lane_of(1, 0), 1)])
            waiter = asyncio.ensure_future(fleet.b.wait_pokes())
            await asyncio.sleep(0)
            await self.lose_session(fleet.b)
            async with asyncio.timeout(PATIENCE):
                try:
                    await waiter
                except StoreError:
                    pass
                else:
                    raise AssertionError("the session is lost")
            await fleet.beat_b()
            await self._hear(fleet.b, fleet.a, [Poke(2, lane_of(2, 0), 1)])

    @staticmethod
    async def _hear(waiting: Store, poking: Store, pokes: Sequence[Poke]) -> None:
        """Poke until it is heard: only then the waiter's connection listens for certain."""
        waiter = asyncio.ensure_future(waiting.wait_pokes())
        async with asyncio.timeout(PATIENCE):
            while not waiter.done():
                await poking.poke(pokes)
                await asyncio.sleep(0.02)
        assert set(waiter.result()) == set(pokes)
