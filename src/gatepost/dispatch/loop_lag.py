"""Holds back new attempts while the event loop runs late: a late loop measures itself instead of its endpoints.

`LagWindow` is arithmetic on samples; `LoopLag.run` takes them with one timer while attempts are in flight. Above 20 ms p99 over
a second no attempt starts beyond those in flight at that moment (design section 5) or a few; the worker asks `ceiling` before each turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from gatepost.clock import Clock

TICK: Final = 0.02
"""Seconds between samples: fifty wake-ups a second cost a thousandth of a core."""
WINDOW: Final = 50
"""Samples in a second. Their p99 is the second worst: one long pause alone does not count, a habit does."""
LATE_P99: Final = 0.02
"""Seconds."""
HELD_MIN: Final = 64
"""Attempts that may be in flight however late the loop is: so few do not make it late, and holding them back would only let a
few slow endpoints keep everybody else out."""


class LagWindow:
    """The lateness of the last second's ticks, in seconds."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=WINDOW)

    def add(self, seconds: float) -> None:
        """Record one tick."""
        self._samples.append(seconds)

    def clear(self) -> None:
        """Forget what was recorded."""
        self._samples.clear()

    @property
    def worst(self) -> float:
        """The latest tick of the window."""
        return max(self._samples, default=0.0)

    @property
    def p99(self) -> float:
        """The second worst; 0.0 before there are two."""
        return sorted(self._samples)[-2] if len(self._samples) > 1 else 0.0


class LoopLag:
    """The guard. `late` says whether it holds."""

    __slots__ = ("_clock", "_held_at", "_needed", "window")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._needed = asyncio.Event()
        self.window = LagWindow()
        self._held_at: int | None = None

    @property
    def late(self) -> bool:
        """No attempt starts beyond those in flight when this became true."""
        return self._held_at is not None

    def ceiling(self, slots: int) -> int:
        """Attempts that may be in flight now."""
        return slots if self._held_at is None else min(slots, self._held_at)

    def sample(self, seconds: float, in_flight: int) -> None:
        """One tick came `seconds` late while `in_flight` attempts were under way."""
        self.window.add(seconds)
        if self.window.p99 <= LATE_P99:
            self._held_at = None
        elif self._held_at is None:
            self._held_at = max(HELD_MIN, in_flight)

    def wake(self) -> None:
        """Attempts are in flight: measure."""
        self._needed.set()

    async def run(self, in_flight: Callable[[], int]) -> None:
        """Take samples until cancelled; sleep for good while nothing is in flight."""
        while True:
            if not in_flight():
                self.window.clear()
                self._held_at = None
                self._needed.clear()
                await self._needed.wait()
            expected = self._clock.monotonic() + TICK
            await asyncio.sleep(TICK)
            self.sample(max(0.0, self._clock.monotonic() - expected), in_flight())
