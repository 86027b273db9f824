"""The second service: gRPC, in front of PostgreSQL. Run by run.py; by itself: DATABASE_URL=… python stock.py

Its interceptor takes the budget from the call and refuses what cannot be done in time; the connections of its pool tell the
database what is left. It prints its port, then a line for each query it begins.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import grpc

from gatepost.deadline import DeadlinePolicy, check, remaining
from gatepost.deadline.db.asyncpg import acquire, create_pool
from gatepost.deadline.grpc import AioDeadlineServerInterceptor
from gatepost.deadline.tiers import DATASTORE

OWN_WORK = 0.02
QUERY_MIN = 0.015
"""Seconds that the quickest query takes: with less left, asking the database would be work for nobody."""
TIER = DATASTORE.evolve(read=5.0)  # reports take longer than lookups


async def main() -> None:
    pool = await create_pool(os.environ["DATABASE_URL"], tier=TIER, min_size=2, max_size=5)

    async def count(request: bytes, context: Any) -> bytes:
        left = remaining()
        await asyncio.sleep(OWN_WORK)
        check(need=QUERY_MIN, where="stock")
        async with acquire(pool, tier=TIER) as connection:
            print("query", flush=True)
            row = await connection.fetchrow(
                "SELECT 42 AS items, current_setting('statement_timeout') AS told, pg_sleep($1) AS stock_query",
                float(json.loads(request)["query_seconds"]),
            )
        had = None if left is None else round(left * 1000)
        return json.dumps({"stock_had_ms": had, "database_was_told": row["told"], "items": row["items"]}).encode()

    server = grpc.aio.server(interceptors=[AioDeadlineServerInterceptor(DeadlinePolicy(default=2.0, max=10.0))])
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("shop.Stock", {"Count": grpc.unary_unary_rpc_method_handler(count)})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"port {port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
