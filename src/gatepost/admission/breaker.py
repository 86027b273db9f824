"""Whether an endpoint (or a host) is worth trying at all: it opens on failures, on silence and on slowness, and closes by probes.

A synchronous machine. It counts what it is told and answers with its state; who may start, and when, is said by
`admission.endpoint_limits` and `admission.host_breaker`, which own one each. It never hears of our own faults.

Theory of operation. *Closed*: three things trip it: half of the last fifty attempts failed; half of the last twenty were
slow *while the endpoint holds most of its cap* (slow and idle harms nobody); five timeouts in a row. A call still in flight
counts as slow the moment it is old enough: waiting for its end would let hundreds pile up. *Open* lasts 30 s × 2ⁿ, at most
half an hour, ±20 % so that breakers that opened together do not close together. Then it is *probing*: one delivery at a time,
with a generous limit, until three in a row passed (one lets half of the half-dead through, three an eighth). Then *ramping*:
one in flight, two, four …, never the whole backlog at once; two failures in a row there open it again. n grows with every
failed probe and with every trip soon after a recovery.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gatepost.admission.window import WINDOW, WINDOW_BYTES, OutcomeWindow
from gatepost.errors import ConfigurationError

_SECOND_US: Final = 1_000_000
WILSON_Z: Final = 1.6449
"""One-sided 95 %."""
WILSON_SHARE: Final = 0.25
"""Opens when the true failure rate is above this with 95 % confidence: 3 of 5, 5 of 10, 9 of 20, 18 of 50."""
WILSON_MIN: Final = 5
RAMP_FAILURES: Final = 2
"""In a row while ramping."""


class BreakerMode(StrEnum):
    """`dry_run` goes through all states and holds nobody back, so that it can be watched before it is trusted."""

    OFF = "off"
    DRY_RUN = "dry_run"
    ON = "on"


class Judge(StrEnum):
    """How failures are weighed: by plain share of the window, or by the lower bound of what the share may truly be."""

    SHARE = "share"
    WILSON = "wilson"


class BreakerState(StrEnum):
    """See the theory of operation."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"
    RAMPING = "ramping"


class BreakerInput(StrEnum):
    """What can happen to a breaker."""

    TRIP = "trip"
    COOLED = "cooled"
    PROBE_FAILED = "probe_failed"
    PROBES_PASSED = "probes_passed"
    RAMPED = "ramped"
    RESET = "reset"


TRANSITIONS: Final[Mapping[tuple[BreakerState, BreakerInput], BreakerState]] = {
    (BreakerState.CLOSED, BreakerInput.TRIP): BreakerState.OPEN,
    (BreakerState.CLOSED, BreakerInput.RESET): BreakerState.CLOSED,
    (BreakerState.OPEN, BreakerInput.COOLED): BreakerState.PROBING,
    (BreakerState.OPEN, BreakerInput.RESET): BreakerState.CLOSED,
    (BreakerState.PROBING, BreakerInput.PROBE_FAILED): BreakerState.OPEN,
    (BreakerState.PROBING, BreakerInput.PROBES_PASSED): BreakerState.RAMPING,
    (BreakerState.PROBING, BreakerInput.RESET): BreakerState.CLOSED,
    (BreakerState.RAMPING, BreakerInput.TRIP): BreakerState.OPEN,
    (BreakerState.RAMPING, BreakerInput.RAMPED): BreakerState.CLOSED,
    (BreakerState.RAMPING, BreakerInput.RESET): BreakerState.CLOSED,
}
"""Every legal step; what is absent raises `IllegalBreakerStep` and changes nothing."""


class IllegalBreakerStep(RuntimeError):
    """The caller reported something that cannot happen in this state."""


class TripCause(StrEnum):
    """Why a breaker opened."""

    FAILURES = "failures"
    SLOW = "slow"
    TIMEOUTS = "timeouts"
    PROBE = "probe"
    RAMP = "ramp"


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """When a breaker opens and for how long; shared by all endpoints of a kind. Seconds."""

    mode: BreakerMode = BreakerMode.ON
    judge: Judge = Judge.SHARE
    calls_min: int = 10
    """Attempts in the window before shares are judged. A smaller cap lowers it; of fewer than these, the share of failures must be
    proven (lower bound of 95 %): 3 of 3, 4 of 4, 6 of 7. So 10 % of failures by lot open it one time in 400, whatever the cap."""
    failure_share: float = 0.5
    slow_share: float = 0.5
    slow_window: int = 20
    """Slowness is judged over fewer attempts: it costs slots while it lasts."""
    held_share: float = 0.8
    """Of its cap; an endpoint that holds less harms nobody by being slow."""
    consecutive: int = 5
    """Timeouts (or failed connections) in a row; within `steady_after` of a recovery, failures of any kind."""
    slow_after: float = 5.0
    slow_of_timeout: float = 0.5
    """An attempt is slow from `slow_after`, or this share of its read timeout if that is less."""
    open_first: float = 30.0
    open_max: float = 1_800.0
    jitter: float = 0.2
    probes: int = 3
    probe_limit: float = 15.0
    """Read timeout of a probe: how a slow endpoint is told from a dead one."""
    steady_after: float = 600.0
    """A trip later than this after the recovery is a new story: n starts at 0."""

    def __post_init__(self) -> None:
        if not 0 < self.open_first <= self.open_max:
            raise ConfigurationError(
                f"open_first={self.open_first}, open_max={self.open_max}: write 0 < open_first <= open_max"
            )
        if self.calls_min < 1 or self.consecutive < 1 or self.probes < 1 or not 1 <= self.slow_window <= WINDOW:
            raise ConfigurationError(
                f"calls_min={self.calls_min}, consecutive={self.consecutive}, probes={self.probes}, "
                f"slow_window={self.slow_window}: write 1 or more, slow_window at most {WINDOW}"
            )

    def slow_limit(self, read_timeout: float) -> float:
        """Seconds from which an attempt counts as slow."""
        return min(self.slow_after, self.slow_of_timeout * read_timeout)


# Looking an enumeration's member up costs as much as the rest of a step; these run for every attempt.
_CLOSED: Final = BreakerState.CLOSED
_RAMPING: Final = BreakerState.RAMPING
_CODES: Final = (BreakerState.CLOSED, BreakerState.OPEN, BreakerState.PROBING, BreakerState.RAMPING)
_CAUSES: Final[tuple[TripCause | None, ...]] = (None, *TripCause)
_STATE: Final = struct.Struct("<BBBBBBQQ")
BREAKER_BYTES: Final = _STATE.size + WINDOW_BYTES


class Breaker:
    """One endpoint's breaker. `now` is UTC microseconds, `u` a die with `0 <= u < 1`; the rules are an argument."""

    __slots__ = (
        "_failures_in_row",
        "_passed",
        "_ramp_passed",
        "_recovered_at",
        "_window",
        "cause",
        "epoch",
        "level",
        "open_until",
        "ramp",
        "slowest",
        "state",
    )

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.level = 0
        """n of 30 s × 2ⁿ."""
        self.open_until = 0
        self.cause: TripCause | None = None
        """Why it opened last."""
        self.epoch = 0
        """Rises when it opens: attempts started before belong to an earlier story. Not stored."""
        self.ramp = 0
        """Attempts in flight allowed while ramping."""
        self.slowest = 0.0
        """The slowest probe that passed, seconds."""
        self._passed = 0
        self._ramp_passed = 0
        self._failures_in_row = 0
        self._recovered_at = 0
        self._window = OutcomeWindow()

    def __repr__(self) -> str:
        return f"<Breaker {self.state} level={self.level} {self._window!r}>"

    @property
    def recovered_at(self) -> int:
        """When enough probes passed last, UTC microseconds; 0: never, or forgotten by a reset."""
        return self._recovered_at

    @property
    def counting(self) -> bool:
        """Ordinary attempts are evidence now."""
        return self.state is _CLOSED or self.state is _RAMPING

    # ------------------------------------------------------------------------------- ordinary attempts, counting

    def passed(
        self, slow: bool, now: int, counted: bool, cap: int, in_flight: int, u: float, rules: BreakerRules
    ) -> bool:
        """An attempt was answered. `counted`: it is in the window already, from in flight. True: the breaker opened."""
        self._failures_in_row = 0
        if counted:
            self._window.amend(False)
        else:
            self._window.push(False, slow, now)
            if slow and self._too_slow(cap, in_flight, rules):
                return self._trip(TripCause.SLOW, now, u, rules)
        if self.state is _RAMPING:
            self._ramp_passed += 1
            if self._ramp_passed >= self.ramp:
                self._ramp_passed = 0
                self.ramp *= 2
                if self.ramp >= cap:
                    self._step(BreakerInput.RAMPED)
        return False

    def failed(
        self,
        hard: bool,
        slow: bool,
        now: int,
        counted: bool,
        cap: int,
        in_flight: int,
        u: float,
        rules: BreakerRules,
        *,
        alarmed: bool = False,
    ) -> bool:
        """An attempt failed; `hard`: by a timeout, or without a connection. True: the breaker opened.

        `alarmed`: this kind of failure has just become common here (a rate alert), so less is needed to believe it.
        """
        window = self._window
        if not counted or not window.amend(True):
            window.push(True, slow, now)
        # Soon after a recovery any failure counts: the successes in the window are of the spell that may just have ended.
        hard = hard or now - self._recovered_at <= rules.steady_after * _SECOND_US
        self._failures_in_row = self._failures_in_row + 1 if hard else 0
        if self._failures_in_row >= rules.consecutive:
            return self._trip(TripCause.TIMEOUTS, now, u, rules)
        if self.state is _RAMPING:
            self._ramp_passed = 0
            self.ramp = max(1, self.ramp // 2)
            if window.failures(RAMP_FAILURES) == RAMP_FAILURES:
                return self._trip(TripCause.RAMP, now, u, rules)
        if self._failing(cap, rules, alarmed):
            return self._trip(TripCause.FAILURES, now, u, rules)
        if slow and self._too_slow(cap, in_flight, rules):
            return self._trip(TripCause.SLOW, now, u, rules)
        return False

    def aged(self, now: int, cap: int, in_flight: int, u: float, rules: BreakerRules) -> bool:
        """An attempt in flight has become slow. True: the breaker opened."""
        self._window.push(False, True, now, True)
        return self._too_slow(cap, in_flight, rules) and self._trip(TripCause.SLOW, now, u, rules)

    # ------------------------------------------------------------------------------------------------- probing

    def cool(self, now: int) -> bool:
        """Whether a probe may start now; turns an open breaker whose time is over to probing."""
        if self.state is BreakerState.OPEN and now >= self.open_until:
            self._step(BreakerInput.COOLED)
            self._passed = 0
            self.slowest = 0.0
        return self.state is BreakerState.PROBING

    def probe_passed(self, seconds: float, now: int, rules: BreakerRules) -> bool:
        """A probe succeeded. True: enough of them did, the ramp begins."""
        if self.state is not BreakerState.PROBING:
            raise IllegalBreakerStep(f"a probe ended while {self.state}")
        self._passed += 1
        self.slowest = max(self.slowest, seconds)
        if self._passed < rules.probes:
            return False
        self._step(BreakerInput.PROBES_PASSED)
        self._window.clear()
        self._failures_in_row = self._ramp_passed = 0
        self.ramp = 1
        self._recovered_at = now
        return True

    def probe_failed(self, now: int, u: float, rules: BreakerRules, *, ours: bool = False) -> None:
        """A probe failed: open again, longer. `ours`: while we suspect our own network, so not longer."""
        self._step(BreakerInput.PROBE_FAILED)
        if not ours:
            self.level += 1
        self._open(TripCause.PROBE, now, u, rules)

    def bound_pause(self, now: int, rules: BreakerRules) -> None:
        """An open breaker whose pause ends later than the longest that begins now is one of a clock that was ahead: probe now."""
        if self.open_until > now + rules.open_max * (1 + rules.jitter) * _SECOND_US:
            self.open_until = now
        if self._recovered_at > now:
            self._recovered_at = 0

    def reset(self) -> None:
        """An operator, or the endpoint's owner, says it is well: closed, everything forgotten, n = 0."""
        self._step(BreakerInput.RESET)
        self._window.clear()
        self.level = self._failures_in_row = self._recovered_at = self.open_until = 0
        self.epoch += 1

    # ----------------------------------------------------------------------------------------------- judgement

    def _failing(self, cap: int, rules: BreakerRules, alarmed: bool) -> bool:
        window = self._window
        count, failures = window.count, window.failures(WINDOW)
        if (alarmed or rules.judge is Judge.WILSON) and count >= WILSON_MIN:
            if wilson_lower(failures, count) > WILSON_SHARE:
                return True
            if rules.judge is Judge.WILSON:
                return False
        if count < min(rules.calls_min, cap):
            return False
        if count < rules.calls_min:
            # A plain share of so few is chance: two of four fail by lot one time in twenty at a true rate of 10 %.
            return wilson_lower(failures, count) > rules.failure_share
        return failures >= rules.failure_share * count

    def _too_slow(self, cap: int, in_flight: int, rules: BreakerRules) -> bool:
        window = self._window
        count = min(window.count, rules.slow_window)
        return (
            in_flight >= rules.held_share * cap
            and count >= min(rules.calls_min, cap)
            and window.slow(rules.slow_window) >= rules.slow_share * count
        )

    def _trip(self, cause: TripCause, now: int, u: float, rules: BreakerRules) -> bool:
        self._step(BreakerInput.TRIP)
        if now - self._recovered_at > rules.steady_after * _SECOND_US:
            self.level = 0
        elif cause is not TripCause.SLOW:  # it answers its probes: a longer pause would punish, not protect
            self.level += 1
        self._open(cause, now, u, rules)
        return True

    def _open(self, cause: TripCause, now: int, u: float, rules: BreakerRules) -> None:
        seconds = rules.open_max
        if self.level < 32:
            seconds = min(seconds, rules.open_first * (1 << self.level))
        seconds *= 1 + rules.jitter * (2 * u - 1)
        self.open_until = now + round(seconds * _SECOND_US)
        self.cause = cause
        self.epoch += 1
        self.ramp = 0
        self._window.clear()
        self._failures_in_row = 0

    def _step(self, given: BreakerInput) -> None:
        after = TRANSITIONS.get((self.state, given))
        if after is None:
            raise IllegalBreakerStep(f"{self!r} cannot take {given}")
        self.state = after

    # ------------------------------------------------------------------------------------------------- storing

    def to_bytes(self) -> bytes:
        """`BREAKER_BYTES` bytes. A probe in flight is not kept: its successor sends another."""
        return (
            _STATE.pack(
                _CODES.index(self.state),
                min(self.level, 255),
                _CAUSES.index(self.cause),
                min(self.ramp, 255),
                self._passed,
                min(self._failures_in_row, 255),
                self.open_until,
                self._recovered_at,
            )
            + self._window.to_bytes()
        )

    @classmethod
    def from_bytes(cls, stored: bytes) -> Breaker:
        """What `to_bytes` wrote. Raises `ValueError` for anything else."""
        if len(stored) != BREAKER_BYTES:
            raise ValueError(f"{len(stored)} bytes are no stored breaker")
        state, level, cause, ramp, passed, in_row, open_until, recovered_at = _STATE.unpack_from(stored)
        if state >= len(_CODES) or cause >= len(_CAUSES):
            raise ValueError("a stored breaker in an unknown state")
        breaker = cls()
        breaker.state, breaker.cause = _CODES[state], _CAUSES[cause]
        breaker.level, breaker._passed, breaker._failures_in_row = level, passed, in_row
        breaker.ramp = max(1, ramp) if breaker.state is _RAMPING else ramp  # damaged, it would hold for ever
        breaker.open_until, breaker._recovered_at = open_until, recovered_at
        breaker._window = OutcomeWindow.from_bytes(stored[_STATE.size :])
        return breaker


def wilson_lower(failures: int, calls: int) -> float:
    """Lower end of the one-sided 95 % Wilson interval of a share."""
    z2 = WILSON_Z * WILSON_Z
    share = failures / calls
    centre = share + z2 / (2 * calls)
    half = WILSON_Z * math.sqrt(share * (1 - share) / calls + z2 / (4 * calls * calls))
    return (centre - half) / (1 + z2 / calls)
