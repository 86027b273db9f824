"""What is raised for misuse, bad configuration and full stores; what the network did is a value (`Attempt`), never an exception.

Every layer may import this file, and it imports nothing of ours. Messages say what to write instead.
"""

from __future__ import annotations

from dataclasses import dataclass


class GatepostError(Exception):
    """Base of everything Gatepost raises on purpose."""


class ConfigurationError(GatepostError, ValueError):
    """A setting is impossible, unknown or missing; the message says what to write instead."""


class SignatureError(GatepostError, ValueError):
    """A webhook signature does not hold.

    `code` is one of `SIGNATURE_CODES` in `gatepost.wire.signing`, for programs; the text is for people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ResolveError(GatepostError):
    """A name has no usable address. `code` is a `Reason` value; `temporary` says whether asking again can help."""

    def __init__(self, code: str, temporary: bool, message: str = "") -> None:
        super().__init__(message or code)
        self.code = code
        self.temporary = temporary


class DestinationDenied(GatepostError, ValueError):
    """A URL may not be registered: `reason` is the code of the rule that refused it, the text says what to change."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NotFound(GatepostError, LookupError):
    """There is no such tenant, endpoint, event or delivery, or it belongs to another tenant."""


class Conflict(GatepostError):
    """The record moved on: another writer changed it first. Read it again and repeat the change."""


class IdempotencyConflict(GatepostError):
    """The idempotency key was used before with another type or payload; `event_id` is the first event's public id."""

    def __init__(self, event_id: str, message: str) -> None:
        super().__init__(message)
        self.event_id = event_id


class PayloadTooLarge(GatepostError, ValueError):
    """The payload is over `max_payload`."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One place of a payload that does not fit its schema."""

    pointer: str
    """JSON pointer (RFC 6901); empty: the payload as a whole."""
    keyword: str
    """Of the schema, such as `required`."""
    expected: str
    """In words; nothing of the payload is repeated."""


class PayloadInvalid(GatepostError, ValueError):
    """The payload does not fit the JSON Schema of its event type; `violations` says where and what was expected."""

    def __init__(self, event_type: str, violations: tuple[Violation, ...]) -> None:
        told = "; ".join(f"{one.pointer or '(payload)'}: expected {one.expected} ({one.keyword})" for one in violations)
        super().__init__(f"the payload does not fit the schema of {event_type}: {told}")
        self.event_type = event_type
        self.violations = violations


class Overloaded(GatepostError):
    """The event was not accepted and nothing was stored. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class LimitExceeded(Overloaded):
    """The tenant is over one of its own limits (events, bytes, backlog, endpoints): its fault, not ours, so HTTP answers 429."""


class StoreError(GatepostError):
    """The store cannot do its work (disk, corruption, closed)."""


class StoreLocked(StoreError):
    """Another dispatcher owns this SQLite file. Stop it, or use `Publisher.open`, which needs no ownership."""


class SchemaMismatch(StoreError):
    """The store's schema is newer than this code; run the newer Gatepost."""


class StoreFull(StoreError):
    """The disk has no room: ingest is refused, deliveries go on."""
