"""The registry in SQLite: JSON documents with sealed secrets, and the last change of each record.

Writes go through the store's writer, single records are read on the hot reader, lists on the operators'. Base class of
`SqliteStore`, which gives it its threads.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

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
from gatepost.store.rows import Page
from gatepost.store.secretbox import SecretBox
from gatepost.store.sqlite import states
from gatepost.store.sqlite.reader import ReaderThread
from gatepost.store.sqlite.writer import WriterThread

_CHANGED = """
INSERT INTO change (kind, id, number) VALUES (?, ?, (SELECT coalesce(max(number), 0) + 1 FROM change))
 ON CONFLICT (kind, id) DO UPDATE SET number = excluded.number"""
_PUT_TENANT = """
INSERT INTO tenant (name, document) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET document = excluded.document"""
_CREATE_ENDPOINT = """
INSERT INTO endpoint (id, tenant, generation, document) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"""
_UPDATE_ENDPOINT = """
UPDATE endpoint SET tenant = ?, generation = ?, document = ? WHERE id = ? AND generation = ?"""
_PUT_API_KEY = """
INSERT INTO api_key (id, hash, tenant, name, created_at) VALUES (?, ?, ?, ?, ?)
 ON CONFLICT (id) DO UPDATE SET hash = excluded.hash, tenant = excluded.tenant, name = excluded.name,
  created_at = excluded.created_at"""
_API_KEY = "SELECT id, hash, tenant, name, created_at FROM api_key"
_AUDIT_LOG = """
SELECT number, at, actor, action, subject, tenant, detail FROM audit WHERE number < ? ORDER BY number DESC LIMIT ?"""
_AUDIT_LOG_OF_TENANT = """
SELECT number, at, actor, action, subject, tenant, detail FROM audit WHERE number < ? AND tenant = ?
 ORDER BY number DESC LIMIT ?"""

_POLICY = "SELECT version, at, actor, action, why, document FROM policy"
_PUT_POLICY = """
INSERT INTO policy (version, at, actor, action, why, document) SELECT ?1, ?2, ?3, ?4, ?5, ?6
 WHERE ?1 = (SELECT coalesce(max(version), 0) + 1 FROM policy)"""

_EVENT_TYPE = "SELECT tenant, type, version, at, actor, document FROM event_type"
_PUT_EVENT_TYPE = """
INSERT INTO event_type (tenant, type, version, at, actor, document) SELECT ?1, ?2, ?3, ?4, ?5, ?6
 WHERE ?3 = (SELECT coalesce(max(version), 0) + 1 FROM event_type WHERE tenant = ?1 AND type = ?2)"""
_EVENT_TYPES = f"""
{_EVENT_TYPE} AS t WHERE (tenant, type) > (?, ?) AND (?3 IS NULL OR tenant = ?3)
 AND version = (SELECT max(version) FROM event_type AS n WHERE n.tenant = t.tenant AND n.type = t.type)
 ORDER BY tenant, type LIMIT ?4"""  # noqa: S608 - our own words


class SqliteRegistry:
    """Tenants, endpoints, API keys and the audit log."""

    def __init__(self, writer: WriterThread, hot: ReaderThread, lists: ReaderThread, box: SecretBox) -> None:
        self._writer = writer
        self._hot = hot
        self._lists = lists
        self._box = box

    async def changes_since(self, cursor: int) -> tuple[Sequence[Change], int]:
        def query(connection: sqlite3.Connection) -> tuple[Sequence[Change], int]:
            rows = connection.execute("SELECT kind, id, number FROM change WHERE number > ? ORDER BY number", (cursor,))
            changes = rows.fetchall()
            return [(kind, name) for kind, name, _ in changes], changes[-1][2] if changes else cursor

        return await self._hot.run(query)

    async def tenant(self, name: str) -> Tenant | None:
        def query(connection: sqlite3.Connection) -> Tenant | None:
            row = connection.execute("SELECT document FROM tenant WHERE name = ?", (name,)).fetchone()
            return None if row is None else tenant_from_document(row[0])

        return await self._hot.run(query)

    async def tenants(self, after: str | None, limit: int) -> Page[Tenant]:
        check_limit(limit)
        start = decode_text(after) or ""

        def query(connection: sqlite3.Connection) -> Page[Tenant]:
            rows = connection.execute(
                "SELECT document FROM tenant WHERE name > ? ORDER BY name LIMIT ?", (start, limit + 1)
            )
            found = [tenant_from_document(row[0]) for row in rows]
            return text_page(found, [tenant.name for tenant in found], limit)

        return await self._lists.run(query)

    async def put_tenant(self, tenant: Tenant) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute(_PUT_TENANT, (tenant.name, tenant_to_document(tenant)))
            connection.execute(_CHANGED, ("tenant", tenant.name))

        await self._writer.call(2, write)

    async def endpoint(self, endpoint_id: str) -> Endpoint | None:
        def query(connection: sqlite3.Connection) -> Endpoint | None:
            row = connection.execute("SELECT document FROM endpoint WHERE id = ?", (endpoint_id,)).fetchone()
            return None if row is None else endpoint_from_document(row[0], self._box)

        return await self._hot.run(query)

    async def endpoints(self, tenant: str | None, after: str | None, limit: int) -> Page[Endpoint]:
        check_limit(limit)
        start = decode_text(after) or ""

        def query(connection: sqlite3.Connection) -> Page[Endpoint]:
            if tenant is None:
                rows = connection.execute(
                    "SELECT document FROM endpoint WHERE id > ? ORDER BY id LIMIT ?", (start, limit + 1)
                )
            else:
                rows = connection.execute(
                    "SELECT document FROM endpoint WHERE tenant = ? AND id > ? ORDER BY id LIMIT ?",
                    (tenant, start, limit + 1),
                )
            found = [endpoint_from_document(row[0], self._box) for row in rows]
            return text_page(found, [endpoint.id for endpoint in found], limit)

        return await self._lists.run(query)

    async def create_endpoint(self, endpoint: Endpoint) -> None:
        document = endpoint_to_document(endpoint, self._box)

        def write(connection: sqlite3.Connection) -> None:
            values = (endpoint.id, endpoint.tenant, endpoint.generation, document)
            if connection.execute(_CREATE_ENDPOINT, values).rowcount == 0:
                raise Conflict(f"endpoint {endpoint.id} exists already")
            connection.execute(_CHANGED, ("endpoint", endpoint.id))

        await self._writer.call(2, write)

    async def update_endpoint(self, endpoint: Endpoint, expected_generation: int) -> None:
        document = endpoint_to_document(endpoint, self._box)

        def write(connection: sqlite3.Connection) -> None:
            values = (endpoint.tenant, endpoint.generation, document, endpoint.id, expected_generation)
            if connection.execute(_UPDATE_ENDPOINT, values).rowcount == 0:
                row = connection.execute("SELECT generation FROM endpoint WHERE id = ?", (endpoint.id,)).fetchone()
                if row is None:
                    raise NotFound(f"there is no endpoint {endpoint.id}")
                raise Conflict(
                    f"endpoint {endpoint.id} is at generation {row[0]}, the change was made from {expected_generation}: "
                    "read it again and repeat the change"
                )
            connection.execute(_CHANGED, ("endpoint", endpoint.id))

        await self._writer.call(2, write)

    async def delete_endpoint(self, endpoint_id: str) -> bool:
        def write(connection: sqlite3.Connection) -> bool:
            if connection.execute("DELETE FROM endpoint WHERE id = ?", (endpoint_id,)).rowcount == 0:
                return False
            states.save(connection, {decode_id(ENDPOINT, endpoint_id): b""})
            connection.execute(_CHANGED, ("endpoint", endpoint_id))
            return True

        return await self._writer.call(3, write)

    async def api_key_by_hash(self, digest: bytes) -> ApiKey | None:
        def query(connection: sqlite3.Connection) -> ApiKey | None:
            row = connection.execute(f"{_API_KEY} WHERE hash = ?", (digest,)).fetchone()
            return None if row is None else ApiKey(*row)

        return await self._hot.run(query)

    async def api_keys(self) -> Sequence[ApiKey]:
        def query(connection: sqlite3.Connection) -> Sequence[ApiKey]:
            return [ApiKey(*row) for row in connection.execute(f"{_API_KEY} ORDER BY id")]

        return await self._lists.run(query)

    async def put_api_key(self, key: ApiKey) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute(_PUT_API_KEY, (key.id, key.hash, key.tenant, key.name, key.created_at))
            connection.execute(_CHANGED, ("api_key", key.id))

        await self._writer.call(2, write)

    async def delete_api_key(self, key_id: str) -> bool:
        return await self._delete("DELETE FROM api_key WHERE id = ?", "api_key", key_id)

    async def policy(self, version: int | None = None) -> PolicyVersion | None:
        def query(connection: sqlite3.Connection) -> PolicyVersion | None:
            if version is None:
                row = connection.execute(f"{_POLICY} ORDER BY version DESC LIMIT 1").fetchone()
            else:
                row = connection.execute(f"{_POLICY} WHERE version = ?", (version,)).fetchone()
            return None if row is None else PolicyVersion(*row)

        return await self._hot.run(query)

    async def put_policy(self, policy: PolicyVersion) -> None:
        values = (policy.version, policy.at, policy.actor, policy.action, policy.why, policy.document)

        def write(connection: sqlite3.Connection) -> None:
            if connection.execute(_PUT_POLICY, values).rowcount == 0:
                newest = connection.execute("SELECT coalesce(max(version), 0) FROM policy").fetchone()[0]
                raise Conflict(f"the policy is at version {newest} now: read it again and repeat the change")
            connection.execute("DELETE FROM policy WHERE version <= ?", (policy.version - POLICY_VERSIONS_MAX,))
            connection.execute(_CHANGED, ("policy", POLICY_ID))

        await self._writer.call(2, write)

    async def policies(self, before: int | None, limit: int) -> Sequence[PolicyVersion]:
        check_limit(limit)
        below = (1 << 63) - 1 if before is None else before

        def query(connection: sqlite3.Connection) -> Sequence[PolicyVersion]:
            rows = connection.execute(f"{_POLICY} WHERE version < ? ORDER BY version DESC LIMIT ?", (below, limit))
            return [PolicyVersion(*row) for row in rows]

        return await self._lists.run(query)

    async def event_type(self, tenant: str, event_type: str, version: int | None = None) -> EventSchema | None:
        def query(connection: sqlite3.Connection) -> EventSchema | None:
            row = connection.execute(
                f"{_EVENT_TYPE} WHERE tenant = ?1 AND type = ?2 AND (?3 IS NULL OR version = ?3)"
                " ORDER BY version DESC LIMIT 1",
                (tenant, event_type, version),
            ).fetchone()
            return None if row is None else EventSchema(*row)

        return await self._hot.run(query)

    async def put_event_type(self, schema: EventSchema) -> None:
        key = (schema.tenant, schema.type)

        def write(connection: sqlite3.Connection) -> None:
            values = (*key, schema.version, schema.at, schema.actor, schema.document)
            if connection.execute(_PUT_EVENT_TYPE, values).rowcount == 0:
                newest = connection.execute(
                    "SELECT coalesce(max(version), 0) FROM event_type WHERE tenant = ? AND type = ?", key
                ).fetchone()[0]
                raise Conflict(
                    f"the schema of {schema.type} is at version {newest} now: read it again and repeat the change"
                )
            connection.execute(
                "DELETE FROM event_type WHERE tenant = ? AND type = ? AND version <= ?",
                (*key, schema.version - EVENT_TYPE_VERSIONS_MAX),
            )
            connection.execute(_CHANGED, ("event_type", event_type_id(*key)))

        await self._writer.call(2, write)

    async def event_types(self, tenant: str | None, after: str | None, limit: int) -> Page[EventSchema]:
        check_limit(limit)
        start = decode_event_type(after)

        def query(connection: sqlite3.Connection) -> Page[EventSchema]:
            rows = connection.execute(_EVENT_TYPES, (*start, tenant, limit + 1))
            found = [EventSchema(*row) for row in rows]
            return text_page(found, [event_type_id(one.tenant, one.type) for one in found], limit)

        return await self._lists.run(query)

    async def event_type_versions(
        self, tenant: str, event_type: str, before: int | None, limit: int
    ) -> Sequence[EventSchema]:
        check_limit(limit)
        below = (1 << 63) - 1 if before is None else before

        def query(connection: sqlite3.Connection) -> Sequence[EventSchema]:
            rows = connection.execute(
                f"{_EVENT_TYPE} WHERE tenant = ? AND type = ? AND version < ? ORDER BY version DESC LIMIT ?",
                (tenant, event_type, below, limit),
            )
            return [EventSchema(*row) for row in rows]

        return await self._lists.run(query)

    async def audit(self, entry: AuditEntry) -> None:
        await self._writer.call(1, _write_audit, entry)

    async def audit_log(self, tenant: str | None, after: str | None, limit: int) -> Page[AuditEntry]:
        check_limit(limit)
        start = decode_numbers(after, 1) or ((1 << 63) - 1,)

        def query(connection: sqlite3.Connection) -> Page[AuditEntry]:
            if tenant is None:
                rows = connection.execute(_AUDIT_LOG, (start[0], limit + 1)).fetchall()
            else:
                rows = connection.execute(_AUDIT_LOG_OF_TENANT, (start[0], tenant, limit + 1)).fetchall()
            entries = [AuditEntry(*row[1:]) for row in rows[:limit]]
            return Page(entries, encode_cursor(rows[limit - 1][0]) if len(rows) > limit else None)

        return await self._lists.run(query)

    async def _delete(self, statement: str, kind: str, record_id: str) -> bool:
        def write(connection: sqlite3.Connection) -> bool:
            if connection.execute(statement, (record_id,)).rowcount == 0:
                return False
            connection.execute(_CHANGED, (kind, record_id))
            return True

        return await self._writer.call(2, write)


def _write_audit(connection: sqlite3.Connection, entry: AuditEntry) -> None:
    connection.execute(
        "INSERT INTO audit (at, actor, action, subject, tenant, detail) VALUES (?, ?, ?, ?, ?, ?)",
        (entry.at, entry.actor, entry.action, entry.subject, entry.tenant, entry.detail),
    )
