"""Events of Gatepost's own for a tenant's operational endpoints: what happened to its endpoints and events.

An operational endpoint is one whose `event_types` name `gatepost.*` (or one of the types below); `*` does not mean them. This
turns a notice into such an event; `dispatch.dispatcher` publishes it like any other, outside the tenant's limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gatepost.delivery.records import Priority
from gatepost.dispatch.new_event import EventDraft
from gatepost.telemetry import OperationalObservation
from gatepost.wire.payload import payload_bytes

OPERATIONAL_TYPES: Final[Mapping[str, str]] = {
    "endpoint_disabled": "gatepost.endpoint.disabled",
    "endpoint_needs_owner": "gatepost.endpoint.needs_owner",
    "idempotency_conflict": "gatepost.event.dropped",
    "outbox_set_aside": "gatepost.event.set_aside",
    "tenant_over_limit": "gatepost.tenant.over_limit",
}
"""Kind of notice to event type. Other notices are the operator's alone."""


def operational_event(notice: OperationalObservation, timestamp: str) -> EventDraft | None:
    """The event for a notice, None when no tenant is to hear of it. `timestamp` is RFC 3339 text."""
    event_type = OPERATIONAL_TYPES.get(notice.kind)
    if event_type is None or notice.tenant is None:
        return None
    data: dict[str, Any] = dict(notice.fields or {})
    if notice.endpoint_id is not None:
        data["endpoint_id"] = notice.endpoint_id
    if "code" in data:
        data["reason"] = data.pop("code")
    # Where a producer's database is, is the operator's affair.
    place = data.pop("outbox", None)
    data["message"] = notice.message if place is None else notice.message.removeprefix(f"outbox {place}: ")
    body = payload_bytes({"type": event_type, "timestamp": timestamp, "data": data})
    return EventDraft(notice.tenant, event_type, body, "application/json", None, None, Priority.NORMAL, None)
