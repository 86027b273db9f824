"""An `Attempt` as JSON values, the same from the API and the command line. Request headers and the URL are not in it."""

from __future__ import annotations

from typing import Any, Final

from gatepost.delivery.attempt import Attempt

BODY_CHARS_MAX: Final = 2_000
"""Characters of the response body that are shown: an error page's beginning."""


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """Everything in an `Attempt`, for programs."""
    return {
        "outcome": attempt.outcome.value,
        "delivered": attempt.delivered,
        "phase": attempt.phase.value,
        "reason": attempt.reason.value,
        "retry_safety": attempt.retry_safety.value,
        "blame": attempt.blame.value,
        "status": attempt.status,
        "host": attempt.host,
        "address": attempt.address,
        "elapsed": round(attempt.elapsed, 6),
        "phases": {phase.value: round(seconds, 6) for phase, seconds in attempt.phases.items()},
        "reused": attempt.reused,
        "stale_retry": attempt.stale_retry,
        "bytes_sent": attempt.bytes_sent,
        "response_headers": [list(pair) for pair in attempt.response_headers],
        "body": attempt.body.decode("utf-8", "replace")[:BODY_CHARS_MAX],
        "body_fault": None if attempt.body_fault is None else attempt.body_fault.value,
        "started_at": attempt.started_at,
        "lagged": attempt.lagged,
    }
