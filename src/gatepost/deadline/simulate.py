"""What static timeouts cost in a chain of services, against a deadline that is handed down: a simulation. Pure, by a seed.

Every request goes through the same hops twice, with the same work in each: once each hop waits for the next up to its own
timeout, unaware that its caller may have gone; once it knows what is left, refuses what cannot be done and stops what is late.
Shown by `gatepost deadline simulate`; it says how the two differ, not how fast a real system is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gatepost.clock import seeded_uniform
from gatepost.errors import ConfigurationError

HOPS_MAX: Final = 50
CALLS_MAX: Final = 4_000_000
"""Calls of the last hop at most: attempts multiply by hop, and a simulation must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What is simulated. Times in seconds."""

    hops: int = 5
    """Services in the chain; the first is called by the user."""
    budget: float = 0.5
    """The user waits this long, and it is what propagated deadlines hand down."""
    timeout: float = 5.0
    """Each hop's static timeout for the call to the next."""
    work: float = 0.02
    """Median of a hop's own work, half of it before its call to the next and half after."""
    spread: float = 0.5
    """Sigma of the logarithm of the work: 0.5 puts the 99th percentile at 3.2 medians."""
    slow: float = 20.0
    """Factor on the last hop's work: the degraded dependency."""
    retries: int = 0
    """Further attempts of each hop after a timeout."""
    reserve: float = 0.005
    """What each hop keeps of the deadline for its own answer."""
    rate: float = 100.0
    """Users' requests per second, for the load on the last hop."""
    requests: int = 2_000
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("budget", "timeout", "work", "slow", "rate"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigurationError(f"{name}={value!r}: write a number above 0")
        for name in ("spread", "reserve"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value <= 5):
                raise ConfigurationError(f"{name}={value!r}: write a number from 0 to 5")
        if not 1 <= self.hops <= HOPS_MAX:
            raise ConfigurationError(f"hops={self.hops}: write 1 to {HOPS_MAX}")
        if self.retries < 0 or self.requests < 1:
            raise ConfigurationError("write retries from 0 and requests from 1")
        if self.requests * (self.retries + 1) ** (self.hops - 1) > CALLS_MAX:
            raise ConfigurationError(
                f"{self.requests} requests with {self.retries} retries at {self.hops} hops may make "
                f"{self.requests * (self.retries + 1) ** (self.hops - 1):,} calls to the last one; write fewer of one of them"
            )


class Mode(StrEnum):
    """How a call is limited."""

    STATIC = "static"
    PROPAGATED = "propagated"


@dataclass(frozen=True, slots=True)
class Hop:
    """One service's share, per user's request."""

    calls: float
    busy: float
    """Seconds of work, waiting for others not counted."""
    dead: float
    """Of those, seconds after the user had gone."""
    refused: float
    """Calls not begun, because what was left could not be enough."""


@dataclass(frozen=True, slots=True)
class Result:
    """One mode's outcome."""

    mode: Mode
    answered: float
    """Share of users who got their answer in time."""
    held_p50: float
    held_p99: float
    """Seconds for which a request holds the first service: users who have gone are still worked for."""
    worst_case: float
    """Seconds that the configuration allows a request to take, by arithmetic: every hop waits its longest."""
    dead_share: float
    """Share of all work that was done for users who had gone."""
    last_load: float
    """Requests in progress in the last hop at once, by Little's law."""
    hops: tuple[Hop, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both modes over the same requests."""

    chain: Chain
    static: Result
    propagated: Result


def simulate(chain: Chain) -> Comparison:
    """Run both modes; the same `chain` always gives the same numbers."""
    return Comparison(chain, _run(chain, Mode.STATIC), _run(chain, Mode.PROPAGATED))


@dataclass(slots=True)
class _Tally:
    calls: int = 0
    busy: float = 0.0
    dead: float = 0.0
    refused: int = 0


def _run(chain: Chain, mode: Mode) -> Result:
    draw = _lognormal(chain)
    tallies = [_Tally() for _ in range(chain.hops)]
    held: list[float] = []
    answered = 0
    for _ in range(chain.requests):
        # Each attempt finds the hop as slow as the first did: a degraded dependency does not get well by being asked again.
        works = [draw() * (chain.slow if hop == chain.hops - 1 else 1.0) for hop in range(chain.hops)]
        ended, good = _call(chain, mode, tallies, works, 0, 0.0, chain.budget)
        held.append(ended)
        answered += good and ended <= chain.budget
    held.sort()
    hops = tuple(
        Hop(*(value / chain.requests for value in (one.calls, one.busy, one.dead, one.refused))) for one in tallies
    )
    busy = sum(hop.busy for hop in hops)
    tries = chain.retries + 1
    longest = chain.timeout * tries * (chain.hops - 1) + chain.work * chain.hops
    return Result(
        mode,
        answered / chain.requests,
        _rank(held, 0.5),
        _rank(held, 0.99),
        longest if mode is Mode.STATIC else chain.budget,
        sum(hop.dead for hop in hops) / busy if busy else 0.0,
        chain.rate * hops[-1].busy,
        hops,
    )


def _call(
    chain: Chain, mode: Mode, tallies: list[_Tally], works: list[float], hop: int, now: float, until: float
) -> tuple[float, bool]:
    """Serve one call at `hop`, begun at `now`; `until` is what it was handed down. Returns its end, and whether it succeeded.

    A caller that stops waiting does not end a static call: the tallies count what it goes on to do.
    """
    tally = tallies[hop]
    median = chain.work * (chain.slow if hop == chain.hops - 1 else 1.0)
    knows = mode is Mode.PROPAGATED
    if knows and until - now < median:
        tally.refused += 1
        return now, False
    tally.calls += 1
    last = hop == chain.hops - 1
    now, good = _work(chain, tally, works[hop] * (1.0 if last else 0.5), now, until if knows else math.inf)
    if last or not good:
        return now, good
    for _ in range(chain.retries + 1):
        limit = now + chain.timeout
        whole = knows and until - chain.reserve <= limit
        if whole:
            limit = until - chain.reserve
            if limit <= now:
                return now, False
        ended, good = _call(chain, mode, tallies, works, hop + 1, now, limit)
        good = good and ended <= limit
        now = min(ended, limit)
        if good or whole:  # a call that had all the time there was is not tried again
            break
    if not good:
        return now, False
    return _work(chain, tally, works[hop] * 0.5, now, until if knows else math.inf)


def _work(chain: Chain, tally: _Tally, seconds: float, now: float, until: float) -> tuple[float, bool]:
    end = min(now + seconds, until)
    tally.busy += end - now
    tally.dead += max(0.0, end - max(now, chain.budget))
    return end, now + seconds <= until


def _rank(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def _lognormal(chain: Chain) -> Callable[[], float]:
    uniform = seeded_uniform(chain.seed)

    def draw() -> float:
        # Box and Muller's transform; 1 - u is never 0.
        normal = math.sqrt(-2.0 * math.log(1.0 - uniform())) * math.cos(2.0 * math.pi * uniform())
        return chain.work * math.exp(chain.spread * normal)

    return draw
