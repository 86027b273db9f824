"""`Publisher`: write events beside the one dispatcher, from any number of processes, web workers and scripts.

It writes outbox rows and nothing else; fan-out, deduplication and limits happen in the dispatcher, which notices within 50 ms.
So its receipts cannot say whether the event was a duplicate or how many deliveries it made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from datetime import datetime

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.delivery.ids import EVENT, IdSource, encode_id
from gatepost.delivery.records import Receipt
from gatepost.dispatch.new_event import MAX_PAYLOAD, draft_event
from gatepost.errors import ConfigurationError
from gatepost.store.open import sqlite_path
from gatepost.store.rows import OutboxEvent
from gatepost.store.sqlite.outbox import SqliteOutbox


class Publisher:
    """Open with `async with Publisher.open(url)` or `with Publisher.open_sync(url)`; safe to share between threads and tasks."""

    def __init__(self, outbox: SqliteOutbox, *, max_payload: int = MAX_PAYLOAD, clock: Clock = SYSTEM_CLOCK) -> None:
        self._outbox = outbox
        self._max_payload = max_payload
        self._clock = clock
        self._ids = IdSource(outbox.new_node(), clock)

    def __repr__(self) -> str:
        return f"<Publisher {self._outbox!r}>"

    @classmethod
    def open(cls, url: str, *, max_payload: int = MAX_PAYLOAD) -> AbstractAsyncContextManager[Publisher]:
        """For asyncio. `url` is `sqlite:///path`. Raises `ConfigurationError`, `SchemaMismatch`, `StoreError`."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[Publisher]:
            outbox = SqliteOutbox(_path(url))
            try:
                yield cls(outbox, max_payload=max_payload)
            finally:
                await outbox.aclose()

        return opened()

    @classmethod
    def open_sync(cls, url: str, *, max_payload: int = MAX_PAYLOAD) -> AbstractContextManager[Publisher]:
        """For synchronous code: no event loop and no thread. Raises as `open`."""

        @contextmanager
        def opened() -> Iterator[Publisher]:
            outbox = SqliteOutbox(_path(url))
            try:
                yield cls(outbox, max_payload=max_payload)
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
    ) -> Receipt:
        """Store one event; durable when this returns. Calls that wait together are committed together.

        Raises what `Dispatcher.publish` raises for bad arguments, and `StoreFull` or `StoreError`; then nothing was stored.
        """
        event = self._event(
            type, payload, tenant, idempotency_key, ordering_key, priority, not_before, content_type, connection
        )
        await self._outbox.put_async([event])
        return _receipt(event)

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
    ) -> Receipt:
        """`publish` without an event loop; blocks for one commit, at most 5 s behind other writers."""
        event = self._event(
            type, payload, tenant, idempotency_key, ordering_key, priority, not_before, content_type, connection
        )
        self._outbox.put([event])
        return _receipt(event)

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
        connection: object,
    ) -> OutboxEvent:
        refuse_connection(connection)
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
        )
        return OutboxEvent(
            outbox_id=0,
            event_id=self._ids.next(),
            tenant=draft.tenant,
            key=draft.key,
            type=draft.type,
            content_type=draft.content_type,
            body=draft.body,
            ordering_key=draft.ordering_key,
            priority=draft.priority,
            not_before=draft.not_before,
            created_at=now,
        )


def refuse_connection(connection: object) -> None:
    """Publishing in the caller's own transaction needs an outbox table in the caller's database."""
    if connection is not None:
        raise ConfigurationError(
            "publishing in your own transaction (connection=) comes with the PostgreSQL store and is not in this version: "
            "leave connection out, and publish after your commit with an idempotency_key"
        )


def _receipt(event: OutboxEvent) -> Receipt:
    return Receipt(event_id=encode_id(EVENT, event.event_id), duplicate=None, deliveries=None)


def _path(url: str) -> str:
    if url.startswith("memory:"):
        raise ConfigurationError("a store in memory belongs to one process: publish through its Dispatcher")
    return sqlite_path(url)
