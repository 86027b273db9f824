"""Percentiles and medians, and arrival latencies from two ledgers. Arithmetic only; benchmarks decide what to compare."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Latency:
    """A distribution in milliseconds."""

    count: int
    p50: float
    p95: float
    p99: float
    longest: float

    def as_dict(self) -> dict[str, float]:
        """For reports, rounded to microseconds."""
        return {
            "count": self.count,
            "p50_ms": round(self.p50, 3),
            "p95_ms": round(self.p95, 3),
            "p99_ms": round(self.p99, 3),
            "max_ms": round(self.longest, 3),
        }


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of sorted values; NaN of none."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def latency_of(milliseconds: Iterable[float]) -> Latency:
    """The distribution of some durations."""
    ordered = sorted(milliseconds)
    return Latency(
        len(ordered),
        percentile(ordered, 0.50),
        percentile(ordered, 0.95),
        percentile(ordered, 0.99),
        ordered[-1] if ordered else math.nan,
    )


def arrivals_after(due_ns: Mapping[str, int], first_byte_ns: Mapping[str, int]) -> Latency:
    """From due to first byte at the receiver, by event id; ids that never arrived are left out (count them apart)."""
    return latency_of((first_byte_ns[one] - due) / 1e6 for one, due in due_ns.items() if one in first_byte_ns)
