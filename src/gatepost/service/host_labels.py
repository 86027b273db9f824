"""Which hosts get a metric label of their own: a bounded set whose members stay at least an hour, everyone else is `other`.

Ten thousand destinations must not become ten thousand series, and a series that comes and goes breaks every rate over it.
`other` is its own accumulator and never falls: nothing is taken out of it when a host is promoted. Used by
`service.metrics`, which also keeps the sums without a host; not safe for threads, like everything on the loop.
"""

from __future__ import annotations

from typing import Final

MEMBERSHIP_MIN: Final = 3_600.0
"""Seconds a host keeps its label once it has one."""
REBALANCE_INTERVAL: Final = 60.0
"""Seconds between two looks at who deserves a label."""
CANDIDATES_PER_MEMBER: Final = 4
"""How many hosts without a label are counted, per label: bounds the memory whatever the number of hosts."""
REUSE_WINDOW: Final = 300.0
"""Seconds over which `connection_reuse_ratio` is taken."""
OTHER: Final = "other"

_SLOT: Final = 30.0
_SLOTS: Final = int(REUSE_WINDOW / _SLOT)
_RING: Final = _SLOTS + 1  # the slot being filled comes on top of ten whole ones


class ReuseWindow:
    """Connections opened and reused in the last five minutes, in slots of 30 s."""

    __slots__ = ("_ids", "_opened", "_reused")

    def __init__(self) -> None:
        self._ids = [-1] * _RING
        self._opened = [0] * _RING
        self._reused = [0] * _RING

    def add(self, now: float, reused: bool) -> None:
        """Count one connection; `now` in monotonic seconds."""
        slot = int(now / _SLOT)
        place = slot % _RING
        if self._ids[place] != slot:
            self._ids[place] = slot
            self._opened[place] = self._reused[place] = 0
        if reused:
            self._reused[place] += 1
        else:
            self._opened[place] += 1

    def ratio(self, now: float) -> float | None:
        """Reused over all in the window; None when there was none."""
        oldest = int(now / _SLOT) - _SLOTS
        opened = reused = 0
        for place, slot in enumerate(self._ids):
            if slot >= oldest:
                opened += self._opened[place]
                reused += self._reused[place]
        return reused / (opened + reused) if opened + reused else None


class HostSeries:
    """What is counted for one label. Counters only rise."""

    __slots__ = (
        "attempts",
        "host",
        "joined_at",
        "opened",
        "reused",
        "score",
        "shed",
        "touched",
        "window",
        "would_trip",
    )

    def __init__(self, host: str, joined_at: float) -> None:
        self.host = host
        self.joined_at = joined_at
        self.attempts: dict[str, int] = {}
        """By outcome."""
        self.opened = 0
        self.reused = 0
        self.shed = 0
        self.would_trip: dict[str, int] = {}
        """Attempts that a limit in shadow would have met, by limit."""
        self.window = ReuseWindow()
        self.touched = 0
        """Attempts since the last rebalance."""
        self.score = 0.0
        """Attempts per rebalance, halved each time: recent traffic counts, one quiet minute does not evict."""


class HostLabels:
    """At most `size` hosts with series of their own, and `other`."""

    __slots__ = ("_candidates", "_members", "_rebalanced_at", "_size", "other")

    def __init__(self, size: int, now: float) -> None:
        self._size = size
        self._members: dict[str, HostSeries] = {}
        self._candidates: dict[str, float] = {}
        self._rebalanced_at = now
        self.other = HostSeries(OTHER, now)

    def of(self, host: str, now: float) -> HostSeries:
        """The series to count for `host`: O(1)."""
        series = self._members.get(host)
        if series is None:
            series = self._outsider(host, now)
        series.touched += 1
        return series

    def all(self) -> list[HostSeries]:
        """Members in order of name, then `other`."""
        return [*(self._members[host] for host in sorted(self._members)), self.other]

    def is_member(self, host: str) -> bool:
        """Whether it has a label now."""
        return host in self._members

    def rebalance(self, now: float) -> None:
        """Give the labels of hosts that went quiet to busier ones; called when metrics are read, acts once a minute."""
        if now - self._rebalanced_at < REBALANCE_INTERVAL:
            return
        self._rebalanced_at = now
        for series in self._members.values():
            series.score = series.score / 2 + series.touched
            series.touched = 0
        leavers = sorted(
            (series for series in self._members.values() if now - series.joined_at >= MEMBERSHIP_MIN),
            key=lambda series: series.score,
        )
        joiners = sorted(self._candidates.items(), key=lambda item: item[1], reverse=True)
        # Pair the quietest member with the busiest outsider for as long as the outsider is busier.
        for leaver, (host, score) in zip(leavers, joiners, strict=False):
            if score <= leaver.score:
                break
            del self._members[leaver.host]
            del self._candidates[host]
            joiner = HostSeries(host, now)
            joiner.score = score
            self._members[host] = joiner
        self._candidates = {host: score / 2 for host, score in self._candidates.items() if score >= 1.0}

    def _outsider(self, host: str, now: float) -> HostSeries:
        if len(self._members) < self._size:
            series = self._members[host] = HostSeries(host, now)
            return series
        candidates = self._candidates
        known = candidates.get(host)
        if known is not None:
            candidates[host] = known + 1.0
        elif len(candidates) < self._size * CANDIDATES_PER_MEMBER:
            candidates[host] = 1.0
        else:
            # Misra-Gries: every newcomer takes one from all, so a host with a true share of the traffic survives. Each
            # such pass is paid for by as many earlier increments: O(1) amortised.
            self._candidates = {name: score - 1.0 for name, score in candidates.items() if score > 1.0}
        return self.other
