"""Which budgets of an endpoint no longer fit what it takes: p50 and p99 of each phase beside its limit, and a suggestion.

Receivers change when their owners deploy; a limit that was right last quarter is how such a change becomes an incident. It
suggests and never applies. Pure; `dispatch.policy_reports` asks it for every endpoint once a week and on demand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gatepost.admission.phase_times import Budgeted, PhaseTimes
from gatepost.delivery.policy import ClientPolicy

TIGHT: Final = 2.0
"""A budget below so many times the p99 cuts off what is only a bad day (the rule of thumb is two to three)."""
LOOSE: Final = 20.0
"""One above so many times the p99 waits for what will not come."""
LOOSE_LEAST: Final[float] = 0.05
"""Seconds of p99 below which a loose budget is not worth a word."""
SUGGESTED: Final = 3.0
"""Times the p99: what a suggestion is."""
FLOOR: Final = 3.0
"""Seconds: no suggestion is below, since a lost SYN alone takes 1 s and a second one 3 s."""

_LIMIT: Final = {
    Budgeted.POOL: "pool_timeout",
    Budgeted.DNS: "dns_timeout",
    Budgeted.TLS: "tls_timeout",
    Budgeted.SETUP: "connect_timeout",
    Budgeted.WRITE: "write_timeout",
    Budgeted.ANSWER: "read_timeout",
}


class Fit(StrEnum):
    """How a budget fits."""

    FITS = "fits"
    TIGHT = "tight"
    LOOSE = "loose"


@dataclass(frozen=True, slots=True)
class PhaseReview:
    """One limit and what it bounds."""

    limit: str
    p50: float
    p99: float
    """Seconds."""
    samples: int
    budget: float
    headroom: float
    """Budget over p99."""
    fit: Fit
    since: int
    """UTC microseconds: since when it has been so, as far as reviews tell."""
    suggested: float | None
    """Seconds; None: leave it."""


@dataclass(frozen=True, slots=True)
class EndpointReview:
    """All limits of one endpoint that have been observed enough."""

    round_trip: float | None
    """Seconds, implied by the median time of a TCP connect; None: too few connections were opened."""
    phases: tuple[PhaseReview, ...]

    @property
    def worth_a_look(self) -> bool:
        """Some budget does not fit."""
        return any(phase.fit is not Fit.FITS for phase in self.phases)


def review(
    times: PhaseTimes, policy: ClientPolicy, since: Callable[[str, Fit], int | None], now: int, p99: float | None = None
) -> EndpointReview:
    """Judge each limit. `policy`: in force, learned values included. `since`: when a review first said this of a limit, None: no
    earlier one did. `p99`: the exact one of responses, in seconds, where it is known."""
    found = []
    for kind, name in _LIMIT.items():
        budget = getattr(policy, name)
        median, worst = times.quantile(kind, 0.5), times.quantile(kind, 0.99)
        if kind is Budgeted.ANSWER and p99 is not None:
            worst = p99
        if budget is None or median is None or worst is None:
            continue
        fit = _fit(budget, worst)
        suggested = None if fit is Fit.FITS else round(max(SUGGESTED * worst, min(FLOOR, budget)), 3)
        if fit is Fit.LOOSE and suggested is not None and suggested >= budget:
            fit, suggested = Fit.FITS, None
        known = since(name, fit)
        found.append(
            PhaseReview(
                name,
                median,
                worst,
                times.count(kind),
                budget,
                budget / worst,
                fit,
                now if known is None else known,
                suggested,
            )
        )
    return EndpointReview(times.quantile(Budgeted.CONNECT, 0.5), tuple(found))


def _fit(budget: float, p99: float) -> Fit:
    if budget < TIGHT * p99:
        return Fit.TIGHT
    if budget > LOOSE * p99 and p99 >= LOOSE_LEAST:
        return Fit.LOOSE
    return Fit.FITS
