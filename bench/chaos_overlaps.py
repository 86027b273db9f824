"""Who was at work where another process owned the part, or beside another process: each overlap of a chaos run, with its reason.

A process that was frozen, or that hears nothing, cannot see that its time is over: what it had begun may meet its successor, and the
receiver may get a delivery twice. That is allowed (at least once); but at ordered endpoints nothing may be in flight beside anything,
so who takes their part waits for an attempt's budget first. Pure: used by `bench.chaos_invariants`.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gatepost.store.rows import PART_LEASE

UNSETTLED: Final = 5.0
"""Seconds in which a result that was not stored may be: batches wait milliseconds, a store that does not answer longer."""
AFTERMATH: Final = PART_LEASE + 10.0
"""Seconds after a fault in which it explains what happened: until the lease of whoever it struck is over and taken."""
SEEN_LATE: Final = 0.5
"""Seconds by which the receiver may note a start later than it was made: it shares its loop with the publishers."""

ALL: Final = 0
"""Instead of a process: a fault that strikes everybody."""
NOBODY: Final = 0
"""Instead of a process: a sender that had ended before it was looked up, or a part without owner."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was done to the fleet; times in monotonic seconds."""

    kind: str
    """kill, restart, freeze, cut or silence."""
    at: float
    until: float
    pid: int
    """Whom it struck; `ALL` for the database."""

    @property
    def blinds(self) -> bool:
        """Whom it strikes lives on and cannot see that its leases end."""
        return self.kind in ("freeze", "silence")

    def explains(self, at: float, pid: int) -> bool:
        """Whether it may have kept the result of an attempt that succeeded `at` in process `pid` from being stored in time."""
        struck = self.pid in (ALL, pid)
        return struck and self.at - UNSETTLED <= at <= self.until + (0.0 if self.kind == "kill" else UNSETTLED)

    def explains_start(self, at: float, pid: int) -> bool:
        """Whether process `pid` may have sent something `at` for a part it had lost."""
        return self.pid in (ALL, pid) and self.at <= at <= (self.until if self.blinds else self.at) + UNSETTLED


@dataclass(frozen=True, slots=True)
class Overlap:
    """A start at an endpoint where another process had something in flight, or that had its cap in flight."""

    endpoint: int
    at: float
    pid: int
    others: tuple[int, ...]
    """The processes of what was in flight."""
    over_cap: bool = True


@dataclass(frozen=True, slots=True)
class Start:
    """A request that the receiver read."""

    endpoint: int
    at: float
    pid: int


@dataclass(frozen=True, slots=True)
class Hold:
    """What was seen of a part: from `since` to `until` it was surely this process's, under this epoch."""

    endpoint: int
    epoch: int
    pid: int
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class AttemptLine:
    """An attempt in the database's log."""

    delivery: int
    number: int
    started_at: int
    """UTC microseconds."""
    worker: str
    uses_up: bool
    """Whether it counts: not what ended by our own fault."""
    elapsed: int = 0
    """Microseconds."""
    endpoint: int = -1

    @property
    def pid(self) -> int:
        """Workers are named after their process."""
        return int(self.worker.partition("-")[0])


@dataclass(frozen=True, slots=True)
class Met:
    """An overlap in words; `fault` None: nothing explains it."""

    kind: str
    """above the cap, beside another process, without the part, or same delivery twice."""
    endpoint: int
    at: float
    words: str
    fault: Fault | None

    def __str__(self) -> str:
        why = "nothing explains it" if self.fault is None else f"{self.fault.kind} of process {self.fault.pid}"
        return f"endpoint {self.endpoint}, {self.kind}: {self.words} ({why})"


def met_at_receiver(overlaps: Iterable[Overlap], holds: Sequence[Hold], faults: Sequence[Fault]) -> list[Met]:
    """Starts above the cap, or beside another process."""
    found = []
    for one in overlaps:
        strangers = {pid for pid in one.others if pid not in (one.pid, NOBODY)}
        fault = next(
            (
                fault
                for fault in faults
                if strangers
                and fault.blinds
                and fault.pid in (one.pid, *strangers)
                and fault.at <= one.at <= fault.until + AFTERMATH
            ),
            None,
        )
        kind = "above the cap" if one.over_cap else "beside another process"
        beside = ", ".join(_named(pid, one.endpoint, one.at, holds) for pid in sorted(strangers or set(one.others)))
        words = f"{_named(one.pid, one.endpoint, one.at, holds)} started beside {len(one.others)} of {beside}"
        found.append(Met(kind, one.endpoint, one.at, words, fault))
    return found


def met_without_part(starts: Iterable[Start], holds: Sequence[Hold], faults: Sequence[Fault]) -> list[Met]:
    """Starts by a process while another one, or nobody, was seen to own the part."""
    found = []
    by_endpoint: dict[int, list[Hold]] = defaultdict(list)
    for hold in holds:
        by_endpoint[hold.endpoint].append(hold)
    for start in starts:
        known = by_endpoint[start.endpoint]
        place = bisect.bisect_right(known, start.at - SEEN_LATE, key=lambda hold: hold.since) - 1
        if place < 0 or start.pid == NOBODY:
            continue
        hold = known[place]
        if hold.pid == start.pid or start.at > hold.until:
            continue
        fault = next((fault for fault in faults if fault.explains_start(start.at, start.pid)), None)
        owner = "nobody" if hold.pid == NOBODY else f"process {hold.pid}"
        words = f"{_named(start.pid, start.endpoint, start.at, holds)} started while {owner} held epoch {hold.epoch}"
        found.append(Met("without the part", start.endpoint, start.at, words, fault))
    return found


def met_in_log(
    attempts: Iterable[AttemptLine],
    wall_minus_monotonic: float,
    faults: Sequence[Fault],
    ordered: Collection[int],
    budget: float,
) -> list[Met]:
    """Attempts of one delivery that two processes had in flight at the same time, by their own log.

    Who is frozen takes an attempt to be in flight until it goes on, however long ago the receiver answered. At `ordered` endpoints
    the successor must have let an attempt's `budget` (seconds) pass, so that nobody can be at work on the first one any more.
    """
    found = []
    by_delivery: dict[int, list[AttemptLine]] = defaultdict(list)
    for line in attempts:
        by_delivery[line.delivery].append(line)
    for lines in by_delivery.values():
        lines.sort(key=lambda line: line.started_at)
        for one, other in itertools.pairwise(lines):
            if one.worker == other.worker or other.started_at >= one.started_at + one.elapsed:
                continue
            at = other.started_at / 1e6 - wall_minus_monotonic
            causes = [
                fault
                for fault in faults
                if fault.blinds and fault.pid in (one.pid, other.pid) and fault.at <= at <= fault.until + AFTERMATH
            ]
            causes.sort(key=lambda fault: fault.pid != one.pid)  # who had the first one is the likelier cause
            waited = (other.started_at - one.started_at) / 1e6
            allowed = bool(causes) and (one.endpoint not in ordered or waited >= budget)
            words = (
                f"process {one.pid} had attempt {one.number} in flight for {one.elapsed / 1e6:.1f} s, process {other.pid} began "
                f"attempt {other.number} after {waited:.1f} s"
            )
            found.append(Met("same delivery twice", one.endpoint, at, words, causes[0] if allowed else None))
    return found


def misnumbered(holds: Sequence[Hold]) -> list[str]:
    """Parts that changed hands without a new epoch, or whose epoch fell."""
    broken = []
    last: dict[int, Hold] = {}
    for hold in sorted(holds, key=lambda one: one.since):
        before = last.get(hold.endpoint)
        last[hold.endpoint] = hold
        if before is None:
            continue
        taken = hold.pid not in (before.pid, NOBODY)
        if hold.epoch < before.epoch or (taken and hold.epoch == before.epoch):
            broken.append(
                f"endpoint {hold.endpoint}: process {before.pid} had epoch {before.epoch}, then {hold.pid} epoch {hold.epoch}"
            )
    return broken


def _named(pid: int, endpoint: int, at: float, holds: Sequence[Hold]) -> str:
    """A process with the epoch under which it had the endpoint's part last."""
    epochs = [hold.epoch for hold in holds if hold.endpoint == endpoint and hold.pid == pid and hold.since <= at]
    return f"process {pid} (epoch {epochs[-1]})" if epochs else f"process {pid}"
