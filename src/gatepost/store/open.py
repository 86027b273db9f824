"""Opens the store that a URL names. The only place that knows which schemes there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote, urlsplit

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.errors import ConfigurationError
from gatepost.store.memory import MemoryStore
from gatepost.store.port import Store
from gatepost.store.postgres.address import SCHEMES as POSTGRES_SCHEMES

_FORMS: Final = (
    "write sqlite:///gatepost.db (a path), sqlite:////var/lib/gatepost.db (an absolute one), "
    "postgresql://user@host/database or memory://"
)


async def open_store(
    url: str, *, keys: Sequence[str] | None = None, clock: Clock = SYSTEM_CLOCK, create: bool = False
) -> Store:
    """The store of `url`. SQLite blocks while it opens. `keys` seal endpoint secrets (`SecretBox`); None: a key file beside an
    SQLite file, and refused on PostgreSQL, which other machines share. `create` makes the schema in an empty PostgreSQL database.

    Raises `ConfigurationError` for an unknown scheme or a URL with parts that mean nothing here, and what the engine raises.
    """
    if urlsplit(url).scheme == "memory":
        if url != "memory://":
            raise ConfigurationError(f"{url!r}: a store in memory has no name, write memory://")
        return MemoryStore(clock)
    if urlsplit(url).scheme in POSTGRES_SCHEMES:
        from gatepost.store.postgres.keycheck import box_of
        from gatepost.store.postgres.store import PostgresStore

        # Its times are the database's, unless somebody moves the clock.
        given = None if clock is SYSTEM_CLOCK else clock
        return await PostgresStore.open(url, box=box_of(keys), clock=given, create=create)
    path = sqlite_path(url)
    # Imported here, so that memory:// works without the extra that seals secrets.
    from gatepost.store.secretbox import SecretBox
    from gatepost.store.sqlite.store import SqliteStore

    return SqliteStore.open(path, box=None if keys is None else SecretBox(keys), clock=clock)


def sqlite_path(url: str) -> str:
    """The file that an `sqlite:///` URL names. Raises `ConfigurationError` for any other URL."""
    parts = urlsplit(url)
    if parts.scheme != "sqlite":
        raise ConfigurationError(f"{url!r} does not name a store: {_FORMS}")
    path = unquote(parts.path)[1:]
    if parts.netloc or parts.query or parts.fragment or not path:
        raise ConfigurationError(f"{url!r}: {_FORMS}; there is no host and there are no options")
    if path == ":memory:":
        raise ConfigurationError(f"{url!r}: a store in memory is memory://")
    return path
