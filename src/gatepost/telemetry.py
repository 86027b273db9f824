"""What happened, as frozen values, and who may listen. Observations carry no secrets, header values or payloads.

Observers are called synchronously on the event loop: they must be quick and must not raise. One wide observation per
attempt holds every decision in it. Enumerations travel as their string values, since they are defined in the layers above.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class AttemptObservation:
    """One finished attempt: emitted exactly once, cancelled ones included."""

    outcome: str
    delivered: bool
    phase: str
    reason: str
    retry_safety: str
    blame: str
    status: int | None
    host: str
    endpoint_id: str | None
    tenant: str | None
    address: str | None
    elapsed: float
    """Seconds."""
    phases: Mapping[str, float]
    """Seconds by phase."""
    reused: bool
    stale_retry: bool
    bytes_sent: int
    body_fault: str | None
    lagged: bool


@dataclass(frozen=True, slots=True)
class DeliveryObservation:
    """What the dispatcher decided after an attempt."""

    event_id: str
    delivery_id: str
    endpoint_id: str
    tenant: str
    event_type: str
    attempt_number: int
    decision: str
    """`complete`, `retry_at`, `defer` or `dead_letter`."""
    why: str
    delay: float | None
    """Seconds until the next attempt, when there is one."""
    waited: float
    """Seconds from due to started."""
    attempt: AttemptObservation | None


@dataclass(frozen=True, slots=True)
class OperationalObservation:
    """Something an operator or owner should know that is no attempt: an endpoint disabled, a store failing, a second client."""

    kind: str
    message: str
    tenant: str | None = None
    endpoint_id: str | None = None
    fields: Mapping[str, str | int | float | bool] | None = None


class Observer(Protocol):
    """Listens to attempts, decisions and operational events."""

    def attempt_finished(self, observation: AttemptObservation) -> None:
        """Called once per attempt of a `DispatchClient`."""
        ...

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        """Called once per decision of a `Dispatcher`."""
        ...

    def operational(self, observation: OperationalObservation) -> None:
        """Called for what is neither."""
        ...
