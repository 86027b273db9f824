"""The window of the last attempts: counts, age, and attempts counted while still in flight."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.admission.window import MAX_AGE, TICK, WINDOW, OutcomeWindow

NOW = 1_800_000_000_000_000
SECOND = 1_000_000


@given(
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.one_of(st.integers(0, 30), st.integers(0, 100_000))), max_size=200
    ),
    st.integers(1, WINDOW),
)
def test_it_counts_the_last_fifty_of_the_last_ten_minutes(events: list[tuple[bool, bool, int]], last: int) -> None:
    """Against a plain list of everything, in steps of five seconds; any pause is long enough to forget."""
    window, now, known = OutcomeWindow(), NOW, []
    for failed, slow, gap in events:
        now += gap // TICK * TICK * SECOND
        window.push(failed, slow, now)
        known.append((now, failed, slow))
        young = [event for event in known if now - event[0] <= MAX_AGE * SECOND][-WINDOW:]
        assert window.count == len(young)
        assert window.failures(last) == sum(failed for _, failed, _ in young[-last:])
        assert window.slow(last) == sum(slow for _, _, slow in young[-last:])
    again = OutcomeWindow.from_bytes(window.to_bytes())
    assert repr(again) == repr(window)
    again.forget_old(now + (MAX_AGE + 2) * SECOND)
    assert again.count == 0


def test_looking_drops_what_is_old() -> None:
    """A judgement must not rest on what nobody added to for minutes."""
    window = OutcomeWindow()
    window.push(True, True, NOW)
    window.push(True, False, NOW + 500 * SECOND)
    window.forget_old(NOW + 700 * SECOND)
    assert (window.count, window.failures(WINDOW), window.slow(WINDOW)) == (1, 1, 0)


def test_the_end_of_a_counted_attempt_amends_it() -> None:
    """Counted once: an attempt that was slow in flight and then timed out is one attempt, slow and failed."""
    window = OutcomeWindow()
    window.push(False, True, NOW, in_flight=True)
    window.push(False, False, NOW)
    assert window.amend(True)
    assert (window.count, window.failures(WINDOW), window.slow(WINDOW)) == (2, 1, 1)
    assert not window.amend(True)


def test_an_attempt_that_left_the_window_is_not_amended() -> None:
    """Its bit belongs to somebody else by then."""
    window = OutcomeWindow()
    window.push(False, True, NOW, in_flight=True)
    for _ in range(WINDOW):
        window.push(False, False, NOW)
    assert not window.amend(True)
    assert window.failures(WINDOW) == 0


def test_a_clock_that_goes_back_forgets_nothing() -> None:
    """Times are kept modulo 21 minutes; a step back must not look like 21 minutes."""
    window = OutcomeWindow()
    window.push(True, False, NOW)
    window.forget_old(NOW - 60 * SECOND)
    assert window.count == 1
    window.clear()
    assert window.count == 0


@pytest.mark.parametrize("stored", [b"", bytes(20), b"\xff" + OutcomeWindow().to_bytes()[1:]])
def test_foreign_bytes_are_refused(stored: bytes) -> None:
    """Better empty than wrong."""
    with pytest.raises(ValueError, match="window"):
        OutcomeWindow.from_bytes(stored)
