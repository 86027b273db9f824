"""The right to start, and who may have a part: answers that come late, processes that slept, clocks that stood still."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

from gatepost.dispatch.leases import LEASE_MARGIN, LeaseKeeper
from gatepost.dispatch.store_time import StoreTime
from gatepost.store.memory import MemoryStore
from gatepost.store.rows import PART_LEASE, Heartbeat, Node
from gatepost.testing.virtual import VirtualClock, run_virtual

PARTS = 8


class Store(MemoryStore):
    """Lets something happen while an answer is on its way back."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock, parts=PARTS)
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        self.late = 0.0
        """Seconds that a release takes to arrive."""

    async def release(self, parts: Mapping[int, int]) -> None:
        given = dict(parts)
        await asyncio.shield(asyncio.ensure_future(self._release_late(given)))

    async def _release_late(self, parts: Mapping[int, int]) -> None:
        await asyncio.sleep(self.late)
        await super().release(parts)

    async def heartbeat(self, node: Node, held: Mapping[int, int], want: int) -> Heartbeat:
        beat = await super().heartbeat(node, held, want)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return beat


class Load:
    """What is under way, by part."""

    def __init__(self) -> None:
        self.busy: dict[int, int] = {}
        self.changed = asyncio.Event()

    def outstanding(self, part: int) -> int:
        return self.busy.get(part, 0)

    async def wait_part_quiet(self, parts: Collection[int]) -> None:
        while parts and all(self.outstanding(part) for part in parts):
            self.changed.clear()
            await self.changed.wait()

    def quiet(self, part: int) -> None:
        self.busy.pop(part, None)
        self.changed.set()


class Bench:
    """A keeper, and what it told."""

    def __init__(self, store: MemoryStore, clock: VirtualClock, name: str = "a") -> None:
        self.won: list[set[int]] = []
        self.lost: list[set[int]] = []
        self.load = Load()
        self.time = StoreTime(clock)
        self.keeper = LeaseKeeper(
            store, Node(name), clock, self.time, self._won, lambda parts: self.lost.append(set(parts)), lambda: None
        )
        self.keeper.load = self.load

    async def _won(self, parts: Collection[int]) -> None:
        self.won.append(set(parts))

    async def settle_in(self) -> None:
        """Introduce, look, take."""
        await self.keeper.beat()
        await self.keeper.beat()
        assert self.keeper.balanced


def bench(main: Callable[[VirtualClock, Store, Bench], Awaitable[None]]) -> None:
    clock = VirtualClock()

    async def whole() -> None:
        store = Store(clock)
        await main(clock, store, Bench(store, clock))

    run_virtual(whole, clock=clock)


def test_the_right_to_start_ends_a_margin_before_the_lease_however_late_the_answer_came() -> None:
    """A process stopped between question and answer counts from the question: the store's lease runs from before the answer."""

    async def main(clock: VirtualClock, store: Store, own: Bench) -> None:
        await own.settle_in()

        async def stopped() -> None:
            clock.advance(20.0)

        store.meanwhile = stopped
        asked = clock.monotonic()
        await own.keeper.beat()
        until = own.keeper.right_until(0, own.keeper.epochs[0])
        assert until == asked + PART_LEASE - LEASE_MARGIN
        clock.advance(until - clock.monotonic() - 0.001)
        assert own.keeper.right_until(0, own.keeper.epochs[0]) == until
        clock.advance(0.001)
        assert own.keeper.right_until(0, own.keeper.epochs[0]) == 0.0
        assert not own.keeper.safe

    bench(main)


def test_a_machine_that_was_suspended_asks_before_it_starts_anything() -> None:
    """Its monotonic clock stood still while the leases ran out: only the wall clock knows."""

    async def main(clock: VirtualClock, store: Store, own: Bench) -> None:
        await own.settle_in()
        safe = [own.keeper.safe]
        clock.step_wall(40.0)
        assert own.keeper.right_until(0, own.keeper.epochs[0]) == 0.0
        safe.append(own.keeper.safe)
        await own.keeper.beat()
        safe.append(own.keeper.safe)
        assert safe == [True, False, True]

    bench(main)


def test_another_epoch_gives_no_right() -> None:
    """The row was read before the part was lost and won again."""

    async def main(clock: VirtualClock, store: Store, own: Bench) -> None:
        await own.settle_in()
        epoch = own.keeper.epochs[3]
        assert own.keeper.right_until(3, epoch) > 0
        assert own.keeper.right_until(3, epoch - 1) == 0.0
        assert own.keeper.right_until(PARTS, 1) == 0.0

    bench(main)


def test_an_answer_that_was_overtaken_by_a_release_does_not_bring_the_part_back() -> None:
    """The heartbeat renewed it, then it was given back, then the heartbeat's answer arrived."""

    async def main(clock: VirtualClock, store: Store, own: Bench) -> None:
        await own.settle_in()
        store.meanwhile = own.keeper.release
        await own.keeper.beat()
        assert own.keeper.epochs == {}
        assert [info.owner for info in await store.parts()] == [None] * PARTS

    bench(main)


def test_a_part_refused_under_its_current_epoch_is_lost_and_one_refused_under_an_older_is_read_again() -> None:
    """In the second case it is ours; but what was refused lies in the store as it was."""

    async def main(clock: VirtualClock, store: Store, own: Bench) -> None:
        await own.settle_in()
        epochs = dict(own.keeper.epochs)
        own.keeper.fenced({1: epochs[1], 2: epochs[2] - 1})
        assert own.lost == [{1, 2}]
        assert 1 not in own.keeper.epochs
        assert own.keeper.epochs[2] == epochs[2]
        own.won.clear()
        await own.keeper.beat()
        assert {2} <= own.won[0]

    bench(main)


def test_surplus_goes_back_quiet_parts_first_and_busy_ones_when_they_are_done() -> None:
    """A newcomer gets its half; what is in flight is never cut."""

    async def main(clock: VirtualClock, store: Store, own: Bench) -> None:
        await own.settle_in()
        own.load.busy = dict.fromkeys(range(PARTS - 2), 1)  # two are quiet, six are busy
        other = Bench(store.peer(), clock, "b")
        running = [
            asyncio.ensure_future(work())
            for work in (
                own.keeper.run,
                own.keeper.give_back_surplus,
                other.keeper.run,
                other.keeper.give_back_surplus,
            )
        ]
        await asyncio.sleep(5.0)
        assert sorted(other.keeper.epochs) == [PARTS - 2, PARTS - 1]
        closing = [part for part in range(PARTS) if part in own.keeper.epochs and not own.keeper.works_on(part)]
        assert len(closing) == 2, "no more are held up than are given back"
        for part in closing:
            own.load.quiet(part)
        await asyncio.sleep(2.0)
        assert len(own.keeper.epochs) == len(other.keeper.epochs) == PARTS // 2
        assert own.keeper.balanced
        assert other.keeper.balanced
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    bench(main)


def test_a_free_part_that_its_heir_does_not_take_is_taken_by_whoever_sees_it() -> None:
    """The heir may hang with its session up: a share on paper delivers nothing."""

    async def main(clock: VirtualClock, store: Store, own: Bench) -> None:
        peer = store.peer()
        await peer.heartbeat(Node("hangs"), {}, 0)
        running = asyncio.ensure_future(own.keeper.run())
        await asyncio.sleep(1.0)
        assert len(own.keeper.epochs) == PARTS // 2
        await asyncio.sleep(3.0)
        assert len(own.keeper.epochs) == PARTS
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    bench(main)


def test_a_drain_gives_parts_back_as_they_fall_quiet_and_says_so_first() -> None:
    """The others take what is free while the last attempt is still under way."""

    async def main(clock: VirtualClock, store: Store, own: Bench) -> None:
        await own.settle_in()
        own.load.busy = {0: 1}
        draining = asyncio.ensure_future(own.keeper.drain())
        await asyncio.sleep(0.5)
        assert list(own.keeper.epochs) == [0]
        assert [info.node.draining for info in await store.nodes()] == [True]
        assert own.keeper.right_until(0, own.keeper.epochs[0]) == 0.0
        own.load.quiet(0)
        await draining
        assert [info.owner for info in await store.parts()] == [None] * PARTS

    bench(main)


def test_a_takeover_that_outlasts_the_patience_of_a_heartbeat_goes_on_where_it_stood() -> None:
    """A store that needs many seconds to name a million lanes must not be asked for all of them again and again."""
    clock = VirtualClock()
    parts = 512
    won: list[int] = []

    async def slowly(found: Collection[int]) -> None:
        await asyncio.sleep(len(found) / 32)  # 16 seconds for all of them
        won.extend(found)

    async def main() -> None:
        store = MemoryStore(clock, parts=parts)
        keeper = LeaseKeeper(store, Node("a"), clock, StoreTime(clock), slowly, lambda _: None, lambda: None)
        keeping = asyncio.get_running_loop().create_task(keeper.run())
        await asyncio.sleep(60.0)
        keeping.cancel()
        assert keeper.balanced
        assert set(won) == set(range(parts))
        assert len(won) == parts, "none was looked at twice"

    run_virtual(main, clock=clock)


def test_a_part_whose_release_was_not_answered_is_not_worked_on_under_the_same_epoch() -> None:
    """The store may carry it out later, at any time: then another process has the part, and knows nothing of us."""

    async def main(clock: VirtualClock, store: Store, bench: Bench) -> None:
        await bench.settle_in()
        peer = store.peer()
        other = Bench(peer, clock, "b")
        await other.keeper.beat()
        await bench.keeper.beat()
        store.late = 20.0
        giving = asyncio.get_running_loop().create_task(bench.keeper.give_back_surplus())
        await asyncio.sleep(5.5)  # nobody answers
        await peer.aclose()  # and nobody wants the parts any more
        for _ in range(4):
            await bench.keeper.beat()
            await asyncio.sleep(4.0)
        giving.cancel()
        assert bench.keeper.balanced
        assert [info.owner for info in await store.parts()] == ["a"] * PARTS
        assert sorted(bench.keeper.epochs) == list(range(PARTS))

    bench(main)


def test_a_session_that_is_lost_while_an_answer_comes_back_stops_starts_all_the_same() -> None:
    """The answer was true when it was given; the others can take our parts since."""

    async def main(clock: VirtualClock, store: Store, bench: Bench) -> None:
        await bench.settle_in()

        async def lose() -> None:
            bench.keeper.session_lost()

        store.meanwhile = lose
        await bench.keeper.beat()
        assert not bench.keeper.safe
        await bench.keeper.beat()
        assert bench.keeper.safe

    bench(main)
