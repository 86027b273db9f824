"""The breaker: its table, what trips it, probes, ramp, back-off, and the Wilson judgement."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.admission.breaker import (
    TRANSITIONS,
    Breaker,
    BreakerInput,
    BreakerRules,
    BreakerState,
    IllegalBreakerStep,
    Judge,
    TripCause,
    wilson_lower,
)
from gatepost.errors import ConfigurationError

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
RULES = BreakerRules()


def fail(breaker: Breaker, *, hard: bool = False, now: int = NOW, cap: int = 20, rules: BreakerRules = RULES) -> bool:
    """One quick failure of an ordinary attempt."""
    return breaker.failed(hard, False, now, False, cap, 1, 0.5, rules)


def succeed(
    breaker: Breaker,
    *,
    slow: bool = False,
    now: int = NOW,
    cap: int = 20,
    in_flight: int = 1,
    rules: BreakerRules = RULES,
) -> bool:
    """One answer to an ordinary attempt."""
    return breaker.passed(slow, now, False, cap, in_flight, 0.5, rules)


def opened(now: int = NOW, rules: BreakerRules = RULES) -> Breaker:
    """A breaker that has just opened by timeouts."""
    breaker = Breaker()
    while not fail(breaker, hard=True, now=now, rules=rules):
        pass
    return breaker


def probing(now: int = NOW) -> Breaker:
    """A breaker whose pause is over."""
    breaker = opened(now)
    assert breaker.cool(breaker.open_until)
    return breaker


def ramping(now: int = NOW) -> Breaker:
    """A breaker whose probes have passed."""
    breaker = probing(now)
    for last in (False, False, True):
        assert breaker.probe_passed(0.2, breaker.open_until, RULES) is last
    return breaker


MADE: dict[BreakerState, Callable[[], Breaker]] = {
    BreakerState.CLOSED: Breaker,
    BreakerState.OPEN: opened,
    BreakerState.PROBING: probing,
    BreakerState.RAMPING: ramping,
}


@pytest.mark.parametrize(("state", "given_"), list(itertools.product(BreakerState, BreakerInput)))
def test_every_state_and_input_follows_the_table(state: BreakerState, given_: BreakerInput) -> None:
    """An illegal step must raise and leave the state as it was."""
    breaker = MADE[state]()
    assert breaker.state is state
    after = TRANSITIONS.get((state, given_))
    if after is None:
        with pytest.raises(IllegalBreakerStep):
            breaker._step(given_)
        assert breaker.state is state
    else:
        breaker._step(given_)
        assert breaker.state is after


def test_half_of_the_attempts_failing_opens_it() -> None:
    """Not before ten: 5 of 5 failing 503s may be one deploy."""
    breaker = Breaker()
    for _ in range(5):
        assert not succeed(breaker)
    for number in range(1, 6):
        assert fail(breaker) is (number == 5)
    assert (breaker.state, breaker.cause, breaker.open_until) == (
        BreakerState.OPEN,
        TripCause.FAILURES,
        NOW + 30 * SECOND,
    )


def test_a_small_cap_lowers_the_minimum() -> None:
    """With two in flight at a time, ten failures would take five rounds of a full timeout."""
    breaker = Breaker()
    assert [fail(breaker, cap=2) for _ in range(3)] == [False, False, True]
    breaker = Breaker()
    assert [fail(breaker, cap=4) for _ in range(4)] == [False, False, False, True]
    breaker = Breaker()
    succeed(breaker, cap=4)
    assert [fail(breaker, cap=4) for _ in range(6)] == [False] * 5 + [True], "one success asks for more proof: 6 of 7"


@pytest.mark.parametrize("cap", [1, 2, 3, 4, 6, 10, 20])
def test_failures_by_lot_hardly_ever_open_it_whatever_the_cap(cap: int) -> None:
    """A tenth of the attempts fails at random, as many endpoints have it for weeks: at most one in 200 opens in its first sixty."""
    dice = random.Random(cap)
    opened_ = 0
    for _ in range(2_000):
        breaker = Breaker()
        opened_ += any(fail(breaker, cap=cap) if dice.random() < 0.1 else succeed(breaker, cap=cap) for _ in range(60))
    assert opened_ <= 10


def test_five_timeouts_in_a_row_open_it() -> None:
    """Whatever went well before: a silent endpoint costs a full timeout each time."""
    breaker = Breaker()
    for _ in range(50):
        succeed(breaker)
    for number in range(1, 6):
        assert fail(breaker, hard=True) is (number == 5)
    assert breaker.cause is TripCause.TIMEOUTS
    breaker = Breaker()
    for _ in range(20):
        succeed(breaker)
        succeed(breaker)
        assert not fail(breaker, hard=True)


def test_slow_answers_open_it_only_while_the_cap_is_full() -> None:
    """An endpoint that answers 200 after 25 s has no errors: only time tells. One that is slow and idle harms nobody."""
    breaker = Breaker()
    for _ in range(40):
        assert not succeed(breaker, slow=True, cap=6, in_flight=4)
    assert succeed(breaker, slow=True, cap=6, in_flight=5)
    assert breaker.cause is TripCause.SLOW


def test_attempts_in_flight_count_as_slow_before_they_end() -> None:
    """Case 50: twenty in flight, all older than the limit, none finished."""
    breaker = Breaker()
    aged = [breaker.aged(NOW, 20, 20, 0.5, RULES) for _ in range(10)]
    assert aged == [False] * 9 + [True]
    assert (breaker.state, breaker.cause) == (BreakerState.OPEN, TripCause.SLOW)


def test_a_slow_attempt_is_counted_once() -> None:
    """In flight and again at its end would make one attempt two."""
    breaker = Breaker()
    for _ in range(9):
        assert not breaker.aged(NOW, 40, 1, 0.5, RULES)
        assert not breaker.passed(True, NOW, True, 40, 1, 0.5, RULES)
    assert "9 slow of 9" in repr(breaker)
    assert not breaker.aged(NOW, 40, 1, 0.5, RULES)
    assert not breaker.failed(True, True, NOW, True, 40, 1, 0.5, RULES)
    assert "1 failed, 10 slow of 10" in repr(breaker)


def test_old_failures_are_forgotten() -> None:
    """A failure an hour ago is another deployment's."""
    breaker = Breaker()
    for number in range(30):
        assert not fail(breaker, now=NOW + number * 700 * SECOND)


def test_it_stays_open_longer_with_every_failed_probe() -> None:
    """30 s × 2ⁿ up to half an hour, ±20 %."""
    breaker = opened()
    pauses = []
    for _ in range(9):
        now = breaker.open_until
        assert not breaker.cool(now - 1)
        assert breaker.cool(now)
        breaker.probe_failed(now, 0.5, RULES)
        pauses.append((breaker.open_until - now) / SECOND)
        assert breaker.cause is TripCause.PROBE
    assert pauses == [60, 120, 240, 480, 960, 1_800, 1_800, 1_800, 1_800]


@given(st.floats(0, 1, exclude_max=True))
def test_the_pause_is_jittered_by_a_fifth(u: float) -> None:
    """Breakers that opened together must not close together."""
    breaker = Breaker()
    for _ in range(5):
        breaker.failed(True, False, NOW, False, 20, 1, u, RULES)
    assert 24 * SECOND <= breaker.open_until - NOW <= 36 * SECOND


def test_one_failed_probe_is_enough_and_ours_costs_nothing() -> None:
    """All must pass; but what we suspect of our own network must not lengthen the pause."""
    breaker = probing()
    breaker.probe_passed(0.2, NOW, RULES)
    breaker.probe_failed(NOW, 0.5, RULES, ours=True)
    assert breaker.level == 0
    assert breaker.cool(breaker.open_until)
    for last in (False, False, True):
        assert breaker.probe_passed(0.2, NOW, RULES) is last


def test_recovery_is_ramped() -> None:
    """Never the whole backlog at once: 1, 2, 4, … in flight, each step after as many successes."""
    breaker = ramping()
    seen = []
    for _ in range(7):
        seen.append(breaker.ramp)
        succeed(breaker, cap=8)
    assert seen == [1, 2, 2, 4, 4, 4, 4]
    assert breaker.state is BreakerState.CLOSED


def test_two_failures_in_a_row_end_the_ramp() -> None:
    """One is a hiccup and only halves the step."""
    breaker = ramping()
    now = breaker.open_until
    for _ in range(3):
        succeed(breaker, now=now)
    assert breaker.ramp == 4
    assert not fail(breaker, now=now)
    assert breaker.ramp == 2
    succeed(breaker, now=now)
    assert not fail(breaker, now=now)
    assert fail(breaker, now=now)
    assert (breaker.cause, breaker.level) == (TripCause.RAMP, 1)


def test_trips_soon_after_a_recovery_lengthen_the_pause() -> None:
    """A flapping endpoint must not get a burst in each short recovery; one that was well for long starts anew."""
    breaker = ramping()
    now = breaker.open_until
    for _ in range(40):
        succeed(breaker, now=now)
    for _ in range(5):
        fail(breaker, hard=True, now=now)
    assert breaker.level == 1
    breaker = ramping()
    now = breaker.open_until + 601 * SECOND
    for _ in range(40):
        succeed(breaker, now=now)
    for _ in range(5):
        fail(breaker, hard=True, now=now)
    assert breaker.level == 0


def test_slowness_alone_does_not_lengthen_the_pause() -> None:
    """An endpoint that passes its probes is alive: a longer pause would punish, not protect."""
    breaker = ramping()
    now = breaker.open_until
    for _ in range(40):
        succeed(breaker, now=now, cap=8)
    while not succeed(breaker, slow=True, now=now, cap=8, in_flight=8):
        pass
    assert (breaker.cause, breaker.level) == (TripCause.SLOW, 0)


def test_a_reset_forgets_the_past() -> None:
    """An endpoint that was enabled again must not be closed by its first failure."""
    breaker = opened()
    breaker.reset()
    assert (breaker.state, breaker.level, breaker.open_until) == (BreakerState.CLOSED, 0, 0)
    assert not fail(breaker, hard=True)


def test_a_probe_outside_probing_is_a_bug() -> None:
    """The caller mixed up two attempts."""
    with pytest.raises(IllegalBreakerStep):
        Breaker().probe_passed(0.2, NOW, RULES)
    with pytest.raises(IllegalBreakerStep):
        Breaker().probe_failed(NOW, 0.5, RULES)


@pytest.mark.parametrize(("failures", "calls"), [(3, 5), (5, 10), (9, 20), (12, 30), (18, 50), (33, 100)])
def test_wilsons_bound_is_as_published(failures: int, calls: int) -> None:
    """The least failures that prove a true rate over 25 % with 95 % confidence."""
    assert wilson_lower(failures, calls) > 0.25
    assert wilson_lower(failures - 1, calls) <= 0.25


def test_wilson_mode_and_alarms_open_earlier() -> None:
    """3 of 5 prove it, where the plain share waits for 5 of 10; an alert on this kind of failure does the same."""
    rules = BreakerRules(judge=Judge.WILSON)
    breaker = Breaker()
    for _ in range(2):
        succeed(breaker, rules=rules)
    assert [fail(breaker, rules=rules) for _ in range(3)] == [False, False, True]
    breaker = Breaker()
    for _ in range(2):
        succeed(breaker)
    assert [breaker.failed(False, False, NOW, False, 20, 1, 0.5, RULES, alarmed=True) for _ in range(3)] == [
        False,
        False,
        True,
    ]


def test_wilson_mode_tolerates_what_it_cannot_prove() -> None:
    """20 of 50 do, 17 of 50 do not."""
    rules = BreakerRules(judge=Judge.WILSON)
    breaker = Breaker()
    for number in range(49):
        attempt = fail if number % 3 == 0 else succeed
        assert not attempt(breaker, rules=rules)


@pytest.mark.parametrize("state", list(BreakerState))
def test_what_is_stored_comes_back(state: BreakerState) -> None:
    """A restart must not send a closed host's backlog to it at once."""
    breaker = MADE[state]()
    again = Breaker.from_bytes(breaker.to_bytes())
    assert again.to_bytes() == breaker.to_bytes()
    assert (again.state, again.level, again.open_until, again.ramp, again.cause) == (
        breaker.state,
        breaker.level,
        breaker.open_until,
        breaker.ramp,
        breaker.cause,
    )


def test_foreign_bytes_are_refused() -> None:
    """Better closed than wrong."""
    for stored in (b"", b"\xff" + Breaker().to_bytes()[1:]):
        with pytest.raises(ValueError, match="stored breaker"):
            Breaker.from_bytes(stored)


def test_slow_is_five_seconds_or_half_of_the_timeout() -> None:
    """Whichever is less."""
    assert [RULES.slow_limit(timeout) for timeout in (3.0, 10.0, 30.0)] == [1.5, 5.0, 5.0]


@pytest.mark.parametrize(
    "settings", [{"open_first": 0.0}, {"open_first": 60.0, "open_max": 30.0}, {"probes": 0}, {"slow_window": 51}]
)
def test_impossible_rules_are_refused(settings: dict[str, float]) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigurationError, match="write"):
        BreakerRules(**settings)  # type: ignore[arg-type]  # wrong on purpose
