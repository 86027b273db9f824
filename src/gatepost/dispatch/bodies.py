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
OVERHEAD: Final = 400
"""Bytes an entry costs beside its body."""


class _Entry:
    __slots__ = ("body", "holders", "size", "wanted")

    def __init__(self, body: EventBody, wanted: int) -> None:
        self.body = body
        self.holders = 0
        self.wanted = wanted
        """Holds still to come."""
        self.size = len(body.body) + OVERHEAD


class Bodies:
    """Bodies by event id."""

    def __init__(self, store: DeliveryStore, bytes_max: int = BYTES_MAX) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._bytes = 0
        self._held_bytes = 0
        self._wanted: dict[int, asyncio.Future[bool]] = {}
        """To be loaded; the answer says whether the store had it."""
        self._task: asyncio.Task[None] | None = None

    @property
    def bytes(self) -> int:
        """Bytes of all bodies here."""
        return self._bytes

    @property
    def full(self) -> bool:
        """What attempts hold takes all the room: start no more until some end."""
        return self._held_bytes >= self._bytes_max

    def put(self, body: EventBody, wanted: int) -> None:
        """Keep a body that so many deliveries will hold soon."""
        if body.event_id not in self._entries:
            entry = _Entry(body, wanted)
            self._entries[body.event_id] = entry
            self._bytes += entry.size
            if self._bytes > self._bytes_max:
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
        while True:
            body = self.hold_nowait(event_id)
            if body is not None:
                return body
            future = self._wanted.get(event_id)
            if future is None:
                future = self._wanted[event_id] = asyncio.get_running_loop().create_future()
                if self._task is None:
                    self._task = asyncio.get_running_loop().create_task(
                        self._load_wanted(), name="gatepost load bodies"
                    )
            if not await asyncio.shield(future):
                return None
            # Found, and still it may have been pushed out before this task ran: then it is loaded again.

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
            elif self._bytes > self._bytes_max:
                self._evict()

    def _evict(self) -> None:
        """Drop the oldest that nobody holds. Held ones are passed over and moved to the young end, so that each is seen once."""
        for _ in range(len(self._entries)):
            if self._bytes <= self._bytes_max:
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
            while self._wanted:
                batch, self._wanted = self._wanted, {}
                try:
                    found = await self._store.load_events(list(batch))
                except BaseException as error:
                    for future in batch.values():
                        if not future.done():
                            future.set_exception(error)
                            future.exception()  # whoever asked may have been cancelled
                    if not isinstance(error, Exception):
                        raise
                    continue
                for body in found.values():
                    self.put(body, 1)
                for event_id, future in batch.items():
                    if not future.done():
                        future.set_result(event_id in found)
                # Let those that waited take hold before the next batch can push their bodies out.
                await asyncio.sleep(0)
        finally:
            self._task = None

    async def aclose(self) -> None:
        """Stop loading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
