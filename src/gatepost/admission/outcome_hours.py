"""How an endpoint's attempts ended, hour by hour, over the last day: a few bytes an hour, for people who look at one endpoint.

It names what `admission.evidence` judges and more (what was delivered, what was our own fault) and decides nothing;
`admission.attempt_counts` counts. Only hours with attempts are in it. Pure.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import Blame, Outcome
from gatepost.wire.phases import SETUP_PHASES

HOURS_MAX: Final = 24
"""Hours with attempts that are kept."""

_HOUR_US: Final = 3_600_000_000


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
    """Hours with attempts, oldest first. Frozen; `attempt_counts.hours_of` makes one. `now` is UTC microseconds."""

    __slots__ = ("_hours",)

    def __init__(self, hours: tuple[Hour, ...] = ()) -> None:
        self._hours = hours

    def hours(self, now: int) -> list[Hour]:
        """Hours with attempts among the last 24, oldest first."""
        oldest = (now // _HOUR_US - HOURS_MAX) * _HOUR_US
        return [hour for hour in self._hours if hour.began_at > oldest]
