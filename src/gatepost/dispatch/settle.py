"""Carries results of attempts to the store: many in one transaction, again and again until it takes them.

It decides nothing about a delivery. What it holds is lost with the process, and then attempted again: the rows are still in
the store. Filled by `dispatch.attempt`; tells the worker what was stored and which parts were fenced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gatepost.dispatch.round import Start
from gatepost.errors import StoreError
from gatepost.store.port import DeliveryStore
from gatepost.store.rows import AttemptRow, DeadRow, DoneRow, RetryRow, SettleBatch

BATCH: Final = 100
"""Results that are worth a transaction at once; beyond it a row's share of the cost hardly falls."""
BATCH_MAX: Final = 500
"""Results in one transaction: more would hold the store's thread for over 10 ms."""
LINGER: Final = 0.005
"""Seconds a result waits for company."""
BACKOFF_FIRST: Final = 0.1
BACKOFF_MAX: Final = 5.0
"""Seconds between tries while the store fails."""

_log = logging.getLogger("gatepost.dispatch")


class Result:
    """What one attempt came to, for the store. `start` is None for a line of the log alone."""

    __slots__ = ("change", "due", "epoch", "log", "rejected", "start")

    def __init__(
        self,
        start: Start | None,
        epoch: int,
        change: DoneRow | RetryRow | DeadRow | None,
        log: AttemptRow | None,
        due: int | None = None,
    ) -> None:
        self.start = start
        self.epoch = epoch
        """Of the row's part, when the attempt began."""
        self.change = change
        self.log = log
        self.due = due
        """When to try again, if so; in a FIFO lane the row itself keeps its due time."""
        self.rejected = False
        """No store can take it; the row stays where it is and must not start again in this process."""


class SettleBuffer:
    """Results on their way. `on_stored` hears the results of each transaction, `on_fenced` the parts that were lost, with
    the epochs that were refused.
    """

    def __init__(
        self,
        store: DeliveryStore,
        on_stored: Callable[[Sequence[Result]], None],
        on_fenced: Callable[[Mapping[int, int]], None],
        on_trouble: Callable[[str, BaseException], None],
    ) -> None:
        self._store = store
        self._on_stored = on_stored
        self._on_fenced = on_fenced
        self._on_trouble = on_trouble
        self._results: list[Result] = []
        self._idle: list[tuple[int, int]] = []
        self._idle_epochs: Mapping[int, int] = {}
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._busy = False
        self._empty = asyncio.Event()
        self._empty.set()
        self.failing = False
        """The last try failed."""
        self.stored_count = 0

    def __len__(self) -> int:
        return len(self._results)

    def add(self, result: Result) -> None:
        """Take a result; it is stored within `LINGER` when the store is well."""
        self._results.append(result)
        self._empty.clear()
        if len(self._results) >= BATCH:
            self._wake.set()
        elif self._timer is None and not self._busy:
            self._timer = asyncio.get_running_loop().call_later(LINGER, self._wake.set)

    def add_idle(self, lanes: Sequence[tuple[int, int]], epochs: Mapping[int, int]) -> None:
        """Markers of empty lanes, to go with the next transaction."""
        self._idle.extend(lanes)
        self._idle_epochs = dict(epochs)
        self._empty.clear()
        self._wake.set()

    async def run(self) -> None:
        """Store what comes in until cancelled. What a cancelled call was storing is kept, since storing again is harmless."""
        if self._results or self._idle:
            self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._busy = True
            try:
                while self._results or self._idle:
                    await self._store_some()
            finally:
                self._busy = False
            self._empty.set()

    async def flush(self) -> None:
        """Until everything added so far is stored; `run` must be running."""
        self._wake.set()
        await self._empty.wait()

    async def _store_some(self) -> None:
        results, idle = self._next_results(), list(self._idle)
        backoff = BACKOFF_FIRST
        while True:
            try:
                fenced = await self._store_batch(results, idle)
            except StoreError as error:
                self._failed(error, backoff)
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, BACKOFF_MAX)
            except Exception as error:  # noqa: BLE001 - one row that no store can take must not hold back all others
                self._failed(error, backoff)
                fenced = await self._store_each(results)
                break
            else:
                break
        self.failing = False
        del self._idle[: len(idle)]
        del self._results[: len(results)]
        self.stored_count += len(results)
        self._on_stored(results)
        if fenced:
            self._on_fenced(fenced)

    def _next_results(self) -> list[Result]:
        """The oldest results; one batch holds one epoch for each part."""
        epochs: dict[int, int] = {}
        for count, result in enumerate(self._results[:BATCH_MAX]):
            if result.start is not None:
                part = result.start.row.part
                if epochs.setdefault(part, result.epoch) != result.epoch:
                    return self._results[:count]
        return self._results[:BATCH_MAX]

    async def _store_batch(self, results: Sequence[Result], idle: Sequence[tuple[int, int]]) -> Mapping[int, int]:
        done: list[DoneRow] = []
        retry: list[RetryRow] = []
        dead: list[DeadRow] = []
        log: list[AttemptRow] = []
        epochs: dict[int, int] = {part: self._idle_epochs[part] for part, _ in idle if part in self._idle_epochs}
        for result in results:
            if result.log is not None:
                log.append(result.log)
            if result.start is None:
                continue
            epochs[result.start.row.part] = result.epoch
            change = result.change
            if isinstance(change, DoneRow):
                done.append(change)
            elif isinstance(change, RetryRow):
                retry.append(change)
            elif isinstance(change, DeadRow):
                dead.append(change)
        batch = SettleBatch(epochs=epochs, done=done, retry=retry, dead=dead, attempts=log, idle=idle)
        return {part: epochs[part] for part in (await self._store.settle(batch)).fenced}

    async def _store_each(self, results: Sequence[Result]) -> Mapping[int, int]:
        """One by one, leaving out what cannot be stored: its row stays where it is and is attempted after a restart."""
        fenced: dict[int, int] = {}
        for result in results:
            try:
                fenced.update(await self._store_batch([result], ()))
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001
                _log.exception("a result cannot be stored and is left out: %r", result.change)
                result.rejected = True
                self._on_trouble("settle_rejected", error)
        return fenced

    def _failed(self, error: Exception, backoff: float) -> None:
        if not self.failing:
            self._on_trouble("settle_failed", error)
        self.failing = True
        _log.warning("%d results wait to be stored, next try in %g s: %s", len(self._results), backoff, error)
