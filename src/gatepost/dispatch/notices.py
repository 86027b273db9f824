"""What people should hear about: troubles of the process and endpoints that need their owner, each at most once an hour.

It says and remembers, nothing else; a thousand deliveries that fail for one reason are one notice. Called by `dispatch.attempt`
and the loops of `dispatch.dispatcher`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gatepost.telemetry import Observer, OperationalObservation

REPEAT_AFTER_US: Final = 3_600_000_000
"""The same notice is given again after an hour."""
REMEMBERED_MAX: Final = 10_000
"""Notices remembered; the one given longest ago goes first, and may then be repeated early."""

_log = logging.getLogger("gatepost.dispatch")


class Notices:
    """Tells the observer, if there is one. `now` is a function for UTC microseconds."""

    def __init__(self, observer: Observer | None, now: Callable[[], int]) -> None:
        self._observer = observer
        self._now = now
        self._given: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        self.tell_tenant: Callable[[OperationalObservation], None] | None = None
        """Hears of notices that name a tenant. Set once, by whoever can publish."""

    def owner_must_act(self, tenant: str, endpoint_id: str, code: str) -> None:
        """Deliveries to this endpoint go slow, or are given up, until its owner changes something."""
        self._say(
            "endpoint_needs_owner",
            f"endpoint {endpoint_id}: {code}; deliveries go slow until its owner mends it",
            code,
            tenant,
            endpoint_id,
        )

    def disabled(self, tenant: str, endpoint_id: str, code: str) -> None:
        """An endpoint was disabled by us."""
        self._say("endpoint_disabled", f"endpoint {endpoint_id} was disabled: {code}", code, tenant, endpoint_id)

    def circuit_opened(self, tenant: str, endpoint_id: str, cause: str, *, dry_run: bool) -> None:
        """The endpoint's breaker opened: nothing but probes until it is well again."""
        kind = "circuit_would_open" if dry_run else "circuit_opened"
        what = "would be held (dry run)" if dry_run else "is held and probed"
        self._say(kind, f"endpoint {endpoint_id} {what}: {cause}", cause, tenant, endpoint_id)

    def outcomes_changed(self, tenant: str, endpoint_id: str, what: str, usual: float, share: float) -> None:
        """A kind of failure became common at one endpoint within five minutes."""
        message = f"endpoint {endpoint_id}: {what} went from {usual:.0%} to {share:.0%} of its attempts in five minutes"
        self._say("outcomes_changed", message, what, tenant, endpoint_id)

    def host_held(self, host: str) -> None:
        """No connection to the host: all of its endpoints are held, with one probe for all."""
        self._say("host_held", f"host {host} cannot be reached: its endpoints are held and probed", host, None, None)

    def event_dropped(self, tenant: str, event_id: str) -> None:
        """A publisher's event conflicts with an earlier one under its idempotency key. Said each time: it is somebody's data."""
        message = f"event {event_id} of tenant {tenant} was dropped: its idempotency key names another event"
        self._tell(OperationalObservation("idempotency_conflict", message, tenant, None, {"event_id": event_id}))

    def outbox_set_aside(self, place: str, tenant: str, event_id: str, code: str, why: str) -> None:
        """A row of a producer's outbox cannot be taken. Said each time: it is somebody's data."""
        message = (
            f"outbox {place}: event {event_id} of tenant {tenant} was set aside ({code}): {why}; it stays in gatepost_outbox with "
            "done_at below zero: mend it and set done_at to null to have it taken, or delete it"
        )
        fields: dict[str, str | int | float | bool] = {"event_id": event_id, "outbox": place, "code": code}
        self._tell(OperationalObservation("outbox_set_aside", message, tenant, None, fields))

    def event_set_aside(self, tenant: str, event_id: str, code: str, why: str) -> None:
        """A publisher's event cannot be delivered to anybody. Said each time: it is somebody's data."""
        message = (
            f"event {event_id} of tenant {tenant} was set aside ({code}): {why}; it is kept without deliveries: publish it again, "
            "mended"
        )
        self._tell(
            OperationalObservation("outbox_set_aside", message, tenant, None, {"event_id": event_id, "code": code})
        )

    def outbox_unavailable(self, place: str, error: str) -> None:
        """A producer's database does not answer; what it committed waits there."""
        self._say("outbox_unavailable", f"outbox {error}", place, None, None)

    def tenant_over_limit(self, tenant: str, what: str) -> None:
        """Events of the tenant's outbox are taken more slowly than they come."""
        message = f"tenant {tenant} publishes more than its limit of {what}: events of the outbox are delivered later"
        self._say("tenant_over_limit", message, what, tenant, None)

    def trouble(self, kind: str, error: BaseException | str) -> None:
        """Something of ours does not work."""
        self._say(kind, f"{kind}: {error}", kind, None, None)

    def _say(self, kind: str, message: str, code: str, tenant: str | None, endpoint_id: str | None) -> None:
        key = (kind, endpoint_id or tenant or "", code)
        now = self._now()
        given = self._given.get(key)
        if given is not None and now - given < REPEAT_AFTER_US:
            return
        self._given[key] = now
        self._given.move_to_end(key)
        if len(self._given) > REMEMBERED_MAX:
            self._given.popitem(last=False)
        self._tell(OperationalObservation(kind, message, tenant, endpoint_id, {"code": code}))

    def _tell(self, observation: OperationalObservation) -> None:
        if observation.tenant is not None and self.tell_tenant is not None:
            self.tell_tenant(observation)
        if self._observer is None:
            _log.warning("%s", observation.message)
            return
        try:
            self._observer.operational(observation)
        except Exception:  # noqa: BLE001 - users' code
            _log.exception("an observer raised; deliveries go on")
