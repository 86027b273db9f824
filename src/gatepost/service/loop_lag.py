"""How late the event loop runs: a timer that should fire every 10 ms, and by how much it did not, over the last second.

A late loop must not take new work or blame endpoints; `/readyz` and a gauge read it here. It decides nothing itself and is
run by `service.app` as one task.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from gatepost.clock import SYSTEM_CLOCK, Clock

TICK: Final = 0.01
"""Seconds: a hundred samples a second make a p99 that means something, for 0.2 % of a core."""
WINDOW: Final = 100
"""Samples looked at: one second."""
LATE_P99: Final = 0.02
"""Seconds: above it the process is late."""


class LoopLag:
    """The lag of the last second."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._monotonic = clock.monotonic
        self._samples: deque[float] = deque(maxlen=WINDOW)

    @property
    def worst(self) -> float:
        """Seconds of the latest tick in the window."""
        return max(self._samples, default=0.0)

    @property
    def p99(self) -> float:
        """Seconds: the second worst of a hundred samples."""
        if len(self._samples) < 2:
            return 0.0
        return sorted(self._samples)[-2]

    @property
    def late(self) -> bool:
        """The loop cannot keep up now."""
        return self.p99 > LATE_P99

    def add(self, seconds: float) -> None:
        """Record one tick's lateness."""
        self._samples.append(seconds)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            expected = self._monotonic() + TICK
            await asyncio.sleep(TICK)
            self.add(max(0.0, self._monotonic() - expected))
