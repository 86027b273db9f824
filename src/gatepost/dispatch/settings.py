"""What a dispatcher is told, and what it tells: its settings, refused as a whole when impossible, and a snapshot of how it is doing.

Limits of one attempt are in `delivery.policy`. Read by `dispatch.dispatcher`, which wires them, and by the service.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gatepost.delivery.records import DISABLE_AFTER
from gatepost.dispatch.bodies import BYTES_MAX
from gatepost.dispatch.intake import PUBLISH_TIMEOUT, IntakeStatistics
from gatepost.dispatch.limits import LimitSettings
from gatepost.dispatch.new_event import MAX_PAYLOAD
from gatepost.dispatch.outboxes import OutboxStatus
from gatepost.dispatch.scheduler import SchedulerStatistics
from gatepost.dispatch.share import WEIGHT_MAX
from gatepost.dispatch.worker import WorkerCounts
from gatepost.errors import ConfigurationError
from gatepost.store.rows import Retention

SLOTS: Final = 200
"""Attempts in flight in one process, as many as the client has connections by default."""
SLOTS_MAX: Final = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherSettings:
    """Limits of the dispatcher itself; those of an attempt are in `ClientPolicy`."""

    slots: int = SLOTS
    """Attempts in flight at once."""
    auto_host_cap: bool = False
    """Give each host as many connections as its endpoints' caps add up to, between 8 and a quarter of the slots; False: exactly
    `ClientPolicy.max_per_host`."""
    max_payload: int = MAX_PAYLOAD
    """Bytes of one event."""
    publish_timeout: float = PUBLISH_TIMEOUT
    """Seconds that `publish` waits for the store."""
    body_bytes_max: int = BYTES_MAX
    """Event bodies in memory."""
    name: str | None = None
    """What this process is called in status and in the log of attempts, before a random suffix; None: its process id."""
    address: str | None = None
    """`http://host:port` of this process' API or health page, as the other processes of a fleet see it in their status."""
    weight: float = 1.0
    """Its share of the parts in a fleet, relative to the others'."""
    grace: float | None = None
    """Seconds a drain waits for attempts in flight; None: the attempt budget, so that every one can end by itself."""
    disable_after: float = DISABLE_AFTER
    """Seconds of nothing but failed attempts after which an endpoint is disabled; 0: never."""
    limits: LimitSettings = field(default_factory=LimitSettings)
    """What may be learned of endpoints, and what their breakers do."""
    retention: Retention = field(default_factory=Retention)

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= SLOTS_MAX:
            raise ConfigurationError(f"slots={self.slots}: write 1 to {SLOTS_MAX}")
        if self.max_payload < 1 or self.body_bytes_max < self.max_payload:
            raise ConfigurationError(
                f"max_payload={self.max_payload}, body_bytes_max={self.body_bytes_max}: write at least 1, and room for one payload"
            )
        if not self.publish_timeout > 0:
            raise ConfigurationError(f"publish_timeout={self.publish_timeout}: write seconds, more than 0")
        if not self.disable_after >= 0:
            raise ConfigurationError(f"disable_after={self.disable_after}: write seconds, or 0 for never")
        if not 0 < self.weight <= WEIGHT_MAX:
            raise ConfigurationError(f"weight={self.weight}: write a number above 0, at most {WEIGHT_MAX:g}")
        if self.grace is not None and not self.grace >= 0:
            raise ConfigurationError(f"grace={self.grace}: write seconds, 0 or more")


@dataclass(frozen=True, slots=True)
class DispatcherStatistics:
    """A snapshot."""

    running: bool
    scheduler: SchedulerStatistics
    attempts: WorkerCounts
    intake: IntakeStatistics
    results_waiting: int
    """Results not stored yet."""
    store_failing: bool
    body_bytes: int
    parts: int
    lease_seconds_left: float
    loop_lag_p99: float
    """Seconds, over the last second."""
    loop_late: bool
    oldest_attempt: float
    """Seconds."""
    node: str
    """This process' name in the fleet."""
    draining: bool
    balanced: bool
    """It holds its share of the parts."""
    share: int
    """Parts it should hold at least."""
    clock_skew: float
    """Seconds that the store's clock is ahead of this machine's."""
    clock_trusted: bool
    """The clocks agree well enough to sign with."""
    outboxes: tuple[OutboxStatus, ...] = ()
    """Producers' databases that are followed."""
