"""Whose pages one sees: every route of the console, asked by another tenant, and by somebody without a session."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fastapi.routing import APIRoute

from gatepost.service.api.problems import CODES
from gatepost.service.console.app import OPEN, PAGES, TITLES
from tests.console.test_doors import tenant_key
from tests.console.visitor import visiting
from tests.service.running import ADMIN_KEY, api, ok

OWN: Final = {"/", "/overview/live"}
"""Pages without a parameter that could name somebody else's: they show the visitor's own."""
NOT_FOUND: Final = TITLES["not_found"]


def routes() -> Iterator[tuple[str, str]]:
    """Method and path of every page that needs a session."""
    for module in PAGES:
        for route in module.router.routes:
            assert isinstance(route, APIRoute)
            for method in sorted(route.methods or ()):
                yield method, route.path


async def test_every_page_answers_404_for_another_tenants_things_and_for_admins_pages(tmp_path: Path) -> None:
    """Generated from the routers, so that a new page cannot be forgotten. What is not mine must look like what is not there."""
    async with api(tmp_path, keyed=True) as service:
        mine, _ = await tenant_key(service, "acme")
        theirs, _ = await tenant_key(service, "other")
        async with service.as_key(theirs) as other:
            endpoint = await ok(
                other.post("/v1/endpoints", json={"url": "https://hooks.example.com/", "probe": False}), 201
            )
            await ok(other.post(f"/v1/endpoints/{endpoint['id']}/pause"))
            event = await ok(other.post("/v1/events", json={"type": "secret.type", "payload": "their payload"}), 202)
            delivery = (await ok(other.get("/v1/deliveries")))["items"][0]
        names = {"endpoint_id": endpoint["id"], "delivery_id": delivery["id"], "event_id": event["event_id"]}
        asked = {
            "tenant": "other",
            "endpoint": endpoint["id"],
            "why": "mine now",
            "confirmation": "purge",
            "rate": "50",
        }
        tried = 0
        async with visiting(service.running.url, mine) as acme:
            token = await acme.token()
            for method, path in routes():
                if path in OWN:
                    assert "secret.type" not in (await acme.get(path)).text
                    continue
                where = f"/console{path.format(**names)}"
                if method == "GET":
                    answer = await acme.client.get(where, params=asked)
                else:
                    answer = await acme.client.post(where, data={**asked, "csrf": token})
                assert answer.status_code == CODES["not_found"][0], (method, path, answer.text)
                assert NOT_FOUND in answer.text, (method, path)
                for secret in ("their payload", "hooks.example.com", "secret.type"):
                    assert secret not in answer.text, (method, path)
                tried += 1
            # The same ids without the tenant: a filter by somebody else's endpoint finds nothing.
            for path in ("/deliveries", "/dead-letters"):
                page = await acme.get(f"{path}?endpoint={endpoint['id']}")
                assert "secret.type" not in page.text
            navigation = (await acme.get("/")).text
            assert "/console/policy" not in navigation
            assert "/console/fleet" not in navigation
        assert tried >= 30
        assert (await ok(service.client.get(f"/v1/endpoints/{endpoint['id']}")))["status"] == "paused"
        assert (await ok(service.client.get(f"/v1/deliveries/{delivery['id']}")))["state"] == "waiting"
        async with visiting(service.running.url, theirs) as other_visitor:
            assert "secret.type" in (await other_visitor.get("/deliveries")).text


async def test_what_is_anothers_looks_exactly_like_what_never_was(tmp_path: Path) -> None:
    """Without naming a tenant: an id that travelled must tell nobody whether it is one, how much waits behind it, or anything else."""
    async with api(tmp_path, keyed=True) as service:
        mine, _ = await tenant_key(service, "acme")
        theirs, _ = await tenant_key(service, "other")
        async with service.as_key(theirs) as other:
            body = {"url": "https://hooks.example.com/", "probe": False}
            endpoint = await ok(other.post("/v1/endpoints", json=body), 201)
            await ok(other.post(f"/v1/endpoints/{endpoint['id']}/pause"))
            event = await ok(other.post("/v1/events", json={"type": "secret.type", "payload": 1}), 202)
            delivery = (await ok(other.get("/v1/deliveries")))["items"][0]
        existing = {"endpoint_id": endpoint["id"], "delivery_id": delivery["id"], "event_id": event["event_id"]}
        never = {name: text[:-4] + ("0000" if text[-4:] != "0000" else "1111") for name, text in existing.items()}
        tried = 0
        async with visiting(service.running.url, mine) as acme:
            token = await acme.token()
            for method, path in routes():
                seen = []
                for names in (existing, never):
                    where = f"/console{path.format(**names)}"
                    asked = {
                        "endpoint": names["endpoint_id"], "delivery": names["delivery_id"], "event": names["event_id"],
                        "rate": "50", "moved": "3", "began": "1", "next_due": "2", "confirmation": "purge", "why": "x",
                    }  # fmt: skip
                    if method == "GET":
                        answer = await acme.client.get(where, params=asked)
                    else:
                        answer = await acme.client.post(where, data={**asked, "csrf": token})
                    text = answer.text + answer.headers.get("location", "")
                    for name, word in [*existing.items(), *never.items()]:
                        text = text.replace(word, name)
                    # The times of a page that shows now, and of a replay that begins now.
                    seen.append((answer.status_code, re.sub(r"[0-9]{10,}|datetime=.*?</time>|[0-9.]+ m?s\b", "", text)))
                    acme.client.cookies.delete("gatepost_console_said", path="/console")
                assert seen[0] == seen[1], (method, path)
                tried += 1
        assert tried >= 40
        assert (await ok(service.client.get(f"/v1/deliveries/{delivery['id']}")))["state"] == "waiting"


async def test_a_stranger_is_led_to_the_login_from_every_page(tmp_path: Path) -> None:
    """The guard stands in front of whole routers; a page without it would be one nobody looked at."""
    async with api(tmp_path, keyed=True) as service, visiting(service.running.url) as stranger:
        await stranger.get("/login")
        token = await stranger.token()
        for method, path in routes():
            where = f"/console{re.sub('{[a-z_]+}', 'x', path)}"
            if method == "GET":
                answer = await stranger.client.get(where)
            else:
                answer = await stranger.client.post(where, data={"csrf": token})
            assert (answer.status_code, answer.text) == (303, ""), (method, path)
            assert answer.headers["location"].startswith("/console/login"), (method, path)
        assert {module.__name__.rpartition(".")[2] for module in OPEN} == {"signin", "static"}


async def test_pages_of_an_admin_take_a_tenant_as_a_filter(tmp_path: Path) -> None:
    """An operator looks at one customer at a time."""
    async with api(tmp_path, keyed=True) as service:
        for tenant in ("acme", "other"):
            await tenant_key(service, tenant)
            await ok(
                service.client.post(
                    "/v1/endpoints", json={"url": f"https://{tenant}.example.com/", "probe": False, "tenant": tenant}
                ),
                201,
            )
        async with visiting(service.running.url, ADMIN_KEY) as admin:
            both = (await admin.get("/endpoints")).text
            one = (await admin.get("/endpoints?tenant=acme")).text
        assert "acme.example.com" in both
        assert "other.example.com" in both
        assert "acme.example.com" in one
        assert "other.example.com" not in one
