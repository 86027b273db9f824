"""An attempt as observers hear of it: the same facts without body and headers. Used by the client and by `dispatch.attempt`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from gatepost.delivery.attempt import Attempt
from gatepost.telemetry import AttemptObservation, attempt_record

_last: tuple[Attempt, str | None, str | None, AttemptObservation] | None = None
"""The client tells of an attempt, and at once the dispatcher of what it decided: both of the same observation."""


def observation_of(attempt: Attempt, endpoint_id: str | None, tenant: str | None) -> AttemptObservation:
    """The observation of an attempt made for that endpoint and tenant."""
    global _last
    last = _last
    if last is not None and last[0] is attempt and last[1] == endpoint_id and last[2] == tenant:
        return last[3]
    made = attempt_record(
        attempt.outcome,
        attempt.delivered,
        attempt.phase,
        attempt.reason,
        attempt.retry_safety,
        attempt.blame,
        attempt.status,
        attempt.host,
        endpoint_id,
        tenant,
        attempt.address,
        attempt.elapsed,
        cast(Mapping[str, float], attempt.phases),
        attempt.reused,
        attempt.stale_retry,
        attempt.bytes_sent,
        attempt.body_fault,
        attempt.lagged,
    )
    _last = (attempt, endpoint_id, tenant, made)
    return made
