"""Traces: publish, delivery and attempts belong together over processes and hours, failures are never sampled away."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gatepost import DispatchClient, Dispatcher, Publisher
from gatepost.contrib.opentelemetry import ClientTracing, Tracing
from gatepost.errors import ConfigurationError
from gatepost.service.config import LogSettings, load_settings
from gatepost.service.logs import Logs
from gatepost.service.tracing import TracingSettings
from gatepost.store.migrate import install_outbox
from gatepost.testing.scripted_receiver import ScriptedAnswer, ScriptedReceiver
from gatepost.wire.trace_context import kept_context
from tests.fleet.outbox_drivers import SQLITE_WITHOUT_TRACE
from tests.service.otlp_collector import collector
from tests.service.running import EGRESS, POLICY, Api, api, ok, until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
TOKEN = "secret-token-in-the-path"
SCHEDULE = [0.0, 0.05, 0.05]


class Spans:
    """Spans in memory, by what they are."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = Tracing(SimpleSpanProcessor(self.exporter), resource=Resource.create({}), **options)

    def of(self, kind: otel.SpanKind) -> list[ReadableSpan]:
        """In the order of their ends."""
        return [span for span in self.exporter.get_finished_spans() if span.kind is kind]

    @property
    def published(self) -> list[ReadableSpan]:
        return self.of(otel.SpanKind.PRODUCER)

    @property
    def deliveries(self) -> list[ReadableSpan]:
        return self.of(otel.SpanKind.CONSUMER)

    @property
    def attempts(self) -> list[ReadableSpan]:
        return self.of(otel.SpanKind.CLIENT)


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    """Never None here."""
    assert span.attributes is not None
    return span.attributes


def context(span: ReadableSpan) -> otel.SpanContext:
    """Never None here."""
    found = span.context
    assert isinstance(found, otel.SpanContext)
    return found


async def endpoint(service: Api, receiver: ScriptedReceiver, **fields: Any) -> Any:
    """A receiver that follows a trace."""
    body = {
        "url": f"{receiver.url}/{TOKEN}?key={TOKEN}",
        "secret": receiver.secret,
        "schedule": SCHEDULE,
        "send_trace": True,
    }
    return await ok(service.client.post("/v1/endpoints", json={**body, **fields}), 201)


async def publish(service: Api, headers: Mapping[str, str] | None = None) -> Any:
    """One event."""
    event = {"type": "invoice.paid", "payload": {"n": 1}}
    return await ok(service.client.post("/v1/events", json=event, headers=dict(headers or {})), 202)


async def test_a_failed_attempt_a_delivery_and_its_publish_are_one_story(tmp_path: Path) -> None:
    """By attributes, links, parents, times and the header that the receiver gets; and the log line names the same spans."""
    spans, log = Spans(), tmp_path / "log"
    with ScriptedReceiver() as receiver, log.open("w") as stream:
        receiver.script(503, 204)
        logs = Logs("json", stream=stream)
        async with api(tmp_path, tracing=spans.tracing, logs=logs) as service:
            registered = await endpoint(service, receiver)
            receipt = await publish(service, {"traceparent": f"{PARENT}-01", "tracestate": "v=1"})
            await until(lambda: _true(spans.deliveries))
        logs.close()
    [published], [delivery], [failed, delivered] = spans.published, spans.deliveries, spans.attempts

    assert (published.name, context(published).trace_id) == ("publish invoice.paid", TRACE_ID)
    assert published.parent is not None
    assert published.parent.span_id == 0xB7AD6B7169203331
    assert attributes(published)["messaging.message.id"] == receipt["event_id"]

    assert delivery.parent is None
    assert [link.context.span_id for link in delivery.links] == [context(published).span_id]
    assert delivery.links[0].context.trace_id == TRACE_ID
    assert context(delivery).trace_id != TRACE_ID
    assert attributes(delivery)["gatepost.attempts"] == 2
    assert attributes(delivery)["messaging.destination.subscription.name"] == registered["id"]

    for attempt, number, status, webhook in zip(
        (failed, delivered), (1, 2), (503, 204), receiver.received, strict=True
    ):
        assert attempt.parent is not None
        assert (context(attempt).trace_id, attempt.parent.span_id) == (
            context(delivery).trace_id,
            context(delivery).span_id,
        )
        own = attributes(attempt)
        assert (own["http.response.status_code"], own["gatepost.attempt.number"]) == (status, number)
        assert own["gatepost.endpoint.id"] == registered["id"]
        assert {"gatepost.outcome", "gatepost.blame", "gatepost.retry_safety", "gatepost.part"} <= set(own)
        sent = f"00-{context(attempt).trace_id:032x}-{context(attempt).span_id:016x}-01"
        assert webhook.headers["traceparent"] == sent
        phases = {event.name: event for event in attempt.events}
        assert {"write", "wait"} <= set(phases)
        assert attempt.start_time is not None
        assert attempt.end_time is not None
        assert delivery.start_time is not None
        assert delivery.start_time <= attempt.start_time <= phases["write"].timestamp <= phases["wait"].timestamp
    assert failed.status.status_code is otel.StatusCode.ERROR
    assert (attributes(failed)["error.type"], attributes(failed)["gatepost.decision"]) == ("503", "retry_at")
    assert "http.request.resend_count" not in attributes(failed)
    assert attributes(delivered)["http.request.resend_count"] == 1
    assert delivered.status.status_code is otel.StatusCode.UNSET
    assert TOKEN not in "".join(span.to_json() for span in spans.exporter.get_finished_spans())

    lines = [json.loads(line) for line in log.read_text().splitlines() if '"event":"attempt"' in line]
    assert [(line["trace_id"], line["span_id"]) for line in lines] == [
        (f"{context(span).trace_id:032x}", f"{context(span).span_id:016x}") for span in (failed, delivered)
    ]
    first = lines[0]
    assert first["limits"]["read_timeout"] == [2.0, "process"]
    assert first["limits"]["dns_timeout"] == [0.6, "derived"]
    assert (first["breaker"], first["policy_version"], first["part"], first["sample_rate"]) == ("closed", 0, 0, 1)
    assert first["cap"] >= 1
    assert first["epoch"] >= 1
    assert first["due_at"] > first["at"][:10]
    assert TOKEN not in log.read_text()


async def test_failures_are_exported_although_their_trace_is_not_sampled(tmp_path: Path) -> None:
    """Nobody needs a thousand spans of what went well; whoever is called needs the one that did not."""
    spans = Spans(sample=0.0)
    with ScriptedReceiver() as receiver:
        async with api(tmp_path, tracing=spans.tracing) as service:
            await endpoint(service, receiver)
            await publish(service)
            await publish(service, {"traceparent": f"{PARENT}-00"})
            await asyncio.to_thread(receiver.wait_for, 2)
            assert spans.exporter.get_finished_spans() == ()
            assert all(one.headers["traceparent"].endswith("-00") for one in receiver.received)
            receiver.script(ScriptedAnswer(status=500))
            await publish(service)
            await until(lambda: _true(spans.deliveries))
            await publish(service, {"traceparent": f"{PARENT}-01"})  # whoever publishes has decided
            await until(lambda: _true(len(spans.deliveries) == 2))
    assert [attributes(span).get("http.response.status_code") for span in spans.attempts] == [500, 204]
    assert attributes(spans.deliveries[0])["gatepost.attempts"] == 2
    assert [context(span).trace_id for span in spans.published] == [TRACE_ID]


async def test_a_context_survives_the_process_and_reaches_the_receiver_in_one_trace(tmp_path: Path) -> None:
    """Published by one process under its current span, delivered by another; `child` goes on in the same trace."""
    url = f"sqlite:///{tmp_path / 'gatepost.db'}"
    spans, publisher = Spans(deliveries="child"), Spans()
    provider = TracerProvider()
    with ScriptedReceiver() as receiver:
        async with Dispatcher.open(url, policy=POLICY, egress=EGRESS) as gp:
            await gp.endpoints.create(receiver.url, secret=receiver.secret, send_trace=True)
        with (
            Publisher.open_sync(url, tracing=publisher.tracing) as events,
            provider.get_tracer("test").start_as_current_span("request") as request,
        ):
            events.publish_sync("invoice.paid", {})
        async with Dispatcher.open(url, policy=POLICY, egress=EGRESS, run=True, tracing=spans.tracing):
            await until(lambda: _true(spans.deliveries))
        [delivery] = spans.deliveries
        [published] = publisher.published
        trace_id = request.get_span_context().trace_id
        assert {context(span).trace_id for span in (published, delivery, *spans.attempts)} == {trace_id}
        assert delivery.parent is not None
        assert delivery.parent.span_id == context(published).span_id
        assert receiver.received[0].headers["traceparent"][3:35] == f"{trace_id:032x}"

        # Where nobody traces, the publisher's own context is passed on as it came.
        async with Dispatcher.open(url, policy=POLICY, egress=EGRESS, run=True) as gp:
            await gp.publish("invoice.paid", {}, traceparent=f"{PARENT}-01", tracestate="v=1")
            await gp.publish_batch([{"type": "a.b", "payload": {}, "traceparent": "nonsense"}])
            await asyncio.to_thread(receiver.wait_for, 3)
    by_type = {one.headers.get("traceparent"): one.headers.get("tracestate") for one in receiver.received[1:]}
    assert by_type == {f"{PARENT}-01": "v=1", None: None}


async def test_a_producers_own_table_carries_the_context(tmp_path: Path) -> None:
    """Committed with the producer's rows, followed from there; a table without the column is followed as well."""
    theirs = f"sqlite:///{tmp_path / 'theirs.db'}"
    await install_outbox(theirs)
    spans = Spans(sample=0.0)
    with ScriptedReceiver() as receiver, closing(sqlite3.connect(tmp_path / "theirs.db", timeout=20)) as connection:
        async with Dispatcher.open(
            "memory://", policy=POLICY, egress=EGRESS, run=True, outboxes=[theirs], tracing=spans.tracing
        ) as gp:
            await gp.endpoints.create(receiver.url, secret=receiver.secret, send_trace=True)
            publisher = Publisher()
            publisher.publish_sync("a.b", {}, connection=connection, traceparent=f"{PARENT}-01")
            connection.commit()
            await until(lambda: _true(spans.deliveries))
            assert spans.deliveries[0].links[0].context.trace_id == TRACE_ID
            connection.execute("DROP TABLE gatepost_outbox")
            connection.execute(SQLITE_WITHOUT_TRACE)
            publisher.publish_sync("a.b", {}, connection=connection)
            connection.commit()
            await asyncio.to_thread(receiver.wait_for, 2)
    assert [one.headers["traceparent"][-2:] for one in receiver.received] == ["01", "00"]


async def test_a_publish_that_is_refused_and_a_dead_letter_are_errors(tmp_path: Path) -> None:
    """The producer's span says so; the delivery's says why it was given up."""
    spans = Spans(sample=0.0)
    with ScriptedReceiver() as receiver:
        receiver.always(410)
        async with api(tmp_path, tracing=spans.tracing) as service:
            await endpoint(service, receiver)
            gp = service.running.dispatcher
            await gp.publish("a.b", {}, idempotency_key="k")
            with pytest.raises(Exception, match="idempotency_key"):
                await gp.publish("a.b", {"other": 1}, idempotency_key="k")
            await until(lambda: _true(spans.deliveries))
    [published], [delivery] = spans.published, spans.deliveries
    assert attributes(published)["error.type"] == "IdempotencyConflict"
    assert (delivery.status.status_code, attributes(delivery)["error.type"]) == (otel.StatusCode.ERROR, "gone")


async def test_a_bare_client_makes_spans_under_the_current_one() -> None:
    """Through the program's own provider."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with ScriptedReceiver(signed=False) as receiver:
        async with DispatchClient(POLICY, egress=EGRESS, observer=ClientTracing(provider)) as client:
            with provider.get_tracer("test").start_as_current_span("work"):
                await client.deliver(receiver.url, {})
    attempt, work = exporter.get_finished_spans()
    assert attempt.parent is not None
    assert attempt.parent.span_id == context(work).span_id
    assert attributes(attempt)["http.response.status_code"] == 204


async def test_the_service_exports_to_a_collector(tmp_path: Path) -> None:
    """OTLP over HTTP as `gatepost serve` is configured, down to the last span of a drain."""
    with collector() as found, ScriptedReceiver() as receiver:
        settings = TracingSettings(enabled=True, endpoint=found.url, sample=1.0)
        async with api(tmp_path, tracing_settings=settings) as service:
            await endpoint(service, receiver)
            await publish(service)
            await asyncio.to_thread(receiver.wait_for, 1)
    assert found.services == {"gatepost"}
    [attempt], [delivery], [published] = found.named("POST"), found.named("deliver"), found.named("publish")
    assert (attempt.trace_id, attempt.parent_span_id) == (delivery.trace_id, delivery.span_id)
    assert delivery.links[0].span_id == published.span_id
    assert {event.name for event in attempt.events} >= {"wait"}


async def test_healthy_lines_are_sampled_by_delivery_and_failures_never(tmp_path: Path) -> None:
    """The line says what share it stands for, so that counts can be computed back."""
    log = tmp_path / "log"
    with ScriptedReceiver() as receiver, log.open("w") as stream:
        logs = Logs("json", stream=stream)
        async with api(tmp_path, logs=logs, log=LogSettings(sample_healthy=0.3)) as service:
            await endpoint(service, receiver)
            for _ in range(40):
                await publish(service)
            await asyncio.to_thread(receiver.wait_for, 40)
            receiver.script(500, 204)
            await publish(service)
            await asyncio.to_thread(receiver.wait_for, 42)
        logs.close()
    lines = [json.loads(line) for line in log.read_text().splitlines() if '"event":"attempt"' in line]
    healthy = [line for line in lines if line["delivered"] and line["attempt"] == 1]
    assert 1 <= len(healthy) <= 30
    assert {line["sample_rate"] for line in healthy} == {0.3}
    assert [(line["status"], line["sample_rate"]) for line in lines if line not in healthy] == [(500, 1), (204, 1)]


def test_settings_that_make_no_sense_are_refused() -> None:
    """At the start, with what to write."""
    for name, value in (
        ("GATEPOST_TRACING_SAMPLE", "1.5"),
        ("GATEPOST_TRACING_ENDPOINT", "collector:4318"),
        ("GATEPOST_LOG_SAMPLE_HEALTHY", "-1"),
        ("GATEPOST_TRACING_DELIVERIES", "both"),
    ):
        with pytest.raises(ConfigurationError, match=f"(?i){name.split('_')[1]}"):
            load_settings(None, {name: value}, open_files=1_024)
    given = {"GATEPOST_TRACING_ENABLED": "true", "GATEPOST_TRACING_DELIVERIES": "child"}
    assert load_settings(None, given, open_files=1_024).tracing == TracingSettings(enabled=True, deliveries="child")


@pytest.mark.parametrize(
    ("traceparent", "tracestate", "kept"),
    [
        (f"{PARENT}-01", None, f"{PARENT}-01"),
        (f" {PARENT}-ff ", "a=1, b=2", f"{PARENT}-01 a=1, b=2"),
        (f"{PARENT}-00", "x" * 513, f"{PARENT}-00"),
        (f"cc-{PARENT[3:]}-01-later", "ü", f"{PARENT}-01"),
        (f"{PARENT}-01-more", None, None),
        (f"ff-{PARENT[3:]}-01", None, None),
        (PARENT.upper() + "-01", None, None),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", None, None),
        (f"00-{PARENT[3:35]}-{'0' * 16}-01", None, None),
        ("", "a=1", None),
        (None, "a=1", None),
    ],
)
def test_trace_contexts_are_read_as_the_standard_says(
    traceparent: str | None, tracestate: str | None, kept: str | None
) -> None:
    """A malformed one starts anew; it never refuses an event."""
    assert kept_context(traceparent, tracestate) == kept


async def _true(value: object) -> bool:
    return bool(value)


def test_nothing_of_opentelemetry_is_loaded_unless_tracing_is_on() -> None:
    """It is an extra, and half a second of imports. (The web framework looks for the bare API by itself.)"""
    program = "import sys, gatepost.service.app, gatepost.dispatch.publisher; print('opentelemetry.sdk' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
