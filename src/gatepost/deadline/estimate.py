"""How long an operation takes, learned from its last answers, and whether a request with less left than that is begun.

The median counts calls that were cut as "longer than that" (Kaplan-Meier), or it would learn from survivors only. Refusals
are limited to a share of all requests, and one request a second is begun whatever it has left, so a wrong estimate heals.
Pure; its own small ring, because this package must work alone. Held by `gate`, one per operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

RING: Final = 128
"""Samples kept: a few seconds to minutes of a busy operation; a median needs no more."""
SAMPLES_MIN: Final = 50
"""Fewer say nothing: with 50 the sample's median is between the true 36th and 64th percentile, 19 times of 20."""
RECOMPUTE_EVERY: Final = 16
"""Samples between two looks at the ring; sorting it takes some 10 µs, 50 when calls were cut."""
REFUSED_SHARE_MAX: Final = 0.2
"""Of the requests of the last `WINDOW` seconds; Finagle's valve. A wrong estimate then costs a fifth, not an outage."""
WINDOW: Final = 10
PROBE_EVERY: Final = 1.0
"""Seconds without any request begun after which the next one is, whatever it has left."""


class Admission(StrEnum):
    """What becomes of a request."""

    ENOUGH = "enough"
    """It has the median left, or nothing is known."""
    PROBE = "probe"
    """It has less, but nothing was begun for `PROBE_EVERY` seconds."""
    VALVE = "valve"
    """It has less, but enough requests were refused already."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class EstimateStatistics:
    """A snapshot."""

    samples: int
    median: float | None
    """Seconds."""
    requests: int
    """In the last `WINDOW` seconds, as of the last request."""
    refused: int


class Estimate:
    """One operation's."""

    __slots__ = ("_begun_at", "_counted", "_median", "_refused", "_requests", "_ring", "_second")

    def __init__(self) -> None:
        self._ring: list[float] = []  # seconds; negative: cut after that long
        self._counted = 0
        self._median: float | None = None
        self._second = 0
        self._requests = [0] * WINDOW
        self._refused = [0] * WINDOW
        self._begun_at = float("-inf")

    @property
    def median(self) -> float | None:
        """Seconds half of the calls take; None while fewer than `SAMPLES_MIN` are known, or more than half were cut."""
        return self._median

    def admit(self, left: float, now: float) -> Admission:
        """Whether to begin a request with `left` seconds at monotonic `now`; counts it."""
        second = int(now)
        if second != self._second:
            self._roll(second)
        at = second % WINDOW
        self._requests[at] += 1
        median = self._median
        if median is None or left >= median:
            answer = Admission.ENOUGH
        elif now - self._begun_at >= PROBE_EVERY:
            answer = Admission.PROBE
        elif sum(self._refused) >= REFUSED_SHARE_MAX * sum(self._requests):
            answer = Admission.VALVE
        else:
            self._refused[at] += 1
            return Admission.REFUSED
        self._begun_at = now
        return answer

    def learn(self, seconds: float, *, cut: bool = False) -> None:
        """A call took `seconds`; `cut`: it was stopped then, and would have taken longer."""
        value = -seconds if cut else seconds
        if len(self._ring) < RING:
            self._ring.append(value)
        else:
            self._ring[self._counted % RING] = value
        self._counted += 1
        if self._counted == SAMPLES_MIN or (self._counted > SAMPLES_MIN and self._counted % RECOMPUTE_EVERY == 0):
            self._median = median_of(self._ring)

    def statistics(self) -> EstimateStatistics:
        """What it knows now."""
        return EstimateStatistics(len(self._ring), self._median, sum(self._requests), sum(self._refused))

    def _roll(self, second: int) -> None:
        for passed in range(max(self._second + 1, second - WINDOW + 1), second + 1):
            self._requests[passed % WINDOW] = self._refused[passed % WINDOW] = 0
        self._second = second


def median_of(samples: Sequence[float]) -> float | None:
    """The Kaplan-Meier median of seconds, negative ones cut after that long; None when too many were cut to tell."""
    if samples and min(samples) >= 0:  # none was cut: the ordinary case, a fifth of the time
        return sorted(samples)[(len(samples) - 1) // 2]
    # Where a cut and an observed one are equal the observed one comes first: the cut one was still running then.
    ordered = sorted((abs(sample), sample < 0) for sample in samples)
    surviving = 1.0
    at_risk = len(ordered)
    for seconds, cut in ordered:
        if not cut:
            surviving *= 1.0 - 1.0 / at_risk
            if surviving <= 0.5 + 1e-9:
                return seconds
        at_risk -= 1
    return None
