"""The policy as JSON: layers, versions, and each limit in force with who set it, when, why and what it beat."""

from __future__ import annotations

from typing import Any

from gatepost.admission.compare import Verdict
from gatepost.admission.policy_book import PolicyBook
from gatepost.admission.rollout import Rollout
from gatepost.delivery.policy_layers import GRADUAL, Effective, EffectivePolicy, LayerValue, Values
from gatepost.dispatch.learned import KnownLimits
from gatepost.dispatch.policies import Explained, PolicyChange
from gatepost.dispatch.policy_reports import Reviewed, ShadowReport
from gatepost.service.api.learned_view import learned_view
from gatepost.service.api.views import time_text
from gatepost.store.port import PolicyVersion


def effective_view(effective: EffectivePolicy, breaker: tuple[Effective, ...]) -> list[dict[str, Any]]:
    """Each limit in force, and each setting of the breaker."""
    return [
        {
            "limit": row.name,
            "value": row.value,
            "set_by": row.layer,
            "who": row.by or None,
            "at": time_text(row.at or None),
            "why": row.why or None,
            "beat": [{"set_by": one.layer, "value": one.value} for one in row.beat],
            "floor": row.floor,
            "ceiling": row.ceiling,
        }
        for row in (*effective.values, *breaker)
    ]


def explained_view(explained: Explained, known: KnownLimits | None) -> dict[str, Any]:
    """The limits of one endpoint, and what its owner knows of it."""
    return {
        "endpoint_id": explained.endpoint_id,
        "process": explained.process,
        "version": explained.version,
        "place": round(explained.place, 6),
        "limits": effective_view(explained.effective, explained.breaker),
        "learned": None if known is None else learned_view(known),
    }


def book_view(version: int, book: PolicyBook) -> dict[str, Any]:
    """The layers that people change."""
    return {
        "version": version,
        "tiers": {tier: values_view(values) for tier, values in book.tiers.items()},
        "fleet": values_view(book.fleet),
        "cohort": {"share": book.cohort_share, "limits": values_view(book.cohort)} if book.cohort else None,
        "canary": {"process": book.canary_process, "limits": values_view(book.canary)} if book.canary else None,
        "shadow": values_view(book.shadow),
        "rollout": None if book.rollout is None else rollout_view(book.rollout),
    }


def values_view(values: Values) -> list[dict[str, Any]]:
    """What a layer says, limit by limit."""
    return [_value_view(name, value) for name, value in values.items()]


def rollout_view(rollout: Rollout) -> dict[str, Any]:
    """A rollout."""
    plan = rollout.plan
    return {
        "number": rollout.number,
        "stage": rollout.stage.value,
        "step": rollout.step,
        "limits": {name: value.value for name, value in rollout.values.items()},
        "share": rollout.share,
        "canary": rollout.canary,
        "skipped": rollout.skipped or None,
        "started_at": time_text(rollout.started_at),
        "stage_at": time_text(rollout.stage_at),
        "held_until": time_text(plan.held_until(rollout.stage, rollout.stage_at)) if rollout.running else None,
        "who": rollout.by,
        "why": rollout.why,
        "told": rollout.told or None,
        "plan": {
            "shadow_hold": plan.shadow_hold,
            "canary_hold": plan.canary_hold,
            "cohort_hold": plan.cohort_hold,
            "shares": list(plan.shares),
            "night": None if plan.night is None else list(plan.night),
            "utc_offset": plan.utc_offset,
            "tolerance": plan.tolerance,
        },
    }


def version_view(version: PolicyVersion) -> dict[str, Any]:
    """One line of the history."""
    return {
        "version": version.version,
        "at": time_text(version.at),
        "who": version.actor,
        "action": version.action,
        "why": version.why,
    }


def shadow_view(report: ShadowReport) -> dict[str, Any]:
    """What a shadow came to."""
    return {
        "judged": report.judged,
        "delivered": report.delivered,
        "lost": report.lost,
        "endpoints_losing": report.losing,
        "endpoints_unspared": report.unspared,
        "hosts": [{"host": host, "lost": lost} for host, lost in sorted(report.hosts.items(), key=lambda one: -one[1])],
        "endpoints": [
            {
                "endpoint_id": loss.endpoint_id,
                "tenant": loss.tenant,
                "host": loss.host,
                "judged": loss.judged,
                "delivered": loss.delivered,
                "lost": loss.lost,
                "limits": dict(loss.limits),
                "proposed": dict(loss.proposed),
            }
            for loss in report.endpoints
        ],
    }


def verdict_view(verdict: Verdict) -> dict[str, Any]:
    """What the comparison of a stage says. Shares of attempts, 0 to 1."""
    return {
        "finding": verdict.finding.value,
        "effect": verdict.effect,
        "low": verdict.low,
        "high": verdict.high,
        "endpoints_with": verdict.treated,
        "endpoints_without": verdict.control,
        "attempts_with": verdict.attempts,
        "tolerance": verdict.tolerance,
        "strata": [
            {
                "attempts_from": stratum.least,
                "endpoints_with": stratum.treated,
                "endpoints_without": stratum.control,
                "effect": stratum.effect,
                "error": stratum.error,
            }
            for stratum in verdict.strata
        ],
        "text": str(verdict),
    }


def review_view(reviewed: Reviewed) -> dict[str, Any]:
    """How the budgets of one endpoint fit. Seconds."""
    return {
        "endpoint_id": reviewed.endpoint_id,
        "tenant": reviewed.tenant,
        "host": reviewed.host,
        "round_trip": reviewed.review.round_trip,
        "limits": [
            {
                "limit": phase.limit,
                "p50": phase.p50,
                "p99": phase.p99,
                "samples": phase.samples,
                "budget": phase.budget,
                "headroom": phase.headroom,
                "fit": phase.fit.value,
                "since": time_text(phase.since),
                "suggested": phase.suggested,
            }
            for phase in reviewed.review.phases
        ],
    }


def change_view(change: PolicyChange) -> dict[str, Any]:
    """A change that was made."""
    return {"version": change.version, "said": list(change.said)}


def _value_view(name: str, value: LayerValue) -> dict[str, Any]:
    return {
        "limit": name,
        "value": value.value,
        "floor": value.floor,
        "ceiling": value.ceiling,
        "who": value.by,
        "at": time_text(value.at),
        "why": value.why,
        "gradual": GRADUAL.get(name),
    }
