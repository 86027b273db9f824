"""What must be done now and then: retention, deliveries whose window closed unseen, lanes that nobody told us of, attempts that hang.

Everything in small portions between which deliveries go on; it starts no attempt. Loops of `dispatch.dispatcher`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from gatepost.clock import Clock
from gatepost.delivery.decide import Why
from gatepost.dispatch.catalogue import Catalogue
from gatepost.dispatch.leases import LeaseKeeper
from gatepost.dispatch.notices import Notices
from gatepost.dispatch.scheduler import LaneScheduler
from gatepost.dispatch.store_time import StoreTime
from gatepost.dispatch.worker import Worker
from gatepost.errors import StoreError
from gatepost.store.port import DeliveryStore
from gatepost.store.rows import (
    SUB_BULK,
    DeadRow,
    DeliveryFilter,
    LaneWant,
    Retention,
    Row,
    RowKey,
    SettleBatch,
    endpoint_of,
    lane_of,
)

RETENTION_EVERY: Final = 60.0
RETENTION_PAUSE: Final = 0.05
"""Seconds between portions of rows: the store's thread belongs to deliveries."""
BUDGET_MIN: Final = 500
BUDGET_MAX: Final = 4_000
"""Rows in a portion. On SQLite 500 take 20 ms, of which a third are events: 2,400 events/s with the pause. 4,000 take 60 to 130 ms
in transactions of 250 (no result waits over 10 ms), which is 10,000 events/s: twice what one process takes in."""
PORTION_LONG: Final = 0.25
"""Seconds of a portion beyond which the next one is smaller: the disk is busy with something else."""
RECHECK_EVERY: Final = 15.0
"""Seconds after which a lane of a shared store is read although nothing was heard of it: so long a lost poke can delay a row."""
REDISCOVER_EVERY: Final = 60.0
"""Seconds between looks for lanes that have rows and are not known here: the belt beside the braces of hand-over."""
EXPIRE_EVERY: Final = 600.0
EXPIRE_ROWS: Final = 200
"""Rows of closed endpoints looked at in one portion. Their windows are days, so minutes do not matter."""
FOR_EVER_US: Final = (1 << 63) - 1
"""Later than any row is due."""
STUCK_AFTER: Final = 3.0
"""An attempt that lasts as many times its budget is a bug of ours, and is reported."""

_log = logging.getLogger("gatepost.dispatch")


def next_budget(budget: int, more: bool, seconds: float) -> int:
    """Rows of the next portion, after one of `budget` rows that took so long: twice as many while there is more to do, half as
    many when it was slow, and few again when all is done."""
    if not more:
        return BUDGET_MIN
    if seconds > PORTION_LONG:
        return max(BUDGET_MIN, budget // 2)
    return min(BUDGET_MAX, 2 * budget)


class Maintenance:
    """The chores, each a loop until cancelled."""

    def __init__(
        self,
        store: DeliveryStore,
        catalogue: Catalogue,
        scheduler: LaneScheduler,
        worker: Worker,
        leases: LeaseKeeper,
        notices: Notices,
        store_time: StoreTime,
        clock: Clock,
        retention: Retention,
        attempt_budget: float,
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._scheduler = scheduler
        self._worker = worker
        self._leases = leases
        self._notices = notices
        self._store_time = store_time
        self._clock = clock
        self._retention = retention
        self._attempt_budget = attempt_budget

    async def retain(self) -> None:
        """Delete what is past retention."""
        budget = BUDGET_MIN
        while True:
            more = False
            began = self._clock.monotonic()
            try:
                more = (await self._store.maintain(self._retention, self._store_time(), budget)).more
            except StoreError as error:
                self._notices.trouble("retention_failed", error)
            budget = next_budget(budget, more, self._clock.monotonic() - began)
            await asyncio.sleep(RETENTION_PAUSE if more else RETENTION_EVERY)

    async def rediscover(self) -> None:
        """Look for unknown lanes, for rows that other processes stored unheard, and for attempts that hang."""
        shared = self._store.capabilities.shared
        while True:
            await asyncio.sleep(RECHECK_EVERY if shared else REDISCOVER_EVERY)
            try:
                if shared:
                    await self._worker.recheck()
                else:
                    await self._worker.rediscover(list(self._leases.epochs))
            except StoreError as error:
                self._notices.trouble("store_unreadable", error)
            if self._worker.oldest_seconds > STUCK_AFTER * self._attempt_budget:
                self._notices.trouble("attempt_stuck", f"an attempt has lasted {self._worker.oldest_seconds:.0f} s")

    async def expire(self) -> None:
        """End what waits for endpoints that do not take it: dead letters after the window, nothing for endpoints that are gone."""
        while True:
            for number, lane in self._scheduler.closed_lanes():
                try:
                    await self._expire_lane(number, lane)
                except StoreError as error:
                    self._notices.trouble("store_unreadable", error)
            await asyncio.sleep(EXPIRE_EVERY)

    async def _expire_lane(self, number: int, lane: int) -> None:
        listed = self._catalogue.get(number)
        if listed is None:
            await self._clear(number)
            return
        now = self._store_time()
        low_water = 0
        while True:
            (found,) = await self._store.peek([LaneWant(lane, EXPIRE_ROWS, low_water)], now)
            over = [row for row in found.rows if listed.rules.backoff.window_end(row.born_at) < now]
            if not over or not self._scheduler.is_closed(number):
                return
            await self._bury(over, Why.WINDOW_OVER, now)
            if len(found.rows) < EXPIRE_ROWS:
                return
            low_water = found.rows[-1].due_at
            await asyncio.sleep(RETENTION_PAUSE)

    async def _clear(self, number: int) -> None:
        """End what still waits for an endpoint that is gone."""
        # Its bulk lane may hold dead letters that were replayed by a wider filter: they must not be lost by that.
        replayed = LaneWant(lane_of(number, SUB_BULK), EXPIRE_ROWS, 0)
        while (found := (await self._store.peek([replayed], FOR_EVER_US))[0]).rows:
            if not await self._bury(found.rows, Why.GONE, self._store_time()):
                return
            await asyncio.sleep(RETENTION_PAUSE)
        gone = DeliveryFilter(endpoint=number)
        while await self._store.cancel(gone, None, EXPIRE_ROWS):  # noqa: ASYNC110 - portions, with pauses between
            await asyncio.sleep(RETENTION_PAUSE)
        self._scheduler.unload(number, self._store_time())

    async def _bury(self, rows: Collection[Row], why: Why, now: int) -> int:
        epochs = {row.part: self._leases.epochs[row.part] for row in rows if row.part in self._leases.epochs}
        dead = [
            DeadRow(
                RowKey(row.lane, row.due_at, row.delivery_id),
                row.part,
                row.attempt,
                row.attempt,
                row.event_id,
                why,
                None,
                None,
                now,
            )
            for row in rows
            if row.part in epochs
        ]
        await self._store.settle(SettleBatch(epochs=epochs, dead=dead))
        _log.info("%d deliveries of %s ended unsent: %s", len(dead), {endpoint_of(r.key.lane) for r in dead}, why)
        return len(dead)
