"""How many attempts one endpoint may have in flight: additive growth while it is well and needs them, a cut when it is not.

It counts finished attempts in short windows and moves one number; it holds nobody back itself. What is over the cap waits in
its lane at no cost. Called by `admission.endpoint_limits`; the cap goes to the scheduler.

Theory of operation. Most endpoints have nought to three attempts in flight, where latency gradients see only noise, so this is
AIMD: a window (ten attempts, or ten seconds) with a timeout, a 429 or a 503, or more than a fifth of slow answers, cuts the cap
by 0.7; one in which the cap was nearly used up adds 1. Little's law is the ceiling: a healthy endpoint at rate r and mean w
needs about r·w in flight and some for bursts, so a cap that was not nearly reached never grows, and no endpoint gets more than
an eighth of the slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gatepost.errors import ConfigurationError

CAP_MAX: Final = 64
"""25 Erlangs and their bursts need 37: a hundred attempts a second of 250 ms."""
SLOTS_SHARE: Final = 8
"""An eighth of the slots at most, so that a few hungry endpoints leave room."""
CALLS: Final = 10
SECONDS: Final = 10.0
"""A window ends after so many attempts, or this long, whichever is first."""
CUT: Final = 0.7
SLOW_SHARE: Final = 0.2
USED_SHARE: Final = 0.8
SLOW_OF_MEDIAN: Final = 2.0
SLOW_OF_TIMEOUT: Final = 0.5
"""See `slower`."""

_SECOND_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ConcurrencyRules:
    """Where the cap starts and how far it may go; `fixed` ones do not move (an endpoint's own setting)."""

    start: int = 6
    least: int = 1
    most: int = CAP_MAX
    fixed: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.start <= self.most <= 255:
            raise ConfigurationError(
                f"least={self.least}, start={self.start}, most={self.most}: write 1 <= least <= start <= most <= 255"
            )


def concurrency_rules(start: int, slots: int, override: int | None) -> ConcurrencyRules:
    """The rules for an endpoint of a process with `slots`; `override` is the endpoint's own cap, which nothing moves."""
    if override is not None:
        return ConcurrencyRules(override, override, override, fixed=True)
    return ConcurrencyRules(start, 1, max(start, min(CAP_MAX, slots // SLOTS_SHARE)))


class ConcurrencyLimit:
    """One endpoint's cap. `now` is UTC microseconds."""

    __slots__ = ("_bad", "_calls", "_slow", "_started_at", "_used", "cap")

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self._calls = 0
        self._slow = 0
        self._bad = 0
        self._used = 0
        self._started_at = 0

    def __repr__(self) -> str:
        return f"<ConcurrencyLimit {self.cap}>"

    def finished(self, slow: bool, bad: bool, in_flight: int, now: int, rules: ConcurrencyRules) -> bool:
        """An attempt ended while `in_flight` were under way, itself included. `bad`: a timeout, 429 or 503. True: the cap moved."""
        if rules.fixed:
            return False
        if not self._calls:
            self._started_at = now
        self._calls += 1
        self._slow += slow
        self._bad += bad
        if in_flight > self._used:
            self._used = in_flight
        if self._calls < CALLS and now - self._started_at < SECONDS * _SECOND_US:
            return False
        return self._end_window(rules)

    def _end_window(self, rules: ConcurrencyRules) -> bool:
        cap = self.cap
        if self._bad or self._slow > SLOW_SHARE * self._calls:
            self.cap = max(rules.least, int(cap * CUT))
        elif self._used >= USED_SHARE * cap:
            self.cap = min(rules.most, cap + 1)
        self._calls = self._slow = self._bad = self._used = 0
        return self.cap != cap


def slower(seconds: float, p50: float, read_timeout: float) -> bool:
    """Whether an answer was slow for this endpoint: beyond twice its usual time (`p50`, 0.0 when not known), and beyond half of
    its read timeout. A slow endpoint is not slower than itself."""
    return seconds > SLOW_OF_TIMEOUT * read_timeout and seconds > SLOW_OF_MEDIAN * p50
