"""Spans for programs that use Gatepost as a library; `gatepost serve` has them by the settings `tracing.*`.

    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    tracing = Tracing(BatchSpanProcessor(OTLPSpanExporter()))
    async with Dispatcher.open(url, tracing=tracing) as gp: ...

`Publisher.open(url, tracing=tracing)` links what it publishes; `ClientTracing` is the observer of a bare `DispatchClient`.
"""

from __future__ import annotations

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.dispatch.tracing import Tracing, phase_events, request_attributes, status_of
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation

# Behind our own module, which says what to install where it is missing.
from opentelemetry import trace  # isort: skip

__all__ = ["ClientTracing", "Tracing"]


class ClientTracing:
    """`DispatchClient(observer=ClientTracing())`: a client span per attempt, child of the current span.

    They go through the tracer provider of the process, which decides what is sampled. `Dispatcher` has `tracing` instead.
    """

    def __init__(self, provider: trace.TracerProvider | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._tracer = trace.get_tracer("gatepost", tracer_provider=provider)
        self._clock = clock

    def attempt_finished(self, observation: AttemptObservation) -> None:
        """Its span, from beginning to end."""
        end = self._clock.wall_us()
        start = end - round(observation.elapsed * 1e6)
        span = self._tracer.start_span(
            "POST", kind=trace.SpanKind.CLIENT, attributes=request_attributes(observation), start_time=start * 1_000
        )
        for event in phase_events(observation, start):
            span.add_event(event.name, event.attributes, event.timestamp)
        span.set_status(status_of(observation))
        span.end(end * 1_000)

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        """A bare client decides nothing."""

    def operational(self, observation: OperationalObservation) -> None:
        """No span."""
