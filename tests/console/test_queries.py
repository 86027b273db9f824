"""No page of the console asks the database for more as its tables grow: every statement that a visit really runs, as it is planned."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any, Final

import asyncpg

from bench.console import Browser, pages
from bench.console_rows import furnish
from gatepost.delivery.records import Secret
from gatepost.testing.postgres import shared_server
from gatepost.testing.postgres_store import KEYS, gatepost_database
from tests.service.running import ADMIN_KEY, api

ENDPOINTS: Final = 60
DELIVERIES: Final = 80_000
"""With fewer the server may rightly read a small day whole."""
LARGE: Final = (
    "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^gp_' AND reltuples > 500 AND relname <> 'gp_part'"
)
"""Tables, and partitions of tables, that have rows enough for a plan to show what it would do with a million; parts are
fixed at install."""
ENTRY: Final = re.compile(r"^\d{4}-\d\d-\d\d [\d:.]+ \S+ \[\d+\] (\S*) (\w+):  (.*)", re.DOTALL)
PARAMETER: Final = re.compile(r"\$\d+ = (NULL|'(?:[^']|'')*')")


async def test_every_statement_of_every_page_finds_its_rows_by_a_key(tmp_path: Path) -> None:
    """A page that reads a table is quick on the day it is written. The server's own log says what ran, so none can be forgotten."""
    server = shared_server()
    url = await asyncio.to_thread(gatepost_database)
    house = await furnish(url, KEYS, ENDPOINTS, DELIVERIES, lambda _: None)
    connection = await asyncpg.connect(url)
    try:
        name = await connection.fetchval("SELECT current_database()")
        keys = tuple(Secret(key) for key in KEYS)
        await connection.execute(f"ALTER DATABASE {name} SET log_statement = 'all'")
        begun = len(server.log)
        async with api(tmp_path, keyed=True, database=url, keys=keys) as service:
            browser = Browser(service.running.url)
            await asyncio.to_thread(browser.sign_in, ADMIN_KEY)
            async with asyncio.timeout(30.0):
                while service.running.dispatcher.statistics().parts < 1_024:  # noqa: ASYNC110 - it sets no event of ours
                    await asyncio.sleep(0.05)
            for page, paths in pages(house):
                status, body = await asyncio.to_thread(browser.get, next(paths))
                assert status == 200, (page, body[:500])
            browser.close()
        ran = statements(server.log[begun:], name)
        assert len(ran) > 20, ran
        large = {row[0] for row in await connection.fetch(LARGE)}
        assert "gp_delivery" in large, large
        await connection.execute("SET plan_cache_mode = force_custom_plan")
        for statement, values in ran.items():
            plan = await planned(connection, statement, values)
            assert plan is None or not reading(plan, large), (statement, json.dumps(plan, indent=1))
    finally:
        await connection.close()


def statements(log: str, database: str) -> dict[str, list[str]]:
    """SELECTs with the values of their first run, as SQL literals."""
    found: dict[str, list[str]] = {}
    last = ""
    for entry in re.split(r"\n(?=\d{4}-\d\d-\d\d )", log):
        match = ENTRY.match(entry)
        if match is None or match[1] != database:
            continue
        level, text = match[2], match[3]
        if level == "LOG" and "execute " in text:
            last = text.partition(": ")[2].strip()
        elif level == "DETAIL" and last.upper().startswith(("SELECT", "WITH")):
            found.setdefault(last, PARAMETER.findall(text))
    return found


async def planned(connection: Any, statement: str, values: list[str]) -> dict[str, Any] | None:
    """How the server runs it with these values."""
    await connection.execute(f"PREPARE asked AS {statement}")
    try:
        arguments = f"({', '.join(values)})" if values else ""
        rows = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE asked{arguments}")
    finally:
        await connection.execute("DEALLOCATE asked")
    plan: dict[str, Any] = json.loads(rows)[0]["Plan"]
    return plan


def reading(plan: dict[str, Any], large: set[str], limited: bool = False) -> bool:
    """A large table is read from end to end; up to a limit and without a condition, so many rows of it may be."""
    if plan["Node Type"].endswith("Seq Scan") and plan["Relation Name"] in large:
        return not limited or "Filter" in plan
    limited = plan["Node Type"] == "Limit" or (limited and plan["Node Type"] == "Append")
    return any(reading(child, large, limited) for child in plan.get("Plans", ()))
