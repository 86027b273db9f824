"""The registry in dictionaries: the executable specification of `Registry`, and what `memory://` uses.

It keeps records as given (nothing reaches a disk, so nothing is sealed) and decides nothing. Base class of `MemoryStore`.
"""

from __future__ import annotations

from collections.abc import Sequence

from gatepost.delivery.records import ApiKey, Endpoint, Tenant
from gatepost.errors import Conflict, NotFound
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


class MemoryRegistry:
    """Tenants, endpoints, API keys and the audit log of one process."""

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._api_keys: dict[str, ApiKey] = {}
        self._audit: list[AuditEntry] = []
        self._policies: list[PolicyVersion] = []  # oldest first
        self._event_types: dict[tuple[str, str], list[EventSchema]] = {}  # by tenant and type, oldest first
        self._changes: dict[Change, int] = {}  # record to the number of its last change, in order of that number

    async def changes_since(self, cursor: int) -> tuple[Sequence[Change], int]:
        return [change for change, number in self._changes.items() if number > cursor], self._last_change()

    async def tenant(self, name: str) -> Tenant | None:
        return self._tenants.get(name)

    async def tenants(self, after: str | None, limit: int) -> Page[Tenant]:
        check_limit(limit)
        start = decode_text(after)
        names = sorted(name for name in self._tenants if start is None or name > start)[: limit + 1]
        return text_page([self._tenants[name] for name in names], names, limit)

    async def put_tenant(self, tenant: Tenant) -> None:
        self._tenants[tenant.name] = tenant
        self._changed(("tenant", tenant.name))

    async def endpoint(self, endpoint_id: str) -> Endpoint | None:
        return self._endpoints.get(endpoint_id)

    async def endpoints(self, tenant: str | None, after: str | None, limit: int) -> Page[Endpoint]:
        check_limit(limit)
        start = decode_text(after)
        found = [
            endpoint
            for _, endpoint in sorted(self._endpoints.items())
            if tenant in (None, endpoint.tenant) and (start is None or endpoint.id > start)
        ][: limit + 1]
        return text_page(found, [endpoint.id for endpoint in found], limit)

    async def create_endpoint(self, endpoint: Endpoint) -> None:
        if endpoint.id in self._endpoints:
            raise Conflict(f"endpoint {endpoint.id} exists already")
        self._endpoints[endpoint.id] = endpoint
        self._changed(("endpoint", endpoint.id))

    async def update_endpoint(self, endpoint: Endpoint, expected_generation: int) -> None:
        stored = self._endpoints.get(endpoint.id)
        if stored is None:
            raise NotFound(f"there is no endpoint {endpoint.id}")
        if stored.generation != expected_generation:
            raise Conflict(
                f"endpoint {endpoint.id} is at generation {stored.generation}, the change was made from "
                f"{expected_generation}: read it again and repeat the change"
            )
        self._endpoints[endpoint.id] = endpoint
        self._changed(("endpoint", endpoint.id))

    async def delete_endpoint(self, endpoint_id: str) -> bool:
        if self._endpoints.pop(endpoint_id, None) is None:
            return False
        self._changed(("endpoint", endpoint_id))
        return True

    async def api_key_by_hash(self, digest: bytes) -> ApiKey | None:
        return next((key for key in self._api_keys.values() if key.hash == digest), None)

    async def api_keys(self) -> Sequence[ApiKey]:
        return [key for _, key in sorted(self._api_keys.items())]

    async def put_api_key(self, key: ApiKey) -> None:
        self._api_keys[key.id] = key
        self._changed(("api_key", key.id))

    async def delete_api_key(self, key_id: str) -> bool:
        if self._api_keys.pop(key_id, None) is None:
            return False
        self._changed(("api_key", key_id))
        return True

    async def policy(self, version: int | None = None) -> PolicyVersion | None:
        return next((one for one in reversed(self._policies) if version in (None, one.version)), None)

    async def put_policy(self, policy: PolicyVersion) -> None:
        newest = self._policies[-1].version if self._policies else 0
        if policy.version != newest + 1:
            raise Conflict(f"the policy is at version {newest} now: read it again and repeat the change")
        self._policies.append(policy)
        del self._policies[:-POLICY_VERSIONS_MAX]
        self._changed(("policy", POLICY_ID))

    async def policies(self, before: int | None, limit: int) -> Sequence[PolicyVersion]:
        check_limit(limit)
        return [one for one in reversed(self._policies) if before is None or one.version < before][:limit]

    async def event_type(self, tenant: str, event_type: str, version: int | None = None) -> EventSchema | None:
        versions = self._event_types.get((tenant, event_type), [])
        return next((one for one in reversed(versions) if version in (None, one.version)), None)

    async def put_event_type(self, schema: EventSchema) -> None:
        versions = self._event_types.get((schema.tenant, schema.type), [])
        newest = versions[-1].version if versions else 0
        if schema.version != newest + 1:
            raise Conflict(
                f"the schema of {schema.type} is at version {newest} now: read it again and repeat the change"
            )
        self._event_types[schema.tenant, schema.type] = [*versions, schema][-EVENT_TYPE_VERSIONS_MAX:]
        self._changed(("event_type", event_type_id(schema.tenant, schema.type)))

    async def event_types(self, tenant: str | None, after: str | None, limit: int) -> Page[EventSchema]:
        check_limit(limit)
        start = decode_event_type(after)
        found = [
            versions[-1]
            for key, versions in sorted(self._event_types.items())
            if tenant in (None, key[0]) and key > start
        ][: limit + 1]
        return text_page(found, [event_type_id(one.tenant, one.type) for one in found], limit)

    async def event_type_versions(
        self, tenant: str, event_type: str, before: int | None, limit: int
    ) -> Sequence[EventSchema]:
        check_limit(limit)
        versions = reversed(self._event_types.get((tenant, event_type), []))
        return [one for one in versions if before is None or one.version < before][:limit]

    async def audit(self, entry: AuditEntry) -> None:
        self._audit.append(entry)

    async def audit_log(self, tenant: str | None, after: str | None, limit: int) -> Page[AuditEntry]:
        check_limit(limit)
        start = decode_numbers(after, 1)
        found = [
            (number, entry)
            for number, entry in reversed(list(enumerate(self._audit)))
            if tenant in (None, entry.tenant) and (start is None or number < start[0])
        ]
        more = encode_cursor(found[limit - 1][0]) if len(found) > limit else None
        return Page([entry for _, entry in found[:limit]], more)

    def _erase_records(self, tenant: str) -> tuple[int, int]:
        """Remove everything that belongs to a tenant but the audit log; returns how many endpoints and API keys."""
        endpoints = [one.id for one in self._endpoints.values() if one.tenant == tenant]
        keys = [key.id for key in self._api_keys.values() if key.tenant == tenant]
        for endpoint_id in endpoints:
            del self._endpoints[endpoint_id]
            self._changed(("endpoint", endpoint_id))
        for key_id in keys:
            del self._api_keys[key_id]
            self._changed(("api_key", key_id))
        for key in [key for key in self._event_types if key[0] == tenant]:
            del self._event_types[key]
            self._changed(("event_type", event_type_id(*key)))
        if self._tenants.pop(tenant, None) is not None:
            self._changed(("tenant", tenant))
        return len(endpoints), len(keys)

    def _changed(self, change: Change) -> None:
        number = self._last_change() + 1
        self._changes.pop(change, None)  # so that the record moves to the end
        self._changes[change] = number

    def _last_change(self) -> int:
        return next(reversed(self._changes.values()), 0)
