"""The registry's half of the store contract: records as written, changes once, conflicts told. See `store_contract`."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

from gatepost.delivery.ids import ENDPOINT, encode_id
from gatepost.delivery.records import ApiKey, Endpoint, EndpointSecret, EndpointStatus, Secret, Tenant, TenantLimits
from gatepost.errors import Conflict, NotFound
from gatepost.store.port import (
    EVENT_TYPE_VERSIONS_MAX,
    POLICY_ID,
    POLICY_VERSIONS_MAX,
    AuditEntry,
    EventSchema,
    PolicyVersion,
    Store,
)
from gatepost.testing.contract_queue import ContractBase


def endpoint_id(number: int) -> str:
    """The public id of an endpoint number."""
    return encode_id(ENDPOINT, number)


FULL = Endpoint(
    id=endpoint_id(1),
    tenant="acme",
    url="https://example.com/hook?x=1",
    event_types=("invoice.*", "order.made"),
    description="für Rechnungen",
    status=EndpointStatus.PAUSED,
    status_reason="maintenance",
    generation=3,
    created_at=1,
    updated_at=2,
    secrets=(EndpointSecret(Secret("whsec_bmV3"), 5), EndpointSecret(Secret("whsec_b2xk"), 1, 9)),
    headers={"authorization": "Bearer abc", "x-b": "2"},
    schedule=(0.0, 5.0, 30.5),
    window=3_600.0,
    status_rules={"404": "final", "5xx": "slow"},
    concurrency=4,
    rate=2.5,
    limits={"read_timeout": 20.0},
    deduplicates=False,
    send_deadline=True,
    send_trace=True,
    ca_pem="-----BEGIN CERTIFICATE-----",
    client_cert_pem="-----BEGIN CERTIFICATE-----2",
    client_key_pem=Secret("-----BEGIN PRIVATE KEY-----"),
    x509_strict=False,
    unverified="not_probed",
)
"""An endpoint with every field set."""


class RegistryContract(ContractBase):
    """Tenants, endpoints, API keys, audit."""

    @staticmethod
    async def refused(call: Awaitable[object], error: type[Exception]) -> None:
        """The call must raise this."""
        try:
            await call
        except error:
            return
        raise AssertionError(f"{error.__name__} expected")

    @staticmethod
    async def five_endpoints(store: Store) -> list[Endpoint]:
        """Endpoints of two tenants, in order of id."""
        endpoints = [
            Endpoint(endpoint_id(number), "acme" if number % 2 else "other", f"https://example.com/{number}")
            for number in range(1, 6)
        ]
        for endpoint in endpoints:
            await store.create_endpoint(endpoint)
        return endpoints

    async def test_an_endpoint_comes_back_as_it_was_written(self) -> None:
        """Every field, secrets and headers included; defaults stay defaults."""
        async with self.owned() as owner:
            plain = Endpoint(endpoint_id(2), "acme", "https://example.com/")
            for endpoint in (FULL, plain):
                await owner.store.create_endpoint(endpoint)
                stored = await owner.store.endpoint(endpoint.id)
                assert stored == endpoint
                assert [secret.secret.reveal() for secret in stored.secrets] == [
                    secret.secret.reveal() for secret in endpoint.secrets
                ]
            assert await owner.store.endpoint(endpoint_id(99)) is None

    async def test_an_endpoint_is_created_once(self) -> None:
        """A taken id is a conflict, and changes nothing."""
        async with self.owned() as owner:
            await owner.store.create_endpoint(FULL)
            _, cursor = await owner.store.changes_since(0)
            await self.refused(owner.store.create_endpoint(replace(FULL, url="https://example.org/")), Conflict)
            assert await owner.store.endpoint(FULL.id) == FULL
            assert await owner.store.changes_since(cursor) == ([], cursor)

    async def test_an_endpoint_is_changed_only_from_the_generation_that_was_read(self) -> None:
        """Two editors: the second learns that it looked at something old."""
        async with self.owned() as owner:
            await owner.store.create_endpoint(FULL)
            changed = replace(FULL, url="https://example.org/", generation=4)
            await owner.store.update_endpoint(changed, 3)
            assert await owner.store.endpoint(FULL.id) == changed
            await self.refused(owner.store.update_endpoint(replace(FULL, generation=4), 3), Conflict)
            assert await owner.store.endpoint(FULL.id) == changed
            missing = replace(FULL, id=endpoint_id(99))
            await self.refused(owner.store.update_endpoint(missing, 3), NotFound)

    async def test_endpoints_are_listed_by_tenant_in_order_of_id(self) -> None:
        """Page by page."""
        async with self.owned() as owner:
            endpoints = await self.five_endpoints(owner.store)
            for tenant, expected in ((None, endpoints), ("acme", endpoints[::2]), ("nobody", [])):
                found: list[Endpoint] = []
                after: str | None = None
                while True:
                    page = await owner.store.endpoints(tenant, after, 2)
                    found += page.items
                    if page.next is None:
                        break
                    after = page.next
                assert found == expected

    async def test_a_deleted_endpoint_is_gone(self) -> None:
        """Once; the second time there was none. What was learned about it goes with it."""
        async with self.owned() as owner:
            await owner.store.create_endpoint(FULL)
            await owner.store.save_states({FULL.number: b"learned", FULL.number + 1: b"of another"})
            assert await owner.store.delete_endpoint(FULL.id)
            assert not await owner.store.delete_endpoint(FULL.id)
            assert await owner.store.endpoint(FULL.id) is None
            left = await owner.store.load_states([FULL.number, FULL.number + 1])
            assert left == {FULL.number + 1: b"of another"}

    async def test_tenants_are_created_replaced_and_listed(self) -> None:
        """With their limits, in order of name."""
        async with self.owned() as owner:
            tenants = [Tenant(name, 7, TenantLimits(2.5, 100, 3, None)) for name in ("acme", "globex", "Ünternehmen")]
            for tenant in reversed(tenants):
                await owner.store.put_tenant(tenant)
            assert await owner.store.tenant("acme") == tenants[0]
            assert await owner.store.tenant("nobody") is None
            page = await owner.store.tenants(None, 2)
            assert list(page.items) == tenants[:2]
            assert list((await owner.store.tenants(page.next, 2)).items) == tenants[2:]
            replaced = replace(tenants[0], limits=TenantLimits(), generation=2)
            await owner.store.put_tenant(replaced)
            assert await owner.store.tenant("acme") == replaced

    async def test_api_keys_are_found_by_their_hash(self) -> None:
        """And listed, replaced, deleted."""
        async with self.owned() as owner:
            keys = [ApiKey("k1", b"\x01" * 32, None, "admin", 5), ApiKey("k2", b"\x02" * 32, "acme", "ci", 6)]
            for key in keys:
                await owner.store.put_api_key(key)
            assert list(await owner.store.api_keys()) == keys
            assert await owner.store.api_key_by_hash(b"\x02" * 32) == keys[1]
            assert await owner.store.api_key_by_hash(b"\x03" * 32) is None
            await owner.store.put_api_key(replace(keys[1], hash=b"\x03" * 32))
            assert await owner.store.api_key_by_hash(b"\x02" * 32) is None
            assert await owner.store.delete_api_key("k1")
            assert not await owner.store.delete_api_key("k1")
            assert [key.id for key in await owner.store.api_keys()] == ["k2"]

    async def test_a_follower_sees_each_changed_record_once_and_misses_none(self) -> None:
        """Followers keep a cursor and read what they are told."""
        async with self.owned() as owner:
            store = owner.store
            assert await store.changes_since(0) == ([], 0)
            await self.five_endpoints(store)
            await store.put_tenant(Tenant("acme"))
            changes, cursor = await store.changes_since(0)
            assert list(changes) == [
                *[("endpoint", endpoint_id(number)) for number in range(1, 6)],
                ("tenant", "acme"),
            ]
            assert await store.changes_since(cursor) == ([], cursor)
            first = await store.endpoint(endpoint_id(1))
            assert first is not None
            for generation in (1, 2, 3):
                await store.update_endpoint(replace(first, generation=generation + 1), generation)
            await store.put_api_key(ApiKey("k1", b"\x01" * 32, None, "admin", 5))
            await store.delete_endpoint(endpoint_id(2))
            await store.delete_api_key("k1")
            changes, cursor = await store.changes_since(cursor)
            assert list(changes) == [("endpoint", endpoint_id(1)), ("endpoint", endpoint_id(2)), ("api_key", "k1")]
            everything, same = await store.changes_since(0)
            assert same == cursor
            assert len(set(everything)) == len(everything) == 7

    async def test_the_policy_is_kept_in_versions_and_changed_only_from_the_newest(self) -> None:
        """Who looks for what was in force last month finds it; two editors do not undo each other."""
        async with self.owned() as owner:
            store = owner.store
            assert await store.policy() is None
            assert list(await store.policies(None, 10)) == []
            await self.refused(store.put_policy(PolicyVersion(2, 5, "alice", "set", "why", "{}")), Conflict)
            versions = [
                PolicyVersion(number, number, "älice", "set fleet", "because ' of \"", f'{{"n":{number}}}')
                for number in range(1, 5)
            ]
            _, cursor = await store.changes_since(0)
            for version in versions:
                await store.put_policy(version)
            assert await store.policy() == versions[-1]
            assert await store.policy(2) == versions[1]
            assert await store.policy(9) is None
            await self.refused(store.put_policy(replace(versions[-1], why="another")), Conflict)
            assert await store.policy() == versions[-1]
            assert list(await store.policies(None, 2)) == versions[:1:-1]
            assert list(await store.policies(3, 10)) == versions[1::-1]
            changes, _ = await store.changes_since(cursor)
            assert list(changes) == [("policy", POLICY_ID)]

    async def test_old_versions_of_the_policy_go(self) -> None:
        """A thousand are kept, so that whoever changes it by a program fills no disk."""
        async with self.owned() as owner:
            for number in range(1, POLICY_VERSIONS_MAX + 3):
                await owner.store.put_policy(PolicyVersion(number, 0, "a", "set", "why", "{}"))
            assert await owner.store.policy(2) is None
            assert await owner.store.policy(3) is not None

    async def test_schemas_of_event_types_are_kept_in_versions(self) -> None:
        """By tenant and type; removing one is a version too, and followers hear of each."""
        async with self.owned() as owner:
            store = owner.store
            assert await store.event_type("acme", "a.b") is None
            assert (await store.event_types(None, None, 10)).items == []

            def version(tenant: str, name: str, number: int, document: str | None = "{}") -> EventSchema:
                return EventSchema(tenant, name, number, number, "älice", document)

            await self.refused(store.put_event_type(version("acme", "a.b", 2)), Conflict)
            _, cursor = await store.changes_since(0)
            put = [
                version("acme", "a.b", 1),
                version("acme", "a.b", 2, None),
                version("acme", "c", 1, '{"type": "object"}'),
                version("globex", "a.b", 1),
            ]
            for one in reversed(put[2:]):
                await store.put_event_type(one)
            for one in put[:2]:
                await store.put_event_type(one)
            await self.refused(store.put_event_type(version("acme", "a.b", 2, "another")), Conflict)
            assert await store.event_type("acme", "a.b") == put[1]
            assert await store.event_type("acme", "a.b", 1) == put[0]
            assert await store.event_type("acme", "a.b", 9) is None
            page = await store.event_types(None, None, 2)
            assert list(page.items) == put[1:3]
            assert list((await store.event_types(None, page.next, 2)).items) == put[3:]
            assert list((await store.event_types("globex", None, 2)).items) == put[3:]
            assert list(await store.event_type_versions("acme", "a.b", None, 10)) == [put[1], put[0]]
            assert list(await store.event_type_versions("acme", "a.b", 2, 10)) == put[:1]
            changes, cursor = await store.changes_since(cursor)
            assert set(changes) == {("event_type", f"{one.tenant} {one.type}") for one in put}
            for number in range(3, EVENT_TYPE_VERSIONS_MAX + 2):
                await store.put_event_type(version("acme", "a.b", number))
            assert await store.event_type("acme", "a.b", 1) is None
            assert await store.event_type("acme", "a.b", 2) == put[1]
            await store.put_tenant(Tenant("acme"))
            while (await store.purge_tenant("acme", 100)).more:
                pass
            assert list((await store.event_types(None, None, 9)).items) == put[3:]

    async def test_the_audit_log_is_read_newest_first(self) -> None:
        """All of it, or one tenant's."""
        async with self.owned() as owner:
            entries = [
                AuditEntry(number, "alice", "endpoint.update", f"ep_{number}", "acme" if number % 2 else None, "url")
                for number in range(7)
            ]
            for entry in entries:
                await owner.store.audit(entry)
            page = await owner.store.audit_log(None, None, 4)
            assert list(page.items) == entries[:2:-1]
            rest = await owner.store.audit_log(None, page.next, 4)
            assert (list(rest.items), rest.next) == (entries[2::-1], None)
            assert list((await owner.store.audit_log("acme", None, 10)).items) == entries[5::-2]
