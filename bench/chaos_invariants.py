"""The queue's invariants I1 to I12, judged one by one from what a chaos run left behind.

Pure: rows of the database, the receiver's record and the list of faults come in as values, a finding per invariant goes out. What
processes cannot show (a counting store, stepped clocks) names the tests that do. Used by `bench.chaos`.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.chaos_overlaps import (
    NOBODY,
    UNSETTLED,
    AttemptLine,
    Fault,
    Hold,
    Met,
    Overlap,
    Start,
    met_at_receiver,
    met_in_log,
    met_without_part,
    misnumbered,
)
from gatepost.store.rows import PART_LEASE

STARTABLE: Final = PART_LEASE + 15.0
"""Seconds in which what is due starts after a fault: lease, taking the part, finding the row."""
STARVED: Final = 20.0
"""Times the median wait of all endpoints that one endpoint's median may be: they all get the same load."""
STARVED_SLACK: Final = 2.0
"""Seconds that are no starvation whatever they are a multiple of."""
ENOUGH: Final = 100
"""Events of an endpoint from which on its median says something: with fewer, one fault is most of its time."""
EXAMPLES: Final = 3


@dataclass(slots=True)
class Evidence:
    """What a run left behind. Deliveries are named `event id/endpoint`, events of the producer by their sequence number."""

    expected: set[str] = field(default_factory=set)
    """Every accepted delivery."""
    states: Mapping[str, Counter[str]] = field(default_factory=dict)
    """Rows of each delivery, by state: waiting, dead, cancelled, delivered."""
    successes: Mapping[str, Sequence[tuple[float, int]]] = field(default_factory=dict)
    """When and from which process the receiver got each delivery."""
    overlaps: Sequence[Overlap] = ()
    starts: Sequence[Start] = ()
    """What the receiver read, in time."""
    holds: Sequence[Hold] = ()
    """Who was seen to own the endpoints' parts, in time."""
    wall_minus_monotonic: float = 0.0
    """Seconds: the log of attempts is in UTC, all else is monotonic."""
    ordered: frozenset[int] = frozenset()
    """Endpoints whose events have an order."""
    out_of_order: int = 0
    chains: Mapping[tuple[int, int], Sequence[float]] = field(default_factory=dict)
    """First successes of each ordering key's events, in the order they were accepted."""
    waits: Mapping[int, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """By endpoint: when an event could start, and when it did first."""
    early: int = 0
    """Starts before their time."""
    timed: int = 0
    """Events that were published for later."""
    accepted: int = 0
    stored_events: int = 0
    """Events in the database that producers made."""
    keys_with_two_ids: int = 0
    attempts: Sequence[AttemptLine] = ()
    attempts_max: int = 0
    """Of the schedule."""
    replayed_at: int | None = None
    """When dead letters were replayed, UTC microseconds: their attempts are counted from one again."""
    unmarked: Sequence[int] = ()
    """Lanes with rows and without marker, each time that was looked for."""
    looks: int = 0
    left_waiting: int = 0
    """Rows that nobody delivered in the end."""
    replayed: int = 0
    replay_arrived: int = 0
    replay_dead: int = 0
    """Dead letters that were still there after their replay."""
    faults: Sequence[Fault] = ()
    budget: float = 12.0
    """Seconds of an attempt at most, connecting, writing and reading: `bench.chaos_worker`."""
    held: float = 0.0
    """Seconds that a breaker may have held what was due."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One invariant."""

    invariant: str
    promise: str
    looked_at: int
    """Things checked; 0: nothing here shows it."""
    broken: Sequence[str] = ()
    """What broke it, in words."""
    note: str = ""
    elsewhere: str = ""
    """Tests that show what a run cannot."""

    @property
    def held(self) -> bool:
        """Nothing broke it."""
        return not self.broken


def judge(evidence: Evidence) -> list[Finding]:
    """All twelve, in their order."""
    return [
        conservation(evidence),
        cap(evidence),
        order(evidence),
        starvation(evidence),
        Finding(
            "I5",
            "a blocked endpoint costs nothing",
            0,
            elsewhere="tests/fleet/test_blocked_endpoint.py, python -m bench.blocked",
        ),
        visibility(evidence),
        idempotency(evidence),
        fencing(evidence),
        attempts(evidence),
        wake_ups(evidence),
        replay(evidence),
        Finding(
            "I12",
            "stepped clocks change nothing",
            0,
            elsewhere="tests/simulation/test_store_clock.py, tests/faults/test_clock.py, tests/model/test_store_machine.py",
        ),
    ]


def conservation(evidence: Evidence) -> Finding:
    """I1: each accepted delivery is in exactly one state, and the receiver has what the database calls delivered."""
    broken = []
    for name in evidence.expected:
        rows = evidence.states.get(name, Counter())
        if rows.total() != 1:
            broken.append(f"{name} has {dict(rows) or 'no rows'}")
        elif rows["delivered"] and name not in evidence.successes:
            broken.append(f"{name} counts as delivered and never arrived")
        elif name in evidence.successes and rows["waiting"]:
            broken.append(f"{name} arrived and still waits")
    strangers = (evidence.states.keys() | evidence.successes.keys()) - evidence.expected
    broken += [f"{name} was never published" for name in strangers]
    return Finding("I1", "each delivery in one state, none lost", len(evidence.expected), broken)


def overlaps(evidence: Evidence) -> list[Met]:
    """Every overlap of two processes, and every start above a cap."""
    found = [
        *met_at_receiver(evidence.overlaps, evidence.holds, evidence.faults),
        *met_without_part(evidence.starts, evidence.holds, evidence.faults),
        *met_in_log(
            evidence.attempts,
            evidence.wall_minus_monotonic,
            evidence.faults,
            evidence.ordered,
            evidence.budget,
        ),
    ]
    return sorted(found, key=lambda one: one.at)


def cap(evidence: Evidence) -> Finding:
    """I2: never more in flight than the cap, and no two processes at one endpoint or delivery, but for what a process began that
    could not see that its time was over; at ordered endpoints the receiver never has two."""
    met = [one for one in overlaps(evidence) if one.kind != "without the part"]
    bad = [
        one
        for one in met
        if one.fault is None or (one.endpoint in evidence.ordered and one.kind != "same delivery twice")
    ]
    broken = [str(one) for one in bad]
    kinds = Counter(one.kind for one in met) - Counter(one.kind for one in bad)
    note = ""
    if kinds:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        note = f"overlaps of a frozen or silenced process with its successor, which delivery at least once allows: {counts}"
    return Finding("I2", "never above an endpoint's cap", sum(map(len, evidence.successes.values())), broken, note)


def order(evidence: Evidence) -> Finding:
    """I3: an ordering key's events succeed in their order, and none starts before the one ahead has succeeded."""
    broken = [f"{evidence.out_of_order} starts before the event ahead had succeeded"] if evidence.out_of_order else []
    for (endpoint, key), times in evidence.chains.items():
        if list(times) != sorted(times):
            broken.append(f"endpoint {endpoint}, key {key}: successes out of order")
    return Finding("I3", "ordered events in their order", sum(map(len, evidence.chains.values())), broken)


def starvation(evidence: Evidence) -> Finding:
    """I4: endpoints with the same load wait about the same, while nobody has to wait for a lease to end."""
    holds = [(fault.at, fault.until + UNSETTLED) for fault in evidence.faults if fault.blinds]
    calm = {
        endpoint: [
            started - ready
            for ready, started in waits
            if not any(ready < until and started > at for at, until in holds)
        ]
        for endpoint, waits in evidence.waits.items()
        if endpoint not in evidence.ordered
    }
    medians = {endpoint: statistics.median(waits) for endpoint, waits in calm.items() if len(waits) >= ENOUGH}
    if not medians:
        return Finding("I4", "no endpoint starves", 0, (), "too few events", "tests/model/test_scheduler_machine.py")
    middle = statistics.median(medians.values())
    bound = max(STARVED * max(middle, 0.0), STARVED_SLACK)
    broken = [f"endpoint {one}: median {wait:.2f} s of {middle:.2f} s" for one, wait in medians.items() if wait > bound]
    note = f"median wait {middle * 1e3:.0f} ms, the slowest endpoint's {max(medians.values()) * 1e3:.0f} ms"
    return Finding("I4", "no endpoint starves", len(medians), broken, note, "tests/model/test_scheduler_machine.py")


def visibility(evidence: Evidence) -> Finding:
    """I6: what is due starts soon after the last fault, and nothing is delivered again that no fault explains."""
    broken = []
    ends = sorted(fault.until if fault.blinds else fault.at for fault in evidence.faults)
    looked, longest = 0, 0.0
    for endpoint, waits in evidence.waits.items():
        for ready, started in waits:
            looked += 1
            since = max([ready, *(end for end in ends if ready < end < started)])
            longest = max(longest, started - since)
            if started - since > STARTABLE + evidence.held:
                broken.append(f"endpoint {endpoint}: started {started - since:.1f} s after it could")
    why: Counter[str] = Counter()
    for name, times in evidence.successes.items():
        for (at, pid), _again in itertools.pairwise(times):
            causes = [one for one in evidence.faults if one.explains(at, pid)]
            if not causes:
                broken.append(f"{name} was delivered again though nothing had struck process {pid}")
            else:  # what struck this process, and last, is the likeliest
                why[max(causes, key=lambda one: (one.pid == pid, one.at)).kind] += 1
    doubles = ", ".join(f"{count} by {kind}" for kind, count in sorted(why.items()))
    note = f"longest wait {longest:.1f} s; delivered again: {doubles or 'none'}"
    return Finding("I6", "startable again in time, never again without a fault", looked, broken, note)


def idempotency(evidence: Evidence) -> Finding:
    """I7: one key, one event."""
    broken = []
    if evidence.keys_with_two_ids:
        broken.append(f"{evidence.keys_with_two_ids} keys were answered with two ids")
    if evidence.stored_events != evidence.accepted:
        broken.append(f"{evidence.stored_events} events are stored for {evidence.accepted} keys")
    return Finding("I7", "one event for each idempotency key", evidence.accepted, broken)


def fencing(evidence: Evidence) -> Finding:
    """I8: who lost a part starts nothing for it, every owner has an epoch of its own, and nothing brings back what was delivered."""
    broken = [
        f"{name} was delivered and brought back"
        for name, rows in evidence.states.items()
        if rows["delivered"] and rows.total() > 1
    ]
    broken += misnumbered(evidence.holds)
    late = [one for one in overlaps(evidence) if one.kind == "without the part"]
    broken += [str(one) for one in late if one.fault is None]
    taken = sum(
        one.pid not in (before.pid, NOBODY)
        for before, one in itertools.pairwise(sorted(evidence.holds, key=lambda one: (one.endpoint, one.since)))
        if before.endpoint == one.endpoint
    )
    why = Counter(one.fault.kind for one in late if one.fault is not None)
    counts = ", ".join(f"{count} by {kind}" for kind, count in sorted(why.items()))
    note = f"endpoints changed hands {taken} times; starts after the part was lost: {counts or 'none'}"
    tests = (
        "gatepost.testing.contract_ownership, tests/model/test_store_machine.py, tests/fleet/test_postgres_faults.py"
    )
    looked = len(evidence.states) + len(evidence.starts)
    return Finding("I8", "results are stored once, and only by who owns", looked, broken, note, tests)


def attempts(evidence: Evidence) -> Finding:
    """I9: never before its time; in one process numbers rise; no more attempts than the schedule and the crashes allow."""
    broken = [f"{evidence.early} of {evidence.timed} events started before their time"] if evidence.early else []
    by_delivery: dict[int, list[AttemptLine]] = defaultdict(list)
    for line in evidence.attempts:
        if line.uses_up:
            by_delivery[line.delivery].append(line)
    crashes = len(evidence.faults)
    for delivery, lines in by_delivery.items():
        last: dict[str, int] = {}
        replayed = evidence.replayed_at
        for line in sorted(lines, key=lambda one: one.started_at):
            if replayed is not None and line.started_at >= replayed:
                last, replayed = {}, None
            if line.number <= last.get(line.worker, 0):
                broken.append(
                    f"delivery {delivery}: {line.worker} made attempt {line.number} after {last[line.worker]}"
                )
            last[line.worker] = line.number
        if len(lines) > evidence.attempts_max + crashes:
            broken.append(f"delivery {delivery}: {len(lines)} attempts")
    return Finding("I9", "not before its time, attempts counted up", len(evidence.attempts), broken)


def wake_ups(evidence: Evidence) -> Finding:
    """I10: every lane with rows is marked, at every look, and in the end nothing was forgotten."""
    broken = [f"lane {lane} had rows and no marker" for lane in evidence.unmarked]
    if evidence.left_waiting:
        broken.append(f"{evidence.left_waiting} rows waited for ever")
    return Finding("I10", "no lost wake-up", evidence.looks, broken)


def replay(evidence: Evidence) -> Finding:
    """I11: replayed dead letters arrive under their ids and are dead no more."""
    broken = []
    if evidence.replay_arrived != evidence.replayed:
        broken.append(f"{evidence.replay_arrived} of {evidence.replayed} replayed dead letters arrived under their ids")
    if evidence.replay_dead:
        broken.append(f"{evidence.replay_dead} dead letters stayed after their replay")
    return Finding("I11", "replays keep ids and leave nothing behind", evidence.replayed, broken)


def as_dicts(findings: Iterable[Finding]) -> list[dict[str, object]]:
    """For `--json`; of what broke an invariant, the count and some examples."""
    return [
        {
            "invariant": one.invariant,
            "promise": one.promise,
            "held": one.held,
            "looked_at": one.looked_at,
            "broken": len(one.broken),
            "examples": list(one.broken[:EXAMPLES]),
            "note": one.note,
            "elsewhere": one.elsewhere,
        }
        for one in findings
    ]
