"""Gatepost's own API under its callers' deadlines, and the deadline it sends to receivers that ask for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gatepost.deadline import DeadlineExceeded, deadline
from gatepost.testing.receiver import Receiver
from tests.service.running import Api, api, ok, problem, until


async def new_endpoint(service: Api, url: str, **fields: Any) -> Any:
    """A registered destination."""
    return await ok(service.client.post("/v1/endpoints", json={"url": url, **fields}), 201)


async def test_publishing_honours_the_callers_deadline_and_deliveries_do_not_inherit_it(tmp_path: Path) -> None:
    """A caller who has left must not find the event stored later; one who stays gets it delivered in its own time."""
    event = {"type": "invoice.paid", "payload": {}}
    async with api(tmp_path) as service, Receiver(keep=4) as receiver:
        await new_endpoint(service, receiver.url + "/ok")
        for path, body in (("/v1/events", event), ("/v1/events:batch", {"events": [event]})):
            answer = await service.client.post(path, json=body, headers={"request-timeout": "0"})
            assert answer.headers["deadline-exceeded"] == "arrival"
            assert "retry-after" not in answer.headers
            await problem(
                service.client.post(path, json=body, headers={"request-timeout": "0"}), 504, "deadline_exceeded"
            )
        assert receiver.requests == 0
        await ok(service.client.post("/v1/events", json=event, headers={"request-timeout": "20"}), 202)

        async def delivered() -> bool:
            return receiver.requests == 1

        await until(delivered)
        assert "request-timeout" not in receiver.received[0].headers
        assert (await service.client.get("/v1/endpoints", headers={"request-timeout": "0"})).status_code == 200
        text = (await service.client.get("/metrics")).text
        assert 'gatepost_deadline_rejected_total{where="arrival"}' in text


async def test_publish_in_process_ends_by_the_ambient_deadline(tmp_path: Path) -> None:
    """Also inside a plain `with`, which cuts nothing by itself."""
    async with api(tmp_path) as service:
        dispatcher = service.running.dispatcher
        with deadline(0), pytest.raises(DeadlineExceeded, match="at publish"):
            await dispatcher.publish("invoice.paid", {})
        with deadline(30):
            assert (await dispatcher.publish("invoice.paid", {})).deliveries == 0


async def test_an_endpoint_that_opts_in_is_told_how_long_its_answer_is_waited_for(tmp_path: Path) -> None:
    """Its read timeout: what comes later is work for nobody."""
    async with api(tmp_path) as service, Receiver(keep=4) as receiver:
        endpoint = await new_endpoint(
            service, receiver.url + "/ok", send_deadline=True, limits={"read_timeout": 1.9345}
        )
        assert endpoint["send_deadline"] is True
        test = await ok(service.client.post(f"/v1/endpoints/{endpoint['id']}/test"))
        assert test["delivered"]
        assert receiver.received[0].headers["request-timeout"] == "1.934"
        path = f"/v1/endpoints/{endpoint['id']}"
        await problem(service.client.patch(path, json={"send_deadline": None}), 422, "invalid_request")
        assert (await ok(service.client.patch(path, json={"send_deadline": False})))["send_deadline"] is False
        await ok(service.client.post(f"{path}/test"))
        assert "request-timeout" not in receiver.received[1].headers
        headers = {"request-timeout": "7"}  # they may know better what their receiver reads
        await ok(service.client.patch(path, json={"send_deadline": True, "headers": headers}))
        await ok(service.client.post(f"{path}/test"))
        assert receiver.received[2].headers["request-timeout"] == "7"
