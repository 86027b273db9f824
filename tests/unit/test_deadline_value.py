"""The deadline value: exact arithmetic on integers, limits that only narrow, and no timeout that means "for ever"."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.deadline import Deadline, DeadlineExceeded, DeadlinePolicy, Limit
from gatepost.deadline.value import CHAIN_MAX
from gatepost.errors import ConfigurationError, GatepostError
from gatepost.testing.virtual import VirtualClock


def test_time_left_follows_the_monotonic_clock_and_goes_below_zero() -> None:
    """A step of the wall clock must not lengthen anybody's request."""
    clock = VirtualClock()
    deadline = Deadline.after(2.5, name="request", clock=clock)
    assert deadline.expires_ns == clock.monotonic_ns() + 2_500_000_000
    clock.step_wall(3_600)
    assert deadline.remaining() == 2.5
    clock.advance(2.25)
    assert (deadline.remaining(), deadline.remaining_ns(), deadline.expired) == (0.25, 250_000_000, False)
    clock.advance(0.25)
    assert deadline.expired
    clock.advance(1)
    assert deadline.remaining() == -1.0


def test_the_system_clock_is_the_default() -> None:
    """Only tests pass a clock."""
    assert 9 < Deadline.after(10).remaining() <= 10


@pytest.mark.parametrize(
    "seconds", [-0.001, float("nan"), float("inf"), float("-inf"), sys.float_info.max, 10**400, 1.1e9]
)
def test_negative_and_endless_deadlines_are_refused(seconds: float) -> None:
    """They mean "no timeout" to half of all libraries."""
    with pytest.raises(ValueError, match=r"for example 0\.5"):
        Deadline.after(seconds)


@pytest.mark.parametrize("seconds", ["1", None, True])
def test_deadlines_are_numbers(seconds: Any) -> None:
    """Misuse is found where it stands."""
    with pytest.raises(TypeError, match="seconds as a number"):
        Deadline.after(seconds)


def test_zero_has_passed() -> None:
    """A caller who gives up at once is still a caller."""
    deadline = Deadline.after(0, clock=VirtualClock())
    assert deadline.expired
    with pytest.raises(DeadlineExceeded):
        deadline.check()


def test_within_takes_the_earlier_and_remembers_both() -> None:
    """10 s inside 2.5 s is 2.5 s; 0.4 s inside 2.5 s is 0.4 s."""
    clock = VirtualClock()
    outer = Deadline.after(2.5, name="request", clock=clock)
    wide = Deadline.after(10, name="render", clock=clock).within(outer)
    tight = Deadline.after(0.4, name="query", clock=clock).within(outer)
    assert (wide.remaining(), tight.remaining()) == (2.5, 0.4)
    assert [limit.name for limit in tight.chain] == ["request", "query"]
    assert tight.within(None) is tight


def test_within_carries_what_is_left_across_clocks() -> None:
    """Two clocks have no instant in common."""
    one, other = VirtualClock(start_monotonic_ns=5), VirtualClock(start_monotonic_ns=7_000_000_000)
    joined = Deadline.after(10, clock=one).within(Deadline.after(3, clock=other))
    assert joined.remaining() == 3.0
    assert joined.clock is one


def test_the_chain_is_bounded_and_keeps_the_outermost_limit() -> None:
    """Recursion through scopes must not grow memory or error texts."""
    clock = VirtualClock()
    deadline = Deadline.after(60, name="outermost", clock=clock)
    for number in range(100):
        deadline = Deadline.after(60, name=str(number), clock=clock).within(deadline)
    assert len(deadline.chain) == CHAIN_MAX
    assert (deadline.chain[0].name, deadline.chain[-1].name) == ("outermost", "99")


def test_until_names_an_instant() -> None:
    """For a deadline received as an instant of the same machine."""
    clock = VirtualClock()
    deadline = Deadline.until(clock.monotonic_ns() + 1_500_000_000, name="arrival", clock=clock)
    assert deadline.remaining() == 1.5
    assert deadline.chain == (Limit("arrival", 1.5, deadline.expires_ns),)


def test_timeouts_are_capped_keep_a_reserve_and_are_never_zero() -> None:
    """`ClientTimeout(total=0)`, `statement_timeout=0` and `acquire(timeout=-1)` all mean "wait for ever"."""
    clock = VirtualClock()
    deadline = Deadline.after(2, clock=clock)
    assert deadline.timeout_for(1.0) == 1.0
    assert deadline.timeout_for(5.0) == 2.0
    assert deadline.timeout_for(5.0, reserve=0.5) == 1.5
    assert deadline.timeout_for(0.0001) == 0.0001  # the caller's own wish
    clock.advance(1.9985)
    assert deadline.timeout_for(1.0) == pytest.approx(0.0015)
    with pytest.raises(DeadlineExceeded) as caught:
        deadline.timeout_for(1.0, reserve=0.0011, where="db")
    assert (caught.value.where, caught.value.overdue) == ("db", 0.0)
    clock.advance(1)
    with pytest.raises(DeadlineExceeded) as caught:
        deadline.timeout_for(1.0)
    assert caught.value.overdue == pytest.approx(0.9985)


def test_the_least_useful_timeout_is_a_policy() -> None:
    """1 ms suits one machine room and not another."""
    deadline = Deadline.after(0.02, clock=VirtualClock())
    assert deadline.timeout_for(1.0) == 0.02
    with pytest.raises(DeadlineExceeded):
        deadline.timeout_for(1.0, policy=DeadlinePolicy(min_useful=0.05))


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1", True, None])
def test_a_least_useful_timeout_of_nothing_is_refused(value: Any) -> None:
    """It would let the zero through that this library exists to stop."""
    with pytest.raises(ConfigurationError, match="min_useful"):
        DeadlinePolicy(min_useful=value)


@pytest.mark.parametrize(
    ("cap", "reserve", "name"), [(0, 0, "cap"), (-1, 0, "cap"), (float("inf"), 0, "cap"), (1, -1, "reserve")]
)
def test_impossible_caps_and_reserves_are_refused(cap: float, reserve: float, name: str) -> None:
    """A cap of infinity is how unbounded calls come back."""
    with pytest.raises(ValueError, match=f"^{name}="):
        Deadline.after(1).timeout_for(cap, reserve)


def test_check_raises_when_less_is_left_than_needed() -> None:
    """A 500 ms query with 10 ms left is work nobody will see."""
    clock = VirtualClock()
    deadline = Deadline.after(0.1, clock=clock)
    deadline.check()
    deadline.check(0.1)
    with pytest.raises(DeadlineExceeded) as caught:
        deadline.check(0.5, where="query")
    assert (caught.value.where, caught.value.overdue) == ("query", 0.4)
    clock.advance(0.1)
    with pytest.raises(DeadlineExceeded):
        deadline.check()
    for need in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="need="):
            deadline.check(need)


def test_the_error_says_where_how_much_and_which_limits() -> None:
    """At 3 a.m. the question is whose limit it was."""
    clock = VirtualClock()
    outer = Deadline.after(2, name="request", clock=clock)
    inner = Deadline.after(0.5, clock=clock).within(outer)
    clock.advance(0.512)
    error = inner.exceeded("render")
    assert str(error) == (
        "deadline exceeded at render, 0.012 s too late; limits, outermost first: request 2 s > unnamed 0.5 s"
    )
    assert isinstance(error, TimeoutError)
    assert isinstance(error, GatepostError)
    assert error.chain == inner.chain
    assert "just now" in str(Deadline.after(1).exceeded("x"))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.where, again.overdue, again.chain) == (str(error), "render", 0.012, error.chain)


def test_a_deadline_is_not_pickled_and_copies_are_itself() -> None:
    """Its instant is a random number in another process."""
    deadline = Deadline.after(1)
    with pytest.raises(TypeError, match="remaining"):
        pickle.dumps(deadline)
    assert copy.copy(deadline) is deadline
    assert copy.deepcopy({"d": deadline})["d"] is deadline
    assert "clock" not in repr(deadline)
    assert hash(deadline) == hash(Deadline(deadline.expires_ns, deadline.chain))


@given(limits=st.lists(st.floats(0, 1e6), min_size=1, max_size=30), waited=st.floats(0, 1e6), cap=st.floats(1e-9, 1e9))
def test_nesting_never_widens_and_timeouts_stay_inside(limits: list[float], waited: float, cap: float) -> None:
    """For any nesting, the earliest limit holds; a timeout is above 0, at most the cap, and at most what is left."""
    clock = VirtualClock()
    deadline: Deadline | None = None
    for seconds in limits:
        deadline = Deadline.after(seconds, clock=clock).within(deadline)
    assert deadline is not None
    assert deadline.remaining_ns() == round(min(limits) * 1e9)
    clock.advance(waited)
    try:
        timeout = deadline.timeout_for(cap)
    except DeadlineExceeded:
        assert deadline.remaining() < 0.001
    else:
        assert 0 < timeout <= cap
        assert timeout <= deadline.remaining()
