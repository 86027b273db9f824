"""The limits of all endpoints and hosts of one process: finds them, feeds them, and keeps idle ones small.

It joins the parts (an endpoint's limits, its host's breaker, the watch over the fleet) around one attempt and reports what
changed; it starts nothing, stores nothing and tells nobody. `dispatch.limits` is its shell.

Theory of operation. An endpoint is *active* (an object, about 2 KiB) while it has attempts, and *idle* (its stored form,
compressed to about 500 bytes) once it had none for a while: two generations, and what was not touched in one is packed at its end.
What is packed or has changed is also what the store should keep.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from gatepost.admission.breaker import BreakerMode, BreakerRules, BreakerState, TripCause
from gatepost.admission.endpoint_limits import BreakerChange, EndpointLimits, Flight, LimitChange, LimitRules
from gatepost.admission.evidence import Facts, Sign
from gatepost.admission.fleet_trouble import TELL_US, FleetTrouble, family_of
from gatepost.admission.host_breaker import UNPROVEN, HostBreaker, HostFlight

IDLE_MAX: Final = 200_000
"""Endpoints kept in packed form, about 120 MiB; beyond it the quarter packed first goes, and starts cold when it has work."""
HOSTS_MAX: Final = 100_000
"""Hosts known to be reachable; at more of them all are forgotten, and start carefully again."""
HOST_RESTS_MAX: Final = 300
"""Generations of five minutes, 25 hours, after which the trouble of a host that nobody tries any more is forgotten: the longest
pause between two attempts of a delivery is a day, and hosts whose endpoints are gone would be remembered for ever."""
SIBLINGS_MAX: Final = 10_000
"""Hosts of which an endpoint is remembered as an example for new ones."""
SIBLING_SAMPLES: Final = 50
"""Response times that make an endpoint an example."""

_OK: Final = Sign.OK
_ON: Final = BreakerMode.ON
_ANSWERS: Final = frozenset({Sign.OK, Sign.BUSY, Sign.REFUSED})
_SILENCE: Final = frozenset({Sign.SETUP, Sign.TIMEOUT})


class Tracked(NamedTuple):
    """One attempt under way, as given by `started` and handed back to `finished`."""

    number: int
    limits: EndpointLimits
    flight: Flight
    host_flight: HostFlight | None
    host: str
    """To which it goes: the endpoint may point elsewhere by the time it ends."""


class HostGate(NamedTuple):
    """What a host allows: attempts in flight (None: no limit of its own), and not before an instant (0: now)."""

    cap: int | None
    held_until: int


FREE: Final = HostGate(None, 0)
"""Of a host that has no trouble: nearly every one, asked several times for each attempt."""
_CAREFUL: Final = HostGate(UNPROVEN, 0)


class EndpointChange(NamedTuple):
    """Something about one endpoint changed."""

    number: int
    change: LimitChange


class HostChange(NamedTuple):
    """The breaker of a host went to another state."""

    host: str
    state: BreakerState
    level: int
    held_until: int


class FleetChange(NamedTuple):
    """Many unrelated hosts began to fail at once, or no longer do."""

    suspected: bool


Change = EndpointChange | HostChange | FleetChange


@dataclass(frozen=True, slots=True)
class LimitsStatistics:
    """A snapshot; counts are since the start."""

    active: int
    idle: int
    hosts_in_trouble: int
    unsaved: int
    opened: Mapping[TripCause, int]
    """Times an endpoint's breaker opened, dry runs apart."""
    would_open: int
    would_refuse: int
    """In dry run: times a breaker would have opened, attempts it would not have let start."""
    host_opened: int
    fleet_suspected: bool


@dataclass(slots=True)
class _Counts:
    opened: dict[TripCause, int] = field(default_factory=lambda: dict.fromkeys(TripCause, 0))
    would_open: int = 0
    would_refuse: int = 0
    host_opened: int = 0


class Limits:
    """`now` is UTC microseconds, `u` a die; `host_rules` are the fleet's breaker rules, for hosts."""

    __slots__ = (
        "_counts",
        "_dirty",
        "_fleet",
        "_hosts",
        "_idle",
        "_old",
        "_proven",
        "_siblings",
        "_suspected",
        "_troubled",
        "_urgent",
        "_young",
        "host_rules",
    )

    def __init__(self, host_rules: BreakerRules) -> None:
        self.host_rules = host_rules
        self._young: dict[int, EndpointLimits] = {}
        self._old: dict[int, EndpointLimits] = {}
        self._idle: dict[int, bytes] = {}
        self._hosts: dict[str, HostBreaker] = {}
        self._proven: set[str] = set()
        self._siblings: OrderedDict[str, int] = OrderedDict()
        self._fleet = FleetTrouble()
        self._suspected = False
        self._dirty: set[int] = set()
        self._urgent: set[int] = set()
        self._counts = _Counts()
        self._troubled: dict[int, BreakerState] = {}
        """Endpoints whose breaker is in force and not closed, the one longest so first."""

    def __repr__(self) -> str:
        return f"<Limits active={len(self._young) + len(self._old)} idle={len(self._idle)} hosts={len(self._hosts)}>"

    # ------------------------------------------------------------------------------------------------ finding

    def endpoint(self, number: int, host: str, rules: LimitRules) -> EndpointLimits:
        """The limits of an endpoint, made active; a new one starts from its host's response times. O(1)."""
        limits = self._young.get(number)
        if limits is None:
            limits = self._old.pop(number, None) or self._wake(number, host, rules)
            self._young[number] = limits
        if limits.rules is not rules:
            limits.configure(rules)
            if limits.closed or rules.breaker.mode is not _ON:
                self._troubled.pop(number, None)
        if limits.host != host:
            limits.host, limits.told_at = host, 0
        return limits

    def peek(self, number: int) -> EndpointLimits | None:
        """The limits of an endpoint that is active, or None."""
        return self._young.get(number) or self._old.get(number)

    def knows(self, number: int) -> bool:
        """Something is known about the endpoint, so that its stored state would only be older."""
        return number in self._young or number in self._old or number in self._idle

    def host_gate(self, host: str) -> HostGate:
        """What the host allows now."""
        if self.host_rules.mode is not _ON:
            return FREE
        breaker = self._hosts.get(host) if self._hosts else None
        if breaker is None:
            return FREE if host in self._proven else _CAREFUL
        return HostGate(breaker.cap(), breaker.held_until())

    # ------------------------------------------------------------------------------------------------ attempts

    def started(self, number: int, host: str, rules: LimitRules, now: int) -> Tracked:
        """An attempt starts. Exactly one `finished` must follow."""
        limits = self.endpoint(number, host, rules)
        flight = limits.started(now)
        if flight.refused:
            self._counts.would_refuse += 1
        if flight.probe and number in self._troubled:
            self._troubled[number] = BreakerState.PROBING
        breaker = self._hosts.get(host)
        return Tracked(number, limits, flight, None if breaker is None else breaker.started(now), host)

    def finished(self, tracked: Tracked, facts: Facts, now: int, u: float) -> list[Change]:
        """An attempt ended; what changed by it, nearly always nothing."""
        number, limits, flight, host_flight, host = tracked
        sign = facts.sign
        changes: list[Change] = []
        ours = False
        if sign is _OK or sign in _ANSWERS:
            if now - limits.told_at >= TELL_US:
                self._fleet.answered(family_of(host), now)
                limits.told_at = now
            ours = self._suspected and self._suspect(now, changes)
        elif sign in _SILENCE:
            self._fleet.failed(family_of(host), now)
            limits.told_at = 0
            ours = self._suspect(now, changes)
        if self._hosts or sign is Sign.SETUP or host not in self._proven:
            self._finish_host(host, host_flight, facts, now, u, ours, changes)
        found = limits.finished(flight, facts, now, u, ours=ours)
        if self._young.get(number) is not limits and self._old.get(number) is not limits:
            return changes  # forgotten meanwhile: the endpoint is gone, or another's to speak of
        for change in found:
            self._note(number, change, changes)
        if sign is not Sign.NOTHING:
            self._dirty.add(number)
        return changes

    def age(self, number: int, now: int, u: float) -> list[Change]:
        """Count an endpoint's attempts in flight that have become slow."""
        changes: list[Change] = []
        limits = self.peek(number)
        if self._suspected and self._suspect(now, changes):
            return changes  # our own trouble: nobody is slow by it
        if limits is not None:
            for change in limits.age(now, u):
                self._note(number, change, changes)
        return changes

    def excuse(self, numbers: Iterable[int]) -> None:
        """We were not looking: what is in flight to these endpoints is no evidence of slowness."""
        for number in numbers:
            limits = self.peek(number)
            if limits is not None:
                limits.excuse()

    def reset(self, number: int) -> list[Change]:
        """An endpoint was enabled again: its breaker closes."""
        changes: list[Change] = []
        limits = self.peek(number)
        if limits is not None:
            for change in limits.reset():
                self._note(number, change, changes)
        elif number in self._idle:
            del self._idle[number]
            self._troubled.pop(number, None)
        return changes

    def reset_host(self, host: str) -> None:
        """A host's trouble is over because somebody says so."""
        self._hosts.pop(host, None)

    # ----------------------------------------------------------------------------------------------- storing

    def load(self, states: Mapping[int, bytes]) -> None:
        """What the store kept about endpoints that became ours; what is known here already is younger and stays."""
        for number, state in states.items():
            if not self.knows(number):
                self._idle[number] = _pack(state)
        self._bound_idle()

    def take_unsaved(self, limit: int, *, urgent_only: bool = False) -> dict[int, bytes]:
        """Up to `limit` states to be stored, those whose breaker changed first; taken once, so `unsaved` what was not stored."""
        chosen = [self._urgent.pop() for _ in range(min(limit, len(self._urgent)))]
        if not urgent_only:
            chosen += [self._dirty.pop() for _ in range(min(limit - len(chosen), len(self._dirty)))]
        states: dict[int, bytes] = {}
        for number in chosen:
            state = self.state_of(number)
            if state is not None:
                states[number] = state
            self._dirty.discard(number)
        return states

    def state_of(self, number: int) -> bytes | None:
        """The state of an endpoint to be stored, None when nothing is known."""
        limits = self.peek(number)
        if limits is not None:
            return limits.to_bytes()
        packed = self._idle.get(number)
        return None if packed is None else _unpack(packed)

    def unsaved(self, numbers: Iterable[int]) -> None:
        """These were taken and could not be stored."""
        self._dirty.update(numbers)

    def forget(self, numbers: Iterable[int]) -> None:
        """Endpoints that are gone, or belong to another owner now. Attempts under way end by themselves."""
        for number in numbers:
            self._young.pop(number, None)
            self._old.pop(number, None)
            self._idle.pop(number, None)
            self._troubled.pop(number, None)
            self._dirty.discard(number)
            self._urgent.discard(number)

    def pack(self, most: int) -> int:
        """Pack up to so many of those that had no attempt for a generation; returns how many. 50 µs each: a whole fleet that falls
        silent at once is packed between other work."""
        old, packed = self._old, 0
        while old and packed < most:
            number, limits = old.popitem()
            if limits.in_flight:
                self._young[number] = limits
            else:
                self._idle[number] = _pack(limits.to_bytes())
                packed += 1
        self._bound_idle()
        return packed

    def rest(self) -> int:
        """End a generation: pack what had no attempt during it; returns how many. Call every few minutes. O(active)."""
        packed = self.pack(len(self._old))
        self._old, self._young = self._young, {}
        for host in [host for host, breaker in self._hosts.items() if breaker.rest() > HOST_RESTS_MAX]:
            del self._hosts[host]
        for number, limits in self._old.items():
            if limits.ring.count >= SIBLING_SAMPLES:
                self._siblings[limits.host] = number
        while len(self._siblings) > SIBLINGS_MAX:
            self._siblings.popitem(last=False)
        return packed

    # --------------------------------------------------------------------------------------------- looking in

    def statistics(self) -> LimitsStatistics:
        """A snapshot."""
        counts = self._counts
        return LimitsStatistics(
            len(self._young) + len(self._old),
            len(self._idle),
            len(self._hosts),
            len(self._dirty | self._urgent),
            dict(counts.opened),
            counts.would_open,
            counts.would_refuse,
            counts.host_opened,
            self._suspected,
        )

    def troubled(self) -> Mapping[int, BreakerState]:
        """Endpoints whose breaker holds them, or lets them back: the one longest in trouble first. A view, not a copy."""
        return self._troubled

    def troubled_hosts(self) -> Mapping[str, HostBreaker]:
        """Hosts with a breaker, closed ones that had trouble lately included, the one longest in trouble first. A view."""
        return self._hosts

    # ------------------------------------------------------------------------------------------------- helpers

    def _wake(self, number: int, host: str, rules: LimitRules) -> EndpointLimits:
        packed = self._idle.pop(number, None)
        if packed is not None:
            try:
                known = EndpointLimits.from_bytes(_unpack(packed), rules)
                if not known.closed and rules.breaker.mode is _ON:
                    self._troubled.setdefault(number, known.breaker_state)
                return known
            except ValueError:
                pass  # written by a newer version, or damaged: what it knew is learned again
        sibling = self.peek(self._siblings.get(host, -1))
        return EndpointLimits(rules, ring=None if sibling is None else sibling.ring.copy())

    def _finish_host(
        self, host: str, flight: HostFlight | None, facts: Facts, now: int, u: float, ours: bool, changes: list[Change]
    ) -> None:
        breaker = self._hosts.get(host)
        if breaker is None:
            if facts.sign is Sign.SETUP:
                self._proven.discard(host)
                breaker = self._hosts[host] = HostBreaker()
            elif facts.sign is not Sign.NOTHING:
                self._prove(host)
                return
            else:
                return
        if breaker.finished(flight, facts, now, u, self.host_rules, ours=ours):
            if breaker.state is BreakerState.OPEN:
                self._counts.host_opened += 1
            changes.append(HostChange(host, breaker.state, breaker.level, breaker.held_until()))
        if breaker.healed:
            del self._hosts[host]
            self._prove(host)

    def _prove(self, host: str) -> None:
        if len(self._proven) >= HOSTS_MAX:
            self._proven.clear()
        self._proven.add(host)

    def _suspect(self, now: int, changes: list[Change]) -> bool:
        suspected = self._fleet.suspected(now)
        if suspected is not self._suspected:
            self._suspected = suspected
            changes.append(FleetChange(suspected))
        return suspected

    def _note(self, number: int, change: LimitChange, changes: list[Change]) -> None:
        changes.append(EndpointChange(number, change))
        if isinstance(change, BreakerChange):
            self._urgent.add(number)
            if change.state is BreakerState.CLOSED or change.dry_run:
                self._troubled.pop(number, None)
            else:
                self._troubled[number] = change.state
            if change.state is BreakerState.OPEN and change.cause is not None:
                if change.dry_run:
                    self._counts.would_open += 1
                else:
                    self._counts.opened[change.cause] += 1

    def _bound_idle(self) -> None:
        if len(self._idle) > IDLE_MAX:
            for number in list(islice(self._idle, IDLE_MAX // 4)):
                del self._idle[number]
                self._troubled.pop(number, None)


def _pack(state: bytes) -> bytes:
    """Compressed, low bytes before high ones: most of it are times in two bytes, whose high ones are alike."""
    return zlib.compress(state[::2] + state[1::2])


def _unpack(packed: bytes) -> bytes:
    halves = zlib.decompress(packed)
    state, half = bytearray(len(halves)), (len(halves) + 1) // 2
    state[::2], state[1::2] = halves[:half], halves[half:]
    return bytes(state)
