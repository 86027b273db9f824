"""What attempts say about policies: what a shadow would have ended, how a rollout goes, how long each phase takes.

It counts by endpoint and decides nothing; the counts travel with the endpoint's memory, so that the next owner goes on with them
and one process can read all of them (`dispatch.policy_reports`). Told by `dispatch.attempt` of every attempt that ended.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from gatepost.admission.breaker import BreakerRules
from gatepost.admission.compare import Case, Ending
from gatepost.admission.endpoint_limits import BreakerChange
from gatepost.admission.outcome_hours import OutcomeHours, ended_as
from gatepost.admission.phase_times import PhaseTimes
from gatepost.admission.policy_book import PolicyBook
from gatepost.admission.rollout import Rollout
from gatepost.admission.shadow import BREAKER, CAP, LIMITS, ShadowBreaker, ShadowCount, would_end
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import Blame
from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.policy_layers import LEARNABLE
from gatepost.dispatch.catalogue import Listed
from gatepost.dispatch.endpoint_memory import EndpointMemory, Value
from gatepost.dispatch.limits import Flying
from gatepost.dispatch.policy_view import PolicyView, Shared

SECTION: Final = "policy"
"""In the memory of endpoints."""
HOSTS_MAX: Final = 10_000
"""Hosts counted by name for the metric; later ones are counted together."""
OTHER: Final = "other"
TURNS_MAX: Final = 20
"""Changes of a breaker that are kept: a day of trouble, and some hundred bytes."""


class Tally:
    """Attempts and failures of one endpoint in the stages of one rollout."""

    __slots__ = ("before", "control", "mark", "seasoned", "treated")

    def __init__(self, mark: str) -> None:
        self.mark = mark
        """The stage (`Rollout.mark`) that `control` and `treated` are of."""
        self.before = Ending()
        """In the stage before, without the new values."""
        self.control = Ending()
        self.treated = Ending()
        self.seasoned = False
        """It had the new values in an earlier stage: no news any more."""

    def enter(self, mark: str) -> None:
        """Another stage begins."""
        if mark.partition(".")[0] != self.mark.partition(".")[0]:
            self.before, self.seasoned = Ending(), False
        else:
            self.seasoned = self.seasoned or bool(self.treated.attempts)
            if self.control.attempts:
                self.before = self.control
        self.mark, self.control, self.treated = mark, Ending(), Ending()

    def count(self, failed: bool, treated: bool) -> None:
        """One attempt."""
        ending = self.treated if treated else self.control
        ending = Ending(ending.attempts + 1, ending.failed + failed)
        if treated:
            self.treated = ending
        else:
            self.control = ending

    def cases(self, mark: str) -> list[Case]:
        """For the comparison of this stage."""
        if self.mark != mark or self.seasoned:
            return []
        sides = ((True, self.treated), (False, self.control))
        return [Case(treated, self.before, since) for treated, since in sides if since.attempts]


class Turn(NamedTuple):
    """A breaker went to another state."""

    at: int
    """UTC microseconds."""
    state: str
    """One of `BreakerState`."""
    cause: str
    """One of `TripCause`, empty unless it opened."""
    level: int
    """Of its pauses."""
    until: int
    """When the first probe may start, UTC microseconds; 0 unless open."""


class Watched:
    """What is kept of one endpoint."""

    __slots__ = ("breaker", "hours", "shadow", "tally", "times", "turns")

    def __init__(self) -> None:
        self.times = PhaseTimes()
        self.hours = OutcomeHours()
        self.turns: tuple[Turn, ...] = ()
        """The breaker's last `TURNS_MAX`, oldest first."""
        self.shadow: ShadowCount | None = None
        self.breaker: ShadowBreaker | None = None
        self.tally: Tally | None = None

    def to_value(self, p99: float | None) -> Value:
        """For the endpoint's memory; `p99` of its responses, for whoever reads this without owning the endpoint."""
        value: dict[str, Value] = {"q": base64.b85encode(self.times.to_bytes()).decode()}
        if p99 is not None:
            value["p99"] = p99
        if self.hours:
            value["h"] = base64.b85encode(self.hours.to_bytes()).decode()
        if self.turns:
            value["b"] = [list(turn) for turn in self.turns]
        shadow, tally = self.shadow, self.tally
        if shadow is not None:
            counts: dict[str, Value] = dict(shadow.limits)
            value["s"] = [shadow.number, shadow.judged, shadow.delivered, shadow.lost, counts]
        if tally is not None:
            value["t"] = [tally.mark, *tally.before, *tally.control, *tally.treated, tally.seasoned]
        return value

    @classmethod
    def from_value(cls, value: Value) -> tuple[Watched, float | None]:
        """What `to_value` made, and the p99. What another version wrote otherwise is left out."""
        watched = cls()
        if not isinstance(value, dict):
            return watched, None
        match value.get("q"):
            case str(packed):
                try:
                    watched.times = PhaseTimes.from_bytes(base64.b85decode(packed))
                except ValueError:
                    pass  # another version's: it starts anew
        match value.get("h"):
            case str(packed):
                try:
                    watched.hours = OutcomeHours.from_bytes(base64.b85decode(packed))
                except ValueError:
                    pass
        match value.get("b"):
            case list(turns):
                watched.turns = tuple(turn for turn in map(_turn, turns) if turn is not None)
        match value.get("s"):
            case [int(number), int(judged), int(delivered), int(lost), dict(counts)]:
                limits = {name: count for name, count in counts.items() if name in LIMITS and isinstance(count, int)}
                watched.shadow = ShadowCount(number, judged, delivered, lost, limits)
        match value.get("t"):
            case [str(mark), int(b0), int(b1), int(c0), int(c1), int(t0), int(t1), bool(seasoned)]:
                tally = watched.tally = Tally(mark)
                tally.before, tally.control, tally.treated = Ending(b0, b1), Ending(c0, c1), Ending(t0, t1)
                tally.seasoned = seasoned
        p99 = value.get("p99")
        return watched, p99 if isinstance(p99, float) else None


class PolicyWatch:
    """`p99_of` tells what is learned of an endpoint's responses, in seconds. `store_time` is UTC microseconds."""

    def __init__(
        self,
        view: PolicyView,
        memory: EndpointMemory,
        p99_of: Callable[[int], float | None],
        breaker: BreakerRules,
        store_time: Callable[[], int],
    ) -> None:
        self._view = view
        self._memory = memory
        self._p99_of = p99_of
        self._breaker = breaker
        self._store_time = store_time
        self._watched: dict[int, Watched] = {}
        self._old: dict[int, Watched] = {}
        self._resting: dict[int, bytes] = {}
        self._tried: tuple[int, PolicyView] | None = None
        self.trips: dict[tuple[str, str], int] = {}
        """Attempts that a limit tried in shadow would have met, by host and limit, since the start."""
        memory.lend(SECTION, self._packed, self._unpack)

    def ended(self, flying: Flying, listed: Listed, attempt: Attempt) -> None:
        """An attempt ended; before what it says is learned from."""
        watched = self._wake(listed.number)
        watched.hours.add(ended_as(attempt), self._store_time())
        ours = attempt.blame is Blame.US and not attempt.delivered
        if not ours and not attempt.lagged:
            watched.times.add(attempt)
        book = self._view.book
        if book.shadow and not ours and not flying.tracked.flight.probe:  # a probe's limit is another one
            self._judge(watched, flying, listed, attempt, book)
        rollout = book.rollout
        if rollout is not None and rollout.running and not ours:
            _tally(watched, rollout).count(not attempt.delivered, book.treats(listed.place, self._view.process))

    def turned(self, number: int, change: BreakerChange) -> None:
        """The endpoint's breaker went to another state."""
        cause = "" if change.cause is None else change.cause.value
        turn = Turn(self._store_time(), change.state.value, cause, change.level, change.until)
        watched = self._wake(number)
        watched.turns = (*watched.turns[1 - TURNS_MAX :], turn)

    def drop(self, numbers: Iterable[int]) -> None:
        """Endpoints that are gone, or belong to another owner now."""
        for number in numbers:
            self._watched.pop(number, None)
            self._old.pop(number, None)
            self._resting.pop(number, None)

    def value_of(self, number: int) -> Value | None:
        """What is kept of an endpoint that is ours."""
        return self._packed(number)

    def rest(self) -> None:
        """Pack what had no attempt since the last call but one. Call every few minutes. O(active)."""
        for number, watched in self._old.items():
            if number not in self._watched:
                value = watched.to_value(self._p99_of(number))
                self._resting[number] = json.dumps(value, separators=(",", ":")).encode()
        self._old, self._watched = self._watched, {}

    # -------------------------------------------------------------------------------------------------- helpers

    def _judge(self, watched: Watched, flying: Flying, listed: Listed, attempt: Attempt, book: PolicyBook) -> None:
        tried, shared = self._policies(flying, listed, book)
        count = watched.shadow
        if count is None or count.number != book.shadow_number:
            count = watched.shadow = ShadowCount(book.shadow_number)
            watched.breaker = None
        if watched.breaker is None:
            watched.breaker = ShadowBreaker()
        met = list(would_end(attempt, flying.policy, tried))
        ended = bool(met)
        in_flight = flying.tracked.limits.in_flight
        cap = listed.endpoint.concurrency or shared.cap
        if in_flight > cap and cap < listed.settings.cap:
            met.append(CAP)
        now = self._store_time()
        if watched.breaker.saw(attempt, ended, tried, now, flying.tracked.limits.cap, in_flight, self._breaker):
            met.append(BREAKER)
        count.judged += 1
        count.delivered += attempt.delivered
        count.lost += ended and attempt.delivered
        for name in met:
            count.limits[name] = count.limits.get(name, 0) + 1
            host = listed.settings.host
            key = (host, name)
            if key not in self.trips and len(self.trips) >= HOSTS_MAX:
                key = (OTHER, name)
            self.trips[key] = self.trips.get(key, 0) + 1
        if met:
            self._memory.touch(listed.number)

    def _policies(self, flying: Flying, listed: Listed, book: PolicyBook) -> tuple[ClientPolicy, Shared]:
        """What this attempt would have gone by with the shadow's values as the fleet's: effective against effective."""
        if self._tried is None or self._tried[0] != self._view.version:
            fleet = {**book.fleet, **book.shadow}
            self._tried = (self._view.version, self._view.trial(replace(book, fleet=fleet)))
        shared = self._tried[1].shared(listed.endpoint.tier, listed.place)
        own = listed.endpoint.limits
        policy = shared.policy.with_values(own) if own else shared.policy
        if LEARNABLE not in own:
            seconds = flying.tracked.limits.read_timeout_under(policy.read_timeout, shared.adapt)
            if seconds != policy.read_timeout:
                policy = policy.with_read_timeout(seconds)
        return policy, shared

    def _wake(self, number: int) -> Watched:
        watched = self._watched.get(number)
        if watched is None:
            watched = self._old.pop(number, None)
            if watched is None:
                packed = self._resting.pop(number, None)
                watched = Watched() if packed is None else Watched.from_value(json.loads(packed))[0]
            self._watched[number] = watched
        return watched

    def _packed(self, number: int) -> Value | None:
        watched = self._watched.get(number) or self._old.get(number)
        if watched is None:
            packed = self._resting.get(number)
            value: Value | None = None if packed is None else json.loads(packed)
            return value
        return watched.to_value(self._p99_of(number))

    def _unpack(self, number: int, value: Value) -> None:
        if number not in self._watched and number not in self._old:
            self._resting[number] = json.dumps(value, separators=(",", ":")).encode()


def _turn(stored: Value) -> Turn | None:
    match stored:
        case [int(at), str(state), str(cause), int(level), int(until)]:
            return Turn(at, state, cause, level, until)
        case _:
            return None


def _tally(watched: Watched, rollout: Rollout) -> Tally:
    tally = watched.tally
    if tally is None:
        tally = watched.tally = Tally(rollout.mark)
    elif tally.mark != rollout.mark:
        tally.enter(rollout.mark)
    return tally
