"""Schemas of event types through the API, the command line, the library and outboxes."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost import Dispatcher, Publisher
from gatepost.errors import LimitExceeded, PayloadInvalid
from gatepost.store.migrate import install_outbox
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation
from gatepost.testing.scripted_receiver import ScriptedReceiver
from tests.service.running import EGRESS, POLICY, Api, api, ok, problem, until
from tests.service.test_cli import run

SCHEMA = {"type": "object", "required": ["number"], "properties": {"number": {"type": "integer"}}}


class Heard:
    """What an operator hears."""

    def __init__(self) -> None:
        self.all: list[OperationalObservation] = []

    def attempt_finished(self, observation: AttemptObservation) -> None:
        """Not of interest."""

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        """Not of interest."""

    def operational(self, observation: OperationalObservation) -> None:
        """Keep it."""
        self.all.append(observation)


async def publish(service: Api, payload: Any, **fields: Any) -> Any:
    """One event of the type with a schema."""
    return await service.client.post("/v1/events", json={"type": "order.paid", "payload": payload, **fields})


async def test_a_payload_that_does_not_fit_is_refused_and_types_without_a_schema_pass(tmp_path: Path) -> None:
    """With pointers for programs, alone and in a batch; and nothing of it is stored."""
    path = "/v1/event-types/order.paid"
    async with api(tmp_path) as service:
        await ok(publish(service, "anything"), 202)
        made = await ok(service.client.put(path, json={"schema": SCHEMA}))
        assert (made["version"], made["schema"], made["by"]) == (1, SCHEMA, "loopback")
        document = await problem(publish(service, {"number": "1"}), 422, "payload_invalid")
        assert document["errors"] == [{"pointer": "/number", "keyword": "type", "expected": "integer"}]
        await problem(publish(service, {}), 422, "payload_invalid")
        base64 = {"type": "order.paid", "payload_base64": "AAAA"}
        document = await problem(service.client.post("/v1/events", json=base64), 422, "payload_invalid")
        assert document["errors"][0]["keyword"] == "content_type"
        await ok(publish(service, {"number": 1}), 202)
        await ok(service.client.post("/v1/events", json={"type": "other", "payload": []}), 202)
        events = [{"type": "order.paid", "payload": {"number": n}} for n in (1, "x", 2)]
        results = (await ok(service.client.post("/v1/events:batch", json={"events": events}), 202))["results"]
        assert [one.get("code") for one in results] == [None, "payload_invalid", None]
        large = {"number": 1, "filler": ["x" * 100] * 300}
        await ok(publish(service, large), 202)
        await problem(publish(service, {**large, "number": None}), 422, "payload_invalid")

        assert (await ok(service.client.put(path, json={"schema": SCHEMA})))["version"] == 1
        await problem(service.client.put(path, json={"schema": {"$ref": "http://evil"}}), 422, "invalid_request")
        await problem(service.client.put("/v1/event-types/gatepost.x", json={"schema": {}}), 422, "invalid_request")
        assert (await ok(service.client.put(path, json={"schema": {}})))["version"] == 2
        await ok(publish(service, {}), 202)
        assert (await service.client.delete(path)).status_code == 204
        await problem(service.client.delete(path), 404, "not_found")
        await problem(service.client.get("/v1/event-types/none"), 404, "not_found")
        shown = await ok(service.client.get(path, params={"version": 1}))
        assert (shown["schema"], [one["version"] for one in shown["versions"]]) == (SCHEMA, [3, 2, 1])
        listed = await ok(service.client.get("/v1/event-types"))
        assert [(one["type"], one["version"], one["schema"]) for one in listed["items"]] == [("order.paid", 3, None)]


async def test_schemas_belong_to_a_tenant_and_survive_a_restart(tmp_path: Path) -> None:
    """One tenant's rule is no other's; and the command line does what the API does."""
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    async with api(tmp_path) as service:
        options = ("--url", service.running.url)
        made = await asyncio.to_thread(run, "event-type", "set", "a/b", str(file), "--tenant", "acme", *options)
        assert made.exit_code == 0, made.output
        shown = await asyncio.to_thread(run, "event-type", "show", "a/b", "--tenant", "acme", *options)
        assert json.loads(shown.output) == SCHEMA
        table = await asyncio.to_thread(run, "event-type", "list", *options)
        assert "a/b" in table.output
    async with api(tmp_path) as service:
        event = {"type": "a/b", "payload": {}}
        await ok(service.client.post("/v1/events", json=event), 202)
        await problem(service.client.post("/v1/events", json={**event, "tenant": "acme"}), 422, "payload_invalid")
        options = ("--url", service.running.url)
        gone = await asyncio.to_thread(run, "event-type", "remove", "a/b", "--tenant", "acme", *options)
        assert gone.exit_code == 0, gone.output
        await ok(service.client.post("/v1/events", json={**event, "tenant": "acme"}), 202)


async def test_publishers_that_know_no_schemas_lose_nothing_and_deliver_nothing_that_does_not_fit(
    tmp_path: Path,
) -> None:
    """Our own outbox keeps the event without deliveries, a producer's keeps the row; the tenant and the operator are told."""
    own, theirs = f"sqlite:///{tmp_path / 'gatepost.db'}", f"sqlite:///{tmp_path / 'theirs.db'}"
    await install_outbox(theirs)
    heard = Heard()
    with ScriptedReceiver() as receiver, ScriptedReceiver() as operator:
        async with Dispatcher.open(
            own, policy=POLICY, egress=EGRESS, observer=heard, run=True, outboxes=[theirs]
        ) as gp:
            await gp.endpoints.create(receiver.url, secret=receiver.secret)
            await gp.endpoints.create(operator.url, secret=operator.secret, event_types=["gatepost.*"])
            await gp.event_types.set("order.paid", SCHEMA, by="alice")
            connection = sqlite3.connect(tmp_path / "theirs.db")
            with pytest.raises(PayloadInvalid):  # who knows the schema says so at once
                gp.publish_sync("order.paid", {}, connection=connection)
            Publisher().publish_sync("order.paid", {"number": "x"}, connection=connection)
            Publisher().publish_sync("order.paid", {"number": 1}, connection=connection)
            connection.commit()
            connection.close()
            with Publisher.open_sync(own) as publisher:
                receipt = publisher.publish_sync("order.paid", {}, idempotency_key="k")
                publisher.publish_sync("order.paid", {"number": 2}, idempotency_key="k")
            await asyncio.to_thread(receiver.wait_for, 2)
            await asyncio.to_thread(operator.wait_for, 2)
            assert sorted(one.json()["number"] for one in receiver.received) == [1, 2]
            aside = [one for one in heard.all if one.kind == "outbox_set_aside"]
            assert {(one.fields or {})["code"] for one in aside} == {"payload_invalid"}
            assert receipt.event_id in {(one.fields or {})["event_id"] for one in aside}
            assert {one.json()["type"] for one in operator.received} == {"gatepost.event.set_aside"}
            assert "expected integer" in str([one.json() for one in operator.received])
            assert (await gp.store.totals()).outbox == 0
            [audited] = (await gp.store.audit_log(None, None, 10)).items
            assert (audited.actor, audited.action, audited.subject) == ("alice", "event_type.set", "order.paid")


async def test_another_process_follows_and_a_tenant_has_so_many_types(tmp_path: Path) -> None:
    """What one process of a fleet is told holds in all of them."""
    async with api(tmp_path) as service:
        gp = service.running.dispatcher
        types = gp.event_types
        other = type(types)(gp.store, gp.store_time)
        await other.set("order.paid", SCHEMA)

        async def followed() -> bool:
            return types.any

        await until(followed)
        await problem(publish(service, {}), 422, "payload_invalid")
        for number in names():
            other._documents["crowded", f"t{number}"] = "{}"
        with pytest.raises(LimitExceeded):
            await other.set("one.more", SCHEMA, tenant="crowded")


def names() -> Iterator[int]:
    """As many as a tenant may have."""
    from gatepost.dispatch.event_types import TYPES_MAX

    return iter(range(TYPES_MAX))
