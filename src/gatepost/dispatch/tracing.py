"""OpenTelemetry spans of publishes, deliveries and attempts, made when they end and handed to a span processor.

Theory of operation. A delivery may take days and several processes, so no span object stays open for it: its trace and span ids
follow from its own ids (`wire.trace_context`), each attempt is a child of them wherever it is made, and the delivery's own span is
written by whoever ends it. It is a trace of its own, linked to the span that published the event, as the messaging conventions
ask for what is processed later; with `deliveries="child"` it goes on in the publisher's trace.

What is sampled follows the publisher's decision, or `sample` where there is none. The decision about a failed attempt is taken
at its end: it is exported always, and so is its delivery. Called by `Dispatcher` and `Publisher` as `telemetry.Tracing`; it holds
no payload, header, path or query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import urlsplit

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.delivery.decide import Why
from gatepost.errors import ConfigurationError
from gatepost.telemetry import AttemptObservation, DeliveryObservation, PublishSpan, SpanIds
from gatepost.wire.trace_context import (
    attempt_span_id,
    delivery_ids,
    kept_context,
    ratio_samples,
    read_context,
)

try:
    from opentelemetry import trace as otel
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
    from opentelemetry.trace.span import TraceState
except ImportError:
    raise ConfigurationError("tracing needs OpenTelemetry's SDK: pip install 'gatepost[otel]'") from None

SYSTEM: Final = "gatepost"
SCHEMA: Final = "https://opentelemetry.io/schemas/1.28.0"
"""The semantic conventions that the attribute names are from."""
_NOT_ADMITTED: Final = Why.NOT_ADMITTED.value
_SCOPE: Final = InstrumentationScope("gatepost", schema_url=SCHEMA)

Attributes = Mapping[str, str | bool | int | float]


class Tracing:
    """Makes spans. One may serve any number of dispatchers and publishers of a process.

    `processor` is the SDK's, for example `BatchSpanProcessor(OTLPSpanExporter())`, yours to shut down; one that a
    `TracerProvider` of yours uses too may be given. `resource`: None is what `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`
    say. `sample` is the share of traces, 0 to 1, that is exported where nobody has decided before.
    """

    def __init__(
        self,
        processor: SpanProcessor,
        *,
        resource: Resource | None = None,
        sample: float = 1.0,
        deliveries: Literal["linked", "child"] = "linked",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not 0.0 <= sample <= 1.0:
            raise ConfigurationError(f"tracing.sample={sample!r}: write a share from 0 to 1, such as 0.1")
        if deliveries not in ("linked", "child"):
            raise ConfigurationError(f"tracing.deliveries={deliveries!r}: write linked or child")
        self._processor = processor
        self._resource = Resource.create() if resource is None else resource
        self._sample = sample
        self._child = deliveries == "child"
        self._clock = clock
        self._ids = RandomIdGenerator()

    def publishing(self, event_type: str, tenant: str, body_bytes: int, given: str | None) -> PublishSpan:
        """A producer span, child of the context that was given, else of the current one."""
        parent = _context_of(given)
        if parent is None:
            current = otel.get_current_span().get_span_context()
            parent = current if current.is_valid else None
        trace_id = self._ids.generate_trace_id() if parent is None else parent.trace_id
        sampled = ratio_samples(trace_id, self._sample) if parent is None else bool(parent.trace_flags.sampled)
        state = None if parent is None else parent.trace_state
        context = _span_context(trace_id, self._ids.generate_span_id(), sampled, state)
        attributes: Attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": event_type,
            "messaging.message.body.size": body_bytes,
            "gatepost.tenant": tenant,
        }
        return _Publishing(self, context, parent, attributes, self._clock)

    def attempt(
        self, event_id: int, delivery_id: int, endpoint: int, born_at: int, at: int, trace: str | None
    ) -> SpanIds:
        """The same in every process for the same delivery and instant."""
        trace_id, delivery = delivery_ids(event_id, delivery_id, endpoint, born_at)
        publisher = read_context(trace)
        state = ""
        if publisher is None:
            sampled = ratio_samples(trace_id, self._sample)
        else:
            sampled = publisher.sampled
            if self._child:
                trace_id, state = publisher.trace_id, publisher.state
        return SpanIds(trace_id, delivery, attempt_span_id(delivery, at), sampled, state)

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        """Export what was sampled, and what failed."""
        ids, attempt = observation.span, observation.attempt
        if ids is None or observation.why == _NOT_ADMITTED:
            return
        failed = attempt is None or not attempt.delivered
        if attempt is not None and (ids.sampled or failed):
            self._export_attempt(observation, attempt, ids)
        ended = observation.decision in ("complete", "dead_letter")
        if ended and (ids.sampled or failed or observation.used > 0):
            self._export_delivery(observation, ids)

    # ------------------------------------------------------------------------------------------------- spans

    def _export_attempt(self, observation: DeliveryObservation, attempt: AttemptObservation, ids: SpanIds) -> None:
        attributes: dict[str, str | bool | int | float] = {
            **request_attributes(attempt),
            **_of_delivery(observation),
            "http.request.body.size": observation.body_bytes,
            "gatepost.attempt.number": observation.attempt_number,
            "gatepost.queue_wait": observation.waited,
            "gatepost.decision": observation.decision,
            "gatepost.why": observation.why,
            "gatepost.policy.version": observation.policy_version,
        }
        if observation.used:
            attributes["http.request.resend_count"] = observation.used
        if observation.delay is not None:
            attributes["gatepost.retry_delay"] = observation.delay
        if observation.breaker is not None:
            attributes["gatepost.breaker"] = observation.breaker
        self.export(
            "POST",
            _span_context(ids.trace_id, ids.attempt, True, _state_of(ids)),
            _span_context(ids.trace_id, ids.delivery, True, _state_of(ids)),
            SpanKind.CLIENT,
            observation.started_at,
            observation.ended_at,
            attributes,
            status_of(attempt),
            events=phase_events(attempt, observation.started_at),
        )

    def _export_delivery(self, observation: DeliveryObservation, ids: SpanIds) -> None:
        publisher = _context_of(observation.trace)
        delivered = observation.decision == "complete"
        attributes: dict[str, str | bool | int | float] = {
            **_of_delivery(observation),
            "messaging.system": SYSTEM,
            "messaging.operation.name": "deliver",
            "messaging.operation.type": "process",
            "messaging.destination.name": observation.event_type,
            "messaging.destination.subscription.name": observation.endpoint_id,
            "messaging.message.id": observation.event_id,
            "messaging.message.body.size": observation.body_bytes,
            "gatepost.attempts": observation.used + (observation.attempt is not None),
            "gatepost.decision": observation.decision,
            "gatepost.why": observation.why,
        }
        if not delivered:
            attributes["error.type"] = observation.why
        self.export(
            f"deliver {observation.event_type}".strip(),
            _span_context(ids.trace_id, ids.delivery, True, _state_of(ids)),
            publisher if self._child else None,
            SpanKind.CONSUMER,
            min(observation.born_at, observation.started_at) if observation.born_at else observation.started_at,
            observation.ended_at,
            attributes,
            Status(StatusCode.UNSET) if delivered else Status(StatusCode.ERROR, observation.why),
            links=() if publisher is None else (Link(publisher),),
        )

    def export(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        start_us: int,
        end_us: int,
        attributes: Attributes,
        status: Status,
        events: tuple[Event, ...] = (),
        links: tuple[Link, ...] = (),
    ) -> None:
        """Hand a finished span to the processor; times are UTC microseconds."""
        self._processor.on_end(
            ReadableSpan(
                name,
                context,
                parent,
                self._resource,
                attributes,
                events,
                links,
                kind,
                status=status,
                start_time=start_us * 1_000,
                end_time=max(start_us, end_us) * 1_000,
                instrumentation_scope=_SCOPE,
            )
        )


class _Publishing:
    """One publish under way."""

    def __init__(
        self, tracing: Tracing, context: SpanContext, parent: SpanContext | None, attributes: Attributes, clock: Clock
    ) -> None:
        self._tracing = tracing
        self._context = context
        self._parent = parent
        self._attributes = attributes
        self._clock = clock
        self._began_at = clock.wall_us()

    @property
    def trace(self) -> str | None:
        """What links the deliveries to this span."""
        context = self._context
        traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"
        return kept_context(traceparent, context.trace_state.to_header())

    def stored(self, event_id: str, duplicate: bool | None, deliveries: int | None) -> None:
        """Exported when its trace is sampled."""
        if not self._context.trace_flags.sampled:
            return
        attributes = {**self._attributes, "messaging.message.id": event_id}
        if duplicate is not None:
            attributes["gatepost.duplicate"] = duplicate
        if deliveries is not None:
            attributes["gatepost.deliveries"] = deliveries
        self._end(self._context, attributes, Status(StatusCode.UNSET))

    def failed(self, error: BaseException) -> None:
        """Exported in any case."""
        context = self._context
        kind = type(error).__name__
        self._end(
            _span_context(context.trace_id, context.span_id, True, context.trace_state),
            {**self._attributes, "error.type": kind},
            Status(StatusCode.ERROR, kind),
        )

    def _end(self, context: SpanContext, attributes: Attributes, status: Status) -> None:
        name = f"publish {self._attributes['messaging.destination.name']}"
        now = self._clock.wall_us()
        self._tracing.export(name, context, self._parent, SpanKind.PRODUCER, self._began_at, now, attributes, status)


# --------------------------------------------------------------------------------------------------- helpers


def request_attributes(attempt: AttemptObservation) -> dict[str, str | bool | int | float]:
    """An attempt by the conventions for HTTP clients, and how it ended by our own words."""
    place = urlsplit(attempt.host)
    attributes: dict[str, str | bool | int | float] = {
        "http.request.method": "POST",
        "url.scheme": place.scheme,
        # Paths and queries of webhook URLs hold the receivers' tokens.
        "url.full": f"{attempt.host}/REDACTED",
        "server.address": place.hostname or "",
        "network.protocol.name": "http",
        "network.protocol.version": "1.1",
        "gatepost.outcome": attempt.outcome,
        "gatepost.phase": attempt.phase,
        "gatepost.reason": attempt.reason,
        "gatepost.blame": attempt.blame,
        "gatepost.retry_safety": attempt.retry_safety,
        "gatepost.connection.reused": attempt.reused,
        "gatepost.stale_retry": attempt.stale_retry,
        "gatepost.bytes_sent": attempt.bytes_sent,
    }
    if place.port is not None:
        attributes["server.port"] = place.port
    if attempt.address is not None:
        address, _, port = attempt.address.rpartition(":")
        attributes["network.peer.address"] = address.strip("[]")
        if port.isdecimal():
            attributes["network.peer.port"] = int(port)
    if attempt.status is not None:
        attributes["http.response.status_code"] = attempt.status
    if attempt.body_fault is not None:
        attributes["gatepost.body_fault"] = attempt.body_fault
    if not attempt.delivered:
        attributes["error.type"] = attempt.reason if attempt.status is None else str(attempt.status)
    return attributes


def status_of(attempt: AttemptObservation) -> Status:
    """Unset when delivered; else an error whose description says what to look for."""
    if attempt.delivered:
        return Status(StatusCode.UNSET)
    what = attempt.reason if attempt.status is None else f"{attempt.status}"
    return Status(StatusCode.ERROR, f"{attempt.outcome} in {attempt.phase}: {what}")


def phase_events(attempt: AttemptObservation, start_us: int) -> tuple[Event, ...]:
    """One event per phase that was entered, at its beginning, with its seconds. Phases follow each other without a gap; of an
    attempt that was sent twice (`stale_retry`) each is the sum of both."""
    events, at_ns = [], start_us * 1_000  # a float has too few digits for nanoseconds since 1970
    for phase, seconds in attempt.phases.items():
        events.append(Event(str(phase), {"gatepost.phase.duration": seconds}, at_ns))
        at_ns += round(seconds * 1e9)
    return tuple(events)


def _of_delivery(observation: DeliveryObservation) -> dict[str, str | bool | int | float]:
    return {
        "gatepost.event.id": observation.event_id,
        "gatepost.event.type": observation.event_type,
        "gatepost.delivery.id": observation.delivery_id,
        "gatepost.endpoint.id": observation.endpoint_id,
        "gatepost.tenant": observation.tenant,
        "gatepost.part": observation.part,
        "gatepost.worker": observation.worker,
    }


def _context_of(kept: str | None) -> SpanContext | None:
    found = read_context(kept)
    if found is None:
        return None
    state = TraceState.from_header([found.state]) if found.state else None
    return _span_context(found.trace_id, found.span_id, found.sampled, state, remote=True)


def _state_of(ids: SpanIds) -> TraceState | None:
    return TraceState.from_header([ids.tracestate]) if ids.tracestate else None


def _span_context(
    trace_id: int, span_id: int, sampled: bool, state: TraceState | None = None, *, remote: bool = False
) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    return SpanContext(trace_id, span_id, is_remote=remote, trace_flags=flags, trace_state=state)
