"""`/console/endpoints/{id}`: how one endpoint does, why it is treated as it is, and what one can do about it.

It shows what `dispatch.looks` and the newest attempts say and decides nothing; `endpoint_actions` changes things.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from fastapi import APIRouter
from starlette.responses import Response

from gatepost.admission.breaker import TripCause
from gatepost.admission.outcome_hours import WORDS
from gatepost.admission.phase_times import SAMPLES_MIN, Budgeted, PhaseTimes
from gatepost.delivery.policy import ClientPolicy
from gatepost.dispatch.learned import KnownLimits
from gatepost.dispatch.policies import Explained
from gatepost.errors import NotFound
from gatepost.service.api.views import MASK, SECRET_TAIL_CHARS, phases_of
from gatepost.service.console.charts import breaker_strip, outcome_mix, phase_bar
from gatepost.service.console.view import View, ViewDep
from gatepost.store.rows import AttemptRow, DeadFilter

ATTEMPTS_SHOWN: Final = 50
DEPTH_SHOWN_MAX: Final = 10_000
"""Waiting rows that are counted: a few milliseconds."""
CAUSES: Final[Mapping[str, str]] = {
    TripCause.FAILURES.value: "failures",
    TripCause.SLOW.value: "too many slow answers",
    TripCause.TIMEOUTS.value: "timeouts",
    TripCause.PROBE.value: "a probe failed",
    TripCause.RAMP.value: "failures while it came back",
}
"""Why a breaker opened, in words."""

_LIMIT_OF: Final[Mapping[Budgeted, str]] = {
    Budgeted.POOL: "pool_timeout",
    Budgeted.DNS: "dns_timeout",
    Budgeted.CONNECT: "connect_timeout",
    Budgeted.TLS: "tls_timeout",
    Budgeted.SETUP: "connect_timeout",
    Budgeted.WRITE: "write_timeout",
    Budgeted.ANSWER: "read_timeout",
}
_PARTS_OF: Final[Mapping[Budgeted, tuple[str, ...]]] = {
    Budgeted.POOL: ("pool",),
    Budgeted.DNS: ("dns",),
    Budgeted.CONNECT: ("connect",),
    Budgeted.TLS: ("tls",),
    Budgeted.SETUP: ("dns", "connect", "tls"),
    Budgeted.WRITE: ("write",),
    Budgeted.ANSWER: ("wait", "read"),
}

router = APIRouter()


class PhaseLine(NamedTuple):
    """How long a phase takes. Seconds; None: too few samples."""

    name: str
    samples: int
    p50: float | None
    p95: float | None
    p99: float | None
    limit_name: str
    limit: float | None
    share: float | None
    """Of the limit that p99 takes."""


@router.get("/endpoints/{endpoint_id}")
async def endpoint_page(view: ViewDep, endpoint_id: str) -> Response:
    """The page."""
    endpoint = await view.endpoint(endpoint_id)
    service, number = view.service, endpoint.number
    look = (await service.dispatcher.looks.of([number]))[number]
    attempts = await service.store.newest_attempts(number, ATTEMPTS_SHOWN)
    backlog = (await service.store.backlogs([number], DEPTH_SHOWN_MAX)).get(number)
    dead = await service.store.dead_letters(DeadFilter(endpoint=number), None, 1)
    now = service.dispatcher.store_time()
    hours = look.hours.hours(now)
    explained = _explained(view, endpoint_id)
    policy = None if explained is None else explained.effective.policy
    read_timeout = None if look.limits is None else look.limits.statistics.read_timeout
    phases = phase_lines(look.times, attempts, policy, read_timeout)
    return view.page(
        "endpoint.html",
        title="Endpoint",
        section="endpoints",
        endpoint=endpoint,
        look=look,
        limits=None if look.limits is None else look.limits.statistics,
        backlog=backlog,
        depth_max=DEPTH_SHOWN_MAX,
        newest_dead=dead.items[0] if dead.items else None,
        phases=phases,
        answer=_answer(look.limits, phases),
        few=look.times.count(Budgeted.ANSWER) < SAMPLES_MIN,
        mix=outcome_mix(hours, now) if hours else None,
        hours=hours[::-1],
        words=WORDS,
        strip=breaker_strip(look.turns, now),
        turns=look.turns[::-1],
        causes=CAUSES,
        explained=explained,
        attempts=_with_bars(attempts),
        secrets=[(f"{MASK}{one.secret.reveal()[-SECRET_TAIL_CHARS:]}", one) for one in endpoint.secrets],
    )


def phase_lines(
    times: PhaseTimes, attempts: Sequence[AttemptRow], policy: ClientPolicy | None, read_timeout: float | None
) -> list[PhaseLine]:
    """Each phase's times beside its limit: from the counts of the last thousand attempts or, where those are few, from the
    attempts themselves."""
    lines = []
    shown = [phases_of(row.phases_us) for row in attempts]
    for kind in Budgeted:
        limit_name = _LIMIT_OF[kind]
        limit = read_timeout if kind is Budgeted.ANSWER and read_timeout else None
        if limit is None and policy is not None:
            value = getattr(policy, limit_name, None)
            limit = value if isinstance(value, int | float) else policy.connect_timeout
        samples = times.count(kind)
        if samples >= SAMPLES_MIN:
            p50, p95, p99 = (times.quantile(kind, share) for share in (0.5, 0.95, 0.99))
        else:
            parts = _PARTS_OF[kind]
            seen = sorted(
                sum(one.get(part, 0.0) for part in parts) for one in shown if any(part in one for part in parts)
            )
            samples = len(seen)
            p50, p95, p99 = (_quantile(seen, share) for share in (0.5, 0.95, 0.99))
        if samples:
            share = None if p99 is None or not limit else p99 / limit
            lines.append(PhaseLine(kind.name.lower(), samples, p50, p95, p99, limit_name, limit, share))
    return lines


def _answer(known: KnownLimits | None, phases: Sequence[PhaseLine]) -> PhaseLine | None:
    """How long answers take: exactly, from the last 300, once as many are known as tell; else from the table's line."""
    counted = next((line for line in phases if line.name == Budgeted.ANSWER.name.lower()), None)
    if known is None or known.statistics.learned.p50 is None or counted is None:
        return counted
    learned = known.statistics.learned
    return counted._replace(p50=learned.p50, p99=learned.p99)


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def _explained(view: View, endpoint_id: str) -> Explained | None:
    """None: this process has not heard of the endpoint yet, which was made by another one a moment ago."""
    try:
        return view.service.dispatcher.policies.explain(endpoint_id)
    except NotFound:
        return None


def _with_bars(attempts: Sequence[AttemptRow]) -> list[tuple[AttemptRow, Any]]:
    longest = max((row.elapsed_us for row in attempts), default=0) / 1e6
    return [(row, phase_bar(phases_of(row.phases_us), longest)) for row in attempts]
