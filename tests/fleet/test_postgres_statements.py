"""How PostgreSQL means to run the queue's statements: by key, whatever it knows of the tables, and with the plan it will keep."""

from __future__ import annotations

import asyncio
import re
from importlib.resources import files

from gatepost.store.postgres import enqueue, fan_outs, outbox, reads, settle
from gatepost.store.postgres.address import postgres_address
from gatepost.store.postgres.pool import connect
from gatepost.testing.postgres import empty_database
from gatepost.testing.postgres_store import gatepost_database

STATEMENTS = {
    "enqueue": enqueue._ENQUEUE,
    "what was refused": enqueue._LOOK_AT,
    "outbox": outbox._PEEK,
    "drop": enqueue._DROP_OUTBOX,
    "peek": reads._PEEK,
    "events": reads._EVENTS,
    "discover": reads._DISCOVER,
    "settle": settle._statement(True, True, True, True, True, True)[0],
    "delivered": settle._statement(False, True, False, False, True, False)[0],
    "fan-outs": fan_outs._LIST,
    "extend": fan_outs._EXTEND.format(step=fan_outs._MOVE),
    "finish": fan_outs._EXTEND.format(step=fan_outs._END),
    "made": fan_outs._MADE,
    "states": fan_outs._LOAD,
}
SCAN = re.compile(r"Seq Scan on (\w+)")
# The rows that a statement brings along may be compared with each other only through a hash: by pairs they would take seconds.
PAIRS = re.compile(r"Join Filter: .*")


async def test_every_statement_finds_its_rows_by_a_key() -> None:
    """The plan is made once, on an empty table perhaps, and kept: it must be right for a million rows."""
    connection = await connect(postgres_address(await asyncio.to_thread(gatepost_database, 8)))
    try:
        for name, statement in STATEMENTS.items():
            count = max(int(number) for number in re.findall(r"\$(\d+)", statement))
            await connection.execute(f"PREPARE planned AS {statement}")
            rows = await connection.fetch(f"EXPLAIN EXECUTE planned({', '.join(['NULL'] * count)})")
            await connection.execute("DEALLOCATE planned")
            plan = "\n".join(row[0] for row in rows)
            assert not SCAN.search(plan), f"{name}:\n{plan}"
            assert not PAIRS.search(plan), f"{name}:\n{plan}"
    finally:
        await connection.close()


async def test_the_outbox_is_the_same_table_here_and_at_producers() -> None:
    """Gatepost's own database may be a producer's, and the follower reads both, whether made anew or by an earlier version."""
    folder = files("gatepost.store") / "migrations"
    script = (folder / "outbox" / "postgres.sql").read_text("utf-8")
    first = (folder / "postgres" / "0001_pre_initial.sql").read_text("utf-8")
    earlier = first[first.index("CREATE TABLE IF NOT EXISTS gatepost_outbox") :]
    own = await _outbox(await asyncio.to_thread(gatepost_database, 8))
    assert await _outbox(await asyncio.to_thread(empty_database), script) == own
    assert await _outbox(await asyncio.to_thread(empty_database), earlier, script) == own


async def _outbox(url: str, *scripts: str) -> list[tuple[object, ...]]:
    connection = await connect(postgres_address(url))
    try:
        for script in scripts:
            await connection.execute(script)
        rows = await connection.fetch(
            "SELECT column_name, data_type, is_nullable, column_default FROM information_schema.columns"
            " WHERE table_name = 'gatepost_outbox'"
            " UNION ALL SELECT indexname, regexp_replace(indexdef, '\\w+\\.gatepost', 'gatepost'), '', NULL FROM pg_indexes"
            " WHERE tablename = 'gatepost_outbox'"
            " UNION ALL SELECT 'options', array_to_string(reloptions, ' '), '', NULL FROM pg_class"
            " WHERE relname = 'gatepost_outbox' ORDER BY 1"
        )
    finally:
        await connection.close()
    return [tuple(row) for row in rows]
