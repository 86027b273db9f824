"""The small parts of a dispatcher by themselves: store time, leases, settling, bodies, notices, tasks, loop lag."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence

import pytest

from gatepost.clock import SYSTEM_CLOCK
from gatepost.dispatch.bodies import Bodies
from gatepost.dispatch.lanes import Kind, Lane
from gatepost.dispatch.leases import BEAT, LEASE_MARGIN, LeaseKeeper
from gatepost.dispatch.loop_lag import HELD_MIN, LATE_P99, TICK, WINDOW, LoopLag
from gatepost.dispatch.maintenance import BUDGET_MAX, BUDGET_MIN, next_budget
from gatepost.dispatch.notices import REMEMBERED_MAX, REPEAT_AFTER_US, Notices
from gatepost.dispatch.round import SchedulerLimits, Start
from gatepost.dispatch.scheduler import LaneScheduler
from gatepost.dispatch.seats import EndpointSettings
from gatepost.dispatch.settle import BATCH, BATCH_MAX, Result, SettleBuffer
from gatepost.dispatch.store_time import SKEW_LIMIT_US, StoreTime
from gatepost.dispatch.tasks import RESTART_DELAY, TaskSet, keep_running
from gatepost.errors import StoreError
from gatepost.store.memory import MemoryStore
from gatepost.store.rows import (
    AttemptRow,
    DoneRow,
    EventBody,
    Heartbeat,
    Lease,
    NewEvent,
    Node,
    Row,
    RowKey,
    SettleBatch,
    SettleResult,
)
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation
from gatepost.testing.virtual import VirtualClock, run_virtual

SECOND = 1_000_000

# ----------------------------------------------------------------------------------------------- store time


def test_store_time_follows_the_store_and_never_goes_back() -> None:
    """Due times of yesterday must not be due again because a clock was set."""
    clock = VirtualClock()
    time = StoreTime(clock)
    begin = time()
    clock.advance(1.0)
    assert time() == begin + SECOND
    time.correct(begin + 11 * SECOND, clock.monotonic_ns())
    assert time() == begin + 11 * SECOND, "ahead: at once"
    time.correct(begin + 1 * SECOND, clock.monotonic_ns())
    assert time() == begin + 11 * SECOND, "back: not at all"
    seen = [time()]
    for _ in range(40):
        clock.advance(1.0)
        seen.append(time())
    assert seen == sorted(seen)
    assert seen[1] - seen[0] == SECOND // 2, "but slower"
    assert seen[-1] == begin + 41 * SECOND, "until it is right"


def test_store_time_counts_half_of_the_way_and_knows_how_far_off_the_machine_is() -> None:
    """A machine half a minute off must not sign."""
    clock = VirtualClock()
    time = StoreTime(clock)
    asked = clock.monotonic_ns()
    said = clock.wall_us()
    clock.advance(0.2)
    time.correct(said + 5 * SECOND, asked)
    assert time.skew_us == 5 * SECOND - 100_000
    assert time.trusted
    time.correct(clock.wall_us() - SKEW_LIMIT_US - 1, clock.monotonic_ns())
    assert not time.trusted


def test_store_time_learns_nothing_from_an_answer_that_was_long_on_its_way() -> None:
    """A network that was silent for half a minute gives its answers then: nothing may start early, or wait, for that."""
    clock = VirtualClock()
    time = StoreTime(clock)
    time.correct(clock.wall_us(), clock.monotonic_ns())
    for share in (0.0, 0.5, 1.0):
        asked = clock.monotonic_ns()
        clock.advance(30.0 * share)
        said = clock.wall_us()
        clock.advance(30.0 * (1 - share))
        time.correct(said, asked)
        assert time() == clock.wall_us(), f"the store answered after {share} of the way"
    asked = clock.monotonic_ns()
    clock.advance(2.0)
    time.correct(clock.wall_us() + 9 * SECOND, asked)
    assert time() == clock.wall_us() + 9 * SECOND, "but what cannot be is put right, as far as is known"


# ---------------------------------------------------------------------------------------------------- leases


class LeasingStore(MemoryStore):
    """Answers heartbeats by script."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.leases: Mapping[int, Lease] = {}
        self.fails = False
        self.discover_fails = False
        self.asked: list[tuple[Mapping[int, int], int]] = []
        self.given_back: Mapping[int, int] = {}

    async def heartbeat(self, node: Node, held: Mapping[int, int], want: int) -> Heartbeat:
        self.asked.append((held, want))
        if self.fails:
            raise StoreError("away")
        await asyncio.sleep(0.5)
        return Heartbeat(self.leases, frozenset(), self.clock.wall_us())

    async def release(self, parts: Mapping[int, int]) -> None:
        self.given_back = parts
        if self.fails:
            raise StoreError("away")


class Owner:
    """Hears of parts."""

    def __init__(self, store: LeasingStore, clock: VirtualClock) -> None:
        self.store = store
        self.won: list[list[int]] = []
        self.lost: list[list[int]] = []
        self.renewed = 0
        self.keeper = LeaseKeeper(store, Node("me"), clock, StoreTime(clock), self._won, self._lost, self._renewed)

    async def _won(self, parts: Collection[int]) -> None:
        if self.store.discover_fails:
            raise StoreError("away")
        self.won.append(sorted(parts))

    def _lost(self, parts: Collection[int]) -> None:
        self.lost.append(sorted(parts))

    def _renewed(self) -> None:
        self.renewed += 1


def _safe(owner: Owner) -> bool:
    return owner.keeper.safe


def test_the_right_to_start_ends_by_our_own_clock_before_the_lease_does() -> None:
    """Counted from the sending of the heartbeat, less a margin, whether or not the store can say so."""
    clock = VirtualClock()

    async def main() -> None:
        store = LeasingStore(clock)
        owner = Owner(store, clock)
        assert owner.keeper.seconds_left == 0.0
        store.leases = {0: Lease(3, 30.0)}
        await owner.keeper.beat()
        assert (owner.won, owner.lost, owner.renewed) == ([[0]], [], 1)
        assert owner.keeper.seconds_left == pytest.approx(30.0 - LEASE_MARGIN - 0.5)
        await asyncio.sleep(30.0 - LEASE_MARGIN - 0.5 - 0.001)
        assert _safe(owner)
        await asyncio.sleep(0.002)
        assert not _safe(owner)
        assert repr(owner.keeper) == "<LeaseKeeper me parts=1 margin=0.0s>"

    run_virtual(main, clock=clock)


def test_parts_that_change_epoch_are_lost_and_won() -> None:
    """Somebody else may have owned them in between."""
    clock = VirtualClock()

    async def main() -> None:
        store = LeasingStore(clock)
        owner = Owner(store, clock)
        store.leases = {0: Lease(3, 30.0)}
        await owner.keeper.beat()
        store.leases = {0: Lease(5, 30.0)}
        await owner.keeper.beat()
        assert (owner.won, owner.lost) == ([[0], [0]], [[0]])
        assert store.asked[-1] == ({0: 3}, 0)
        owner.keeper.fenced({0: 5, 9: 1})
        owner.keeper.fenced({0: 5})
        assert owner.lost == [[0], [0]]
        store.leases = {}
        await owner.keeper.beat()
        assert not owner.keeper.safe
        assert store.asked[-1] == ({}, 1)

    run_virtual(main, clock=clock)


def test_a_part_whose_lanes_could_not_be_found_is_looked_at_again() -> None:
    """Else its rows would wait until somebody restarts us."""
    clock = VirtualClock()

    async def main() -> None:
        store = LeasingStore(clock)
        owner = Owner(store, clock)
        store.leases = {0: Lease(3, 30.0)}
        store.discover_fails = True
        running = asyncio.ensure_future(owner.keeper.run())
        await asyncio.sleep(5)
        assert owner.won == []
        store.discover_fails = False
        await asyncio.sleep(5)
        assert owner.won == [[0]]
        beats = len(store.asked)
        await asyncio.sleep(10 * (BEAT + 0.5))
        assert len(store.asked) - beats == 10
        running.cancel()

    run_virtual(main, clock=clock)


def test_giving_back_forgets_first_and_survives_a_failing_store(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing may start any more, whatever the store says."""
    clock = VirtualClock()

    async def main() -> None:
        store = LeasingStore(clock)
        owner = Owner(store, clock)
        store.leases = {0: Lease(3, 30.0)}
        await owner.keeper.beat()
        store.fails = True
        await owner.keeper.release()
        assert store.given_back == {0: 3}
        assert owner.lost == [[0]]
        assert not owner.keeper.safe
        running = asyncio.ensure_future(owner.keeper.run())
        await asyncio.sleep(3.5)
        assert len(store.asked) == 1 + 4
        running.cancel()

    run_virtual(main, clock=clock)
    assert "free when their leases end" in caplog.text
    assert "heartbeat failed" in caplog.text


def test_a_clock_that_differs_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Over a second: due times and logs no longer agree."""
    clock = VirtualClock()

    class Ahead(LeasingStore):
        async def heartbeat(self, node: Node, held: Mapping[int, int], want: int) -> Heartbeat:
            return Heartbeat({0: Lease(1, 30.0)}, frozenset(), self.clock.wall_us() + 60 * SECOND)

    async def main() -> None:
        owner = Owner(Ahead(clock), clock)
        await owner.keeper.beat()
        assert not owner.keeper.safe, "and half a minute off means no start at all"

    run_virtual(main, clock=clock)
    assert "differs from this machine's by 60.0 s" in caplog.text


# --------------------------------------------------------------------------------------------------- settling


class SettlingStore(MemoryStore):
    """Keeps batches, and fails by script."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[SettleBatch] = []
        self.errors: list[Exception] = []
        self.poison: int | None = None
        self.fenced: frozenset[int] = frozenset()

    async def settle(self, batch: SettleBatch) -> SettleResult:
        await asyncio.sleep(0.001)
        if self.errors:
            raise self.errors.pop(0)
        if any(done.key.delivery_id == self.poison for done in batch.done):
            raise KeyError("no engine can take this")
        self.batches.append(batch)
        return SettleResult(self.fenced)


class Desk:
    """Hears of what was stored."""

    def __init__(self, store: SettlingStore) -> None:
        self.stored: list[Result] = []
        self.fenced: list[int] = []
        self.trouble: list[str] = []
        self.buffer = SettleBuffer(
            store, self.stored.extend, self.fenced.extend, lambda kind, _error: self.trouble.append(kind)
        )


def _start(number: int, part: int = 0) -> Start:
    scheduler = LaneScheduler(SchedulerLimits(10, 8), lambda number: EndpointSettings(number, "t", "h", 6, None, True))
    scheduler.hand_over([Row(1 << 8, 1, number, number, 0, 1, part)], 1)
    start = scheduler.take(1)
    assert start is not None
    return start


def _result(number: int, *, part: int = 0, epoch: int = 1) -> Result:
    start = _start(number, part)
    key = RowKey(start.row.lane, start.row.due_at, number)
    return Result(start, epoch, DoneRow(key, number), None)


def _settle(store: SettlingStore, results: Sequence[Result], seconds: float = 60.0) -> Desk:
    desks: list[Desk] = []

    async def main() -> None:
        desk = Desk(store)
        desks.append(desk)
        running = asyncio.ensure_future(desk.buffer.run())
        for result in results:
            desk.buffer.add(result)
        await asyncio.sleep(seconds)
        await desk.buffer.flush()
        running.cancel()

    run_virtual(main)
    return desks[0]


def test_results_wait_a_moment_for_company() -> None:
    """One transaction for what ends within five milliseconds."""
    store = SettlingStore()
    desk = _settle(store, [_result(number) for number in range(10)])
    assert [len(batch.done) for batch in store.batches] == [10]
    assert [result.start.row.delivery_id for result in desk.stored if result.start] == list(range(10))
    assert store.batches[0].epochs == {0: 1}


def test_a_flood_is_cut_into_transactions_of_bounded_size() -> None:
    """The store's thread is not held for long."""
    store = SettlingStore()
    _settle(store, [_result(number) for number in range(BATCH_MAX + BATCH)])
    assert [len(batch.done) for batch in store.batches] == [BATCH_MAX, BATCH]


def test_results_of_two_epochs_of_a_part_do_not_share_a_transaction() -> None:
    """Each is fenced by the epoch under which its row was read."""
    store = SettlingStore()
    results = [_result(1), _result(2, part=1, epoch=7), _result(3, epoch=2), _result(4, epoch=2)]
    _settle(store, results)
    assert [batch.epochs for batch in store.batches] == [{0: 1, 1: 7}, {0: 2}]


def test_a_failing_store_is_asked_until_it_takes_everything() -> None:
    """Idempotent, so a commit of unknown outcome is repeated too."""
    store = SettlingStore()
    store.errors = [StoreError("disk")] * 8
    desk = _settle(store, [_result(1)], seconds=60.0)
    assert len(store.batches) == 1
    assert desk.trouble == ["settle_failed"], "said once"
    assert not desk.buffer.failing


def test_one_result_that_no_store_takes_does_not_hold_back_the_others() -> None:
    """It is left out and said; its row stays where it is."""
    store = SettlingStore()
    store.poison = 3
    desk = _settle(store, [_result(number) for number in range(6)])
    taken = [done.key.delivery_id for batch in store.batches for done in batch.done]
    assert taken == [0, 1, 2, 4, 5]
    assert [result.start.row.delivery_id for result in desk.stored if result.rejected and result.start] == [3]
    assert desk.trouble == ["settle_failed", "settle_rejected"]


def test_parts_that_were_fenced_are_reported_after_their_results() -> None:
    """The worker drops them at once."""
    store = SettlingStore()
    store.fenced = frozenset({0})
    assert _settle(store, [_result(1)]).fenced == [0]


def test_log_lines_and_idle_markers_travel_with_results() -> None:
    """In the same transaction, or in one of their own."""
    store = SettlingStore()
    line = AttemptRow(
        1, 1, 1, 1, "t", 1, "cancelled", "wait", "cancelled", "safe", "us", None, 0, "", None, b"", "defer", "w"
    )

    async def main() -> None:
        desk = Desk(store)
        desk.buffer.add_idle([(0, 256), (5, 512)], {0: 4})
        desk.buffer.add(Result(None, 4, None, line))
        running = asyncio.ensure_future(desk.buffer.run())
        await desk.buffer.flush()
        running.cancel()

    run_virtual(main)
    (batch,) = store.batches
    assert (batch.epochs, batch.attempts, list(batch.idle)) == ({0: 4}, [line], [(0, 256), (5, 512)])


# ----------------------------------------------------------------------------------------------------- bodies


def _event(number: int, size: int = 10) -> NewEvent:
    return NewEvent(number, "t", None, "a.b", "text/plain", b"x" * size, 1, ())


def _body(number: int, size: int = 10) -> EventBody:
    return EventBody(number, "t", "a.b", "text/plain", b"x" * size)


class LoadingStore(MemoryStore):
    """Counts loads."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[list[int]] = []

    async def load_events(self, ids: Collection[int]) -> Mapping[int, EventBody]:
        self.loads.append(sorted(ids))
        await asyncio.sleep(0.001)
        return await super().load_events(ids)


def test_a_body_is_dropped_with_its_last_delivery() -> None:
    """Memory after a million events is what it was after the first."""
    bodies = Bodies(MemoryStore())
    bodies.put(_body(1), 2)
    assert bodies.hold_nowait(1) == _body(1)
    bodies.release(1)
    assert bodies.hold_nowait(1) is not None
    assert bodies.bytes > 0
    bodies.release(1)
    assert (bodies.hold_nowait(1), bodies.bytes) == (None, 0)


def test_bodies_wanted_together_are_loaded_together_and_once() -> None:
    """A fan-out read from the store must not load one body a thousand times."""
    store = LoadingStore()

    async def main() -> None:
        await store.enqueue([_event(1), _event(2)])
        bodies = Bodies(store)
        found = await asyncio.gather(bodies.hold(1), bodies.hold(2), bodies.hold(1), bodies.hold(3))
        assert list(found) == [_body(1), _body(2), _body(1), None]
        assert store.loads == [[1, 2, 3]]
        for number in (1, 2, 1):
            bodies.release(number)
        assert bodies.bytes == 0
        await bodies.aclose()

    run_virtual(main)


def test_a_body_that_is_waited_for_is_never_pushed_out() -> None:
    """It must not pass for an event that is missing: such a delivery would be cancelled."""
    store = LoadingStore()

    async def main() -> None:
        await store.enqueue([_event(number, 1_000) for number in range(100)])
        bodies = Bodies(store, bytes_max=1_500)
        holds = [asyncio.ensure_future(bodies.hold(number)) for number in range(100)]
        await asyncio.sleep(1)
        assert [hold.done() for hold in holds] == [True] * 64 + [False] * 36, "one batch over the bound"
        assert bodies.full
        for number in range(64):
            bodies.release(number)
        found = await asyncio.gather(*holds)
        assert [body.event_id for body in found if body is not None] == list(range(100))
        for number in range(64, 100):
            bodies.release(number)
        assert (bodies.full, bodies.bytes) == (False, 0)

    run_virtual(main)


@pytest.mark.parametrize("turns", range(5))
def test_whoever_gives_up_waiting_for_a_body_leaves_no_hold(turns: int) -> None:
    """Before the load, during it, and in the very turn of the loop in which it ends."""
    store = LoadingStore()

    async def main() -> None:
        await store.enqueue([_event(1)])
        bodies = Bodies(store)
        gives_up = asyncio.ensure_future(bodies.hold(1))
        stays = asyncio.ensure_future(bodies.hold(1))
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        gives_up.cancel()
        await asyncio.gather(gives_up, return_exceptions=True)
        if gives_up.cancelled() is False:
            bodies.release(1)
        assert await stays == _body(1)
        bodies.release(1)
        assert bodies.bytes == 0

    run_virtual(main)


def test_a_store_that_cannot_load_says_so_to_whoever_asked() -> None:
    """And is asked again by the next."""
    store = LoadingStore()

    async def main() -> None:
        await store.enqueue([_event(1)])
        await store.aclose()
        bodies = Bodies(store)

        class Away(LoadingStore):
            async def load_events(self, ids: Collection[int]) -> Mapping[int, EventBody]:
                raise StoreError("away")

        broken = Bodies(Away())
        with pytest.raises(StoreError):
            await broken.hold(1)
        with pytest.raises(StoreError):
            await broken.hold(1)
        assert await bodies.hold(1) == _body(1)

    run_virtual(main)


# ------------------------------------------------------------------------------------------ notices and tasks


class Observer:
    """Keeps operational observations; raises when told to."""

    def __init__(self) -> None:
        self.heard: list[OperationalObservation] = []
        self.raises = False

    def attempt_finished(self, observation: AttemptObservation) -> None:
        raise NotImplementedError

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        raise NotImplementedError

    def operational(self, observation: OperationalObservation) -> None:
        self.heard.append(observation)
        if self.raises:
            raise RuntimeError("users' code")


def test_a_notice_is_given_once_an_hour() -> None:
    """A thousand failing deliveries are one thing to know."""
    now = [SECOND]
    observer = Observer()
    notices = Notices(observer, lambda: now[0])
    for _ in range(1_000):
        notices.owner_must_act("t", "ep_1", "status_404")
    notices.owner_must_act("t", "ep_2", "status_404")
    notices.disabled("t", "ep_1", "status_410")
    assert [one.kind for one in observer.heard] == ["endpoint_needs_owner"] * 2 + ["endpoint_disabled"]
    now[0] += REPEAT_AFTER_US
    observer.raises = True
    notices.owner_must_act("t", "ep_1", "status_404")
    assert len(observer.heard) == 4


def test_notices_are_logged_without_an_observer_and_remembered_within_bounds(caplog: pytest.LogCaptureFixture) -> None:
    """A library user sees them, and a million endpoints do not fill memory."""
    notices = Notices(None, lambda: SECOND)
    with caplog.at_level(logging.CRITICAL):
        for number in range(REMEMBERED_MAX + 10):
            notices.owner_must_act("t", f"ep_{number}", "status_404")
    assert len(notices._given) == REMEMBERED_MAX
    notices.trouble("disk", StoreError("full"))
    assert "disk: full" in caplog.text


async def test_tasks_are_kept_until_they_end_and_failures_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """A task nobody holds may vanish, and its error with it."""
    failed: list[str] = []
    tasks = TaskSet(lambda _name, error: failed.append(str(error)))
    go = asyncio.Event()

    async def waits() -> None:
        await go.wait()

    async def sleeps() -> None:
        await asyncio.sleep(60)

    async def fails() -> None:
        raise ValueError("broken")

    tasks.start(waits())
    tasks.start(fails())
    tasks.start(sleeps())
    assert len(tasks) == 3
    await asyncio.sleep(0)
    go.set()
    await asyncio.sleep(0)
    tasks.cancel()
    await tasks.wait_empty()
    assert (len(tasks), failed) == (0, ["broken"])
    assert "a task of the dispatcher failed" in caplog.text


def test_a_loop_that_fails_starts_again(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever it was, deliveries go on."""
    runs: list[float] = []
    failed: list[str] = []

    async def main() -> None:
        async def loop() -> None:
            runs.append(asyncio.get_running_loop().time())
            if len(runs) == 1:
                raise KeyError("a bug")

        running = asyncio.ensure_future(keep_running("reads", loop, lambda name, _error: failed.append(name)))
        await asyncio.sleep(2.5 * RESTART_DELAY)
        running.cancel()

    run_virtual(main)
    assert len(runs) == 3
    assert failed == ["reads"]
    assert "reads failed and is started again" in caplog.text


# --------------------------------------------------------------------------------------------------- loop lag


def test_retention_takes_larger_portions_while_it_lags_and_smaller_ones_on_a_busy_disk() -> None:
    """At 5,000 events a second a fixed small portion falls behind for ever; a fixed large one would stand before results."""
    budgets = [BUDGET_MIN]
    for more, seconds in (
        (True, 0.02),
        (True, 0.03),
        (True, 0.06),
        (True, 0.1),
        (True, 0.4),
        (True, 0.4),
        (False, 0.1),
    ):
        budgets.append(next_budget(budgets[-1], more, seconds))
    assert budgets == [500, 1_000, 2_000, 4_000, 4_000, 2_000, 1_000, 500]
    assert next_budget(BUDGET_MIN, True, 9.0) == BUDGET_MIN
    assert BUDGET_MAX == 4_000


def test_a_late_loop_holds_attempts_where_they_are_but_leaves_room_for_a_few() -> None:
    """Beyond the few, only what ends is replaced; and slow endpoints cannot keep everybody else out."""
    lag = LoopLag(SYSTEM_CLOCK)
    assert lag.ceiling(200) == 200
    lag.sample(1.0, 150)
    assert lag.ceiling(200) == 200, "one pause is no habit"
    lag.sample(1.0, 150)
    lag.sample(1.0, 190)
    assert (lag.ceiling(200), lag.ceiling(100)) == (150, 100)
    for _ in range(WINDOW):
        lag.sample(LATE_P99, 150)
    assert (lag.late, lag.ceiling(200)) == (False, 200)
    lag.sample(1.0, 3)
    lag.sample(1.0, 3)
    assert lag.ceiling(200) == HELD_MIN
    assert lag.window.worst == 1.0


def test_lag_is_measured_only_while_attempts_are_in_flight() -> None:
    """An idle dispatcher costs nothing, and what was late an hour ago says nothing."""
    clock = VirtualClock()
    asked = 0
    flying = 0

    def in_flight() -> int:
        nonlocal asked
        asked += 1
        return flying

    async def main() -> None:
        nonlocal flying
        lag = LoopLag(clock)
        running = asyncio.ensure_future(lag.run(in_flight))
        await asyncio.sleep(3_600)
        assert asked == 1
        flying = 100
        lag.wake()
        await asyncio.sleep(1.0)
        assert asked >= 0.9 / TICK
        clock.advance(0.5)
        await asyncio.sleep(TICK)
        clock.advance(0.5)
        await asyncio.sleep(2 * TICK)
        assert lag.ceiling(200) == 100
        flying = 0
        await asyncio.sleep(2 * TICK)
        assert lag.ceiling(200) == 200
        running.cancel()

    run_virtual(main, clock=clock)


# ------------------------------------------------------------------------------------------------------ lanes


def _lane() -> Lane:
    scheduler = LaneScheduler(SchedulerLimits(10, 8), lambda number: EndpointSettings(number, "t", "h", 6, None, True))
    scheduler.adopt([(0, 256)], 1)
    return scheduler._roster.lanes[256]


def test_what_changes_during_a_read_lowers_the_mark_of_the_next() -> None:
    """The answer may be older than the change."""
    lane = _lane()
    lane.begin_read(10, 100 * SECOND)
    lane.missed(50)
    lane.expect(70)
    lane.end_read([Row(256, 90, 1, 1, 0, 1, 0)], None, 100)
    assert (lane.unread, lane.low_water, lane.next_due) == (True, 50, 70)


def test_the_earliest_of_what_is_known_to_come_is_kept() -> None:
    """A read knows one due time, a retry settled meanwhile another."""
    lane = _lane()
    lane.begin_read(10, 100)
    lane.expect(500)
    lane.end_read([], 300, 100)
    assert lane.next_due == 300
    lane.expect(400)
    assert lane.next_due == 300


def test_retries_and_first_attempts_wait_apart_and_return_to_the_front() -> None:
    """A row put back has waited longest."""
    lane = _lane()
    first, second = (Row(256, 1, number, number, 0, 1, 0) for number in (1, 2))
    retry = Row(256, 1, 3, 3, 2, 1, 0)
    for row in (first, second, retry):
        assert lane.append(row)
    assert not lane.append(first)
    assert lane.pop(Kind.FIRST) == first
    lane.put_back(first)
    assert lane.pop(Kind.FIRST) == first
    assert lane.pop(Kind.RETRY) == retry
    lane.put_back(retry)
    assert lane.buffered == 2
    assert lane.remove(frozenset({2, 3, 99})) == 2
    assert (lane.buffered, lane.held) == (0, {1})
