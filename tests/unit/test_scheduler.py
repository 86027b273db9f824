"""The lane scheduler rule by rule: order, shares, caps, windows. The model test covers their interplay."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

import gatepost.dispatch
from gatepost.dispatch.lanes import DEEP_EVERY, DEEP_OVERLAP, FULL_EVERY, IDLE_GRACE, OVERLAP, window_of
from gatepost.dispatch.reads import BUFFER_LAST, BUFFER_ROWS_MAX, READ_LANES_MAX
from gatepost.dispatch.round import OTHER_HOSTS, SHED_HOSTS_MAX, UNSETTLED_MAX, SchedulerLimits, Start
from gatepost.dispatch.scheduler import LaneScheduler
from gatepost.dispatch.seats import EndpointSettings
from gatepost.store.rows import (
    SUB_BULK,
    SUB_FIFO_FIRST,
    SUB_HIGH,
    SUB_NORMAL,
    LaneRows,
    LaneWant,
    Row,
    endpoint_of,
    lane_of,
)

NOW = 1_800_000_000_000_000
SECOND = 1_000_000


class Bench:
    """A scheduler with endpoints made on the fly and short words for what tests do."""

    def __init__(self, slots: int = 200, host_cap: int | None = 8) -> None:
        self.settings: dict[int, EndpointSettings] = {}
        self.scheduler = LaneScheduler(SchedulerLimits(slots, host_cap), self.settings.get)
        self.ids = 0

    def endpoint(
        self,
        number: int,
        *,
        tenant: str = "t",
        host: str | None = None,
        cap: int = 6,
        rate: float | None = None,
        opened: bool = True,
    ) -> int:
        self.settings[number] = EndpointSettings(number, tenant, host or f"h{number}", cap, rate, opened)
        self.scheduler.endpoint_changed(number, NOW)
        return number

    def rows(
        self, endpoint: int, count: int = 1, *, sub: int = SUB_NORMAL, attempt: int = 0, due: int = NOW
    ) -> list[Row]:
        rows = []
        for _ in range(count):
            self.ids += 1
            rows.append(Row(lane_of(endpoint, sub), due, self.ids, self.ids, attempt, NOW, 0))
        return rows

    def give(self, endpoint: int, count: int = 1, *, sub: int = SUB_NORMAL, attempt: int = 0) -> None:
        self.scheduler.hand_over(self.rows(endpoint, count, sub=sub, attempt=attempt), NOW)

    def take_all(self, now: int = NOW) -> list[Start]:
        starts = []
        while (start := self.scheduler.take(now)) is not None:
            starts.append(start)
        return starts

    def deliver(self, starts: Iterable[Start], now: int = NOW) -> None:
        for start in starts:
            self.scheduler.finish(start, now)
            self.scheduler.settled(start, now)

    def run(self, turns: int, now: int = NOW) -> list[int]:
        """Endpoints in order of start, one attempt at a time."""
        order = []
        for _ in range(turns):
            start = self.scheduler.take(now)
            assert start is not None
            order.append(endpoint_of(start.row.lane))
            self.deliver([start], now)
        return order


def _endpoints(starts: Iterable[Start]) -> Counter[int]:
    return Counter(endpoint_of(start.row.lane) for start in starts)


# ------------------------------------------------------------------------------------------------- fairness


def test_endpoints_of_a_tenant_take_turns() -> None:
    """A backlog of one endpoint must not delay the single event of another by more than one turn."""
    bench = Bench()
    for number in (1, 2, 3):
        bench.endpoint(number)
    bench.give(1, 10)
    bench.give(2, 2)
    bench.give(3, 1)
    assert bench.run(6) == [1, 2, 3, 1, 2, 1]


def test_tenants_take_turns_whatever_number_of_endpoints_they_have() -> None:
    """Fairness is by tenant first: 22,000 endpoints of one must not leave 4 % to everybody else."""
    bench = Bench()
    for number in range(1, 11):
        bench.endpoint(number, tenant="big")
        bench.give(number, 3)
    bench.endpoint(99, tenant="small")
    bench.give(99, 3)
    assert bench.run(6)[1::2] == [99, 99, 99]


def test_a_million_rows_elsewhere_leave_a_start_where_it_was() -> None:
    """I4: the depth of a neighbour's lane is not in the formula."""

    def turn_of_two(depth: int) -> int:
        bench = Bench()
        bench.endpoint(1)
        bench.endpoint(2)
        bench.give(1, depth)
        bench.give(2)
        return bench.run(2).index(2)

    assert turn_of_two(1) == turn_of_two(1_000)


def test_lanes_of_an_endpoint_share_eight_to_four_to_one() -> None:
    """High goes first, bulk never starves."""
    bench = Bench()
    bench.endpoint(1, cap=64)
    for sub in (SUB_BULK, SUB_NORMAL, SUB_HIGH):
        bench.give(1, 100, sub=sub)
    subs: Counter[int] = Counter()
    for start in (bench.scheduler.take(NOW) for _ in range(8)):
        assert start is not None
        subs[start.row.lane & 0xFF] += 1
        bench.deliver([start])
    assert subs == {SUB_HIGH: 8}
    for start in (bench.scheduler.take(NOW) for _ in range(18)):
        assert start is not None
        subs[start.row.lane & 0xFF] += 1
        bench.deliver([start])
    assert subs == {SUB_HIGH: 16, SUB_NORMAL: 8, SUB_BULK: 2}


def test_a_tenant_may_hold_half_of_the_slots_while_another_has_work() -> None:
    """And all of them while nobody else has."""
    bench = Bench(slots=10, host_cap=100)
    for number in range(1, 6):
        bench.endpoint(number, tenant="big")
        bench.give(number, 10)
    alone = bench.take_all()
    assert len(alone) == 10
    bench.deliver(alone[:5])
    bench.endpoint(9, tenant="small", cap=64)
    bench.give(9, 10)
    assert _endpoints(bench.take_all()) == {9: 5}


def test_an_odd_number_of_slots_is_used_up_by_two_tenants() -> None:
    """Half of three rounded down would leave one slot empty for ever."""
    bench = Bench(slots=3)
    for number in (1, 2):
        bench.endpoint(number, tenant=f"t{number}")
        bench.give(number, 5)
    assert len(bench.take_all()) == 3


# ------------------------------------------------------------------------------------------------- retries


def test_first_attempts_go_before_retries() -> None:
    """Fresh events see no queue of old failures in front of them."""
    bench = Bench()
    bench.endpoint(1, cap=64)
    bench.give(1, 3, attempt=1)
    bench.give(1, 3)
    assert [start.row.attempt for start in bench.take_all()] == [0, 0, 0, 1, 1, 1]


def test_retries_take_a_fifth_of_the_busy_slots_but_three_at_least() -> None:
    """A wave of retries after an outage must leave the slots to first attempts."""
    few = Bench(slots=100)
    few.endpoint(1, cap=64, host="h")
    few.give(1, 5, attempt=1)
    assert len(few.take_all()) == 3
    many = Bench(slots=100, host_cap=None)
    for number in range(1, 51):
        many.endpoint(number)
        many.give(number, 4, attempt=2)
    assert len(many.take_all()) == 20
    assert many.scheduler.statistics().retries_in_flight == 20


def test_endless_first_attempts_do_not_starve_retries() -> None:
    """I4: one start in five is theirs."""
    bench = Bench()
    bench.endpoint(1, cap=64)
    bench.give(1, 5, attempt=1)
    attempts = []
    for _ in range(20):
        bench.give(1)
        start = bench.scheduler.take(NOW)
        assert start is not None
        attempts.append(start.row.attempt)
        bench.deliver([start])
    assert attempts == [0, 0, 0, 0, 1] * 4


# ---------------------------------------------------------------------------------------- caps, hosts, rates


def test_an_endpoint_never_exceeds_its_cap_and_is_counted_as_shed_once_a_turn() -> None:
    """I2. The rows passed over are not counted one by one: nothing was claimed for them."""
    bench = Bench()
    bench.endpoint(1, cap=2)
    bench.give(1, 10)
    starts = bench.take_all()
    assert len(starts) == 2
    assert bench.scheduler.statistics().sheds == {"h1": 1}
    bench.take_all()
    assert bench.scheduler.statistics().sheds == {"h1": 1}
    bench.deliver(starts)
    assert len(bench.take_all()) == 2
    assert bench.scheduler.statistics().sheds == {"h1": 2}


def test_a_full_host_makes_its_endpoints_wait_in_turn() -> None:
    """Waiting for a connection is a state of the scheduler: no slot is held by it, and leases go round by endpoint."""
    bench = Bench(host_cap=2)
    for number in (1, 2, 3):
        bench.endpoint(number, host="shared", cap=6)
        bench.give(number, 4)
    bench.endpoint(9)
    bench.give(9)
    starts = bench.take_all()
    assert _endpoints(starts) == {1: 1, 2: 1, 9: 1}
    assert bench.scheduler.statistics().host_waits >= 1
    order = []
    for _ in range(6):
        bench.deliver([starts.pop(0)])
        started = bench.take_all()
        order += [endpoint_of(start.row.lane) for start in started]
        starts = [*starts, *started]
    assert order[:6].count(3) == 2
    assert Counter(order[:6]) == {1: 2, 2: 2, 3: 2} or Counter(order[:6])[9] == 0


def test_one_endpoint_holds_at_most_half_of_a_host_that_others_wait_for() -> None:
    """A slow endpoint on a shared name must not collect all connections, turn by turn."""
    bench = Bench(host_cap=4)
    bench.endpoint(1, host="shared")
    bench.endpoint(2, host="shared")
    bench.give(1, 20)
    stuck = bench.take_all()
    assert len(stuck) == 4
    bench.give(2, 20)
    bench.take_all()
    for start in stuck[:2]:
        bench.deliver([start])
        stuck += bench.take_all()
    assert _endpoints(stuck[4:]) == {2: 2}


def test_a_newcomer_does_not_overtake_who_waits_for_the_host() -> None:
    """Waiters in order: a freed slot is promised to the first of them."""
    bench = Bench(host_cap=1)
    for number in (1, 2, 3):
        bench.endpoint(number, host="shared")
    bench.give(1)
    (running,) = bench.take_all()
    bench.give(2)
    assert bench.take_all() == []
    bench.scheduler.finish(running, NOW)
    bench.give(3)
    (started,) = bench.take_all()
    assert endpoint_of(started.row.lane) == 2


def test_an_automatic_host_cap_follows_its_endpoints_between_eight_and_a_quarter_of_the_slots() -> None:
    """`serve` has hosts with ten thousand endpoints and hosts with one."""
    bench = Bench(slots=100, host_cap=None)
    for number in range(1, 21):
        bench.endpoint(number, host="saas", cap=6)
        bench.give(number, 6)
    assert len(bench.take_all()) == 25
    alone = Bench(slots=100, host_cap=None)
    alone.endpoint(1, cap=64)
    alone.give(1, 64)
    assert len(alone.take_all()) == 25
    small = Bench(slots=8, host_cap=None)
    small.endpoint(1, cap=64)
    small.give(1, 64)
    assert len(small.take_all()) == 8


def test_a_rate_is_a_burst_of_one_second_and_then_a_steady_drip() -> None:
    """An owner's limit holds over any second after the first."""
    bench = Bench()
    bench.endpoint(1, cap=64, rate=4.0)
    bench.give(1, 20)
    bench.deliver(bench.take_all())
    started = 4
    now = NOW
    for _ in range(20):
        now += SECOND // 8
        bench.scheduler.tick(now)
        starts = bench.take_all(now)
        started += len(starts)
        bench.deliver(starts, now)
    assert started == 4 + 10 - 1 or started == 4 + 10


def test_a_rate_survives_an_endpoint_that_runs_empty_between_events() -> None:
    """Forgetting the bucket with the last row would turn one per minute into no limit at all."""
    bench = Bench()
    bench.endpoint(1, rate=1 / 600)
    bench.give(1)
    bench.deliver(bench.take_all())
    now = NOW + 2 * IDLE_GRACE
    bench.scheduler.tick(now)
    assert bench.scheduler.statistics().lanes == 0
    bench.scheduler.hand_over(bench.rows(1), now)
    assert bench.take_all(now) == []
    later = NOW + 601 * SECOND
    bench.scheduler.tick(later)
    assert len(bench.take_all(later)) == 1


def test_the_lag_guard_lowers_the_limit_below_the_slots() -> None:
    """Attempts under way are replaced, none is added."""
    bench = Bench(slots=10)
    for number in (1, 2):
        bench.endpoint(number)
        bench.give(number, 6)
    bench.scheduler.limit = 3
    starts = bench.take_all()
    assert len(starts) == 3
    bench.deliver(starts[:1])
    assert len(bench.take_all()) == 1


def test_a_failing_store_stops_new_attempts_before_memory_does() -> None:
    """Results that nobody takes must not pile up for ever."""
    bench = Bench()
    bench.endpoint(1, cap=64)
    ended = []
    for _ in range(UNSETTLED_MAX):
        bench.give(1)
        ended += bench.take_all()
        bench.scheduler.finish(ended[-1], NOW)
    bench.give(1)
    assert bench.scheduler.take(NOW) is None
    bench.scheduler.settled(ended[0], NOW)
    assert bench.scheduler.take(NOW) is not None


def test_hosts_counted_by_name_are_bounded() -> None:
    """A counter lives as long as the process, so a million hosts must not each have one."""
    bench = Bench()
    for number in range(1, SHED_HOSTS_MAX + 3):
        bench.endpoint(number, cap=1)
        bench.give(number, 2)
        bench.deliver(bench.take_all())
    sheds = bench.scheduler.statistics().sheds
    assert len(sheds) == SHED_HOSTS_MAX + 1
    assert sheds[OTHER_HOSTS] == 2


# ------------------------------------------------------------------------------------------------- reading


def _want(bench: Bench, now: int = NOW) -> list[LaneWant]:
    return list(bench.scheduler.wants(now))


def test_blocked_means_free() -> None:
    """I5: rows of paused, full, unknown and held endpoints are not read."""
    bench = Bench()
    bench.endpoint(1, opened=False)
    bench.endpoint(2, cap=1)
    bench.endpoint(3)
    bench.give(2)
    bench.take_all()
    bench.give(3)
    (start,) = bench.take_all()
    bench.scheduler.finish(start, NOW)
    bench.scheduler.deferred(start, NOW + SECOND, NOW)
    for number in (1, 2, 3, 4):
        bench.scheduler.adopt([(0, lane_of(number, SUB_BULK))], NOW)
    assert _want(bench) == []
    bench.endpoint(1)
    assert [want.lane for want in _want(bench)] == [lane_of(1, SUB_BULK)]
    bench.scheduler.tick(NOW + SECOND)
    assert [want.lane for want in _want(bench, NOW + SECOND)] == [lane_of(3, SUB_BULK)]
    bench.endpoint(4)
    assert [want.lane for want in _want(bench)] == [lane_of(4, SUB_BULK)]


def test_pausing_drops_what_is_in_memory_and_resuming_reads_it_again() -> None:
    """Memory holds copies only."""
    bench = Bench()
    bench.endpoint(1)
    bench.give(1, 10)
    bench.endpoint(1, opened=False)
    assert bench.scheduler.buffered == 0
    assert bench.take_all() == []
    bench.give(1, 5)
    assert bench.scheduler.buffered == 0
    bench.endpoint(1)
    (want,) = _want(bench)
    assert want == LaneWant(lane_of(1, 0), window_of(1), 0), "and slowly at first"


@pytest.mark.parametrize(("cap", "window"), [(1, 16), (4, 16), (6, 24), (64, 256), (500, 256)])
def test_the_window_is_four_rows_for_each_attempt_within_bounds(cap: int, window: int) -> None:
    """Enough to hide one read, little enough to hold for fifty thousand lanes."""
    assert window == window_of(cap)


def test_a_deep_lane_is_read_by_windows_and_behind_what_is_held() -> None:
    """The rows held come back first in every answer, so the limit counts them too."""
    bench = Bench()
    bench.endpoint(1)
    lane = lane_of(1, 0)
    bench.scheduler.adopt([(0, lane)], NOW)
    (want,) = _want(bench)
    assert want.limit == 24
    rows = [row._replace(due_at=NOW - 1_000 + n) for n, row in enumerate(bench.rows(1, 100))]
    bench.scheduler.read([LaneRows(lane, rows[:24], rows[24].due_at)], NOW, NOW)
    starts = bench.take_all()
    assert [start.row for start in starts] == rows[:6]
    bench.deliver(starts)
    assert _want(bench) == [], "more than half of the window is here"
    starts = bench.take_all()
    bench.scheduler.finish(starts[0], NOW)
    (want,) = _want(bench)
    assert want.limit == 12 + 18, "twelve wait, six were taken and are not settled"
    bench.scheduler.read([LaneRows(lane, rows[6:36], rows[36].due_at)], NOW, NOW)
    assert bench.scheduler.buffered == 24


def test_a_row_seen_twice_is_held_once() -> None:
    """A read that began before the hand-over may return what was handed over."""
    bench = Bench()
    bench.endpoint(1)
    lane = lane_of(1, 0)
    bench.scheduler.adopt([(0, lane)], NOW)
    (want,) = _want(bench)
    row, missed = bench.rows(1, 2)
    bench.scheduler.hand_over([row, missed], NOW)
    bench.scheduler.read([LaneRows(lane, [row], None)], NOW, NOW)
    assert bench.scheduler.buffered == 1
    (again,) = _want(bench)
    assert (want.lane, again.lane) == (lane, lane)
    assert again.low_water < NOW
    bench.scheduler.read([LaneRows(lane, [row, missed], None)], NOW, NOW)
    assert len(bench.take_all()) == 2


def test_the_low_water_mark_steps_back_in_three_tiers() -> None:
    """Dead index entries are not walked again each time, yet late commits and clocks askew are healed."""
    bench = Bench()
    bench.endpoint(1)
    lane = lane_of(1, 0)

    def read_at(now: int, due: int) -> int:
        bench.scheduler.expect(0, lane, now, now)
        (want,) = _want(bench, now)
        bench.scheduler.read([LaneRows(lane, [row._replace(due_at=due) for row in bench.rows(1)], None)], now, now)
        bench.deliver(bench.take_all(now), now)
        return want.low_water

    read_at(NOW, NOW)
    assert read_at(NOW + 1, NOW + 1) == NOW - OVERLAP
    assert read_at(NOW + DEEP_EVERY, NOW + DEEP_EVERY) == NOW + 1 - DEEP_OVERLAP
    assert read_at(NOW + DEEP_EVERY + 1, NOW + 5) == NOW + DEEP_EVERY - OVERLAP
    assert read_at(NOW + FULL_EVERY, NOW + FULL_EVERY) == 0


def test_a_retry_that_is_due_before_the_mark_is_read_all_the_same() -> None:
    """A quick second try may be due before rows that were read since."""
    bench = Bench()
    bench.endpoint(1)
    lane = lane_of(1, 0)
    bench.give(1)
    (start,) = bench.take_all()
    bench.scheduler.finish(start, NOW)
    bench.scheduler.expect(0, lane, NOW, NOW)
    (want,) = _want(bench)
    bench.scheduler.retried(start, 1, NOW + 5, NOW)
    bench.scheduler.read([LaneRows(lane, bench.rows(1, due=NOW + SECOND), None)], NOW + SECOND, NOW + SECOND)
    bench.scheduler.tick(NOW + SECOND)
    (want,) = _want(bench, NOW + SECOND)
    assert want.low_water <= NOW + 5


def test_rows_due_later_cost_one_timer() -> None:
    """Ten thousand retries of a lane wait in the store, not in memory."""
    bench = Bench()
    bench.endpoint(1)
    bench.scheduler.hand_over(bench.rows(1, 1_000, due=NOW + 3_600 * SECOND), NOW)
    assert bench.scheduler.buffered == 0
    assert bench.scheduler.statistics().timers == 1
    assert bench.scheduler.next_at() == NOW + 3_600 * SECOND
    assert _want(bench) == []
    bench.scheduler.tick(NOW + 3_600 * SECOND)
    assert len(_want(bench, NOW + 3_600 * SECOND)) == 1


def test_a_read_asks_for_a_bounded_number_of_lanes() -> None:
    """So that one read does not hold the store's thread for long."""
    bench = Bench()
    for number in range(1, READ_LANES_MAX + 11):
        bench.endpoint(number)
    bench.scheduler.adopt([(0, lane_of(number, 0)) for number in range(1, READ_LANES_MAX + 11)], NOW)
    assert [len(_want(bench)), len(_want(bench)), len(_want(bench))] == [READ_LANES_MAX, 10, 0]
    assert bench.scheduler.statistics().reading == READ_LANES_MAX + 10


def test_a_failed_read_is_asked_again() -> None:
    """No lost wake-up: the lanes stay unread."""
    bench = Bench()
    bench.endpoint(1)
    bench.scheduler.adopt([(0, lane_of(1, 0))], NOW)
    wants = _want(bench)
    bench.scheduler.read_failed(wants)
    assert [want.lane for want in _want(bench)] == [want.lane for want in wants]


def test_a_full_buffer_leaves_every_empty_lane_two_rows() -> None:
    """Fifty thousand rows of full endpoints must not keep a healthy one from its first."""
    bench = Bench(slots=5_000)
    lanes = BUFFER_ROWS_MAX // 16 + 1
    for number in range(1, lanes + 1):
        bench.endpoint(number, cap=1)
        bench.give(number, 17)
    assert BUFFER_ROWS_MAX <= bench.scheduler.buffered <= BUFFER_ROWS_MAX + 16
    bench.endpoint(99_999)
    before = bench.scheduler.buffered
    bench.give(99_999, 10)
    assert bench.scheduler.buffered == before + BUFFER_LAST
    assert any(endpoint_of(start.row.lane) == 99_999 for start in bench.take_all())


def test_endpoints_that_wait_for_a_busy_host_do_not_fill_the_buffer() -> None:
    """Ten thousand endpoints on one name hold two rows each."""
    bench = Bench(host_cap=1)
    for number in range(1, 101):
        bench.endpoint(number, host="saas")
        bench.give(number)
    bench.take_all()
    before = bench.scheduler.buffered
    for number in range(1, 101):
        bench.give(number, 10)
    assert bench.scheduler.buffered - before <= 100 * BUFFER_LAST


# ------------------------------------------------------------------------------------- FIFO, defer, cancel


def test_only_the_head_of_a_fifo_lane_runs_and_the_next_waits_until_it_is_settled() -> None:
    """I3: a receiver sees the events of one key in order."""
    bench = Bench()
    bench.endpoint(1)
    bench.give(1, 3, sub=16)
    (first,) = bench.take_all()
    bench.scheduler.finish(first, NOW)
    assert bench.take_all() == []
    bench.scheduler.settled(first, NOW)
    (second,) = bench.take_all()
    assert second.row.delivery_id == first.row.delivery_id + 1


def test_a_failed_head_blocks_its_fifo_lane_until_it_is_due_and_no_other_key() -> None:
    """Order is the contract of one key; others do not wait for it."""
    bench = Bench()
    bench.endpoint(1)
    bench.give(1, 2, sub=16)
    bench.give(1, 1, sub=17)
    head, other = bench.take_all()
    bench.scheduler.finish(head, NOW)
    bench.scheduler.retried(head, 1, NOW + 5 * SECOND, NOW)
    bench.deliver([other])
    assert bench.take_all() == []
    bench.scheduler.tick(NOW + 5 * SECOND)
    (again,) = bench.take_all(NOW + 5 * SECOND)
    assert again.row == head.row._replace(attempt=1)


def test_a_part_taken_over_holds_its_ordered_lanes_only() -> None:
    """Its last owner may still be sending; what is not ordered may overlap, what is ordered may not."""
    bench = Bench()
    for number in (1, 2):
        bench.endpoint(number)
    bench.give(1, sub=16)
    bench.scheduler.hold_strict({0: NOW + 10 * SECOND})
    bench.give(2, sub=17)
    bench.give(2)
    assert [start.row.lane for start in bench.take_all()] == [lane_of(2, 0)]
    assert bench.scheduler.next_at() == NOW + 10 * SECOND
    bench.scheduler.tick(NOW + 10 * SECOND)
    assert {start.row.lane for start in bench.take_all(NOW + 10 * SECOND)} == {lane_of(1, 16), lane_of(2, 17)}


def test_a_hold_of_another_part_and_one_that_ended_hold_nothing() -> None:
    """A part given back in order is taken with nothing to wait for."""
    bench = Bench()
    bench.endpoint(1)
    bench.scheduler.hold_strict({1: NOW + 10 * SECOND})
    bench.scheduler.hold_strict({0: NOW + 10 * SECOND})
    bench.scheduler.hold_strict({0: 0})
    bench.give(1, sub=16)
    assert len(bench.take_all()) == 1


def test_a_head_that_failed_under_the_last_owner_waits_here_too() -> None:
    """Said before its lane is found, or after; and a head that is cancelled keeps nobody waiting."""
    bench = Bench()
    bench.endpoint(1)
    later = NOW + 300 * SECOND
    bench.scheduler.hold_head(lane_of(1, 16), later)
    rows = bench.rows(1, 2, sub=16, attempt=4)
    bench.scheduler.hand_over(rows, NOW)
    bench.give(1, sub=17, attempt=4)
    bench.scheduler.hold_head(lane_of(1, 17), later)
    assert bench.take_all() == []
    bench.scheduler.forget([rows[0].delivery_id], NOW)
    assert [start.row for start in bench.take_all()] == [rows[1]]
    bench.scheduler.tick(later)
    assert [start.row.lane for start in bench.take_all(later)] == [lane_of(1, 17)]


def test_a_resumed_endpoint_is_loaded_one_two_four() -> None:
    """Days of backlog must not fall on a receiver that has just come back; each doubling takes a second and a delivery."""
    bench = Bench(host_cap=64)
    bench.endpoint(1, cap=6, opened=False)
    bench.give(1, 100)
    bench.endpoint(1, cap=6)
    now, most = NOW, []
    for _ in range(5):
        for want in bench.scheduler.wants(now):
            bench.scheduler.read([LaneRows(want.lane, bench.rows(1, want.limit), now)], now, now)
        starts = bench.take_all(now)
        most.append(len(starts))
        for start in starts:
            bench.scheduler.finish(start, now)
            bench.scheduler.delivered(start, now)
        now += SECOND
        bench.scheduler.tick(now)
    assert most == [1, 1, 2, 4, 6]


def test_a_resumed_endpoint_that_takes_nothing_gets_no_more() -> None:
    """And a pause of somebody else's, or a change while it is open, is no reason to go slowly."""
    bench = Bench(host_cap=64)
    bench.endpoint(1, opened=False)
    bench.give(1, 20)
    bench.endpoint(1)
    now = NOW
    for _ in range(4):
        for want in bench.scheduler.wants(now):
            bench.scheduler.read([LaneRows(want.lane, bench.rows(1, want.limit), now)], now, now)
        (start,) = bench.take_all(now)
        bench.scheduler.finish(start, now)
        bench.scheduler.retried(start, 1, now + 60 * SECOND, now)
        now += 2 * SECOND
    bench.endpoint(2, cap=6)
    bench.give(2, 20)
    bench.scheduler.hold_back(2, now)
    bench.scheduler.let_go(2, now)
    for want in bench.scheduler.wants(now):
        rows = bench.rows(2, 20) if endpoint_of(want.lane) == 2 else []
        bench.scheduler.read([LaneRows(want.lane, rows, None)], now, now)
    bench.endpoint(2, cap=5)
    assert _endpoints(bench.take_all(now))[2] == 5


def test_a_late_row_of_a_fifo_lane_is_put_in_its_place() -> None:
    """Another process' transaction may commit after a later one."""
    bench = Bench()
    bench.endpoint(1)
    early, late = bench.rows(1, 2, sub=16)
    bench.scheduler.hand_over([late, early], NOW)
    assert [start.row for start in bench.take_all()] == [early]


def test_a_deferred_row_starts_again_after_its_hold_with_nothing_written() -> None:
    """No connection was to be had: that costs neither an attempt nor a write."""
    bench = Bench()
    bench.endpoint(1)
    bench.give(1, 2)
    first, second = bench.take_all()
    bench.deliver([second])
    bench.scheduler.finish(first, NOW)
    bench.scheduler.deferred(first, NOW + SECOND, NOW)
    assert bench.take_all() == []
    assert bench.scheduler.next_at() == NOW + SECOND
    bench.scheduler.tick(NOW + SECOND)
    assert [start.row for start in bench.take_all(NOW + SECOND)] == [first.row]


def test_cancelled_rows_are_forgotten_even_if_a_read_returns_them() -> None:
    """The answer under way may be older than the cancellation."""
    bench = Bench()
    bench.endpoint(1)
    bench.give(1, 3)
    lane = lane_of(1, 0)
    bench.scheduler.expect(0, lane, NOW, NOW)
    _want(bench)
    bench.scheduler.hold_back(1, NOW)
    bench.scheduler.forget([1, 2], NOW)
    bench.scheduler.let_go(1, NOW)
    bench.scheduler.read([LaneRows(lane, [Row(lane, NOW, n, n, 0, NOW, 0) for n in (1, 2, 3)], None)], NOW, NOW)
    assert [start.row.delivery_id for start in bench.take_all()] == [3]


def test_holding_back_nests() -> None:
    """Two operators cancel at once: the first to end must not let the other's rows start."""
    bench = Bench()
    bench.endpoint(1)
    bench.scheduler.hold_back(1, NOW)
    bench.scheduler.hold_back(1, NOW)
    bench.give(1)
    bench.scheduler.let_go(1, NOW)
    assert bench.take_all() == []
    bench.scheduler.let_go(1, NOW)
    assert len(_want(bench)) == 1


# -------------------------------------------------------------------------------------- coming and going


def test_idle_endpoints_cost_nothing_and_their_markers_go_after_a_minute() -> None:
    """A process that has seen a million endpoints holds those with work."""
    bench = Bench()
    for number in range(1, 101):
        bench.endpoint(number, tenant=f"t{number}")
        bench.give(number)
    bench.deliver(bench.take_all())
    bench.scheduler.tick(NOW + IDLE_GRACE - 1)
    assert bench.scheduler.take_idle() == []
    bench.scheduler.tick(NOW + IDLE_GRACE)
    assert len(bench.scheduler.take_idle()) == 100
    statistics = bench.scheduler.statistics()
    assert (statistics.lanes, statistics.endpoints, statistics.tenants, statistics.hosts) == (0, 0, 0, 0)
    assert bench.scheduler.next_at() is None
    assert bench.scheduler.take_idle() == []


def test_a_lane_used_now_and_then_keeps_its_marker() -> None:
    """Removing and adding it each minute would be writes for nothing."""
    bench = Bench()
    bench.endpoint(1)
    for minute in range(10):
        now = NOW + minute * (IDLE_GRACE - SECOND)
        bench.scheduler.tick(now)
        bench.scheduler.hand_over([row._replace(due_at=now) for row in bench.rows(1)], now)
        bench.deliver(bench.take_all(now), now)
    assert bench.scheduler.take_idle() == []


def test_a_lost_part_is_dropped_at_once_and_what_flies_ends_quietly() -> None:
    """Another owner reads these rows now; late results must not disturb the counts."""
    bench = Bench()
    bench.endpoint(1)
    bench.endpoint(2, rate=5.0)
    bench.give(1, 10)
    bench.give(2, 3)
    starts = bench.take_all()
    bench.scheduler.drop_parts([0], NOW)
    assert bench.scheduler.buffered == 0
    assert bench.take_all() == []
    for how, start in enumerate(starts):
        bench.scheduler.finish(start, NOW)
        if how % 3 == 0:
            bench.scheduler.settled(start, NOW)
        elif how % 3 == 1:
            bench.scheduler.retried(start, 1, NOW + SECOND, NOW)
        else:
            bench.scheduler.deferred(start, NOW + SECOND, NOW)
    bench.scheduler.tick(NOW + 60 * SECOND)
    statistics = bench.scheduler.statistics()
    assert (statistics.in_flight, statistics.unsettled, statistics.buffered) == (0, 0, 0)
    assert (statistics.lanes, statistics.endpoints, statistics.hosts) == (0, 0, 0)


def test_an_endpoint_that_moves_leaves_its_old_host() -> None:
    """A changed URL must neither wait for the old host nor count against it."""
    bench = Bench(host_cap=1)
    bench.endpoint(1, host="old")
    bench.endpoint(2, host="old")
    bench.give(1)
    (running,) = bench.take_all()
    bench.give(2)
    assert bench.take_all() == []
    bench.endpoint(2, host="new")
    assert _endpoints(bench.take_all()) == {2: 1}
    bench.endpoint(1, host="new")
    bench.give(1)
    assert bench.take_all() == []
    bench.deliver([running])
    assert bench.scheduler.statistics().hosts == 1


def test_closed_lanes_are_listed_for_maintenance() -> None:
    """Rows of paused and unknown endpoints grow old unread; somebody must end them."""
    bench = Bench()
    bench.endpoint(1, opened=False)
    bench.endpoint(2)
    for number in (1, 2, 3):
        bench.scheduler.adopt([(0, lane_of(number, 0))], NOW)
    assert sorted(bench.scheduler.closed_lanes()) == [(1, lane_of(1, 0)), (3, lane_of(3, 0))]
    assert bench.scheduler.busy_with(9) == 0
    assert bench.scheduler.busy_with(1) == 0


@pytest.mark.parametrize("limits", [(0, 8), (10, 0)])
def test_limits_must_leave_room_for_one(limits: tuple[int, int]) -> None:
    """Zero slots would be a dispatcher that never delivers."""
    with pytest.raises(ValueError, match="write 1 or more"):
        SchedulerLimits(*limits)


def test_it_shows_its_state_in_one_line() -> None:
    """For the log line at 3 a.m."""
    bench = Bench()
    bench.endpoint(1)
    bench.give(1, 2)
    (start, _) = bench.take_all()
    assert repr(bench.scheduler) == "<LaneScheduler in_flight=2/200 buffered=0 unsettled=0 lanes=1>"
    assert repr(start.lane).startswith("<Lane 0x100 rows=0 outstanding=2")
    assert repr(start.endpoint) == "<EndpointState 0x1 2/6 open=True lanes=1>"
    assert repr(start.host) == "<HostState h1 2/8 promised=0 waiting=0+0>"


@pytest.mark.parametrize(
    "module", ["scheduler", "round", "reads", "roster", "lanes", "seats", "hosts", "timers"], ids=lambda name: name
)
def test_the_scheduler_has_nothing_to_wait_for(module: str) -> None:
    """Plain functions of values, `now` among them: that is what lets the model test drive it through every interleaving."""
    (folder,) = gatepost.dispatch.__path__
    tree = ast.parse((Path(folder) / f"{module}.py").read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert imported <= {"__future__", "bisect", "collections", "dataclasses", "enum", "gatepost", "heapq", "typing"}
    assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree))


def test_an_ordered_row_is_read_where_other_processes_store_too() -> None:
    """The one that is handed over may not be the oldest: another process' row before it was perhaps not announced yet."""
    bench = Bench()
    bench.endpoint(1)
    bench.scheduler.ordered_by_store = True
    bench.scheduler.hand_over([Row(lane_of(1, SUB_FIFO_FIRST), NOW, 2, 2, 0, NOW, 0)], NOW)
    assert bench.scheduler.take(NOW) is None
    assert [want.lane for want in bench.scheduler.wants(NOW)] == [lane_of(1, SUB_FIFO_FIRST)]


def test_a_part_that_comes_back_finds_its_attempts_under_way() -> None:
    """Lost and won again within an attempt: what is in flight is counted, and is not started a second time."""
    bench = Bench()
    bench.endpoint(1)
    row = Row(lane_of(1, 0), NOW, 1, 1, 0, NOW, 0)
    bench.scheduler.hand_over([row], NOW)
    start = bench.scheduler.take(NOW)
    assert start is not None
    bench.scheduler.drop_parts([0], NOW)
    assert bench.scheduler.outstanding_of(0) == 1
    bench.scheduler.adopt([(0, row.lane)], NOW)
    [want] = bench.scheduler.wants(NOW)
    bench.scheduler.read([LaneRows(want.lane, [row], None)], NOW, NOW)
    assert bench.scheduler.take(NOW) is None, "it is in flight"
    bench.scheduler.finish(start, NOW)
    bench.scheduler.settled(start, NOW)
    assert bench.scheduler.outstanding_of(0) == 0
    assert bench.scheduler.take(NOW) is None
