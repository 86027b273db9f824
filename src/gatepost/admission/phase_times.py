"""How long each phase of an endpoint's attempts takes: a small histogram per phase, good for p50 and p99 within a fifth.

Response times have their exact ring (`admission.latency`); this is for the review of all budgets. It decides nothing and counts
nothing itself: `admission.attempt_counts` does, in a form for hundreds of thousands of endpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

STEPS: Final = 34
"""Buckets: from half a millisecond to 65 s in steps of the square root of two."""
FIRST: Final = 0.0005
BOUNDS: Final = tuple(FIRST * 2 ** (step / 2) for step in range(1, STEPS))
"""Upper ends of the buckets but the last."""
SAMPLES_MIN: Final = 20
"""A p99 of fewer is none."""


class Budgeted(IntEnum):
    """What has a budget of its own. The numbers are places in stored states."""

    POOL = 0
    DNS = 1
    CONNECT = 2
    """TCP alone: one round trip."""
    TLS = 3
    SETUP = 4
    """DNS, TCP and TLS together, what `connect_timeout` bounds."""
    WRITE = 5
    ANSWER = 6
    """Wait and read."""


NONE: Final[Mapping[int, int]] = MappingProxyType({})


class PhaseTimes:
    """Counts by bucket: `STEPS` of each phase, in the order of `Budgeted`. Frozen; `attempt_counts.times_of` makes one."""

    __slots__ = ("_counts",)

    def __init__(self, counts: Mapping[int, int] = NONE) -> None:
        self._counts = counts

    def count(self, kind: Budgeted) -> int:
        """Samples of a phase."""
        return sum(self._of(kind))

    def quantile(self, kind: Budgeted, q: float) -> float | None:
        """Seconds, in the middle of its bucket; None for fewer than `SAMPLES_MIN` samples."""
        counts = self._of(kind)
        total = sum(counts)
        if total < SAMPLES_MIN:
            return None
        wanted, seen = math.ceil(q * total), 0
        for step, count in enumerate(counts):
            seen += count
            if seen >= wanted:
                return FIRST * 2 ** ((step + 0.5) / 2)
        raise AssertionError("the last bucket is reached")

    def _of(self, kind: Budgeted) -> list[int]:
        first = kind * STEPS
        return [self._counts.get(place, 0) for place in range(first, first + STEPS)]
