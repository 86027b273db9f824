"""The outbox in Gatepost's own database, as the dispatcher sees it: rows by state, oldest first, and when to look again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from gatepost.store.postgres.enqueue import columns
from gatepost.store.postgres.pool import Connection
from gatepost.store.rows import OutboxEvent

LOOK_EVERY: Final = 0.25
"""Seconds between looks at an outbox that other processes fill: a commit is heard of within that, and an empty look is one step
in an empty index."""

_PUT: Final = """
INSERT INTO gatepost_outbox
 (event_id, tenant, key, type, content_type, ordering_key, priority, not_before, created_at, body, trace)
 SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[],
  $9::bigint[], $10::bytea[], $11::text[]) ON CONFLICT DO NOTHING"""
_PEEK: Final = """
SELECT event_id, event_id, tenant, key, type, content_type, body, ordering_key, priority, not_before, created_at, trace
 FROM gatepost_outbox WHERE done_at IS NULL ORDER BY event_id LIMIT $1::bigint"""


async def put(connection: Connection, events: Sequence[OutboxEvent]) -> None:
    """Store events for fan-out; those stored already are left as they are."""
    rows = sorted(
        (
            (
                e.event_id,
                e.tenant,
                e.key,
                e.type,
                e.content_type,
                e.ordering_key,
                e.priority,
                e.not_before,
                e.created_at,
                e.body,
                e.trace,
            )
            for e in events
        ),
        key=lambda row: row[0],
    )
    await connection.execute(_PUT, *columns(rows, 11))


async def peek(connection: Connection, limit: int) -> list[OutboxEvent]:
    """The oldest rows that wait."""
    return [OutboxEvent(*row) for row in await connection.fetch(_PEEK, limit)]


class OutboxNews:
    """When to look: at once after a put of this process, and every quarter of a second."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._news.set()

    def tell(self) -> None:
        """Something was put."""
        self._news.set()

    async def wait(self) -> None:
        """Until it is time to look."""
        try:
            async with asyncio.timeout(LOOK_EVERY):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()
