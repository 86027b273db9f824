"""The read timeout that an endpoint's own response times ask for, learned so that neither slowness nor death misleads it.

It computes and explains a value; the client applies it to the next attempt. It never learns from a period in which the endpoint
failed. Called by `admission.endpoint_limits` after each attempt; `Listed` policies say what it may do (`AdaptRules`).

Theory of operation ("commit on recovery"). A response adds its time to the ring. A timeout only says "longer than this", so
leaving it out teaches impatience, and adding it teaches endless patience with the dead: it *waits* in a short list and enters the
ring, as a censored sample, with the next success, when four of five recent attempts succeeded. When the breaker opens the list
is dropped. Probes get the ceiling, not the learned value; three that pass raise it to 2.5 times the slowest, which is how
an endpoint that became slow is believed. If more is cut off than a p99 can be read from, the value grows by half over the largest sample;
a *pay-off test* then counts the calls that outlive the old value: when, of ten, fewer than two finish, the longer wait buys
nothing, the old value returns and nothing grows for an hour.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gatepost.admission.latency import LatencyRing, seconds_of
from gatepost.errors import ConfigurationError

RECOMPUTE_EVERY: Final = 20
"""Samples between two computations: a sort of 300 costs 30 µs, and p99 does not move faster."""
TOLERANCE: Final = 0.10
"""Smaller changes are not applied."""
FALL_MAX: Final = 0.20
"""A value falls by at most this share at a time, and rises at once: too long costs slots, too short costs deliveries."""
PENDING_MAX: Final = 5
"""Timeouts kept until it is known whether the endpoint lives: more in a row open the breaker."""
RECENT: Final = 20
HEALTHY_SHARE: Final = 0.8
"""An endpoint that answers fewer of its last 20 attempts is failing, and nothing is learned from it."""
SHIFT: Final = 2.0
"""Probes slower than so many medians show that the endpoint has become another: the old samples go."""
GROWTH: Final = 1.5
"""Over the largest sample, when p99 cannot be read because too many were cut off."""
PAYOFF_CALLS: Final = 10
PAYOFF_SHARE: Final = 0.2
PAYOFF_PAUSE: Final = 3_600.0
"""Seconds without growth after a pay-off test failed."""

_RECENT_MASK: Final = (1 << RECENT) - 1
_SECOND_US: Final = 1_000_000
_STATE: Final = struct.Struct("<HHIBIBHBBIBH")


class AdaptMode(StrEnum):
    """Whether a learned value is used: not even computed, computed and recorded, or in force."""

    OFF = "off"
    SHADOW = "shadow"
    ON = "on"


class LearningState(StrEnum):
    """`cold`: too few samples. `learning`. `frozen`: the endpoint is failing, nothing is learned."""

    COLD = "cold"
    LEARNING = "learning"
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True)
class AdaptRules:
    """How a read timeout follows the p99; shared by all endpoints of a kind. Seconds."""

    factor: float = 2.5
    floor: float = 3.0
    ceiling: float = 15.0
    mode: AdaptMode = AdaptMode.ON
    record_from: int = 50
    """Samples from which a value is computed and recorded."""
    force_from: int = 200
    """Samples from which it is in force."""

    def __post_init__(self) -> None:
        if not 0 < self.floor <= self.ceiling or self.factor < 1:
            raise ConfigurationError(
                f"factor={self.factor}, floor={self.floor}, ceiling={self.ceiling}: write a factor of 1 or more and "
                "0 < floor <= ceiling, in seconds"
            )
        if not 1 <= self.record_from <= self.force_from <= 300:
            raise ConfigurationError(
                f"record_from={self.record_from}, force_from={self.force_from}: write 1 <= record_from <= force_from <= 300"
            )

    def clamp(self, seconds: float) -> float:
        """`seconds` between floor and ceiling."""
        return min(self.ceiling, max(self.floor, seconds))


TIERS: Final[Mapping[str, AdaptRules]] = {
    "third_party": AdaptRules(),
    "same_dc": AdaptRules(factor=1.5, floor=0.05, ceiling=5.0, record_from=200),
    "cross_region": AdaptRules(factor=1.5, floor=0.2, ceiling=10.0, record_from=200),
    "datastore": AdaptRules(factor=1.5, floor=0.05, ceiling=5.0, record_from=200),
}
"""2.5 × p99 keeps false timeouts near 0.1 % from 50 samples on; 1.5 × p99 needs 200, and one retry inside the budget."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What is known about an endpoint's response times, for its record and for `policy explain`. Seconds."""

    read_timeout: float | None
    """The learned value; None while cold."""
    in_force: bool
    p50: float | None
    p99: float | None
    samples: int
    state: LearningState
    learned_at: int | None
    """UTC microseconds of the last change of the value."""
    mode: AdaptMode
    text: str
    """The derivation, in one sentence."""


@dataclass(slots=True)
class _Growth:
    """A pay-off test, or what one came to; few endpoints ever have one."""

    before: float = 0.0
    """The value that returns if the growth does not pay; 0.0: no test is on."""
    answered: int = 0
    cut_off: int = 0
    barred_until: int = 0
    """UTC microseconds: nothing grows before."""


class AdaptiveTimeout:
    """One endpoint's learned read timeout. The rules are an argument, since thousands of endpoints share them."""

    __slots__ = (
        "_growth",
        "_pending",
        "_recent",
        "_seen",
        "_since",
        "changed_at",
        "own",
        "p50",
        "p99",
        "rebased",
        "ring",
        "value",
    )

    def __init__(self, ring: LatencyRing | None = None) -> None:
        self.ring = ring if ring is not None else LatencyRing()
        self.own = 0
        """Samples of this endpoint itself, up to 255: a ring inherited from the host counts only beside `record_from` of its own."""
        self.value = 0.0
        """The learned read timeout; 0.0 while there is none."""
        self.p50 = 0.0
        self.p99 = 0.0
        """0.0: unknown, or not identifiable."""
        self.changed_at = 0
        self.rebased = False
        """The value comes from probes: the endpoint answered them and nothing shorter, so it is in force at once."""
        self._since = 0
        self._pending: tuple[float, ...] = ()
        self._recent = 0
        self._seen = 0
        self._growth: _Growth | None = None
        """None: it never grew beyond what could be read."""

    # ------------------------------------------------------------------------------------------ observations

    @property
    def frozen(self) -> bool:
        """The endpoint is failing: fewer than four in five of its last attempts were answered."""
        return self._recent.bit_count() < HEALTHY_SHARE * self._seen

    def succeeded(self, seconds: float, now: int, rules: AdaptRules) -> bool:
        """An answer, after `seconds`; the breaker is closed. True: the value, p50 or p99 was computed anew."""
        self._recent = recent = (self._recent << 1 | 1) & _RECENT_MASK
        if self._seen < RECENT:
            self._seen += 1
        growth = self._growth
        if growth is not None and growth.before and seconds > growth.before:
            growth.answered += 1
            self._judge_growth(growth, now)
        if recent == _RECENT_MASK:
            self._recent = _RECENT_MASK  # one number for all that are well
        elif recent.bit_count() < HEALTHY_SHARE * self._seen:
            return False
        ring = self.ring
        if self._pending:
            for waited in self._pending:
                ring.add(waited, now, censored=True)
            self._since = RECOMPUTE_EVERY  # do not let more of them be cut off before looking
            self._pending = ()
        ring.add(seconds, now)
        if self.own < 255:
            self.own += 1
        self._since += 1
        if self._since < RECOMPUTE_EVERY and ring.count != rules.record_from:
            return False
        self._compute(now, rules)
        return True

    def timed_out(self, seconds: float, now: int) -> None:
        """Cut off after `seconds` while the endpoint owed the answer."""
        self._remember_failure()
        growth = self._growth
        if growth is not None and growth.before and seconds > growth.before:
            growth.cut_off += 1
            self._judge_growth(growth, now)
        self._pending = (*self._pending[1 - PENDING_MAX :], seconds)

    def failed(self) -> None:
        """A failure that says nothing about response times."""
        self._remember_failure()

    def breaker_opened(self) -> None:
        """What timed out belongs to an outage, not to a slow endpoint."""
        self._pending = ()

    def recovered(self, slowest: float, now: int, rules: AdaptRules) -> None:
        """Three probes passed, the slowest after `slowest` seconds: believe them, and forget the failures before."""
        self._recent, self._seen = 0b111, 3
        wanted = min(rules.ceiling, rules.factor * slowest)
        if wanted > rules.floor and slowest > SHIFT * self.p50:
            # Another regime: what it took before would keep calling it slow, and its own time again a reason to open.
            self.ring.clear()
            self.p50, self.p99 = slowest, 0.0
        if wanted > max(self.value, rules.floor):
            self._set(wanted, now)
            self.rebased = True
            self._since = 0

    # -------------------------------------------------------------------------------------------------- value

    def in_force(self, configured: float, rules: AdaptRules) -> float:
        """The read timeout of the next attempt: the learned one when there is enough to trust, else `configured`."""
        if rules.mode is not AdaptMode.ON or not self.value:
            return configured
        value = rules.clamp(self.value)
        if value == rules.ceiling and configured > value:
            return configured  # it wants all that learning may give, and was given more
        if self.ring.count >= rules.force_from and self.own >= rules.record_from:
            return value
        return max(configured, value) if self.rebased else configured

    def learned(self, configured: float, rules: AdaptRules) -> Learned:
        """What to show."""
        count = self.ring.count
        if rules.mode is AdaptMode.OFF or (count < rules.record_from and not self.value):
            state = LearningState.COLD
        else:
            state = LearningState.FROZEN if self.frozen else LearningState.LEARNING
        value = self.value or None
        return Learned(
            value,
            value is not None and self.in_force(configured, rules) == rules.clamp(value),
            self.p50 or None,
            self.p99 or None,
            count,
            state,
            self.changed_at or None,
            rules.mode,
            self._explain(configured, rules, state),
        )

    def _explain(self, configured: float, rules: AdaptRules, state: LearningState) -> str:
        count = self.ring.count
        if rules.mode is AdaptMode.OFF:
            return f"{configured:g} s as configured; learning is off"
        if not self.value:
            return f"{configured:g} s as configured; {count} of {rules.record_from} samples"
        if self.p99:
            origin = f"{rules.factor:g} x p99 of {self.p99:.3f} s within {rules.floor:g} to {rules.ceiling:g} s"
        else:
            origin = f"p99 cannot be read, too much was cut off; within {rules.floor:g} to {rules.ceiling:g} s"
        if self.rebased:
            origin = f"raised by probes that passed; {origin}"
        text = f"learned {self.value:.3f} s ({origin}, {count} samples, {state})"
        if self.in_force(configured, rules) == rules.clamp(self.value):
            return text
        if rules.mode is AdaptMode.SHADOW:
            return f"{configured:g} s as configured; {text}; shadow mode"
        if configured > rules.ceiling == rules.clamp(self.value):
            return f"{configured:g} s as configured, which is more than may be learned; {text}"
        return f"{configured:g} s as configured; {text}; in force from {rules.force_from} samples"

    # ------------------------------------------------------------------------------------------------ storing

    def to_bytes(self) -> bytes:
        """Value, history and test, and the ring after them. What waits is not kept: it may be an outage."""
        growth = self._growth or _Growth()
        return (
            _STATE.pack(
                _ms(self.value),
                _ms(self.p99),
                self.changed_at // _SECOND_US,
                self.own,
                self._recent,
                self._seen,
                _ms(growth.before),
                min(255, growth.answered),
                min(255, growth.cut_off),
                growth.barred_until // _SECOND_US,
                self.rebased,
                _ms(self.p50),
            )
            + self.ring.to_bytes()
        )

    @classmethod
    def from_bytes(cls, stored: bytes) -> AdaptiveTimeout:
        """What `to_bytes` wrote. Raises `ValueError` for anything else."""
        if len(stored) < _STATE.size:
            raise ValueError(f"{len(stored)} bytes are no stored read timeout")
        timeout = cls(LatencyRing.from_bytes(stored[_STATE.size :]))
        value, p99, changed, own, recent, seen, before, answered, cut_off, growth, rebased, p50 = _STATE.unpack_from(
            stored
        )
        timeout.value, timeout.p99, timeout.p50 = seconds_of(value), seconds_of(p99), seconds_of(p50)
        timeout.changed_at = changed * _SECOND_US
        timeout.own, timeout._recent, timeout._seen = own, recent & _RECENT_MASK, min(seen, RECENT)
        if before or growth:
            timeout._growth = _Growth(before / 1000, answered, cut_off, growth * _SECOND_US)
        timeout.rebased = bool(rebased)
        return timeout

    # ------------------------------------------------------------------------------------------------ helpers

    def _remember_failure(self) -> None:
        self._recent = self._recent << 1 & _RECENT_MASK
        if self._seen < RECENT:
            self._seen += 1

    def _compute(self, now: int, rules: AdaptRules) -> None:
        self._since = 0
        if rules.mode is AdaptMode.OFF:
            return
        count, p50, p99, largest, slowest = self.ring.summary(now)
        self.p50, self.p99 = p50 or 0.0, p99 or 0.0
        if count < rules.record_from:
            return
        if p99 is not None:
            self._move(rules.clamp(rules.factor * p99), rules.clamp(GROWTH * slowest), now, rules)
        elif self._growth is None or now >= self._growth.barred_until:
            old = self.value or rules.floor
            grown = min(rules.ceiling, max(old, GROWTH * largest))
            if grown > old:
                if self._growth is None or not self._growth.before:
                    self._growth = _Growth(old)
                self._set(grown, now)

    def _move(self, target: float, kept: float, now: int, rules: AdaptRules) -> None:
        """Towards what the p99 asks for: up at once, down in steps, not at all for a trifle unless it is the last step.

        It does not fall below `kept`, which has room for every answer in the ring: with three slow calls in a hundred, one
        window of 300 in two hundred has too few of them to reach the p99, and falling for it would cut off the next ones.
        """
        value = self.value
        if not value:
            self._set(target, now)
            return
        if target > value:
            if target > value * (1 + TOLERANCE) or target == rules.ceiling:
                self._set(target, now)
            return
        target = min(value, max(target, kept))
        if target < value * (1 - TOLERANCE) or (target < value and target == rules.floor):
            self._set(max(target, value * (1 - FALL_MAX)), now)
            self.rebased = False

    def _judge_growth(self, growth: _Growth, now: int) -> None:
        if growth.answered + growth.cut_off < PAYOFF_CALLS:
            return
        if growth.answered < PAYOFF_SHARE * PAYOFF_CALLS:
            self._set(growth.before, now)
            growth.barred_until = now + round(PAYOFF_PAUSE * _SECOND_US)
        growth.before = 0.0

    def _set(self, value: float, now: int) -> None:
        self.value = value
        self.changed_at = now


def _ms(seconds: float) -> int:
    return min(0xFFFF, round(seconds * 1000))
