"""The registry in PostgreSQL: JSON documents with sealed secrets, and the last change of each record.

Every process of the fleet writes here; each write is one transaction that ends with its change's number (`changes`). Base class
of `PostgresStore`, which gives it its connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gatepost.delivery.ids import ENDPOINT, decode_id
from gatepost.delivery.records import ApiKey, Endpoint, Tenant
from gatepost.errors import Conflict, NotFound
from gatepost.store.codec import endpoint_from_document, endpoint_to_document, tenant_from_document, tenant_to_document
from gatepost.store.paging import (
    check_limit,
    decode_event_type,
    decode_numbers,
    decode_text,
    encode_cursor,
    text_page,
)
from gatepost.store.port import (
    EVENT_TYPE_VERSIONS_MAX,
    POLICY_ID,
    POLICY_VERSIONS_MAX,
    AuditEntry,
    Change,
    EventSchema,
    PolicyVersion,
    event_type_id,
)
from gatepost.store.postgres import changes, fan_outs
from gatepost.store.postgres.pool import Connection, Pool
from gatepost.store.rows import Page
from gatepost.store.secretbox import SecretBox

_PUT_TENANT = """
INSERT INTO gp_tenant (name, document) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET document = excluded.document
 RETURNING name"""
_CREATE_ENDPOINT = """
INSERT INTO gp_endpoint (id, tenant, generation, document) VALUES ($1, $2, $3, $4) ON CONFLICT (id) DO NOTHING RETURNING id"""
_UPDATE_ENDPOINT = """
UPDATE gp_endpoint SET tenant = $1, generation = $2, document = $3 WHERE id = $4 AND generation = $5 RETURNING id"""
_DELETE_ENDPOINT = "DELETE FROM gp_endpoint WHERE id = $1 RETURNING id"
_STORED_ENDPOINT = "SELECT generation, document FROM gp_endpoint WHERE id = $1"
_TENANTS = "SELECT document FROM gp_tenant WHERE name > $1 ORDER BY name LIMIT $2"
_ENDPOINTS = "SELECT document FROM gp_endpoint WHERE id > $1 ORDER BY id LIMIT $2"
_ENDPOINTS_OF = "SELECT document FROM gp_endpoint WHERE tenant = $3 AND id > $1 ORDER BY id LIMIT $2"
_PUT_API_KEY = """
INSERT INTO gp_api_key (id, hash, tenant, name, created_at) VALUES ($1, $2, $3, $4, $5)
 ON CONFLICT (id) DO UPDATE SET hash = excluded.hash, tenant = excluded.tenant, name = excluded.name,
  created_at = excluded.created_at RETURNING id"""
_DELETE_API_KEY = "DELETE FROM gp_api_key WHERE id = $1 RETURNING id"
_API_KEY = "SELECT id, hash, tenant, name, created_at FROM gp_api_key"
_AUDIT = "INSERT INTO gp_audit (at, actor, action, subject, tenant, detail) VALUES ($1, $2, $3, $4, $5, $6)"
_AUDIT_LOG = """
SELECT number, at, actor, action, subject, tenant, detail FROM gp_audit WHERE number < $1 ORDER BY number DESC LIMIT $2"""
_AUDIT_LOG_OF = """
SELECT number, at, actor, action, subject, tenant, detail FROM gp_audit WHERE number < $1 AND tenant = $3
 ORDER BY number DESC LIMIT $2"""
_POLICY = "SELECT version, at, actor, action, why, document FROM gp_policy"
_PUT_POLICY = """
INSERT INTO gp_policy (version, at, actor, action, why, document)
 SELECT $1::bigint, $2::bigint, $3::text, $4::text, $5::text, $6::text
 WHERE $1 = (SELECT coalesce(max(version), 0) + 1 FROM gp_policy) ON CONFLICT (version) DO NOTHING RETURNING version"""
_TRIM_POLICIES = "DELETE FROM gp_policy WHERE version <= $1"
_EVENT_TYPE = "SELECT tenant, type, version, at, actor, document FROM gp_event_type"
_PUT_EVENT_TYPE = """
INSERT INTO gp_event_type (tenant, type, version, at, actor, document)
 SELECT $1::text, $2::text, $3::bigint, $4::bigint, $5::text, $6::text
 WHERE $3 = (SELECT coalesce(max(version), 0) + 1 FROM gp_event_type WHERE tenant = $1 AND type = $2)
 ON CONFLICT DO NOTHING RETURNING version"""
_TRIM_EVENT_TYPE = "DELETE FROM gp_event_type WHERE tenant = $1 AND type = $2 AND version <= $3"
_EVENT_TYPES = f"""
{_EVENT_TYPE} AS t WHERE (tenant, type) > ($1, $2) AND ($3::text IS NULL OR tenant = $3)
 AND version = (SELECT max(version) FROM gp_event_type AS n WHERE n.tenant = t.tenant AND n.type = t.type)
 ORDER BY tenant, type LIMIT $4"""  # noqa: S608 - our own words
_NEWEST: Final = (1 << 63) - 1


class PostgresRegistry:
    """Tenants, endpoints, API keys and the audit log of a fleet."""

    def __init__(self, pool: Pool, box: SecretBox) -> None:
        self._pool = pool
        self._box = box

    async def changes_since(self, cursor: int) -> tuple[Sequence[Change], int]:
        return await self._pool.run(lambda connection: changes.since(connection, cursor))

    async def tenant(self, name: str) -> Tenant | None:
        rows = await self._pool.fetch("SELECT document FROM gp_tenant WHERE name = $1", name)
        return tenant_from_document(rows[0][0]) if rows else None

    async def tenants(self, after: str | None, limit: int) -> Page[Tenant]:
        check_limit(limit)
        rows = await self._pool.fetch(_TENANTS, decode_text(after) or "", limit + 1)
        found = [tenant_from_document(row[0]) for row in rows]
        return text_page(found, [tenant.name for tenant in found], limit)

    async def put_tenant(self, tenant: Tenant) -> None:
        document = tenant_to_document(tenant)
        await self._write(_PUT_TENANT, (tenant.name, document), ("tenant", tenant.name))

    async def endpoint(self, endpoint_id: str) -> Endpoint | None:
        rows = await self._pool.fetch("SELECT document FROM gp_endpoint WHERE id = $1", endpoint_id)
        return endpoint_from_document(rows[0][0], self._box) if rows else None

    async def endpoints(self, tenant: str | None, after: str | None, limit: int) -> Page[Endpoint]:
        check_limit(limit)
        start = decode_text(after) or ""
        if tenant is None:
            rows = await self._pool.fetch(_ENDPOINTS, start, limit + 1)
        else:
            rows = await self._pool.fetch(_ENDPOINTS_OF, start, limit + 1, tenant)
        found = [endpoint_from_document(row[0], self._box) for row in rows]
        return text_page(found, [endpoint.id for endpoint in found], limit)

    async def create_endpoint(self, endpoint: Endpoint) -> None:
        # Sealed once: a call that is repeated after a commit of unknown outcome knows its own document again.
        document = endpoint_to_document(endpoint, self._box)
        values = (endpoint.id, endpoint.tenant, endpoint.generation, document)
        if await self._write(_CREATE_ENDPOINT, values, ("endpoint", endpoint.id)):
            return
        stored = await self._pool.fetch(_STORED_ENDPOINT, endpoint.id)
        if not stored or stored[0]["document"] != document:
            raise Conflict(f"endpoint {endpoint.id} exists already")

    async def update_endpoint(self, endpoint: Endpoint, expected_generation: int) -> None:
        document = endpoint_to_document(endpoint, self._box)
        values = (endpoint.tenant, endpoint.generation, document, endpoint.id, expected_generation)
        if await self._write(_UPDATE_ENDPOINT, values, ("endpoint", endpoint.id)):
            return
        stored = await self._pool.fetch(_STORED_ENDPOINT, endpoint.id)
        if not stored:
            raise NotFound(f"there is no endpoint {endpoint.id}")
        if stored[0]["document"] != document:
            raise Conflict(
                f"endpoint {endpoint.id} is at generation {stored[0]['generation']}, the change was made from "
                f"{expected_generation}: read it again and repeat the change"
            )

    async def delete_endpoint(self, endpoint_id: str) -> bool:
        async def work(connection: Connection) -> bool:
            async with connection.transaction():
                if not await connection.fetch(_DELETE_ENDPOINT, endpoint_id):
                    return False
                await fan_outs.save_states(connection, {decode_id(ENDPOINT, endpoint_id): b""})
                await changes.record(connection, [("endpoint", endpoint_id)])
                return True

        return await self._pool.run(work)

    async def api_key_by_hash(self, digest: bytes) -> ApiKey | None:
        rows = await self._pool.fetch(f"{_API_KEY} WHERE hash = $1", digest)
        return ApiKey(*rows[0]) if rows else None

    async def api_keys(self) -> Sequence[ApiKey]:
        return [ApiKey(*row) for row in await self._pool.fetch(f"{_API_KEY} ORDER BY id")]

    async def put_api_key(self, key: ApiKey) -> None:
        await self._write(_PUT_API_KEY, (key.id, key.hash, key.tenant, key.name, key.created_at), ("api_key", key.id))

    async def delete_api_key(self, key_id: str) -> bool:
        return await self._write(_DELETE_API_KEY, (key_id,), ("api_key", key_id))

    async def policy(self, version: int | None = None) -> PolicyVersion | None:
        if version is None:
            rows = await self._pool.fetch(f"{_POLICY} ORDER BY version DESC LIMIT 1")
        else:
            rows = await self._pool.fetch(f"{_POLICY} WHERE version = $1", version)
        return PolicyVersion(*rows[0]) if rows else None

    async def put_policy(self, policy: PolicyVersion) -> None:
        values = (policy.version, policy.at, policy.actor, policy.action, policy.why, policy.document)
        if await self._write(_PUT_POLICY, values, ("policy", POLICY_ID)):
            await self._pool.fetch(_TRIM_POLICIES, policy.version - POLICY_VERSIONS_MAX)
            return
        # Written by ourselves, by a call whose end we did not hear of, or by somebody else.
        if await self.policy(policy.version) != policy:
            newest = await self.policy()
            raise Conflict(
                f"the policy is at version {0 if newest is None else newest.version} now: read it again and repeat the change"
            )

    async def policies(self, before: int | None, limit: int) -> Sequence[PolicyVersion]:
        check_limit(limit)
        below = _NEWEST if before is None else before
        rows = await self._pool.fetch(f"{_POLICY} WHERE version < $1 ORDER BY version DESC LIMIT $2", below, limit)
        return [PolicyVersion(*row) for row in rows]

    async def event_type(self, tenant: str, event_type: str, version: int | None = None) -> EventSchema | None:
        rows = await self._pool.fetch(
            f"{_EVENT_TYPE} WHERE tenant = $1 AND type = $2 AND ($3::bigint IS NULL OR version = $3)"
            " ORDER BY version DESC LIMIT 1",
            tenant,
            event_type,
            version,
        )
        return EventSchema(*rows[0]) if rows else None

    async def put_event_type(self, schema: EventSchema) -> None:
        values = (schema.tenant, schema.type, schema.version, schema.at, schema.actor, schema.document)
        if await self._write(_PUT_EVENT_TYPE, values, ("event_type", event_type_id(schema.tenant, schema.type))):
            await self._pool.fetch(
                _TRIM_EVENT_TYPE, schema.tenant, schema.type, schema.version - EVENT_TYPE_VERSIONS_MAX
            )
            return
        # Written by ourselves, by a call whose end we did not hear of, or by somebody else.
        if await self.event_type(schema.tenant, schema.type, schema.version) != schema:
            newest = await self.event_type(schema.tenant, schema.type)
            raise Conflict(
                f"the schema of {schema.type} is at version {0 if newest is None else newest.version} now: read it again and "
                "repeat the change"
            )

    async def event_types(self, tenant: str | None, after: str | None, limit: int) -> Page[EventSchema]:
        check_limit(limit)
        rows = await self._pool.fetch(_EVENT_TYPES, *decode_event_type(after), tenant, limit + 1)
        found = [EventSchema(*row) for row in rows]
        return text_page(found, [event_type_id(one.tenant, one.type) for one in found], limit)

    async def event_type_versions(
        self, tenant: str, event_type: str, before: int | None, limit: int
    ) -> Sequence[EventSchema]:
        check_limit(limit)
        below = _NEWEST if before is None else before
        rows = await self._pool.fetch(
            f"{_EVENT_TYPE} WHERE tenant = $1 AND type = $2 AND version < $3 ORDER BY version DESC LIMIT $4",
            tenant,
            event_type,
            below,
            limit,
        )
        return [EventSchema(*row) for row in rows]

    async def audit(self, entry: AuditEntry) -> None:
        await self._pool.fetch(_AUDIT, entry.at, entry.actor, entry.action, entry.subject, entry.tenant, entry.detail)

    async def audit_log(self, tenant: str | None, after: str | None, limit: int) -> Page[AuditEntry]:
        check_limit(limit)
        (start,) = decode_numbers(after, 1) or (_NEWEST,)
        if tenant is None:
            rows = await self._pool.fetch(_AUDIT_LOG, start, limit + 1)
        else:
            rows = await self._pool.fetch(_AUDIT_LOG_OF, start, limit + 1, tenant)
        entries = [AuditEntry(*tuple(row)[1:]) for row in rows[:limit]]
        return Page(entries, encode_cursor(rows[limit - 1][0]) if len(rows) > limit else None)

    async def _write(self, statement: str, values: Sequence[object], change: Change) -> bool:
        """Whether the statement wrote its record; the change is noted in the same transaction."""

        async def work(connection: Connection) -> bool:
            async with connection.transaction():
                if not await connection.fetch(statement, *values):
                    return False
                await changes.record(connection, [change])
                return True

        return await self._pool.run(work)
