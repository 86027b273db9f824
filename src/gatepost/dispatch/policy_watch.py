"""What attempts say about policies: what a shadow would have ended, how a rollout goes, how long each phase takes.

It counts by endpoint and decides nothing; the counts travel with the endpoint's memory, so that the next owner goes on with them
and one process can read all of them (`dispatch.policy_reports`). Told by `dispatch.attempt` of every attempt that ended.

Theory of operation. What every endpoint has is one packed record (`admission.attempt_counts`), the same in use and at rest. What few
have or what passes, the breaker's turns and the counts of a shadow or a rollout, is an object while there are attempts and packed
after.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

from gatepost.admission.attempt_counts import checked, count, hours_of, new_counts, times_of
from gatepost.admission.breaker_layers import of_breaker
from gatepost.admission.compare import Case, Ending
from gatepost.admission.endpoint_limits import BreakerChange
from gatepost.admission.outcome_hours import OutcomeHours
from gatepost.admission.phase_times import PhaseTimes
from gatepost.admission.policy_book import PolicyBook
from gatepost.admission.rollout import Rollout
from gatepost.admission.shadow import BREAKER, CAP, HOST_CAP, LIMITS, ShadowBreaker, ShadowCount, would_end
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


COUNTED_MAX: Final = 200_000
"""Endpoints whose counts are kept, as many as have their limits kept; of more, those counted first go."""
TOLD_AT_ONCE: Final = 500
"""Endpoints that one call of `tell` has written: one transaction. More wait for the next call, or for their five minutes."""

_NONE: Final = Ending()


class Tally:
    """Attempts and failures of one endpoint in the stages of one rollout."""

    __slots__ = ("before", "control", "mark", "seasoned", "treated")

    def __init__(self, mark: str) -> None:
        self.mark = mark
        """The stage (`Rollout.mark`) that `control` and `treated` are of."""
        self.before = _NONE
        """In the stage before, without the new values."""
        self.control = _NONE
        self.treated = _NONE
        self.seasoned = False
        """It had the new values in an earlier stage: no news any more."""

    def enter(self, mark: str) -> None:
        """Another stage begins."""
        if mark.partition(".")[0] != self.mark.partition(".")[0]:
            self.before, self.seasoned = _NONE, False
        else:
            self.seasoned = self.seasoned or bool(self.treated.attempts)
            if self.control.attempts:
                self.before = self.control
        self.mark, self.control, self.treated = mark, _NONE, _NONE

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


class Passing:
    """What is kept of one endpoint beside its counts: the breaker's turns, a shadow's judgements, a rollout's tally."""

    __slots__ = ("breaker", "shadow", "tally", "turns")

    def __init__(self) -> None:
        self.turns: tuple[Turn, ...] = ()
        """The breaker's last `TURNS_MAX`, oldest first."""
        self.shadow: ShadowCount | None = None
        self.breaker: ShadowBreaker | None = None
        self.tally: Tally | None = None

    def to_value(self) -> dict[str, Value]:
        """For the endpoint's memory."""
        value: dict[str, Value] = {}
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
    def from_value(cls, value: Mapping[str, Value]) -> Passing:
        """What `to_value` made. What another version wrote otherwise is left out."""
        passing = cls()
        match value.get("b"):
            case list(turns):
                passing.turns = tuple(turn for turn in map(_turn, turns) if turn is not None)
        match value.get("s"):
            case [int(number), int(judged), int(delivered), int(lost), dict(counts)]:
                limits = {name: count for name, count in counts.items() if name in LIMITS and isinstance(count, int)}
                passing.shadow = ShadowCount(number, judged, delivered, lost, limits)
        match value.get("t"):
            case [str(mark), int(b0), int(b1), int(c0), int(c1), int(t0), int(t1), bool(seasoned)]:
                tally = passing.tally = Tally(mark)
                tally.before, tally.control, tally.treated = Ending(b0, b1), Ending(c0, c1), Ending(t0, t1)
                tally.seasoned = seasoned
        return passing


class Watched(NamedTuple):
    """What is kept of one endpoint, for whoever reads it."""

    times: PhaseTimes
    hours: OutcomeHours
    turns: tuple[Turn, ...]
    """The breaker's last, oldest first."""
    shadow: ShadowCount | None
    tally: Tally | None
    p99: float | None
    """Of its responses, seconds; None: not known."""


def watched_of(value: Value | None) -> Watched:
    """What a value in the endpoint's memory says. What another version wrote otherwise is left out."""
    if not isinstance(value, dict):
        value = {}
    record, passing, p99 = _record_of(value), Passing.from_value(value), value.get("p99")
    return Watched(
        PhaseTimes() if record is None else times_of(record),
        OutcomeHours() if record is None else hours_of(record),
        passing.turns,
        passing.shadow,
        passing.tally,
        p99 if isinstance(p99, float) else None,
    )


class PolicyWatch:
    """`p99_of` tells what is learned of an endpoint's responses, in seconds; `host_in_flight`, how many attempts go to a host now.
    `store_time` is UTC microseconds."""

    def __init__(
        self,
        view: PolicyView,
        memory: EndpointMemory,
        p99_of: Callable[[int], float | None],
        store_time: Callable[[], int],
        host_in_flight: Callable[[str], int],
    ) -> None:
        self._view = view
        self._memory = memory
        self._p99_of = p99_of
        self._store_time = store_time
        self._host_in_flight = host_in_flight
        self._counts: dict[int, bytearray] = {}
        self._passing: dict[int, Passing] = {}
        self._old: dict[int, Passing] = {}
        self._resting: dict[int, bytes] = {}
        self._unsaid: set[int] = set()
        """Endpoints of which a shadow or a rollout counted something since `tell`."""
        self._tried: tuple[int, PolicyView] | None = None
        self._breakers_tried = False
        self.trips: dict[tuple[str, str], int] = {}
        """Attempts that a limit tried in shadow would have met, by host and limit, since the start."""
        memory.lend(SECTION, self._packed, self._unpack)

    def ended(self, flying: Flying, listed: Listed, attempt: Attempt) -> None:
        """An attempt ended; before what it says is learned from."""
        number = listed.number
        record = self._counts.get(number)
        if record is None:
            if len(self._counts) >= COUNTED_MAX:
                for oldest in list(islice(self._counts, COUNTED_MAX // 4)):
                    del self._counts[oldest]
            record = self._counts[number] = new_counts()
        count(record, attempt, self._store_time())
        book = self._view.book
        rollout = book.rollout
        running = rollout is not None and rollout.running
        if not (book.shadow or running) or (attempt.blame is Blame.US and not attempt.delivered):
            return
        passing = self._wake(number)
        if book.shadow and not flying.tracked.flight.probe:  # a probe's limit is another one
            self._judge(passing, flying, listed, attempt, book)
        if rollout is not None and running:
            _tally(passing, rollout).count(not attempt.delivered, book.treats(listed.place, self._view.process))
        self._unsaid.add(number)

    def turned(self, number: int, change: BreakerChange) -> None:
        """The endpoint's breaker went to another state."""
        cause = "" if change.cause is None else change.cause.value
        turn = Turn(self._store_time(), change.state.value, cause, change.level, change.until)
        passing = self._wake(number)
        passing.turns = (*passing.turns[1 - TURNS_MAX :], turn)

    def drop(self, numbers: Iterable[int]) -> None:
        """Endpoints that are gone, or belong to another owner now."""
        for number in numbers:
            self._counts.pop(number, None)
            self._passing.pop(number, None)
            self._old.pop(number, None)
            self._resting.pop(number, None)
            self._unsaid.discard(number)

    def value_of(self, number: int) -> Value | None:
        """What is kept of an endpoint that is ours."""
        return self._packed(number)

    def tell(self) -> None:
        """Have what a shadow or a rollout counted since the last call written soon, of `TOLD_AT_ONCE` endpoints at most: whoever
        judges it reads the store. Call about as often as it is judged."""
        for _ in range(min(TOLD_AT_ONCE, len(self._unsaid))):
            self._memory.touch(self._unsaid.pop())

    def rest(self) -> None:
        """Pack what had no attempt since the last call but one. Call every few minutes. O(active)."""
        for number, passing in self._old.items():
            if number not in self._passing:
                self._forget_past(passing)
                value = passing.to_value()
                if value:
                    self._resting[number] = json.dumps(value, separators=(",", ":")).encode()
        self._old, self._passing = self._passing, {}

    # -------------------------------------------------------------------------------------------------- helpers

    def _judge(self, passing: Passing, flying: Flying, listed: Listed, attempt: Attempt, book: PolicyBook) -> None:
        tried, shared = self._policies(flying, listed, book)
        count = passing.shadow
        if count is None or count.number != book.shadow_number:
            count = passing.shadow = ShadowCount(book.shadow_number)
            passing.breaker = None
        met = list(would_end(attempt, flying.policy, tried))
        ended = bool(met)
        in_flight = flying.tracked.limits.in_flight
        cap = listed.endpoint.concurrency or shared.cap
        if in_flight > cap and cap < listed.settings.cap:
            met.append(CAP)
        if HOST_CAP in book.shadow and self._host_in_flight(listed.settings.host) > tried.max_per_host:
            met.append(HOST_CAP)
        now = self._store_time()
        breaker = passing.breaker
        if breaker is None and (ended or self._breakers_tried):  # until then it has seen what the real one saw
            breaker = passing.breaker = ShadowBreaker(count.judged, now)
        if breaker is not None and breaker.saw(
            attempt, ended, tried, now, flying.tracked.limits.cap, in_flight, shared.breaker
        ):
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
            self._breakers_tried = any(of_breaker(name) for name in book.shadow)
        shared = self._tried[1].shared(listed.endpoint.tier, listed.place)
        own = listed.endpoint.limits
        policy = shared.policy.with_values(own) if own else shared.policy
        if LEARNABLE not in own:
            seconds = flying.tracked.limits.read_timeout_under(policy.read_timeout, shared.adapt)
            if seconds != policy.read_timeout:
                policy = policy.with_read_timeout(seconds)
        return policy, shared

    def _wake(self, number: int) -> Passing:
        passing = self._passing.get(number)
        if passing is None:
            passing = self._old.pop(number, None)
            if passing is None:
                packed = self._resting.pop(number, None)
                passing = Passing() if packed is None else Passing.from_value(json.loads(packed))
            self._passing[number] = passing
        return passing

    def _forget_past(self, passing: Passing) -> None:
        """Counts of a shadow or a rollout that is over concern nobody."""
        book = self._view.book
        if passing.shadow is not None and passing.shadow.number != book.shadow_number:
            passing.shadow = None
        if passing.tally is not None and (book.rollout is None or not book.rollout.same(passing.tally.mark)):
            passing.tally = None

    def _packed(self, number: int) -> Value | None:
        record, passing = self._counts.get(number), self._passing.get(number) or self._old.get(number)
        if passing is not None:
            value = passing.to_value()
        else:
            packed = self._resting.get(number)
            value = {} if packed is None else json.loads(packed)
        if record is not None:
            value["c"] = base64.b85encode(record).decode()
        elif not value:
            return None
        p99 = self._p99_of(number)
        if p99 is not None:
            value["p99"] = p99
        return value

    def _unpack(self, number: int, value: Value) -> None:
        if not isinstance(value, dict):
            return
        record = _record_of(value)
        if record is not None and number not in self._counts:
            self._counts[number] = record
        if number not in self._passing and number not in self._old:
            passing = Passing.from_value(value)
            self._forget_past(passing)
            rest = passing.to_value()
            if rest:
                self._resting[number] = json.dumps(rest, separators=(",", ":")).encode()


def _record_of(value: Mapping[str, Value]) -> bytearray | None:
    match value.get("c"):
        case str(packed):
            try:
                return checked(base64.b85decode(packed))
            except (ValueError, binascii.Error):
                return None  # another version's: it starts anew
        case _:
            return None


def _turn(stored: Value) -> Turn | None:
    match stored:
        case [int(at), str(state), str(cause), int(level), int(until)]:
            return Turn(at, state, cause, level, until)
        case _:
            return None


def _tally(passing: Passing, rollout: Rollout) -> Tally:
    tally = passing.tally
    if tally is None:
        tally = passing.tally = Tally(rollout.mark)
    elif tally.mark != rollout.mark:
        tally.enter(rollout.mark)
    return tally
