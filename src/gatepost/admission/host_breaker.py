"""A host's breaker: what names, connections and handshakes show holds all of its endpoints, with one probe for all of them.

Ten thousand endpoints behind one dead name are seen once, not ten thousand times. It exists only while a host has trouble: one that
connects has no state and costs nothing. `admission.limits` owns it and asks it before the endpoint's own limits.

Theory of operation. The first failed set-up makes one; from then on set-ups, failed and made, are its window. It trips as an
endpoint's breaker does, by half of the attempts or five in a row, and sends one delivery of any endpoint as a probe. Until a
host has been reached once in this process, few attempts may be in flight to it (`UNPROVEN`): otherwise a thousand endpoints of
a dead host would all hang before the first of them reports.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gatepost.admission.breaker import Breaker, BreakerMode, BreakerRules, BreakerState
from gatepost.admission.evidence import Facts, Sign

UNPROVEN: Final = 16
"""Attempts in flight to a host that was not reached yet: 48 slot-seconds of a 3 s connect timeout, and a living one answers in 0.1 s."""
CLEAN_AFTER: Final = 20
"""Set-ups in a row, without a failure, after which the trouble is over and forgotten."""


class HostFlight(NamedTuple):
    """One attempt to a host in trouble, as given by `started` and handed back to `finished`."""

    probe: bool
    epoch: int


class HostBreaker:
    """`now` is UTC microseconds, `u` a die; `rules` are those of the fleet, since a host belongs to no endpoint."""

    __slots__ = ("_breaker", "_clean", "_probing", "_rests")

    def __init__(self) -> None:
        self._breaker = Breaker()
        self._probing = False
        self._clean = 0
        self._rests = 0

    def __repr__(self) -> str:
        return f"<HostBreaker {self._breaker!r}>"

    @property
    def state(self) -> BreakerState:
        """Of the breaker."""
        return self._breaker.state

    @property
    def level(self) -> int:
        """n of 30 s × 2ⁿ."""
        return self._breaker.level

    @property
    def healed(self) -> bool:
        """Nothing is wrong any more: forget this breaker."""
        return self._clean >= CLEAN_AFTER and self._breaker.state is BreakerState.CLOSED

    def cap(self) -> int | None:
        """Attempts in flight to the host: 1 while probing (and open), the ramp, None for no limit of its own."""
        breaker = self._breaker
        if breaker.state is BreakerState.CLOSED:
            return None if self._clean else UNPROVEN
        return max(1, breaker.ramp)

    def held_until(self) -> int:
        """Nothing starts to the host before this instant; 0 unless open."""
        return self._breaker.open_until if self._breaker.state is BreakerState.OPEN else 0

    def rest(self) -> int:
        """A generation ends; how many did since the last attempt."""
        self._rests += 1
        return self._rests

    def started(self, now: int) -> HostFlight:
        """An attempt starts. Exactly one `finished` must follow."""
        breaker = self._breaker
        self._rests = 0
        probe = not breaker.counting and breaker.cool(now) and not self._probing
        self._probing = self._probing or probe
        return HostFlight(probe, breaker.epoch)

    def finished(
        self, flight: HostFlight | None, facts: Facts, now: int, u: float, rules: BreakerRules, *, ours: bool = False
    ) -> bool:
        """An attempt ended; `flight` None: it was started before there was trouble. True: the breaker went to another state."""
        breaker, was = self._breaker, self._breaker.state
        if flight is not None and flight.probe:
            self._probing = False
            if breaker.state is not BreakerState.PROBING or facts.sign is Sign.NOTHING:
                return False
            if facts.sign is Sign.SETUP:
                breaker.probe_failed(now, u, rules, ours=ours)
            else:
                breaker.probe_passed(facts.seconds, now, rules)
            return breaker.state is not was
        if facts.sign is Sign.NOTHING or not breaker.counting or (flight is not None and flight.epoch != breaker.epoch):
            return False
        if facts.sign is Sign.SETUP:
            self._clean = 0
            if not ours and rules.mode is not BreakerMode.OFF:
                breaker.failed(True, False, now, False, UNPROVEN, 0, u, rules)
        else:
            self._clean += 1
            breaker.passed(False, now, False, UNPROVEN, 0, u, rules)
        return breaker.state is not was
