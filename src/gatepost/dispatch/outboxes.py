"""Follows the outboxes of producers' databases: what they committed becomes events here, each once, soon after the commit.

A follower looks several times a second at what waits, has it stored, and puts it away in the producer's database. Between the two
it may die: the rows are shown again, and an event that is stored already is not stored twice. A row that cannot be taken is set
aside, a tenant over its limits waits, a database that is down is asked again; none of these holds up anybody else. Only the
process that owns part 0 follows. Run by `dispatch.supervisor`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from gatepost.clock import Clock, Entropy
from gatepost.delivery.ids import EVENT, ScatteredIds, encode_id, id_time_us
from gatepost.dispatch.new_event import check_outbox_event
from gatepost.dispatch.notices import Notices
from gatepost.errors import GatepostError, LimitExceeded, NotFound, PayloadInvalid
from gatepost.store.outbox.source import Look, OutboxSource, OutboxUnavailable, Verdict
from gatepost.store.rows import EnqueueResult, OutboxEvent

POLL: Final = 0.2
"""Seconds between looks that found nothing: what a commit waits at most, with room for a busy loop, within 250 ms."""
POLL_SHARE: Final = 4
"""A look that took long is followed by a pause this many times as long: a database in trouble is not asked without end."""
POLL_MAX: Final = 5.0
RETRY_FIRST: Final = 0.5
RETRY_MAX: Final = 10.0
"""Seconds between tries while a producer's database is down, doubling."""
STORE_RETRY: Final = 0.5
"""Seconds to wait when it is our own store that fails."""
HELD_MAX: Final = 5.0
"""Seconds a tenant over its limits is passed over at most; then it is looked at again."""
HELD_TENANTS_MAX: Final = 1_000
FRESH_US: Final = 24 * 3_600 * 1_000_000
"""An id says when its event was published, and what is stored is kept by that. A row that waited longer than a day (nobody
followed), or comes from a clock that is ahead, gets a new id first, and with it its whole delivery window."""
AHEAD_US: Final = 3_600 * 1_000_000
SWEEP_EVERY: Final = 3_600.0
KEPT_US: Final = 30 * 86_400 * 1_000_000
"""Rows set aside are kept as long as dead letters."""

_log = logging.getLogger("gatepost.dispatch")

Take = Callable[[Sequence[OutboxEvent]], Awaitable[Sequence[tuple[OutboxEvent, EnqueueResult]]]]
Admit = Callable[[str, int], Awaitable[None]]
"""Counts an event of a tenant and its size; raises `LimitExceeded`, `NotFound` for a tenant that takes none, and what the store
raises."""
Fits = Callable[[str, str, str, bytes], Awaitable[None]]
"""Tenant, type, content type and payload; raises `PayloadInvalid`."""


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """How one follower is doing."""

    place: str
    """The database, without user and password."""
    state: Literal["idle", "following", "failing"]
    """`idle`: another process follows it, or nothing runs."""
    error: str | None
    """When failing: why."""
    taken: int
    """Events stored here since the start."""
    set_aside: int
    """Rows that could not be taken since the start."""


class OutboxFollower:
    """One database. `owns` says whether this process follows; `store_time` is the store's clock in UTC microseconds."""

    def __init__(
        self,
        source: OutboxSource,
        take: Take,
        admit: Admit,
        fits: Fits,
        owns: Callable[[], bool],
        notices: Notices,
        store_time: Callable[[], int],
        clock: Clock,
        entropy: Entropy,
        *,
        max_payload: int,
    ) -> None:
        self._source = source
        self._take = take
        self._admit = admit
        self._fits = fits
        self._owns = owns
        self._notices = notices
        self._store_time = store_time
        self._clock = clock
        self._ids = ScatteredIds(clock, entropy)
        self._max_payload = max_payload
        self._held: dict[str, float] = {}
        """Tenants over their limits, and until when (monotonic) they are passed over."""
        self._state: Literal["idle", "following", "failing"] = "idle"
        self._error: str | None = None
        self._taken = 0
        self._aside = 0
        self._sweep_at = 0.0
        self._to_say: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<OutboxFollower {self._source.place} {self._state}>"

    @property
    def status(self) -> OutboxStatus:
        """A snapshot."""
        return OutboxStatus(self._source.place, self._state, self._error, self._taken, self._aside)

    async def run(self) -> None:
        """Follow until cancelled."""
        retry = RETRY_FIRST
        async with aclosing(self._source):
            while True:
                if not self._owns():
                    if self._state != "idle":
                        self._state, self._error = "idle", None
                        await self._source.aclose()
                    await asyncio.sleep(POLL)
                    continue
                began = self._clock.monotonic()
                try:
                    more = await self._source.take(self._max_payload, self._held_now(), self._judge)
                    await self._sweep_sometimes()
                except OutboxUnavailable as error:
                    self._failed(error, retry)
                    await asyncio.sleep(retry)
                    retry = min(2 * retry, RETRY_MAX)
                    continue
                except GatepostError as error:
                    # Ours: a store that fails, is overloaded or refuses us. What was shown stays where it is.
                    self._notices.trouble("outbox_waits", error)
                    await asyncio.sleep(STORE_RETRY)
                    continue
                retry = RETRY_FIRST
                self._works()
                if not more:
                    await asyncio.sleep(min(max(POLL, POLL_SHARE * (self._clock.monotonic() - began)), POLL_MAX))

    # --------------------------------------------------------------------------------------------- judging

    async def _judge(self, look: Look) -> Verdict:
        """Store what can be stored, and say what becomes of each row. Raises what our store raises."""
        verdict, self._to_say = Verdict(), []
        for row in look.oversized:
            why = f"its payload has {row.size} bytes, the limit is {self._max_payload}"
            self._set_aside(verdict, row.event_id, row.tenant, "payload_too_large", why)
        fit = [event for event in look.events if await self._is_fit(event, verdict)]
        for event, result in await self._stored(fit, verdict):
            if not result.conflict:
                verdict.done.append(event.event_id)
                self._taken += not result.duplicate
            elif result.event_id == event.event_id:
                self._renumber(verdict, event, "another event has its id")
            else:
                first = encode_id(EVENT, result.event_id)
                why = f"its idempotency key names another event ({first}) with another type or payload"
                self._set_aside(verdict, event.event_id, event.tenant, "idempotency_conflict", why)
        self._aside += len(verdict.aside)
        for say in self._to_say:  # not before: our store may have failed, and all of this comes again
            say()
        return verdict

    async def _is_fit(self, event: OutboxEvent, verdict: Verdict) -> bool:
        if event.tenant in self._held:
            return False  # came up in this look: in order, or not at all
        now = self._store_time()
        try:
            check_outbox_event(event, self._max_payload, now)
        except (TypeError, ValueError) as error:
            self._set_aside(verdict, event.event_id, str(event.tenant), "invalid_event", str(error))
            return False
        times = (id_time_us(event.event_id), event.created_at)
        if not all(now - FRESH_US < time < now + AHEAD_US for time in times):
            self._renumber(verdict, event, "its id or created_at is too old, or ahead of the clock")
            return False
        try:
            await self._fits(event.tenant, event.type, event.content_type, event.body)
        except PayloadInvalid as error:
            self._set_aside(verdict, event.event_id, event.tenant, "payload_invalid", str(error))
            return False
        try:
            await self._admit(event.tenant, len(event.body))
        except LimitExceeded as error:
            if len(self._held) < HELD_TENANTS_MAX:
                self._held[event.tenant] = self._clock.monotonic() + min(error.retry_after, HELD_MAX)
            return False
        except NotFound as error:
            self._set_aside(verdict, event.event_id, event.tenant, "tenant_refused", str(error))
            return False
        return True

    async def _stored(
        self, events: Sequence[OutboxEvent], verdict: Verdict
    ) -> Sequence[tuple[OutboxEvent, EnqueueResult]]:
        if not events:
            return ()
        events = [replace(event, outbox_id=0) for event in events]  # no rows of our own store's outbox
        try:
            return await self._take(events)
        except GatepostError:
            raise  # ours, whatever the event: a password that was changed is no reason to set it aside
        except Exception:  # noqa: BLE001 - one event that no store can take must not hold back all others
            _log.exception("outbox %s: some rows cannot be stored together; trying one by one", self._source.place)
        found: list[tuple[OutboxEvent, EnqueueResult]] = []
        for event in events:
            try:
                found += await self._take([event])
            except GatepostError:
                raise
            except Exception as error:  # noqa: BLE001
                self._set_aside(verdict, event.event_id, event.tenant, "invalid_event", repr(error))
        return found

    def _renumber(self, verdict: Verdict, event: OutboxEvent, why: str) -> None:
        number = self._ids.next()
        verdict.renumbered.append((event.event_id, number))
        old, new = _public(event.event_id), encode_id(EVENT, number)
        self._to_say.append(
            partial(_log.warning, "outbox %s: event %s goes on as %s: %s", self._source.place, old, new, why)
        )

    def _set_aside(self, verdict: Verdict, event_id: int, tenant: str, code: str, why: str) -> None:
        verdict.aside.append(event_id)
        say = partial(self._notices.outbox_set_aside, self._source.place, tenant, _public(event_id), code, why)
        self._to_say.append(say)

    # ---------------------------------------------------------------------------------------------- pacing

    def _held_now(self) -> Collection[str]:
        now = self._clock.monotonic()
        for tenant in [tenant for tenant, until in self._held.items() if until <= now]:
            del self._held[tenant]
        return self._held

    async def _sweep_sometimes(self) -> None:
        if self._clock.monotonic() < self._sweep_at:
            return
        more = await self._source.sweep(self._clock.wall_us() - KEPT_US)
        if not more:
            self._sweep_at = self._clock.monotonic() + SWEEP_EVERY

    def _failed(self, error: OutboxUnavailable, retry: float) -> None:
        self._error = str(error)
        if self._state != "failing":
            self._state = "failing"
            self._notices.outbox_unavailable(self._source.place, self._error)
            _log.warning("outbox %s: next try in %g s", self._error, retry)

    def _works(self) -> None:
        if self._state == "failing":
            _log.info("outbox %s answers again", self._source.place)
        self._state, self._error = "following", None


def _public(event_id: int) -> str:
    return encode_id(EVENT, event_id) if event_id >= 0 else str(event_id)
