"""Opens what a `Publisher` writes to: the outbox in Gatepost's own database, SQLite or PostgreSQL.

Says which URLs there are and nothing more. Called by `Publisher.open` and `open_sync`.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Protocol
from urllib.parse import urlsplit

from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.ids import IdSource
from gatepost.errors import ConfigurationError
from gatepost.store.open import sqlite_path
from gatepost.store.postgres.address import SCHEMES
from gatepost.store.rows import OutboxEvent
from gatepost.store.sqlite.outbox import SqliteOutbox


class Outbox(Protocol):
    """Takes events that have no id yet, durable when the call returns, and gives them one."""

    def prepare(self) -> None:
        """Connect for `put`, so that what is wrong is said at the start. Raises `ConfigurationError`, `StoreError`."""
        ...

    async def prepare_async(self) -> None:
        """Connect for `put_async`."""
        ...

    def put(self, event: OutboxEvent) -> OutboxEvent:
        """Store an event; from any thread. Raises `StoreError`; then nothing was stored, or the text says that it is not known."""
        ...

    async def put_async(self, event: OutboxEvent) -> OutboxEvent:
        """The same for an event loop: calls that wait together are committed together."""
        ...

    def close(self) -> None:
        """Idempotent; blocks."""
        ...

    async def aclose(self) -> None:
        """`close` without blocking the event loop."""
        ...


def open_outbox(url: str) -> Outbox:
    """The outbox of a dispatcher's database. Raises `ConfigurationError`, `SchemaMismatch`, `StoreError`."""
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        raise ConfigurationError("a store in memory belongs to one process: publish through its Dispatcher")
    if scheme in SCHEMES:
        from gatepost.store.outbox.postgres import PostgresOutbox

        return PostgresOutbox(url)
    return _NumberingOutbox(SqliteOutbox(sqlite_path(url)))


class _NumberingOutbox:
    """Numbers what goes into an SQLite file, which gives every opener a node of its own: ids there never meet."""

    def __init__(self, outbox: SqliteOutbox) -> None:
        self._outbox = outbox
        self._ids = IdSource(outbox.new_node(), SYSTEM_CLOCK)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return repr(self._outbox)

    def prepare(self) -> None:
        """Opened already."""

    async def prepare_async(self) -> None:
        """Opened already."""

    def put(self, event: OutboxEvent) -> OutboxEvent:
        """Store one event."""
        numbered = self._numbered(event)
        self._outbox.put([numbered])
        return numbered

    async def put_async(self, event: OutboxEvent) -> OutboxEvent:
        """Store one event."""
        numbered = self._numbered(event)
        await self._outbox.put_async([numbered])
        return numbered

    def close(self) -> None:
        """Close the file."""
        self._outbox.close()

    async def aclose(self) -> None:
        """Close the file."""
        await self._outbox.aclose()

    def _numbered(self, event: OutboxEvent) -> OutboxEvent:
        with self._lock:
            return replace(event, event_id=self._ids.next())
