"""Who may call what: keys, tenants, and a service without keys on a machine with a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatepost.errors import ConfigurationError
from gatepost.service.api.auth import check_from_loopback
from gatepost.service.api.problems import Problem
from gatepost.service.app import open_service
from gatepost.service.config import ListenSettings
from tests.service.running import Api, api, ok, problem, settings_for

OPEN_ROUTES = {"/healthz", "/readyz"}
"""What a load balancer asks without a key, and tells nothing of any tenant."""


def everything_in(directory: Path) -> bytes:
    """The bytes of all files."""
    return b"".join(path.read_bytes() for path in directory.iterdir() if path.is_file())


async def tenant_key(service: Api, tenant: str) -> str:
    """A new tenant with a key."""
    await ok(service.client.post("/v1/tenants", json={"name": tenant}), 201)
    made = await ok(service.client.post("/v1/api-keys", json={"name": "test", "tenant": tenant}), 201)
    return str(made["key"])


async def test_a_key_is_shown_once_and_kept_as_a_hash(tmp_path: Path) -> None:
    """A stolen database must not open the API."""
    async with api(tmp_path, keyed=True) as service:
        key = await tenant_key(service, "acme")
        listed = await ok(service.client.get("/v1/api-keys"))
        assert key not in str(listed)
        assert {item["tenant"] for item in listed["items"]} == {None, "acme"}
    assert key.encode() not in everything_in(tmp_path)


async def test_without_a_valid_key_nothing_but_health_is_answered(tmp_path: Path) -> None:
    """Once a key exists, the absence of one opens nothing."""
    async with api(tmp_path, keyed=True) as service, httpx.AsyncClient(base_url=service.running.url) as nobody:
        document = await problem(nobody.post("/v1/events", json={"type": "a", "payload": 1}), 401, "unauthorized")
        assert "Authorization: Bearer" in document["detail"]
        answer = await nobody.get("/v1/endpoints")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        await problem(nobody.get("/metrics"), 401, "unauthorized")
        await ok(nobody.get("/healthz"))
        for wrong in ("Bearer", "Bearer x", "Basic eDp5", "Bearer " + "x" * 10_000):
            await problem(nobody.get("/v1/endpoints", headers={"authorization": wrong}), 401, "unauthorized")


async def test_a_revoked_key_ends_at_once_and_the_last_admin_key_stays(tmp_path: Path) -> None:
    """Revoking is what one does in a hurry; locking everyone out must not be one mistake away."""
    async with api(tmp_path, keyed=True) as service:
        key = await tenant_key(service, "acme")
        listed = await ok(service.client.get("/v1/api-keys"))
        ids = {item["tenant"]: item["id"] for item in listed["items"]}
        async with service.as_key(key) as acme:
            await ok(acme.get("/v1/endpoints"))
            assert (await service.client.delete(f"/v1/api-keys/{ids['acme']}")).status_code == 204
            await problem(acme.get("/v1/endpoints"), 401, "unauthorized")
        await problem(service.client.delete(f"/v1/api-keys/{ids[None]}"), 409, "conflict")
        await problem(service.client.delete("/v1/api-keys/key_none"), 404, "not_found")


async def test_a_tenant_acts_for_itself_only(tmp_path: Path) -> None:
    """What a tenant makes is its own, without saying so in each call."""
    async with api(tmp_path, keyed=True) as service:
        key = await tenant_key(service, "acme")
        async with service.as_key(key) as acme:
            endpoint = await ok(
                acme.post("/v1/endpoints", json={"url": "https://hooks.example.com/", "probe": False}), 201
            )
            assert endpoint["tenant"] == "acme"
            receipt = await ok(acme.post("/v1/events", json={"type": "a", "payload": 1}), 202)
            assert receipt["deliveries"] == 1
            page = await ok(acme.get("/v1/deliveries"))
            assert [item["tenant"] for item in page["items"]] == ["acme"]
            assert (await ok(acme.get("/v1/tenants/acme")))["name"] == "acme"


def bodies() -> dict[str, Any]:
    """A valid body for each route that needs one, reaching for `other`'s records."""
    return {
        "/v1/events": {"type": "a", "payload": 1, "tenant": "other"},
        "/v1/events:batch": {"events": [{"type": "a", "payload": 1, "tenant": "other"}]},
        "/v1/endpoints": {"url": "https://hooks.example.com/", "tenant": "other", "probe": False},
        "/v1/endpoints/{endpoint_id}": {"description": "mine now"},
        "/v1/event-types/{event_type}": {"schema": {}, "tenant": "other"},
        "/v1/deliveries:cancel": {"tenant": "other"},
        "/v1/dead-letters:replay": {"tenant": "other"},
        "/v1/dead-letters:purge": {"tenant": "other"},
        "/v1/tenants": {"name": "third"},
        "/v1/tenants/{name}": {"limits": {}},
        "/v1/tenants/{tenant}/portal-links": {},
        "/v1/api-keys": {"name": "mine", "tenant": "other"},
        "/v1/policies/set": {"limits": {"read_timeout": {"value": 1}}, "why": "mine"},
        "/v1/policies/clear": {"why": "mine"},
        "/v1/policies/rollback": {"why": "mine"},
        "/v1/policies/shadow": {"limits": {}, "why": "mine"},
        "/v1/policies/shadow:apply": {"why": "mine"},
        "/v1/policies/rollout": {"limits": {}, "why": "mine"},
        "/v1/policies/rollout:advance": {"why": "mine"},
        "/v1/policies/rollout:abort": {"why": "mine"},
    }


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every method and path of the document but the open ones."""
    for path, item in document["paths"].items():
        if path not in OPEN_ROUTES:
            for method in item:
                yield method.upper(), path


async def test_every_route_answers_404_to_another_tenants_key(tmp_path: Path) -> None:
    """Generated from the OpenAPI document, so that a new route cannot be forgotten. 404, not 403: existence is a secret."""
    async with api(tmp_path, keyed=True) as service:
        mine = await tenant_key(service, "acme")
        theirs = await tenant_key(service, "other")
        async with service.as_key(theirs) as other:
            endpoint = await ok(
                other.post("/v1/endpoints", json={"url": "https://hooks.example.com/", "probe": False}), 201
            )
            await ok(other.post(f"/v1/endpoints/{endpoint['id']}/pause"))
            await ok(other.post("/v1/events", json={"type": "a", "payload": 1}), 202)
            await ok(other.put("/v1/event-types/order.paid", json={"schema": {"type": "object"}}))
            delivery = (await ok(other.get("/v1/deliveries")))["items"][0]
        keys = (await ok(service.client.get("/v1/api-keys")))["items"]
        names = {
            "endpoint_id": endpoint["id"],
            "delivery_id": delivery["id"],
            "event_type": "order.paid",
            "name": "other",
            "tenant": "other",
            "key_id": next(key["id"] for key in keys if key["tenant"] == "other"),
        }
        tried = 0
        async with service.as_key(mine) as acme:
            for method, path in operations(await ok(service.client.get("/openapi.json"))):
                answer = await acme.request(
                    method,
                    path.format(**names),
                    params={"tenant": "other"} if method == "GET" else None,
                    json=bodies().get(path) if method != "GET" else None,
                )
                assert answer.status_code == 404, (method, path, answer.text)
                assert answer.json()["code"] == "not_found", (method, path)
                tried += 1
        assert tried >= 25
        assert (await ok(service.client.get(f"/v1/endpoints/{endpoint['id']}")))["description"] == ""
        assert (await ok(service.client.get(f"/v1/deliveries/{delivery['id']}")))["state"] == "waiting"


async def test_a_filter_for_another_tenants_endpoint_finds_nothing(tmp_path: Path) -> None:
    """Ids travel; knowing one must not open what it names."""
    async with api(tmp_path, keyed=True) as service:
        mine = await tenant_key(service, "acme")
        theirs = await tenant_key(service, "other")
        async with service.as_key(theirs) as other:
            endpoint = await ok(
                other.post("/v1/endpoints", json={"url": "https://hooks.example.com/", "probe": False}), 201
            )
            await ok(other.post(f"/v1/endpoints/{endpoint['id']}/pause"))
            await ok(other.post("/v1/events", json={"type": "a", "payload": 1}), 202)
        async with service.as_key(mine) as acme:
            for path in ("/v1/deliveries", "/v1/dead-letters"):
                page = await ok(acme.get(path, params={"endpoint_id": endpoint["id"]}))
                assert page["items"] == []
            await problem(acme.post("/v1/deliveries:cancel", json={"endpoint_id": endpoint["id"]}), 404, "not_found")


async def test_the_configured_admin_key_follows_the_configuration(tmp_path: Path) -> None:
    """Rotating it is a restart; the old one must be dead afterwards."""
    async with api(tmp_path, keyed=True) as service:
        await ok(service.client.get("/v1/api-keys"))
    from gatepost.delivery.records import Secret

    async with api(tmp_path, admin_key=Secret("another-admin-key-9876543210")) as service:
        await problem(service.client.get("/v1/api-keys"), 401, "unauthorized")
        async with service.as_key("another-admin-key-9876543210") as admin:
            assert len((await ok(admin.get("/v1/api-keys")))["items"]) == 1
    async with api(tmp_path) as service:
        await problem(service.client.get("/v1/api-keys"), 401, "unauthorized")


async def test_without_keys_the_service_refuses_to_listen_to_the_network(tmp_path: Path) -> None:
    """An API that anyone may call must not be where anyone reaches it."""
    settings = settings_for(tmp_path, listen=ListenSettings("0.0.0.0", 0))
    with pytest.raises(ConfigurationError, match=r"set security\.admin_key"):
        async with open_service(settings):
            pass


@pytest.mark.parametrize(
    ("headers", "served"),
    [
        ({"host": "127.0.0.1:8080"}, True),
        ({"host": "localhost"}, True),
        ({"host": "[::1]:8080"}, True),
        ({"host": "[::1]"}, True),
        ({"host": "127.0.0.1:8080", "origin": "http://127.0.0.1:8080"}, True),
        ({"host": "rebound.example.com:8080"}, False),
        ({"host": "localhost.evil.example"}, False),
        ({"host": "127.0.0.1:8080", "origin": "https://evil.example"}, False),
        ({"host": "127.0.0.1:8080", "origin": "null"}, False),
        ({}, False),
    ],
)
def test_a_web_page_cannot_use_a_service_without_keys(headers: dict[str, str], served: bool) -> None:
    """A browser on this machine reaches loopback for whoever wrote the page: DNS rebinding and cross-site requests."""
    if served:
        check_from_loopback(headers)
    else:
        with pytest.raises(Problem) as caught:
            check_from_loopback(headers)
        assert caught.value.code == "host_not_allowed"


async def test_a_rebound_name_is_refused_over_the_socket_too(tmp_path: Path) -> None:
    """The check must stand in front of the hot routes as well."""
    async with api(tmp_path) as service:
        event = {"type": "a", "payload": 1}
        headers = {"host": "rebound.example.com"}
        await problem(service.client.post("/v1/events", json=event, headers=headers), 421, "host_not_allowed")
        await problem(service.client.get("/v1/endpoints", headers=headers), 421, "host_not_allowed")
