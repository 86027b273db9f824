"""What the fleet's benchmarks set up is what they say: half a backlog for one endpoint, a transaction with an id, a server's CPU."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.blocked import BATCH, Place, fill
from bench.held import held_transaction
from bench.postgres import MeasuredServer
from bench.report import steps
from gatepost.store.open import open_store
from gatepost.store.rows import lane_of
from gatepost.testing.postgres import shared_server
from gatepost.testing.postgres_store import KEYS, gatepost_database


async def test_half_of_the_backlog_waits_for_the_endpoint_that_is_going_to_be_blocked(tmp_path: Path) -> None:
    """A benchmark of a blocked backlog without one would meet any target."""
    url = f"sqlite:///{tmp_path / 'bench.db'}"
    place = Place(url, None, [f"http://127.0.0.1:65000/{number}" for number in range(3)], "http://127.0.0.1:65000/x")
    with steps(1) as progress:
        endpoint_id = await fill(place, 2 * BATCH, progress)
    store = await open_store(url)
    try:
        endpoint = await store.endpoint(endpoint_id)
        assert endpoint is not None
        assert endpoint.url == place.urls[-1]
        (stat,) = await store.lane_stats([lane_of(endpoint.number, 0)])
        assert (stat.depth, await store.backlog_of("default")) == (BATCH, 2 * BATCH)
    finally:
        await store.aclose()


async def test_the_transaction_that_is_held_holds_an_id_and_a_snapshot() -> None:
    """Without them PostgreSQL would clean up as ever."""
    url = await asyncio.to_thread(gatepost_database)
    name = url.rpartition("/")[2]
    query = f"""SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND backend_xid IS NOT NULL
                AND backend_xmin IS NOT NULL AND state = 'idle in transaction'"""
    async with held_transaction(url):
        assert (await asyncio.to_thread(shared_server().run_sql, query)).strip() == "1"
    assert (await asyncio.to_thread(shared_server().run_sql, query)).strip() == "0"


def test_the_cpu_of_a_connection_that_has_ended_is_counted() -> None:
    """Pools open and close connections; what they used must not vanish with them."""
    server = MeasuredServer(shared_server(), shared_server().create_database(), KEYS)
    before = server.cpu_seconds()
    server.server.run_sql("SELECT sum(length(md5(n::text))) FROM generate_series(1, 2000000) AS n")
    assert server.cpu_seconds() - before > 0.1
