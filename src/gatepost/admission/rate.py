"""A token bucket: at most so many per second, with a burst of one second's worth.

Pure arithmetic on `now` in microseconds; it neither waits nor knows what is counted. `dispatch.scheduler` spends one token per
attempt of an endpoint with a rate, `dispatch.limits` one per event or byte of a tenant.
"""

from __future__ import annotations

import math
from typing import Final

_MICROSECONDS: Final = 1_000_000
WAIT_MAX_US: Final = 10**15
"""Thirty years. A rate so low that a token takes longer must not break the arithmetic, which serves everybody's endpoints."""


class TokenBucket:
    """`rate` tokens a second, at most `burst` saved up (not given: one second's worth, but at least one token)."""

    __slots__ = ("_at", "_tokens", "burst", "rate")

    def __init__(self, rate: float, now: int, burst: float | None = None) -> None:
        if not rate > 0 or not math.isfinite(rate):
            raise ValueError(f"rate={rate}: write a positive number per second")
        self.rate = rate
        self.burst = max(1.0, rate) if burst is None else burst
        self._tokens = self.burst
        self._at = now

    def __repr__(self) -> str:
        return f"<TokenBucket rate={self.rate:g} burst={self.burst:g} tokens={self._tokens:.3f}>"

    def try_take(self, now: int, count: float = 1.0) -> bool:
        """Spend `count` tokens if they are there. A count over the burst needs a full bucket and leaves a debt."""
        self._refill(now)
        if self._tokens < min(count, self.burst):
            return False
        self._tokens -= count
        return True

    def ready_at(self, now: int, count: float = 1.0) -> int:
        """The first microsecond at which `try_take(…, count)` says True if nobody else takes; `now` when it does already."""
        self._refill(now)
        missing = min(count, self.burst) - self._tokens
        if missing <= 0:
            return now
        return max(now, self._at) + math.ceil(min(missing / self.rate * _MICROSECONDS, WAIT_MAX_US)) + 1

    def reserve(self, now: int, count: float = 1.0) -> int:
        """Spend `count` tokens now, there or not, and say from when on they would have been: a debt that later ones wait behind."""
        ready = self.ready_at(now, count)
        self._tokens -= count
        return ready

    def full_at(self, now: int) -> int:
        """When the bucket will be full again, after which forgetting it changes nothing."""
        return self.ready_at(now, self.burst)

    def _refill(self, now: int) -> None:
        if now > self._at:
            self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate / _MICROSECONDS)
            self._at = now
