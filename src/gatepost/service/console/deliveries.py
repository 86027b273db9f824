"""`/console/deliveries`: what became of what was sent, by endpoint, event, type, state and time; and a way to any id.

Each page asks the store for a bounded number of rows; a search for something rare says that it may go on.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from gatepost.delivery.ids import DELIVERY, ENDPOINT, EVENT, decode_id
from gatepost.errors import ConfigurationError
from gatepost.service.api.problems import Problem
from gatepost.service.console.view import View, ViewDep
from gatepost.store.rows import DeliveryFilter, DeliveryInfo, Page

PAGE_ROWS: Final = 50
PATIENCE: Final = 0.05
"""Seconds after which a search that has found nothing asks whether to go on, instead of looking at the next two thousand rows."""
SOON_US: Final = 60_000_000
"""A list of everybody's deliveries begins this far ahead: other processes' clocks made the newest ids."""

router = APIRouter()


@router.get("/deliveries")
async def deliveries_page(
    view: ViewDep,
    q: Annotated[str, Query(max_length=100)] = "",
    tenant: str = "",
    endpoint: str = "",
    event: str = "",
    type: Annotated[str, Query(max_length=256)] = "",  # noqa: A002 - as it stands in the address
    state: str = "",
    since: str = "",
    until: str = "",
    after: str | None = None,
) -> Response:
    """A page of them, newest first."""
    if q.strip():
        return _to_id(view, q.strip())
    where = _filter(view, tenant, endpoint, event, type, state, since, until)
    page = await _look(view, where, after)
    known = {number: view.service.dispatcher.search.get(number) for number in {info.endpoint for info in page.items}}
    asked = {
        "tenant": tenant, "endpoint": endpoint, "event": event, "type": type, "state": state, "since": since, "until": until,
    }  # fmt: skip
    return view.page(
        "deliveries.html",
        title="Deliveries",
        section="deliveries",
        asked=asked,
        rows=[(info, known[info.endpoint]) for info in page.items],
        after=after,
        next=page.next,
    )


async def _look(view: View, where: DeliveryFilter, after: str | None) -> Page[DeliveryInfo]:
    store = view.service.store
    try:
        began = view.service.clock.monotonic()
        page = await store.deliveries(where, after, PAGE_ROWS)
        while not page.items and page.next is not None and view.service.clock.monotonic() - began < PATIENCE:
            page = await store.deliveries(where, page.next, PAGE_ROWS)
    except ConfigurationError:
        raise Problem("invalid_request", "after: leave it out for the first page") from None
    return page


def _filter(
    view: View, tenant: str, endpoint: str, event: str, event_type: str, state: str, since: str, until: str
) -> DeliveryFilter:
    where = DeliveryFilter(
        view.access.tenant_filter(tenant.strip()),
        _number("endpoint", ENDPOINT, endpoint),
        _number("event", EVENT, event),
        event_type=event_type.strip() or None,
        accepted_from=_time("since", since),
        accepted_before=_time("until", until),
    )
    match state:
        case "waiting" | "delivered" | "dead" | "cancelled":
            where = replace(where, state=state)
        case "":
            pass
        case _:
            raise Problem("invalid_request", "state: write waiting, delivered, dead or cancelled")
    if (where.tenant, where.endpoint, where.event_id, where.accepted_from, where.accepted_before) == (None,) * 5:
        where = replace(where, accepted_before=view.service.clock.wall_us() + SOON_US)
    return where


def _number(name: str, prefix: str, text: str) -> int | None:
    if not text.strip():
        return None
    try:
        return decode_id(prefix, text.strip())
    except ValueError as error:
        raise Problem("invalid_request", f"{name}: {error}") from None


def _time(name: str, text: str) -> int | None:
    if not text.strip():
        return None
    try:
        at = datetime.fromisoformat(text.strip())
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        return round(at.timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        raise Problem("invalid_request", f"{name}: write a time in UTC, for example 2026-11-30T08:15") from None


def _to_id(view: View, text: str) -> Response:
    """Whatever id it is, its page; each page answers for itself whether the visitor may see it."""
    for prefix, path in ((DELIVERY, "/deliveries"), (EVENT, "/events"), (ENDPOINT, "/endpoints")):
        if text.startswith(prefix):
            _number("id", prefix, text)
            return view.redirect(f"{path}/{text}")
    raise Problem("invalid_request", "write an id as dlv_…, evt_… or ep_…; a webhook-id header is an event's id")
