"""A model of one endpoint under limits, on virtual time: arrivals, a law of response times, and what the limits make of them.

It runs the real `EndpointLimits` (or any learner with the same methods) and no network; hours of traffic take a second.
Simulations of
limits in the tests and in `bench.limits` use it, and so may anybody who wonders what a rule would do to an endpoint of theirs.
"""

from __future__ import annotations

import heapq
import math
import random  # noqa: TID251 - the model's dice, seeded by the caller
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from gatepost.admission.breaker import BreakerState
from gatepost.admission.endpoint_limits import (
    Admit,
    BreakerChange,
    EndpointLimits,
    Flight,
    Hold,
    LimitChange,
    LimitRules,
    TimeoutChange,
)
from gatepost.admission.evidence import Facts, Sign

START_US = 1_800_000_000_000_000
"""A date in 2027: stored hours and seconds are taken from it."""

Law = Callable[[float, random.Random], "Answer"]
"""Seconds since the start and dice to what the endpoint does with a request that comes then."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the endpoint does with one request."""

    seconds: float
    """Until it answers; infinite: never."""
    status: int = 200


class Limits(Protocol):
    """What the model needs of the limits under test."""

    @property
    def read_timeout(self) -> float: ...

    def verdict(self, now: int) -> Admit | Hold: ...

    def started(self, now: int) -> Flight: ...

    def attempt_timeout(self, flight: Flight) -> float: ...

    def finished(self, flight: Flight, facts: Facts, now: int, u: float) -> tuple[LimitChange, ...]: ...

    def age(self, now: int, u: float) -> tuple[LimitChange, ...]: ...

    def next_age_at(self) -> int | None: ...


@dataclass(slots=True)
class Outcome:
    """What a run came to; counts begin after the warm-up."""

    ok: int = 0
    failed: int = 0
    """Timeouts and error answers, probes included."""
    probes: int = 0
    failed_probes: int = 0
    slot_seconds: float = 0.0
    in_flight_max: int = 0
    waiting: int = 0
    """Arrivals that were never started."""
    read_timeout: float = 0.0
    """At the end."""
    read_timeout_max: float = 0.0
    opened_at: list[float] = field(default_factory=list)
    """Seconds since the end of the warm-up at which the breaker opened."""
    closed_at: list[float] = field(default_factory=list)
    raised: int = 0
    """How often the read timeout rose."""


class EndpointModel:
    """One endpoint. `law` answers requests; arrivals come evenly at `rate` a second, or at random with `poisson`."""

    def __init__(
        self, law: Law, *, rate: float, seed: int, limits: Limits | None = None, poisson: bool = False
    ) -> None:
        self._law = law
        self._gap = 1.0 / rate
        self._poisson = poisson
        self._dice = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self.limits: Limits = EndpointLimits(LimitRules()) if limits is None else limits
        self._events: list[tuple[float, int, str, object]] = []
        self._sequence = 0
        self._queue: deque[float] = deque()
        self._wake_at = math.inf
        self._in_flight = 0
        self.result = Outcome()

    def run(self, seconds: float, *, warm_up: float = 0.0) -> Outcome:
        """`warm_up` seconds that are not counted, then `seconds` that are; the law's time starts with the latter."""
        self._push(self._dice.random() * self._gap - warm_up, "arrival", None)
        counting = False
        while self._events:
            at, _, kind, what = heapq.heappop(self._events)
            if at >= seconds:
                break
            if not counting and at >= 0:
                counting = True
                self.result = Outcome(read_timeout_max=self.limits.read_timeout)
            now = START_US + round(at * 1e6)
            if kind == "arrival":
                self._queue.append(at)
                gap = self._dice.expovariate(1 / self._gap) if self._poisson else self._gap
                self._push(at + gap, "arrival", None)
            elif kind == "end":
                assert isinstance(what, tuple)
                self._end(at, now, *what)
            else:
                self._wake_at = math.inf
                self._note(at, self.limits.age(now, self._dice.random()))
            self._start(at, now)
        result = self.result
        result.waiting = len(self._queue)
        result.read_timeout = self.limits.read_timeout
        # What is under way has held its slot until now.
        for at, _, kind, what in self._events:
            if kind == "end" and at >= seconds:
                assert isinstance(what, tuple)
                result.slot_seconds += seconds - max(0.0, what[1])
        return result

    def _start(self, at: float, now: int) -> None:
        while self._queue:
            verdict = self.limits.verdict(now)
            if isinstance(verdict, Hold):
                self._wake(START_US, verdict.until)
                break
            if self._in_flight >= verdict.cap:
                break
            self._queue.popleft()
            flight = self.limits.started(now)
            limit = self.limits.attempt_timeout(flight)
            answer = self._law(at, self._dice)
            self._in_flight += 1
            result = self.result
            result.probes += flight.probe
            result.in_flight_max = max(result.in_flight_max, self._in_flight)
            self._push(at + min(answer.seconds, limit), "end", (flight, at, answer, limit))
        due = self.limits.next_age_at()
        if due is not None:
            self._wake(START_US, due)

    def _end(self, at: float, now: int, flight: Flight, began: float, answer: Answer, limit: float) -> None:
        result = self.result
        self._in_flight -= 1
        result.slot_seconds += at - max(0.0, began) if at >= 0 else 0.0
        if answer.seconds > limit:
            facts = Facts(Sign.TIMEOUT, limit, False, True)
        elif answer.status < 300:
            facts = Facts(Sign.OK, answer.seconds, True, False)
        else:
            facts = Facts(Sign.BUSY if answer.status == 429 else Sign.FAILED, answer.seconds, False, False)
        result.ok += facts.success
        result.failed += not facts.success
        result.failed_probes += flight.probe and not facts.success
        self._note(at, self.limits.finished(flight, facts, now, self._dice.random()))

    def _note(self, at: float, changes: tuple[LimitChange, ...]) -> None:
        result = self.result
        for change in changes:
            if isinstance(change, BreakerChange):
                if change.state is BreakerState.OPEN:
                    result.opened_at.append(at)
                elif change.state is BreakerState.RAMPING:
                    result.closed_at.append(at)
            elif isinstance(change, TimeoutChange):
                result.read_timeout_max = max(result.read_timeout_max, change.after)
                result.raised += change.after > change.before

    def _wake(self, start: int, due: int) -> None:
        at = (due - start) / 1e6
        if at < self._wake_at - 1e-9:
            self._wake_at = at
            self._push(at, "wake", None)

    def _push(self, at: float, kind: str, what: object) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at, self._sequence, kind, what))


# ------------------------------------------------------------------------------------------------------- laws


def lognormal(median: float, sigma: float = 0.4) -> Law:
    """Always answers, with times spread as those of real services are."""
    return lambda _, dice: Answer(median * math.exp(dice.gauss(0.0, sigma)))


def uniform(low: float, high: float) -> Law:
    """Always answers, within `low` to `high` seconds."""
    return lambda _, dice: Answer(dice.uniform(low, high))


def dead() -> Law:
    """Never answers."""
    return lambda _, __: Answer(math.inf)


def constant(seconds: float, status: int = 200) -> Law:
    """Always the same."""
    answer = Answer(seconds, status)
    return lambda _, __: answer


def mixed(share: float, rare: Law, usual: Law) -> Law:
    """`share` of the requests meet `rare`."""
    return lambda at, dice: (rare if dice.random() < share else usual)(at, dice)


def switched(before: Law, after: Law, *, until: float = math.inf) -> Law:
    """`before` up to the start, `after` from then on, and `before` again from `until`."""
    return lambda at, dice: (after if 0 <= at < until else before)(at, dice)


def drifting(usual: Law, times: float, over: float) -> Law:
    """`usual`, growing to `times` as slow within `over` seconds."""

    def law(at: float, dice: random.Random) -> Answer:
        answer = usual(at, dice)
        return Answer(answer.seconds * (1 + (times - 1) * min(1.0, max(0.0, at) / over)), answer.status)

    return law


USUAL: Final = lognormal(0.2)
"""p99 about half a second."""
SCENARIOS: Final[Mapping[str, Law]] = {
    "latency steps to 4-5 s": switched(lognormal(0.25), uniform(4.0, 5.0)),
    "dead for ever": switched(USUAL, dead()),
    "dead for 10 min": switched(USUAL, dead(), until=600.0),
    "3 % of calls at 4-6 s": switched(USUAL, mixed(0.03, uniform(4.0, 6.0), USUAL)),
    "always 200 after 25 s": switched(USUAL, constant(25.0)),
    "25 % hang for 10 min": switched(USUAL, mixed(0.25, dead(), USUAL), until=600.0),
    "5 % hang for ever": switched(USUAL, mixed(0.05, dead(), USUAL)),
    "drifts to 20 x in 1 h": drifting(USUAL, 20.0, 3_600.0),
}
"""What happens to an endpoint that was well, at second 0; each has led a naive learner astray."""
