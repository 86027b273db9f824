"""Retries inside a budget: whether another attempt is worth its sleep, and how much time it gets. Decides; sleeps nowhere.

A retry that cannot finish in time is given up before the sleep, not after it. Called by retry loops of applications, as
`next_attempt` before each try; pure, with what is left as an argument.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

from gatepost.deadline.value import DeadlineExceeded

SLACK: Final = 1e-9
"""Seconds by which sums of floats may be off: 0.25 - 0.1 - 0.1 is not quite 0.05."""


class Split(StrEnum):
    """How attempts share what is left."""

    GREEDY = "greedy"
    """Each gets its cap, the last one what is left: Envoy's per-try timeout."""
    EVEN = "even"
    """Each gets an equal share of what is left when it starts, so that the last is not starved by the first."""


class Why(StrEnum):
    """Why no further attempt is made."""

    NO_TIME = "no_time"
    """After the sleep too little would be left."""
    NO_ATTEMPTS = "no_attempts"
    """All allowed attempts were made."""
    POINTLESS = "pointless"
    """The last attempt had all the time there was, and the service said that it was too little."""


@dataclass(frozen=True, slots=True)
class Try:
    """Sleep `after` seconds, then try for at most `timeout` seconds."""

    after: float
    timeout: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not sleep; raise the last error now."""

    why: Why


def next_attempt(
    left: float | None,
    *,
    sleep: float = 0.0,
    cap: float = math.inf,
    min_attempt: float = 0.001,
    attempts_left: int = 1,
    split: Split = Split.GREEDY,
    last: BaseException | None = None,
) -> Try | GiveUp:
    """What to do with `left` seconds (None: no deadline) when the next attempt would come after `sleep`.

    `cap` is the longest attempt, `min_attempt` the shortest that can succeed (the service's median), both in seconds;
    `attempts_left` counts the next one. `last` is the error of the attempt before: one that says itself that a retry can only
    fail the same way (`retry_allowed` False) ends it. Raises `ValueError` for negative times.
    """
    for name, value in (("sleep", sleep), ("min_attempt", min_attempt)):
        if not value >= 0:
            raise ValueError(f"{name}={value!r}: write seconds from 0")
    if not cap > 0:  # 0 means "no timeout" to most libraries
        raise ValueError(f"cap={cap!r}: write the longest that one attempt may take in seconds, for example 1.0")
    if attempts_left < 1:
        return GiveUp(Why.NO_ATTEMPTS)
    if isinstance(last, DeadlineExceeded) and getattr(last, "retry_allowed", True) is False:
        return GiveUp(Why.POINTLESS)
    if left is None or left == math.inf:
        if cap == math.inf:
            raise ValueError("no deadline and no cap: write cap=, the longest that one attempt may take")
        return Try(sleep, cap)
    usable = left - sleep
    match split:
        case Split.GREEDY:
            timeout = min(cap, usable)
        case Split.EVEN:
            timeout = min(cap, usable / attempts_left)
        case _:
            assert_never(split)
    if usable <= SLACK or timeout + SLACK < min_attempt:
        return GiveUp(Why.NO_TIME)
    return Try(sleep, timeout)
