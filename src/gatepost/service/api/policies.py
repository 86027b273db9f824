"""`/v1/policies`: the limits of the fleet, who set which, and changes of them. For admins, but for one's own endpoint's limits."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from gatepost.admission.rollout import RolloutPlan, Stay, step
from gatepost.delivery.policy_layers import LayerName, LayerValue
from gatepost.service.api.context import VERSION_MAX, CallerDep, LimitQuery, ServiceDep, TenantQuery, owned_endpoint
from gatepost.service.api.models import (
    PolicyClear,
    PolicyReason,
    PolicyRollback,
    PolicySet,
    PolicyShadow,
    PolicyValue,
    RolloutAdvance,
    RolloutStart,
)
from gatepost.service.api.policy_views import (
    book_view,
    change_view,
    explained_view,
    review_view,
    rollout_view,
    shadow_view,
    values_view,
    verdict_view,
    version_view,
)

router = APIRouter(prefix="/v1/policies", tags=["policies"])


@router.get("")
async def get_policy(service: ServiceDep, caller: CallerDep) -> dict[str, Any]:
    """What people have set: tiers, fleet, cohort, canary, shadow, and the rollout under way."""
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
    before: Annotated[int | None, Query(ge=0, le=VERSION_MAX, description="Versions below this one.")] = None,
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
    """Set limits for a tier, the fleet, a cohort or one process. In force everywhere within two seconds."""
    caller.check_admin()
    change = await service.dispatcher.policies.set(
        LayerName(body.layer),
        given(body.limits),
        by=caller.actor,
        why=body.why,
        tier=body.tier,
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
        LayerName(body.layer), body.limits, by=caller.actor, why=body.why, tier=body.tier, force=body.force
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


@router.get("/shadow")
async def shadow_report(service: ServiceDep, caller: CallerDep) -> dict[str, Any]:
    """How many successful deliveries the limits in shadow would have ended, by host and endpoint, with overrides to spare them."""
    caller.check_admin()
    policies = service.dispatcher.policies
    await policies.refresh()
    report = await service.dispatcher.policy_reports.shadow(policies.book.shadow_number)
    return {"shadow": values_view(policies.book.shadow), **shadow_view(report)}


@router.post("/shadow")
async def set_shadow(service: ServiceDep, caller: CallerDep, body: PolicyShadow) -> dict[str, Any]:
    """Try limits: nothing changes, and each attempt says whether they would have ended it. No limits: try nothing."""
    caller.check_admin()
    change = await service.dispatcher.policies.try_in_shadow(given(body.limits), by=caller.actor, why=body.why)
    await service.audit(caller, "policy.shadow", "*", None, ",".join(sorted(body.limits)))
    return change_view(change)


@router.post("/shadow:apply")
async def apply_shadow(service: ServiceDep, caller: CallerDep, body: PolicyReason) -> dict[str, Any]:
    """Give each endpoint that would lose deliveries the overrides that the report proposes; at most a thousand endpoints."""
    caller.check_admin()
    policies = service.dispatcher.policies
    await policies.refresh()
    report = await service.dispatcher.policy_reports.shadow(policies.book.shadow_number)
    proposed = {loss.endpoint_id: loss.proposed for loss in report.endpoints if loss.proposed}
    changed = await policies.override(proposed, by=caller.actor, why=body.why)
    await service.audit(caller, "policy.shadow_apply", "*", None, str(changed))
    return {"endpoints": changed, "more": report.losing > len(report.endpoints)}


@router.get("/rollout")
async def rollout_status(service: ServiceDep, caller: CallerDep) -> dict[str, Any]:
    """Where the rollout is, what it waits for, and the comparison so far with n and confidence."""
    caller.check_admin()
    dispatcher = service.dispatcher
    await dispatcher.policies.refresh()
    rollout = dispatcher.policies.book.rollout
    if rollout is None:
        return {"rollout": None, "verdict": None, "waits_for": None}
    verdict = waits_for = None
    if rollout.running:
        evidence = await dispatcher.rollout.evidence(rollout)
        verdict = evidence.verdict
        found = step(rollout, evidence, dispatcher.store_time())
        waits_for = found.why if isinstance(found, Stay) else "the next look, within minutes"
    return {
        "rollout": rollout_view(rollout),
        "verdict": None if verdict is None else verdict_view(verdict),
        "waits_for": waits_for,
    }


@router.post("/rollout")
async def start_rollout(service: ServiceDep, caller: CallerDep, body: RolloutStart) -> dict[str, Any]:
    """Roll limits out: shadow, one process, cohorts, all, each stage held until it has proved harmless."""
    caller.check_admin()
    plan = RolloutPlan(
        body.shadow_hold,
        body.canary_hold,
        body.cohort_hold,
        tuple(body.shares),
        None if body.night is None else (body.night[0], body.night[1]),
        body.utc_offset,
        body.tolerance,
    )
    change = await service.dispatcher.policies.begin_rollout(
        given(body.limits), plan, by=caller.actor, why=body.why, canary=body.canary, force=body.force
    )
    await service.audit(caller, "policy.rollout_start", "*", None, ",".join(sorted(body.limits)))
    return change_view(change)


@router.post("/rollout:advance")
async def advance_rollout(service: ServiceDep, caller: CallerDep, body: RolloutAdvance) -> dict[str, Any]:
    """The next stage now, whatever hold and verdict say."""
    caller.check_admin()
    nodes = [info.node.name for info in await service.store.nodes()]
    change = await service.dispatcher.policies.advance_rollout(nodes, by=caller.actor, why=body.why, step=body.step)
    await service.audit(caller, "policy.rollout_advance", "*", None, body.why)
    return change_view(change)


@router.post("/rollout:abort")
async def abort_rollout(service: ServiceDep, caller: CallerDep, body: PolicyReason) -> dict[str, Any]:
    """End the rollout with the old values in force, everywhere within two seconds; also one that has reached all."""
    caller.check_admin()
    change = await service.dispatcher.policies.abort_rollout(by=caller.actor, why=body.why)
    await service.audit(caller, "policy.rollout_abort", "*", None, body.why)
    return change_view(change)


@router.get("/review")
async def review_policies(
    service: ServiceDep,
    caller: CallerDep,
    tenant: TenantQuery = None,
    everything: Annotated[bool, Query(alias="all", description="Endpoints whose budgets fit, too.")] = False,
    limit: LimitQuery = 100,
) -> dict[str, Any]:
    """Which budgets no longer fit what endpoints take, and since when. Suggests; changes nothing."""
    caller.check_admin()
    found = await service.dispatcher.policy_reports.review(tenant)
    kept = [one for one in found if everything or one.review.worth_a_look]
    return {"reviewed": len(found), "items": [review_view(one) for one in kept[:limit]]}


def given(limits: dict[str, PolicyValue]) -> dict[str, LayerValue]:
    """Values of a request, before they are signed."""
    return {name: LayerValue(value.value, value.floor, value.ceiling) for name, value in limits.items()}
