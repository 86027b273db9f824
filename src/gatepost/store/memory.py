"""The queue in dictionaries: the executable specification of `DeliveryStore`, and what `memory://` opens.

Every other engine must behave as this one does; the model tests use it as their oracle. It survives nothing and is for one
process and one event loop; each method runs to its end without an `await`, so each is atomic.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.delivery.ids import ENDPOINT, NODES, NUMBER_BITS, decode_id, id_time_us
from gatepost.errors import StoreError
from gatepost.store.memory_parts import MemoryParts
from gatepost.store.memory_registry import MemoryRegistry
from gatepost.store.paging import check_filter, check_limit, check_listing, decode_numbers, encode_cursor, id_bounds
from gatepost.store.port import StoreCapabilities
from gatepost.store.rows import (
    SUB_BULK,
    SUB_FIFO_FIRST,
    AttemptRow,
    Backlog,
    DeadFilter,
    DeadLetter,
    DeadRow,
    DeliveryFilter,
    DeliveryInfo,
    EnqueueResult,
    EventBody,
    FanOut,
    Heartbeat,
    LaneRows,
    LaneStat,
    LaneWant,
    MaintenanceReport,
    NewEvent,
    Node,
    NodeInfo,
    OutboxEvent,
    Page,
    PartInfo,
    Poke,
    Retention,
    Row,
    RowKey,
    SettleBatch,
    SettleResult,
    StoreTotals,
    Target,
    TenantPurge,
    endpoint_of,
    lane_of,
)

State = Literal["waiting", "delivered", "dead", "cancelled"]


@dataclass(slots=True)
class _Delivery:
    """A delivery, from its acceptance until retention forgets it."""

    row: Row
    """As it waits, or last waited."""
    tenant: str
    state: State
    changed_at: int
    """Acceptance, cancellation or death."""


class MemoryStore(MemoryRegistry):
    """Both ports for one process, nothing durable."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, *, parts: int = 1) -> None:
        """`parts` above 1 lets several dispatchers of one process share it, each over a `peer`: what a fleet is tested with."""
        super().__init__()
        self.capabilities = StoreCapabilities(durability="memory", parts=parts, shared=parts > 1)
        self._clock = clock
        self._events: dict[int, NewEvent] = {}
        self._keys: dict[tuple[str, str], int] = {}  # (tenant, idempotency key) to the first event
        self._deliveries: dict[int, _Delivery] = {}  # by delivery id
        self._lanes: dict[int, list[Row]] = {}  # waiting rows by (due_at, delivery_id); never an empty list
        self._backlog: dict[str, int] = {}
        self._attempts: dict[int, list[AttemptRow]] = {}
        self._dead: dict[int, DeadLetter] = {}
        self._outbox: dict[int, OutboxEvent] = {}
        self._fan_outs: dict[int, FanOut] = {}  # by event id; unfinished ones
        self._states: dict[int, bytes] = {}  # by endpoint number
        self._parts = MemoryParts(clock, parts)
        self._outbox_watchers: list[asyncio.Event] = []
        self._connect()

    def _connect(self) -> None:
        self._closed = False
        self._session = self._parts.open_session()
        self._outbox_news = asyncio.Event()
        self._outbox_news.set()
        self._outbox_watchers.append(self._outbox_news)

    def peer(self) -> MemoryStore:
        """The same store as another process sees it: with a session of its own, to be closed by itself."""
        other = copy(self)  # the tables are shared: none of them is ever replaced, and no number is kept beside them
        other._connect()  # noqa: SLF001 - another of our own
        return other

    def lose_session(self) -> None:
        """What a crash or a cut connection looks like to the others; the next heartbeat opens a new one."""
        self._session.lose()

    # -- producers

    async def new_node(self) -> int:
        return self._parts.next_number(NODES)

    async def enqueue(self, batch: Sequence[NewEvent]) -> Sequence[EnqueueResult]:
        self._check_open()
        return [self._enqueue_one(event) for event in batch]

    def _enqueue_one(self, event: NewEvent) -> EnqueueResult:
        known = self._events.get(event.event_id)
        if known is not None:
            differs = (known.tenant, _content(known)) != (event.tenant, _content(event))
            return self._refused(event, event.event_id, conflict=differs)
        if event.key is not None:
            first = self._keys.setdefault((event.tenant, event.key), event.event_id)
            if first != event.event_id:
                stored = self._events.get(first)  # once retention has taken it, there is nothing to compare with
                return self._refused(event, first, conflict=stored is not None and _content(stored) != _content(event))
        self._events[event.event_id] = event
        self._add_targets(event, [self._in_order(target) for target in event.targets])
        if event.fan_out is not None:
            in_order = self.capabilities.shared and event.fan_out.sub >= SUB_FIFO_FIRST
            self._fan_outs[event.event_id] = (
                event.fan_out._replace(due_at=self._clock.wall_us()) if in_order else event.fan_out
            )
        if event.outbox_id is not None:
            self._outbox.pop(event.outbox_id, None)
        return EnqueueResult(event.event_id, duplicate=False, conflict=False)

    def _in_order(self, target: Target) -> Target:
        if self.capabilities.shared and target.lane & 0xFF >= SUB_FIFO_FIRST:
            return target._replace(due_at=self._clock.wall_us())
        return target

    def _add_targets(self, event: NewEvent, targets: Sequence[Target]) -> None:
        for target in targets:
            row = Row(target.lane, target.due_at, target.delivery_id, event.event_id, 0, event.created_at, target.part)
            self._deliveries[row.delivery_id] = _Delivery(row, event.tenant, "waiting", id_time_us(row.delivery_id))
            self._wait(row)

    def _refused(self, event: NewEvent, first: int, *, conflict: bool) -> EnqueueResult:
        if event.outbox_id is not None and not conflict:
            self._outbox.pop(event.outbox_id, None)
        return EnqueueResult(first, duplicate=not conflict, conflict=conflict)

    async def outbox_put(self, events: Sequence[OutboxEvent]) -> None:
        self._check_open()
        for event in events:
            self._outbox.setdefault(event.event_id, replace(event, outbox_id=event.event_id))
        for watcher in self._outbox_watchers:
            watcher.set()

    async def outbox_peek(self, limit: int) -> Sequence[OutboxEvent]:
        check_limit(limit)
        return [event for _, event in sorted(self._outbox.items())[:limit]]

    async def outbox_drop(self, outbox_ids: Collection[int]) -> None:
        for outbox_id in outbox_ids:
            self._outbox.pop(outbox_id, None)

    async def wait_outbox(self) -> None:
        await self._outbox_news.wait()
        self._outbox_news.clear()

    # -- ownership

    async def heartbeat(self, node: Node, held: Mapping[int, int], want: int) -> Heartbeat:
        self._check_open()
        return self._parts.beat(self._session, node, held, want)

    async def parts(self) -> Sequence[PartInfo]:
        return self._parts.parts()

    async def nodes(self) -> Sequence[NodeInfo]:
        return self._parts.nodes()

    async def poke(self, pokes: Collection[Poke]) -> None:
        self._parts.poke(self._session, pokes)

    async def wait_pokes(self) -> Sequence[Poke]:
        return await self._session.wait()

    async def release(self, parts: Mapping[int, int]) -> None:
        self._check_open()
        self._parts.release(parts)

    # -- owner reads

    async def discover(self, parts: Collection[int]) -> Sequence[tuple[int, int]]:
        return [(rows[0].part, lane) for lane, rows in self._lanes.items() if rows[0].part in parts]

    async def peek(self, wants: Sequence[LaneWant], now: int) -> Sequence[LaneRows]:
        self._check_open()
        return [self._peek_lane(want, now) for want in wants]

    def _peek_lane(self, want: LaneWant, now: int) -> LaneRows:
        lane = self._lanes.get(want.lane, [])
        rows: list[Row] = []
        for at in range(bisect_left(lane, (want.lane, want.low_water)), len(lane)):
            row = lane[at]
            if row.due_at > now or len(rows) == want.limit:
                return LaneRows(want.lane, rows, row.due_at)
            rows.append(row)
        return LaneRows(want.lane, rows, None)

    async def load_events(self, ids: Collection[int]) -> Mapping[int, EventBody]:
        found = (self._events[event_id] for event_id in ids if event_id in self._events)
        return {e.event_id: EventBody(e.event_id, e.tenant, e.type, e.content_type, e.body, e.trace) for e in found}

    # -- fan-outs too large for one transaction

    async def fan_outs(self, parts: Collection[int], limit: int) -> Sequence[FanOut]:
        check_limit(limit)
        return sorted(fan_out for fan_out in self._fan_outs.values() if fan_out.part in parts)[:limit]

    async def extend(self, fan_out: FanOut, targets: Sequence[Target], after: int | None) -> bool:
        self._check_open()
        if self._fan_outs.get(fan_out.event_id) != fan_out:
            return False
        self._add_targets(self._events[fan_out.event_id], targets)
        if after is None:
            del self._fan_outs[fan_out.event_id]
        else:
            self._fan_outs[fan_out.event_id] = fan_out._replace(after=after)
        return True

    # -- what is learned about endpoints

    async def save_states(self, states: Mapping[int, bytes]) -> None:
        self._check_open()
        for number, state in states.items():
            if state:
                self._states[number] = state
            else:
                self._states.pop(number, None)

    async def load_states(self, endpoints: Collection[int]) -> Mapping[int, bytes]:
        return {number: self._states[number] for number in endpoints if number in self._states}

    async def delete_endpoint(self, endpoint_id: str) -> bool:
        if not await super().delete_endpoint(endpoint_id):
            return False
        self._states.pop(decode_id(ENDPOINT, endpoint_id), None)
        return True

    # -- owner writes

    async def settle(self, batch: SettleBatch) -> SettleResult:
        self._check_open()
        fenced = frozenset(part for part, epoch in batch.epochs.items() if epoch != self._parts.epoch(part))
        for done in batch.done:
            if (delivery := self._at(done.key)) is not None:
                self._leave(delivery, "delivered", delivery.changed_at)
        for retry in batch.retry:
            delivery = self._at(retry.key)
            if delivery is not None and retry.part not in fenced and delivery.row.attempt == retry.attempt:
                self._leave(delivery, "waiting", delivery.changed_at)
                delivery.row = delivery.row._replace(due_at=retry.new_due, attempt=retry.next_attempt)
                self._wait(delivery.row)
        for dead in batch.dead:
            delivery = self._at(dead.key)
            if delivery is not None and dead.part not in fenced and delivery.row.attempt == dead.attempt:
                self._leave(delivery, "dead", dead.died_at)
                self._dead[dead.key.delivery_id] = self._dead_letter(dead, delivery)
        for attempt in batch.attempts:
            log = self._attempts.setdefault(attempt.delivery_id, [])
            if all(known.started_at != attempt.started_at for known in log):
                insort(log, attempt, key=lambda row: row.started_at)
        return SettleResult(fenced)

    def _dead_letter(self, dead: DeadRow, delivery: _Delivery) -> DeadLetter:
        event = self._events[delivery.row.event_id]
        return DeadLetter(
            dead.key.delivery_id,
            event.event_id,
            event.tenant,
            endpoint_of(dead.key.lane),
            event.type,
            event.content_type,
            dead.attempts,
            dead.why,
            dead.outcome,
            dead.status,
            dead.died_at,
            event.body,
        )

    # -- operators

    async def deliveries(self, where: DeliveryFilter, after: str | None, limit: int) -> Page[DeliveryInfo]:
        check_limit(limit)
        check_listing(where)
        start = decode_numbers(after, 1)
        found = sorted(
            (number for number in self._matching(where) if start is None or number < start[0]),
            reverse=True,
        )
        items = [self._info(number) for number in found[:limit]]
        return Page(items, encode_cursor(found[limit - 1]) if len(found) > limit else None)

    async def delivery(self, delivery_id: int) -> DeliveryInfo | None:
        return self._info(delivery_id) if delivery_id in self._deliveries else None

    def _type_of(self, number: int) -> str:
        """Empty when the event is gone, and there is no dead letter that kept it."""
        event, dead = self._events.get(self._deliveries[number].row.event_id), self._dead.get(number)
        return event.type if event else dead.event_type if dead else ""

    def _info(self, number: int) -> DeliveryInfo:
        delivery = self._deliveries[number]
        row, dead = delivery.row, self._dead.get(number)
        log = self._attempts.get(number)
        last = log[-1] if log else None
        attempts = row.attempt if delivery.state == "waiting" else dead.attempts if dead else last.number if last else 0
        return DeliveryInfo(
            number,
            row.event_id,
            delivery.tenant,
            endpoint_of(row.lane),
            delivery.state,
            attempts,
            row.due_at if delivery.state == "waiting" else None,
            self._type_of(number),
            last.outcome if last else dead.outcome if dead else None,
            last.status if last else dead.status if dead else None,
            max(delivery.changed_at, last.started_at + last.elapsed_us if last else 0),
        )

    async def attempts_of(self, delivery_id: int) -> Sequence[AttemptRow]:
        return list(self._attempts.get(delivery_id, ()))

    async def newest_attempts(self, endpoint: int, limit: int) -> Sequence[AttemptRow]:
        check_limit(limit)
        found = [row for log in self._attempts.values() for row in log if row.endpoint == endpoint]
        return sorted(found, key=lambda row: (row.started_at, row.delivery_id), reverse=True)[:limit]

    async def backlogs(self, endpoints: Collection[int], depth_cap: int = 1_000) -> Mapping[int, Backlog]:
        found: dict[int, Backlog] = {}
        for delivery in self._deliveries.values():
            number = endpoint_of(delivery.row.lane)
            if delivery.state == "waiting" and number in endpoints:
                depth, oldest = found.get(number, Backlog(0, None))
                due = delivery.row.due_at if oldest is None else min(oldest, delivery.row.due_at)
                found[number] = Backlog(min(depth + 1, depth_cap), due)
        return found

    async def cancel(self, where: DeliveryFilter, delivery_id: int | None, limit: int) -> Sequence[int]:
        self._check_open()
        check_limit(limit)
        if delivery_id is None:
            check_filter(where)
        chosen = [
            number
            for number in self._matching(where)
            if delivery_id in (None, number) and self._deliveries[number].state == "waiting"
        ][:limit]
        for number in chosen:
            self._leave(self._deliveries[number], "cancelled", self._clock.wall_us())
        return chosen

    def _matching(self, where: DeliveryFilter) -> Iterable[int]:
        since, before = id_bounds(where, 1 << NUMBER_BITS)
        for number, delivery in self._deliveries.items():
            if (
                since <= number < before
                and (where.event_type is None or where.event_type == self._type_of(number))
                and where.tenant in (None, delivery.tenant)
                and where.endpoint in (None, endpoint_of(delivery.row.lane))
                and where.event_id in (None, delivery.row.event_id)
                and where.state in (None, delivery.state)
            ):
                yield number

    async def dead_letters(self, where: DeadFilter, after: str | None, limit: int) -> Page[DeadLetter]:
        check_limit(limit)
        start = decode_numbers(after, 2)
        found = [
            letter
            for letter in reversed(self._dead_matching(where))
            if start is None or (letter.died_at, letter.delivery_id) < start
        ]
        last = found[limit - 1] if len(found) > limit else None
        items = [replace(letter, body=b"") for letter in found[:limit]]
        return Page(items, encode_cursor(last.died_at, last.delivery_id) if last else None)

    async def dead_letter(self, delivery_id: int) -> DeadLetter | None:
        return self._dead.get(delivery_id)

    async def replay(
        self, where: DeadFilter, first_due: int, spacing_us: int, limit: int
    ) -> Sequence[tuple[int, int, int]]:
        self._check_open()
        check_limit(limit)
        moved = []
        for place, letter in enumerate(self._dead_matching(where)[:limit]):
            del self._dead[letter.delivery_id]
            delivery = self._deliveries[letter.delivery_id]
            if letter.event_id not in self._events:
                self._events[letter.event_id] = NewEvent(
                    letter.event_id,
                    letter.tenant,
                    None,
                    letter.event_type,
                    letter.content_type,
                    letter.body,
                    id_time_us(letter.event_id),
                    (),
                )
            lane, due = lane_of(letter.endpoint, SUB_BULK), first_due + place * spacing_us
            delivery.row = Row(lane, due, letter.delivery_id, letter.event_id, 0, due, delivery.row.part)
            delivery.state, delivery.changed_at = "waiting", id_time_us(letter.delivery_id)
            self._wait(delivery.row)
            moved.append((delivery.row.part, lane, due))
        return moved

    async def purge_dead(self, where: DeadFilter, limit: int) -> int:
        self._check_open()
        check_limit(limit)
        chosen = self._dead_matching(where)[:limit]
        for letter in chosen:
            del self._dead[letter.delivery_id]
            self._forget(letter.delivery_id)
        return len(chosen)

    def _dead_matching(self, where: DeadFilter) -> list[DeadLetter]:
        """Oldest death first."""
        return sorted(
            (
                letter
                for letter in self._dead.values()
                if where.tenant in (None, letter.tenant)
                and where.endpoint in (None, letter.endpoint)
                and where.event_type in (None, letter.event_type)
                and where.why in (None, letter.why)
                and where.delivery_id in (None, letter.delivery_id)
                and (where.died_from is None or letter.died_at >= where.died_from)
                and (where.died_before is None or letter.died_at < where.died_before)
            ),
            key=lambda letter: (letter.died_at, letter.delivery_id),
        )

    async def purge_tenant(self, tenant: str, limit: int) -> TenantPurge:
        self._check_open()
        check_limit(limit)
        left = limit

        def erased(found: Iterable[int], erase: Callable[[int], object]) -> int:
            nonlocal left
            chosen = list(found)[:left]
            for number in chosen:
                erase(number)
            left -= len(chosen)
            return len(chosen)

        for event_id in [number for number, fan_out in self._fan_outs.items() if fan_out.tenant == tenant]:
            del self._fan_outs[event_id]
        outbox = erased((number for number, event in self._outbox.items() if event.tenant == tenant), self._outbox.pop)
        rows_before, dead_before = sum(map(len, self._attempts.values())), len(self._dead)
        deliveries = erased(
            (number for number, delivery in self._deliveries.items() if delivery.tenant == tenant), self._erase
        )
        attempts = rows_before - sum(map(len, self._attempts.values()))
        key_of = {event_id: key for key, event_id in self._keys.items()}
        keys_before = len(self._keys)

        def erase_event(event_id: int) -> None:
            self._forget_event(event_id)
            if event_id in key_of:
                del self._keys[key_of[event_id]]

        events = erased((number for number, event in self._events.items() if event.tenant == tenant), erase_event)
        counts = (deliveries, events, attempts, dead_before - len(self._dead), outbox, keys_before - len(self._keys))
        if left == 0:
            return TenantPurge(*counts, more=True)
        self._backlog.pop(tenant, None)
        for number in [endpoint.number for endpoint in self._endpoints.values() if endpoint.tenant == tenant]:
            self._states.pop(number, None)
        return TenantPurge(*counts, *self._erase_records(tenant))

    def _erase(self, number: int) -> None:
        """Whatever became of the delivery."""
        delivery = self._deliveries[number]
        if delivery.state == "waiting":
            self._leave(delivery, "cancelled", delivery.changed_at)
        self._dead.pop(number, None)
        self._forget(number)

    async def lane_stats(self, lanes: Collection[int], depth_cap: int = 10_000) -> Sequence[LaneStat]:
        waiting = {lane: self._lanes.get(lane, ()) for lane in lanes}
        return [
            LaneStat(lane, min(len(rows), depth_cap), rows[0].due_at if rows else None)
            for lane, rows in waiting.items()
        ]

    async def backlog_of(self, tenant: str) -> int:
        return self._backlog.get(tenant, 0)

    async def totals(self) -> StoreTotals:
        attempts = sum(map(len, self._attempts.values()))
        size = sum(len(event.body) for event in self._events.values())
        waiting = sum(self._backlog.values())
        return StoreTotals(waiting, len(self._dead), len(self._events), attempts, len(self._outbox), size)

    async def maintain(self, retention: Retention, now: int, budget: int) -> MaintenanceReport:
        self._check_open()
        check_limit(budget)
        left = budget

        def expired(found: Iterable[int], forget: Callable[[int], None]) -> int:
            nonlocal left
            chosen = list(found)[:left]
            for number in chosen:
                forget(number)
            left -= len(chosen)
            return len(chosen)

        key_of = {event_id: key for key, event_id in self._keys.items()}
        before = now - round(retention.idempotency * 1e6)
        keys = expired(
            (event_id for event_id in key_of if id_time_us(event_id) < before),
            lambda event_id: self._keys.__delitem__(key_of[event_id]),
        )
        before_dead = now - round(retention.dead_letters * 1e6)
        dead = expired((n for n, letter in self._dead.items() if letter.died_at < before_dead), self._bury)
        before_attempts = now - round(retention.attempts * 1e6)
        rows_before = sum(map(len, self._attempts.values()))
        expired(
            (
                number
                for number, delivery in self._deliveries.items()
                if delivery.state in ("delivered", "cancelled") and self._info(number).updated_at < before_attempts
            ),
            self._forget,
        )
        before_events = now - round(retention.events * 1e6)
        needed = {delivery.row.event_id for delivery in self._deliveries.values() if delivery.state == "waiting"}
        needed.update(self._fan_outs)
        events = expired(
            (number for number in self._events if id_time_us(number) < before_events and number not in needed),
            self._forget_event,
        )
        return MaintenanceReport(
            events, rows_before - sum(map(len, self._attempts.values())), dead, keys, more=left == 0
        )

    async def store_time(self) -> int:
        self._check_open()
        return self._clock.wall_us()

    async def ping(self) -> None:
        self._check_open()

    async def aclose(self) -> None:
        self._closed = True
        self._parts.end_session(self._session)

    # -- helpers

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")

    def _at(self, key: RowKey) -> _Delivery | None:
        """The waiting delivery exactly as it was read."""
        delivery = self._deliveries.get(key.delivery_id)
        if delivery is None or delivery.state != "waiting" or delivery.row[:3] != key:
            return None
        return delivery

    def _wait(self, row: Row) -> None:
        insort(self._lanes.setdefault(row.lane, []), row)
        tenant = self._deliveries[row.delivery_id].tenant
        self._backlog[tenant] = self._backlog.get(tenant, 0) + 1

    def _leave(self, delivery: _Delivery, state: State, at: int) -> None:
        lane = self._lanes[delivery.row.lane]
        del lane[bisect_left(lane, delivery.row)]
        if not lane:
            del self._lanes[delivery.row.lane]
        self._backlog[delivery.tenant] -= 1
        delivery.state, delivery.changed_at = state, at

    def _bury(self, number: int) -> None:
        del self._dead[number]
        self._forget(number)

    def _forget(self, number: int) -> None:
        del self._deliveries[number]
        self._attempts.pop(number, None)

    def _forget_event(self, event_id: int) -> None:
        del self._events[event_id]


def _content(event: NewEvent) -> tuple[str, str, bytes]:
    return event.type, event.content_type, event.body
