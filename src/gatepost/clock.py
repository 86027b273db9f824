"""The only file that asks the time or rolls dice; everything else takes `now` and `u` as arguments or holds one of these.

`SystemClock` and `SystemEntropy` are what production uses; `gatepost.testing` has the virtual ones.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Final, Protocol

_MASK: Final = (1 << 64) - 1


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


def seeded_uniform(seed: int) -> Callable[[], float]:
    """Dice for simulations, `0 <= u < 1` by SplitMix64: the same on every machine and Python, which `random` does not promise."""
    state = seed & _MASK

    def draw() -> float:
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        mixed = state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)

    return draw
