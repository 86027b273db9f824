"""What may be published: one check for the dispatcher's intake and for publishers in other processes.

Turns a call's arguments into an `EventDraft` or raises what says how to write it; stores nothing and looks nothing up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from gatepost.delivery.records import RESERVED_TYPES, Priority
from gatepost.dispatch.endpoint_rules import check_tenant_name
from gatepost.errors import ConfigurationError, PayloadTooLarge
from gatepost.store.rows import SUB_BULK, SUB_FIFO_FIRST, SUB_HIGH, SUB_NORMAL, OutboxEvent
from gatepost.wire.headers import check_value
from gatepost.wire.payload import payload_bytes
from gatepost.wire.trace_context import kept_context

MAX_PAYLOAD: Final = 1_048_576
"""Bytes of one event's payload by default; Standard Webhooks recommends under 20 kB."""
KEY_MAX: Final = 255
"""Characters of an idempotency or ordering key."""
FIFO_BUCKETS: Final = 256 - SUB_FIFO_FIRST
"""Ordering keys share this many lanes per endpoint: keys in one bucket wait for each other."""
NOT_BEFORE_MAX: Final = 30 * 86_400.0
"""Seconds an event may be scheduled ahead."""

_TYPE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")
_PRIORITY_SUB: Final = {Priority.HIGH: SUB_HIGH, Priority.NORMAL: SUB_NORMAL, Priority.BULK: SUB_BULK}


@dataclass(frozen=True, slots=True)
class EventDraft:
    """An event as it was published, checked."""

    tenant: str
    type: str
    body: bytes = field(repr=False)
    content_type: str
    key: str | None
    ordering_key: str | None
    priority: Priority
    not_before: int | None
    """UTC microseconds."""
    trace: str | None = None
    """Trace context it was published under, as `wire.trace_context` keeps it."""

    @property
    def sub(self) -> int:
        """The sub-lane its deliveries wait in."""
        return sub_of(self.priority, self.ordering_key)


def draft_event(
    type: str,  # noqa: A002 - the public name of the argument
    payload: object,
    *,
    tenant: str,
    idempotency_key: str | None,
    ordering_key: str | None,
    priority: str,
    not_before: datetime | float | None,
    content_type: str,
    max_payload: int,
    now_us: int,
    traceparent: str | None = None,
    tracestate: str | None = None,
) -> EventDraft:
    """The checked event. `not_before` is a time with its zone, or seconds since 1970. A malformed trace context is left out.

    Raises `PayloadTooLarge`, `ConfigurationError`, `ValueError` or `TypeError`, each saying what to write instead.
    """
    check_type(type)
    if type.startswith(RESERVED_TYPES):
        raise ConfigurationError(
            f"type={type!r}: types that begin with {RESERVED_TYPES!r} are Gatepost's own: write another"
        )
    check_tenant_name(tenant)
    body = payload if payload.__class__ is bytes else payload_bytes(payload)
    assert isinstance(body, bytes)
    if len(body) > max_payload:
        raise PayloadTooLarge(
            f"the payload has {len(body)} bytes, the limit is {max_payload}: send a reference to what is large, or raise max_payload"
        )
    check_value("content-type", content_type)
    _check_key("idempotency_key", idempotency_key)
    _check_key("ordering_key", ordering_key)
    if ordering_key is not None and not_before is not None:
        raise ConfigurationError("an event with an ordering_key keeps its place: leave not_before out")
    return EventDraft(
        tenant,
        type,
        body,
        content_type,
        idempotency_key,
        ordering_key,
        _priority(priority, ordering_key),
        _when(not_before, now_us),
        None if traceparent is None else kept_context(traceparent, tracestate),
    )


def check_type(name: str) -> None:
    """Raises `ConfigurationError` for what is no event type."""
    if not isinstance(name, str) or _TYPE.fullmatch(name) is None:
        raise ConfigurationError(
            f"type={name!r}: write 1 to 128 letters, digits and any of _ . : / -, such as 'invoice.paid'"
        )


def check_outbox_event(event: OutboxEvent, max_payload: int, now: int) -> None:
    """Anybody can write rows with SQL: the same rules as for `publish`. Raises `TypeError` or `ValueError`."""
    if not isinstance(event.body, bytes):
        raise TypeError("body is not a blob: write bytes")
    if event.not_before is not None and not isinstance(event.not_before, int):
        raise TypeError("not_before is not a number: write UTC microseconds")
    draft_event(
        event.type,
        event.body,
        tenant=event.tenant,
        idempotency_key=event.key,
        ordering_key=event.ordering_key,
        priority=event.priority,
        not_before=None if event.not_before is None else event.not_before / 1_000_000,
        content_type=event.content_type,
        max_payload=max_payload,
        now_us=now,
    )
    if not isinstance(event.created_at, int):
        raise TypeError("created_at is not a number: write UTC microseconds")
    if event.event_id < 0:
        raise ValueError("event_id is below zero")


def sub_of(priority: str, ordering_key: str | None) -> int:
    """The sub-lane for a priority, or for an ordering key (stable over processes and versions: FNV-1a)."""
    if ordering_key is None:
        return _PRIORITY_SUB[Priority(priority)]
    digest = 0x811C9DC5
    for byte in ordering_key.encode():
        digest = ((digest ^ byte) * 0x01000193) & 0xFFFFFFFF
    return SUB_FIFO_FIRST + digest % FIFO_BUCKETS


def _priority(priority: str, ordering_key: str | None) -> Priority:
    try:
        parsed = Priority(priority)
    except ValueError:
        raise ConfigurationError(f"priority={priority!r}: write one of {', '.join(Priority)}") from None
    if ordering_key is not None and parsed is not Priority.NORMAL:
        raise ConfigurationError("an event with an ordering_key keeps its place: leave priority out")
    return parsed


def _check_key(name: str, key: str | None) -> None:
    if key is not None and (not isinstance(key, str) or not 1 <= len(key) <= KEY_MAX or not key.isprintable()):
        raise ConfigurationError(f"{name}={key!r}: write 1 to {KEY_MAX} printable characters")


def _when(not_before: datetime | float | None, now_us: int) -> int | None:
    if not_before is None:
        return None
    if isinstance(not_before, datetime):
        if not_before.tzinfo is None:
            raise ConfigurationError("not_before is a time without a zone: write datetime.now(UTC) + …")
        at = round(not_before.timestamp() * 1_000_000)
    elif isinstance(not_before, int | float) and not isinstance(not_before, bool):
        at = round(not_before * 1_000_000)
    else:
        raise TypeError(f"not_before={not_before!r}: write a datetime with its zone, or seconds since 1970")
    if at > now_us + NOT_BEFORE_MAX * 1_000_000:
        raise ConfigurationError(
            f"not_before lies more than {NOT_BEFORE_MAX / 86_400:.0f} days ahead (is it in milliseconds?)"
        )
    return at
