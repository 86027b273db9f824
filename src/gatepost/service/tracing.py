"""Spans of `gatepost serve`: where they go and which, by the settings `tracing.*`.

It sets the SDK up and takes it down; `dispatch.tracing` makes the spans. OpenTelemetry is imported only when tracing is enabled.
Called by `service.app`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal

from gatepost.errors import ConfigurationError
from gatepost.telemetry import Tracing

SERVICE: Final = "gatepost"
"""`service.name`, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say otherwise."""
EXPORT_TIMEOUT: Final = 5.0
"""Seconds that one export may take; spans wait in a bounded queue (2,048) meanwhile, and are dropped when it is full."""


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """What is traced, and where spans are sent."""

    enabled: bool = False
    endpoint: str = "http://127.0.0.1:4318/v1/traces"
    """OTLP over HTTP, protobuf."""
    sample: float = 0.1
    deliveries: Literal["linked", "child"] = "linked"


@asynccontextmanager
async def open_tracing(settings: TracingSettings) -> AsyncIterator[Tracing | None]:
    """What the dispatcher is given; None when tracing is off. What was made is sent on the way out, within `EXPORT_TIMEOUT`.

    Raises `ConfigurationError` when OpenTelemetry is not installed.
    """
    if not settings.enabled:
        yield None
        return
    from gatepost.dispatch.tracing import Tracing as Spans

    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigurationError("tracing.enabled needs OpenTelemetry: pip install 'gatepost[otel]'") from None

    resource = Resource.create({"service.name": SERVICE}).merge(OTELResourceDetector().detect())
    processor = BatchSpanProcessor(OTLPSpanExporter(settings.endpoint, timeout=EXPORT_TIMEOUT))
    try:
        yield Spans(processor, resource=resource, sample=settings.sample, deliveries=settings.deliveries)
    finally:
        await asyncio.to_thread(processor.shutdown)
