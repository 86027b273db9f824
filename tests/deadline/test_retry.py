"""Retries inside a budget: cases 37, 38 and 44's rule, all by arithmetic."""

from __future__ import annotations

import math

import pytest

from gatepost.deadline import Deadline
from gatepost.deadline.clients.call import CallExceeded
from gatepost.deadline.retry import GiveUp, Split, Try, Why, next_attempt


def test_37_a_retry_that_cannot_finish_is_given_up_before_its_sleep() -> None:
    """Sleeping 0.9 of the last second, to fail in the tenth that is left, is dead work of our own."""
    assert next_attempt(1.0, sleep=0.9, min_attempt=0.2) == GiveUp(Why.NO_TIME)
    attempt = next_attempt(1.1, sleep=0.9, min_attempt=0.2)
    assert isinstance(attempt, Try)
    assert attempt.timeout == pytest.approx(0.2)
    assert next_attempt(0.5, sleep=0.5, min_attempt=0.0) == GiveUp(Why.NO_TIME)


def test_38_greedy_attempts_get_their_cap_and_the_last_one_the_rest() -> None:
    """Envoy's vector: 250 ms in all, 100 ms a try."""
    left, given = 0.250, []
    while isinstance(attempt := next_attempt(left, cap=0.1, min_attempt=0.01), Try):
        given.append(round(attempt.timeout, 9))
        left -= attempt.timeout
    assert given == [0.1, 0.1, 0.05]


def test_38_even_attempts_share_what_is_left_when_they_start() -> None:
    """10 s in three: 3.333; when the first took 1 s, 4.5 each; when the second took 2 s, 7 for the last."""
    given = []
    for left, attempts_left in ((10.0, 3), (9.0, 2), (7.0, 1)):
        attempt = next_attempt(left, split=Split.EVEN, attempts_left=attempts_left)
        assert isinstance(attempt, Try)
        given.append(round(attempt.timeout, 3))
    assert given == [3.333, 4.5, 7.0]


def test_44_a_call_that_had_everything_is_not_tried_again() -> None:
    """The service said that all the time there was is too little; there is less now."""
    chain = Deadline.after(1.0).chain
    whole = CallExceeded("call", 0.0, chain, "admission", retry_allowed=False)
    capped = CallExceeded("call", 0.0, chain, "admission", retry_allowed=True)
    assert next_attempt(0.5, last=whole) == GiveUp(Why.POINTLESS)
    assert isinstance(next_attempt(4.0, last=capped), Try)
    assert isinstance(next_attempt(4.0, last=ConnectionResetError()), Try)


def test_attempts_end_and_without_a_deadline_a_cap_is_needed() -> None:
    """A loop without either would be a timeout of infinity."""
    assert next_attempt(10.0, attempts_left=0) == GiveUp(Why.NO_ATTEMPTS)
    assert next_attempt(None, cap=2.0, sleep=1.0) == Try(1.0, 2.0)
    with pytest.raises(ValueError, match="write cap="):
        next_attempt(None)
    with pytest.raises(ValueError, match="write cap="):
        next_attempt(math.inf)
    with pytest.raises(ValueError, match="sleep"):
        next_attempt(1.0, sleep=-1.0)


@pytest.mark.parametrize("cap", [0.0, -1.0, math.nan])
def test_no_attempt_gets_a_timeout_of_zero(cap: float) -> None:
    """Most libraries read 0 as "no timeout"."""
    for left in (1.0, None):
        with pytest.raises(ValueError, match="cap="):
            next_attempt(left, cap=cap, min_attempt=0.0)
