"""The store's wall clock as this process knows it: what due times, ids, leases and retention are measured by.

Set at the start by asking, corrected by every heartbeat, and monotonic between and across corrections: it jumps forward at
once, and when it is ahead it runs at half speed until it is not, so that nothing ever happens twice because a clock stepped
back. Read by everything in `dispatch`; signatures carry the machine's own wall clock instead.
"""

from __future__ import annotations

from typing import Final

from gatepost.clock import Clock

SKEW_WARNING_US: Final = 1_000_000
"""Store and machine differ by over a second: due times and logs no longer agree."""
SKEW_LIMIT_US: Final = 30_000_000
"""Receivers accept signatures within five minutes, and leases last half a minute: a machine so far off must not sign."""


class StoreTime:
    """Call it for UTC microseconds by the store's clock; never goes back. It is a `Clock` too, with this machine's monotonic time."""

    __slots__ = ("_ahead_us", "_base_ns", "_base_us", "_clock", "_known", "_monotonic_ns", "skew_us")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._monotonic_ns = clock.monotonic_ns
        self._base_ns = clock.monotonic_ns()
        self._base_us = clock.wall_us()
        self._ahead_us = 0
        """How much too far we are; lost at half speed."""
        self._known = False
        """The store has said something."""
        self.skew_us = 0
        """The store's clock less this machine's, at the last heartbeat."""

    def __call__(self) -> int:
        elapsed = (self._monotonic_ns() - self._base_ns) // 1_000
        if not self._ahead_us:
            return self._base_us + elapsed
        return self._base_us + elapsed - min(elapsed // 2, self._ahead_us)

    wall_us = __call__

    def monotonic(self) -> float:
        """Seconds, of this machine."""
        return self._clock.monotonic()

    def monotonic_ns(self) -> int:
        """The same in nanoseconds."""
        return self._monotonic_ns()

    @property
    def trusted(self) -> bool:
        """This machine's wall clock may be signed with."""
        return abs(self.skew_us) <= SKEW_LIMIT_US

    def correct(self, store_us: int, asked_ns: int) -> None:
        """The store said `store_us` in answer to a question sent at `asked_ns` (monotonic).

        It was true somewhere between question and answer. What we show is believed as long as it lies in between, and else moved
        to the nearer end: an answer that took ten seconds, of a network that was silent, must not move us by five.
        """
        answered_ns = self._monotonic_ns()
        latest_us = store_us + (answered_ns - asked_ns) // 1_000
        half_way_us = (store_us + latest_us) // 2
        shown_us = self() if self._known else half_way_us  # before, it was only a guess: nothing has happened by it
        true_us = min(max(shown_us, store_us), latest_us)
        self._known = True
        self._base_ns, self._base_us = answered_ns, max(true_us, shown_us)
        self._ahead_us = max(0, shown_us - true_us)
        self.skew_us = true_us - self._clock.wall_us()
