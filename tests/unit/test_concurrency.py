"""The cap of an endpoint: windows, growth, cuts, and who may not move it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.admission.concurrency import ConcurrencyLimit, ConcurrencyRules, concurrency_rules, slower
from gatepost.errors import ConfigurationError

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
RULES = ConcurrencyRules()


def window(
    limit: ConcurrencyLimit, *, slow: int = 0, bad: int = 0, in_flight: int = 6, rules: ConcurrencyRules = RULES
) -> None:
    """Ten attempts at once."""
    for number in range(10):
        limit.finished(number < slow, number < bad, in_flight, NOW, rules)


def test_a_full_cap_grows_by_one() -> None:
    """While it is well and uses four fifths of what it may."""
    limit = ConcurrencyLimit(6)
    window(limit, in_flight=5)
    assert limit.cap == 7
    window(limit, in_flight=5)
    assert limit.cap == 7


@pytest.mark.parametrize(("slow", "bad", "expected"), [(0, 1, 4), (2, 0, 7), (3, 0, 4), (10, 10, 4)])
def test_trouble_cuts_it(slow: int, bad: int, expected: int) -> None:
    """Any timeout, 429 or 503, or more than a fifth of slow answers: 0.7 of it."""
    limit = ConcurrencyLimit(6)
    window(limit, slow=slow, bad=bad)
    assert limit.cap == expected


def test_a_window_ends_after_ten_seconds_too() -> None:
    """An endpoint with an attempt every five seconds must not wait a minute to be spared."""
    limit = ConcurrencyLimit(6)
    assert not limit.finished(False, True, 1, NOW, RULES)
    assert limit.finished(False, False, 1, NOW + 10 * SECOND, RULES)
    assert limit.cap == 4


def test_it_never_leaves_its_bounds() -> None:
    """One attempt is always allowed, and nobody gets more than an eighth of the slots."""
    limit = ConcurrencyLimit(6)
    for _ in range(20):
        window(limit, bad=1)
    assert limit.cap == 1
    for _ in range(100):
        window(limit, in_flight=limit.cap)
    assert limit.cap == 64


def test_the_rules_of_an_endpoint() -> None:
    """Its own setting is fixed; small processes give little."""
    assert concurrency_rules(6, 2_048, None) == ConcurrencyRules(6, 1, 64)
    assert concurrency_rules(6, 200, None) == ConcurrencyRules(6, 1, 25)
    assert concurrency_rules(6, 16, None) == ConcurrencyRules(6, 1, 6)
    fixed = concurrency_rules(6, 200, 3)
    limit = ConcurrencyLimit(fixed.start)
    window(limit, bad=10, rules=fixed)
    assert limit.cap == 3


@pytest.mark.parametrize(
    ("seconds", "p50", "read_timeout", "expected"),
    [
        (4.9, 0.0, 10.0, False),
        (5.1, 0.0, 10.0, True),
        (1.6, 0.2, 3.0, True),
        (1.4, 0.2, 3.0, False),
        (15.0, 8.0, 15.0, False),
    ],
)
def test_slow_is_twice_the_usual_and_half_of_the_limit(
    seconds: float, p50: float, read_timeout: float, expected: bool
) -> None:
    """Both: an endpoint that always takes 8 s is not slower than itself."""
    assert slower(seconds, p50, read_timeout) is expected


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 100), st.integers(0, 20)), max_size=300))
def test_whatever_happens_the_cap_stays_in_its_bounds(events: list[tuple[bool, bool, int, int]]) -> None:
    """It moves by at most one up at a time, and says whenever it moved."""
    limit, now = ConcurrencyLimit(RULES.start), NOW
    for slow, bad, in_flight, gap in events:
        before, now = limit.cap, now + gap * SECOND
        moved = limit.finished(slow, bad, in_flight, now, RULES)
        assert moved is (limit.cap != before)
        assert RULES.least <= limit.cap <= min(RULES.most, before + 1)


def test_impossible_rules_are_refused() -> None:
    """With what to write instead."""
    with pytest.raises(ConfigurationError, match="write"):
        ConcurrencyRules(start=0)
