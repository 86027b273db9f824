"""`/v1/deliveries`: what became of each event at each endpoint, attempt by attempt; cancel and replay."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from gatepost.delivery.ids import DELIVERY, ENDPOINT, EVENT
from gatepost.service.api.auth import Caller
from gatepost.service.api.context import (
    AfterQuery,
    CallerDep,
    LimitQuery,
    Service,
    ServiceDep,
    TenantQuery,
    page_view,
    read_filter_id,
    read_id,
    read_time,
)
from gatepost.service.api.models import DeliverySelection
from gatepost.service.api.problems import Problem, not_found
from gatepost.service.api.views import attempt_view, delivery_view
from gatepost.store.rows import DeliveryFilter, DeliveryInfo

router = APIRouter(prefix="/v1", tags=["deliveries"])
State = Literal["waiting", "delivered", "dead", "cancelled"]


@router.get("/deliveries")
async def list_deliveries(
    service: ServiceDep,
    caller: CallerDep,
    tenant: TenantQuery = None,
    endpoint_id: Annotated[str | None, Query()] = None,
    event_id: Annotated[str | None, Query()] = None,
    state: Annotated[State | None, Query()] = None,
    event_type: Annotated[str | None, Query()] = None,
    accepted_from: Annotated[datetime | None, Query()] = None,
    accepted_before: Annotated[datetime | None, Query()] = None,
    after: AfterQuery = None,
    limit: LimitQuery = 100,
) -> dict[str, Any]:
    """Deliveries, newest first. An admin names at least a tenant, an endpoint, an event or a time.

    A page may hold fewer than `limit`, even none, while `next` says that there are more.
    """
    since, before = read_time("accepted_from", accepted_from), read_time("accepted_before", accepted_before)
    where = replace(
        _named(caller, tenant, endpoint_id, event_id, state),
        event_type=event_type,
        accepted_from=since,
        accepted_before=before,
    )
    if where.tenant is None and where.endpoint is None and where.event_id is None and since is None and before is None:
        raise Problem("invalid_request", "write at least one of tenant, endpoint_id, event_id and a time")
    page = await service.store.deliveries(where, after, limit)
    return page_view([delivery_view(info) for info in page.items], page.next)


@router.get("/deliveries/{delivery_id}")
async def get_delivery(service: ServiceDep, caller: CallerDep, delivery_id: str) -> dict[str, Any]:
    """One delivery."""
    return delivery_view(await _owned(service, caller, delivery_id))


@router.get("/deliveries/{delivery_id}/attempts")
async def list_attempts(service: ServiceDep, caller: CallerDep, delivery_id: str) -> dict[str, Any]:
    """Its attempts, oldest first."""
    info = await _owned(service, caller, delivery_id)
    rows = await service.store.attempts_of(info.delivery_id)
    return page_view([attempt_view(row) for row in rows], None)


@router.post("/deliveries/{delivery_id}/replay")
async def replay_delivery(service: ServiceDep, caller: CallerDep, delivery_id: str) -> dict[str, Any]:
    """Deliver a dead letter again, with a new window and the same ids."""
    info = await _owned(service, caller, delivery_id)
    if info.state != "dead":
        raise Problem("conflict", f"the delivery is {info.state}; only dead ones are replayed")
    await service.dispatcher.deliveries.replay(delivery_id)
    await service.audit(caller, "delivery.replay", delivery_id, info.tenant)
    return delivery_view(await _owned(service, caller, delivery_id))


@router.post("/deliveries/{delivery_id}/cancel")
async def cancel_delivery(service: ServiceDep, caller: CallerDep, delivery_id: str) -> dict[str, Any]:
    """Give up a waiting delivery without a dead letter; an attempt in flight ends first."""
    info = await _owned(service, caller, delivery_id)
    cancelled = await service.dispatcher.deliveries.cancel(delivery_id=delivery_id)
    if not cancelled:
        raise Problem("conflict", f"the delivery is {info.state}; only waiting ones are cancelled")
    await service.audit(caller, "delivery.cancel", delivery_id, info.tenant)
    return delivery_view(await _owned(service, caller, delivery_id))


@router.post("/deliveries:cancel")
async def cancel_deliveries(service: ServiceDep, caller: CallerDep, body: DeliverySelection) -> dict[str, int]:
    """Give up all waiting deliveries of an event, an endpoint or a tenant; answers with their number."""
    where = _filter(caller, body.tenant, body.endpoint_id, body.event_id, "waiting")
    await _check_endpoint(service, caller, body.endpoint_id)
    cancelled = await service.dispatcher.deliveries.cancel(where)
    await service.audit(
        caller, "delivery.cancel", body.event_id or body.endpoint_id or "*", where.tenant, str(len(cancelled))
    )
    return {"cancelled": len(cancelled)}


def _named(
    caller: Caller, tenant: str | None, endpoint_id: str | None, event_id: str | None, state: State | None
) -> DeliveryFilter:
    return DeliveryFilter(
        tenant=caller.tenant_filter(tenant),
        endpoint=read_filter_id("endpoint_id", ENDPOINT, endpoint_id),
        event_id=read_filter_id("event_id", EVENT, event_id),
        state=state,
    )


def _filter(
    caller: Caller, tenant: str | None, endpoint_id: str | None, event_id: str | None, state: State | None
) -> DeliveryFilter:
    where = _named(caller, tenant, endpoint_id, event_id, state)
    if where.tenant is None and where.endpoint is None and where.event_id is None:
        raise Problem("invalid_request", "write at least one of tenant, endpoint_id and event_id")
    return where


async def _check_endpoint(service: Service, caller: Caller, endpoint_id: str | None) -> None:
    """Another tenant's endpoint in a filter is no such endpoint, not an empty result of a change."""
    if endpoint_id is not None and caller.tenant is not None:
        endpoint = await service.store.endpoint(endpoint_id)
        if endpoint is None or endpoint.tenant != caller.tenant:
            raise not_found()


async def _owned(service: Service, caller: Caller, delivery_id: str) -> DeliveryInfo:
    info = await service.store.delivery(read_id(DELIVERY, delivery_id))
    if info is None:
        raise not_found()
    caller.check_sees(info.tenant)
    return info
