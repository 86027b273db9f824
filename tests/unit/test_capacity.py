"""The arithmetic of capacity gives the figures of the books, and a simulation of the same load agrees with it."""

from __future__ import annotations

import math
from statistics import fmean

import pytest

from gatepost.admission.capacity import (
    Load,
    attempts_each,
    drain_seconds,
    fit_pool,
    fit_visibility,
    fit_window,
    own_queues,
    plan,
    timeout_that_fits,
)
from gatepost.admission.capacity_sim import ARRIVALS_MAX, REPORT_EVERY, Trial, TrialResult, try_out
from gatepost.admission.queueing import erlang_c, erlangs, slots_for, staffing, survive_loss, wait
from gatepost.errors import ConfigurationError


def outage(timeout: float, *, share: float = 0.02) -> Load:
    """The example of everybody: 1,000 a second, a quarter of a second each, and 2 % for an endpoint that never answers."""
    return Load(rate=1_000.0, mean=0.25, bad_share=share, bad_timeout=timeout)


# ------------------------------------------------------------------------------------------------ Little's law


def test_a_fleet_of_256_slots_does_1024_a_second() -> None:
    """32 workers in each of 8 processes, a quarter of a second each."""
    assert erlangs(1_024.0, 0.25) == 256.0
    assert timeout_that_fits(outage(30.0), 256) == pytest.approx(0.55)


@pytest.mark.parametrize(
    ("timeout", "bad", "offered", "through", "share"),
    [
        (30.0, 600, 845, 303.0, 0.30),
        (15.0, 300, 545, 469.7, 0.47),
        (10.0, 200, 445, 575.3, 0.58),
        (5.0, 100, 345, 742.0, 0.74),
        (3.0, 60, 305, 839.3, 0.84),
    ],
)
def test_two_percent_that_hang_take_the_whole_pool(
    timeout: float, bad: float, offered: float, through: float, share: float
) -> None:
    """Even 5 seconds do not save it: 345 busy slots are more than 256."""
    found = plan(outage(timeout), slots=256)
    assert found.bad_slots == pytest.approx(bad)
    assert found.healthy_slots == pytest.approx(245.0)
    assert found.offered_erlangs == pytest.approx(offered)
    assert found.throughput == pytest.approx(through, abs=0.05)
    assert found.throughput / 1_000.0 == pytest.approx(share, abs=0.005)
    assert found.throughput_healthy == pytest.approx(0.98 * found.throughput)
    assert (found.stable, found.p_wait, found.p99_wait) == (False, 1.0, math.inf)


@pytest.mark.parametrize("timeout", [30.0, 5.0])
def test_a_cap_of_six_holds_six_slots_whatever_the_timeout(timeout: float) -> None:
    """The bulkhead bounds it absolutely: everybody else gets 980 of their 980 a second."""
    found = plan(outage(timeout), cap=6, slots=256)
    assert (found.bad_slots, found.cap_binds, found.stable) == (6.0, True, True)
    assert found.throughput_healthy == pytest.approx(980.0)
    assert found.offered_erlangs == pytest.approx(251.0)
    # The six are gone for good: the others wait for the 250 that are left.
    assert (found.p_wait, found.p99_wait) == pytest.approx((0.660, 0.210), abs=0.001)


def test_an_endpoint_that_succeeds_after_25_seconds_is_held_by_the_cap_too() -> None:
    """No breaker sees it: every attempt is a 200."""
    slow = Load(rate=20.0, mean=0.25, bad_share=1.0, bad_timeout=25.0)
    assert plan(slow).bad_slots == 500.0
    assert plan(Load(rate=20.0, mean=0.25, bad_share=1.0, bad_timeout=15.0)).bad_slots == 300.0
    capped = plan(slow, cap=6)
    assert capped.bad_slots == 6.0
    assert capped.bad_through == pytest.approx(0.24)


def test_the_frontend_of_the_sre_book_serves_a_fifth() -> None:
    """Chapter 22: 1,000 threads, 1,000 a second, 5 % hang for 100 s."""
    found = plan(Load(rate=1_000.0, mean=0.1, bad_share=0.05, bad_timeout=100.0), slots=1_000)
    assert found.bad_slots == 5_000.0
    assert found.offered_erlangs == pytest.approx(5_095.0)
    assert found.throughput / 1_000.0 == pytest.approx(0.196, abs=0.0005)


# ----------------------------------------------------------------------------------------------------- waiting


@pytest.mark.parametrize(
    ("busy", "p_wait", "mean_ms", "p99_ms"),
    [
        (0.70, 0.000, 0.0, 0.0),
        (0.80, 0.0003, 0.002, 0.0),
        (0.90, 0.0624, 0.61, 17.9),
        (0.95, 0.313, 6.1, 67.3),
        (0.98, 0.657, 32.1, 204.0),
        (0.99, 0.816, 79.7, 430.0),
        (0.995, 0.905, 176.7, 880.0),
    ],
)
def test_256_slots_wait_as_erlang_says(busy: float, p_wait: float, mean_ms: float, p99_ms: float) -> None:
    """Nothing happens up to 80 %, everything between 95 and 99."""
    met = wait(busy * 256, 256, 0.25)
    assert met.p_wait == pytest.approx(p_wait, abs=0.0006)
    assert met.mean * 1e3 == pytest.approx(mean_ms, rel=0.01, abs=0.001)
    assert met.p99 * 1e3 == pytest.approx(p99_ms, rel=0.003)


@pytest.mark.parametrize(
    ("slots", "busy", "p_wait", "p99_ms"),
    [(8, 0.9, 0.70, 1_328), (32, 0.9, 0.458, 299), (256, 0.9, 0.062, 18), (32, 0.8, 0.161, 108), (32, 0.7, 0.038, 35)],
)
def test_one_big_pool_waits_less_than_small_ones_as_busy(slots: int, busy: float, p_wait: float, p99_ms: float) -> None:
    """What splitting the slots over processes costs."""
    met = wait(busy * slots, slots, 0.25)
    assert met.p_wait == pytest.approx(p_wait, abs=0.005)
    assert met.p99 * 1e3 == pytest.approx(p99_ms, rel=0.02)


@pytest.mark.parametrize(
    ("slots", "p_wait", "p99_ms"),
    [(250, 0.660, 210), (256, 0.377, 83), (280, 0.0175, 4), (300, 0.0004, 0), (350, 0, 0)],
)
def test_245_busy_slots_need_a_few_more(slots: int, p_wait: float, p99_ms: float) -> None:
    """The healthy part of the example, on what the cap leaves."""
    met = wait(245.0, slots, 0.25)
    assert met.p_wait == pytest.approx(p_wait, abs=0.0005)
    assert met.p99 * 1e3 == pytest.approx(p99_ms, rel=0.006, abs=0.05)


def test_a_load_above_its_slots_waits_without_end() -> None:
    """No steady state, so no number for it."""
    assert (erlang_c(10.0, 10), erlang_c(11.0, 10)) == (1.0, 1.0)
    met = wait(10.0, 10, 0.25)
    assert (met.p_wait, met.mean, met.p99) == (1.0, math.inf, math.inf)


def test_staffing_by_goal_and_by_square_root() -> None:
    """Two ways to the same size."""
    assert (slots_for(245.0, 0.01), slots_for(245.0, 0.001)) == (284, 296)
    assert (math.floor(staffing(245.0, 2.0)), math.ceil(staffing(245.0))) == (276, 292)
    assert erlang_c(245.0, 276) == pytest.approx(0.03, abs=0.003)
    assert erlang_c(245.0, 292) == pytest.approx(0.002, abs=0.0002)


@pytest.mark.parametrize(
    ("load", "slots", "more"), [(5, 12, 1.40), (10, 19, 0.90), (30.6, 45, 0.47), (100, 125, 0.25), (245, 284, 0.16)]
)
def test_headroom_shrinks_with_size(load: float, slots: int, more: float) -> None:
    """Why no single percentage is right, 30 to 50 % included."""
    assert slots_for(load, 0.01) == slots
    assert slots / load - 1.0 == pytest.approx(more, abs=0.01)


# ------------------------------------------------------------------------------------------------------ sizing


def test_the_example_is_sized_with_one_of_eight_processes_lost() -> None:
    """245 + 47 = 292, times 8/7 = 334: 42 each from one queue, 45 from queues of their own, 51 with one lost."""
    found = plan(Load(rate=980.0, mean=0.25), processes=8)
    assert plan(Load(rate=980.0, mean=0.25)).slots_recommended == 292
    assert found.slots_recommended == 334
    assert math.ceil(found.slots_recommended / 8) == 42
    assert survive_loss(292.0, 8) == pytest.approx(333.7, abs=0.1)
    own = found.own_queues
    assert (own.slots_each, own.slots_each_one_lost, own.slots) == (45, 51, 408)


def test_the_rule_of_thumb_stands_beside_it() -> None:
    """30 to 50 % on 250 slots are 325 to 375, which is 67 to 77 % busy."""
    found = plan(Load(rate=1_000.0, mean=0.25))
    assert found.headroom == (325, 375)
    assert [round(250 / slots, 2) for slots in found.headroom] == [0.77, 0.67]


def test_sizing_by_the_99th_percentile_wastes_most_of_it() -> None:
    """Little's law takes the mean: with exponential times the p99 is 4.6 means."""
    p99 = 0.25 * math.log(100.0)
    assert 256.0 / p99 == pytest.approx(223.0, abs=1.0)
    assert p99 / 0.25 == pytest.approx(4.6, abs=0.01)


def test_capped_endpoints_need_room_in_every_process() -> None:
    """An endpoint has one owner, and any process may be it."""
    assert plan(outage(30.0), cap=6).slots_recommended == 245 + 47 + 6
    assert plan(outage(30.0), cap=6, processes=8).own_queues.slots_each_one_lost == 51 + 6
    spread = Load(rate=1_000.0, mean=0.25, bad_share=0.02, bad_timeout=30.0, bad_endpoints=20)
    assert plan(spread, cap=6).bad_slots == 120.0
    assert plan(spread, cap=6, processes=8).own_queues.slots_each_one_lost == 51 + 6 * 3
    assert own_queues(30.6, 1).slots_each_one_lost == own_queues(30.6, 1).slots_each == 45


def test_a_cap_that_does_not_bind_changes_nothing() -> None:
    """A handful of slow deliveries below the cap is only part of the load."""
    few = Load(rate=100.0, mean=0.25, bad_share=0.01, bad_timeout=4.0)
    assert plan(few, cap=6) == plan(few)
    assert plan(few).bad_slots == pytest.approx(4.0)


def test_caps_may_take_every_slot() -> None:
    """Fifty dead endpoints with six slots each are more than 256."""
    many = Load(rate=1_000.0, mean=0.25, bad_share=0.5, bad_timeout=30.0, bad_endpoints=50)
    found = plan(many, cap=6, slots=256)
    assert (found.bad_slots, found.stable, found.throughput_healthy) == (300.0, False, 0.0)
    assert drain_seconds(many, found, 1.0) == math.inf


def test_a_backlog_is_drained_by_what_is_left() -> None:
    """1 M deliveries on 350 slots that 980 a second use: (350 - 6) / 0.25 - 980 = 396 a second."""
    load = outage(30.0)
    found = plan(load, cap=6, slots=350)
    assert drain_seconds(load, found, 1e6) == pytest.approx(1e6 / 396.0)
    assert drain_seconds(load, found, 1e6, processes=2, process_rate=600.0) == pytest.approx(1e6 / 220.0)
    assert drain_seconds(load, plan(load, slots=256), 1e6) == math.inf
    # Without a cap each slot gives its share to the bad ones.
    assert drain_seconds(load, plan(load, slots=1_690), 1e6) == pytest.approx(1e6 / 980.0)


def test_retries_multiply_the_dead_traffic() -> None:
    """Twelve attempts for each delivery to a dead endpoint are twelve times its slots, unless a breaker stops them."""
    assert attempts_each(1.0, 12) == 12.0
    assert attempts_each(0.0, 12) == 1.0
    assert attempts_each(0.5, 3) == 1.75
    load = Load(rate=1_000.0, mean=0.25, bad_share=0.02, bad_timeout=5.0, bad_attempts=attempts_each(1.0, 12))
    assert plan(load).bad_slots == pytest.approx(1_200.0)
    assert plan(load, cap=6).bad_slots == 6.0


def test_thirty_two_workers_and_a_cap_of_eight_leave_twenty_four_waiting() -> None:
    """All of them at one host during a replay; over 400 hosts a pool of 200 is generous."""
    one = fit_pool(32, 1, max_per_host=8, max_connections=200)
    assert (one.busy, one.waiting, one.connections) == (8, 24, 8)
    many = fit_pool(32, 400, max_per_host=8, max_connections=200)
    assert (many.busy, many.waiting, many.connections) == (32, 0, 200)


def test_an_attempt_must_end_before_its_work_is_given_away() -> None:
    """As long as the visibility timeout is too long."""
    assert fit_visibility(18.0, 30.0).fits
    assert not fit_visibility(30.0, 30.0).fits


def test_six_attempts_of_twenty_seconds_do_not_fit_a_minute() -> None:
    """Two minutes of timeouts alone, whatever the backoff."""
    found = fit_window(20.0, 6, 60.0)
    assert (found.fits, found.needed) == (False, 120.0)
    assert fit_window(20.0, 6, 300.0, waits=180.0).fits


def test_processes_are_recommended_by_cpu_with_one_to_spare() -> None:
    """Slots are cheap, a core is not."""
    assert plan(outage(5.0)).processes_recommended == 3
    assert plan(outage(5.0), process_rate=100.0).processes_recommended == 16


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rate", 0.0),
        ("rate", math.nan),
        ("mean", -1.0),
        ("mean", math.inf),
        ("cv2", -0.1),
        ("bad_share", 1.5),
        ("bad_timeout", -1.0),
        ("bad_endpoints", 0),
        ("bad_attempts", 0.5),
    ],
)
def test_impossible_loads_are_refused(field: str, value: float) -> None:
    """With what to write instead."""
    fields = {"rate": 10.0, "mean": 0.25, "bad_share": 0.1, "bad_timeout": 5.0, field: value}
    with pytest.raises(ConfigurationError, match="write"):
        Load(**fields)  # type: ignore[arg-type]  # whole numbers among them


def test_impossible_questions_are_refused() -> None:
    """The arithmetic never divides by what cannot be."""
    load = Load(rate=10.0, mean=0.25)
    with pytest.raises(ConfigurationError, match="bad_timeout"):
        Load(rate=10.0, mean=0.25, bad_share=0.1)
    for name in ("cap", "slots", "processes"):
        with pytest.raises(ConfigurationError, match=name):
            plan(load, **{name: 0})
    with pytest.raises(ConfigurationError, match="process_rate"):
        plan(load, process_rate=0.0)
    with pytest.raises(ConfigurationError, match="p_wait"):
        slots_for(10.0, 0.0)
    with pytest.raises(ConfigurationError, match="slots"):
        erlang_c(10.0, 0)
    with pytest.raises(ConfigurationError, match="Erlangs"):
        erlang_c(-1.0, 10)
    for fails, attempts in ((-0.1, 3), (0.5, 0)):
        with pytest.raises(ConfigurationError, match="write"):
            attempts_each(fails, attempts)
    with pytest.raises(ConfigurationError, match="hosts"):
        fit_pool(32, 0)
    assert timeout_that_fits(load, 10) == math.inf
    assert timeout_that_fits(load, 1) == 0.0


# -------------------------------------------------------------------------------------------------- simulation


def one_minute(timeout: float, *, slots: int = 256, cap: int | None = None) -> list[TrialResult]:
    """The first minute of the outage, by three seeds."""
    return [try_out(Trial(load=outage(timeout), slots=slots, cap=cap, seed=seed)) for seed in (1, 2, 3)]


@pytest.mark.parametrize(
    ("timeout", "healthy", "backlog", "p99"),
    [(30.0, 359, 38_127, 37.0), (15.0, 499, 29_409, None), (5.0, 745, 14_151, 14.0)],
)
def test_the_first_minute_of_an_outage_without_a_cap(
    timeout: float, healthy: float, backlog: float, p99: float | None
) -> None:
    """From an empty system, where Little's law speaks of the end only. The figures are another simulation's."""
    found = one_minute(timeout)
    assert fmean(one.throughput_healthy for one in found) == pytest.approx(healthy, rel=0.05)
    assert fmean(one.backlog for one in found) == pytest.approx(backlog, rel=0.05)
    if p99 is not None:
        assert fmean(one.p99_wait for one in found) == pytest.approx(p99, rel=0.1)


def test_the_first_minute_with_a_cap() -> None:
    """Nobody else notices, and with a few slots more nobody even waits."""
    for timeout in (30.0, 5.0):
        found = one_minute(timeout, cap=6)
        assert fmean(one.throughput_healthy for one in found) == pytest.approx(979.0, rel=0.01)
        assert max(one.backlog for one in found) < 200
        assert fmean(one.p99_wait for one in found) == pytest.approx(0.12, abs=0.06)
        roomy = one_minute(timeout, cap=6, slots=350)
        assert fmean(one.throughput_healthy for one in roomy) == pytest.approx(979.0, rel=0.01)
        assert [(one.backlog, one.p99_wait, one.p_wait) for one in roomy] == [(0, 0.0, 0.0)] * 3
    assert all(one.shed > 500 for one in one_minute(30.0, cap=6))


@pytest.mark.parametrize(("slots", "busy"), [(32, 0.7), (32, 0.8), (32, 0.9), (256, 0.9), (256, 0.95)])
def test_in_steady_state_the_simulation_agrees_with_erlang(slots: int, busy: float) -> None:
    """Two independent ways to one number."""
    load = Load(rate=busy * slots / 0.25, mean=0.25)
    duration = 200_000 / load.rate
    found = [
        try_out(Trial(load=load, slots=slots, duration=duration, warm_up=duration / 10, seed=seed)) for seed in (1, 2)
    ]
    expected = wait(busy * slots, slots, 0.25)
    assert fmean(one.busy for one in found) == pytest.approx(busy * slots, rel=0.01)
    assert fmean(one.p_wait for one in found) == pytest.approx(expected.p_wait, rel=0.15)
    assert fmean(one.mean_wait for one in found) == pytest.approx(expected.mean, rel=0.25)
    assert fmean(one.p99_wait for one in found) == pytest.approx(expected.p99, rel=0.25)


@pytest.mark.parametrize(
    ("busy", "cv2", "p99_ms"),
    [(0.8, 1, 117), (0.8, 4, 160), (0.8, 10, 338), (0.9, 1, 308), (0.9, 4, 832), (0.9, 10, 1_937)],
)
def test_long_tails_make_small_pools_wait(busy: float, cv2: float, p99_ms: float) -> None:
    """The figures are one run of another simulation with so rare and so long attempts that runs differ by half."""
    load = Load(rate=busy * 32 / 0.25, mean=0.25, cv2=cv2)
    found = [
        try_out(Trial(load=load, slots=32, duration=120_000 / load.rate, warm_up=50.0, seed=seed)).p99_wait * 1e3
        for seed in (1, 2)
    ]
    assert 0.5 <= fmean(found) / p99_ms <= 1.6


def test_times_that_never_vary_halve_the_wait() -> None:
    """Allen and Cunneen's other end: cv2 0."""
    load = Load(rate=0.9 * 32 / 0.25, mean=0.25, cv2=0.0)
    found = try_out(Trial(load=load, slots=32, duration=1_500.0, warm_up=50.0))
    exponential, constant = wait(28.8, 32, 0.25), wait(28.8, 32, 0.25, 0.0)
    assert constant.mean == pytest.approx(exponential.mean / 2.0)
    assert found.mean_wait == pytest.approx(constant.mean, rel=0.25)


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    """A figure in a document must be found again by whoever doubts it."""
    trial = Trial(load=outage(5.0), slots=300, cap=6, duration=10.0)
    assert try_out(trial) == try_out(trial)
    assert try_out(trial) != try_out(Trial(load=outage(5.0), slots=300, cap=6, duration=10.0, seed=2))


def test_progress_is_told_and_changes_nothing() -> None:
    """A long run shows how far it is."""
    trial = Trial(load=outage(5.0), slots=300, duration=20.0)
    told: list[tuple[int, int]] = []
    assert try_out(trial, lambda done, total: told.append((done, total))) == try_out(trial)
    assert told[0] == (REPORT_EVERY, 20_000)
    assert told[-1] == (20_000, 20_000)


def test_a_trial_of_nothing_but_dead_endpoints_has_no_waits() -> None:
    """No healthy delivery, no figure of one."""
    dead = Load(rate=10.0, mean=0.25, bad_share=1.0, bad_timeout=30.0)
    found = try_out(Trial(load=dead, slots=4, duration=20.0))
    assert (found.throughput_healthy, found.p_wait, found.mean_wait, found.p99_wait) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("changes", [{"slots": 0}, {"cap": 0}, {"duration": 0.0}, {"warm_up": 60.0}, {"duration": 1e5}])
def test_impossible_trials_are_refused(changes: dict[str, float]) -> None:
    """Among them those that would not end: a day at 1,000 a second is 86 million arrivals."""
    assert ARRIVALS_MAX < 86_400_000
    fields = {"load": outage(5.0), "slots": 256, **changes}
    with pytest.raises(ConfigurationError, match="write"):
        Trial(**fields)  # type: ignore[arg-type]  # whole numbers among them
