"""Queueing formulas: how many slots a load keeps busy, how long one more waits for a free one, and how many are enough. Pure.

Little's law, Erlang's C formula for many servers and one queue, square-root staffing, and the Allen-Cunneen correction for
service times that vary more or less than exponential ones. They describe a steady state: a system that started a minute ago,
or whose load is above its slots, is for `admission.capacity_sim`. Called by `admission.capacity`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from gatepost.errors import ConfigurationError

SLOTS_MAX: Final = 10_000_000
"""Most slots that are reasoned about: the formulas walk through all of them, and no fleet has more."""
SAFETY: Final = 3.0
"""Square roots of the load kept free: about 0.2 % of arrivals then wait at all, whatever the size."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What an arrival meets. Seconds; infinite where the load is not below the slots and the queue grows for ever."""

    p_wait: float
    """Share of arrivals that find no free slot."""
    mean: float
    p99: float


def erlangs(rate: float, seconds: float) -> float:
    """Little's law: slots that are busy when `rate` arrivals a second each hold one for `seconds` (J. D. C. Little, 1961)."""
    return rate * seconds


def erlang_c(load: float, slots: int) -> float:
    """Share of arrivals that must wait: Poisson arrivals, `load` Erlangs on `slots`, one queue. 1 where load >= slots.

    By the recursion of Erlang's B formula, which neither overflows nor loses digits.
    """
    _check(load, slots)
    if load >= slots:
        return 1.0
    blocked = 1.0
    for count in range(1, slots + 1):
        blocked = load * blocked / (count + load * blocked)
    return _c_of(blocked, load, slots)


def wait(load: float, slots: int, seconds: float, cv2: float = 1.0) -> Wait:
    """The wait for a slot that is held for `seconds` on average.

    `cv2` is the squared coefficient of variation of that time: 1 exponential, 0 always the same, 4 to 10 for endpoints with a
    long tail. For others than 1 the times are those of Allen and Cunneen, which are high rather than low with many slots.
    """
    probability = erlang_c(load, slots)
    if load >= slots:
        return Wait(1.0, math.inf, math.inf)
    # A slot falls free every seconds/slots; whoever waits does so on average for this long, exponentially distributed.
    conditional = seconds / (slots - load) * (1.0 + cv2) / 2.0
    return Wait(
        probability,
        probability * conditional,
        max(0.0, conditional * math.log(probability / 0.01)) if probability else 0.0,
    )


def slots_for(load: float, p_wait: float) -> int:
    """The fewest slots with which at most this share of arrivals waits."""
    if not 0.0 < p_wait < 1.0:
        raise ConfigurationError(f"p_wait={p_wait!r}: write a share above 0 and below 1, for example 0.01")
    _check(load, 1)
    blocked, slots = 1.0, 0
    while True:
        slots += 1
        blocked = load * blocked / (slots + load * blocked)
        if slots > load and _c_of(blocked, load, slots) <= p_wait:
            return slots


def staffing(load: float, safety: float = SAFETY) -> float:
    """Slots by the square-root rule, load + safety × √load (Halfin and Whitt, 1981); round up after all other factors."""
    return load + safety * math.sqrt(load)


def survive_loss(slots: float, processes: int) -> float:
    """Slots over all processes so that `slots` are left when one process is lost. One process cannot be spared: unchanged."""
    return slots * processes / (processes - 1) if processes > 1 else slots


def _c_of(blocked: float, load: float, slots: int) -> float:
    busy = load / slots
    return blocked / (1.0 - busy * (1.0 - blocked))


def _check(load: float, slots: int) -> None:
    if not (math.isfinite(load) and 0.0 <= load <= SLOTS_MAX):
        raise ConfigurationError(
            f"a load of {load!r} Erlangs: write a rate and a time whose product is 0 to {SLOTS_MAX:,}"
        )
    if not 1 <= slots <= SLOTS_MAX:
        raise ConfigurationError(f"slots={slots!r}: write 1 to {SLOTS_MAX:,}")
