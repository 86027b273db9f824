"""Event bodies in memory: one copy per event whatever its fan-out, loaded in batches, bounded in bytes.

A body stays until every delivery it was put for has held it once; a retry loads it again. Without room the oldest that nobody
holds goes first. It decides nothing; `intake` puts what was just published, attempts `hold` and `release`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from gatepost.store.port import DeliveryStore
from gatepost.store.rows import EventBody

BYTES_MAX: Final = 256 * 1_048_576
"""Bodies held and cached together."""
IDLE_BYTES_MAX: Final = 64 * 1_048_576
"""Of these, bodies that nobody holds: enough for a burst. The backlog of an endpoint that stands still belongs to the store."""
OVERHEAD: Final = 400
"""Bytes an entry costs beside its body."""
BATCH: Final = 64
"""Bodies in one load: with the largest payloads it overshoots the bound by a quarter, not by a multiple."""


class _Entry:
    __slots__ = ("body", "holders", "size", "wanted")

    def __init__(self, body: EventBody, wanted: int) -> None:
        self.body = body
        self.holders = 0
        self.wanted = wanted
        """Holds still to come."""
        self.size = len(body.body) + OVERHEAD


class _Want:
    """A body to be loaded, and how many wait for it."""

    __slots__ = ("future", "held", "waiters")

    def __init__(self, future: asyncio.Future[bool]) -> None:
        self.future = future
        """Whether the store had it."""
        self.waiters = 0
        self.held = False
        """It is here, and held once for each waiter."""


class Bodies:
    """Bodies by event id."""

    def __init__(self, store: DeliveryStore, bytes_max: int = BYTES_MAX) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._idle_bytes_max = min(IDLE_BYTES_MAX, bytes_max)
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._bytes = 0
        self._held_bytes = 0
        self._wants: dict[int, _Want] = {}
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def bytes(self) -> int:
        """Bytes of all bodies here."""
        return self._bytes

    @property
    def full(self) -> bool:
        """What attempts hold takes all the room: start no more until some end."""
        return self._held_bytes >= self._bytes_max

    def put(self, body: EventBody, wanted: int, *, held: int = 0) -> None:
        """Keep a body that so many deliveries will hold soon, `held` of them from now on."""
        entry = self._entries.get(body.event_id)
        if entry is None:
            entry = self._entries[body.event_id] = _Entry(body, wanted)
            self._bytes += entry.size
        if held:
            if not entry.holders:
                self._held_bytes += entry.size
            entry.holders += held
            entry.wanted -= held
        if self._overfull:
            self._evict()

    def hold_nowait(self, event_id: int) -> EventBody | None:
        """The body if it is here; then exactly one `release` must follow."""
        entry = self._entries.get(event_id)
        if entry is None:
            return None
        if not entry.holders:
            self._held_bytes += entry.size
        entry.holders += 1
        entry.wanted -= 1
        return entry.body

    async def hold(self, event_id: int) -> EventBody | None:
        """The body, loaded when it is not here; None when the store has it no more. `release` follows unless None.

        Raises `StoreError` when the store does not answer.
        """
        body = self.hold_nowait(event_id)
        if body is not None:
            return body
        want = self._wants.get(event_id)
        if want is None:
            want = self._wants[event_id] = _Want(asyncio.get_running_loop().create_future())
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._load_wanted(), name="gatepost load bodies")
        want.waiters += 1
        try:
            found = await asyncio.shield(want.future)
        except BaseException:
            want.waiters -= 1
            if want.held:
                self.release(event_id)
            raise
        return self._entries[event_id].body if found else None

    def release(self, event_id: int) -> None:
        """End of one hold."""
        entry = self._entries.get(event_id)
        assert entry is not None, "a held body stays"
        entry.holders -= 1
        if not entry.holders:
            self._held_bytes -= entry.size
            if entry.wanted <= 0:
                del self._entries[event_id]
                self._bytes -= entry.size
            elif self._overfull:
                self._evict()
            if not self.full:
                self._room.set()

    @property
    def _overfull(self) -> bool:
        return self._bytes > self._bytes_max or self._bytes - self._held_bytes > self._idle_bytes_max

    def _evict(self) -> None:
        """Drop the oldest that nobody holds. Held ones are passed over and moved to the young end, so that each is seen once."""
        for _ in range(len(self._entries)):
            if not self._overfull:
                return
            event_id, entry = next(iter(self._entries.items()))
            if entry.holders:
                self._entries.move_to_end(event_id)
            else:
                del self._entries[event_id]
                self._bytes -= entry.size

    async def _load_wanted(self) -> None:
        """Load in batches until nobody wants anything: what is asked for meanwhile goes into the next batch."""
        try:
            while self._wants:
                if self.full:
                    self._room.clear()
                    await self._room.wait()
                batch = {event_id: self._wants[event_id] for event_id in list(self._wants)[:BATCH]}
                try:
                    found = await self._store.load_events(list(batch))
                except Exception as error:  # noqa: BLE001 - it belongs to those who asked, and is raised there
                    for event_id, want in batch.items():
                        del self._wants[event_id]
                        want.future.set_exception(error)
                        want.future.exception()  # whoever asked may have been cancelled
                else:
                    for event_id, want in batch.items():
                        del self._wants[event_id]
                        self._answer(event_id, want, found.get(event_id))
        finally:
            self._task = None

    def _answer(self, event_id: int, want: _Want, body: EventBody | None) -> None:
        """Held for each of those who wait before they run, so that nothing can push it out in between."""
        if body is not None and want.waiters:
            self.put(body, want.waiters, held=want.waiters)
            want.held = True
        want.future.set_result(body is not None)

    async def aclose(self) -> None:
        """Stop loading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
