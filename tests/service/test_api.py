"""The HTTP API over a real socket: what each route does, and what each error says."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import trustme

from gatepost.service.api.bounded_body import BODY_BYTES_MAX
from gatepost.testing.receiver import Receiver
from gatepost.wire.signing import verify
from tests.service.running import Api, api, ok, problem, until


async def new_endpoint(service: Api, url: str, **fields: Any) -> Any:
    """A registered endpoint."""
    return await ok(service.client.post("/v1/endpoints", json={"url": url, "probe": False, **fields}), 201)


async def test_an_event_is_accepted_delivered_signed_and_shown(tmp_path: Path) -> None:
    """The main job, end to end, through the faces a user sees."""
    async with api(tmp_path) as service, Receiver(keep=1) as receiver:
        endpoint = await new_endpoint(service, receiver.url + "/ok", event_types=["invoice.*"])
        body = b'{"type": "invoice.paid", "payload": {"b": 1.50,  "a": "\\u00fc"}}'
        receipt = await ok(service.client.post("/v1/events", content=body), 202)
        assert receipt["duplicate"] is False
        assert receipt["deliveries"] == 1

        async def delivered() -> bool:
            page = await ok(service.client.get("/v1/deliveries", params={"event_id": receipt["event_id"]}))
            return [item["state"] for item in page["items"]] == ["delivered"]

        await until(delivered)
        (request,) = receiver.received
        assert request.body == b'{"b": 1.50,  "a": "\\u00fc"}', "the payload's own bytes"
        assert request.headers["webhook-id"] == receipt["event_id"]
        verify(request.body, request.headers, [endpoint["secret"]])
        page = await ok(service.client.get("/v1/deliveries", params={"endpoint_id": endpoint["id"]}))
        delivery = page["items"][0]
        attempts = await ok(service.client.get(f"/v1/deliveries/{delivery['id']}/attempts"))
        (attempt,) = attempts["items"]
        assert (attempt["outcome"], attempt["status"], attempt["number"]) == ("response", 200, 1)
        assert set(attempt["phases"]) >= {"write", "wait", "read"}


async def test_an_event_for_nobody_is_accepted(tmp_path: Path) -> None:
    """Producers must not need to know who listens."""
    async with api(tmp_path) as service:
        receipt = await ok(service.client.post("/v1/events", json={"type": "a", "payload": None}), 202)
        assert receipt["deliveries"] == 0


async def test_the_same_key_stores_once_and_another_payload_conflicts(tmp_path: Path) -> None:
    """A producer that retries after a lost answer must get the first event back, and one that errs must hear it."""
    async with api(tmp_path) as service:
        event = {"type": "a", "payload": {"n": 1}}
        headers = {"idempotency-key": "order-1"}
        first = await ok(service.client.post("/v1/events", json=event, headers=headers), 202)
        answer = await service.client.post("/v1/events", json={**event, "idempotency_key": "order-1"})
        assert answer.json() == {**first, "duplicate": True, "deliveries": answer.json()["deliveries"]}
        assert answer.headers["idempotent-replayed"] == "true"
        other = {"type": "a", "payload": {"n": 2}}
        document = await problem(
            service.client.post("/v1/events", json=other, headers=headers), 409, "idempotency_conflict"
        )
        assert document["event_id"] == first["event_id"]
        assert document["type"] == "urn:gatepost:problem:idempotency_conflict"


BAD_EVENTS: Final[list[tuple[bytes, int, str, str]]] = [
    (b"", 400, "invalid_json", "an event is an object"),
    (b"[]", 400, "invalid_json", "an event is an object"),
    (b'{"type":"a","payload":1', 400, "invalid_json", "a comma must stand"),
    (b'{"type":"a","payload":NaN}', 400, "invalid_json", "NaN is not JSON"),
    (b'{"type":"a","payload":tru}', 400, "invalid_json", "a JSON value must stand"),
    (b'{"type":"a","payload":"\xff"}', 400, "invalid_json", "not UTF-8"),
    (b'{"type":"a","payload":1}x', 400, "invalid_json", "something follows"),
    (b'{"type":"a","payload":' + b"[" * 15_000, 400, "invalid_json", "nested too deeply"),
    (b"{}", 422, "invalid_request", "payload is missing"),
    (b'{"payload":1}', 422, "invalid_request", "type is missing"),
    (b'{"type":"","payload":1}', 422, "invalid_request", "type is a text"),
    (b'{"type":"a\\n","payload":1}', 422, "invalid_request", "type is a text"),
    (b'{"typ":"a","payload":1}', 422, "invalid_request", "write type"),
    (b'{"type":"a","type":"b","payload":1}', 422, "invalid_request", "given twice"),
    (b'{"type":"a","payload":1,"payload_base64":"AA=="}', 422, "invalid_request", "leave one out"),
    (b'{"type":"a","payload_base64":"%%"}', 422, "invalid_request", "standard base64"),
    (b'{"type":"a","payload":1,"priority":"urgent"}', 422, "invalid_request", "priority is one of"),
    (b'{"type":"a","payload":1,"not_before":"tomorrow"}', 422, "invalid_request", "with its zone"),
    (b'{"type":"a","payload":1,"not_before":"2027-01-01T00:00:00"}', 422, "invalid_request", "with its zone"),
    (b'{"type":"a","payload":"' + b"x" * 2_000 + b'"}', 413, "payload_too_large", ""),
    (b'{"type":"a","payload":"' + b"x" * 40_000 + b'"}', 413, "payload_too_large", ""),
]


async def test_a_bad_event_is_refused_with_a_stable_code(tmp_path: Path) -> None:
    """Programs act on the code, people on the text; neither may be a traceback."""
    async with api(tmp_path, max_payload=1_000) as service:
        for body, status, code, says in BAD_EVENTS:
            document = await problem(service.client.post("/v1/events", content=body), status, code)
            assert says in document["detail"], body[:80]


async def test_a_body_without_length_is_bounded_while_it_arrives(tmp_path: Path) -> None:
    """A chunked upload announces nothing; it must not fill the memory."""

    async def endless() -> Any:
        yield b'{"type":"a","payload":"'
        for _ in range(1_000):
            yield b"x" * 10_000

    async with api(tmp_path, max_payload=10_000) as service:
        await problem(service.client.post("/v1/events", content=endless()), 413, "payload_too_large")

        async def short() -> Any:
            yield b'{"type":"a",'
            yield b'"payload":1}'

        await ok(service.client.post("/v1/events", content=short()), 202)


async def test_a_strangers_body_is_bounded_on_every_route(tmp_path: Path) -> None:
    """The framework reads a body before it asks for a key: without a bound anybody who reaches the port fills the memory."""
    large = b"a" * (BODY_BYTES_MAX + 1)

    async def in_pieces() -> AsyncIterator[bytes]:
        yield large

    async with api(tmp_path, keyed=True) as service:
        routes = (("POST", "/v1/endpoints"), ("PUT", "/v1/event-types/a.b"), ("POST", "/v1/dead-letters:replay"))
        for method, path in routes:
            for body in (large, in_pieces()):
                headers = {"authorization": "", "content-type": "application/json"}
                sent = service.client.request(method, path, content=body, headers=headers)
                await problem(sent, 413, "payload_too_large")


async def test_other_bytes_travel_as_base64(tmp_path: Path) -> None:
    """Not every payload is JSON, and each must arrive as it is."""
    raw = bytes(range(256))
    async with api(tmp_path) as service, Receiver(keep=1) as receiver:
        await new_endpoint(service, receiver.url + "/ok")
        event = {"type": "blob", "payload_base64": base64.b64encode(raw).decode(), "content_type": "image/x-test"}
        await ok(service.client.post("/v1/events", json=event), 202)

        async def arrived() -> bool:
            return receiver.requests == 1

        await until(arrived)
        assert receiver.received[0].body == raw
        assert receiver.received[0].headers["content-type"] == "image/x-test"


async def test_a_batch_answers_for_each_event(tmp_path: Path) -> None:
    """One conflict must not cost the other 499 events."""
    async with api(tmp_path) as service:
        await ok(service.client.post("/v1/events", json={"type": "a", "payload": 1, "idempotency_key": "k"}), 202)
        events = [
            {"type": "a", "payload": {"n": 1}},
            {"type": "a", "payload": 2, "idempotency_key": "k"},
            {"type": "a", "payload": 1, "idempotency_key": "k"},
        ]
        answer = await ok(service.client.post("/v1/events:batch", json={"events": events}), 202)
        good, conflict, repeated = answer["results"]
        assert good["duplicate"] is False
        assert conflict["code"] == "idempotency_conflict"
        assert repeated["duplicate"] is True


BAD_BATCHES: Final[list[tuple[bytes, int, str, str]]] = [
    (b"[]", 400, "invalid_json", "a batch is an object"),
    (b'{"events":[]}', 422, "invalid_request", "write at least one"),
    (b'{"events":[{"type":"a","payload":1},{"type":"a"}]}', 422, "invalid_request", "events[1]: payload is missing"),
    (b'{"events":[{"type":"a","payload":1}],"more":1}', 400, "invalid_json", "exactly one field"),
    (b'{"event":[]}', 422, "invalid_request", "exactly one field"),
    (b'{"events":[' + b'{"type":"a","payload":1},' * 501 + b"]}", 422, "invalid_request", "at most 500"),
]


async def test_a_malformed_batch_stores_nothing(tmp_path: Path) -> None:
    """A batch that cannot be read is refused whole; what was meant is unknown."""
    async with api(tmp_path) as service:
        for body, status, code, says in BAD_BATCHES:
            document = await problem(service.client.post("/v1/events:batch", content=body), status, code)
            assert says in document["detail"], body[:80]


async def test_an_endpoint_lives_from_creation_to_deletion(tmp_path: Path) -> None:
    """Every field that can be set can be read back, but for what is secret."""
    made = trustme.CA().issue_cert("client@example.com")
    key = made.private_key_pem.bytes().decode()
    certificate = {"client_cert_pem": made.cert_chain_pems[0].bytes().decode(), "client_key_pem": key}
    async with api(tmp_path) as service:
        created = await new_endpoint(
            service,
            "https://hooks.example.com/in?token=abc",
            description="billing",
            headers={"X-Token": "s3cret"},
            schedule=[0, 5, 30],
            window=3_600,
            status_rules={"404": "final"},
            concurrency=3,
            rate=10,
            limits={"read_timeout": 20},
            deduplicates=False,
            **certificate,
        )
        path = f"/v1/endpoints/{created['id']}"
        assert created["secret"].startswith("whsec_")
        assert (created["client_key_pem"], created["unverified"]) == ("***", "not_probed")
        assert key.splitlines()[1] not in json.dumps(created)
        shown = await ok(service.client.get(path))
        assert "secret" not in shown
        assert created["secret"] not in json.dumps(shown)
        assert shown["headers"] == {"X-Token": "***"}
        assert (shown["schedule"], shown["window"], shown["concurrency"]) == ([0.0, 5.0, 30.0], 3_600.0, 3)
        changed = await ok(service.client.patch(path, json={"rate": None, "event_types": ["a", "b.*"]}))
        assert (changed["rate"], changed["event_types"]) == (None, ["a", "b.*"])
        assert changed["generation"] > shown["generation"]
        paused = await ok(service.client.post(path + "/pause", json={"reason": "moving"}))
        assert (paused["status"], paused["status_reason"]) == ("paused", "moving")
        assert (await ok(service.client.post(path + "/resume")))["status"] == "active"
        rotated = await ok(service.client.post(path + "/rotate-secret", json={"overlap": 60}))
        assert rotated["secret"] != created["secret"]
        assert len(rotated["secrets"]) == 2
        assert rotated["secrets"][1]["expires_at"] is not None
        listed = await ok(service.client.get("/v1/endpoints"))
        assert [item["id"] for item in listed["items"]] == [created["id"]]
        assert (await service.client.delete(path)).status_code == 204
        await problem(service.client.get(path), 404, "not_found")


BAD_ENDPOINTS: Final[list[tuple[dict[str, Any], str, str]]] = [
    ({}, "invalid_request", "url"),
    ({"url": "https://hooks.example.com/", "colour": "red"}, "invalid_request", "colour"),
    ({"url": "https://hooks.example.com/", "concurrency": 0}, "invalid_request", "concurrency"),
    ({"url": "https://10.0.0.7/"}, "destination_denied", "10.0.0.7"),
    ({"url": "ftp://hooks.example.com/"}, "destination_denied", "ftp"),
    ({"url": "https://hooks.example.com/", "headers": {"Host": "x"}}, "invalid_request", "Host"),
    ({"url": "https://hooks.example.com/", "limits": {"read_timout": 3}}, "invalid_request", "read_timout"),
    ({"url": "https://hooks.example.com/", "secret": "short"}, "invalid_request", ""),
]


async def test_an_endpoint_that_cannot_work_is_refused(tmp_path: Path) -> None:
    """Better now, to whoever registers it, than as a dead letter in four days."""
    async with api(tmp_path) as service:
        for body, code, says in BAD_ENDPOINTS:
            document = await problem(service.client.post("/v1/endpoints", json=body), 422, code)
            assert says in document["detail"], body
            if code == "destination_denied":
                assert document["reason"]


async def test_a_test_event_says_how_the_attempt_ended(tmp_path: Path) -> None:
    """Whoever set up a receiver wants to know now, with phase and reason."""
    async with api(tmp_path) as service, Receiver() as receiver:
        good = await new_endpoint(service, receiver.url + "/ok")
        attempt = await ok(service.client.post(f"/v1/endpoints/{good['id']}/test"))
        assert (attempt["delivered"], attempt["status"]) == (True, 200)
        bad = await new_endpoint(service, receiver.url + "/status/500")
        attempt = await ok(service.client.post(f"/v1/endpoints/{bad['id']}/test"))
        assert (attempt["delivered"], attempt["status"], attempt["retry_safety"]) == (False, 500, "ambiguous")


async def test_a_tenant_over_its_limits_gets_429_with_a_time_to_come_back(tmp_path: Path) -> None:
    """Events, bytes, backlog and endpoints; each says which limit it was. Others are served meanwhile."""
    event = {"type": "a", "payload": "x" * 500}

    async def refused(service: Api, body: Any, words: str, route: str = "/v1/events") -> None:
        answer = await service.client.post(route, json=body)
        assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
        assert int(answer.headers["retry-after"]) >= 1
        assert words in answer.json()["detail"]

    limits = {
        "events": ({"events_per_second": 0.01}, "events a second"),
        "bytes": ({"bytes_per_second": 600}, "bytes a second"),
        "backlog": ({"backlog_rows": 1}, "waiting"),
    }
    async with api(tmp_path) as service, Receiver() as receiver:
        await ok(service.client.post("/v1/tenants", json={"name": "few", "limits": {"endpoints": 1}}), 201)
        for name, (values, _) in limits.items():
            await ok(service.client.post("/v1/tenants", json={"name": name, "limits": values}), 201)
            endpoint = await new_endpoint(service, receiver.url + "/ok", tenant=name)
            await ok(service.client.post(f"/v1/endpoints/{endpoint['id']}/pause"))
        await new_endpoint(service, receiver.url + "/ok", tenant="few")
        await asyncio.sleep(2.1)  # limits hold within two seconds
        for name, (_, words) in limits.items():
            await ok(service.client.post("/v1/events", json={**event, "tenant": name}), 202)
            if name == "backlog":
                await asyncio.sleep(1.1)  # a count is relied on for a second
            await refused(service, {**event, "tenant": name}, words)
            await ok(service.client.post("/v1/events", json={**event, "tenant": "other"}), 202)
        body = {"url": receiver.url + "/ok", "tenant": "few", "probe": False}
        await refused(service, body, "endpoints", "/v1/endpoints")


async def test_while_the_store_takes_nothing_events_get_503_and_deliveries_go_on(tmp_path: Path) -> None:
    """Its file is gone: what was accepted is still sent, and nothing is accepted that could be lost."""
    async with api(tmp_path) as service, Receiver() as receiver:
        endpoint = await new_endpoint(service, receiver.url + "/ok")
        await ok(service.client.post(f"/v1/endpoints/{endpoint['id']}/pause"))
        for number in range(3):
            await ok(service.client.post("/v1/events", json={"type": "a", "payload": number}), 202)
        await ok(service.client.post(f"/v1/endpoints/{endpoint['id']}/resume"))
        (tmp_path / "gatepost.db").rename(tmp_path / "elsewhere.db")
        answer = await service.client.post("/v1/events", json={"type": "a", "payload": 9})
        assert (answer.status_code, answer.json()["code"]) == (503, "store_failing")
        assert int(answer.headers["retry-after"]) >= 1

        async def all_arrived() -> bool:
            return receiver.requests >= 3

        await until(all_arrived)
        (tmp_path / "elsewhere.db").rename(tmp_path / "gatepost.db")
        await ok(service.client.post("/v1/events", json={"type": "a", "payload": 9}), 202)


async def test_waiting_deliveries_are_cancelled_and_dead_ones_replayed(tmp_path: Path) -> None:
    """An owner whose receiver was broken mends it and asks for what was missed."""
    async with api(tmp_path) as service, Receiver() as receiver:
        endpoint = await new_endpoint(service, receiver.url + "/flaky", schedule=[0])
        receiver.answer("/flaky", 500)
        receipt = await ok(service.client.post("/v1/events", json={"type": "a", "payload": 1}), 202)

        async def dead() -> bool:
            page = await ok(service.client.get("/v1/dead-letters", params={"endpoint_id": endpoint["id"]}))
            return len(page["items"]) == 1

        await until(dead)
        (letter,) = (await ok(service.client.get("/v1/dead-letters")))["items"]
        assert letter["event_id"] == receipt["event_id"]
        one = await ok(service.client.get(f"/v1/dead-letters/{letter['delivery_id']}"))
        assert base64.b64decode(one["payload_base64"]) == b"1"
        receiver.answer("/flaky", 200)
        selection = {"endpoint_id": endpoint["id"], "rate": 100}
        assert await ok(service.client.post("/v1/dead-letters:replay", json=selection), 202) == {"replayed": 1}

        async def delivered() -> bool:
            delivery = await ok(service.client.get(f"/v1/deliveries/{letter['delivery_id']}"))
            return bool(delivery["state"] == "delivered")

        await until(delivered)
        path = f"/v1/deliveries/{letter['delivery_id']}"
        await problem(service.client.post(path + "/replay"), 409, "conflict")
        await problem(service.client.post(path + "/cancel"), 409, "conflict")
        await ok(service.client.post(f"/v1/endpoints/{endpoint['id']}/pause"))
        for number in range(3):
            await ok(service.client.post("/v1/events", json={"type": "a", "payload": number}), 202)
        page = await ok(
            service.client.get("/v1/deliveries", params={"endpoint_id": endpoint["id"], "state": "waiting"})
        )
        assert len(page["items"]) == 3
        first = f"/v1/deliveries/{page['items'][0]['id']}"
        assert (await ok(service.client.post(first + "/cancel")))["state"] == "cancelled"
        answer = await ok(service.client.post("/v1/deliveries:cancel", json={"endpoint_id": endpoint["id"]}))
        assert answer == {"cancelled": 2}


async def test_purging_needs_a_condition(tmp_path: Path) -> None:
    """`{}` is what a client with a bug sends; it must not delete everything."""
    async with api(tmp_path) as service:
        await problem(service.client.post("/v1/dead-letters:purge", json={}), 422, "invalid_request")
        answer = await ok(service.client.post("/v1/dead-letters:purge", json={"tenant": "default"}))
        assert answer == {"purged": 0}


async def test_listings_go_on_where_the_page_before_ended(tmp_path: Path) -> None:
    """A page must neither repeat nor skip."""
    async with api(tmp_path) as service:
        made = {(await new_endpoint(service, f"https://h{n}.example.com/"))["id"] for n in range(5)}
        seen: list[str] = []
        after = None
        for _ in range(3):
            params = {"limit": 2} | ({"after": after} if after else {})
            page = await ok(service.client.get("/v1/endpoints", params=params))
            seen += [item["id"] for item in page["items"]]
            after = page["next"]
        assert after is None
        assert (len(seen), set(seen)) == (5, made)
        await problem(service.client.get("/v1/endpoints", params={"limit": 0}), 422, "invalid_request")


async def test_an_admin_must_say_which_deliveries(tmp_path: Path) -> None:
    """Every delivery of every tenant is nobody's question, and a scan of the whole store."""
    async with api(tmp_path) as service:
        await problem(service.client.get("/v1/deliveries"), 422, "invalid_request")
        await problem(service.client.get("/v1/deliveries", params={"event_id": "x"}), 422, "invalid_request")
        await problem(service.client.get("/v1/deliveries/nonsense"), 404, "not_found")


async def test_paths_and_methods_that_do_not_exist_are_problems_too(tmp_path: Path) -> None:
    """A client that parses problems must not meet another format where it errs most."""
    async with api(tmp_path) as service:
        await problem(service.client.get("/v1/nothing"), 404, "not_found")
        await problem(service.client.put("/v1/endpoints"), 405, "method_not_allowed")
        await problem(service.client.get("/v1/events"), 404, "not_found")
        json_type = {"content-type": "application/json"}
        await problem(service.client.post("/v1/endpoints", content=b"{", headers=json_type), 400, "invalid_json")
        document = await problem(service.client.post("/v1/endpoints", content=b"{}"), 422, "invalid_request")
        assert "Content-Type: application/json" in document["detail"]


async def test_a_process_that_cannot_keep_up_refuses_events_and_says_when_to_come_back(tmp_path: Path) -> None:
    """Deliveries first: what was promised yesterday goes before what is asked for now."""
    async with api(tmp_path, max_loop_lag=2.0) as service:
        for _ in range(50):
            service.running.dispatcher.lag.sample(3.0, 0)
        event = {"type": "a", "payload": 1}
        answer = await service.client.post("/v1/events", json=event)
        assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "overloaded", "1")
        ready = await service.client.get("/readyz")
        assert (ready.status_code, ready.json()["checks"]["event_loop"]["ok"]) == (503, False)
        assert await ok(service.client.get("/healthz")) == {"status": "ok"}
        service.running.dispatcher.lag.window.clear()
        await ok(service.client.post("/v1/events", json=event), 202)


async def test_a_process_that_may_not_start_attempts_is_not_ready(tmp_path: Path) -> None:
    """Without a lease in force it would answer 202 and deliver nothing."""
    async with api(tmp_path) as service:
        await until(lambda: _is_ready(service))
        await service.running.dispatcher.drain(0.0)
        answer = await service.client.get("/readyz")
        checks = answer.json()["checks"]
        assert (answer.status_code, checks["dispatcher"]["ok"]) == (503, False)
        assert checks["dispatcher"]["lease_seconds_left"] == 0


async def _is_ready(service: Api) -> bool:
    return (await service.client.get("/readyz")).status_code == 200


async def test_a_process_on_its_way_out_refuses_events(tmp_path: Path) -> None:
    """A kept connection outlives the listener; the answer must send its client elsewhere."""
    async with api(tmp_path) as service:
        service.running.service.draining = True
        document = await problem(service.client.post("/v1/events", json={"type": "a", "payload": 1}), 503, "overloaded")
        assert "shutting down" in document["detail"]
        assert (await service.client.get("/readyz")).status_code == 503


async def test_health_readiness_and_metrics_answer(tmp_path: Path) -> None:
    """What a platform asks before it sends traffic."""
    async with api(tmp_path) as service:
        assert await ok(service.client.get("/healthz")) == {"status": "ok"}

        async def ready() -> bool:
            return (await service.client.get("/readyz")).status_code == 200

        await until(ready)
        document = await ok(service.client.get("/readyz"))
        assert document["checks"]["store"]["ok"] is True
        answer = await service.client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        assert "pool_connections_in_use" in answer.text
        assert "gatepost_build_info" in answer.text
        modern = await service.client.get("/metrics", headers={"accept": "application/openmetrics-text"})
        assert modern.text.endswith("# EOF\n")


async def test_the_document_describes_every_route(tmp_path: Path) -> None:
    """Clients are generated from it; the hot routes bypass the framework and must be in it all the same."""
    async with api(tmp_path) as service:
        document = await ok(service.client.get("/openapi.json"))
        paths = document["paths"]
        assert {"/v1/events", "/v1/events:batch", "/v1/endpoints", "/v1/dead-letters:replay"} <= set(paths)
        schema = paths["/v1/events"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert "idempotency_key" in schema["properties"]
        for path in paths.values():
            for operation in path.values():
                for status, answer in operation["responses"].items():
                    if status == "422":
                        assert "application/problem+json" in answer["content"]
