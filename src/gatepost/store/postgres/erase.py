"""Erases a tenant: its rows in portions, each in one transaction, and its records in the last one.

The caller has stopped the tenant in every process, so that nothing new comes and nothing of it is in flight. Called by `operators`.
"""

from __future__ import annotations

from typing import Final

from gatepost.store.paging import check_limit
from gatepost.store.port import Change
from gatepost.store.postgres import changes
from gatepost.store.postgres.pool import Connection, Pool
from gatepost.store.rows import TenantPurge

CHUNK: Final = 1_000
"""Rows erased in one transaction: some tens of milliseconds."""
EVENTS_WALK: Final = 20_000
"""Events of all tenants looked at in one statement."""
WALKS_MAX: Final = 5

_FAN_OUTS: Final = "DELETE FROM gp_fan_out WHERE tenant = $1::text"
_OUTBOX: Final = """
DELETE FROM gatepost_outbox WHERE event_id IN (
 SELECT event_id FROM gatepost_outbox WHERE tenant = $1::text ORDER BY event_id LIMIT $2::bigint) RETURNING 1"""
_DELIVERIES: Final = """
WITH chosen AS MATERIALIZED (
 SELECT id, lane, at, state FROM gp_history WHERE tenant = $1::text ORDER BY id LIMIT $2::bigint),
waiting AS (
 DELETE FROM gp_delivery AS d USING chosen AS c WHERE d.lane = c.lane AND d.due_at = c.at AND d.id = c.id AND c.state = 0),
log AS (DELETE FROM gp_attempt AS a USING chosen AS c WHERE a.delivery_id = c.id RETURNING 1),
letters AS (DELETE FROM gp_dead AS x USING chosen AS c WHERE c.state = 1 AND x.died_at = c.at AND x.id = c.id RETURNING 1),
gone AS (DELETE FROM gp_history AS h USING chosen AS c WHERE h.id = c.id RETURNING 1)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM log), (SELECT count(*) FROM letters)"""
# Letters and rows whose history retention has taken.
_LETTERS: Final = """
DELETE FROM gp_dead WHERE (died_at, id) IN (
 SELECT died_at, id FROM gp_dead WHERE tenant = $1::text ORDER BY died_at LIMIT $2::bigint) RETURNING 1"""
_LANES: Final = "SELECT lane FROM gp_active WHERE tenant = $1::text"
_ROWS: Final = """
DELETE FROM gp_delivery WHERE (lane, due_at, id) IN (
 SELECT d.lane, d.due_at, d.id FROM gp_active AS a JOIN gp_delivery AS d ON d.lane = a.lane
  WHERE a.tenant = $1::text LIMIT $2::bigint) RETURNING 1"""
_EVENTS: Final = """
WITH walked AS MATERIALIZED (
 SELECT id, tenant FROM gp_event WHERE id > $2::bigint ORDER BY id LIMIT $3::bigint),
gone AS (DELETE FROM gp_event AS e USING walked AS w WHERE w.tenant = $1::text AND e.id = w.id RETURNING 1)
SELECT (SELECT max(id) FROM walked), (SELECT count(*) FROM gone)"""
_KEYS: Final = """
DELETE FROM gp_dedup WHERE (tenant, key) IN (
 SELECT tenant, key FROM gp_dedup WHERE tenant = $1::text ORDER BY key LIMIT $2::bigint) RETURNING 1"""
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
            [(gone, log, letters)] = await self._pool.fetch(_DELIVERIES, tenant, min(left, CHUNK))
            deliveries, attempts, dead = deliveries + gone, attempts + log, dead + letters
            left -= gone
            if gone == 0:
                break
        dead += await erase(_LETTERS)
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
            [(end, gone)] = await self._pool.fetch(_EVENTS, tenant, begin, min(EVENTS_WALK, limit - erased))
            erased += gone
            if end is None:
                self._events_at.pop(tenant, None)
                return erased, False
            self._events_at[tenant] = end
            if erased >= limit:
                break
        return erased, True

    async def _erase_records(self, connection: Connection, tenant: str) -> tuple[int, int]:
        """Returns how many endpoints and API keys."""
        from gatepost.delivery.ids import ENDPOINT, decode_id

        async with connection.transaction():
            endpoints = [
                row[0]
                for row in await connection.fetch("DELETE FROM gp_endpoint WHERE tenant = $1 RETURNING id", tenant)
            ]
            keys = [
                row[0]
                for row in await connection.fetch("DELETE FROM gp_api_key WHERE tenant = $1 RETURNING id", tenant)
            ]
            existed = await connection.fetch("DELETE FROM gp_tenant WHERE name = $1 RETURNING name", tenant)
            numbers = self._endpoints.pop(tenant, set()) | {decode_id(ENDPOINT, one) for one in endpoints}
            await connection.execute(_STATES, sorted(numbers))
            await connection.execute("DELETE FROM gp_active WHERE tenant = $1", tenant)
            changed: list[Change] = [("endpoint", one) for one in endpoints]
            changed += [("api_key", one) for one in keys]
            changed += [("tenant", row[0]) for row in existed]
            await changes.record(connection, changed)
        return len(endpoints), len(keys)
