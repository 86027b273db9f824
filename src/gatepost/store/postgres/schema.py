"""Brings a PostgreSQL database to the schema this code needs, and refuses databases it must not touch.

Each step is one transaction behind an advisory lock, with short lock waits so that it never stops deliveries for long. Opening
a store only checks; it creates the schema in an empty database when told to, and never migrates a used one. Called by the
store when it opens, by `gatepost migrate` and by tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gatepost.clock import SYSTEM_CLOCK
from gatepost.errors import ConfigurationError, StoreError
from gatepost.store.migration import Migration, Plan, check_usable, migrations_of, plan
from gatepost.store.postgres.partitions import make_ahead
from gatepost.store.postgres.pool import Connection

OLDEST_POSTGRES: Final = 140_000
"""PostgreSQL 14: DETACH PARTITION CONCURRENTLY and LZ4 columns; older ones are out of support since November 2025."""
LOCK: Final = 0x67707374_6D677274
"""The advisory lock of whoever changes the schema: `gpst`, `mgrt`."""
LOCK_TIMEOUT_MS: Final = 2_000
"""A step waits no longer for a table: everybody who comes after it would wait behind it."""
TRIES: Final = 15
TRY_PAUSE: Final = 1.0
"""Seconds between them, in which those who waited behind the step catch up."""

_STATE = "SELECT to_regclass('gp_schema') IS NOT NULL"
_BOOTSTRAP = """
CREATE TABLE IF NOT EXISTS gp_schema (
  number      integer PRIMARY KEY,
  name        text NOT NULL,
  applied_at  timestamptz NOT NULL DEFAULT now(),
  oldest_code integer NOT NULL DEFAULT 1  -- the oldest schema number whose code may still use this database
)"""


class State(NamedTuple):
    """What a database says of itself. `schema` 0: nothing of ours is in it."""

    schema: int
    oldest_code: int


def migrations() -> tuple[Migration, ...]:
    """All steps, in order."""
    return migrations_of("postgres")


async def read_state(connection: Connection) -> State:
    """The schema of a database."""
    if not await connection.fetchval(_STATE):
        return State(0, 0)
    row = await connection.fetchrow("SELECT number, oldest_code FROM gp_schema ORDER BY number DESC LIMIT 1")
    return State(0, 0) if row is None else State(row["number"], row["oldest_code"])


async def prepare(connection: Connection, name: str, *, create: bool, known: Sequence[Migration] | None = None) -> None:
    """Prove that this code may use the database, after creating the schema in an empty one when `create`.

    `name` is the URL without its password. Raises `ConfigurationError` for a server that is too old and for an empty database
    without `create`, `SchemaMismatch` for a schema that is newer than this code allows, `StoreError` for an older one.
    """
    steps, known = known, migrations() if known is None else known
    check_server(connection, name)
    state = await read_state(connection)
    if state.schema == 0 and create:
        await migrate(connection, name, post=True, known=known)
        state = await read_state(connection)
        if steps is None:
            await make_ahead(connection, SYSTEM_CLOCK.wall_us())
    if state.schema == 0:
        raise ConfigurationError(
            f"{name} holds no Gatepost schema: run gatepost migrate --database {name} once, "
            "or start with gatepost serve --migrate"
        )
    check_usable(name, state.schema, state.oldest_code, known)
    if steps is None:
        await _check_moved_in(connection, name)


def check(name: str, state: State) -> None:
    """Raises `StoreError` or `SchemaMismatch` when this code may not use a database in this state."""
    check_usable(name, state.schema, state.oldest_code, migrations())


async def _check_moved_in(connection: Connection, name: str) -> None:
    source = await connection.fetchval("SELECT source FROM gp_move WHERE finished_at IS NULL")
    if source is not None:
        raise StoreError(
            f"the move from {source} into {name} is not finished: repeat gatepost migrate --from … --to … with the same URLs"
        )


def check_server(connection: Connection, name: str) -> None:
    """Raises `ConfigurationError` for a server that is too old."""
    version = connection.get_server_version()
    if version.major * 10_000 < OLDEST_POSTGRES:
        raise ConfigurationError(
            f"{name} runs PostgreSQL {version.major}: Gatepost needs {OLDEST_POSTGRES // 10_000} or newer"
        )


async def plan_of(connection: Connection, *, post: bool, known: Sequence[Migration] | None = None) -> Plan:
    """What `migrate` would do."""
    return plan((await read_state(connection)).schema, migrations() if known is None else known, post=post)


async def migrate(
    connection: Connection,
    name: str,
    *,
    post: bool,
    known: Sequence[Migration] | None = None,
    on_wait: Callable[[str], None] = lambda _: None,
    on_step: Callable[[Migration], None] = lambda _: None,
) -> Sequence[Migration]:
    """Apply what the database needs; returns the steps that were applied here.

    `post`: also the steps that no older code survives. `on_wait` hears in words what it waits for: another migration, or a table
    that is in use. Raises as `prepare`, and `StoreError` when a table stays in use or a step fails; steps before it stay.
    """
    known = migrations() if known is None else known
    check_server(connection, name)
    state = await read_state(connection)
    if state.schema > known[-1].number:
        check_usable(name, state.schema, state.oldest_code, known)
        return ()
    post = post or state.schema == 0  # nobody can be using an empty database
    applied: list[Migration] = []
    while (step := await _next_step(connection, known, post)) is not None:
        if await _apply(connection, name, step, on_wait):
            applied.append(step)
            on_step(step)
    return applied


async def _next_step(connection: Connection, known: Sequence[Migration], post: bool) -> Migration | None:
    steps = plan((await read_state(connection)).schema, known, post=post).steps
    return steps[0] if steps else None


async def _apply(connection: Connection, name: str, step: Migration, on_wait: Callable[[str], None]) -> bool:
    """Apply one step; False when somebody else did so meanwhile."""
    from asyncpg import LockNotAvailableError, PostgresError

    for tries_left in reversed(range(TRIES)):
        try:
            async with connection.transaction():
                if not await connection.fetchval("SELECT pg_try_advisory_xact_lock($1)", LOCK):
                    on_wait("another migration is running")
                    await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
                await connection.execute(_BOOTSTRAP)
                if (await read_state(connection)).schema >= step.number:
                    return False
                await connection.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
                await connection.execute(
                    "INSERT INTO gp_schema (number, name, oldest_code) VALUES"
                    " ($1, $2, (SELECT coalesce(max(oldest_code), 1) FROM gp_schema))",
                    step.number,
                    step.name,
                )
                await connection.execute(step.sql)
                return True
        except LockNotAvailableError:
            if not tries_left:
                raise StoreError(
                    f"{name}: {step.name} waited {TRIES} times {LOCK_TIMEOUT_MS / 1000:.0f} s for a table in use: "
                    "end the long transaction (pg_stat_activity shows it) and run gatepost migrate again"
                ) from None
            on_wait("a table is in use")
            await asyncio.sleep(TRY_PAUSE)
        except PostgresError as error:
            raise StoreError(f"{name}: {step.name} failed ({error.sqlstate}): {error}") from error
    raise AssertionError("the last try returns or raises")
