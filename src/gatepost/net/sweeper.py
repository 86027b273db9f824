"""One timer for all limits: looks over everything in flight and ends what is past its limit.

A timer per phase costs 12 to 18 µs an attempt; this costs nothing per attempt and is late by one tick at most, a tenth of
the tightest limit in force, between 5 and 50 ms. When our own loop was late the endpoint is not blamed for it: limits are
extended by the lag, and bytes that are already here are read first.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gatepost.net.client import DispatchClient

TICK_MIN: Final = 0.005
TICK_MAX: Final = 0.050
"""Seconds."""
TICK_SHARE: Final = 0.1
"""Of the tightest limit in force."""
IDLE_TICK: Final = 1.0
"""Seconds between looks at idle connections when nothing is in flight."""
LAG_EXTENDS: Final = 0.010
"""Seconds of lateness that are given back to those in flight; less is the loop's ordinary jitter."""
CAME_ROUND: Final = TICK_MAX + LAG_EXTENDS
"""Seconds since a sweep within which the loop is not late, so that what an idle connection got has been seen: bytes may always
be on their way, for as long as the network takes, and only a late loop must not add to that."""
LAG_BLAMES_US: Final = 0.050
"""Seconds of lateness from which learners and breakers ignore the outcomes of a tick."""


class Sweeper:
    """Calls `on_limit` of flights and expires idle connections. Runs only while there is something to watch."""

    __slots__ = ("_client", "_due_at", "_timer", "late_count", "shortest", "swept_at")

    def __init__(self, client: DispatchClient) -> None:
        self._client = client
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self.swept_at = float("-inf")
        """When the loop last came round to a sweep."""
        self.shortest = float("inf")
        """Seconds of the tightest limit the current tick was chosen for; a tighter one must say so by `tighten`."""
        self.late_count = 0
        """Sweeps that were late enough to extend limits."""

    def watch(self, now: float) -> None:
        """Something is in flight: make sure that the timer runs at the pace of flights."""
        if self._timer is None or self._due_at > now + TICK_MAX:
            self._schedule(TICK_MAX, now)

    def tighten(self, limit_length: float) -> None:
        """A tighter limit than any before is in force: look sooner."""
        self.shortest = limit_length
        now = self._client.clock.monotonic()
        tick = _tick(limit_length)
        if self._timer is None or self._due_at > now + tick:
            self._schedule(tick, now)

    def stop(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, tick: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_at = now + tick
        self._timer = self._client.loop.call_later(tick, self._sweep)

    def _sweep(self) -> None:
        client = self._client
        self._timer = None
        now = self.swept_at = client.clock.monotonic()
        lag = now - self._due_at
        late = lag > LAG_EXTENDS
        flights = client.flights
        if late:
            self.late_count += 1
            for flight in flights:
                flight.extend(lag)
        over = [flight for flight in flights if flight.limit_at <= now]
        lagged = lag > LAG_BLAMES_US
        try:
            for flight in over:
                flight.look_again()
                if flight.limit_at <= now:
                    flight.on_limit(now, lagged)
            client.pool.expire(now)
        finally:  # whatever went wrong with one of them, the others keep their limits
            self._go_on(now)

    def _go_on(self, now: float) -> None:
        flights = self._client.flights
        if flights:
            self.shortest = min(flight.limit_length for flight in flights)
            self._schedule(_tick(self.shortest), now)
        else:
            self.shortest = float("inf")
            if self._client.pool.leases.idle_count:
                self._schedule(IDLE_TICK, now)


def _tick(limit_length: float) -> float:
    return min(TICK_MAX, max(TICK_MIN, TICK_SHARE * limit_length))
