"""`/console/deliveries/{id}` and `/console/events/{id}`: one delivery with every attempt, and one event with all its deliveries.

What was sent and what came back, the signature and the endpoint's own headers masked. Payloads and responses are other people's
bytes: they are shown as text, bounded (`payload_text`), and never run. Replay and cancel are forms here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from fastapi import APIRouter
from markupsafe import Markup
from starlette.responses import Response

from gatepost.delivery.ids import DELIVERY, ENDPOINT, EVENT, encode_id
from gatepost.delivery.records import Endpoint
from gatepost.service.api.context import read_id
from gatepost.service.api.problems import Problem, not_found
from gatepost.service.api.views import phases_of
from gatepost.service.console.charts import phase_bar
from gatepost.service.console.payload_text import PayloadText, payload_text
from gatepost.service.console.shown_request import shown_request
from gatepost.service.console.view import View, ViewDep
from gatepost.store.rows import RESPONSE_SNIPPET_MAX, AttemptRow, DeliveryFilter, DeliveryInfo
from gatepost.wire.egress import Denied
from gatepost.wire.reason_help import REASON_HELP
from gatepost.wire.reasons import Reason

EVENT_ROWS: Final = 100
"""Deliveries of an event on one page."""

_HELP: Final[Mapping[str, str]] = {reason.value: REASON_HELP[reason] for reason in Reason}

router = APIRouter()


class Content(NamedTuple):
    """What is or was sent."""

    event_type: str
    content_type: str
    body: bytes


class AttemptLine(NamedTuple):
    """One attempt on the page."""

    row: AttemptRow
    bar: Markup
    phases: Mapping[str, float]
    help: str
    response: PayloadText
    """Its first bytes, as the log keeps them."""
    cut: bool
    """There may have been more."""


@router.get("/deliveries/{delivery_id}")
async def delivery_page(view: ViewDep, delivery_id: str) -> Response:
    """One delivery."""
    info = await _owned(view, delivery_id)
    store = view.service.store
    attempts = await store.attempts_of(info.delivery_id)
    content = await _content(view, info)
    endpoint = await store.endpoint(encode_id(ENDPOINT, info.endpoint))
    last = attempts[-1] if attempts else None
    request = None
    if endpoint is not None and content is not None:
        request = _request(
            view, endpoint, info, content, last.started_at if last is not None else view.service.clock.wall_us()
        )
    return view.page(
        "delivery.html",
        title="Delivery",
        section="deliveries",
        info=info,
        delivery_id=delivery_id,
        event_id=encode_id(EVENT, info.event_id),
        endpoint_id=encode_id(ENDPOINT, info.endpoint),
        endpoint=endpoint,
        content=content,
        payload=None if content is None else payload_text(content.body),
        request=request,
        changed=endpoint is not None and last is not None and endpoint.updated_at > last.started_at,
        attempts=_lines(attempts),
    )


@router.get("/events/{event_id}")
async def event_page(view: ViewDep, event_id: str, after: str | None = None) -> Response:
    """One event: its payload, and what became of it at each endpoint."""
    number = read_id(EVENT, event_id)
    store = view.service.store
    where = DeliveryFilter(tenant=view.access.tenant, event_id=number)
    page = await store.deliveries(where, after, EVENT_ROWS)
    body = (await store.load_events([number])).get(number)
    if body is not None:
        view.access.check_sees(body.tenant)
        content = Content(body.type, body.content_type, body.body)
    elif page.items:
        found = await _content(view, page.items[0])
        content = found or Content(page.items[0].event_type, "", b"")
    else:
        raise not_found()
    known = {info.endpoint: view.service.dispatcher.search.get(info.endpoint) for info in page.items}
    return view.page(
        "event.html",
        title="Event",
        section="deliveries",
        event_id=event_id,
        tenant=body.tenant if body is not None else page.items[0].tenant,
        kept=body is not None,
        content=content,
        payload=payload_text(content.body),
        rows=[(info, known[info.endpoint]) for info in page.items],
        after=after,
        next=page.next,
    )


@router.post("/deliveries/{delivery_id}/replay")
async def replay_delivery(view: ViewDep, delivery_id: str) -> Response:
    """Deliver a dead letter again."""
    info = await _owned(view, delivery_id)
    if info.state != "dead":
        raise Problem("conflict", f"the delivery is {info.state}; only dead ones are replayed")
    await view.service.dispatcher.deliveries.replay(delivery_id)
    await view.audit("delivery.replay", delivery_id, info.tenant)
    return view.done(f"/deliveries/{delivery_id}", "It waits again, with a new window and the same webhook-id.")


@router.get("/deliveries/{delivery_id}/cancel")
async def ask_to_cancel(view: ViewDep, delivery_id: str) -> Response:
    """Asks, since it cannot be undone."""
    info = await _owned(view, delivery_id)
    if not view.access.may_change:
        raise not_found()
    return view.page(
        "cancel.html", title="Cancel this delivery?", section="deliveries", info=info, delivery_id=delivery_id
    )


@router.post("/deliveries/{delivery_id}/cancel")
async def cancel_delivery(view: ViewDep, delivery_id: str) -> Response:
    """Give up a waiting delivery without a dead letter."""
    info = await _owned(view, delivery_id)
    if not await view.service.dispatcher.deliveries.cancel(delivery_id=delivery_id):
        raise Problem("conflict", f"the delivery is {info.state}; only waiting ones are cancelled")
    await view.audit("delivery.cancel", delivery_id, info.tenant)
    return view.done(f"/deliveries/{delivery_id}", "Cancelled. It is not tried again.")


async def _owned(view: View, delivery_id: str) -> DeliveryInfo:
    info = await view.service.store.delivery(read_id(DELIVERY, delivery_id))
    if info is None:
        raise not_found()
    view.access.check_sees(info.tenant)
    return info


async def _content(view: View, info: DeliveryInfo) -> Content | None:
    """The event's, or the dead letter's own copy; None: retention has taken it."""
    body = (await view.service.store.load_events([info.event_id])).get(info.event_id)
    if body is not None:
        return Content(body.type, body.content_type, body.body)
    letter = await view.service.store.dead_letter(info.delivery_id) if info.state == "dead" else None
    return None if letter is None else Content(letter.event_type, letter.content_type, letter.body)


def _request(view: View, endpoint: Endpoint, info: DeliveryInfo, content: Content, at: int) -> str | None:
    """None: the URL is refused today, nothing would be sent."""
    target = view.service.dispatcher.client.check_url(endpoint.url)
    if isinstance(target, Denied):
        return None
    event_id = encode_id(EVENT, info.event_id)
    return shown_request(
        endpoint, target.authority, target.target, event_id, at, content.content_type, len(content.body)
    )


def _lines(attempts: Sequence[AttemptRow]) -> list[AttemptLine]:
    longest = max((row.elapsed_us for row in attempts), default=0) / 1e6
    lines = []
    for row in attempts:
        phases = phases_of(row.phases_us)
        bar: Any = phase_bar(phases, longest)
        help_text = _HELP.get(row.reason, "")
        response = payload_text(row.response)
        lines.append(AttemptLine(row, bar, phases, help_text, response, len(row.response) >= RESPONSE_SNIPPET_MAX))
    return lines
