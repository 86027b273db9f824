"""`/console/policy`: the limits in force and who set them, their history, what is tried in shadow, and the rollout. For admins.

Each change asks for a reason, which goes into the history with the key that made it. What a change does, and what it refuses, is
`dispatch.policies`' business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from gatepost.admission.compare import TOLERANCE
from gatepost.admission.rollout import Evidence, Rollout, RolloutPlan, Stay, step
from gatepost.delivery.policy import parse_field
from gatepost.delivery.policy_layers import GRADUAL, OF_THE_PROCESS, REASON_MAX, LayerName, LayerValue
from gatepost.dispatch.policies import PolicyChange
from gatepost.dispatch.policy_reports import ShadowReport
from gatepost.service.api.context import VERSION_MAX
from gatepost.service.api.problems import Problem
from gatepost.service.console.view import View, ViewDep

HISTORY_ROWS: Final = 50
REPORT_SECONDS: Final = 15.0
"""Reports over all endpoints are made at most so often by a process: each reads what is kept of every endpoint."""
HOSTS_SHOWN: Final = 20
STEP_DIGITS_MAX: Final = 9
"""Of a rollout's step in a form; there are never so many."""
HOUR: Final = 3_600.0
DAY_HOURS: Final = 24.0

router = APIRouter()


@router.get("/policy")
async def policy_page(view: ViewDep) -> Response:
    """What is in force in the process that answers, and what people set."""
    view.access.check_admin()
    policies = view.service.dispatcher.policies
    await policies.refresh()
    book = policies.book
    return view.page(
        "policy.html",
        title="Policy",
        section="policy",
        process=policies.process,
        version=policies.version,
        limits=policies.of_process().values,
        doubts=policies.doubts(),
        layers=[
            *((f"tier {tier}", "endpoints of that tier", values) for tier, values in book.tiers.items()),
            ("fleet", "every endpoint", book.fleet),
            ("cohort", f"{book.cohort_share:.0%} of the endpoints", book.cohort),
            ("canary", f"process {book.canary_process}", book.canary),
            ("shadow", "only recorded", book.shadow),
        ],
        settable=[row.name for row in policies.of_process().values if row.name not in OF_THE_PROCESS],
        gradual=GRADUAL,
        rollout=book.rollout,
        reason_max=REASON_MAX,
    )


@router.post("/policy/set")
async def set_limit(view: ViewDep) -> Response:
    """Set one limit for the fleet."""
    view.access.check_admin()
    values = _limits(f"{view.form.get('limit', '')}={view.form.get('value', '').strip()}")
    change = await view.service.dispatcher.policies.set(
        LayerName.FLEET, values, by=view.access.caller.actor, why=_why(view.form)
    )
    await view.audit("policy.set", "fleet", None, ",".join(values))
    return view.done("/policy", _said(change))


@router.post("/policy/clear")
async def clear_limit(view: ViewDep) -> Response:
    """Take one limit of one layer away."""
    view.access.check_admin()
    layer, limit = view.form.get("layer", ""), view.form.get("limit", "")
    name, _, tier = layer.partition(" ")
    if name not in (LayerName.TIER, LayerName.FLEET, LayerName.COHORT, LayerName.CANARY):
        raise Problem("invalid_request", "layer: write tier and its name, fleet, cohort or canary")
    change = await view.service.dispatcher.policies.clear(
        LayerName(name), [limit], by=view.access.caller.actor, why=_why(view.form), tier=tier or None
    )
    await view.audit("policy.clear", layer, None, limit)
    return view.done("/policy", _said(change))


@router.get("/policy/history")
async def policy_history(view: ViewDep, before: Annotated[int | None, Query(ge=0, le=VERSION_MAX)] = None) -> Response:
    """Who changed what, when and why, newest first."""
    view.access.check_admin()
    policies = view.service.dispatcher.policies
    await policies.refresh()
    versions = await policies.history(before, HISTORY_ROWS)
    return view.page(
        "policy_history.html",
        title="Policy history",
        section="policy",
        versions=versions,
        current=policies.version,
        before=before,
        next=versions[-1].version if len(versions) == HISTORY_ROWS else None,
        reason_max=REASON_MAX,
    )


@router.post("/policy/rollback")
async def roll_back(view: ViewDep) -> Response:
    """Bring the limits of an earlier version back, as a new one."""
    view.access.check_admin()
    version = view.form.get("version", "")
    if not version.isascii() or not version.isdigit() or len(version) > 9:
        raise Problem("invalid_request", "version: write the number of a version")
    why = _why(view.form)
    change = await view.service.dispatcher.policies.roll_back(int(version), by=view.access.caller.actor, why=why)
    await view.audit("policy.rollback", "*", None, why)
    return view.done("/policy/history", _said(change))


@router.get("/policy/shadow")
async def shadow_page(view: ViewDep) -> Response:
    """What the limits tried in shadow would have done."""
    view.access.check_admin()
    policies = view.service.dispatcher.policies
    await policies.refresh()
    report = await _shadow(view, policies.book.shadow_number)
    return view.page(
        "policy_shadow.html",
        title="Limits in shadow",
        section="policy",
        shadow=policies.book.shadow,
        report=report,
        hosts=sorted(report.hosts.items(), key=lambda pair: -pair[1])[:HOSTS_SHOWN],
        proposals=sum(bool(loss.proposed) for loss in report.endpoints),
        reason_max=REASON_MAX,
    )


@router.post("/policy/shadow")
async def set_shadow(view: ViewDep) -> Response:
    """Try limits; none: try nothing."""
    view.access.check_admin()
    values = _limits(view.form.get("limits", ""))
    change = await view.service.dispatcher.policies.try_in_shadow(
        values, by=view.access.caller.actor, why=_why(view.form)
    )
    await view.audit("policy.shadow", "*", None, ",".join(values))
    return view.done("/policy/shadow", _said(change))


@router.post("/policy/shadow/apply")
async def apply_shadow(view: ViewDep) -> Response:
    """Give the endpoints that would lose deliveries the overrides that the report proposes."""
    view.access.check_admin()
    policies = view.service.dispatcher.policies
    await policies.refresh()
    report = await view.service.dispatcher.policy_reports.shadow(policies.book.shadow_number)
    proposed = {loss.endpoint_id: loss.proposed for loss in report.endpoints if loss.proposed}
    changed = await policies.override(proposed, by=view.access.caller.actor, why=_why(view.form))
    await view.audit("policy.shadow_apply", "*", None, str(changed))
    return view.done("/policy/shadow", f"{changed:,} endpoints got overrides of their own.")


@router.get("/policy/rollout")
async def rollout_page(view: ViewDep) -> Response:
    """Where the rollout is and what it waits for."""
    view.access.check_admin()
    return view.page("rollout.html", title="Rollout", section="policy", reason_max=REASON_MAX, **await _rollout(view))


@router.get("/policy/rollout/live")
async def rollout_live(view: ViewDep) -> Response:
    """Its live part."""
    view.access.check_admin()
    return view.fragment("rollout_live.html", **await _rollout(view))


@router.post("/policy/rollout/start")
async def start_rollout(view: ViewDep) -> Response:
    """Begin: shadow, one process, cohorts, all."""
    view.access.check_admin()
    form = view.form
    plan = RolloutPlan(
        shadow_hold=_number(form, "shadow_hold", DAY_HOURS) * HOUR,
        canary_hold=_number(form, "canary_hold", DAY_HOURS) * HOUR,
        cohort_hold=_number(form, "cohort_hold", DAY_HOURS) * HOUR,
        tolerance=_number(form, "tolerance", TOLERANCE * 100) / 100,
    )
    values = _limits(form.get("limits", ""))
    if not values:
        raise Problem("invalid_request", "limits: write what to roll out, for example read_timeout=8")
    change = await view.service.dispatcher.policies.begin_rollout(
        values, plan, by=view.access.caller.actor, why=_why(form)
    )
    await view.audit("policy.rollout_start", "*", None, ",".join(values))
    return view.done("/policy/rollout", _said(change))


@router.post("/policy/rollout/advance")
async def advance_rollout(view: ViewDep) -> Response:
    """The next stage now."""
    view.access.check_admin()
    nodes = [info.node.name for info in await view.service.store.nodes()]
    why = _why(view.form)
    seen = view.form.get("step", "")
    if seen and not (seen.isdecimal() and len(seen) <= STEP_DIGITS_MAX):
        raise Problem("invalid_request", "step: leave it as the page wrote it")
    change = await view.service.dispatcher.policies.advance_rollout(
        nodes, by=view.access.caller.actor, why=why, step=int(seen) if seen else None
    )
    await view.audit("policy.rollout_advance", "*", None, why)
    return view.done("/policy/rollout", _said(change))


@router.post("/policy/rollout/abort")
async def abort_rollout(view: ViewDep) -> Response:
    """End it with the old values in force."""
    view.access.check_admin()
    why = _why(view.form)
    change = await view.service.dispatcher.policies.abort_rollout(by=view.access.caller.actor, why=why)
    await view.audit("policy.rollout_abort", "*", None, why)
    return view.done("/policy/rollout", _said(change))


async def _rollout(view: View) -> dict[str, Any]:
    dispatcher = view.service.dispatcher
    await dispatcher.policies.refresh()
    rollout = dispatcher.policies.book.rollout
    shown: dict[str, Any] = {"rollout": rollout, "verdict": None, "waits_for": None, "held_until": None}
    if rollout is not None and rollout.running:
        evidence = await _evidence(view, rollout)
        found = step(rollout, evidence, dispatcher.store_time())
        shown["verdict"] = evidence.verdict
        shown["waits_for"] = found.why if isinstance(found, Stay) else "the next look, within minutes"
        shown["held_until"] = rollout.plan.held_until(rollout.stage, rollout.stage_at)
    return shown


async def _evidence(view: View, rollout: Rollout) -> Evidence:
    return await view.kept.get(
        "evidence", rollout, REPORT_SECONDS, lambda: view.service.dispatcher.rollout.evidence(rollout)
    )


async def _shadow(view: View, number: int) -> ShadowReport:
    return await view.kept.get(
        "shadow", number, REPORT_SECONDS, lambda: view.service.dispatcher.policy_reports.shadow(number)
    )


def _limits(text: str) -> dict[str, LayerValue]:
    """`read_timeout=8 read_timeout.ceiling=12`, apart by blanks or lines."""
    found: dict[str, dict[str, Any]] = {}
    for one in text.split():
        place, _, raw = one.partition("=")
        name, _, bound = place.partition(".")
        if bound not in ("", "floor", "ceiling"):
            raise Problem("invalid_request", f"{one[:80]!r}: write {name}=, {name}.floor= or {name}.ceiling=")
        found.setdefault(name, {})[bound or "value"] = parse_field(f"{name}={raw}")[1]
    return {name: LayerValue(**given) for name, given in found.items()}


def _number(form: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(form.get(name, default))
    except ValueError:
        raise Problem("invalid_request", f"{name}: write a number, for example {default:g}") from None


def _why(form: Mapping[str, str]) -> str:
    why = form.get("why", "").strip()
    if not why:
        raise Problem("invalid_request", "why: write a reason, which the history keeps")
    return why[:REASON_MAX]


def _said(change: PolicyChange) -> str:
    return " ".join([f"Version {change.version}, in force everywhere within two seconds.", *change.said])
