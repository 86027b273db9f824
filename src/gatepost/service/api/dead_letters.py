"""`/v1/dead-letters`: deliveries that were given up; look, replay at a bounded rate, purge."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query

from gatepost.delivery.ids import DELIVERY, ENDPOINT
from gatepost.service.api.auth import Caller
from gatepost.service.api.context import (
    AfterQuery,
    CallerDep,
    LimitQuery,
    ServiceDep,
    TenantQuery,
    page_view,
    read_filter_id,
    read_id,
)
from gatepost.service.api.models import DeadReplay, DeadSelection
from gatepost.service.api.problems import Problem, not_found
from gatepost.service.api.views import dead_view
from gatepost.store.rows import DeadFilter

router = APIRouter(prefix="/v1", tags=["dead letters"])


@router.get("/dead-letters")
async def list_dead_letters(
    service: ServiceDep,
    caller: CallerDep,
    tenant: TenantQuery = None,
    endpoint_id: Annotated[str | None, Query()] = None,
    event_type: Annotated[str | None, Query()] = None,
    why: Annotated[str | None, Query()] = None,
    after: AfterQuery = None,
    limit: LimitQuery = 100,
) -> dict[str, Any]:
    """Dead letters, newest first, without their payloads."""
    selection = DeadSelection(tenant=tenant, endpoint_id=endpoint_id, event_type=event_type, why=why)
    page = await service.store.dead_letters(_filter(caller, selection), after, limit)
    return page_view([dead_view(letter) for letter in page.items], page.next)


@router.get("/dead-letters/{delivery_id}")
async def get_dead_letter(service: ServiceDep, caller: CallerDep, delivery_id: str) -> dict[str, Any]:
    """One dead letter with what would have been sent."""
    letter = await service.store.dead_letter(read_id(DELIVERY, delivery_id))
    if letter is None:
        raise not_found()
    caller.check_sees(letter.tenant)
    return {**dead_view(letter), "payload_base64": base64.b64encode(letter.body).decode()}


@router.post("/dead-letters:replay", status_code=202)
async def replay_dead_letters(service: ServiceDep, caller: CallerDep, body: DeadReplay) -> dict[str, int]:
    """Deliver dead letters again, with new windows and the same ids, their starts spread to at most `rate` a second."""
    where = _filter(caller, body)
    replayed = await service.dispatcher.dead_letters.replay(where, rate=body.rate)
    await service.audit(caller, "dead_letter.replay", body.endpoint_id or "*", where.tenant, str(replayed))
    return {"replayed": replayed}


@router.post("/dead-letters:purge")
async def purge_dead_letters(service: ServiceDep, caller: CallerDep, body: DeadSelection) -> dict[str, int]:
    """Delete dead letters for good. At least one condition must be given."""
    if body == DeadSelection():
        raise Problem("invalid_request", "write at least one condition; tenant alone deletes all of a tenant's")
    where = _filter(caller, body)
    purged = await service.dispatcher.dead_letters.purge(where)
    await service.audit(caller, "dead_letter.purge", body.endpoint_id or "*", where.tenant, str(purged))
    return {"purged": purged}


def _filter(caller: Caller, body: DeadSelection) -> DeadFilter:
    return DeadFilter(
        tenant=caller.tenant_filter(body.tenant),
        endpoint=read_filter_id("endpoint_id", ENDPOINT, body.endpoint_id),
        event_type=body.event_type,
        why=body.why,
        delivery_id=read_filter_id("delivery_id", DELIVERY, body.delivery_id),
        died_from=_micros("died_from", body.died_from),
        died_before=_micros("died_before", body.died_before),
    )


def _micros(name: str, at: datetime | None) -> int | None:
    if at is None:
        return None
    if at.tzinfo is None:
        raise Problem("invalid_request", f'{name} is a time with its zone, for example "2027-01-31T12:00:00Z"')
    return round(at.timestamp() * 1e6)
