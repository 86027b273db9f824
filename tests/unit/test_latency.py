"""The latency ring: exact quantiles, censored samples, growth, age and the stored form."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.admission.latency import LONGEST_MS, SIZES, LatencyRing, kaplan_meier

NOW = 1_800_000_000_000_000
HOUR = 3_600_000_000


def filled(milliseconds: list[int], now: int = NOW) -> LatencyRing:
    """A ring of observed samples."""
    ring = LatencyRing()
    for value in milliseconds:
        ring.add(value / 1000, now)
    return ring


@pytest.mark.parametrize(
    ("samples", "share", "expected"),
    [
        ([(value, False) for value in range(1, 100)] + [(100, True)], 0.99, 99),
        ([(value, False) for value in range(1, 99)] + [(99, True), (100, True)], 0.99, None),
        ([(1, False), (2, True), (3, False), (4, False), (5, True)], 0.5, 4),
        ([], 0.5, None),
        ([(7, True)], 0.5, None),
        ([(7, False)], 0.99, 7),
    ],
)
def test_quantiles_of_censored_samples_follow_kaplan_and_meier(
    samples: list[tuple[int, bool]], share: float, expected: int | None
) -> None:
    """Two of a hundred cut off make the p99 unknowable: a number there would be invented."""
    assert kaplan_meier(samples, (share,)) == [expected]


def test_the_p99_of_three_hundred_is_the_297th() -> None:
    """Exact: the sampling error of 300 is large enough without another."""
    summary = filled(list(range(300, 0, -1))).summary(NOW)
    assert summary == (300, 0.150, 0.297, 0.300, 0.300)


@given(st.lists(st.tuples(st.integers(0, LONGEST_MS), st.booleans()), max_size=700))
def test_the_ring_holds_the_last_three_hundred_in_order(values: list[tuple[int, bool]]) -> None:
    """Growth and wrapping around must not lose, repeat or reorder a sample."""
    ring = LatencyRing()
    for value, censored in values:
        ring.add(value / 1000, NOW, censored=censored)
    assert ring.samples() == [(value / 1000, censored) for value, censored in values[-300:]]
    assert ring.count == len(values[-300:])


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99]))
def test_without_censored_samples_a_quantile_is_a_rank(values: list[int], share: float) -> None:
    """The fast way and Kaplan-Meier must agree wherever both apply."""
    ring = filled(values)
    ordered = sorted(values)
    expected = next(value for place, value in enumerate(ordered, 1) if place / len(ordered) >= share - 1e-9)
    assert ring.quantile(share, NOW) == expected / 1000
    if share == 0.99:
        assert ring.summary(NOW).p99 == expected / 1000


@given(st.lists(st.tuples(st.integers(0, LONGEST_MS), st.booleans(), st.integers(0, 10)), max_size=400))
def test_what_is_stored_comes_back(values: list[tuple[int, bool, int]]) -> None:
    """A restart that garbles the ring would teach wrong limits to every endpoint at once."""
    ring, now = LatencyRing(), NOW
    for value, censored, hours in values:
        now += hours * HOUR // 60
        ring.add(value / 1000, now, censored=censored)
    again = LatencyRing.from_bytes(ring.to_bytes())
    assert again.samples() == ring.samples() == ring.copy().samples()
    assert again.to_bytes() == ring.to_bytes()
    later = now + 20 * HOUR
    assert again.summary(later) == ring.summary(later)


def test_yesterdays_samples_are_dropped_by_blocks() -> None:
    """An endpoint that was slow two days ago must not keep a long limit for it."""
    ring = filled([5_000] * 40)
    for _ in range(40):
        ring.add(0.1, NOW + 30 * HOUR)
    summary = ring.summary(NOW + 30 * HOUR)
    # 24 of the new ones share a block with the last 8 of the old.
    assert (summary.samples, summary.largest) == (48, 5.0)
    assert ring.summary(NOW + 60 * HOUR) == (0, None, None, 0.0, 0.0)
    assert ring.quantile(0.5, NOW) is None


def test_a_full_ring_knows_how_old_the_rest_of_a_block_is() -> None:
    """One new sample must not make the 31 old ones around it young."""
    ring = filled([5_000] * 300)
    ring.add(0.1, NOW + 30 * HOUR)
    assert ring.summary(NOW + 30 * HOUR).samples == 1


def test_a_clock_that_goes_back_drops_nothing() -> None:
    """NTP may step by seconds; the store's clock may step when it fails over."""
    assert filled([100] * 10).summary(NOW - 5 * HOUR).samples == 10


def test_long_times_are_kept_as_the_longest() -> None:
    """15 bits of milliseconds: twice the longest adaptive limit."""
    ring = filled([100_000])
    assert ring.samples() == [(LONGEST_MS / 1000, False)]
    assert "1 of 32" in repr(ring)
    ring.clear()
    assert ring.samples() == []


def test_a_full_ring_stays_under_a_kibibyte() -> None:
    """A hundred thousand endpoints are tracked in one process."""
    ring = filled([1_000] * 400)
    assert sys.getsizeof(ring) + sys.getsizeof(ring._data) + 16 < 1_024
    assert len(ring.to_bytes()) < 640
    assert SIZES[-1] == ring.count


@pytest.mark.parametrize("stored", [b"", b"\x00", b"\x01\x00", b"\xff\xff" + bytes(100), bytes(3)])
def test_foreign_bytes_are_refused(stored: bytes) -> None:
    """Better cold than wrong."""
    with pytest.raises(ValueError, match="no stored latencies"):
        LatencyRing.from_bytes(stored)
