"""Schema steps: planned, applied once whoever runs them, and schema N runs code N and N - 1."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gatepost.errors import ConfigurationError, SchemaMismatch, StoreError, StoreLocked
from gatepost.service.cli.root import app
from gatepost.store.migrate import administering, install_outbox, migrate_database, plan_database
from gatepost.store.migration import Migration, plan
from gatepost.store.open import open_store
from gatepost.store.postgres.address import postgres_address
from gatepost.store.postgres.pool import Connection
from gatepost.store.postgres.schema import LOCK, migrate, migrations, prepare, read_state
from gatepost.store.secretbox import SecretBox
from gatepost.store.sqlite.store import SqliteStore
from gatepost.testing.postgres import empty_database, shared_server

KNOWN = migrations()
LATEST = KNOWN[-1].number
NEXT = Migration(LATEST + 1, f"{LATEST + 1:04}_pre_colour.sql", "ALTER TABLE gp_tenant ADD COLUMN colour text")
AFTER = Migration(
    LATEST + 2,
    f"{LATEST + 2:04}_post_plain.sql",
    f"ALTER TABLE gp_tenant DROP COLUMN colour; UPDATE gp_schema SET oldest_code = {LATEST + 1} WHERE number = {LATEST + 2}",
)
"""A made-up next version: it adds, and once the version before is gone it removes."""


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """An operator's connection."""
    async with administering(postgres_address(url)) as connection:
        yield connection


async def new_database(known: Sequence[Migration] = ()) -> str:
    """A new database with these steps applied."""
    url = await asyncio.to_thread(empty_database)
    if known:
        async with connected(url) as connection:
            await migrate(connection, "db", post=True, known=known)
    return url


def run(*arguments: str) -> tuple[int, Any]:
    """A command's exit code and the JSON it printed."""
    result = CliRunner().invoke(app, [*arguments, "--json"])
    return result.exit_code, json.loads(result.stdout) if result.stdout else result.exception


def test_a_post_step_holds_back_whatever_follows_it() -> None:
    """Its number comes first; an empty database has no older code that it could hurt."""
    known = [
        Migration(1, "0001_pre_a.sql", ""),
        Migration(2, "0002_post_b.sql", ""),
        Migration(3, "0003_pre_c.sql", ""),
    ]
    held = plan(1, known, post=False)
    assert (held.steps, held.held, held.blocked) == ((), tuple(known[1:]), True)
    assert plan(1, known, post=True).steps == tuple(known[1:])
    assert plan(0, known, post=False).steps == tuple(known)
    assert not plan(1, known[:2], post=False).blocked


async def test_an_empty_database_is_filled_only_when_told_to() -> None:
    """A wrong URL must not leave tables in somebody's database; the message says what to run."""
    url = await new_database()
    keys = [SecretBox.new_key()]
    with pytest.raises(ConfigurationError, match=r"no Gatepost schema: run gatepost migrate --database postgresql://"):
        await open_store(url, keys=keys)
    await (await open_store(url, keys=keys, create=True)).aclose()
    await (await open_store(url, keys=keys)).aclose()
    async with connected(url) as connection:
        days = await connection.fetchval("SELECT count(*) FROM pg_inherits WHERE inhparent = 'gp_event'::regclass")
        assert days > 3, "partitions for the days to come are there from the beginning"


async def test_schema_n_runs_code_n_and_n_minus_1() -> None:
    """A rolling upgrade: new schema first, then new code beside the old, then what is left over goes."""
    url = await new_database(KNOWN)
    newer, newest = (*KNOWN, NEXT), (*KNOWN, NEXT, AFTER)
    async with connected(url) as connection:
        with pytest.raises(
            StoreError, match=rf"has schema {LATEST}, this code needs {LATEST + 1}: run gatepost migrate"
        ):
            await prepare(connection, "db", create=True, known=newer)
        assert list(await migrate(connection, "db", post=False, known=newest)) == [NEXT]
        for code in (KNOWN, newer, newest):
            await prepare(connection, "db", create=False, known=code)
        assert list(await migrate(connection, "db", post=True, known=newest)) == [AFTER]
        for code in (newer, newest):
            await prepare(connection, "db", create=False, known=code)
        with pytest.raises(SchemaMismatch, match=f"needs the code of schema {LATEST + 1} or newer"):
            await prepare(connection, "db", create=False, known=KNOWN)
        with pytest.raises(SchemaMismatch):
            await migrate(connection, "db", post=False, known=KNOWN)
        assert await read_state(connection) == (LATEST + 2, LATEST + 1)


async def test_two_runs_at_once_do_each_step_once() -> None:
    """Deployments start several; whoever comes second waits and says so."""
    url = await new_database()
    waits: list[str] = []
    runs = await asyncio.gather(*(migrate_database(url, on_wait=waits.append) for _ in range(3)))
    done = [step for one in runs for step in one.steps]
    assert sorted(done) == [step.name for step in KNOWN]
    holding = asyncio.Event()

    async def slow() -> None:
        async with connected(url) as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
            holding.set()
            await asyncio.sleep(0.3)

    async def second() -> None:
        await holding.wait()
        async with connected(url) as connection:
            assert len(await migrate(connection, "db", post=False, known=(*KNOWN, NEXT), on_wait=waits.append)) == 1

    waits.clear()
    await asyncio.gather(slow(), second())
    assert waits == ["another migration is running"]


async def test_a_step_waits_for_a_table_in_short_turns() -> None:
    """Whoever waits for a lock makes everybody wait behind: it gives up and tries again, and deliveries go on between."""
    url = await new_database(KNOWN)
    waits: list[str] = []
    async with connected(url) as reader, connected(url) as connection:
        transaction = reader.transaction()
        await transaction.start()
        await reader.fetch("SELECT * FROM gp_tenant")
        running = asyncio.ensure_future(
            migrate(connection, "db", post=False, known=(*KNOWN, NEXT), on_wait=waits.append)
        )
        while not waits:  # noqa: ASYNC110 - the other side is a server
            await asyncio.sleep(0.05)
        await transaction.rollback()
        assert list(await running) == [NEXT]
    assert set(waits) == {"a table is in use"}


async def test_a_step_that_fails_leaves_the_schema_as_it_was() -> None:
    """The steps before it stay, and the message names it."""
    url = await new_database(KNOWN)
    broken = Migration(LATEST + 2, f"{LATEST + 2:04}_pre_broken.sql", "CREATE TABLE half (); SELECT 1 / 0")
    async with connected(url) as connection:
        with pytest.raises(StoreError, match="_pre_broken"):
            await migrate(connection, "db", post=False, known=(*KNOWN, NEXT, broken))
        assert (await read_state(connection)).schema == LATEST + 1
        assert await connection.fetchval("SELECT to_regclass('half')") is None


def test_the_command_shows_its_plan_and_follows_it() -> None:
    """--plan changes nothing; a second run has nothing to do; the password is nowhere."""
    url = shared_server().create_database()
    secret = url.replace("postgres@", "postgres:hunter2@")
    code, planned = run("migrate", "--database", secret, "--plan")
    assert (code, planned["schema"], planned["steps"]) == (0, 0, [step.name for step in KNOWN])
    assert "hunter2" not in json.dumps(planned)
    code, done = run("migrate", "--database", secret)
    assert (code, done["steps"], done["code"]) == (0, planned["steps"], LATEST)
    code, again = run("migrate", "--database", secret)
    assert (code, again["schema"], again["steps"]) == (0, LATEST, [])
    assert run("migrate", "--from", "sqlite:///a.db")[0] == 2
    assert run("migrate", "--outbox", url, "--plan")[0] == 2


async def test_the_outbox_is_installed_in_a_producers_database(tmp_path: Path) -> None:
    """One table, beside whatever else is there; safe to repeat."""
    url = await new_database()
    for database in (url, url, f"sqlite:///{tmp_path}/orders.db", f"sqlite:///{tmp_path}/orders.db"):
        await install_outbox(database)
    async with connected(url) as connection:
        tables = await connection.fetch(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        )
        assert [row[0] for row in tables] == ["gatepost_outbox"]


async def test_a_file_is_planned_and_migrated_as_well(tmp_path: Path) -> None:
    """Its dispatcher would do it at its start; an operator may want to know before."""
    path = tmp_path / "gatepost.db"
    url = f"sqlite:///{path}"
    planned = await plan_database(url)
    assert (planned.schema, len(planned.steps)) == (0, planned.code)
    assert not path.exists(), "a plan changes nothing"
    assert (await migrate_database(url)).steps == planned.steps
    assert (await plan_database(url)).steps == ()
    store = SqliteStore.open(path)
    try:
        with pytest.raises(StoreLocked):
            await migrate_database(url)
    finally:
        await store.aclose()
