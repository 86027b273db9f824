"""Follows the outbox in the store itself, where publishers of other processes put their events.

Fans out what is there and drops what cannot be: a key that names another event. A row that makes no sense, written by hand, is
passed over and stays. Only the process that owns part 0 does so, since a shared store has one outbox. Run by
`dispatch.supervisor`; producers' own databases are `dispatch.outboxes`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from gatepost.clock import Clock, Entropy
from gatepost.delivery.ids import EVENT, ScatteredIds, encode_id
from gatepost.dispatch.new_event import check_outbox_event
from gatepost.dispatch.notices import Notices
from gatepost.errors import GatepostError, PayloadInvalid
from gatepost.store.port import DeliveryStore
from gatepost.store.rows import EnqueueResult, OutboxEvent

BATCH: Final = 250
RETRY: Final = 0.5
"""Seconds to wait when the store fails."""
OWNER_POLL: Final = 0.05
"""Seconds between looks whether the part has become ours."""

SKIPPED_MAX: Final = 1_000
"""Rows passed over and remembered; with more of them somebody has to look."""
ANY_SIZE: Final = 1 << 31
"""Publishers of our own store have their own `max_payload`, and what they stored was accepted."""

Take = Callable[[Sequence[OutboxEvent], Collection[int]], Awaitable[Sequence[tuple[OutboxEvent, EnqueueResult]]]]
"""The second argument: ids of events that go to nobody."""
Fits = Callable[[str, str, str, bytes], Awaitable[None]]
"""Tenant, type, content type and payload; raises `PayloadInvalid`."""

_log = logging.getLogger("gatepost.dispatch")


class OwnOutbox:
    """`owns` says whether this process follows."""

    def __init__(
        self,
        store: DeliveryStore,
        take: Take,
        fits: Fits,
        owns: Callable[[], bool],
        notices: Notices,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._store = store
        self._take = take
        self._fits = fits
        self._owns = owns
        self._notices = notices
        self._clock = clock
        self._ids = ScatteredIds(clock, entropy)
        self._skipped: set[int] = set()

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            while not self._owns():  # noqa: ASYNC110 - the lease keeper has no event for it
                await asyncio.sleep(OWNER_POLL)
            # What came while another process owned it was announced there: look before waiting.
            while self._owns():
                try:
                    while self._owns() and await self._take_some():
                        pass
                except GatepostError as error:
                    self._notices.trouble("outbox_waits", error)
                    await asyncio.sleep(RETRY)
                else:
                    await self._store.wait_outbox()

    async def _take_some(self) -> bool:
        found = await self._store.outbox_peek(BATCH + len(self._skipped))
        events = [event for event in found if event.outbox_id not in self._skipped and self._makes_sense(event)]
        if not events:
            return False
        misfits = await self._misfits(events)
        taken = await self._taken(events, misfits)
        conflicts = [(event, result) for event, result in taken if result.conflict]
        for event, result in taken:
            if event.event_id in misfits and not (result.conflict or result.duplicate):
                self._notices.event_set_aside(
                    event.tenant, encode_id(EVENT, event.event_id), "payload_invalid", misfits[event.event_id]
                )
        for event, result in conflicts:
            if result.event_id == event.event_id:
                await self._renumber(event)
        if conflicts:
            await self._store.outbox_drop([event.outbox_id for event, _ in conflicts])
        for event, result in conflicts:
            if result.event_id != event.event_id:
                self._notices.event_dropped(event.tenant, encode_id(EVENT, event.event_id))
        return True

    async def _misfits(self, events: Sequence[OutboxEvent]) -> dict[int, str]:
        """Events that do not fit the schema of their type, and why: whoever published them knew no schemas, and was told that
        they are stored. So they are, and go to nobody."""
        found = {}
        for event in events:
            try:
                await self._fits(event.tenant, event.type, event.content_type, event.body)
            except PayloadInvalid as error:
                found[event.event_id] = str(error)
        return found

    async def _taken(
        self, events: Sequence[OutboxEvent], misfits: Collection[int]
    ) -> Sequence[tuple[OutboxEvent, EnqueueResult]]:
        try:
            return await self._take(events, misfits)
        except GatepostError:
            raise  # ours, whatever the event
        except Exception:  # noqa: BLE001 - one event that no store can take must not hold back all others
            _log.exception("some rows of the outbox cannot be stored together; trying one by one")
        results: list[tuple[OutboxEvent, EnqueueResult]] = []
        for event in events:
            try:
                results += await self._take([event], misfits)
            except GatepostError:
                raise
            except Exception as error:  # noqa: BLE001
                self._skip(event, error)
        return results

    def _makes_sense(self, event: OutboxEvent) -> bool:
        try:
            check_outbox_event(event, ANY_SIZE, self._clock.wall_us())
        except (TypeError, ValueError) as error:
            self._skip(event, error)
            return False
        return True

    def _skip(self, event: OutboxEvent, error: Exception) -> None:
        if len(self._skipped) >= SKIPPED_MAX:
            raise error
        self._skipped.add(event.outbox_id)
        _log.error("row %d of the outbox is passed over, mend or delete it and restart: %s", event.outbox_id, error)
        self._notices.trouble("outbox_row_invalid", error)

    async def _renumber(self, event: OutboxEvent) -> None:
        """Another event has its id, since publishers draw theirs without asking. Put before the old row goes: never lost."""
        number = self._ids.next()
        await self._store.outbox_put([replace(event, outbox_id=0, event_id=number)])
        _log.warning(
            "event %s goes on as %s: another event has its id",
            encode_id(EVENT, event.event_id),
            encode_id(EVENT, number),
        )
