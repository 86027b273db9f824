"""What is carried when a house is moved from one store to another: kinds of rows, in the order in which they are carried.

Ids stay, so a row that was carried already is known again, and a move that was cut is simply repeated. Spoken by the engines'
`house` modules and by `moving`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from gatepost.delivery.records import ApiKey, Endpoint, Tenant
from gatepost.store.port import AuditEntry, EventSchema, PolicyVersion
from gatepost.store.rows import AttemptRow, DeadLetter, FanOut, OutboxEvent


class Kind(StrEnum):
    """What a batch holds. In order: an event is there before the deliveries that need it."""

    TENANTS = "tenants"
    ENDPOINTS = "endpoints"
    API_KEYS = "api_keys"
    POLICIES = "policies"
    EVENT_TYPES = "event_types"
    AUDIT = "audit"
    EVENTS = "events"
    DELIVERIES = "deliveries"
    DEAD_LETTERS = "dead_letters"
    ATTEMPTS = "attempts"
    IDEMPOTENCY_KEYS = "idempotency_keys"
    FAN_OUTS = "fan_outs"
    ENDPOINT_STATES = "endpoint_states"
    OUTBOX = "outbox"


class CarriedAudit(NamedTuple):
    """A line of the audit log, with its place in it."""

    number: int
    entry: AuditEntry


class CarriedEvent(NamedTuple):
    """An event that a waiting delivery or an unfinished fan-out needs."""

    event_id: int
    created_at: int
    tenant: str
    type: str
    content_type: str
    body: bytes
    trace: str | None = None


class CarriedDelivery(NamedTuple):
    """A waiting delivery, with the attempts it has used and the start of its window."""

    lane: int
    due_at: int
    delivery_id: int
    event_id: int
    born_at: int
    attempt: int
    tenant: str


class CarriedLetter(NamedTuple):
    """A dead letter with its body, and the lane it died in."""

    lane: int
    letter: DeadLetter


class CarriedKey(NamedTuple):
    """An idempotency key, by its fingerprint, and the event that used it."""

    tenant: str
    fingerprint: bytes
    event_id: int


class CarriedState(NamedTuple):
    """What was learned about an endpoint."""

    endpoint: int
    state: bytes


Carried = (
    Tenant
    | Endpoint
    | ApiKey
    | PolicyVersion
    | EventSchema
    | CarriedAudit
    | CarriedEvent
    | CarriedDelivery
    | CarriedLetter
    | AttemptRow
    | CarriedKey
    | FanOut
    | CarriedState
    | OutboxEvent
)
