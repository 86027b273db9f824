"""A store that counts: calls by name, and the rows read of each lane. It changes nothing; tests and benchmarks put it before any engine.

What it is for is the promise that a blocked endpoint costs nothing: whoever adds a loop that reads rows of an endpoint that
cannot take them finds out here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, cast

from gatepost.store.port import Store
from gatepost.store.rows import LaneRows, LaneStat, LaneWant, endpoint_of


class CountingStore:
    """Before `store`: give `as_store` to a dispatcher, look at the counts afterwards. Not thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()
        """By method."""
        self.reads: Counter[int] = Counter()
        """Times each lane was asked for rows."""
        self.rows: Counter[int] = Counter()
        """Rows that these reads returned, by lane."""
        self.probes: Counter[int] = Counter()
        """Times each lane's depth was asked for: at most the lane's head and a bounded count."""

    def __repr__(self) -> str:
        return f"CountingStore({self._store!r}, {self.calls.total()} calls, {self.rows.total()} rows)"

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._store, name)
        if not callable(target):
            return target

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return target(*arguments, **named)

        return call

    @property
    def as_store(self) -> Store:
        """The same, for the type checker."""
        return cast(Store, self)

    async def peek(self, wants: Sequence[LaneWant], now: int) -> Sequence[LaneRows]:
        """As the store's, counted by lane."""
        self.calls["peek"] += 1
        found = await self._store.peek(wants, now)
        for want, lane in zip(wants, found, strict=True):
            self.reads[want.lane] += 1
            self.rows[want.lane] += len(lane.rows)
        return found

    async def lane_stats(self, lanes: Collection[int], depth_cap: int = 10_000) -> Sequence[LaneStat]:
        """As the store's, counted by lane."""
        self.calls["lane_stats"] += 1
        self.probes.update(lanes)
        return await self._store.lane_stats(lanes, depth_cap)

    # -- by endpoint

    def rows_of(self, endpoint: int) -> int:
        """Rows read of all lanes of an endpoint (its number)."""
        return sum(count for lane, count in self.rows.items() if endpoint_of(lane) == endpoint)

    def reads_of(self, endpoint: int) -> int:
        """Times a lane of an endpoint was asked for rows."""
        return sum(count for lane, count in self.reads.items() if endpoint_of(lane) == endpoint)

    def probes_of(self, endpoint: int) -> int:
        """Times the depth of a lane of an endpoint was asked for."""
        return sum(count for lane, count in self.probes.items() if endpoint_of(lane) == endpoint)

    def forget(self) -> None:
        """Count from zero again."""
        for counter in (self.calls, self.reads, self.rows, self.probes):
            counter.clear()
