"""`/v1/event-types`: JSON Schemas that a tenant's events must fit, in versions. Types without one take anything."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from gatepost.service.api.context import (
    VERSION_MAX,
    AfterQuery,
    CallerDep,
    LimitQuery,
    ServiceDep,
    TenantQuery,
    page_view,
)
from gatepost.service.api.models import Body
from gatepost.service.api.views import exact_time
from gatepost.store.port import EventSchema

VERSIONS_SHOWN = 20

router = APIRouter(prefix="/v1/event-types", tags=["event types"])


class NewSchema(Body):
    """A schema for a type."""

    tenant: str | None = Field(None, description="Default: the key's tenant; for an admin `default`.")
    json_schema: dict[str, Any] = Field(
        alias="schema", description="JSON Schema, 2020-12, without references to elsewhere."
    )


@router.get("")
async def list_types(
    service: ServiceDep,
    caller: CallerDep,
    tenant: TenantQuery = None,
    after: AfterQuery = None,
    limit: LimitQuery = 100,
) -> dict[str, Any]:
    """The newest version of each type that ever had a schema, in order of tenant and type."""
    page = await service.dispatcher.event_types.list(tenant=caller.tenant_filter(tenant), after=after, limit=limit)
    return page_view([_view(one) for one in page.items], page.next)


@router.get("/{event_type:path}")
async def get_type(
    service: ServiceDep,
    caller: CallerDep,
    event_type: str,
    tenant: TenantQuery = None,
    version: Annotated[int | None, Query(ge=0, le=VERSION_MAX, description="Not given: the newest.")] = None,
) -> dict[str, Any]:
    """One version of a type's schema, and which versions there are."""
    owner = caller.tenant_for(tenant)
    types = service.dispatcher.event_types
    found = await types.get(event_type, tenant=owner, version=version)
    versions = await types.versions(event_type, tenant=owner, limit=VERSIONS_SHOWN)
    shown = [{"version": one.version, "at": exact_time(one.at), "by": one.actor} for one in versions]
    return {**_view(found), "versions": shown}


@router.put("/{event_type:path}")
async def put_type(service: ServiceDep, caller: CallerDep, event_type: str, body: NewSchema) -> dict[str, Any]:
    """Set the schema of a type: from now on events that do not fit are refused. In force here when this answers, and within two
    seconds in the other processes."""
    tenant = caller.tenant_for(body.tenant)
    types = service.dispatcher.event_types
    return _view(await types.set(event_type, body.json_schema, tenant=tenant, by=caller.actor))


@router.delete("/{event_type:path}", status_code=204)
async def delete_type(service: ServiceDep, caller: CallerDep, event_type: str, tenant: TenantQuery = None) -> None:
    """Remove the schema of a type: its events may be anything again."""
    await service.dispatcher.event_types.remove(event_type, tenant=caller.tenant_for(tenant), by=caller.actor)


def _view(schema: EventSchema) -> dict[str, Any]:
    return {
        "type": schema.type,
        "tenant": schema.tenant,
        "version": schema.version,
        "at": exact_time(schema.at),
        "by": schema.actor,
        "schema": None if schema.document is None else json.loads(schema.document),
    }
