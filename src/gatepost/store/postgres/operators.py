"""The operators' half of the store on PostgreSQL: look, cancel, replay, purge, erase, measure, maintain. Base class of `PostgresStore`.

Rows are found first, then changed by key in a transaction of their own, so that nothing is locked while something is looked for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gatepost.store.paging import check_filter, check_limit
from gatepost.store.postgres import operate, sizes, views
from gatepost.store.postgres.erase import Eraser
from gatepost.store.postgres.pool import Pool
from gatepost.store.postgres.retention import Chores
from gatepost.store.postgres.time import StoreClock
from gatepost.store.postgres.views import NEWEST, DeadKey
from gatepost.store.rows import (
    AttemptRow,
    Backlog,
    DeadFilter,
    DeadLetter,
    DeliveryFilter,
    DeliveryInfo,
    LaneStat,
    MaintenanceReport,
    Page,
    Retention,
    StoreTotals,
    TenantPurge,
)

CANCEL_TRIES: Final = 5
"""A single delivery that moves on (a retry is settled) between being found and being cancelled is looked for again."""
WALKS_KEPT: Final = 100
"""Callers loop until nothing is left: where each filter's walk has come is remembered, so that none begins anew each time."""
WALK_KEPT_FOR: Final = 10.0
"""Seconds after which a caller is not taken to be the same one that goes on: what came behind an abandoned walk is seen again."""


class PostgresOperators:
    """What operators and metrics ask of the queue."""

    def __init__(self, pool: Pool, clock: StoreClock) -> None:
        self._pool = pool
        self._clock = clock
        self._chores = Chores(pool)
        self._eraser = Eraser(pool)
        self._walks: OrderedDict[tuple[str, Any], tuple[Any, float]] = OrderedDict()
        """Position, and when it was reached."""

    # -- looking

    async def deliveries(self, where: DeliveryFilter, after: str | None, limit: int) -> Page[DeliveryInfo]:
        return await self._pool.run(lambda connection: views.deliveries(connection, where, after, limit))

    async def delivery(self, delivery_id: int) -> DeliveryInfo | None:
        found = await self._pool.run(lambda connection: views.show(connection, [delivery_id]))
        return found[0] if found else None

    async def attempts_of(self, delivery_id: int) -> Sequence[AttemptRow]:
        return await self._pool.run(lambda connection: views.attempts_of(connection, delivery_id))

    async def newest_attempts(self, endpoint: int, limit: int) -> Sequence[AttemptRow]:
        return await self._pool.run(lambda connection: views.newest_attempts(connection, endpoint, limit))

    async def backlogs(self, endpoints: Collection[int], depth_cap: int = 1_000) -> Mapping[int, Backlog]:
        return await self._pool.run(lambda connection: sizes.backlogs(connection, endpoints, depth_cap))

    async def dead_letters(self, where: DeadFilter, after: str | None, limit: int) -> Page[DeadLetter]:
        return await self._pool.run(lambda connection: views.dead_letters(connection, where, after, limit))

    async def dead_letter(self, delivery_id: int) -> DeadLetter | None:
        return await self._pool.run(lambda connection: views.dead_letter(connection, delivery_id))

    # -- changing

    async def cancel(self, where: DeliveryFilter, delivery_id: int | None, limit: int) -> Sequence[int]:
        check_limit(limit)
        if where.state not in (None, "waiting"):
            return ()
        where = replace(where, state="waiting")
        if delivery_id is not None:
            return await self._cancel_one(where, delivery_id)
        check_filter(where)
        walk = ("cancel", where)
        before: int | None = self._position(walk, NEWEST)
        while before is not None:
            start = before
            found = await self._pool.run(lambda connection, start=start: views.find(connection, where, start, limit))  # type: ignore[misc]  # bound now
            cancelled = await self._cancel(found.ids)
            before = found.ids[-1] if found.ids and found.resume is None else found.resume
            if cancelled:
                self._remember(walk, before)
                return cancelled
        return ()

    async def _cancel_one(self, where: DeliveryFilter, delivery_id: int) -> Sequence[int]:
        for _ in range(CANCEL_TRIES):
            ids = await self._pool.run(lambda connection: views.matching(connection, where, [delivery_id]))
            if not ids or (cancelled := await self._cancel(ids)):
                return cancelled if ids else ()
        return ()

    async def _cancel(self, ids: Sequence[int]) -> Sequence[int]:
        if not ids:
            return ()
        return await self._pool.run(lambda connection: operate.cancel(connection, ids, self._clock.wall_us()))

    async def replay(
        self, where: DeadFilter, first_due: int, spacing_us: int, limit: int
    ) -> Sequence[tuple[int, int, int]]:
        while keys := await self._next_dead("replay", where, limit):
            chosen = keys
            moved = await self._pool.run(
                lambda connection, keys=chosen: operate.replay(connection, keys, first_due, spacing_us)  # type: ignore[misc]
            )
            if moved:
                return moved
        return ()

    async def purge_dead(self, where: DeadFilter, limit: int) -> int:
        while keys := await self._next_dead("purge", where, limit):
            chosen = keys
            purged = await self._pool.run(lambda connection, keys=chosen: operate.purge_dead(connection, keys))  # type: ignore[misc]
            if purged:
                return purged
        return 0

    async def _next_dead(self, what: str, where: DeadFilter, limit: int) -> Sequence[DeadKey]:
        """The next dead letters that match, oldest first; none when the walk is over, and then it begins anew."""
        check_limit(limit)
        walk = (what, where)
        after: DeadKey | None = self._position(walk, None)
        while True:
            start = after
            keys, after = await self._pool.run(
                lambda connection, start=start: views.dead_keys(connection, where, start, limit)  # type: ignore[misc]
            )
            if keys:
                if after is not None:
                    self._remember(walk, after)
                return keys
            if after is None:
                return ()

    async def purge_tenant(self, tenant: str, limit: int) -> TenantPurge:
        return await self._eraser.run(tenant, limit)

    # -- measuring

    async def lane_stats(self, lanes: Collection[int], depth_cap: int = 10_000) -> Sequence[LaneStat]:
        return await self._pool.run(lambda connection: sizes.lane_stats(connection, lanes, depth_cap))

    async def backlog_of(self, tenant: str) -> int:
        return await self._pool.run(lambda connection: sizes.backlog_of(connection, tenant))

    async def totals(self) -> StoreTotals:
        return await self._pool.run(sizes.totals)

    # -- maintaining

    async def maintain(self, retention: Retention, now: int, budget: int) -> MaintenanceReport:
        return await self._chores.run(retention, now, budget)

    def _position(self, walk: tuple[str, Any], beginning: Any) -> Any:
        position, reached_at = self._walks.pop(walk, (beginning, 0.0))
        return position if self._clock.monotonic() - reached_at < WALK_KEPT_FOR else beginning

    def _remember(self, walk: tuple[str, Any], position: Any) -> None:
        if position is not None:
            self._walks[walk] = position, self._clock.monotonic()
            while len(self._walks) > WALKS_KEPT:
                self._walks.popitem(last=False)
