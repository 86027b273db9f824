"""How long each phase of an endpoint's attempts takes: a small histogram per phase, good for p50 and p99 within a fifth.

Response times have their exact ring (`admission.latency`); this is for the review of all budgets, over hundreds of thousands of
endpoints, so that it is a few hundred bytes at work and a few dozen at rest. It decides nothing.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from enum import IntEnum
from typing import Final

from gatepost.delivery.attempt import Attempt
from gatepost.wire.phases import Phase

STEPS: Final = 34
"""Buckets: from half a millisecond to 65 s in steps of the square root of two."""
FIRST: Final = 0.0005
_BOUNDS: Final = tuple(FIRST * 2 ** (step / 2) for step in range(1, STEPS))
TOTAL_MAX: Final = 1_000
"""Samples of a phase after which all are halved: what is shown is of the last thousand or so."""
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


_SINGLE: Final = (
    (Budgeted.POOL, Phase.POOL),
    (Budgeted.DNS, Phase.DNS),
    (Budgeted.CONNECT, Phase.CONNECT),
    (Budgeted.TLS, Phase.TLS),
    (Budgeted.WRITE, Phase.WRITE),
)


class PhaseTimes:
    """Counts by phase and bucket."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = array("H", bytes(2 * STEPS * len(Budgeted)))

    def add(self, attempt: Attempt) -> None:
        """Count what an attempt shows. Phases that it did not come to, and a phase in which it was cut off, are left out."""
        phases = attempt.phases
        ended = attempt.phase
        whole = attempt.status is not None
        for kind, phase in _SINGLE:
            seconds = phases.get(phase)
            if seconds is not None and (whole or phase is not ended):
                self._count(kind, seconds)
        connect = phases.get(Phase.CONNECT)
        if connect is not None and (whole or ended in (Phase.WRITE, Phase.WAIT, Phase.READ)):
            self._count(Budgeted.SETUP, connect + phases.get(Phase.DNS, 0.0) + phases.get(Phase.TLS, 0.0))
        if whole:
            self._count(Budgeted.ANSWER, phases.get(Phase.WAIT, 0.0) + phases.get(Phase.READ, 0.0))

    def count(self, kind: Budgeted) -> int:
        """Samples of a phase."""
        return sum(self._counts[kind * STEPS : (kind + 1) * STEPS])

    def quantile(self, kind: Budgeted, q: float) -> float | None:
        """Seconds, in the middle of its bucket; None for fewer than `SAMPLES_MIN` samples."""
        counts = self._counts[kind * STEPS : (kind + 1) * STEPS]
        total = sum(counts)
        if total < SAMPLES_MIN:
            return None
        wanted, seen = math.ceil(q * total), 0
        for step, count in enumerate(counts):
            seen += count
            if seen >= wanted:
                return FIRST * 2 ** ((step + 0.5) / 2)
        raise AssertionError("the last bucket is reached")

    def to_bytes(self) -> bytes:
        """Three bytes for each bucket that holds something."""
        packed = bytearray()
        for place, count in enumerate(self._counts):
            if count:
                packed += bytes((place, count & 0xFF, count >> 8))
        return bytes(packed)

    @classmethod
    def from_bytes(cls, stored: bytes) -> PhaseTimes:
        """What `to_bytes` wrote. Raises `ValueError` for anything else."""
        times = cls()
        if len(stored) % 3:
            raise ValueError(f"{len(stored)} bytes are no stored phase times")
        for at in range(0, len(stored), 3):
            if stored[at] >= STEPS * len(Budgeted):
                raise ValueError(f"place {stored[at]} is none of the stored phase times")
            times._counts[stored[at]] = stored[at + 1] | stored[at + 2] << 8
        return times

    def _count(self, kind: Budgeted, seconds: float) -> None:
        first = kind * STEPS
        place = first + bisect_right(_BOUNDS, seconds)
        counts = self._counts
        counts[place] = count = counts[place] + 1
        if count >= TOTAL_MAX or (not count & 63 and self.count(kind) >= TOTAL_MAX):
            for place in range(first, first + STEPS):
                counts[place] >>= 1
