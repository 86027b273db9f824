"""Erases a tenant: its rows in portions, each in one transaction, and its records in the last one.

The caller has stopped the tenant in every process, so that nothing new comes and nothing of it is in flight. Called by `operators`.
"""

from __future__ import annotations

from typing import Final

from gatepost.delivery.ids import ENDPOINT, decode_id
from gatepost.store.paging import check_limit
from gatepost.store.port import Change, event_type_id
from gatepost.store.postgres import changes
from gatepost.store.postgres.operate import purge_dead
from gatepost.store.postgres.pool import Connection, Pool
from gatepost.store.postgres.views import dead_keys
from gatepost.store.rows import DeadFilter, TenantPurge

CHUNK: Final = 1_000
"""Rows erased in one transaction: some tens of milliseconds."""
EVENTS_WALK: Final = 20_000
"""Events of all tenants looked at in one statement."""
WALKS_MAX: Final = 5

_FAN_OUTS: Final = "DELETE FROM gp_fan_out WHERE tenant = $1::text"
# Rows are found first and deleted by key: in one statement the planner may read whole tables for a join.
_OUTBOX: Final = """
DELETE FROM gatepost_outbox WHERE ctid = ANY(ARRAY(
 SELECT ctid FROM gatepost_outbox WHERE tenant = $1::text ORDER BY event_id LIMIT $2::bigint)) RETURNING 1"""
_FIND: Final = "SELECT lane, at, id, state FROM gp_history WHERE tenant = $1::text ORDER BY id LIMIT $2::bigint"
_DELIVERIES: Final = """
WITH waiting AS (
 DELETE FROM gp_delivery AS d USING unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS k(lane, at, id)
  WHERE d.lane = k.lane AND d.due_at = k.at AND d.id = k.id),
log AS (DELETE FROM gp_attempt WHERE delivery_id = ANY($3::bigint[]) RETURNING 1),
letters AS (
 DELETE FROM gp_dead AS x USING unnest($2::bigint[], $3::bigint[]) AS k(at, id) WHERE x.died_at = k.at AND x.id = k.id RETURNING 1),
gone AS (DELETE FROM gp_history WHERE id = ANY($3::bigint[]) RETURNING 1)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM log), (SELECT count(*) FROM letters)"""
_LANES: Final = "SELECT lane FROM gp_active WHERE tenant = $1::text"
# What has no history any more.
_ROWS: Final = """
DELETE FROM gp_delivery WHERE ctid = ANY(ARRAY(
 SELECT d.ctid FROM gp_active AS a CROSS JOIN LATERAL (
   SELECT x.ctid FROM gp_delivery AS x WHERE x.lane = a.lane LIMIT $2::bigint) AS d
  WHERE a.tenant = $1::text LIMIT $2::bigint)) RETURNING 1"""
_KEYS: Final = """
DELETE FROM gp_dedup WHERE ctid = ANY(ARRAY(
 SELECT ctid FROM gp_dedup WHERE tenant = $1::text ORDER BY key LIMIT $2::bigint)) RETURNING 1"""
_WALK_EVENTS: Final = "SELECT id, tenant FROM gp_event WHERE id > $1::bigint ORDER BY id LIMIT $2::bigint"
_EVENTS: Final = "DELETE FROM gp_event WHERE id = ANY($1::bigint[]) RETURNING 1"
_STATES: Final = "DELETE FROM gp_endpoint_state WHERE endpoint = ANY($1::bigint[])"


class Eraser:
    """Erases tenants of one store."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._events_at: dict[str, int] = {}  # by tenant: events up to this id have been looked at
        self._endpoints: dict[str, set[int]] = {}  # by tenant: endpoints whose learned states are to go

    async def run(self, tenant: str, limit: int) -> TenantPurge:
        """Erase about `limit` rows; the records go with the call that finds no row left."""
        check_limit(limit)
        await self._pool.fetch(_FAN_OUTS, tenant)
        left = limit

        async def erase(statement: str) -> int:
            nonlocal left
            count = len(await self._pool.fetch(statement, tenant, min(left, CHUNK))) if left > 0 else 0
            left -= count
            return count

        outbox = await erase(_OUTBOX)
        deliveries = dead = attempts = 0
        while left > 0:
            lanes = await self._pool.fetch(_LANES, tenant)
            self._endpoints.setdefault(tenant, set()).update(row[0] >> 8 for row in lanes)
            found = await self._pool.fetch(_FIND, tenant, min(left, CHUNK))
            if not found:
                break
            keys_of = [[row[at] for row in found] for at in range(3)]
            [(gone, log, letters)] = await self._pool.fetch(_DELIVERIES, *keys_of)
            deliveries, attempts, dead = deliveries + gone, attempts + log, dead + letters
            left -= len(found)
        if left > 0:
            stray = await self._stray_letters(tenant, min(left, CHUNK))
            dead, left = dead + stray, left - stray
        deliveries += await erase(_ROWS)
        keys = await erase(_KEYS)
        events, more = await self._erase_events(tenant, left) if left > 0 else (0, True)
        counts = (deliveries, events, attempts, dead, outbox, keys)
        if more or left <= 0:
            return TenantPurge(*counts, more=True)
        endpoints, api_keys = await self._pool.run(lambda connection: self._erase_records(connection, tenant))
        return TenantPurge(*counts, endpoints, api_keys)

    async def _erase_events(self, tenant: str, limit: int) -> tuple[int, bool]:
        """There is no index by tenant, which every event would pay for: all events are walked through once."""
        erased = 0
        for _ in range(WALKS_MAX):
            begin = self._events_at.get(tenant, -1)
            walked = await self._pool.fetch(_WALK_EVENTS, begin, EVENTS_WALK)
            if not walked:
                self._events_at.pop(tenant, None)
                return erased, False
            own = [row[0] for row in walked if row[1] == tenant]
            chosen = own[: min(limit - erased, CHUNK)]
            if chosen:
                erased += len(await self._pool.fetch(_EVENTS, chosen))
            self._events_at[tenant] = chosen[-1] if len(chosen) < len(own) else walked[-1][0]
            if erased >= limit:
                break
        return erased, True

    async def _stray_letters(self, tenant: str, limit: int) -> int:
        """Dead letters whose history retention has taken."""
        where = DeadFilter(tenant=tenant)
        keys, _ = await self._pool.run(lambda connection: dead_keys(connection, where, None, limit))
        return await self._pool.run(lambda connection: purge_dead(connection, keys)) if keys else 0

    async def _erase_records(self, connection: Connection, tenant: str) -> tuple[int, int]:
        """Returns how many endpoints and API keys."""
        async with connection.transaction():
            endpoints = [
                row[0]
                for row in await connection.fetch("DELETE FROM gp_endpoint WHERE tenant = $1 RETURNING id", tenant)
            ]
            keys = [
                row[0]
                for row in await connection.fetch("DELETE FROM gp_api_key WHERE tenant = $1 RETURNING id", tenant)
            ]
            types = {
                row[0]
                for row in await connection.fetch("DELETE FROM gp_event_type WHERE tenant = $1 RETURNING type", tenant)
            }
            existed = await connection.fetch("DELETE FROM gp_tenant WHERE name = $1 RETURNING name", tenant)
            numbers = self._endpoints.pop(tenant, set()) | {decode_id(ENDPOINT, one) for one in endpoints}
            await connection.execute(_STATES, sorted(numbers))
            await connection.execute("DELETE FROM gp_active WHERE tenant = $1", tenant)
            changed: list[Change] = [("endpoint", one) for one in endpoints]
            changed += [("api_key", one) for one in keys]
            changed += [("event_type", event_type_id(tenant, one)) for one in sorted(types)]
            changed += [("tenant", row[0]) for row in existed]
            await changes.record(connection, changed)
        return len(endpoints), len(keys)
