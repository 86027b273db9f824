"""What every handler works with, put together by `service.app`, and how a handler gets at it and at its caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Query, Request

from gatepost.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from gatepost.delivery.ids import ENDPOINT, decode_id
from gatepost.delivery.records import Endpoint
from gatepost.dispatch.dispatcher import Dispatcher
from gatepost.service.api.auth import Caller, KeyRing
from gatepost.service.api.problems import Problem, not_found
from gatepost.service.console.pulse import Pulse
from gatepost.service.doctor.collect import Doctor
from gatepost.service.logs import Logs
from gatepost.service.metrics import Metrics
from gatepost.service.shared_metrics import SharedMetrics
from gatepost.service.siblings import Siblings
from gatepost.store.port import AuditEntry, Store

PAGE_MAX = 1_000
"""Rows in one page of a listing."""
VERSION_MAX = (1 << 31) - 1
"""A version that is asked for; there are never so many, and a store's column holds no more than 63 bits."""
SIGNING_KEY_BYTES = 32


@dataclass(slots=True)
class Service:
    """The parts behind the API, and whether it is on its way out."""

    dispatcher: Dispatcher
    store: Store
    keys: KeyRing
    metrics: Metrics
    max_payload: int
    max_loop_lag: float
    """Seconds; events are refused while the loop runs later."""
    logs: Logs | None = None
    metrics_public: bool = False
    signing_keys: Sequence[bytes] = field(default_factory=lambda: (SYSTEM_ENTROPY.token(SIGNING_KEY_BYTES),))
    """Sign the console's sessions and links, the newest first; the same in every process of a fleet. Not given: they end with
    this process."""
    pulse: Pulse = field(default_factory=lambda: Pulse(SYSTEM_CLOCK))
    """The last minutes of this process, for the console."""
    doctor: Doctor | None = None
    """Gathers what `gatepost doctor` judges."""
    siblings: Siblings = field(default_factory=Siblings)
    """The other processes of this machine, to be asked."""
    shared_metrics: SharedMetrics | None = None
    """The figures of all of them; None: only `metrics` are shown."""
    clock: Clock = SYSTEM_CLOCK
    entropy: Entropy = SYSTEM_ENTROPY
    leaving: bool = field(default=False)
    """Another process takes new connections from now on; what comes over ours is answered, and they are closed by it."""
    draining: bool = field(default=False)
    """Nothing new is accepted; set once, at the start of a drain."""

    async def audit(self, caller: Caller, action: str, subject: str, tenant: str | None, detail: str = "") -> None:
        """Record who changed what, after it was changed."""
        await self.store.audit(AuditEntry(self.clock.wall_us(), caller.actor, action, subject, tenant, detail))


def service_of(request: Request) -> Service:
    """The service behind a request."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


async def caller_of(request: Request) -> Caller:
    """The caller of a request. Raises `Problem` when the key is missing or unknown."""
    return await service_of(request).keys.caller_of(request.headers)


ServiceDep = Annotated[Service, Depends(service_of)]
CallerDep = Annotated[Caller, Depends(caller_of)]
TenantQuery = Annotated[str | None, Query(description="Limit to this tenant; an admin may leave it out.")]
AfterQuery = Annotated[str | None, Query(description="`next` of the page before.")]
LimitQuery = Annotated[int, Query(ge=1, le=PAGE_MAX)]


async def owned_endpoint(service: Service, caller: Caller, endpoint_id: str) -> Endpoint:
    """The endpoint, if the caller may see it. Raises not_found otherwise."""
    read_id(ENDPOINT, endpoint_id)
    endpoint = await service.store.endpoint(endpoint_id)
    if endpoint is None:
        raise not_found()
    caller.check_sees(endpoint.tenant)
    return endpoint


def read_id(prefix: str, text: str) -> int:
    """The number behind an id in a path. A malformed one names nothing: not_found."""
    try:
        return decode_id(prefix, text)
    except ValueError:
        raise not_found() from None


def read_filter_id(name: str, prefix: str, text: str | None) -> int | None:
    """The number behind an id in a filter; a malformed one is an invalid request."""
    if text is None:
        return None
    try:
        return decode_id(prefix, text)
    except ValueError as error:
        raise Problem("invalid_request", f"{name}: {error}") from None


def read_time(name: str, at: datetime | None) -> int | None:
    """An instant of a filter in UTC microseconds; one without its zone is an invalid request."""
    if at is None:
        return None
    if at.tzinfo is None:
        raise Problem("invalid_request", f'{name} is a time with its zone, for example "2027-01-31T12:00:00Z"')
    return round(at.timestamp() * 1e6)


def page_view(items: list[dict[str, Any]], after: str | None) -> dict[str, Any]:
    """A page of a listing: `next` null means it was the last one."""
    return {"items": items, "next": after}
