"""Sizes for metrics and limits, at a bounded cost whatever the tables hold: counted where little is, estimated where much is.

Estimates are the server's own: rows by its statistics, and for one tenant the planner's guess from the lanes it has sampled.
Called by `operators`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Final

from gatepost.store.postgres.pool import Connection
from gatepost.store.rows import Backlog, LaneStat, StoreTotals

COUNT_MAX: Final = 20_000
"""Rows counted in one table: some 2 ms. Beyond it the server's estimate, which autovacuum keeps within some percent."""
BACKLOG_COUNT_MAX: Final = 20_000
"""Waiting rows of one tenant that are counted, by index only: some 3 ms, asked at most once a second and process."""
LANES_ESTIMATED: Final = 1_000
"""Lanes of a tenant that are estimated where its backlog is larger than that."""
_TABLES: Final = ("gp_delivery", "gp_dead", "gp_event", "gp_attempt")

_ESTIMATES: Final = """
SELECT t.name AS parent, coalesce(sum(greatest(s.n_live_tup, k.reltuples, 0)), 0)::bigint AS live,
  coalesce(sum(s.n_dead_tup), 0)::bigint AS dead
 FROM unnest($1::text[]) AS t(name)
 LEFT JOIN pg_inherits AS i ON i.inhparent = t.name::regclass
 JOIN pg_class AS k ON k.oid = coalesce(i.inhrelid, t.name::regclass)
 LEFT JOIN pg_stat_user_tables AS s ON s.relid = k.oid GROUP BY t.name"""
_COUNT: Final = "SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT $1::bigint) AS counted"
_OUTBOX: Final = (
    "SELECT count(*) FROM (SELECT 1 FROM gatepost_outbox WHERE done_at IS NULL LIMIT $1::bigint) AS counted"
)
_SIZE: Final = """
SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
 WHERE relkind = 'r' AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'gp_meta'::regclass)
  AND (relname LIKE 'gp\\_%' OR relname = 'gatepost_outbox')"""
_LANES: Final = """
SELECT w.lane, (SELECT min(d.due_at) FROM gp_delivery AS d WHERE d.lane = w.lane),
  (SELECT count(*) FROM (SELECT 1 FROM gp_delivery AS d WHERE d.lane = w.lane LIMIT $2::bigint) AS counted)
 FROM unnest($1::bigint[]) WITH ORDINALITY AS w(lane, place) ORDER BY w.place"""
_BACKLOGS: Final = """
SELECT w.endpoint, x.depth, x.oldest FROM unnest($1::bigint[]) AS w(endpoint) CROSS JOIN LATERAL (
  SELECT count(*) AS depth, min(due_at) AS oldest FROM (
   SELECT d.due_at FROM gp_delivery AS d WHERE d.lane >= w.endpoint << 8 AND d.lane < (w.endpoint + 1) << 8
    ORDER BY d.lane, d.due_at LIMIT $2::bigint) AS counted) AS x"""
_BACKLOG: Final = """
SELECT count(*) FROM (
 SELECT 1 FROM gp_active AS a CROSS JOIN LATERAL (
   SELECT 1 FROM gp_delivery AS d WHERE d.lane = a.lane LIMIT $2::bigint) AS waiting
  WHERE a.tenant = $1::text LIMIT $2::bigint) AS counted"""
_TENANT_LANES: Final = "SELECT lane FROM gp_active WHERE tenant = $1::text LIMIT $2::bigint"


async def totals(connection: Connection) -> StoreTotals:
    """Rows by table, and bytes on the disk."""
    estimates = {row["parent"]: row for row in await connection.fetch(_ESTIMATES, list(_TABLES))}
    counts: list[int] = []
    for table in _TABLES:
        live, dead = estimates[table]["live"], estimates[table]["dead"]
        # What was deleted is walked over as well until vacuum has been there.
        counts.append(live if live + dead > COUNT_MAX else await _count(connection, table, live))
    waiting, dead_letters, events, attempts = counts
    outbox = await connection.fetchval(_OUTBOX, COUNT_MAX)
    return StoreTotals(waiting, dead_letters, events, attempts, outbox, await connection.fetchval(_SIZE))


async def _count(connection: Connection, table: str, estimate: int) -> int:
    rows: int = await connection.fetchval(_COUNT.format(table=table), COUNT_MAX)
    return rows if rows < COUNT_MAX else max(rows, estimate)


async def lane_stats(connection: Connection, lanes: Collection[int], depth_cap: int) -> list[LaneStat]:
    """Depth, counted up to the cap, and oldest due time of each lane."""
    return [
        LaneStat(lane, depth, oldest) for lane, oldest, depth in await connection.fetch(_LANES, list(lanes), depth_cap)
    ]


async def backlogs(connection: Connection, endpoints: Collection[int], depth_cap: int) -> dict[int, Backlog]:
    """What waits for each endpoint, rows counted up to the cap; those without any are left out."""
    found = await connection.fetch(_BACKLOGS, list(endpoints), depth_cap)
    return {number: Backlog(depth, oldest) for number, depth, oldest in found if depth}


async def backlog_of(connection: Connection, tenant: str) -> int:
    """Waiting rows of a tenant: exact up to `BACKLOG_COUNT_MAX`."""
    rows: int = await connection.fetchval(_BACKLOG, tenant, BACKLOG_COUNT_MAX)
    if rows < BACKLOG_COUNT_MAX:
        return rows
    lanes = [row[0] for row in await connection.fetch(_TENANT_LANES, tenant, LANES_ESTIMATED)]
    return max(rows, await _estimate(connection, lanes))


async def _estimate(connection: Connection, lanes: Sequence[int]) -> int:
    """The planner's guess, from the most common lanes of its sample; it reads no row."""
    listed = ",".join(str(int(lane)) for lane in lanes)
    query = f"EXPLAIN (FORMAT JSON) SELECT 1 FROM gp_delivery WHERE lane IN ({listed})"  # noqa: S608 - numbers
    plan = json.loads(await connection.fetchval(query))
    return int(plan[0]["Plan"]["Plan Rows"])
