"""The mix of an endpoint's own outcomes, and whether it has just changed: "connect timeouts from 0 to 40 % in five minutes".

It compares an endpoint with itself, never with the fleet: customers' staging systems are always down somewhere, and that is no
news. It raises and clears alerts as values; `admission.limits` passes them on to people and tells the breaker.

Theory of operation. Counts by kind over the last five minutes, in buckets of one; a *usual* share of each kind, that follows
with a time constant of about an hour and stands still while an alert is on. An alert for a kind needs ten attempts in the five
minutes, a share at least 30 points above the usual one, and that even the lower bound of what the share may truly be is above
it. It is cleared within 10 points of the usual share; what lasts for a day has become usual.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from gatepost.admission.breaker import wilson_lower
from gatepost.admission.evidence import SIGNS, Sign

BUCKETS: Final = 5
BUCKET_US: Final = 60_000_000
CALLS_MIN: Final = 10
RISE: Final = 0.30
CLEAR_WITHIN: Final = 0.10
FOLLOW: Final = 1 / 12
"""How far the usual share moves towards that of each finished five minutes."""
USUAL_AFTER_US: Final = 86_400_000_000
KINDS: Final = (Sign.BUSY, Sign.REFUSED, Sign.FAILED, Sign.TIMEOUT, Sign.SETUP)
"""Changes of these are alerts. Smaller samples cannot alarm, whatever they hold."""

BITS: Final = 12
"""Of each count."""

_FULL: Final = (1 << BITS) - 1
_ROW: Final = (1 << SIGNS * BITS) - 1
_OK: Final = int(Sign.OK)
_NONE_USUAL: Final = bytes(SIGNS)


class AlertChange(StrEnum):
    """An alert began or ended."""

    RAISED = "raised"
    CLEARED = "cleared"


class MixAlert(NamedTuple):
    """A kind of outcome became common at one endpoint, or rare again. Shares are 0 to 1."""

    change: AlertChange
    sign: Sign
    usual: float
    share: float
    calls: int


class OutcomeMix:
    """Counts of one endpoint."""

    __slots__ = ("_alarm", "_alarm_at", "_bucket", "_counts", "_ended", "_usual")

    def __init__(self) -> None:
        self._counts = 0
        """`BUCKETS` rows of counts by sign, of `BITS` each in one number: half of what an array takes, for each of a hundred thousand."""
        self._bucket = 0
        self._ended = 0
        self._usual = _NONE_USUAL
        """Shares in 255ths."""
        self._alarm: Sign | None = None
        self._alarm_at = 0

    @property
    def alarm(self) -> Sign | None:
        """The kind that has just become common, while it is."""
        return self._alarm

    @property
    def calls(self) -> int:
        """Attempts counted in the last five minutes."""
        return sum(self._sums())

    def share(self, sign: Sign) -> float:
        """Of the last five minutes; 0.0 without attempts."""
        sums = self._sums()
        calls = sum(sums)
        return sums[sign] / calls if calls else 0.0

    def observe(self, sign: Sign, now: int) -> MixAlert | None:
        """One more attempt; what changed by it, or None. O(1)."""
        bucket = now // BUCKET_US
        cleared = self._turn(bucket, now) if bucket != self._bucket else None
        place = (bucket % BUCKETS * SIGNS + sign) * BITS
        if self._counts >> place & _FULL != _FULL:  # of a million in five minutes the share is known well enough
            self._counts += 1 << place
        if sign == _OK or self._alarm is not None:
            return cleared
        sums = self._sums()
        calls = sum(sums)
        if calls < CALLS_MIN or sign not in KINDS:
            return cleared
        share, usual = sums[sign] / calls, self._usual[sign] / 255
        if share < usual + RISE or wilson_lower(sums[sign], calls) <= usual:
            return cleared
        self._alarm, self._alarm_at = sign, now
        return MixAlert(AlertChange.RAISED, sign, usual, share, calls)

    def _turn(self, bucket: int, now: int) -> MixAlert | None:
        """A new minute: drop those that are over, and every fifth time let the usual shares follow."""
        steps = bucket - self._bucket
        if steps < 0:
            return None  # the clock went back: count on in the minute it shows
        self._ended += min(steps, BUCKETS)
        if self._ended >= BUCKETS:
            self._ended = 0
            if self._alarm is None:
                self._follow(FOLLOW)
        for step in range(min(steps, BUCKETS)):
            self._counts &= ~(_ROW << (bucket - step) % BUCKETS * SIGNS * BITS)
        self._bucket = bucket
        return self._clear(now)

    def _clear(self, now: int) -> MixAlert | None:
        sign = self._alarm
        if sign is None:
            return None
        calls, usual, share = self.calls, self._usual[sign] / 255, self.share(sign)
        if now - self._alarm_at > USUAL_AFTER_US:
            self._follow(1.0)
        elif not calls or share > usual + CLEAR_WITHIN:
            return None  # silence is no recovery
        self._alarm = None
        return MixAlert(AlertChange.CLEARED, sign, usual, share, calls)

    def _follow(self, weight: float) -> None:
        sums = self._sums()
        calls = sum(sums)
        if calls >= CALLS_MIN:
            self._usual = bytes(
                round(old + weight * (255 * count / calls - old)) for old, count in zip(self._usual, sums, strict=True)
            )

    def _sums(self) -> list[int]:
        """By sign, over the five minutes."""
        sums, counts = [0] * SIGNS, self._counts
        while counts:
            for sign in range(SIGNS):
                sums[sign] += counts & _FULL
                counts >>= BITS
        return sums

    # ------------------------------------------------------------------------------------------------- storing

    def to_bytes(self) -> bytes:
        """The usual shares; counts of minutes do not outlive a restart."""
        return self._usual

    @classmethod
    def from_bytes(cls, stored: bytes) -> OutcomeMix:
        """What `to_bytes` wrote. Raises `ValueError` for anything else."""
        if len(stored) != SIGNS:
            raise ValueError(f"{len(stored)} bytes are no stored mix of outcomes")
        mix = cls()
        mix._usual = _NONE_USUAL if stored == _NONE_USUAL else bytes(stored)
        return mix
