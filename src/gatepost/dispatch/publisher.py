"""`Publisher`: write events beside the dispatchers, from any number of processes, web workers and scripts.

It writes outbox rows and nothing else, into Gatepost's own database or into the producer's, in the producer's transaction;
fan-out, deduplication and limits happen in the dispatcher, which notices soon. So its receipts cannot say whether the event was
a duplicate or how many deliveries it made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import datetime

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.delivery.ids import EVENT, encode_id
from gatepost.delivery.records import Receipt
from gatepost.dispatch.new_event import MAX_PAYLOAD, EventDraft, draft_event
from gatepost.errors import ConfigurationError
from gatepost.store.outbox.open import Outbox, open_outbox
from gatepost.store.outbox.transactional import TransactionalOutbox
from gatepost.store.rows import OutboxEvent
from gatepost.telemetry import Tracing


class Publisher:
    """Open with `async with Publisher.open(url)` or `with Publisher.open_sync(url)`; safe to share between threads and tasks.

    `Publisher()` opens nothing: it is for `connection=` alone, publishing in transactions of your own.
    """

    def __init__(
        self,
        outbox: Outbox | None = None,
        *,
        max_payload: int = MAX_PAYLOAD,
        tracing: Tracing | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._outbox = outbox
        self._max_payload = max_payload
        self._tracing = tracing
        self._clock = clock
        self._transactional = TransactionalOutbox()

    def __repr__(self) -> str:
        return f"<Publisher {'of transactions' if self._outbox is None else repr(self._outbox)}>"

    @classmethod
    def open(
        cls, url: str, *, max_payload: int = MAX_PAYLOAD, tracing: Tracing | None = None
    ) -> AbstractAsyncContextManager[Publisher]:
        """For asyncio. `url` is `sqlite:///path` or `postgresql://…` (needs asyncpg), the dispatcher's own. `tracing` makes a span of
        each publish (`gatepost.contrib.opentelemetry.Tracing`).

        Raises `ConfigurationError`, `SchemaMismatch`, `StoreError`.
        """

        @asynccontextmanager
        async def opened() -> AsyncIterator[Publisher]:
            outbox = open_outbox(url)
            try:
                await outbox.prepare_async()
                yield cls(outbox, max_payload=max_payload, tracing=tracing)
            finally:
                await outbox.aclose()

        return opened()

    @classmethod
    def open_sync(
        cls, url: str, *, max_payload: int = MAX_PAYLOAD, tracing: Tracing | None = None
    ) -> AbstractContextManager[Publisher]:
        """For synchronous code: no event loop and no thread. PostgreSQL needs psycopg. Raises as `open`."""

        @contextmanager
        def opened() -> Iterator[Publisher]:
            outbox = open_outbox(url)
            try:
                outbox.prepare()
                yield cls(outbox, max_payload=max_payload, tracing=tracing)
            finally:
                outbox.close()

        return opened()

    async def publish(
        self,
        type: str,  # noqa: A002 - the field's own name
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
        """Store one event; durable when this returns. Calls that wait together are committed together.

        `connection` is yours and in a transaction (asyncpg, psycopg, SQLAlchemy): the event is written there, and exists once
        you commit. Raises what `Dispatcher.publish` raises for bad arguments, and `StoreFull` or `StoreError`; then nothing
        was stored. `traceparent` and `tracestate` link its deliveries to the trace of whoever publishes; None: what `tracing` finds.
        """
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
        span = None
        if self._tracing is not None:
            span = self._tracing.publishing(event.type, event.tenant, len(event.body), event.trace)
            event = replace(event, trace=span.trace)
        try:
            if connection is not None:
                stored = await self._transactional.put_async(connection, event)
            else:
                stored = await self._store().put_async(event)
        except BaseException as error:
            if span is not None:
                span.failed(error)
            raise
        receipt = outbox_receipt(stored)
        if span is not None:
            span.stored(receipt.event_id, None, None)
        return receipt

    def publish_sync(
        self,
        type: str,  # noqa: A002 - the field's own name
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
        """`publish` without an event loop; blocks for one commit, at most 5 s behind other writers.

        `connection` is yours and in a transaction (sqlite3, psycopg, SQLAlchemy, Django): one INSERT, committed with it.
        """
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
        span = None
        if self._tracing is not None:
            span = self._tracing.publishing(event.type, event.tenant, len(event.body), event.trace)
            event = replace(event, trace=span.trace)
        try:
            stored = self._store().put(event) if connection is None else self._transactional.put(connection, event)
        except BaseException as error:
            if span is not None:
                span.failed(error)
            raise
        receipt = outbox_receipt(stored)
        if span is not None:
            span.stored(receipt.event_id, None, None)
        return receipt

    def _event(
        self,
        type: str,  # noqa: A002
        payload: object,
        tenant: str,
        idempotency_key: str | None,
        ordering_key: str | None,
        priority: str,
        not_before: datetime | float | None,
        content_type: str,
        traceparent: str | None,
        tracestate: str | None,
    ) -> OutboxEvent:
        now = self._clock.wall_us()
        draft = draft_event(
            type,
            payload,
            tenant=tenant,
            idempotency_key=idempotency_key,
            ordering_key=ordering_key,
            priority=priority,
            not_before=not_before,
            content_type=content_type,
            max_payload=self._max_payload,
            now_us=now,
            traceparent=traceparent,
            tracestate=tracestate,
        )
        return outbox_event(draft, now)

    def _store(self) -> Outbox:
        if self._outbox is None:
            raise ConfigurationError(
                "this Publisher has no database of its own: pass connection=, or open one with Publisher.open(url)"
            )
        return self._outbox


def outbox_event(draft: EventDraft, now: int) -> OutboxEvent:
    """A checked event as a row that has no id yet."""
    return OutboxEvent(
        outbox_id=0,
        event_id=0,
        tenant=draft.tenant,
        key=draft.key,
        type=draft.type,
        content_type=draft.content_type,
        body=draft.body,
        ordering_key=draft.ordering_key,
        priority=draft.priority,
        not_before=draft.not_before,
        created_at=now,
        trace=draft.trace,
    )


def outbox_receipt(event: OutboxEvent) -> Receipt:
    """What a producer is told of a row."""
    return Receipt(event_id=encode_id(EVENT, event.event_id), duplicate=None, deliveries=None)
