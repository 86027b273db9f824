"""Which hosts and endpoints get a metric label of their own: a bounded set whose members stay at least an hour, the rest is `other`.

Ten thousand destinations must not become ten thousand series, and a series that comes and goes breaks every rate over it.
`other` is its own accumulator and never falls: nothing is taken out of it when a host is promoted. Used by
`service.metrics`, which also keeps the sums without a host; not safe for threads, like everything on the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

MEMBERSHIP_MIN: Final = 3_600.0
"""Seconds a member keeps its label once it has one, and after its last attempt if nobody else deserves it more."""
REBALANCE_INTERVAL: Final = 60.0
"""Seconds between two looks at who deserves a label."""
CANDIDATES_PER_MEMBER: Final = 4
"""How many names without a label are counted, per label: bounds the memory whatever the number of hosts."""
REUSE_WINDOW: Final = 300.0
"""Seconds over which `connection_reuse_ratio` is taken."""
OTHER: Final = "other"
ALWAYS: Final = (
    "response",
    "pool_timeout",
    "connect_timeout",
    "write_timeout",
    "read_timeout",
    "transport_error",
    "deadline_exceeded",
)
"""Outcomes that a host has a counter for from the beginning. Prometheus sees no rise in a counter that appears with a value, and a
breaker may open within one scrape: the failures that an alert should tell of would be the first and the last."""

_SLOT: Final = 30.0
_SLOTS: Final = int(REUSE_WINDOW / _SLOT)


class ReuseWindow:
    """Connections opened and reused in the last five minutes, in slots of 30 s: the one that is being filled and ten whole ones."""

    __slots__ = ("_before", "_ends", "_opened", "_reused", "_slot")

    def __init__(self) -> None:
        self._slot = -1
        self._ends = 0.0
        """When the slot that is being filled is over."""
        self._opened = 0
        self._reused = 0
        self._before: deque[tuple[int, int, int]] = deque(maxlen=_SLOTS)
        """Slot, reused, opened; slots without a connection are not there."""

    def add(self, now: float, reused: bool) -> None:
        """Count one connection; `now` in monotonic seconds."""
        if now >= self._ends:
            self._turn(int(now // _SLOT))
        if reused:
            self._reused += 1
        else:
            self._opened += 1

    def ratio(self, now: float) -> float | None:
        """Reused over all in the window; None when there was none."""
        reused, opened = self.counts(now)
        return reused / (opened + reused) if opened + reused else None

    def counts(self, now: float) -> tuple[int, int]:
        """Reused and opened in the window."""
        oldest = int(now // _SLOT) - _SLOTS
        slots = [*self._before, (self._slot, self._reused, self._opened)]
        return (
            sum(reused for slot, reused, _ in slots if slot >= oldest),
            sum(opened for slot, _, opened in slots if slot >= oldest),
        )

    def _turn(self, slot: int) -> None:
        if self._slot >= 0:
            self._before.append((self._slot, self._reused, self._opened))
        self._slot, self._reused, self._opened = slot, 0, 0
        self._ends = (slot + 1) * _SLOT


class Series:
    """What is counted for one label, a host's or an endpoint's. Counters only rise."""

    __slots__ = ("active_at", "attempts", "joined_at", "name", "score", "touched")

    def __init__(self, name: str, joined_at: float) -> None:
        self.name = name
        self.joined_at = joined_at
        self.active_at = joined_at
        """When a rebalance last found attempts."""
        self.attempts: dict[str, int] = {}
        """By outcome."""
        self.touched = 0
        """Attempts since the last rebalance."""
        self.score = 0.0
        """Attempts per rebalance, halved each time: recent traffic counts, one quiet minute does not evict."""


class HostSeries(Series):
    """What is counted for a host."""

    __slots__ = ("opened", "reused", "shed", "window", "would_trip")

    def __init__(self, name: str, joined_at: float) -> None:
        super().__init__(name, joined_at)
        self.attempts = dict.fromkeys(ALWAYS, 0)
        self.opened = 0
        self.reused = 0
        self.shed = 0
        self.would_trip: dict[str, int] = {}
        """Attempts that a limit in shadow would have met, by limit."""
        self.window = ReuseWindow()


S = TypeVar("S", bound=Series)


class Labels(Generic[S]):
    """At most `size` names with series of their own, made by `make`, and `other`."""

    __slots__ = ("_candidates", "_make", "_members", "_rebalanced_at", "_size", "other")

    def __init__(self, size: int, now: float, make: Callable[[str, float], S]) -> None:
        self._size = size
        self._make = make
        self._members: dict[str, S] = {}
        self._candidates: dict[str, float] = {}
        self._rebalanced_at = now
        self.other: Final = make(OTHER, now)

    def of(self, name: str, now: float) -> S:
        """The series to count for `name`: O(1)."""
        series = self._members.get(name)
        if series is None:
            series = self._outsider(name, now)
        series.touched += 1
        return series

    def all(self) -> list[S]:
        """Members in order of name, then `other`."""
        return [*(self._members[name] for name in sorted(self._members)), self.other]

    def is_member(self, name: str) -> bool:
        """Whether it has a label now."""
        return name in self._members

    def seat(self, names: Iterable[str], now: float) -> None:
        """Give labels to these, as far as there is room: those of a predecessor, whose counters go on."""
        for name in names:
            if name != OTHER and name not in self._members and len(self._members) < self._size:
                self._members[name] = self._make(name, now)

    def rebalance(self, now: float) -> None:
        """Give the labels of those that went quiet to busier ones, and drop idle ones; called when metrics are read, acts once a
        minute."""
        if now - self._rebalanced_at < REBALANCE_INTERVAL:
            return
        self._rebalanced_at = now
        for series in self._members.values():
            if series.touched:
                series.active_at = now
            series.score = series.score / 2 + series.touched
            series.touched = 0
        for series in [one for one in self._members.values() if now - one.active_at >= MEMBERSHIP_MIN]:
            del self._members[series.name]
        leavers = sorted(
            (series for series in self._members.values() if now - series.joined_at >= MEMBERSHIP_MIN),
            key=lambda series: series.score,
        )
        joiners = sorted(self._candidates.items(), key=lambda item: item[1], reverse=True)
        free = self._size - len(self._members)
        for name, score in joiners[:free]:
            self._join(name, score, now)
        # Pair the quietest member with the busiest outsider for as long as the outsider is busier.
        for leaver, (name, score) in zip(leavers, joiners[free:], strict=False):
            if score <= leaver.score:
                break
            del self._members[leaver.name]
            self._join(name, score, now)
        self._candidates = {name: score / 2 for name, score in self._candidates.items() if score >= 1.0}

    def _join(self, name: str, score: float, now: float) -> None:
        del self._candidates[name]
        joiner = self._members[name] = self._make(name, now)
        joiner.score = score

    def _outsider(self, name: str, now: float) -> S:
        if len(self._members) < self._size:
            series = self._members[name] = self._make(name, now)
            return series
        candidates = self._candidates
        known = candidates.get(name)
        if known is not None:
            candidates[name] = known + 1.0
        elif len(candidates) < self._size * CANDIDATES_PER_MEMBER:
            candidates[name] = 1.0
        else:
            # Misra-Gries: every newcomer takes one from all, so a host with a true share of the traffic survives. Each
            # such pass is paid for by as many earlier increments: O(1) amortised.
            self._candidates = {name: score - 1.0 for name, score in candidates.items() if score > 1.0}
        return self.other
