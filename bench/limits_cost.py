"""What limits that learn cost: bytes of each endpoint that is tracked, and microseconds of each attempt that is observed.

Everything is in it that a dispatcher keeps of an endpoint beyond its record: breaker, response times, cap, alerts, host, phase
times, outcomes by hour, a shadow's counts and a rollout's. Part of `python -m bench.limits`; `--tracked N` runs it alone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from bench.machine import rss_bytes
from gatepost.admission.breaker import BreakerRules
from gatepost.admission.endpoint_limits import EndpointLimits, LimitRules
from gatepost.admission.evidence import Facts, Sign
from gatepost.admission.limits import Limits
from gatepost.admission.policy_book import PolicyBook
from gatepost.admission.rollout import RolloutPlan
from gatepost.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.ids import ENDPOINT, encode_id
from gatepost.delivery.outcome import End, Evidence, classify
from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.policy_layers import LayerValue
from gatepost.delivery.records import Endpoint
from gatepost.dispatch.catalogue import Catalogue, Listed
from gatepost.dispatch.endpoint_memory import EndpointMemory
from gatepost.dispatch.limits import DispatchLimits, LimitSettings
from gatepost.dispatch.notices import Notices
from gatepost.dispatch.policy_view import PolicyView
from gatepost.dispatch.policy_watch import PolicyWatch
from gatepost.store.memory import MemoryStore
from gatepost.testing.endpoint_model import START_US
from gatepost.wire.egress import Denied, EgressPolicy, Target
from gatepost.wire.egress_rules import EgressRules
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason

IN_FLIGHT: Final = 3
TAUGHT: Final = 400
"""Attempts of each endpoint, over a day: every hour has some, one in seven failed, one in ten opened a connection."""
RATE_US: Final = 86_400_000_000 // TAUGHT
POOL_OF_ATTEMPTS: Final = 4_000


class Quiet:
    """Is told that limits moved, and does nothing."""

    def endpoint_changed(self, number: int) -> None:
        """Nothing waits."""

    def host_changed(self, host: str) -> None:
        """Nothing waits."""


class Alike(MemoryStore):
    """A store that keeps one state, which it gives for every endpoint."""

    state = b""

    async def load_states(self, endpoints: Collection[int]) -> dict[int, bytes]:
        """The state, so many times."""
        return dict.fromkeys(endpoints, self.state)

    async def save_states(self, states: Mapping[int, bytes]) -> None:
        """Keep the last of them."""
        self.state = list(states.values())[-1]


class Tracked:
    """What a dispatcher has for the limits of its endpoints, without its scheduler. `watched`: a shadow and a rollout run."""

    def __init__(self, *, watched: bool) -> None:
        self.now = START_US
        view = PolicyView(ClientPolicy(), "m.0-1")
        if watched:
            tried = {"read_timeout": LayerValue(8.0, by="bench", at=1, why="bench")}
            view.use(PolicyBook().begin(tried, RolloutPlan(), "bench", "bench", START_US, None))
        self._view = view
        self._rules = EgressRules(EgressPolicy())
        store, notices = Alike(), Notices(None, self.time)
        self.memory = memory = EndpointMemory(store, notices, lambda number: True)
        self.store = store
        catalogue = Catalogue(store, view, self.check_url, SYSTEM_CLOCK, lambda number: None, lambda before, now: None)
        settings = LimitSettings()
        self.limits = DispatchLimits(settings, catalogue, memory, notices, self.time, SYSTEM_ENTROPY, 2_048)
        self.limits.steered = Quiet()
        self.watch = PolicyWatch(view, memory, self.limits.p99, self.time, lambda host: 1)

    def time(self) -> int:
        """UTC microseconds."""
        return self.now

    def check_url(self, url: str) -> Target | Denied:
        """By the built-in rules."""
        return self._rules.check_url(url)

    def listed(self, number: int) -> Listed:
        """An endpoint on a host of its own."""
        endpoint = Endpoint(
            encode_id(ENDPOINT, 1 << 40 | number), "tenant", f"https://hooks{number}.example{number}.com/"
        )
        return Listed(endpoint, self._view, self.check_url)

    def attempt(self, listed: Listed, attempt: Attempt) -> None:
        """One attempt from its start to its end."""
        flying = self.limits.begin(listed)
        self.watch.ended(flying, listed, attempt)
        self.limits.end(flying, listed, attempt)


def attempts(seed: int) -> list[Attempt]:
    """Attempts as an ordinary endpoint's."""
    dice = random.Random(seed)
    made = []
    for number in range(POOL_OF_ATTEMPTS):
        seconds = dice.lognormvariate(-1.6, 0.5)
        phases = {
            Phase.POOL: dice.uniform(0.0, 0.001),
            Phase.WRITE: dice.uniform(0.0001, 0.001),
            Phase.WAIT: seconds,
            Phase.READ: dice.uniform(0.0001, 0.002),
        }
        fresh = number % 10 == 0
        if fresh:
            phases |= {
                Phase.DNS: dice.uniform(0.0005, 0.03),
                Phase.CONNECT: dice.uniform(0.01, 0.06),
                Phase.TLS: dice.uniform(0.02, 0.15),
            }
        status = 500 if number % 7 == 0 else 200
        verdict = classify(Evidence(End.RESPONSE, Phase.READ, Reason.OK, status, True))
        made.append(
            Attempt(
                verdict.outcome,
                verdict.delivered,
                verdict.phase,
                verdict.reason,
                verdict.retry_safety,
                verdict.blame,
                status,
                "https://hooks.example:443",
                "192.0.2.1:443",
                seconds,
                phases,
                not fresh,
                False,
                600,
                (),
                b"",
                None,
                0.0,
            )
        )
    return made


# ------------------------------------------------------------------------------------------------ microseconds


def observation_cost(rounds: int) -> dict[str, float]:
    """Microseconds per attempt: the endpoint's limits alone; with its host and the watch over the fleet; and all that a dispatcher
    does around it (`whole_us`), also while a shadow and a rollout run (`watched_us`). The best of `rounds`."""
    dice = random.Random(1)
    facts = [Facts(Sign.OK, dice.lognormvariate(-1.6, 0.4), True, False) for _ in range(POOL_OF_ATTEMPTS)]
    endpoint, limits, rules = EndpointLimits(LimitRules()), Limits(BreakerRules()), LimitRules()
    tracked = {watched: Tracked(watched=watched) for watched in (False, True)}
    ordinary = [attempt for attempt in attempts(1) if attempt.delivered]
    now = START_US
    alone, together, begin = [], [], []
    whole: dict[bool, list[float]] = {False: [], True: []}
    observed: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        flights = []
        began = time.perf_counter()
        for _ in facts:
            flights.append(endpoint.started(now))
            now += 1_000
        begin.append((time.perf_counter() - began) / len(facts))
        for flight in flights:
            endpoint.finished(flight, facts[0], now, 0.5)
        spent = 0.0
        for one in facts:
            now += 10_000
            flight = endpoint.started(now)
            began = time.perf_counter()
            endpoint.finished(flight, one, now + 200_000, 0.5)
            spent += time.perf_counter() - began
        alone.append((spent - _empty(len(facts))) / len(facts))
        began = time.perf_counter()
        for one in facts:
            now += 10_000
            limits.finished(limits.started(7, "https://hooks.example", rules, now), one, now + 200_000, 0.5)
        together.append((time.perf_counter() - began) / len(facts))
        for watched, one_tracked in tracked.items():
            listed = one_tracked.listed(7)
            began = time.perf_counter()
            for attempt in ordinary:
                one_tracked.now += 10_000
                one_tracked.attempt(listed, attempt)
            whole[watched].append((time.perf_counter() - began) / len(ordinary))
            spent = 0.0
            for attempt in ordinary:
                one_tracked.now += 10_000
                flying = one_tracked.limits.begin(listed)
                began = time.perf_counter()
                one_tracked.watch.ended(flying, listed, attempt)
                one_tracked.limits.end(flying, listed, attempt)
                spent += time.perf_counter() - began
            observed[watched].append((spent - _empty(len(ordinary))) / len(ordinary))
    return {
        "started_us": min(begin) * 1e6,
        "finished_us": min(alone) * 1e6,
        "whole_attempt_with_host_us": min(together) * 1e6,
        "whole_us": min(whole[False]) * 1e6,
        "watched_us": min(whole[True]) * 1e6,
        "observation_us": min(observed[False]) * 1e6,
        "watched_observation_us": min(observed[True]) * 1e6,
    }


def _empty(times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        time.perf_counter()
    return time.perf_counter() - began


# -------------------------------------------------------------------------------------------------------- bytes


def tracked_cost(endpoints: int) -> dict[str, float]:
    """Of so many endpoints, each on a host of its own and with a day behind it: bytes of memory as the system counts them, idle, and
    active with three attempts in flight, and active while a shadow and a rollout run; and microseconds for an attempt of any of them.

    Each in a process of its own, so that nothing else's memory is taken for theirs, or reused by them.
    """
    cost: dict[str, float] = {"endpoints": float(endpoints)}
    for what in MEASURED:
        ended = subprocess.run(
            [sys.executable, "-m", "bench.limits", "--tracked", str(endpoints), "--what", what],
            check=True,
            capture_output=True,
            text=True,
        )
        cost |= json.loads(ended.stdout)
    return cost


def measure_tracked(endpoints: int, what: str) -> dict[str, float]:
    """What `tracked_cost` reports, measured here."""
    return MEASURED[what](endpoints)


def _teach(tracked: Tracked) -> None:
    """Let the store have the state of an endpoint with a day behind it."""
    listed, day = tracked.listed(0), attempts(2)
    for attempt in day[:TAUGHT]:
        tracked.now += RATE_US
        tracked.attempt(listed, attempt)
    tracked.memory.touch(listed.number)
    asyncio.run(tracked.memory.save())


def _load(tracked: Tracked, records: Sequence[Listed]) -> None:
    asyncio.run(tracked.memory.load([listed.number for listed in records]))


def _idle(endpoints: int) -> dict[str, float]:
    tracked = Tracked(watched=False)
    _teach(tracked)
    records = [tracked.listed(number) for number in range(1, endpoints + 1)]  # what is registered is no part of it
    before = _resident()
    _load(tracked, records)
    idle = (_resident() - before) / endpoints
    assert tracked.limits.statistics().idle >= endpoints
    return {"idle_bytes": idle}


def _active(endpoints: int, *, watched: bool) -> float:
    tracked = Tracked(watched=watched)
    _teach(tracked)
    some = attempts(3)
    records = [tracked.listed(number) for number in range(1, endpoints + 1)]
    before = _resident()
    for number, listed in enumerate(records, 1):
        if number % 1_000 == 1:
            _load(tracked, records[number - 1 : number + 999])
        for place in range(5):
            tracked.now += 1
            tracked.attempt(listed, some[(number + place) % len(some)])
        for _ in range(IN_FLIGHT):
            tracked.now += 1
            tracked.limits.begin(listed)
    active = (_resident() - before) / endpoints
    assert tracked.limits.statistics().active >= endpoints
    return active


def _working(endpoints: int) -> dict[str, float]:
    return {"active_bytes": _active(endpoints, watched=False)}


def _rolling(endpoints: int) -> dict[str, float]:
    return {"watched_bytes": _active(endpoints, watched=True)}


def _any(endpoints: int) -> dict[str, float]:
    tracked, dice = Tracked(watched=False), random.Random(1)
    _teach(tracked)
    listed = [tracked.listed(number) for number in range(1, endpoints + 1)]
    _load(tracked, listed)
    some = attempts(3)
    for one in listed:
        tracked.attempt(one, some[1])
    order = [dice.randrange(endpoints) for _ in range(20_000)]
    began = time.perf_counter()
    for place in order:
        tracked.now += 1_000
        tracked.attempt(listed[place], some[place % len(some)])
    return {"any_attempt_us": (time.perf_counter() - began) / len(order) * 1e6}


MEASURED: Final[dict[str, Callable[[int], dict[str, float]]]] = {
    "idle": _idle,
    "active": _working,
    "watched": _rolling,
    "any": _any,
}


def _resident() -> int:
    gc.collect()
    return rss_bytes()
