"""One endpoint's limits in one place: breaker, learned read timeout, cap, alerts, fed by each attempt and asked before the next.

It wires the parts together and keeps what is in flight; each part decides for itself. Whoever starts attempts (`dispatch.limits`)
asks `verdict`, brackets the attempt by `started` and `finished`, and keeps `to_bytes` so that a restart or a new owner starts
warm.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from gatepost.admission.adapt import AdaptiveTimeout, AdaptMode, AdaptRules, Learned
from gatepost.admission.alerts import MixAlert, OutcomeMix
from gatepost.admission.breaker import BREAKER_BYTES, Breaker, BreakerMode, BreakerRules, BreakerState, TripCause
from gatepost.admission.concurrency import SLOW_OF_MEDIAN, ConcurrencyLimit, ConcurrencyRules, slower
from gatepost.admission.evidence import ENDPOINT_FAILURES, SIGNS, Facts, Sign
from gatepost.admission.latency import LatencyRing

HOLD_MAX: Final = 600.0
"""Seconds an endpoint's own `Retry-After` may hold all of its deliveries; a single one may be told to wait longer."""
STATE_VERSION: Final = 1

_SECOND_US: Final = 1_000_000
_HEAD_BYTES: Final = 2

# Looking an enumeration's member up costs as much as the rest of a step; these run for every attempt.
_CLOSED: Final = BreakerState.CLOSED
_RAMPING: Final = BreakerState.RAMPING
_OFF: Final = BreakerMode.OFF
_ON: Final = BreakerMode.ON
_NOTHING: Final = Sign.NOTHING
_OK: Final = Sign.OK
_SETUP: Final = Sign.SETUP


@dataclass(frozen=True, slots=True)
class LimitRules:
    """Everything that shapes the limits of an endpoint; one object for all endpoints that are set alike."""

    adapt: AdaptRules = field(default_factory=AdaptRules)
    breaker: BreakerRules = field(default_factory=BreakerRules)
    concurrency: ConcurrencyRules = field(default_factory=ConcurrencyRules)
    read_timeout: float = 10.0
    """Seconds, from the policy: in force until something is learned."""
    pinned: bool = False
    """`read_timeout` is the endpoint's own setting, which beats what is learned; learning goes on and is shown."""

    @property
    def probe_limit(self) -> float:
        """Read timeout of a probe: long enough to tell slow from dead, and never shorter than an ordinary attempt's may be, for a
        probe that asks more than they do would keep out for ever whoever they were answered by."""
        learnable = self.adapt.ceiling if self.adapt.mode is AdaptMode.ON and not self.pinned else 0.0
        return max(self.breaker.probe_limit, self.read_timeout, learnable)


@dataclass(frozen=True, slots=True)
class Admit:
    """Up to `cap` attempts in flight, each with this read timeout. A probe's cap is 1."""

    cap: int
    read_timeout: float
    probe: bool


@dataclass(frozen=True, slots=True)
class Hold:
    """Start nothing before `until` (UTC microseconds). `cause` None: the endpoint asked for it by `Retry-After`."""

    until: int
    cause: TripCause | None


class Flight(NamedTuple):
    """One attempt under way, as given by `started` and handed back to `finished`."""

    started_at: int
    probe: bool
    epoch: int
    """Of the breaker: an attempt that was started before it opened is no evidence after."""
    refused: bool
    """In dry run: this attempt would not have started."""


class BreakerChange(NamedTuple):
    """The breaker went to another state."""

    state: BreakerState
    cause: TripCause | None
    """Why it opened."""
    level: int
    until: int
    """When the first probe may start; 0 unless open."""
    dry_run: bool


class TimeoutChange(NamedTuple):
    """The read timeout in force changed. Seconds."""

    before: float
    after: float


LimitChange = BreakerChange | TimeoutChange | MixAlert


@dataclass(frozen=True, slots=True)
class EndpointStatistics:
    """A snapshot, for the endpoint's record and `policy explain`."""

    state: BreakerState
    cause: TripCause | None
    level: int
    open_until: int
    """End of its last pause, UTC microseconds; 0: none."""
    cap: int
    """Attempts in flight allowed now, a ramp included; 0 while open."""
    learned_cap: int
    in_flight: int
    read_timeout: float
    """In force, seconds."""
    learned: Learned
    alarm: Sign | None
    recovered_at: int
    """When its breaker last let it back, UTC microseconds; 0: never."""


class EndpointLimits:
    """`now` is UTC microseconds and never goes back; `u` is a die, `0 <= u < 1`."""

    __slots__ = (
        "_aged",
        "_breaker",
        "_concurrency",
        "_hold_until",
        "_mix",
        "_probing",
        "_slow_us",
        "_starts",
        "_timeout",
        "host",
        "read_timeout",
        "rules",
        "told_at",
    )

    def __init__(self, rules: LimitRules, *, ring: LatencyRing | None = None) -> None:
        self.rules = rules
        self.host = ""
        """`scheme://host:port`; kept for `admission.limits`."""
        self.told_at = 0
        """When the watch over the fleet last heard that it answers; kept for `admission.limits`."""
        self._breaker = Breaker()
        self._timeout = AdaptiveTimeout(ring)
        self._concurrency = ConcurrencyLimit(rules.concurrency.start)
        self._mix = OutcomeMix()
        self._starts: array[int] = array("q")
        """When the attempts in flight were started, oldest first."""
        self._aged = 0
        """The first so many of them have been counted as slow, or are no evidence any more."""
        self._probing = False
        self._hold_until = 0
        self.read_timeout = rules.read_timeout
        """Seconds, in force for the next ordinary attempt."""
        self._slow_us = 0
        self._refresh()

    def __repr__(self) -> str:
        return f"<EndpointLimits {self._breaker.state} cap={self.cap} read_timeout={self.read_timeout:g}>"

    # ------------------------------------------------------------------------------------------------ verdict

    def verdict(self, now: int) -> Admit | Hold:
        """What may start now."""
        rules, breaker = self.rules, self._breaker
        if rules.breaker.mode is _ON and not breaker.counting:
            if breaker.state is BreakerState.OPEN and now < breaker.open_until:
                return Hold(breaker.open_until, breaker.cause)
            return Admit(1, rules.probe_limit, True)
        if now < self._hold_until:
            return Hold(self._hold_until, None)
        return Admit(self.cap, self.read_timeout, False)

    @property
    def cap(self) -> int:
        """Attempts in flight allowed; 1 while probing and, from the end of its pause on, while open."""
        breaker, cap = self._breaker, self._concurrency.cap
        if breaker.state is _CLOSED or self.rules.breaker.mode is not _ON:
            return cap
        return min(cap, breaker.ramp) if breaker.state is _RAMPING else 1

    @property
    def hold_until(self) -> int:
        """Nothing starts before this instant; 0 or past: no hold."""
        breaker = self._breaker
        if breaker.state is BreakerState.OPEN and self.rules.breaker.mode is _ON:
            return max(breaker.open_until, self._hold_until)
        return self._hold_until

    @property
    def standing(self) -> tuple[int, int]:
        """`cap` and `hold_until`: what whoever starts attempts must be told of when it changes."""
        if self._breaker.state is _CLOSED:
            return self._concurrency.cap, self._hold_until
        return self.cap, self.hold_until

    @property
    def closed(self) -> bool:
        """The breaker is closed: a delivery that failed in set-up may try again at once."""
        return self._breaker.state is _CLOSED

    @property
    def breaker_state(self) -> BreakerState:
        """State of the breaker."""
        return self._breaker.state

    @property
    def in_flight(self) -> int:
        """Attempts under way."""
        return len(self._starts)

    def attempt_timeout(self, flight: Flight) -> float:
        """Seconds of read timeout for an attempt that was just started."""
        if flight.probe and self.rules.breaker.mode is _ON:
            return self.rules.probe_limit
        return self.read_timeout

    def read_timeout_under(self, configured: float, rules: AdaptRules) -> float:
        """Seconds that an ordinary attempt would get with this configured value and these bounds for learning."""
        return self._timeout.in_force(configured, rules)

    def hold(self, seconds: float, now: int) -> None:
        """The endpoint asked for a pause (`Retry-After` of a 429 or 503)."""
        self._hold_until = max(self._hold_until, now + round(min(seconds, HOLD_MAX) * _SECOND_US))

    # ----------------------------------------------------------------------------------------------- attempts

    def started(self, now: int) -> Flight:
        """An attempt starts. Exactly one `finished` must follow."""
        breaker = self._breaker
        self._starts.append(now)
        if breaker.state is _CLOSED:
            return Flight(now, False, breaker.epoch, False)
        probe = refused = False
        if not breaker.counting:
            probe = breaker.cool(now) and not self._probing
            self._probing = self._probing or probe
            refused = not probe
        elif breaker.state is _RAMPING:
            refused = len(self._starts) > breaker.ramp
        return Flight(now, probe, breaker.epoch, refused and self.rules.breaker.mode is BreakerMode.DRY_RUN)

    def finished(
        self, flight: Flight, facts: Facts, now: int, u: float, *, ours: bool = False
    ) -> tuple[LimitChange, ...]:
        """An attempt ended. `ours`: many unrelated hosts fail at once, so that failures are no evidence now.

        Returns what changed by it, nearly always nothing.
        """
        started_at, probe, epoch, _ = flight
        sign, seconds, _, waited = facts
        in_flight = len(self._starts)
        counted = self._land(started_at)
        if probe:
            self._probing = False
            return self._probe_ended(facts, now, u, ours)
        if sign is _NOTHING or (ours and sign is not _OK):
            return ()
        changes: tuple[LimitChange, ...] = ()
        alert = self._mix.observe(sign, now)
        if alert is not None:
            changes = (alert,)
        breaker = self._breaker
        was = breaker.state
        if sign is _SETUP or epoch != breaker.epoch or (was is not _CLOSED and was is not _RAMPING):
            return changes
        rules, concurrency = self.rules, self._concurrency
        slow = seconds * _SECOND_US >= self._slow_us
        guarded = rules.breaker.mode is not _OFF
        if sign is _OK:
            if guarded:
                if breaker.passed(slow, now, counted, concurrency.cap, in_flight, u, rules.breaker):
                    changes += self._opened()
                elif breaker.state is not was:
                    changes += (self._change(),)
            if self._timeout.succeeded(seconds, now, rules.adapt):
                changes += self._refresh()
            halting = slower(seconds, self._timeout.p50, self.read_timeout)
            concurrency.finished(halting, False, in_flight, now, rules.concurrency)
            return changes
        concurrency.finished(False, sign is not Sign.FAILED, in_flight, now, rules.concurrency)
        if sign is Sign.BUSY:
            return changes
        if waited:
            before = self._timeout.value
            self._timeout.timed_out(seconds, now)
            if self._timeout.value != before:
                changes += self._refresh()
        else:
            self._timeout.failed()
        if guarded and breaker.failed(
            sign is Sign.TIMEOUT,
            slow,
            now,
            counted,
            concurrency.cap,
            in_flight,
            u,
            rules.breaker,
            alarmed=self._mix.alarm in ENDPOINT_FAILURES,
        ):
            changes += self._opened()
        return changes

    def age(self, now: int, u: float) -> tuple[LimitChange, ...]:
        """Count those in flight that have become slow meanwhile. Call at `next_age_at`, or at least every second."""
        starts, breaker = self._starts, self._breaker
        while self._aged < len(starts) and now - starts[self._aged] >= self._slow_us and breaker.counting:
            self._aged += 1
            rules = self.rules.breaker
            if rules.mode is not _OFF and breaker.aged(now, self._concurrency.cap, len(starts), u, rules):
                return self._opened()
        return ()

    def next_age_at(self) -> int | None:
        """When the next attempt in flight becomes slow; None when none can."""
        if self._aged < len(self._starts) and self._breaker.counting:
            return self._starts[self._aged] + self._slow_us
        return None

    def excuse(self) -> None:
        """Those in flight are no evidence of slowness: time passed in which we did not look."""
        self._aged = len(self._starts)

    def bound_hold(self, now: int) -> None:
        """Let no hold be longer than one that begins now can be: it was made while the clock was ahead, and would outlast the
        trouble by as much. Stored ones may be of another machine's clock."""
        if self._hold_until > now + HOLD_MAX * _SECOND_US:
            self._hold_until = 0
        self._breaker.bound_pause(now, self.rules.breaker)

    def reset(self) -> tuple[LimitChange, ...]:
        """The breaker closes because somebody says so: the endpoint was enabled again, or its URL changed."""
        self._hold_until = 0
        self._probing = False
        self.excuse()  # they belong to the story before
        if self._breaker.state is _CLOSED:
            self._breaker.reset()
            return ()
        self._breaker.reset()
        return (self._change(),)

    def configure(self, rules: LimitRules) -> tuple[LimitChange, ...]:
        """Other rules from now on; what was learned stays, inside them."""
        self.rules = rules
        limits = rules.concurrency
        self._concurrency.cap = (
            limits.start if limits.fixed else min(limits.most, max(limits.least, self._concurrency.cap))
        )
        changes = self._refresh()
        if rules.breaker.mode is _OFF and not self.closed:
            changes += self.reset()
        return changes

    # ---------------------------------------------------------------------------------------------- looking in

    def learned(self) -> Learned:
        """The learned read timeout with its derivation."""
        return self._timeout.learned(self.rules.read_timeout, self._adapt_rules)

    @property
    def ring(self) -> LatencyRing:
        """The response times; a copy of them is where another endpoint of the host starts."""
        return self._timeout.ring

    def statistics(self) -> EndpointStatistics:
        """A snapshot."""
        breaker = self._breaker
        return EndpointStatistics(
            breaker.state,
            breaker.cause,
            breaker.level,
            breaker.open_until,
            0 if breaker.state is BreakerState.OPEN and self.rules.breaker.mode is _ON else self.cap,
            self._concurrency.cap,
            len(self._starts),
            self.read_timeout,
            self.learned(),
            self._mix.alarm,
            breaker.recovered_at,
        )

    # ------------------------------------------------------------------------------------------------- storing

    def to_bytes(self) -> bytes:
        """All of it in at most 700 bytes, with a version in front. What is in flight is not in it."""
        return (
            bytes((STATE_VERSION, min(self._concurrency.cap, 255)))
            + self._mix.to_bytes()
            + self._breaker.to_bytes()
            + self._timeout.to_bytes()
        )

    @classmethod
    def from_bytes(cls, stored: bytes, rules: LimitRules) -> EndpointLimits:
        """What `to_bytes` wrote, under today's rules. Raises `ValueError` for anything else, a newer version included: start
        cold then."""
        if len(stored) < _HEAD_BYTES or stored[0] != STATE_VERSION:
            raise ValueError("the stored limits of an endpoint are of an unknown version")
        mix_end = _HEAD_BYTES + SIGNS
        limits = cls(rules)
        limits._concurrency.cap = stored[1]
        limits._mix = OutcomeMix.from_bytes(stored[_HEAD_BYTES:mix_end])
        limits._breaker = Breaker.from_bytes(stored[mix_end : mix_end + BREAKER_BYTES])
        limits._timeout = AdaptiveTimeout.from_bytes(stored[mix_end + BREAKER_BYTES :])
        limits.configure(rules)
        return limits

    # ------------------------------------------------------------------------------------------------- helpers

    @property
    def _adapt_rules(self) -> AdaptRules:
        return self.rules.adapt

    def _land(self, started_at: int) -> bool:
        """Take an attempt out of those in flight; whether it was counted as slow already."""
        starts = self._starts
        place = 0 if starts[0] == started_at else bisect_left(starts, started_at)
        del starts[place]
        if place >= self._aged:
            return False
        self._aged -= 1
        return True

    def _probe_ended(self, facts: Facts, now: int, u: float, ours: bool) -> tuple[LimitChange, ...]:
        breaker, rules = self._breaker, self.rules
        if breaker.state is not BreakerState.PROBING or facts.sign in (_NOTHING, _SETUP):
            return ()  # reset meanwhile; or it says nothing of this endpoint, and the next one is the probe
        if facts.success or facts.sign in (_OK, Sign.BUSY):
            if not breaker.probe_passed(facts.seconds, now, rules.breaker):
                return ()
            self._timeout.recovered(breaker.slowest, now, rules.adapt)
            return (self._change(), *self._refresh())
        breaker.probe_failed(now, u, rules.breaker, ours=ours)
        return (self._change(),)

    def _opened(self) -> tuple[LimitChange, ...]:
        self._timeout.breaker_opened()
        self._aged = len(self._starts)
        return (self._change(),)

    def _change(self) -> BreakerChange:
        breaker = self._breaker
        is_open = breaker.state is BreakerState.OPEN
        return BreakerChange(
            breaker.state,
            breaker.cause if is_open else None,
            breaker.level,
            breaker.open_until if is_open else 0,
            self.rules.breaker.mode is BreakerMode.DRY_RUN,
        )

    def _refresh(self) -> tuple[LimitChange, ...]:
        """Work out what depends on the learned value."""
        rules, before = self.rules, self.read_timeout
        after = rules.read_timeout if rules.pinned else self._timeout.in_force(rules.read_timeout, rules.adapt)
        self.read_timeout = after
        # A legitimately slow endpoint is not slower than itself: what takes twice its usual time is.
        self._slow_us = _microseconds(max(rules.breaker.slow_limit(after), SLOW_OF_MEDIAN * self._timeout.p50))
        return () if after == before else (TimeoutChange(before, after),)


@lru_cache(4_096)
def _microseconds(seconds: float) -> int:
    """The same number for the same time: most endpoints are slow from the same one on."""
    return round(seconds * _SECOND_US)
