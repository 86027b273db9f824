"""Stores on a real PostgreSQL for tests: a database with the schema, how many parts it has, and the loss of a session.

Databases are copied from one that was migrated once per process. Used by the contract suites, fleet tests and the chaos bench.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import asyncpg

from gatepost.clock import Clock
from gatepost.store.postgres.pool import PoolLimits
from gatepost.store.postgres.schema import prepare
from gatepost.store.postgres.store import PostgresStore
from gatepost.store.secretbox import SecretBox
from gatepost.testing.postgres import PostgresServer, shared_server

KEYS: Final = (SecretBox.new_key(),)
"""Seal endpoint secrets in every store of this process."""
PATIENCE: Final = 10.0
"""Seconds for the server to end a session."""
_POLL: Final = 0.005
_RUNS: Final = "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = $1)"


def gatepost_database(parts: int = 1_024, server: PostgresServer | None = None) -> str:
    """The URL of a new database with Gatepost's schema and so many parts. Blocks; not inside an event loop."""
    server = server or shared_server()
    return server.create_database(server.template(f"gatepost_{parts}", partial(_fill, parts=parts)))


def _fill(url: str, parts: int) -> None:
    asyncio.run(_migrate(url, parts))


async def _migrate(url: str, parts: int) -> None:
    connection = await asyncpg.connect(url)
    try:
        await prepare(connection, url, create=True)
        await connection.execute("UPDATE gp_meta SET value = $1 WHERE name = 'parts'", parts)
        await connection.execute("DELETE FROM gp_part WHERE part >= $1", parts)
    finally:
        await connection.close()


async def open_postgres(url: str, clock: Clock | None = None, *, limits: PoolLimits | None = None) -> PostgresStore:
    """A store on the database of `url`, as a process of its own would open it."""
    return await PostgresStore.open(url, box=SecretBox(KEYS), clock=clock, limits=limits)


async def new_postgres(clock: Clock | None = None, parts: int = 1_024) -> PostgresStore:
    """A store on a new database."""
    return await open_postgres(await asyncio.to_thread(gatepost_database, parts), clock)


async def end_session(store: PostgresStore, url: str) -> None:
    """End the session of `store` as a crash of its server process would; returns when both sides have noticed."""
    pid = store.session_pid
    if pid is None:
        return
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SELECT pg_terminate_backend($1)", pid)
        async with asyncio.timeout(PATIENCE):
            while store.session_pid == pid or await connection.fetchval(_RUNS, pid):  # noqa: ASYNC110 - the server's
                await asyncio.sleep(_POLL)
    finally:
        await connection.close()
