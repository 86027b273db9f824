"""`/v1/tenants` and `/v1/api-keys`: who owns what, and who may call. An admin's routes; a tenant sees itself only."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

from fastapi import APIRouter, Response

from gatepost.delivery.records import Tenant, TenantLimits
from gatepost.service.api.auth import key_record, new_key
from gatepost.service.api.context import AfterQuery, CallerDep, LimitQuery, ServiceDep, page_view
from gatepost.service.api.models import LimitsBody, NewKey, NewTenant, TenantChange
from gatepost.service.api.problems import Problem, not_found
from gatepost.service.api.views import key_view, purge_view, tenant_view

PURGE_PATIENCE: Final = 10.0
"""Seconds until an erasure that goes on is answered with how far it is: below the limits of common load balancers."""

router = APIRouter(prefix="/v1")


@router.get("/tenants", tags=["tenants"])
async def list_tenants(
    service: ServiceDep, caller: CallerDep, after: AfterQuery = None, limit: LimitQuery = 100
) -> dict[str, Any]:
    """Tenants in order of name."""
    caller.check_admin()
    page = await service.store.tenants(after, limit)
    return page_view([tenant_view(tenant) for tenant in page.items], page.next)


@router.post("/tenants", tags=["tenants"], status_code=201)
async def create_tenant(service: ServiceDep, caller: CallerDep, body: NewTenant) -> dict[str, Any]:
    """Create a tenant."""
    caller.check_admin()
    if await service.store.tenant(body.name) is not None:
        raise Problem("conflict", f"there is a tenant {body.name!r} already; change it with PATCH")
    tenant = Tenant(body.name, service.clock.wall_us(), _limits(body.limits))
    await service.store.put_tenant(tenant)
    await service.audit(caller, "tenant.create", body.name, body.name)
    return tenant_view(tenant)


@router.get("/tenants/{name}", tags=["tenants"])
async def get_tenant(service: ServiceDep, caller: CallerDep, name: str) -> dict[str, Any]:
    """One tenant."""
    caller.check_sees(name)
    return tenant_view(await _tenant(service, name))


@router.patch("/tenants/{name}", tags=["tenants"])
async def change_tenant(service: ServiceDep, caller: CallerDep, name: str, body: TenantChange) -> dict[str, Any]:
    """Replace a tenant's limits."""
    caller.check_admin()
    tenant = await _tenant(service, name)
    changed = replace(tenant, limits=_limits(body.limits), generation=tenant.generation + 1)
    await service.store.put_tenant(changed)
    await service.audit(caller, "tenant.update", name, name)
    return tenant_view(changed)


@router.delete("/tenants/{name}", tags=["tenants"])
async def purge_tenant(service: ServiceDep, caller: CallerDep, name: str, response: Response) -> dict[str, Any]:
    """Erase a tenant for good: payloads, deliveries, attempts, dead letters, endpoints with their secrets, API keys, its record.

    It is stopped at once. 200 with a receipt when nothing is left; 202 while that lasts: ask again until 200.
    """
    caller.check_admin()
    tenants = service.dispatcher.tenants
    try:
        async with asyncio.timeout(PURGE_PATIENCE):
            receipt = await tenants.purge(name, actor=caller.actor)
    except TimeoutError:
        response.status_code = 202
        return {"state": "erasing", "tenant": name, "erased": dict(tenants.progress(name))}
    await service.keys.refresh()
    return purge_view(receipt)


@router.get("/api-keys", tags=["api keys"])
async def list_keys(service: ServiceDep, caller: CallerDep) -> dict[str, Any]:
    """All keys, without the keys themselves."""
    caller.check_admin()
    return page_view([key_view(key) for key in await service.store.api_keys()], None)


@router.post("/api-keys", tags=["api keys"], status_code=201)
async def create_key(service: ServiceDep, caller: CallerDep, body: NewKey) -> dict[str, Any]:
    """Make a key. The answer holds it, this once."""
    caller.check_admin()
    if body.tenant is not None and service.keys.empty:
        raise Problem("conflict", "make an admin key first: the first key closes the API to callers without one")
    text = new_key(service.entropy)
    key = key_record(text, tenant=body.tenant, name=body.name, now=service.clock.wall_us())
    await service.store.put_api_key(key)
    await service.keys.refresh()
    await service.audit(caller, "api_key.create", key.id, body.tenant)
    return {**key_view(key), "key": text}


@router.delete("/api-keys/{key_id}", tags=["api keys"], status_code=204)
async def delete_key(service: ServiceDep, caller: CallerDep, key_id: str) -> None:
    """Revoke a key, at once in this process and within two seconds in others."""
    caller.check_admin()
    keys = await service.store.api_keys()
    doomed = next((key for key in keys if key.id == key_id), None)
    if doomed is None:
        raise not_found()
    if doomed.tenant is None and sum(key.tenant is None for key in keys) == 1:
        raise Problem("conflict", "this is the last admin key; make another one first")
    await service.store.delete_api_key(key_id)
    await service.keys.refresh()
    await service.audit(caller, "api_key.delete", key_id, doomed.tenant)


async def _tenant(service: ServiceDep, name: str) -> Tenant:
    tenant = await service.store.tenant(name)
    if tenant is None:
        raise not_found()
    return tenant


def _limits(body: LimitsBody) -> TenantLimits:
    return TenantLimits(
        events_per_second=body.events_per_second,
        backlog_rows=body.backlog_rows,
        endpoints=body.endpoints,
        bytes_per_second=body.bytes_per_second,
    )
