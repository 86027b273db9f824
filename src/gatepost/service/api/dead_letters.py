"""`/v1/dead-letters`: deliveries that were given up; look, replay at a bounded rate, purge."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query

from gatepost.delivery.ids import DELIVERY, ENDPOINT
from gatepost.dispatch.operations import COUNTED_MAX
from gatepost.service.api.auth import Caller
from gatepost.service.api.context import (
    AfterQuery,
    CallerDep,
    LimitQuery,
    ServiceDep,
    TenantQuery,
    owned_endpoint,
    page_view,
    read_filter_id,
    read_id,
    read_time,
)
from gatepost.service.api.models import DeadPurge, DeadReplay, DeadSelection
from gatepost.service.api.problems import Problem, not_found
from gatepost.service.api.views import dead_view, exact_time
from gatepost.store.rows import DeadFilter

PAYLOADS_MAX: Final = 20
"""Letters with payloads in one page: at most 20 MiB by the default limit of a payload."""
PORTION_MAX: Final = 100_000
COUNTED_FOR_API: Final = 100_000
"""The most one call counts: some 200 pages of the list."""

router = APIRouter(prefix="/v1", tags=["dead letters"])


@router.get("/dead-letters")
async def list_dead_letters(
    service: ServiceDep,
    caller: CallerDep,
    tenant: TenantQuery = None,
    endpoint_id: Annotated[str | None, Query()] = None,
    event_type: Annotated[str | None, Query()] = None,
    why: Annotated[str | None, Query()] = None,
    died_from: Annotated[datetime | None, Query()] = None,
    died_before: Annotated[datetime | None, Query()] = None,
    payload: Annotated[bool, Query(description="With payload_base64; then at most 20 a page.")] = False,
    after: AfterQuery = None,
    limit: LimitQuery = 100,
) -> dict[str, Any]:
    """Dead letters, newest first, without their payloads unless asked for."""
    selection = DeadSelection(
        tenant=tenant,
        endpoint_id=endpoint_id,
        event_type=event_type,
        why=why,
        died_from=died_from,
        died_before=died_before,
    )
    limit = min(limit, PAYLOADS_MAX) if payload else limit
    page = await service.store.dead_letters(_filter(caller, selection), after, limit)
    views = [dead_view(letter) for letter in page.items]
    if payload:
        for view, listed in zip(views, page.items, strict=True):
            letter = await service.store.dead_letter(listed.delivery_id)
            # One that was replayed or purged this moment is shown as it was listed.
            view["payload_base64"] = None if letter is None else _base64(letter.body)
    return page_view(views, page.next)


@router.get("/dead-letters:count")
async def count_dead_letters(
    service: ServiceDep,
    caller: CallerDep,
    tenant: TenantQuery = None,
    endpoint_id: Annotated[str | None, Query()] = None,
    event_type: Annotated[str | None, Query()] = None,
    why: Annotated[str | None, Query()] = None,
    delivery_id: Annotated[str | None, Query()] = None,
    died_from: Annotated[datetime | None, Query()] = None,
    died_before: Annotated[datetime | None, Query()] = None,
    at_most: Annotated[int, Query(ge=1, le=COUNTED_FOR_API, description="Stop counting here.")] = COUNTED_MAX,
) -> dict[str, Any]:
    """How many dead letters match. They are read to be counted; `complete` is false when there are more than `at_most`."""
    selection = DeadSelection(
        tenant=tenant,
        endpoint_id=endpoint_id,
        event_type=event_type,
        why=why,
        delivery_id=delivery_id,
        died_from=died_from,
        died_before=died_before,
    )
    found, complete = await service.dispatcher.dead_letters.count(_filter(caller, selection), at_most)
    return {"count": found, "complete": complete}


@router.get("/dead-letters/{delivery_id}")
async def get_dead_letter(service: ServiceDep, caller: CallerDep, delivery_id: str) -> dict[str, Any]:
    """One dead letter with what would have been sent."""
    letter = await service.store.dead_letter(read_id(DELIVERY, delivery_id))
    if letter is None:
        raise not_found()
    caller.check_sees(letter.tenant)
    return {**dead_view(letter), "payload_base64": _base64(letter.body)}


@router.post("/dead-letters:replay", status_code=202)
async def replay_dead_letters(service: ServiceDep, caller: CallerDep, body: DeadReplay) -> dict[str, Any]:
    """Deliver dead letters again, with new windows and the same ids, their starts spread to at most `rate` a second."""
    where = _filter(caller, body)
    if body.endpoint_id is not None and caller.tenant is not None:
        # Another tenant's must look like one that is gone, which the replay refuses.
        await owned_endpoint(service, caller, body.endpoint_id)
    letters = service.dispatcher.dead_letters
    if body.limit is None and body.not_before is None:
        replayed = await letters.replay(where, rate=body.rate)
        answer: dict[str, Any] = {"replayed": replayed}
    else:
        portion = await letters.replay_some(
            where,
            body.rate,
            not_before=read_time("not_before", body.not_before),
            limit=PORTION_MAX if body.limit is None else body.limit,
        )
        replayed = portion.moved
        answer = {
            "replayed": replayed,
            "more": portion.more,
            "next_at": exact_time(portion.next_due),
            "died_before": exact_time(portion.died_before),
        }
    await service.audit(caller, "dead_letter.replay", body.endpoint_id or "*", where.tenant, str(replayed))
    return answer


@router.post("/dead-letters:purge")
async def purge_dead_letters(service: ServiceDep, caller: CallerDep, body: DeadPurge) -> dict[str, Any]:
    """Delete dead letters for good. At least one condition must be given."""
    if body.model_copy(update={"limit": None}) == DeadPurge(limit=None):
        raise Problem("invalid_request", "write at least one condition; tenant alone deletes all of a tenant's")
    where = _filter(caller, body)
    purged = await service.dispatcher.dead_letters.purge(where, body.limit)
    await service.audit(caller, "dead_letter.purge", body.endpoint_id or "*", where.tenant, str(purged))
    return {"purged": purged} if body.limit is None else {"purged": purged, "more": purged == body.limit}


def _base64(body: bytes) -> str:
    return base64.b64encode(body).decode()


def _filter(caller: Caller, body: DeadSelection) -> DeadFilter:
    return DeadFilter(
        tenant=caller.tenant_filter(body.tenant),
        endpoint=read_filter_id("endpoint_id", ENDPOINT, body.endpoint_id),
        event_type=body.event_type,
        why=body.why,
        delivery_id=read_filter_id("delivery_id", DELIVERY, body.delivery_id),
        died_from=read_time("died_from", body.died_from),
        died_before=read_time("died_before", body.died_before),
    )
