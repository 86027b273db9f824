"""Every error the API answers with: problem+json (RFC 9457) with a stable `code`, made from what the layers below raise.

Codes are for programs and never change; the text is for people and says what to do. Nothing here knows routes; handlers
raise `Problem` or let Gatepost's own errors through.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final

from gatepost.deadline import DeadlineExceeded
from gatepost.errors import (
    ConfigurationError,
    Conflict,
    DestinationDenied,
    GatepostError,
    IdempotencyConflict,
    LimitExceeded,
    NotFound,
    Overloaded,
    PayloadInvalid,
    PayloadTooLarge,
    StoreError,
)
from gatepost.wire.headers import HeaderRefused

MEDIA_TYPE: Final = "application/problem+json"
STORE_RETRY_AFTER: Final = 5.0
"""Seconds after which a store that failed is worth asking again."""

CODES: Final[Mapping[str, tuple[int, str]]] = {
    "invalid_json": (400, "The body is not the JSON this route takes."),
    "unauthorized": (401, "The API key is missing or unknown."),
    "not_found": (404, "There is no such thing, or it belongs to another tenant."),
    "method_not_allowed": (405, "The path exists, the method does not."),
    "conflict": (409, "Another change came first, or the state does not allow this one."),
    "idempotency_conflict": (409, "The idempotency key was used with another type or payload."),
    "payload_too_large": (413, "The payload is over the limit."),
    "host_not_allowed": (
        421,
        "Without API keys, only requests to a loopback host name from outside a browser are served.",
    ),
    "destination_denied": (422, "The URL may not be called; `reason` is the code of the rule."),
    "payload_invalid": (422, "The payload does not fit the schema of its event type; `errors` says where."),
    "invalid_request": (422, "A field is missing, unknown or impossible."),
    "rate_limited": (429, "The tenant is over one of its limits."),
    "internal_error": (500, "A fault of ours; the log has more."),
    "overloaded": (503, "The event was not accepted; publish it again, with the same idempotency key."),
    "deadline_exceeded": (504, "The deadline of this request has passed, or leaves too little time for it."),
    "store_failing": (503, "The store cannot do its work."),
}
"""Each code, its status and its meaning; the reference page lists them."""


Extra = Mapping[str, str | int | float | list[dict[str, str]]]


class Problem(Exception):
    """An answer other than success. `extra`: members beside the standard ones; `retry_after` in seconds."""

    def __init__(self, code: str, detail: str, extra: Extra | None = None, retry_after: float | None = None) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.extra: Extra = extra or {}
        self.retry_after = retry_after

    @property
    def status(self) -> int:
        """Its HTTP status."""
        return CODES[self.code][0]

    def body(self) -> dict[str, object]:
        """The problem document."""
        return {
            "type": f"urn:gatepost:problem:{self.code}",
            "title": CODES[self.code][1],
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            **self.extra,
        }

    def encode(self) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        """Body and headers, ready to send."""
        body = json.dumps(self.body()).encode()
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
        if self.retry_after is not None:
            headers.append((b"retry-after", str(max(1, math.ceil(self.retry_after))).encode()))
        if self.code == "deadline_exceeded":
            headers.append((b"deadline-exceeded", b"handler"))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        return body, headers


def problem_of(error: GatepostError) -> Problem:
    """The answer to an error of the layers below, by its type."""
    match error:
        case NotFound():
            return not_found()
        case IdempotencyConflict():
            return Problem("idempotency_conflict", str(error), {"event_id": error.event_id})
        case Conflict():
            return Problem("conflict", str(error))
        case PayloadTooLarge():
            return Problem("payload_too_large", str(error))
        case PayloadInvalid():
            errors = [
                {"pointer": one.pointer, "keyword": one.keyword, "expected": one.expected} for one in error.violations
            ]
            return Problem("payload_invalid", str(error), {"errors": errors})
        case LimitExceeded():
            return Problem("rate_limited", str(error), retry_after=error.retry_after)
        case Overloaded():
            return Problem("overloaded", str(error), retry_after=error.retry_after)
        case DestinationDenied():
            return Problem("destination_denied", str(error), {"reason": error.reason})
        case HeaderRefused():
            return Problem("invalid_request", f"headers: {error}", {"reason": error.code.value})
        case DeadlineExceeded():
            return Problem("deadline_exceeded", str(error))
        case StoreError():
            return Problem("store_failing", str(error), retry_after=STORE_RETRY_AFTER)
        case ConfigurationError():
            return Problem("invalid_request", str(error))
        case _:
            return Problem("internal_error", "see the log")


def not_found() -> Problem:
    """The one answer for "is not there" and "is not yours": they must not differ."""
    return Problem("not_found", "no such record")
