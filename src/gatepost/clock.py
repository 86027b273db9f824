"""The only file that asks the time or rolls dice; everything else takes `now` and `u` as arguments or holds one of these.

`SystemClock` and `SystemEntropy` are what production uses; `gatepost.testing` has the virtual ones.
"""

from __future__ import annotations

import os
import random
import time
from typing import Protocol


class Clock(Protocol):
    """Two times that must never be mixed: monotonic inside the process, wall clock where rows and headers are written."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def monotonic_ns(self) -> int:
        """The same clock in integer nanoseconds."""
        ...

    def wall_us(self) -> int:
        """UTC microseconds since 1970; may step."""
        ...


class Entropy(Protocol):
    """Where randomness comes from."""

    def uniform(self) -> float:
        """A float `u` with `0 <= u < 1`, for jitter. Not for secrets."""
        ...

    def token(self, size: int) -> bytes:
        """`size` bytes fit for secrets and ids."""
        ...


class SystemClock:
    """The operating system's clocks."""

    __slots__ = ()

    monotonic = staticmethod(time.monotonic)
    monotonic_ns = staticmethod(time.monotonic_ns)

    @staticmethod
    def wall_us() -> int:
        """UTC microseconds since 1970."""
        return time.time_ns() // 1_000


class SystemEntropy:
    """The operating system's randomness for secrets, Python's generator for jitter."""

    __slots__ = ()

    uniform = staticmethod(random.random)
    token = staticmethod(os.urandom)


SYSTEM_CLOCK: Clock = SystemClock()
SYSTEM_ENTROPY: Entropy = SystemEntropy()
