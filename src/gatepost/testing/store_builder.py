"""Makes events, attempts and settle batches for the store's contract suite, with ids and times from one virtual clock.

It holds what a dispatcher would: its node, its epoch, its ids. Used by `store_contract` and by model tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gatepost.delivery.ids import IdSource
from gatepost.store.port import Store
from gatepost.store.rows import (
    SUB_NORMAL,
    AttemptRow,
    DeadRow,
    DoneRow,
    EnqueueResult,
    LaneWant,
    NewEvent,
    Node,
    OutboxEvent,
    RetryRow,
    Row,
    RowKey,
    SettleBatch,
    SettleResult,
    Target,
    lane_of,
)
from gatepost.testing.virtual import VirtualClock

SECOND = 1_000_000
"""In microseconds, as the store counts."""


class Owner:
    """A dispatcher as far as the store sees one. Make it with `take`."""

    def __init__(self, store: Store, clock: VirtualClock, name: str, epoch: int, node: int) -> None:
        self.store = store
        self.clock = clock
        self.name = name
        self.epoch = epoch
        self.ids = IdSource(node, clock)

    @classmethod
    async def take(cls, store: Store, clock: VirtualClock, name: str = "node-a") -> Owner:
        """Become the owner of part 0."""
        beat = await store.heartbeat(Node(name), {}, store.capabilities.parts)
        return cls(store, clock, name, beat.leases[0].epoch, await store.new_node())

    @property
    def now(self) -> int:
        """UTC microseconds."""
        return self.clock.wall_us()

    def event(
        self,
        *endpoints: int,
        tenant: str = "acme",
        key: str | None = None,
        body: bytes = b"{}",
        sub: int = SUB_NORMAL,
        due_in: int = 0,
        **changes: Any,
    ) -> NewEvent:
        """A new event for these endpoints; `changes` are fields of `NewEvent`."""
        event_id = self.ids.next()
        targets = tuple(
            Target(lane_of(endpoint, sub), 0, self.ids.next(), self.now + due_in * SECOND) for endpoint in endpoints
        )
        fields: dict[str, Any] = {
            "event_id": event_id,
            "tenant": tenant,
            "key": key,
            "type": "invoice.paid",
            "content_type": "application/json",
            "body": body,
            "created_at": self.now,
            "targets": targets,
        }
        return NewEvent(**{**fields, **changes})

    def outbox_event(
        self, key: str | None = None, body: bytes = b"{}", tenant: str = "acme", trace: str | None = None
    ) -> OutboxEvent:
        """An event as a publisher writes it."""
        return OutboxEvent(
            0,
            self.ids.next(),
            tenant,
            key,
            "invoice.paid",
            "application/json",
            body,
            "order-1",
            "high",
            None,
            self.now,
            trace,
        )

    async def enqueue(self, *events: NewEvent) -> Sequence[EnqueueResult]:
        """Store them."""
        return await self.store.enqueue(events)

    async def rows(self, lane: int, limit: int = 1_000, low_water: int = 0) -> Sequence[Row]:
        """What is due in a lane now."""
        [found] = await self.store.peek([LaneWant(lane, limit, low_water)], self.now)
        return found.rows

    def attempt(self, row: Row, outcome: str = "response", status: int | None = 200, **changes: Any) -> AttemptRow:
        """The log line of an attempt that begins now and takes 1 ms."""
        fields: dict[str, Any] = {
            "delivery_id": row.delivery_id,
            "number": row.attempt + 1,
            "event_id": row.event_id,
            "endpoint": row.lane >> 8,
            "tenant": "acme",
            "started_at": self.now,
            "outcome": outcome,
            "phase": "read",
            "reason": "ok",
            "retry_safety": "safe",
            "blame": "endpoint",
            "status": status,
            "elapsed_us": 1_000,
            "phases_us": "write:200 wait:800",
            "address": "203.0.113.7:443",
            "response": b"ok",
            "decision": "complete",
            "worker": self.name,
        }
        return AttemptRow(**{**fields, **changes})

    def done(self, *rows: Row) -> SettleBatch:
        """All delivered."""
        return SettleBatch(
            {0: self.epoch},
            done=[DoneRow(key_of(row), row.event_id) for row in rows],
            attempts=[self.attempt(row) for row in rows],
        )

    def retry(self, *rows: Row, delay: int = 60) -> SettleBatch:
        """All to be tried again after `delay` seconds."""
        return SettleBatch(
            {0: self.epoch},
            retry=[
                RetryRow(key_of(row), row.part, row.attempt, row.attempt + 1, self.now + delay * SECOND) for row in rows
            ],
            attempts=[self.attempt(row, "read_timeout", None, decision="retry_at") for row in rows],
        )

    def dead(self, *rows: Row, why: str = "attempts_exhausted") -> SettleBatch:
        """All given up."""
        return SettleBatch(
            {0: self.epoch},
            dead=[
                DeadRow(
                    key_of(row), row.part, row.attempt, row.attempt + 1, row.event_id, why, "response", 500, self.now
                )
                for row in rows
            ],
            attempts=[self.attempt(row, status=500, decision="dead_letter") for row in rows],
        )

    async def settle(self, batch: SettleBatch) -> SettleResult:
        """Apply it."""
        return await self.store.settle(batch)


def key_of(row: Row) -> RowKey:
    """The key of a row as it was read."""
    return RowKey(row.lane, row.due_at, row.delivery_id)
