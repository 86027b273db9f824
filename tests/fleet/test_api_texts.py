"""What callers of the API write into texts and cursors: on PostgreSQL too a mistake of theirs is told as one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gatepost.delivery.records import Secret
from gatepost.testing.postgres_store import KEYS, gatepost_database
from tests.service.running import api, ok, problem


async def test_what_cannot_be_stored_or_was_not_given_out_is_the_callers_mistake(tmp_path: Path) -> None:
    """U+0000 in a text looked like a store that fails (503, worth repeating), a foreign cursor like a fault of ours (500)."""
    url = await asyncio.to_thread(gatepost_database, 8)
    async with api(tmp_path, database=url, keys=tuple(Secret(key) for key in KEYS)) as service:
        call = service.client
        for path in ("/v1/tenants/a%00", "/v1/endpoints?tenant=a%00", "/v1/deliveries?tenant=a%00"):
            document = await problem(call.get(path), 422, "invalid_request")
            assert "U+0000" in document["detail"]
        for listing in ("/v1/tenants", "/v1/endpoints", "/v1/deliveries?tenant=a", "/v1/dead-letters"):
            path = f"{listing}{'&' if '?' in listing else '?'}after=xyz"
            document = await problem(call.get(path), 422, "invalid_request")
            assert "leave it out for the first page" in document["detail"]
        await problem(call.post("/v1/dead-letters:purge", json={"tenant": "a\x00"}), 422, "invalid_request")
        await problem(call.post("/v1/api-keys", json={"name": "a\x00"}), 422, "invalid_request")
        endpoint = await ok(call.post("/v1/endpoints", json={"url": "https://hooks.example.com/", "probe": False}), 201)
        pause = f"/v1/endpoints/{endpoint['id']}/pause"
        await problem(call.post(pause, json={"reason": "a\x00"}), 422, "invalid_request")
        assert (await ok(call.get(f"/v1/endpoints/{endpoint['id']}")))["status"] == "active"
