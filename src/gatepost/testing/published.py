"""A `Publisher` that stores nothing and remembers everything, for tests of code that publishes. The fixture `published` is one.

Arguments are checked exactly as in production. It knows no transaction: an event published with `connection=` is remembered at
once, whether or not that connection commits; for that use a real database and `gatepost_outbox`.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.delivery.ids import EVENT, encode_id
from gatepost.delivery.records import Receipt
from gatepost.dispatch.new_event import MAX_PAYLOAD
from gatepost.dispatch.publisher import Publisher
from gatepost.store.rows import OutboxEvent


@dataclass(frozen=True, slots=True)
class PublishedEvent:
    """One event as it would be stored."""

    event_id: str
    type: str
    body: bytes
    tenant: str
    idempotency_key: str | None
    ordering_key: str | None
    priority: str
    not_before: int | None
    """UTC microseconds."""
    content_type: str
    connection: Any = field(default=None, repr=False)
    """What was given as `connection=`."""
    trace: str | None = None
    """Trace context it was published under: `traceparent`, and `tracestate` after a blank."""

    def json(self) -> Any:
        """The payload, parsed."""
        return json.loads(self.body)


class RecordingPublisher(Publisher):
    """`events` has what was published, in order. Safe between threads."""

    def __init__(self, *, max_payload: int = MAX_PAYLOAD, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(max_payload=max_payload, clock=clock)
        self._lock = threading.Lock()
        self.events: list[PublishedEvent] = []

    def __repr__(self) -> str:
        return f"<RecordingPublisher events={len(self.events)}>"

    def of_type(self, type: str) -> list[PublishedEvent]:  # noqa: A002 - the field's own name
        """The events of one type."""
        return [event for event in self.events if event.type == type]

    async def publish(
        self,
        type: str,  # noqa: A002
        payload: object,
        *,
        tenant: str = "default",
        idempotency_key: str | None = None,
        ordering_key: str | None = None,
        priority: str = "normal",
        not_before: datetime | float | None = None,
        content_type: str = "application/json",
        connection: object = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> Receipt:
        """Remember one event; raises what `Publisher.publish` raises for bad arguments."""
        event = self._event(
            type,
            payload,
            tenant,
            idempotency_key,
            ordering_key,
            priority,
            not_before,
            content_type,
            traceparent,
            tracestate,
        )
        return self._remember(event, connection)

    def publish_sync(
        self,
        type: str,  # noqa: A002
        payload: object,
        *,
        tenant: str = "default",
        idempotency_key: str | None = None,
        ordering_key: str | None = None,
        priority: str = "normal",
        not_before: datetime | float | None = None,
        content_type: str = "application/json",
        connection: object = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> Receipt:
        """The same without an event loop."""
        event = self._event(
            type,
            payload,
            tenant,
            idempotency_key,
            ordering_key,
            priority,
            not_before,
            content_type,
            traceparent,
            tracestate,
        )
        return self._remember(event, connection)

    def _remember(self, event: OutboxEvent, connection: object) -> Receipt:
        with self._lock:
            event_id = encode_id(EVENT, len(self.events) + 1)
            self.events.append(
                PublishedEvent(
                    event_id,
                    event.type,
                    event.body,
                    event.tenant,
                    event.key,
                    event.ordering_key,
                    event.priority,
                    event.not_before,
                    event.content_type,
                    connection,
                    event.trace,
                )
            )
        return Receipt(event_id=event_id, duplicate=None, deliveries=None)
