"""`/v1/endpoints`: register destinations, change, pause, resume and test them, and rotate their secrets."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gatepost.delivery.records import Secret
from gatepost.service.api.context import (
    AfterQuery,
    CallerDep,
    LimitQuery,
    ServiceDep,
    TenantQuery,
    owned_endpoint,
    page_view,
)
from gatepost.service.api.learned_view import learned_view
from gatepost.service.api.models import EndpointFields, NewEndpoint, Pause, Rotation
from gatepost.service.api.problems import Problem
from gatepost.service.api.views import endpoint_view
from gatepost.service.attempt_view import attempt_json

router = APIRouter(prefix="/v1/endpoints", tags=["endpoints"])


@router.post("", status_code=201)
async def create_endpoint(service: ServiceDep, caller: CallerDep, body: NewEndpoint) -> dict[str, Any]:
    """Register a destination. The answer holds its signing secret, this once."""
    tenant = caller.tenant_for(body.tenant)
    fields = _fields(body)
    url = fields.pop("url")
    secret = None if body.secret is None else Secret(body.secret)
    endpoint = await service.dispatcher.endpoints.create(url, tenant=tenant, secret=secret, **fields)
    await service.audit(caller, "endpoint.create", endpoint.id, tenant)
    return endpoint_view(endpoint, reveal=True)


@router.get("")
async def list_endpoints(
    service: ServiceDep,
    caller: CallerDep,
    tenant: TenantQuery = None,
    after: AfterQuery = None,
    limit: LimitQuery = 100,
) -> dict[str, Any]:
    """Endpoints in order of id."""
    page = await service.store.endpoints(caller.tenant_filter(tenant), after, limit)
    return page_view([endpoint_view(endpoint) for endpoint in page.items], page.next)


@router.get("/{endpoint_id}")
async def get_endpoint(service: ServiceDep, caller: CallerDep, endpoint_id: str) -> dict[str, Any]:
    """One endpoint, its secrets and header values masked, with what its owner has learned about it."""
    endpoint = await owned_endpoint(service, caller, endpoint_id)
    known = await service.dispatcher.learned.of(endpoint.number)
    return {**endpoint_view(endpoint), "learned": None if known is None else learned_view(known)}


@router.patch("/{endpoint_id}")
async def update_endpoint(
    service: ServiceDep, caller: CallerDep, endpoint_id: str, body: EndpointFields
) -> dict[str, Any]:
    """Change the given fields; null takes an optional limit back to its default."""
    await owned_endpoint(service, caller, endpoint_id)
    changes = _fields(body)
    if not changes:
        raise Problem("invalid_request", "write at least one field to change")
    endpoint = await service.dispatcher.endpoints.update(endpoint_id, **changes)
    await service.audit(caller, "endpoint.update", endpoint_id, endpoint.tenant, ",".join(sorted(changes)))
    return endpoint_view(endpoint)


@router.delete("/{endpoint_id}", status_code=204)
async def delete_endpoint(service: ServiceDep, caller: CallerDep, endpoint_id: str) -> None:
    """Remove an endpoint; its waiting deliveries are cancelled."""
    endpoint = await owned_endpoint(service, caller, endpoint_id)
    await service.dispatcher.endpoints.delete(endpoint_id)
    await service.audit(caller, "endpoint.delete", endpoint_id, endpoint.tenant)


@router.post("/{endpoint_id}/pause")
async def pause_endpoint(
    service: ServiceDep, caller: CallerDep, endpoint_id: str, body: Pause | None = None
) -> dict[str, Any]:
    """Stop attempts; deliveries wait."""
    await owned_endpoint(service, caller, endpoint_id)
    reason = (body or Pause()).reason
    endpoint = await service.dispatcher.endpoints.pause(endpoint_id, reason)
    await service.audit(caller, "endpoint.pause", endpoint_id, endpoint.tenant, reason)
    return endpoint_view(endpoint)


@router.post("/{endpoint_id}/resume")
async def resume_endpoint(service: ServiceDep, caller: CallerDep, endpoint_id: str) -> dict[str, Any]:
    """Go on after a pause, or after we disabled it."""
    await owned_endpoint(service, caller, endpoint_id)
    endpoint = await service.dispatcher.endpoints.resume(endpoint_id)
    await service.audit(caller, "endpoint.resume", endpoint_id, endpoint.tenant)
    return endpoint_view(endpoint)


@router.post("/{endpoint_id}/rotate-secret")
async def rotate_secret(
    service: ServiceDep, caller: CallerDep, endpoint_id: str, body: Rotation | None = None
) -> dict[str, Any]:
    """Make a new signing secret; the old one signs beside it for a while. The answer holds the new one, this once."""
    await owned_endpoint(service, caller, endpoint_id)
    overlap = (body or Rotation()).overlap
    endpoint = await service.dispatcher.endpoints.rotate_secret(endpoint_id, overlap=overlap)
    await service.audit(caller, "endpoint.rotate_secret", endpoint_id, endpoint.tenant, f"overlap={overlap:.0f}")
    return endpoint_view(endpoint, reveal=True)


@router.post("/{endpoint_id}/test")
async def send_test_event(service: ServiceDep, caller: CallerDep, endpoint_id: str) -> dict[str, Any]:
    """Send one signed test event now, outside the queue, and say how the attempt ended."""
    endpoint = await owned_endpoint(service, caller, endpoint_id)
    attempt = await service.dispatcher.endpoints.test(endpoint_id)
    if service.logs is not None:
        service.logs.entry(
            "info",
            "endpoint_test",
            f"{attempt.outcome} in {attempt.phase} ({attempt.reason})",
            endpoint_id=endpoint_id,
            tenant=endpoint.tenant,
            status=attempt.status,
            elapsed_ms=round(attempt.elapsed * 1e3, 3),
        )
    return attempt_json(attempt)


def _fields(body: EndpointFields) -> dict[str, Any]:
    """The given fields as the registry takes them."""
    given = body.model_dump(exclude_unset=True, exclude={"tenant", "secret"})
    for name in (
        "url",
        "event_types",
        "description",
        "headers",
        "status_rules",
        "limits",
        "deduplicates",
        "send_deadline",
        "send_trace",
        "x509_strict",
        "probe",
    ):
        if name in given and given[name] is None:
            raise Problem("invalid_request", f"{name} cannot be null; leave it out, or write a value")
    for name in ("event_types", "schedule"):
        if given.get(name) is not None:
            given[name] = tuple(given[name])
    return given
