"""What a follower needs of a producer's database: look at what waits, and put away what has been taken.

`open_source` says which databases there are. Rows are found by state and put away by id, so that one which commits late is found
like any other, and one that is taken twice is put away twice. Called by `dispatch.outboxes`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import urlsplit

from gatepost.errors import ConfigurationError, GatepostError
from gatepost.store.open import sqlite_path
from gatepost.store.postgres.address import SCHEMES
from gatepost.store.rows import OutboxEvent

ROWS_MAX: Final = 250
"""Rows of one look: as many as Gatepost stores in one transaction."""
BYTES_MAX: Final = 4 * 1_048_576
"""Bodies of one look, beyond the first."""


class OutboxUnavailable(GatepostError):
    """The producer's database does not answer, or refuses; the text names it without its password."""


class Oversized(NamedTuple):
    """A row whose body is over the limit; it was not read."""

    event_id: int
    tenant: str
    size: int


@dataclass(slots=True)
class Look:
    """What waits: the oldest rows by id."""

    events: Sequence[OutboxEvent] = ()
    oversized: Sequence[Oversized] = ()
    more: bool = False
    """There may be more: look again at once."""

    def __bool__(self) -> bool:
        return bool(self.events or self.oversized)


@dataclass(slots=True)
class Verdict:
    """What becomes of the rows of a look; those that are not named stay as they are."""

    done: list[int] = field(default_factory=list)
    """Stored in Gatepost: removed."""
    aside: list[int] = field(default_factory=list)
    """Cannot be taken: kept with `done_at` below zero, for people to look at."""
    renumbered: list[tuple[int, int]] = field(default_factory=list)
    """Old and new id: waits on under the new one."""

    def __bool__(self) -> bool:
        return bool(self.done or self.aside or self.renumbered)


Judge: TypeAlias = Callable[[Look], Awaitable[Verdict]]


class OutboxSource(Protocol):
    """One database. For one follower at a time."""

    @property
    def place(self) -> str:
        """Its URL for messages, without user and password."""
        ...

    async def take(self, body_max: int, without: Collection[str], judge: Judge) -> bool:
        """Show `judge` the oldest waiting rows, except those of tenants in `without`, and do as it says.

        True: look again at once, for something was done and there may be more. Raises `OutboxUnavailable`, also when the table
        is missing, and what `judge` raises; then the rows stay. When the end cannot be recorded they stay too, and are shown
        again.
        """
        ...

    async def sweep(self, before_us: int) -> bool:
        """Remove some rows that were put away before this instant (UTC microseconds); True: there may be more."""
        ...

    async def erase(self, tenant: str) -> int:
        """Remove all rows of a tenant, those that wait and those that were set aside; returns how many.

        On a connection of its own, so from any process, beside whoever follows. Raises `OutboxUnavailable`; safe to repeat.
        """
        ...

    async def aclose(self) -> None:
        """Let go of the connection; `take` opens another. Idempotent."""
        ...


def open_source(url: str) -> OutboxSource:
    """The source of a URL; connects later. Raises `ConfigurationError` for a URL that names no such database."""
    scheme = urlsplit(url).scheme
    if scheme in SCHEMES:
        try:
            from gatepost.store.outbox.source_postgres import PostgresSource
        except ModuleNotFoundError as error:
            if error.name != "asyncpg":
                raise
            raise ConfigurationError("outboxes on PostgreSQL need asyncpg: pip install 'gatepost[postgres]'") from None

        return PostgresSource(url)
    if scheme == "sqlite":
        from gatepost.store.outbox.source_sqlite import SqliteSource

        return SqliteSource(sqlite_path(url))
    raise ConfigurationError(
        "outboxes holds a URL that names no producer's database: write postgresql://user:password@host/database or "
        "sqlite:///app.db (SQLAlchemy's postgresql+driver:// without the driver)"
    )


def open_sources(urls: Collection[str], own: str) -> list[OutboxSource]:
    """A source for each URL; `own` is the store's. Raises `ConfigurationError` also for what is written twice."""
    if isinstance(urls, str):
        raise ConfigurationError("outboxes is one text: write a list of URLs")
    sources = [open_source(url) for url in urls]
    places = [source.place for source in sources]
    for url, place in zip(urls, places, strict=True):
        if url == own:
            raise ConfigurationError(
                f"outboxes holds the store's own database ({place}), which is followed anyway: leave it out"
            )
        if places.count(place) > 1:
            raise ConfigurationError(f"outboxes holds {place} twice: leave one out")
    return sources


def portion(sizes: Sequence[tuple[int, str, int]], body_max: int) -> tuple[list[int], list[Oversized], bool]:
    """Of (id, tenant, size) in order: the ids to read now, those too large to read, and whether some are left for later."""
    ids: list[int] = []
    oversized: list[Oversized] = []
    total = 0
    for event_id, tenant, size in sizes:
        if size > body_max:
            oversized.append(Oversized(event_id, tenant, size))
            continue
        total += size
        if ids and total > BYTES_MAX:
            return ids, oversized, True
        ids.append(event_id)
    return ids, oversized, len(sizes) >= ROWS_MAX
