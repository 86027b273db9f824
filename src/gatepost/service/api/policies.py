"""`/v1/policies`: the limits of the fleet, who set which, and changes of them. For admins, but for one's own endpoint's limits."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from gatepost.delivery.policy_layers import LayerName, LayerValue
from gatepost.service.api.context import CallerDep, ServiceDep, owned_endpoint
from gatepost.service.api.models import PolicyClear, PolicyRollback, PolicySet, PolicyValue
from gatepost.service.api.policy_views import (
    book_view,
    change_view,
    explained_view,
    version_view,
)

router = APIRouter(prefix="/v1/policies", tags=["policies"])


@router.get("")
async def get_policy(service: ServiceDep, caller: CallerDep) -> dict[str, Any]:
    """What people have set: fleet, cohort, canary, shadow, and the rollout under way."""
    caller.check_admin()
    policies = service.dispatcher.policies
    await policies.refresh()
    return book_view(policies.version, policies.book)


@router.get("/explain/{endpoint_id}")
async def explain_policy(service: ServiceDep, caller: CallerDep, endpoint_id: str) -> dict[str, Any]:
    """The limits of one endpoint: value, who set it, when, why, and what it beat; and what its owner has learned."""
    endpoint = await owned_endpoint(service, caller, endpoint_id)
    policies = service.dispatcher.policies
    await policies.refresh()
    return explained_view(policies.explain(endpoint.id), await service.dispatcher.learned.of(endpoint.number))


@router.get("/history")
async def policy_history(
    service: ServiceDep,
    caller: CallerDep,
    before: Annotated[int | None, Query(description="Versions below this one.")] = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> dict[str, Any]:
    """Versions, newest first: who changed what, when and why."""
    caller.check_admin()
    found = await service.dispatcher.policies.history(before, limit)
    return {
        "items": [version_view(version) for version in found],
        "next": found[-1].version if len(found) == limit else None,
    }


@router.post("/set")
async def set_policy(service: ServiceDep, caller: CallerDep, body: PolicySet) -> dict[str, Any]:
    """Set limits for the fleet, a cohort or one process. In force everywhere within two seconds."""
    caller.check_admin()
    change = await service.dispatcher.policies.set(
        LayerName(body.layer),
        given(body.limits),
        by=caller.actor,
        why=body.why,
        share=body.share,
        process=body.process,
        force=body.force,
    )
    await service.audit(caller, "policy.set", body.layer, None, ",".join(sorted(body.limits)))
    return change_view(change)


@router.post("/clear")
async def clear_policy(service: ServiceDep, caller: CallerDep, body: PolicyClear) -> dict[str, Any]:
    """Take limits of one layer away: what is below it counts again."""
    caller.check_admin()
    change = await service.dispatcher.policies.clear(
        LayerName(body.layer), body.limits, by=caller.actor, why=body.why, force=body.force
    )
    await service.audit(caller, "policy.clear", body.layer, None, ",".join(body.limits or ["*"]))
    return change_view(change)


@router.post("/rollback")
async def roll_back_policy(service: ServiceDep, caller: CallerDep, body: PolicyRollback) -> dict[str, Any]:
    """Take changes back: of all (to the version before, or to `version`), or what the rollout changed for one endpoint."""
    caller.check_admin()
    policies = service.dispatcher.policies
    if body.endpoint_id is not None:
        endpoint = await owned_endpoint(service, caller, body.endpoint_id)
        own = await policies.roll_back_endpoint(endpoint.id, by=caller.actor, why=body.why)
        await service.audit(caller, "policy.rollback", endpoint.id, endpoint.tenant, body.why)
        return {"version": policies.version, "endpoint_id": endpoint.id, "overrides": dict(own)}
    change = await policies.roll_back(body.version, by=caller.actor, why=body.why)
    await service.audit(caller, "policy.rollback", "*", None, body.why)
    return change_view(change)


def given(limits: dict[str, PolicyValue]) -> dict[str, LayerValue]:
    """Values of a request, before they are signed."""
    return {name: LayerValue(value.value, value.floor, value.ceiling) for name, value in limits.items()}
