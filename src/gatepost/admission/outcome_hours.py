"""How an endpoint's attempts ended, hour by hour, over the last day: a few bytes an hour, for people who look at one endpoint.

It counts what `admission.evidence` judges and more (what was delivered, what was our own fault) and decides nothing. Kept by
`dispatch.policy_watch` beside the phase times; only hours with attempts take any room. Pure.
"""

from __future__ import annotations

import struct
from array import array
from enum import IntEnum
from typing import Final, NamedTuple

from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import Blame, Outcome
from gatepost.wire.phases import SETUP_PHASES

HOURS_MAX: Final = 24
"""Hours with attempts that are kept."""

_HOUR_US: Final = 3_600_000_000
_ROW: Final = struct.Struct("<IB")
_COUNT: Final = struct.Struct("<I")
_COUNT_MAX: Final = 0xFFFF_FFFF


class Ended(IntEnum):
    """How an attempt ended, in the words of a picture's legend. Closed; the numbers are places in stored states."""

    DELIVERED = 0
    REJECTED = 1
    """Answered with 3xx or 4xx: it lives, and does not want it."""
    BUSY = 2
    """429 or 503: it asks for less."""
    FAILED = 3
    """Another 5xx, a reset, a broken answer."""
    TIMEOUT = 4
    """Not answered, or not taken, in time."""
    SETUP = 5
    """No connection: name, route or handshake; or a destination that is refused."""
    OURS = 6
    """Our own fault, or cut short by us."""


WORDS: Final = tuple(ended.name.lower() for ended in Ended)
_WIDTH: Final = 1 + len(Ended)
"""Numbers of a row: the hour since 1970, and the counts."""
_TIMEOUTS: Final = frozenset({Outcome.READ_TIMEOUT, Outcome.WRITE_TIMEOUT, Outcome.DEADLINE_EXCEEDED})


def ended_as(attempt: Attempt) -> Ended:
    """Where an attempt is counted."""
    if attempt.delivered:
        return Ended.DELIVERED
    if attempt.blame is Blame.US:
        return Ended.OURS
    status = attempt.status
    if attempt.outcome is Outcome.RESPONSE and status is not None:
        if status in (429, 503):
            return Ended.BUSY
        return Ended.REJECTED if status < 500 else Ended.FAILED
    if attempt.outcome is Outcome.EGRESS_DENIED or attempt.phase in SETUP_PHASES:
        return Ended.SETUP
    return Ended.TIMEOUT if attempt.outcome in _TIMEOUTS else Ended.FAILED


class Hour(NamedTuple):
    """One hour."""

    began_at: int
    """UTC microseconds."""
    counts: tuple[int, ...]
    """In the order of `Ended`."""


class OutcomeHours:
    """`now` is UTC microseconds. At most 768 bytes of counts, and about 170 stored."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: array[int] = array("I")

    def __bool__(self) -> bool:
        """Something was counted."""
        return bool(self._rows)

    def add(self, ended: Ended, now: int) -> None:
        """Count one attempt. O(1)."""
        rows = self._rows
        hour = now // _HOUR_US
        if not rows or rows[-_WIDTH] < hour:  # a clock that went back a little counts in the hour it came from
            rows.extend((hour, 0, 0, 0, 0, 0, 0, 0))
            if len(rows) > HOURS_MAX * _WIDTH:
                del rows[:_WIDTH]
        rows[ended - len(Ended)] += 1

    def hours(self, now: int) -> list[Hour]:
        """Hours with attempts among the last 24, oldest first."""
        oldest = now // _HOUR_US - HOURS_MAX
        rows = (self._rows[at : at + _WIDTH] for at in range(0, len(self._rows), _WIDTH))
        return [Hour(row[0] * _HOUR_US, tuple(row[1:])) for row in rows if row[0] > oldest]

    def to_bytes(self) -> bytes:
        """Nine bytes for an hour in which all attempts ended alike, four more for each other end."""
        packed = bytearray()
        for at in range(0, len(self._rows), _WIDTH):
            hour, *counts = self._rows[at : at + _WIDTH]
            mask = sum(1 << place for place, count in enumerate(counts) if count)
            packed += _ROW.pack(hour, mask)
            for count in counts:
                if count:
                    packed += _COUNT.pack(min(count, _COUNT_MAX))
        return bytes(packed)

    @classmethod
    def from_bytes(cls, stored: bytes) -> OutcomeHours:
        """What `to_bytes` wrote. Raises `ValueError` for anything else."""
        made = cls()
        at = 0
        try:
            while at < len(stored):
                hour, mask = _ROW.unpack_from(stored, at)
                at += _ROW.size
                made._rows.append(hour)
                for place in range(8):
                    if mask >> place & 1:
                        made._rows.append(_COUNT.unpack_from(stored, at)[0])
                        at += _COUNT.size
                    elif place < len(Ended):
                        made._rows.append(0)
        except struct.error:
            raise ValueError(f"{len(stored)} bytes are no stored hours") from None
        if len(made._rows) % _WIDTH or len(made._rows) > HOURS_MAX * _WIDTH:
            raise ValueError(f"{len(stored)} bytes are no stored hours")
        return made
