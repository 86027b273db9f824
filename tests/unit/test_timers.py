"""Timers and token buckets: small machines that must neither leak nor run early."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies

from gatepost.admission.rate import WAIT_MAX_US, TokenBucket
from gatepost.dispatch.timers import LITTER_MIN, Timers

NOW = 1_800_000_000_000_000


class Target:
    """Something to be woken."""

    def __init__(self) -> None:
        self.timer_at = 0


def test_the_earliest_instant_wins_and_fires_once() -> None:
    """A lane has one live timer, whatever number of rows it expects."""
    timers: Timers[Target] = Timers()
    one, two = Target(), Target()
    timers.arm(one, 30)
    timers.arm(one, 10)
    timers.arm(one, 20)
    timers.arm(two, 15)
    assert (len(timers), timers.next_at()) == (2, 10)
    assert timers.due(9) is None
    assert timers.due(100) is one
    assert timers.due(100) is two
    assert timers.due(100) is None
    assert (len(timers), timers.next_at()) == (0, None)


def test_a_disarmed_target_stays_silent() -> None:
    """Its entry is litter."""
    timers: Timers[Target] = Timers()
    target = Target()
    timers.arm(target, 10)
    timers.disarm(target)
    timers.disarm(target)
    assert timers.due(100) is None
    timers.arm(target, 20)
    assert timers.next_at() == 20


def test_litter_is_swept_before_it_outgrows_the_living() -> None:
    """Re-arming for years must not fill memory with instants a day ahead."""
    timers: Timers[Target] = Timers()
    target = Target()
    for turn in range(10_000):
        timers.arm(target, 1_000_000_000)
        timers.arm(target, turn + 1)
        assert timers.due(turn + 1) is target
        assert len(timers._heap) <= 2 * len(timers) + LITTER_MIN + 1
    timers.arm(target, 5)
    for _ in range(200):
        timers.arm(Target(), 7)
        timers.disarm(target)
        timers.arm(target, 5)
    assert timers.due(5) is target


@given(
    rate=strategies.floats(0.001, 10_000),
    waits=strategies.lists(strategies.integers(0, 3_000_000), min_size=1, max_size=50),
)
def test_a_bucket_never_gives_more_than_burst_and_rate(rate: float, waits: list[int]) -> None:
    """The limit is a promise to a receiver."""
    bucket = TokenBucket(rate, NOW)
    now, taken = NOW, 0
    for wait in waits:
        now += wait
        while bucket.try_take(now) and taken < 20_000:
            taken += 1
        assert taken <= bucket.burst + (now - NOW) * rate / 1_000_000 + 1e-6
        ready = bucket.ready_at(now)
        assert ready >= now
        if ready < now + 10**15 and taken < 20_000:
            probe = TokenBucket(rate, now, burst=bucket.burst)
            probe._tokens = bucket._tokens
            assert probe.try_take(ready), "ready_at promised a token"


def test_a_count_over_the_burst_needs_a_full_bucket_and_leaves_a_debt() -> None:
    """A payload larger than a second's bytes must pass some time, and be paid for."""
    bucket = TokenBucket(10.0, NOW)
    assert bucket.try_take(NOW, 30.0)
    assert not bucket.try_take(NOW + 1_000_000)
    assert bucket.ready_at(NOW) == pytest.approx(NOW + 2_100_000, abs=10)
    assert bucket.try_take(NOW + 2_100_010)
    assert bucket.full_at(NOW + 60_000_000) == NOW + 60_000_000
    assert repr(bucket) == "<TokenBucket rate=10 burst=10 tokens=10.000>"


def test_a_clock_that_steps_back_gives_nothing() -> None:
    """Time only adds tokens."""
    bucket = TokenBucket(1.0, NOW)
    assert bucket.try_take(NOW)
    assert not bucket.try_take(NOW - 5_000_000)
    assert not bucket.try_take(NOW + 999_000)
    assert bucket.try_take(NOW + 1_000_001)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_is_a_positive_number(rate: float) -> None:
    """Zero would mean never, which is spelled pause."""
    with pytest.raises(ValueError, match="positive number per second"):
        TokenBucket(rate, NOW)


def test_a_bucket_that_hardly_ever_fills_names_an_instant_all_the_same() -> None:
    """Records of endpoints are older than today's checks: a rate near zero in one of them must not end the scheduler's turn."""
    for rate in (5e-324, 1e-300, 1e-9):
        bucket = TokenBucket(rate, 0)
        assert bucket.try_take(0)
        assert 0 < bucket.ready_at(0) <= WAIT_MAX_US + 1
        assert bucket.full_at(10) <= WAIT_MAX_US + 11
