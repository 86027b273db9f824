"""The last few hundred response times of one endpoint or host, exactly, those that were cut off marked as such.

It keeps samples and answers for quantiles; it decides nothing and knows no limit. `admission.adapt` derives a read timeout
from it, `admission.concurrency` the usual latency; `gatepost.deadline` may use it for its own operations.

Theory of operation. A sample is 15 bits of milliseconds (up to 32.7 s, twice the longest adaptive limit) and a top bit that
says *censored*: the attempt was cut off then, it would have lasted longer. Samples lie in one `array("H")` that grows
32 → 64 → 128 → 300; only at 300 does it wrap around. Behind them, in the same array, stands for each block of 32 samples the
hour in which its newest one came, so that what is older than a day can be dropped by blocks. 300 samples: the error of the
sample dwarfs that of any sketch, and the 297th of 300 covers the true p99 as well as a window that forgets in time can.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

SIZES: Final = (32, 64, 128, 300)
"""Samples kept; grown in steps, since most endpoints never have more than a few."""
BLOCK_BITS: Final = 5
"""32 samples age together."""
MAX_AGE_HOURS: Final = 24
"""Yesterday's latency says little about today's; hours are counted whole, so a sample lives 24 to 25 of them."""
CENSORED: Final = 0x8000
LONGEST_MS: Final = 0x7FFF
"""What lasted longer is kept as this."""

_HOUR_US: Final = 3_600_000_000
_HOURS_MASK: Final = 0xFFFF
_HOURS_FUTURE: Final = 0x8000
"""An age of half the range is a clock that went back a little, not seven years."""
_HEAD: Final = struct.Struct("<H")
_ZERO: Final = array("H", (0,))
"""Times n, it takes exactly its place; an array made of bytes keeps a sixteenth in reserve."""
_EPSILON: Final = 1e-9
"""Survival is a product of up to 300 fractions; 99 of 100 must count as 99 %."""


class Summary(NamedTuple):
    """What the samples say, in seconds. None: not identifiable, more of them were cut off than would tell."""

    samples: int
    p50: float | None
    p99: float | None
    largest: float
    """The longest sample, cut off or not; 0.0 without samples."""
    slowest: float
    """The longest one that was answered; 0.0 without any."""


class LatencyRing:
    """Times in seconds go in and come out; `now` is UTC microseconds. At most 704 bytes of samples."""

    __slots__ = ("_data", "_next", "_rest", "_size", "count")

    def __init__(self) -> None:
        self._size = SIZES[0]
        self._data = _ZERO * (SIZES[0] + _blocks(SIZES[0]))
        self._next = 0
        self._rest = 0
        """Hour of the older samples in the block that is being overwritten."""
        self.count = 0

    def __repr__(self) -> str:
        return f"<LatencyRing {self.count} of {self._size}>"

    # ---------------------------------------------------------------------------------------------- samples

    def add(self, seconds: float, now: int, *, censored: bool = False) -> None:
        """Record one response time, or the time after which an attempt was cut off. O(1)."""
        code = int(seconds * 1000.0 + 0.5)
        if code > LONGEST_MS:
            code = LONGEST_MS
        if censored:
            code |= CENSORED
        place = self._next
        if self.count == self._size:
            if self._size != SIZES[-1]:
                codes, hours = self._linear()
                self._fill(codes, hours, SIZES[SIZES.index(self._size) + 1])
                place = self._next
                self.count += 1
            elif not place & 31:
                self._rest = self._data[self._size + (place >> BLOCK_BITS)]
        else:
            count = self.count + 1
            self.count = count if count != self._size else self._size  # one number for all rings that are full
        data = self._data
        data[place] = code
        data[self._size + (place >> BLOCK_BITS)] = now // _HOUR_US & _HOURS_MASK
        place += 1
        self._next = 0 if place == self._size else place

    def clear(self) -> None:
        """Forget everything."""
        self._fill((), ())

    def samples(self) -> list[tuple[float, bool]]:
        """(seconds, censored), oldest first."""
        return [((code & LONGEST_MS) / 1000.0, code >= CENSORED) for code in self._linear()[0]]

    def copy(self) -> LatencyRing:
        """Another ring with the same samples: where an endpoint starts on a host that is known."""
        twin = LatencyRing()
        twin._fill(*self._linear())
        return twin

    # --------------------------------------------------------------------------------------------- quantiles

    def summary(self, now: int) -> Summary:
        """Median, p99 and the largest, after dropping what is too old. O(n log n): ask once in twenty samples."""
        self._drop_old(now)
        if not self.count:
            return Summary(0, None, None, 0.0, 0.0)
        codes = sorted(self._data[: self.count])
        if codes[-1] < CENSORED:
            half, most = (_rank(share, self.count) for share in (0.5, 0.99))
            longest = codes[-1] / 1000.0
            return Summary(self.count, seconds_of(codes[half]), seconds_of(codes[most]), longest, longest)
        ordered = sorted([(code & LONGEST_MS, code >= CENSORED) for code in codes])
        p50, p99 = kaplan_meier(ordered, (0.5, 0.99))
        slowest = next((value for value, censored in reversed(ordered) if not censored), 0)
        return Summary(self.count, _seconds(p50), _seconds(p99), ordered[-1][0] / 1000.0, slowest / 1000.0)

    def quantile(self, share: float, now: int) -> float | None:
        """The time within which `share` of the calls end, or None when that is not identifiable (or nothing is known)."""
        self._drop_old(now)
        ordered = sorted([(code & LONGEST_MS, code >= CENSORED) for code in self._data[: self.count]])
        return _seconds(kaplan_meier(ordered, (share,))[0])

    # ----------------------------------------------------------------------------------------------- storing

    def to_bytes(self) -> bytes:
        """Samples and their hours, oldest first; without a version of its own, whoever stores it writes one."""
        codes, hours = self._linear()
        blocks = array("H", [hours[min(start + 31, len(hours) - 1)] for start in range(0, len(hours), 32)])
        return _HEAD.pack(len(codes)) + array("H", codes).tobytes() + blocks.tobytes()

    @classmethod
    def from_bytes(cls, stored: bytes) -> LatencyRing:
        """What `to_bytes` wrote. Raises `ValueError` for anything else."""
        count = _HEAD.unpack_from(stored)[0] if len(stored) >= _HEAD.size else 0
        if len(stored) != _HEAD.size + 2 * (count + _blocks(count)) or count > SIZES[-1]:
            raise ValueError(f"{len(stored)} bytes are no stored latencies")
        words = array("H", stored[_HEAD.size :])
        ring = cls()
        ring._place(words[:count], words[count:])
        return ring

    # ----------------------------------------------------------------------------------------------- helpers

    def _drop_old(self, now: int) -> None:
        if not self.count:
            return
        hour = now // _HOUR_US & _HOURS_MASK
        wrapped = self._next if self.count == self._size else 0
        oldest = self._rest if wrapped & 31 else self._data[self._size + (wrapped >> BLOCK_BITS)]
        if not _too_old(hour, oldest):
            return
        codes, hours = self._linear()
        kept = next((place for place, epoch in enumerate(hours) if not _too_old(hour, epoch)), len(hours))
        self._fill(codes[kept:], hours[kept:])

    def _linear(self) -> tuple[array[int], list[int]]:
        """Codes and the hour of each, oldest first."""
        data, size, start = self._data, self._size, self._next
        hours = [data[size + (place >> BLOCK_BITS)] for place in range(self.count)]
        if self.count < size or not start:
            return data[: self.count], hours
        for place in range(start, min(size, (start + 31) & ~31)):  # not yet overwritten: its block has two ages
            hours[place] = self._rest
        return data[start:size] + data[:start], hours[start:] + hours[:start]

    def _fill(self, codes: Sequence[int], hours: Sequence[int], size: int | None = None) -> None:
        count = len(codes)
        last = (min(count, block + 1 << BLOCK_BITS) - 1 for block in range(_blocks(count)))
        self._place(array("H", codes), array("H", [hours[place] for place in last]), size)

    def _place(self, codes: array[int], hours: array[int], size: int | None = None) -> None:
        """`hours` by block, the others by sample."""
        count = len(codes)
        self._size = size or next(room for room in SIZES if room >= count)
        self._data = data = _ZERO * (self._size + _blocks(self._size))
        data[:count] = codes
        data[self._size : self._size + len(hours)] = hours
        self.count = count if count != self._size else self._size
        self._next = count if count < self._size else 0
        self._rest = 0


def kaplan_meier(ordered: Sequence[tuple[int, bool]], shares: Iterable[float]) -> list[int | None]:
    """The Kaplan-Meier quantiles of (value, censored) pairs sorted by value, observed before censored.

    For each of `shares` (rising) the first value by which that share has ended, or None when more were cut off than would tell.
    An attempt that was cut off counts as alive until then, and as unknown after; dropping it would teach impatience.
    """
    found: list[int | None] = []
    wanted = iter(shares)
    share = next(wanted, None)
    alive = 1.0
    at_risk = len(ordered)
    for value, censored in ordered:
        if not censored:
            alive -= alive / at_risk
            while share is not None and alive <= 1.0 - share + _EPSILON:
                found.append(value)
                share = next(wanted, None)
            if share is None:
                return found
        at_risk -= 1
    while share is not None:
        found.append(None)
        share = next(wanted, None)
    return found


def _rank(share: float, count: int) -> int:
    """Index of the smallest value that `share` of `count` values reach: 297th of 300 for 0.99."""
    return max(0, math.ceil(share * count - _EPSILON) - 1)


def _blocks(count: int) -> int:
    return (count + 31) >> BLOCK_BITS


@lru_cache(LONGEST_MS)
def seconds_of(milliseconds: int) -> float:
    """The same number for the same time: thousands of endpoints have one p99 and keep it."""
    return milliseconds / 1000.0


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else seconds_of(milliseconds)


def _too_old(hour: int, epoch: int) -> bool:
    return MAX_AGE_HOURS < hour - epoch & _HOURS_MASK < _HOURS_FUTURE
