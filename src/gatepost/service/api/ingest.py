"""The two hot routes, `POST /v1/events` and `/v1/events:batch`, as plain ASGI in front of the rest of the API.

They answer 202 only after the commit is durable. Routing, dependency injection and validation of the framework would cost
three times what these do, at thousands of events a second; everything else goes through to the app behind.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from gatepost.delivery.records import Receipt
from gatepost.errors import GatepostError, PayloadTooLarge
from gatepost.service.api.auth import Caller
from gatepost.service.api.context import Service
from gatepost.service.api.event_body import BATCH_EVENTS_MAX, EventBody, check_text, read_batch, read_event
from gatepost.service.api.problems import Problem, problem_of

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
Headers = Mapping[str, str]
Answer = tuple[bytes, list[tuple[bytes, bytes]], int]
"""Body, headers, status."""
Work = Callable[[Caller, Headers, bytes], Awaitable[Answer]]

ENVELOPE_BYTES_MAX: Final = 16_384
"""What an event's body may hold beside its payload."""
BATCH_BYTES_MAX: Final = 16 * 1_048_576
"""A batch's body, whatever the payload limit: several at once must fit into memory."""
DRAIN_RETRY_AFTER: Final = 5.0
"""Seconds until another process, or this one restarted, is likely to answer."""
LATE_RETRY_AFTER: Final = 1.0
"""Seconds over which the lateness is taken."""
HELD_BYTES_MAX: Final = 128 * 1_048_576
"""Bodies being read or stored at once; the dispatcher's cache of bodies has as much again."""
HELD_RETRY_AFTER: Final = 1.0

log = logging.getLogger("gatepost.api")


class Ingest:
    """ASGI app: events here, everything else to `behind`."""

    def __init__(self, service: Service, behind: App) -> None:
        self._service = service
        self._behind = behind
        self._held_bytes = 0
        # Base64 makes four bytes of three.
        one = service.max_payload * 4 // 3 + ENVELOPE_BYTES_MAX
        self._routes: Mapping[str, tuple[Work, int]] = {
            "/v1/events": (self._one, one),
            "/v1/events:batch": (self._batch, max(one, BATCH_BYTES_MAX)),
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if self._service.leaving:
            send = _closing(send)
        route = None
        if scope["type"] == "http" and scope["method"] == "POST":
            route = self._routes.get(scope["path"])
        if route is None:
            await self._behind(scope, receive, send)
            return
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            body, answer_headers, status = await self._answer(*route, headers, receive)
        except (Problem, GatepostError) as error:
            problem = error if isinstance(error, Problem) else problem_of(error)
            if problem.code == "internal_error":
                log.error("publishing failed", exc_info=error)
            body, answer_headers, status = self._refuse(problem)
        except Exception:
            # The server in front would answer in plain text; every answer of this API is a document.
            log.exception("publishing failed")
            body, answer_headers, status = self._refuse(Problem("internal_error", "see the log"))
        await send({"type": "http.response.start", "status": status, "headers": answer_headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, work: Work, limit: int, headers: Headers, receive: Receive) -> Answer:
        caller = await self._service.keys.caller_of(headers)
        if self._service.draining:
            raise Problem("overloaded", "this process is shutting down", retry_after=DRAIN_RETRY_AFTER)
        if self._service.dispatcher.lag.window.p99 > self._service.max_loop_lag:
            raise Problem(
                "overloaded", "this process cannot keep up; deliveries go first", retry_after=LATE_RETRY_AFTER
            )
        announced = headers.get("content-length", "")
        size = int(announced) if announced.isdecimal() else limit
        if size > limit:
            raise PayloadTooLarge(f"the body has {size} bytes; at most {limit} are taken")
        if self._held_bytes + size > HELD_BYTES_MAX:
            raise Problem("overloaded", "too many large bodies at once", retry_after=HELD_RETRY_AFTER)
        self._held_bytes += size
        try:
            return await work(caller, headers, await _read_body(receive, limit))
        finally:
            self._held_bytes -= size

    def _refuse(self, problem: Problem) -> Answer:
        self._service.metrics.count_ingest(problem.code)
        body, headers = problem.encode()
        return body, headers, problem.status

    async def _one(self, caller: Caller, headers: Headers, body: bytes) -> Answer:
        event = read_event(body)
        key = headers.get("idempotency-key")
        if key is not None:
            check_text("Idempotency-Key", key)
            if event.idempotency_key is not None and event.idempotency_key != key:
                raise Problem("invalid_request", "idempotency_key and the header Idempotency-Key differ; leave one out")
        receipt = await self._publish(caller, event, event.idempotency_key or key, headers)
        return _answer(_receipt_view(receipt), replayed=receipt.duplicate is True)

    async def _batch(self, caller: Caller, headers: Headers, body: bytes) -> Answer:
        events = read_batch(body)
        # Tenants first: a batch that reaches for another tenant's data is refused before anything is stored.
        for event in events:
            caller.tenant_for(event.tenant)
        return _answer({"results": await publish_batch(self._service, caller, events, headers)})

    async def _publish(self, caller: Caller, event: EventBody, key: str | None, headers: Headers) -> Receipt:
        receipt = await self._service.dispatcher.publish(
            event.type,
            event.payload,
            tenant=caller.tenant_for(event.tenant),
            idempotency_key=key,
            ordering_key=event.ordering_key,
            priority=event.priority,
            not_before=event.not_before,
            content_type=event.content_type,
            traceparent=headers.get("traceparent"),
            tracestate=headers.get("tracestate"),
        )
        self._service.metrics.count_ingest("duplicate" if receipt.duplicate else "accepted")
        return receipt


async def publish_batch(
    service: Service, caller: Caller, events: list[EventBody], headers: Headers
) -> list[dict[str, Any]]:
    """A receipt or a problem for each event, in order. The request's trace context is that of each."""
    answers = await service.dispatcher.publish_batch(
        [
            {
                "type": event.type,
                "payload": event.payload,
                "tenant": caller.tenant_for(event.tenant),
                "idempotency_key": event.idempotency_key,
                "ordering_key": event.ordering_key,
                "priority": event.priority,
                "not_before": event.not_before,
                "content_type": event.content_type,
                "traceparent": headers.get("traceparent"),
                "tracestate": headers.get("tracestate"),
            }
            for event in events
        ]
    )
    return [_batch_view(service, answer) for answer in answers]


def _batch_view(service: Service, answer: Receipt | Exception) -> dict[str, Any]:
    match answer:
        case Receipt():
            service.metrics.count_ingest("duplicate" if answer.duplicate else "accepted")
            return _receipt_view(answer)
        case GatepostError():
            problem = problem_of(answer)
        case _:
            problem = Problem("internal_error", "see the log")
    if problem.code == "internal_error":
        log.error("publishing failed", exc_info=answer)
    service.metrics.count_ingest(problem.code)
    return problem.body()


def _receipt_view(receipt: Receipt) -> dict[str, Any]:
    return {"event_id": receipt.event_id, "duplicate": receipt.duplicate, "deliveries": receipt.deliveries}


def _answer(document: object, *, replayed: bool = False) -> Answer:
    body = json.dumps(document).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if replayed:
        headers.append((b"idempotent-replayed", b"true"))
    return body, headers, 202


def _closing(send: Send) -> Send:
    """Answers that end their connection (RFC 9112 section 9.6), so that the client's next one goes to another process."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await send(message)

    return closing


async def _read_body(receive: Receive, limit: int) -> bytes:
    """The whole body, at most `limit` bytes however it arrives. Raises `PayloadTooLarge`."""
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return body
    parts = [body]
    size = len(body)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem("invalid_json", "the body ended early")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise PayloadTooLarge(f"the body is over {limit} bytes")
    return b"".join(parts)


# ---------------------------------------------------------------------------------------- the OpenAPI document

_EVENT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["type"],
    "additionalProperties": False,
    "properties": {
        "type": {"type": "string", "maxLength": 256, "examples": ["invoice.paid"]},
        "payload": {"description": "Any JSON value. Its bytes are delivered exactly as they stand here."},
        "payload_base64": {"type": "string", "description": "Instead of payload: any bytes, standard base64."},
        "content_type": {"type": "string", "description": "Default application/json, for base64 octet-stream."},
        "tenant": {"type": "string", "description": "Default: the key's tenant; for an admin `default`."},
        "idempotency_key": {"type": "string", "maxLength": 256, "description": "As the header Idempotency-Key."},
        "ordering_key": {
            "type": "string",
            "maxLength": 256,
            "description": "Events of one key are delivered in order. Keys share 240 buckets per endpoint and wait for "
            "each other within a bucket.",
        },
        "priority": {"type": "string", "enum": ["high", "normal", "bulk"], "default": "normal"},
        "not_before": {"type": "string", "format": "date-time"},
    },
}
_RECEIPT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "event_id": {"type": "string", "description": "Also the `webhook-id` of every delivery."},
        "duplicate": {
            "type": "boolean",
            "description": "The key was used before with the same event; nothing was stored.",
        },
        "deliveries": {"type": "integer", "description": "Endpoints it goes to."},
    },
}


def _problem_answers(*statuses: int) -> dict[str, Any]:
    return {
        str(status): {
            "description": "A problem with a stable `code`.",
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


def _operation(name: str, summary: str, body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "post": {
            "tags": ["events"],
            "operationId": name,
            "summary": summary,
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": {
                "202": {
                    "description": "Stored durably.",
                    "content": {"application/json": {"schema": answer}},
                },
                **_problem_answers(400, 401, 404, 409, 413, 422, 429, 503, 504),
            },
        }
    }


PATHS: Final[dict[str, Any]] = {
    "/v1/events": _operation("publish", "Publish one event.", _EVENT_SCHEMA, _RECEIPT_SCHEMA),
    "/v1/events:batch": _operation(
        "publish_batch",
        f"Publish up to {BATCH_EVENTS_MAX} events; each gets its own receipt or problem.",
        {
            "type": "object",
            "required": ["events"],
            "properties": {"events": {"type": "array", "maxItems": BATCH_EVENTS_MAX, "items": _EVENT_SCHEMA}},
        },
        {
            "type": "object",
            "properties": {
                "results": {
                    "type": "array",
                    "items": {"oneOf": [_RECEIPT_SCHEMA, {"$ref": "#/components/schemas/Problem"}]},
                }
            },
        },
    ),
}
"""What the framework cannot know of the routes above."""
