"""Tries a load on a number of slots, delivery by delivery: what the formulas cannot say, such as the first minute of an outage.

One queue, first come first served, on `slots`; arrivals without memory; a bad endpoint at its cap is passed over and its
delivery shed, as the scheduler does. Pure and deterministic: the same `Trial` always gives the same numbers. It models no CPU,
no connections and no retries; where the load is steady and below the slots it agrees with `admission.queueing`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gatepost.admission.capacity import Load
from gatepost.clock import seeded_uniform
from gatepost.errors import ConfigurationError

ARRIVALS_MAX: Final = 5_000_000
"""Arrivals at most: about ten seconds of one core a million, and a simulation must end."""
REPORT_EVERY: Final = 5_000
"""Arrivals between two reports of progress."""

Progress = Callable[[int, int], None]
"""Called with arrivals done and arrivals expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What is tried."""

    load: Load
    slots: int
    cap: int | None = None
    """Attempts in flight of each bad endpoint."""
    duration: float = 60.0
    """Seconds simulated, from an empty system."""
    warm_up: float = 0.0
    """Seconds at the beginning that no figure counts; 0 shows the start of an outage, more the steady state."""
    seed: int = 1

    def __post_init__(self) -> None:
        if self.slots < 1 or (self.cap is not None and self.cap < 1):
            raise ConfigurationError("write slots and cap from 1")
        if not (math.isfinite(self.duration) and 0.0 <= self.warm_up < self.duration):
            raise ConfigurationError(
                f"duration={self.duration!r} and warm_up={self.warm_up!r}: write seconds, the warm-up shorter than the whole"
            )
        if self.arrivals > ARRIVALS_MAX:
            raise ConfigurationError(
                f"{self.arrivals:,.0f} arrivals are more than {ARRIVALS_MAX:,}: write a shorter duration or a lower rate"
            )

    @property
    def arrivals(self) -> float:
        """Arrivals to expect."""
        return (self.load.healthy_rate + self.load.bad_rate) * self.duration


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What came of it, warm-up left out."""

    arrivals: int
    throughput_healthy: float
    """Healthy deliveries finished a second."""
    throughput: float
    """Attempts finished a second, healthy and bad."""
    backlog: int
    """Deliveries still waiting for a slot at the end."""
    shed: int
    """Bad deliveries passed over because their endpoint was at its cap."""
    p_wait: float
    """Share of the healthy deliveries that got a slot, and had to wait for it."""
    mean_wait: float
    p99_wait: float
    """Seconds, of the healthy deliveries that got a slot."""
    busy: float
    """Slots busy on average."""


def try_out(trial: Trial, progress: Progress | None = None) -> TrialResult:
    """Simulate `trial`."""
    load, cap, end, start = trial.load, trial.cap, trial.duration, trial.warm_up
    draw = seeded_uniform(trial.seed)
    service = _service(load, draw)
    rate = load.healthy_rate + load.bad_rate
    bad_share = load.bad_rate / rate
    expected = round(trial.arrivals)
    # When each slot falls free, the next one first (Kiefer and Wolfowitz): who comes first gets it, now or when it is free.
    free = [0.0] * trial.slots
    held: list[list[float]] = [[] for _ in range(load.bad_endpoints)]
    waits: list[float] = []
    arrivals = backlog = shed = done = done_healthy = count = 0
    busy = now = 0.0
    while True:
        now -= math.log(1.0 - draw()) / rate
        if now >= end:
            break
        count += 1
        if progress is not None and count % REPORT_EVERY == 0:
            progress(min(count, expected), expected)
        counts = now >= start
        arrivals += counts
        bad = draw() < bad_share
        seconds = load.bad_timeout if bad else service()
        begun = max(now, free[0])
        if begun >= end:  # whoever comes later begins later still
            backlog += 1
            continue
        if bad and cap is not None:
            own = held[int(draw() * load.bad_endpoints)]
            while own and own[0] <= begun:
                heapq.heappop(own)
            if len(own) >= cap:
                shed += counts
                continue
            heapq.heappush(own, begun + seconds)
        ended = begun + seconds
        heapq.heapreplace(free, ended)
        busy += max(0.0, min(ended, end) - max(begun, start))
        if start <= ended < end:
            done += 1
            done_healthy += not bad
        if counts and not bad:
            waits.append(begun - now)
    if progress is not None:
        progress(expected, expected)
    span = end - start
    waits.sort()
    waited = sum(one > 0.0 for one in waits)
    return TrialResult(
        arrivals=arrivals,
        throughput_healthy=done_healthy / span,
        throughput=done / span,
        backlog=backlog,
        shed=shed,
        p_wait=waited / len(waits) if waits else 0.0,
        mean_wait=math.fsum(waits) / len(waits) if waits else 0.0,
        p99_wait=waits[min(len(waits) - 1, math.ceil(0.99 * len(waits)) - 1)] if waits else 0.0,
        busy=busy / span,
    )


def _service(load: Load, draw: Callable[[], float]) -> Callable[[], float]:
    """Times of healthy attempts: fixed, exponential, or lognormal with the same mean and the `cv2` asked for."""
    mean, cv2 = load.mean, load.cv2
    if cv2 == 0.0:
        return lambda: mean
    if cv2 == 1.0:
        return lambda: -mean * math.log(1.0 - draw())
    variance = math.log(1.0 + cv2)
    median, sigma = mean * math.exp(-variance / 2.0), math.sqrt(variance)

    def lognormal() -> float:
        # Box and Muller's transform; 1 - u is never 0.
        normal = math.sqrt(-2.0 * math.log(1.0 - draw())) * math.cos(2.0 * math.pi * draw())
        return median * math.exp(sigma * normal)

    return lognormal
