"""How many slots a fleet needs, what an endpoint that answers nobody takes from it, and how long a backlog lasts. Pure.

`plan` puts a load and a configuration through the formulas of `admission.queueing`; the checks beside it compare limits that
must fit each other. It measures nothing and changes nothing: `gatepost capacity` shows it, `admission.capacity_sim` tries it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from gatepost.admission.queueing import Wait, erlangs, slots_for, staffing, survive_loss, wait
from gatepost.errors import ConfigurationError

HEADROOM: Final = (0.3, 0.5)
"""The rule of thumb beside ours: this share above the steady state. Right near 100 slots, too little for 10, too much for 1,000."""
WAIT_GOAL: Final = 0.01
"""Share of arrivals that may wait, by which the queues of single processes are sized."""
PROCESS_RATE: Final = 1_000.0
"""Deliveries a second of one process on one core, all records kept: what one endpoint's owner manages too. Measure your own with
`gatepost bench pipeline`."""
PROCESS_BUSY: Final = 0.7
"""Share of `PROCESS_RATE` planned for: above it the event loop is late for more and more of its work."""
SECONDS_MAX: Final = 86_400.0
PROCESSES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What arrives. Times in seconds, rates a second.

    Raises `ConfigurationError` for what cannot be, saying what to write.
    """

    rate: float
    """Deliveries a second over the whole fleet, the bad ones included."""
    mean: float
    """How long a healthy attempt holds its slot, on average. The mean, not a percentile: the tail enters by `cv2`."""
    cv2: float = 1.0
    """Squared coefficient of variation of that time: 1 exponential, 4 to 10 with a long tail."""
    bad_share: float = 0.0
    """Share of `rate` for endpoints that hold each attempt for `bad_timeout`."""
    bad_timeout: float = 0.0
    """How long: the read timeout for one that never answers, its own time for one that is slow but succeeds in it."""
    bad_endpoints: int = 1
    """How many endpoints those are: a cap holds for each."""
    bad_attempts: float = 1.0
    """Attempts that each bad delivery makes in the end; see `attempts_each`."""

    def __post_init__(self) -> None:
        for name in ("rate", "mean"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0.0):
                raise ConfigurationError(f"{name}={value!r}: write a number above 0")
        for name in ("mean", "bad_timeout"):
            value = getattr(self, name)
            if not 0.0 <= value <= SECONDS_MAX:
                raise ConfigurationError(f"{name}={value!r}: write seconds, at most {SECONDS_MAX:g}")
        if not 0.0 <= self.cv2 <= 1_000.0:
            raise ConfigurationError(f"cv2={self.cv2!r}: write 0 to 1000; 1 is exponential")
        if not 0.0 <= self.bad_share <= 1.0:
            raise ConfigurationError(
                f"bad_share={self.bad_share!r}: write a share from 0 to 1, for example 0.02 for 2 %"
            )
        if self.bad_share > 0.0 and self.bad_timeout == 0.0:
            raise ConfigurationError(
                "bad_share needs bad_timeout: write how many seconds such an attempt holds its slot"
            )
        if self.bad_endpoints < 1:
            raise ConfigurationError(f"bad_endpoints={self.bad_endpoints}: write 1 or more")
        if not 1.0 <= self.bad_attempts <= 100.0:
            raise ConfigurationError(f"bad_attempts={self.bad_attempts!r}: write 1 to 100")

    @property
    def healthy_rate(self) -> float:
        """Healthy deliveries a second."""
        return self.rate * (1.0 - self.bad_share)

    @property
    def bad_rate(self) -> float:
        """Bad attempts a second, repetitions included."""
        return self.rate * self.bad_share * self.bad_attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnQueues:
    """Sizes when each process has its own part of the queue, as in a fleet of Gatepost: nobody helps a full neighbour."""

    processes: int
    slots_each: int
    """At most `WAIT_GOAL` of arrivals wait."""
    slots_each_one_lost: int
    """The same when the others have taken over what one process did."""
    slots: int
    """Over all processes, with one that may be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a load does to a number of slots. Infinite times stand for a queue that grows for ever."""

    slots: int
    """Those given, else those recommended."""
    offered_erlangs: float
    """Slots that would be busy at once if there were enough: healthy and bad, after the cap."""
    healthy_slots: float
    bad_slots: float
    cap_binds: bool
    """Whether the cap holds the bad endpoints down: they then hold exactly `bad_slots`, always, and the rest is shed."""
    stable: bool
    """Whether the load is below the slots."""
    p_wait: float
    """Share of healthy deliveries that wait for a slot."""
    mean_wait: float
    p99_wait: float
    throughput: float
    """Attempts a second that get through, healthy and bad."""
    throughput_healthy: float
    bad_through: float
    """Bad attempts a second that get a slot."""
    slots_recommended: int
    """Load + 3 √load, and what is needed to lose one process: the size of one pool that all processes share."""
    headroom: tuple[int, int]
    """The rule of 30 to 50 % on the same load."""
    processes_recommended: int
    """By CPU, and one more that may be lost."""
    own_queues: OwnQueues


def plan(
    load: Load,
    *,
    cap: int | None = None,
    slots: int | None = None,
    processes: int | None = None,
    process_rate: float = PROCESS_RATE,
) -> Plan:
    """The figures for `load`. `cap` is the limit of attempts in flight for each endpoint; `slots` counts all processes.

    Without `slots` the recommended ones are looked at. Without `processes` `slots_recommended` spares none, and `own_queues` is
    for `processes_recommended`. Raises `ConfigurationError` for impossible numbers.
    """
    _check_count("cap", cap)
    _check_count("slots", slots)
    _check_count("processes", processes, PROCESSES_MAX)
    if not (math.isfinite(process_rate) and process_rate > 0.0):
        raise ConfigurationError(f"process_rate={process_rate!r}: write deliveries a second that one process manages")
    healthy = erlangs(load.healthy_rate, load.mean)
    wanted = erlangs(load.bad_rate, load.bad_timeout)
    binds = cap is not None and wanted > cap * load.bad_endpoints
    bad = float(cap * load.bad_endpoints) if binds and cap is not None else wanted
    offered = healthy + bad
    # What a binding cap leaves does not vary, so it needs no square root of its own.
    enough = staffing(healthy) + bad if binds else staffing(offered)
    recommended = math.ceil(survive_loss(enough, processes or 1) - 1e-9)
    given = recommended if slots is None else slots
    stable, met, through = _meet(load, given, healthy, bad, binds)
    bad_through = _bad_through(load, bad, binds, through)
    count = math.ceil(load.rate / (process_rate * PROCESS_BUSY)) + 1
    return Plan(
        slots=given,
        offered_erlangs=offered,
        healthy_slots=healthy,
        bad_slots=bad,
        cap_binds=binds,
        stable=stable,
        p_wait=met.p_wait,
        mean_wait=met.mean,
        p99_wait=met.p99,
        throughput=load.healthy_rate * through + bad_through,
        throughput_healthy=load.healthy_rate * through,
        bad_through=bad_through,
        slots_recommended=recommended,
        headroom=(math.ceil(offered * (1.0 + HEADROOM[0]) - 1e-9), math.ceil(offered * (1.0 + HEADROOM[1]) - 1e-9)),
        processes_recommended=count,
        own_queues=_own_queues(load, healthy, bad, binds, processes or count),
    )


def own_queues(load: float, processes: int, *, held: int = 0, p_wait: float = WAIT_GOAL) -> OwnQueues:
    """Slots for each process when `load` Erlangs are spread evenly over `processes` queues, and `held` slots of each are gone."""
    each = slots_for(load / processes, p_wait) + held
    lost = slots_for(load / (processes - 1), p_wait) + held if processes > 1 else each
    return OwnQueues(processes=processes, slots_each=each, slots_each_one_lost=lost, slots=lost * processes)


def timeout_that_fits(load: Load, slots: int) -> float:
    """The longest `bad_timeout` with which `slots` are just enough without any cap; 0 where none is, infinite without bad load."""
    free = slots - erlangs(load.healthy_rate, load.mean)
    if load.bad_rate == 0.0:
        return math.inf if free > 0.0 else 0.0
    return max(0.0, free / load.bad_rate)


def drain_seconds(
    load: Load, planned: Plan, backlog: float, *, processes: int | None = None, process_rate: float = PROCESS_RATE
) -> float:
    """Seconds until `backlog` healthy deliveries are done while the load goes on; infinite when nothing is left for them.

    With `processes` the CPU limits it too.
    """
    if planned.cap_binds:
        most = (planned.slots - planned.bad_slots) / load.mean
    else:
        most = planned.slots / planned.offered_erlangs * load.healthy_rate
    if processes is not None:
        most = min(most, processes * process_rate)
    spare = most - load.healthy_rate
    return backlog / spare if spare > 0.0 else math.inf


def attempts_each(fails: float, attempts: int) -> float:
    """Attempts that a delivery makes on average when each fails with probability `fails` and `attempts` are allowed."""
    if not 0.0 <= fails <= 1.0:
        raise ConfigurationError(f"fails={fails!r}: write a share from 0 to 1")
    if attempts < 1:
        raise ConfigurationError(f"attempts={attempts}: write 1 or more")
    return float(attempts) if fails == 1.0 else (1.0 - fails**attempts) / (1.0 - fails)


@dataclass(frozen=True, slots=True)
class PoolFit:
    """Workers against connections."""

    busy: int
    """Workers that have a connection."""
    waiting: int
    """Workers that wait for one."""
    connections: int
    """Connections that can be of use at once: the host caps together, at most `max_connections`."""


def fit_pool(workers: int, hosts: int, *, max_per_host: int = 8, max_connections: int = 200) -> PoolFit:
    """How many of `workers` can be at work when they are spread over `hosts` at once: what counts is the hosts in flight."""
    for name, value in (
        ("workers", workers),
        ("hosts", hosts),
        ("max_per_host", max_per_host),
        ("max_connections", max_connections),
    ):
        _check_count(name, value)
    connections = min(hosts * max_per_host, max_connections)
    busy = min(workers, connections)
    return PoolFit(busy, workers - busy, connections)


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a time fits into another."""

    fits: bool
    needed: float
    allowed: float


def fit_visibility(budget: float, visibility: float) -> Fit:
    """An attempt must end before the queue gives its work to somebody else: strictly below, or it is attempted twice at once."""
    return Fit(budget < visibility, budget, visibility)


def fit_window(budget: float, attempts: int, window: float, waits: float = 0.0) -> Fit:
    """All attempts at their longest, and the waits between them, must fit into the time promised for the delivery."""
    needed = budget * attempts + waits
    return Fit(needed <= window, needed, window)


def _own_queues(load: Load, healthy: float, bad: float, binds: bool, processes: int) -> OwnQueues:
    if not binds:
        return own_queues(healthy + bad, processes)
    # An endpoint has one owner, and any process may be it: each needs room for its share of the capped ones, rounded up.
    most = math.ceil(load.bad_endpoints / max(1, processes - 1))
    return own_queues(healthy, processes, held=math.ceil(bad / load.bad_endpoints) * most)


def _meet(load: Load, slots: int, healthy: float, bad: float, binds: bool) -> tuple[bool, Wait, float]:
    """Whether the slots suffice, what a healthy delivery waits, and the share of them that gets through."""
    if binds:
        left = slots - bad
        if healthy < left:
            return True, wait(healthy, int(left), load.mean, load.cv2), 1.0
        return False, Wait(1.0, math.inf, math.inf), max(0.0, left) / healthy if healthy else 0.0
    offered = healthy + bad
    if offered >= slots:
        return False, Wait(1.0, math.inf, math.inf), slots / offered
    arrivals = load.healthy_rate + load.bad_rate
    mean = offered / arrivals
    second = (load.healthy_rate * load.mean**2 * (1.0 + load.cv2) + load.bad_rate * load.bad_timeout**2) / arrivals
    return True, wait(offered, slots, mean, second / mean**2 - 1.0), 1.0


def _bad_through(load: Load, bad: float, binds: bool, through: float) -> float:
    if load.bad_timeout == 0.0:
        return 0.0
    return bad / load.bad_timeout if binds else load.bad_rate * through


def _check_count(name: str, value: int | None, most: int = 10_000_000) -> None:
    if value is not None and not 1 <= value <= most:
        raise ConfigurationError(f"{name}={value}: write 1 to {most:,}")
