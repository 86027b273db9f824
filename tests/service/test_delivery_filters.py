"""`/v1/deliveries` by type and time: what one knows of a missing event before one has its id."""

from __future__ import annotations

from pathlib import Path

from tests.service.running import api, ok, problem


async def test_deliveries_are_listed_by_type_and_time(tmp_path: Path) -> None:
    """A time alone will do, for an admin who does not know whose it was; a time without its zone means two things."""
    async with api(tmp_path) as service:
        client = service.client
        endpoint = {"url": "http://127.0.0.1:40009/", "probe": False}
        await ok(client.post("/v1/endpoints", json=endpoint), 201)
        for event_type in ("a.paid", "a.paid", "a.sent"):
            await ok(client.post("/v1/events", json={"type": event_type, "payload": {}}), 202)

        async def found(**query: str) -> list[str]:
            page = await ok(client.get("/v1/deliveries", params=query))
            return [item["event_type"] for item in page["items"]]

        assert await found(tenant="default", event_type="a.paid") == ["a.paid", "a.paid"]
        assert await found(accepted_from="2026-01-01T00:00:00Z") == ["a.sent", "a.paid", "a.paid"]
        assert await found(accepted_from="2026-01-01T00:00:00Z", event_type="a.sent") == ["a.sent"]
        assert await found(accepted_before="2026-01-01T00:00:00+01:00") == []
        for query in ({"event_type": "a.paid"}, {"accepted_from": "2026-01-01T00:00:00"}, {"state": "waiting"}):
            await problem(client.get("/v1/deliveries", params=query), 422, "invalid_request")
