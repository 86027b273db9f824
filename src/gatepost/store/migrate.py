"""Brings whatever a URL names to this code's schema, or says what that would take: the work behind `gatepost migrate`.

PostgreSQL is only ever migrated here (and an empty database by a store that was told to create it); an SQLite file also by the
dispatcher that opens it. Also installs the outbox table in a producer's database. It prints nothing.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gatepost.clock import SYSTEM_CLOCK
from gatepost.errors import ConfigurationError
from gatepost.store.migration import Migration, Plan, check_usable, plan
from gatepost.store.open import sqlite_path
from gatepost.store.outbox.schema import ADD_TRACE, HAS_TRACE, outbox_statements
from gatepost.store.postgres import schema as postgres_schema
from gatepost.store.postgres.address import SCHEMES, PostgresAddress, postgres_address
from gatepost.store.postgres.failures import translated
from gatepost.store.postgres.partitions import make_ahead
from gatepost.store.postgres.pool import CONNECT_MAX, Connection
from gatepost.store.sqlite import schema as sqlite_schema
from gatepost.store.sqlite.connection import connect, store_error
from gatepost.store.sqlite.lock import FileLock

OLDEST_CODE_OF_SQLITE: Final = "SELECT value FROM meta WHERE name = 'oldest_code'"


@dataclass(frozen=True, slots=True)
class Migrated:
    """What became of a database, or would."""

    place: str
    """The database, without its password."""
    schema: int
    """Number of its last step, before."""
    code: int
    """Number of the last step that this code knows."""
    steps: tuple[str, ...]
    """Steps that were applied here; with a plan, that would be."""
    held: tuple[str, ...]
    """A `post` step that was not asked for, and what comes after it."""
    blocked: bool
    """A step that this code cannot run without is among those held."""


def _nothing(_: str) -> None:
    pass


async def plan_database(url: str, *, post: bool = False) -> Migrated:
    """What `migrate_database` would do; changes nothing, not even an SQLite file that does not exist."""
    if urlsplit(url).scheme in SCHEMES:
        address = postgres_address(url)
        async with administering(address) as connection:
            postgres_schema.check_server(connection, address.place)
            found = await postgres_schema.plan_of(connection, post=post)
        return _migrated(address.place, found)
    path = sqlite_path(url)
    return _migrated(path, _sqlite_plan(path, post))


async def migrate_database(
    url: str,
    *,
    post: bool = False,
    on_wait: Callable[[str], None] = _nothing,
    on_step: Callable[[str], None] = _nothing,
) -> Migrated:
    """Apply what the database lacks, step by step; `post` also what no older code survives.

    `on_wait` hears what is waited for, `on_step` the name of each step when it is done. Two that run at once do each step once.
    Raises `ConfigurationError` for a URL, server or file that cannot be right, `SchemaMismatch` for a newer schema than this code
    may use, `StoreLocked` for an SQLite file that a dispatcher owns, `StoreError`.
    """
    if urlsplit(url).scheme not in SCHEMES:
        path = sqlite_path(url)
        planned = _sqlite_plan(path, post)
        _migrate_file(path)
        for step in planned.steps + planned.held:
            on_step(step.name)
        # A file has one owner, and it is not running: there is no older code that a step could hurt.
        return _migrated(path, Plan(planned.schema, planned.code, planned.steps + planned.held, ()))
    address = postgres_address(url)

    def stepped(step: Migration) -> None:
        on_step(step.name)

    async with administering(address) as connection:
        before = await postgres_schema.plan_of(connection, post=post)
        done = await postgres_schema.migrate(connection, address.place, post=post, on_wait=on_wait, on_step=stepped)
        await make_ahead(connection, SYSTEM_CLOCK.wall_us())
    return _migrated(address.place, Plan(before.schema, before.code, tuple(done), before.held))


async def install_outbox(url: str) -> str:
    """Create the table `gatepost_outbox` in a producer's database; safe to repeat. Returns the database's name for messages."""
    if urlsplit(url).scheme in SCHEMES:
        address = postgres_address(url)
        async with administering(address) as connection, connection.transaction():
            for statement in outbox_statements("postgres"):
                await connection.execute(statement)
        return address.place
    path = sqlite_path(url)
    try:
        with closing(connect(path)) as file:
            for statement in outbox_statements("sqlite"):
                file.execute(statement)
            if file.execute(HAS_TRACE).fetchone() is None:  # an earlier version made the table without it
                file.execute(ADD_TRACE)
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    return path


@asynccontextmanager
async def administering(address: PostgresAddress) -> AsyncIterator[Connection]:
    """A connection for long work by an operator: without the store's time limits. Translates the driver's errors."""
    try:
        import asyncpg
    except ImportError:
        raise ConfigurationError("postgresql:// needs asyncpg: pip install 'gatepost[postgres]'") from None
    try:
        connection = await asyncpg.connect(address.url, timeout=CONNECT_MAX, statement_cache_size=0)
        try:
            await connection.execute("SET client_min_messages = error")
            yield connection
        finally:
            async with asyncio.timeout(CONNECT_MAX):
                await connection.close()
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise translated(error, address.place) from error


def _migrated(place: str, found: Plan) -> Migrated:
    return Migrated(
        place,
        found.schema,
        found.code,
        tuple(step.name for step in found.steps),
        tuple(step.name for step in found.held),
        found.blocked,
    )


def _sqlite_plan(path: str, post: bool) -> Plan:
    known = sqlite_schema.migrations()
    if not Path(path).exists():
        return plan(0, known, post=post)
    try:
        with closing(sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)) as file:
            schema = int(file.execute("PRAGMA user_version").fetchone()[0])
            if schema > known[-1].number:
                check_usable(path, schema, int(file.execute(OLDEST_CODE_OF_SQLITE).fetchone()[0]), known)
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    return plan(schema, known, post=post)


def _migrate_file(path: str) -> None:
    lock = FileLock(path)
    try:
        with closing(connect(path)) as file:
            sqlite_schema.prepare(file, path, SYSTEM_CLOCK, may_migrate=True)
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    finally:
        lock.release()
