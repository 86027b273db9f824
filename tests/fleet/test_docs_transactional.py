"""The page on publishing in one's own transaction: every block runs as it stands, against real databases."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from gatepost.service.config import load_settings
from tests.fleet.outbox_drivers import ORDERS, database, run_sql
from tests.fleet.test_contrib_django import SETUP, sqlite_databases
from tests.fleet.test_outbox_sqlite import following, until

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "publish-in-your-transaction.md").read_text()


def blocks(language: str) -> list[str]:
    """The code blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def run_block(code: str) -> dict[str, Any]:
    """The names that a block defines."""
    names: dict[str, Any] = {}
    exec(compile(code, "publish-in-your-transaction.md", "exec"), names)
    return names


WITH_ASYNCPG, WITH_SQLALCHEMY, WITH_SQLITE, WITH_DISPATCHER, WITH_DJANGO = blocks("python")


async def test_the_table_is_made_by_the_command_of_the_page(tmp_path: Path) -> None:
    """The first thing a reader types."""
    [command] = blocks("console")
    url = await database("postgres", tmp_path, outbox=False)
    arguments = command.replace("postgresql://shop@localhost/shop", url).split()[1:]
    for _ in range(2):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gatepost.service.cli", *arguments, cwd=tmp_path, stdout=subprocess.DEVNULL
        )
        assert await process.wait() == 0
    assert await run_sql(url, "SELECT count(*) FROM gatepost_outbox") == [(0,)]


async def test_asyncpg_and_sqlalchemy_deliver(tmp_path: Path) -> None:
    """The two blocks for asynchronous programs."""
    url = await database("postgres", tmp_path)
    async with following(url) as (_, receiver):
        async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
            first = await run_block(WITH_ASYNCPG)["place_order"](pool, 1)
        engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
        async with AsyncSession(engine) as session:
            second = await run_block(WITH_SQLALCHEMY)["place_order"](session, 2)
        await engine.dispose()
        await until(lambda: len(receiver.ledger) == 2)
        assert dict(receiver.ledger) == {first: 1, second: 1}
    assert await run_sql(url, "SELECT number FROM orders ORDER BY number") == [(1,), (2,)]


async def test_sqlite_delivers_and_a_failing_order_does_not(tmp_path: Path) -> None:
    """The block for synchronous programs."""
    url = await database("sqlite", tmp_path)
    place_order = run_block(WITH_SQLITE)["place_order"]
    async with following(url) as (_, receiver):
        connection = sqlite3.connect(tmp_path / "app.db", timeout=20)
        event_id = place_order(connection, 1)
        try:
            place_order(connection, 1)
        except sqlite3.IntegrityError:
            pass
        connection.close()
        await until(lambda: event_id in receiver.ledger)
        await asyncio.sleep(0.5)
        assert dict(receiver.ledger) == {event_id: 1}


async def test_the_dispatcher_of_the_page_takes_what_waits(tmp_path: Path) -> None:
    """And ends when it is cancelled."""
    shop, own = await database("sqlite", tmp_path), f"sqlite:///{tmp_path / 'gatepost.db'}"
    connection = sqlite3.connect(tmp_path / "app.db", timeout=20)
    run_block(WITH_SQLITE)["place_order"](connection, 1)
    connection.close()
    delivering = asyncio.ensure_future(run_block(WITH_DISPATCHER)["deliver"](own, shop))
    async with asyncio.timeout(30):
        while await run_sql(shop, "SELECT count(*) FROM gatepost_outbox") != [(0,)]:  # noqa: ASYNC110 - another connection's
            await asyncio.sleep(0.02)
    delivering.cancel()
    await asyncio.gather(delivering, return_exceptions=True)


def test_the_setting_of_the_page_is_one(tmp_path: Path) -> None:
    """A misspelt setting refuses to start."""
    [text] = blocks("toml")
    file = tmp_path / "gatepost.toml"
    file.write_text(text)
    assert load_settings(file, {}, open_files=1_024).outboxes == ("postgresql://gatepost@localhost/shop",)


def test_django_publishes(tmp_path: Path) -> None:
    """The block for Django, in a process of its own, since its settings are global."""
    program = SETUP.replace("{DATABASES}", sqlite_databases(tmp_path / "app.db")).replace("{GATEPOST}", "{}")
    program += f"\nwith connection.cursor() as cursor:\n    cursor.execute({ORDERS!r})\n{WITH_DJANGO}\n"
    program += "assert place_order(1).startswith('evt_') and types() == ['order.created']\n"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_every_block_of_the_page_is_run_here() -> None:
    """A block that somebody adds must be added to the tests."""
    assert len(re.findall(r"^```\w", PAGE, re.MULTILINE)) == len(blocks("python")) + 2
