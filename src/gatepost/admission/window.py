"""The last fifty attempts of one endpoint or host: which failed, which were slow, each forgotten after ten minutes.

Bits and their times; it counts and judges nothing. `admission.breaker` pushes and asks. An attempt may enter while it is
still in flight, as slow; its bit is then *open* until the attempt ends, and its end amends that bit instead of adding another.
"""

from __future__ import annotations

import struct
from typing import Final

WINDOW: Final = 50
"""At a true failure rate of 30 % half of fifty fail in 0.2 % of all windows, half of ten in 15 %."""
MAX_AGE: Final = 600
"""Seconds an attempt is remembered: ten minutes ago was another deployment."""

TICK: Final = 5
"""Seconds. Times are kept as ticks modulo 256, 21 minutes: nothing in the window is older than twice ten."""

_MASK: Final = (1 << WINDOW) - 1
_SECOND_US: Final = 1_000_000
_OLD: Final = MAX_AGE // TICK
_BACK: Final = 2 * _OLD
"""More than this is a clock that went back by a minute or less."""
_TICKS: Final = tuple(bytes((tick,)) for tick in range(256))
_STATE: Final = struct.Struct("<BQQI")


class OutcomeWindow:
    """Attempts as bits, the newest lowest. `now` is UTC microseconds."""

    __slots__ = ("_at", "_failed", "_open", "_slow", "_ticks", "count")

    def __init__(self) -> None:
        self.count = 0
        self._failed = 0
        self._slow = 0
        self._open = 0
        self._at = 0
        """Seconds: when the newest came."""
        self._ticks = b""
        """Oldest first."""

    def __repr__(self) -> str:
        return f"<OutcomeWindow {self.failures(WINDOW)} failed, {self.slow(WINDOW)} slow of {self.count}>"

    def push(self, failed: bool, slow: bool, now: int, in_flight: bool = False) -> None:
        """One more attempt, after dropping what is too old. `in_flight`: it has not ended; `amend` will say how it did."""
        second = now // _SECOND_US
        tick = second // TICK & 0xFF
        if second - self._at > MAX_AGE or (self.count and _OLD < tick - self._ticks[0] & 0xFF <= _BACK):
            self._drop_old(second)
        self._at = second
        count = self.count
        if count == WINDOW:
            self._ticks = self._ticks[1:] + _TICKS[tick]
        else:
            self._ticks += _TICKS[tick]
            self.count = count + 1
        self._failed = (self._failed << 1 | failed) & _MASK
        self._slow = (self._slow << 1 | slow) & _MASK
        if in_flight or self._open:
            self._open = (self._open << 1 | in_flight) & _MASK

    def amend(self, failed: bool) -> bool:
        """The longest known attempt that was counted in flight has ended. False: it has left the window meanwhile."""
        if not self._open:
            return False
        bit = 1 << (self._open.bit_length() - 1)
        self._open &= ~bit
        if failed:
            self._failed |= bit
        return True

    def forget_old(self, now: int) -> None:
        """Drop what is older than ten minutes. O(1) amortised."""
        self._drop_old(now // _SECOND_US)

    def clear(self) -> None:
        """Forget everything."""
        self.count = self._failed = self._slow = self._open = 0
        self._ticks = b""

    def failures(self, last: int) -> int:
        """How many of the last `last` attempts failed."""
        return (self._failed & (1 << min(last, self.count)) - 1).bit_count()

    def slow(self, last: int) -> int:
        """How many of the last `last` attempts were slow."""
        return (self._slow & (1 << min(last, self.count)) - 1).bit_count()

    def _drop_old(self, second: int) -> None:
        if second - self._at > MAX_AGE:
            self.clear()
            return
        ticks, tick = self._ticks, second // TICK & 0xFF
        old = 0
        while old < len(ticks) and _OLD < tick - ticks[old] & 0xFF <= _BACK:
            old += 1
        if not old:
            return
        self._ticks = ticks[old:]
        self.count = len(ticks) - old
        kept = (1 << self.count) - 1
        self._failed &= kept
        self._slow &= kept
        self._open &= kept

    # ------------------------------------------------------------------------------------------------ storing

    def to_bytes(self) -> bytes:
        """The bits and when the newest came; the older ones are then taken to be as young."""
        return _STATE.pack(self.count, self._failed, self._slow, self._at)

    @classmethod
    def from_bytes(cls, stored: bytes) -> OutcomeWindow:
        """What `to_bytes` wrote. Raises `ValueError` for anything else."""
        if len(stored) != _STATE.size:
            raise ValueError(f"{len(stored)} bytes are no stored window")
        count, failed, slow, newest = _STATE.unpack(stored)
        if count > WINDOW:
            raise ValueError(f"a window of {count} attempts")
        window = cls()
        window.count, window._failed, window._slow = count, failed & _MASK, slow & _MASK
        window._at = newest
        window._ticks = _TICKS[newest // TICK & 0xFF] * count
        return window


WINDOW_BYTES: Final = _STATE.size
