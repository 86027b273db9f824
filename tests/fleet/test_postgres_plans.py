"""No page and no metric costs more when tables grow: rows that each query looks at, with a few hundred thousand of them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from gatepost.delivery.ids import id_time_us
from gatepost.store.postgres import sizes, views
from gatepost.store.postgres.pool import Connection
from gatepost.store.rows import DeadFilter, DeliveryFilter, StoreTotals
from gatepost.testing.postgres_store import new_postgres

ROWS = 200_000
ROWS_MAX = 50_000
"""A walk of 2,000 with its probes, or 10,000 waiting rows with theirs; a table that is read through is four times that."""
FILL = f"""
INSERT INTO gp_history (id, lane, at, event_id, state, tenant)
 SELECT n * 4000000000 + 1, (n % 500 + 1) << 8, n, n * 4000000000, CASE WHEN n % 50 = 0 THEN 1 WHEN n % 997 = 0 THEN 2 ELSE 0 END,
   CASE WHEN n % 500 = 0 THEN 'small' ELSE 'large' END FROM generate_series(1, {ROWS}) AS n;
INSERT INTO gp_event (id, created_at, tenant, type, content_type, body)
 SELECT n * 4000000000, n, 'large', 't', 'text/plain', repeat('x', 200)::bytea FROM generate_series(1, {ROWS}) AS n;
INSERT INTO gp_delivery (lane, due_at, id, event_id, born_at, part)
 SELECT (n % 500 + 1) << 8, n, n * 4000000000 + 1, n * 4000000000, n, 0 FROM generate_series(1, {ROWS}) AS n
  WHERE n % 50 <> 0 AND n % 997 <> 0 AND n % 500 < 250;
INSERT INTO gp_active (part, lane, tenant)
 SELECT 0, n << 8, CASE WHEN n = 1 THEN 'small' ELSE 'large' END FROM generate_series(1, 250) AS n;
INSERT INTO gp_attempt SELECT id, 1, event_id, lane >> 8, tenant, at, 'response', 'read', 'ok', 'safe', 'endpoint', 200, 1, '', '', '',
   'complete', 'w' FROM gp_history;
INSERT INTO gp_dead (id, event_id, tenant, endpoint, event_type, content_type, attempts, why, outcome, status, died_at, body)
 SELECT n, n, CASE WHEN n % 500 = 0 THEN 'small' ELSE 'large' END, n % 500 + 1, 't' || n % 1000, 'text/plain', 3, 'why' || n % 5,
   'response', 500, n, repeat('x', 200)::bytea FROM generate_series(1, {ROWS}) AS n;
"""


class Counted:
    """A connection that adds up the rows its queries look at."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.rows = 0

    def transaction(self, **_: Any) -> Any:
        return self._connection.transaction()

    async def fetch(self, query: str, *values: object) -> Any:
        await self._count(query, *values)
        return await self._connection.fetch(query, *values)

    async def fetchrow(self, query: str, *values: object) -> Any:
        await self._count(query, *values)
        return await self._connection.fetchrow(query, *values)

    async def fetchval(self, query: str, *values: object) -> Any:
        if not query.startswith("EXPLAIN"):
            await self._count(query, *values)
        return await self._connection.fetchval(query, *values)

    async def _count(self, query: str, *values: object) -> None:
        explained = await self._connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", *values)
        self._add(json.loads(explained)[0]["Plan"])

    def _add(self, plan: dict[str, Any]) -> None:
        if plan["Node Type"].endswith("Scan") and str(plan.get("Relation Name", "")).startswith("g"):
            left_out = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
            self.rows += (plan["Actual Rows"] + left_out) * plan["Actual Loops"]
        for child in plan.get("Plans", ()):
            self._add(child)


async def test_no_page_and_no_metric_reads_a_table() -> None:
    """Every list by every filter, every size."""
    store = await new_postgres(None, 1)
    try:

        async def fill(connection: Connection) -> None:
            await connection.execute("SET statement_timeout = 0; SET transaction_timeout = 0")
            for part in FILL.split(";"):
                if part.strip():
                    await connection.execute(part, timeout=60)
            await connection.execute("ANALYZE")

        async def measure(connection: Connection) -> None:
            for name, ask in questions():
                counted = Counted(connection)
                await ask(counted)
                assert counted.rows <= ROWS_MAX, (name, counted.rows)

        for work in (fill, measure):
            connection = await store._pool._acquire()
            await work(connection)
            store._pool._release(connection)
    finally:
        await store.aclose()


def questions() -> list[tuple[str, Callable[[Any], Awaitable[object]]]]:
    """Everything an operator or a metric asks."""
    asked: list[tuple[str, Callable[[Any], Awaitable[object]]]] = []
    for state in (None, "waiting", "delivered", "dead", "cancelled"):
        for where in (
            DeliveryFilter(endpoint=7, state=state),
            DeliveryFilter(tenant="large", state=state),
            DeliveryFilter(tenant="small", state=state),
            DeliveryFilter(tenant="small", endpoint=7, state=state),
            DeliveryFilter(event_id=4_000_000_000 * 77, state=state),
        ):
            asked.append((str(where), partial(_deliveries, where)))
        typed = DeliveryFilter(None, 7, None, state, "t", id_time_us(4_000_000_000 * 1_000))
        asked += [
            (str(one), partial(_deliveries, one)) for one in (typed, replace(typed, tenant="large", endpoint=None))
        ]
        anyone = DeliveryFilter(state=state, accepted_before=id_time_us(4_000_000_000 * 150_000))
        asked += [(str(where), partial(_deliveries, where)) for where in (anyone, replace(anyone, event_type="u"))]
    for dead in (
        DeadFilter(),
        DeadFilter(endpoint=7),
        DeadFilter(tenant="large"),
        DeadFilter(tenant="small", endpoint=7),
        DeadFilter(event_type="t3"),
        DeadFilter(why="never"),
        DeadFilter(tenant="large", died_from=1_000, died_before=2_000),
        DeadFilter(delivery_id=77),
    ):
        asked.append((str(dead), partial(_dead_letters, dead)))
        asked.append((f"keys {dead}", partial(_dead_keys, dead)))
    asked += [
        ("delivery", lambda one: views.show(one, [4_000_000_000 * 77 + 1])),
        ("attempts", lambda one: views.attempts_of(one, 4_000_000_000 * 77 + 1)),
        ("newest attempts", lambda one: views.newest_attempts(one, 7, 100)),
        ("newest attempts behind a backlog", lambda one: views.newest_attempts(one, 8, 1_000)),
        ("backlogs", lambda one: sizes.backlogs(one, range(1, 60), 300)),
        ("dead letter", lambda one: views.dead_letter(one, 77)),
        ("lane stats", lambda one: sizes.lane_stats(one, [7 << 8, 8 << 8], 10_000)),
        ("backlog", near_backlog),
        ("totals", close_totals),
    ]
    return asked


async def _deliveries(where: DeliveryFilter, connection: Any) -> object:
    return await views.deliveries(connection, where, None, 100)


async def _dead_letters(where: DeadFilter, connection: Any) -> object:
    return await views.dead_letters(connection, where, None, 100)


async def _dead_keys(where: DeadFilter, connection: Any) -> object:
    return await views.dead_keys(connection, where, None, 100)


async def near_backlog(connection: Any) -> None:
    """Beyond what is counted, the planner's guess."""
    backlog = await sizes.backlog_of(connection, "large")
    assert 50_000 <= backlog <= 150_000


async def close_totals(connection: Any) -> None:
    """Estimates, and near the truth after an ANALYZE."""
    totals: StoreTotals = await sizes.totals(connection)
    for estimate in (totals.dead, totals.events, totals.attempts):
        assert 0.9 * ROWS <= estimate <= 1.1 * ROWS, totals
    assert totals.size_bytes > 100_000_000
