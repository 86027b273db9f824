"""A histogram as one plain list: bucket counts, then the sum. Nothing is allocated per observation.

`service.metrics` counts into it on the hot path, written out there; `service.metrics_exposition` reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

BOUNDS: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.0,
    3.0,
    5.0,
    10.0,
    15.0,
    30.0,
)
"""Upper bounds of the buckets in seconds; the default limits (1, 2, 3, 5, 10) are among them, so that what a limit cut off
ends in the bucket above it."""

SUM: Final = len(BOUNDS) + 1
"""Where the sum is; the buckets and the one without a bound come before it."""

Histogram = list[float]


def new_histogram() -> Histogram:
    """An empty histogram over `BOUNDS`."""
    return [0.0] * (SUM + 1)


def cumulative(histogram: Sequence[float], bounds: Sequence[float] = BOUNDS) -> tuple[list[tuple[str, float]], float]:
    """Buckets as Prometheus counts them (each includes the ones below), and the sum."""
    buckets = []
    count = 0.0
    for place, bound in enumerate(bounds):
        count += histogram[place]
        buckets.append((repr(bound), count))
    buckets.append(("+Inf", count + histogram[-2]))
    return buckets, histogram[-1]
