"""A soak finds what grows: only the last process counts, after its warm-up, and small differences are no drift."""

from __future__ import annotations

from collections.abc import Sequence

from bench.soak import DRIFT_SLACK, Sample, drift


def life(number: int, tasks: Sequence[int | None]) -> list[Sample]:
    """Samples of one process."""
    return [Sample(at * 5.0, number, 100.0, 50, 7, count, 0) for at, count in enumerate(tasks)]


def test_what_keeps_growing_is_not_flat() -> None:
    """A leak of one task at each look."""
    slack = round(DRIFT_SLACK["tasks"])
    assert not drift(life(0, list(range(100, 100 + 10 * slack))), "tasks")["flat"]


def test_warm_up_earlier_processes_and_small_differences_are_no_drift() -> None:
    """Caches fill to a bound, restarts begin anew, and a few connections more at the moment of looking say nothing."""
    samples = life(0, [900] * 60) + life(1, list(range(0, 100, 5)) + [100] * 40 + [110] * 20)
    found = drift(samples, "tasks")
    assert (found["first"], found["last"], found["flat"]) == (100, 110, True)
    assert drift(samples, "rss_mib")["flat"]


def test_too_little_to_tell_is_not_called_flat() -> None:
    """A service whose metrics never answered has shown nothing."""
    assert not drift(life(0, [None] * 30), "tasks")["flat"]
