"""Publishing: an event and its deliveries become durable in one transaction, and start at once without a read.

Calls that wait together are stored together, tenants in turn, so that one with thousands of endpoints or events does not
stand before the others. It refuses what cannot be taken (limits, a full disk) and starts nothing; who gets an event is planned by
`dispatch.fan_out`. Called by `Dispatcher.publish` and the outbox follower.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from gatepost.deadline import check, current, deadline
from gatepost.deadline.context import detached_context
from gatepost.delivery.ids import EVENT, IdSource, encode_id
from gatepost.delivery.records import Receipt
from gatepost.dispatch.bodies import Bodies
from gatepost.dispatch.fan_out import NOBODY, FanOuts
from gatepost.dispatch.new_event import EventDraft, sub_of
from gatepost.dispatch.notices import Notices
from gatepost.dispatch.tenant_limits import TenantLimiter
from gatepost.errors import IdempotencyConflict, LimitExceeded, Overloaded
from gatepost.store.port import DeliveryStore
from gatepost.store.rows import EnqueueResult, EventBody, NewEvent, OutboxEvent, Row
from gatepost.wire.trace_context import recheck_context

BATCH_EVENTS_MAX: Final = 250
BATCH_BYTES_MAX: Final = 4 * 1_048_576
BATCH_ROWS_MAX: Final = 500
"""One transaction: a few milliseconds of writing. An event has no more targets than these at first (`fan_out.PORTION`)."""
BATCHES_AT_ONCE: Final = 2
"""One is being committed while the next is prepared."""
WAITING_EVENTS_MAX: Final = 10_000
WAITING_BYTES_MAX: Final = 64 * 1_048_576
WAITING_ROWS_MAX: Final = 100_000
"""Published and not yet stored; beyond it a publish is refused at once."""
PUBLISH_TIMEOUT: Final = 5.0
"""Seconds that `publish` waits for the store."""
CLOSE_MARGIN: Final = 1.0
"""Seconds beyond it that closing waits, so that the last publisher is answered first."""

_log = logging.getLogger("gatepost.dispatch")

HandOver = Callable[[Sequence[Row]], None]


@dataclass(slots=True)
class IntakeStatistics:
    """Counters since the start."""

    published: int = 0
    duplicates: int = 0
    deliveries: int = 0
    refused: int = 0


class _Waiting:
    """One event on its way into the store."""

    __slots__ = ("event", "future", "rows", "taken", "until")

    def __init__(self, event: NewEvent, future: asyncio.Future[EnqueueResult], until: float) -> None:
        self.event = event
        self.rows = _rows_of(event)
        self.future = future
        self.until = until
        """Loop time at which the publisher is told that it took too long."""
        self.taken = False


class Intake:
    """Turns drafts into stored events. `store_time` is the store's clock in UTC microseconds."""

    def __init__(
        self,
        store: DeliveryStore,
        fan_outs: FanOuts,
        bodies: Bodies,
        ids: IdSource,
        limiter: TenantLimiter,
        notices: Notices,
        store_time: Callable[[], int],
        hand_over: HandOver,
        *,
        publish_timeout: float = PUBLISH_TIMEOUT,
    ) -> None:
        self._store = store
        self._fan_outs = fan_outs
        self._bodies = bodies
        self._ids = ids
        self._limiter = limiter
        self._notices = notices
        self._store_time = store_time
        self._hand_over = hand_over
        self._publish_timeout = publish_timeout
        self._queues: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        """By tenant, the one whose turn it is first; none is empty."""
        self._queued = 0
        self._queue_bytes = 0
        self._queue_rows = 0
        self._unanswered: dict[_Waiting, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._storing = 0
        """Tasks that will look at the queue again before they end. A task in `_tasks` may have looked for the last time."""
        self.statistics = IntakeStatistics()

    async def publish(self, draft: EventDraft) -> Receipt:
        """Store one event; durable when this returns.

        Raises `IdempotencyConflict`, `LimitExceeded`, `Overloaded` (a slow store), `StoreFull` or `StoreError`, and
        `DeadlineExceeded` when the caller's deadline (`gatepost.deadline`) is over before the event is durable: as after any
        timeout, publish again with the same idempotency key.
        """
        in_force = current()
        if in_force is None:
            return await self._publish(draft)
        check(where="publish")
        async with deadline(in_force, name="publish"):
            return await self._publish(draft)

    async def _publish(self, draft: EventDraft) -> Receipt:
        try:
            await self._limiter.check(draft.tenant, len(draft.body))
        except LimitExceeded:
            self.statistics.refused += 1
            raise
        if draft.ordering_key is not None:
            await self._learn_order(draft.tenant)
        event, deliveries = self._new_event(draft)
        result = await self._enqueue(event)
        return self._receipt(draft.key, deliveries, result)

    async def _learn_order(self, tenant: str) -> None:
        try:
            async with asyncio.timeout(self._publish_timeout):
                await self._fan_outs.learn_order((tenant,))
        except TimeoutError:
            self.statistics.refused += 1
            waited = f"the store did not answer within {self._publish_timeout:g} s; nothing was stored"
            raise Overloaded(waited, retry_after=1.0) from None

    async def publish_own(self, draft: EventDraft) -> Receipt:
        """As `publish`, for an event of Gatepost's own: a tenant's limits are for what the tenant sends."""
        event, deliveries = self._new_event(draft)
        return self._receipt(draft.key, deliveries, await self._enqueue(event))

    async def publish_many(self, drafts: Sequence[EventDraft]) -> Sequence[Receipt | Exception]:
        """As `publish` for each, in order; an event that cannot be taken yields its exception and harms no other."""
        return [
            result
            for result in await asyncio.gather(*(self.publish(draft) for draft in drafts), return_exceptions=True)
            if isinstance(result, Receipt | Exception)
        ]

    async def take_outbox(
        self, events: Sequence[OutboxEvent], nobodys: Collection[int] = ()
    ) -> Sequence[tuple[OutboxEvent, EnqueueResult]]:
        """Fan out events that publishers stored; those whose ids are `nobodys` are stored without a delivery. What conflicts is
        returned too, and must be dropped by the caller."""
        await self._fan_outs.learn_order({event.tenant for event in events if event.ordering_key is not None})
        new_events = [self._from_outbox(event, nobodys=event.event_id in nobodys) for event in events]
        results: list[EnqueueResult] = []
        while len(results) < len(new_events):
            portion = _first_portion(new_events[len(results) :])
            try:
                stored = await self._store.enqueue(portion)
            except BaseException:
                self._not_stored(new_events[len(results) :])
                raise
            self._stored(portion, stored)
            results += stored
        return list(zip(events, results, strict=True))

    async def aclose(self) -> None:
        """Wait until everything that was accepted is stored, but not longer than a publisher would."""
        patience = self._publish_timeout + CLOSE_MARGIN
        while self._tasks and patience > 0:
            # Not gather(): of tasks that are done it returns without a turn of the loop, and they would never be discarded.
            started = asyncio.get_running_loop().time()
            await asyncio.wait(self._tasks, timeout=patience)
            patience -= asyncio.get_running_loop().time() - started
        if self._tasks:
            _log.error("the store does not answer: %d publishers are not told more than that", len(self._unanswered))
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiting in list(self._unanswered):
            if not waiting.future.done():
                waiting.future.set_exception(self._too_slow(waiting))
                if not waiting.taken:
                    self._withdraw(waiting)

    # ----------------------------------------------------------------------------------------------- events

    def _new_event(self, draft: EventDraft) -> tuple[NewEvent, int]:
        """The event, and how many deliveries it makes."""
        now = self._store_time()
        event_id = self._ids.next()
        due = now if draft.not_before is None else max(now, draft.not_before)
        plan = self._fan_outs.plan(event_id, draft.tenant, draft.type, draft.sub, due)
        event = NewEvent(
            event_id=event_id,
            tenant=draft.tenant,
            key=draft.key,
            type=draft.type,
            content_type=draft.content_type,
            body=draft.body,
            created_at=due,  # the delivery window begins when the event may first be tried
            targets=plan.targets,
            fan_out=plan.rest,
            trace=draft.trace,
        )
        return event, plan.deliveries

    def _from_outbox(self, event: OutboxEvent, *, nobodys: bool = False) -> NewEvent:
        now = self._store_time()
        due = now if event.not_before is None else max(now, event.not_before)
        if event.outbox_id:  # of the store's own outbox, where it was committed by a process that knows no limits
            late = self._limiter.delay(event.tenant, len(event.body))
            if late:
                self._notices.tenant_over_limit(event.tenant, "events or bytes a second")
            due = max(due, now + late)
        sub = sub_of(event.priority, event.ordering_key)
        plan = NOBODY if nobodys else self._fan_outs.plan(event.event_id, event.tenant, event.type, sub, due)
        return NewEvent(
            event_id=event.event_id,
            tenant=event.tenant,
            key=None if nobodys else event.key,  # which stays free for the same event, mended
            type=event.type,
            content_type=event.content_type,
            body=event.body,
            created_at=due,  # as above, however long it waited where it was, and whatever its publisher's clock says
            targets=plan.targets,
            outbox_id=event.outbox_id or None,  # 0: from a producer's database
            fan_out=plan.rest,
            trace=recheck_context(event.trace),
        )

    # -------------------------------------------------------------------------------------------- coalescing

    async def _enqueue(self, event: NewEvent) -> EnqueueResult:
        size = len(event.body)
        if (
            self._queued >= WAITING_EVENTS_MAX
            or self._queue_rows >= WAITING_ROWS_MAX
            or self._queue_bytes + size > WAITING_BYTES_MAX
        ):
            self.statistics.refused += 1
            raise Overloaded("the store cannot keep up with what is published: nothing was stored", retry_after=1.0)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(event, loop.create_future(), loop.time() + self._publish_timeout)
        self._queues.setdefault(event.tenant, deque()).append(waiting)
        self._count(waiting, 1)
        if self._storing < BATCHES_AT_ONCE:
            self._storing += 1
            # The batch belongs to a task of its own: a publisher that is cancelled must not take others' events with it,
            # and what was stored must be handed over whoever still waits.
            # Nor may its deadline be theirs.
            task = loop.create_task(self._store_batches(), name="gatepost intake", context=detached_context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._unanswered[waiting] = None
        if self._timer is None:
            self._timer = loop.call_later(self._publish_timeout, self._expire)
        try:
            return await waiting.future
        finally:
            del self._unanswered[waiting]
            if not waiting.taken and waiting.future.cancelled():
                self._withdraw(waiting)

    def _withdraw(self, waiting: _Waiting) -> None:
        self._not_stored([waiting.event])
        queue = self._queues[waiting.event.tenant]
        queue.remove(waiting)
        if not queue:
            del self._queues[waiting.event.tenant]
        self._count(waiting, -1)

    def _count(self, waiting: _Waiting, sign: int) -> None:
        self._queued += sign
        self._queue_bytes += sign * len(waiting.event.body)
        self._queue_rows += sign * waiting.rows

    def _expire(self) -> None:
        """Answer those that have waited too long; one timer for all, since they expire in order."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for waiting in list(self._unanswered):
            if waiting.until > now:
                self._timer = loop.call_later(waiting.until - now, self._expire)
                return
            if not waiting.future.done():
                self.statistics.refused += 1
                waiting.future.set_exception(self._too_slow(waiting))
                if not waiting.taken:
                    self._withdraw(waiting)

    def _too_slow(self, waiting: _Waiting) -> Overloaded:
        stored = (
            "whether it was stored is not known: publish again with the same idempotency_key"
            if waiting.taken
            else "nothing was stored"
        )
        return Overloaded(f"the store did not answer within {self._publish_timeout:g} s; {stored}", retry_after=1.0)

    async def _store_batches(self) -> None:
        try:
            while self._queues:
                await self._store_batch(self._take_batch())
        finally:
            self._storing -= 1

    async def _store_batch(self, batch: list[_Waiting]) -> None:
        events = [waiting.event for waiting in batch]
        try:
            results = await self._store.enqueue(events)
        except Exception as error:  # noqa: BLE001 - it belongs to the publishers, and is raised there
            self._not_stored(events)
            for waiting in batch:
                _fail(waiting, error)
            return
        self._stored(events, results)
        for waiting, result in zip(batch, results, strict=True):
            if not waiting.future.done():
                waiting.future.set_result(result)

    def _take_batch(self) -> list[_Waiting]:
        """The oldest event of each tenant in turn, while they fit."""
        batch: list[_Waiting] = []
        size = rows = 0
        while self._queues and len(batch) < BATCH_EVENTS_MAX and size < BATCH_BYTES_MAX:
            tenant, queue = next(iter(self._queues.items()))
            if batch and rows + queue[0].rows > BATCH_ROWS_MAX:
                break  # it stays first in line
            waiting = queue.popleft()
            if queue:
                self._queues.move_to_end(tenant)
            else:
                del self._queues[tenant]
            waiting.taken = True
            self._count(waiting, -1)
            size += len(waiting.event.body)
            rows += waiting.rows
            batch.append(waiting)
        return batch

    def _stored(self, events: Sequence[NewEvent], results: Sequence[EnqueueResult]) -> None:
        """What is durable now starts at once: its rows go to the scheduler, its body into memory."""
        rows: list[Row] = []
        counts = self.statistics
        now = self._store_time()
        for event, result in zip(events, results, strict=True):
            if result.duplicate or result.conflict:
                counts.duplicates += 1
                self._not_stored([event])
                continue
            counts.published += 1
            if event.fan_out is not None:
                self._fan_outs.look()
            if event.targets:
                if event.targets[0].due_at <= now:
                    body = EventBody(
                        event.event_id, event.tenant, event.type, event.content_type, event.body, event.trace
                    )
                    self._bodies.put(body, len(event.targets))
                for lane, part, delivery_id, due_at in event.targets:
                    rows.append(Row(lane, due_at, delivery_id, event.event_id, 0, due_at, part))
        counts.deliveries += len(rows)
        if rows:
            self._hand_over(rows)

    def _not_stored(self, events: Sequence[NewEvent]) -> None:
        for event in events:
            if event.fan_out is not None:
                self._fan_outs.dropped(event.fan_out)

    def _receipt(self, key: str | None, deliveries: int, result: EnqueueResult) -> Receipt:
        public_id = encode_id(EVENT, result.event_id)
        if result.conflict:
            raise IdempotencyConflict(
                public_id,
                f"idempotency_key {key!r} was used for another event ({public_id}) with another type or payload: "
                "a key names one event, write a new key for a new one",
            )
        return Receipt(public_id, result.duplicate, deliveries if not result.duplicate else 0)


def _rows_of(event: NewEvent) -> int:
    """What it takes to store an event."""
    return 1 + len(event.targets)


def _first_portion(events: Sequence[NewEvent]) -> Sequence[NewEvent]:
    """As many from the front as make one transaction, at least one."""
    rows = 0
    for at, event in enumerate(events):
        rows += _rows_of(event)
        if at and rows > BATCH_ROWS_MAX:
            return events[:at]
    return events


def _fail(waiting: _Waiting, error: Exception) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(error)
        waiting.future.exception()  # a publisher that gave up does not look
