"""Reads what all owners keep of their endpoints and says what follows: who would lose by a shadow, how a rollout goes, what to review.

It reads the store's copy, which is minutes old for endpoints of other processes and current for our own; it changes nothing but
the notes of the weekly review. Asked by `dispatch.rollout`, the API and the command line. O(endpoints), in portions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gatepost.admission.compare import Case
from gatepost.admission.phase_times import Budgeted
from gatepost.admission.review import EndpointReview, Fit, review
from gatepost.admission.rollout import Rollout
from gatepost.admission.shadow import COMPLETE, ENDS
from gatepost.delivery.policy_layers import LEARNABLE
from gatepost.dispatch.catalogue import Catalogue, Listed
from gatepost.dispatch.endpoint_memory import EndpointMemory, Value, sections_of
from gatepost.dispatch.policy_view import PolicyView
from gatepost.dispatch.policy_watch import SECTION, PolicyWatch, Watched, watched_of
from gatepost.store.port import DeliveryStore

PORTION: Final = 1_000
"""Endpoints read at once."""
PROPOSED: Final = 3.0
"""Times its p99: the override that is proposed for an endpoint that a change would cut off."""
REVIEW: Final = "review"
"""Section of the memory: limit to [fit, since]."""
LOSSES_SHOWN: Final = 1_000
"""Endpoints in one report; the counts are of all."""

_PHASE_OF: Final[Mapping[str, Budgeted]] = {
    "pool_timeout": Budgeted.POOL,
    "dns_timeout": Budgeted.DNS,
    "tls_timeout": Budgeted.TLS,
    "connect_timeout": Budgeted.SETUP,
    "write_timeout": Budgeted.WRITE,
    "read_timeout": Budgeted.ANSWER,
}

_ENDING: Final = frozenset({*ENDS, COMPLETE})
"""Limits that end an attempt or fail it, so that a delivery is lost by them."""


@dataclass(frozen=True, slots=True)
class ShadowLoss:
    """One endpoint whose attempts met a tried limit."""

    endpoint_id: str
    tenant: str
    host: str
    judged: int
    delivered: int
    lost: int
    """Deliveries that would have become failures."""
    limits: Mapping[str, int]
    proposed: Mapping[str, float]
    """Overrides that would spare it; without those it has already."""


@dataclass(slots=True)
class ShadowReport:
    """What the shadow came to, over all endpoints."""

    number: int
    judged: int = 0
    delivered: int = 0
    lost: int = 0
    losing: int = 0
    """Endpoints that would lose deliveries."""
    unspared: int = 0
    """Of those, endpoints that have no override of their own for what they would meet."""
    hosts: dict[str, int] = field(default_factory=dict)
    """Deliveries that would be lost, by host."""
    endpoints: list[ShadowLoss] = field(default_factory=list)
    """Those that would lose most first."""


@dataclass(frozen=True, slots=True)
class Reviewed:
    """One endpoint's review."""

    endpoint_id: str
    tenant: str
    host: str
    review: EndpointReview


class PolicyReports:
    """`owns` says whether an endpoint is ours, so that what is in memory is newer than what is stored."""

    def __init__(
        self,
        store: DeliveryStore,
        catalogue: Catalogue,
        view: PolicyView,
        watch: PolicyWatch,
        memory: EndpointMemory,
        owns: Callable[[int], bool],
        now: Callable[[], int],
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._view = view
        self._watch = watch
        self._memory = memory
        self._owns = owns
        self._now = now

    async def shadow(self, number: int) -> ShadowReport:
        """What shadow `number` came to."""
        report = ShadowReport(number)
        tried = {name: value for name, value in self._view.book.shadow.items() if value.value is not None}
        async for listed, watched, _ in self._all():
            count = watched.shadow
            if count is None or count.number != number:
                continue
            report.judged += count.judged
            report.delivered += count.delivered
            if not count.lost:
                continue
            report.lost += count.lost
            report.losing += 1
            host = listed.settings.host
            report.hosts[host] = report.hosts.get(host, 0) + count.lost
            own = listed.endpoint.limits
            met = [name for name in count.limits if name in _ENDING and name in tried]
            proposed = {name: _proposal(watched, name) for name in met if name not in own}
            spared = {name: seconds for name, seconds in proposed.items() if seconds is not None}
            if any(name not in own for name in met):
                report.unspared += 1
            report.endpoints.append(
                ShadowLoss(
                    listed.endpoint.id,
                    listed.endpoint.tenant,
                    host,
                    count.judged,
                    count.delivered,
                    count.lost,
                    dict(count.limits),
                    spared,
                )
            )
        report.endpoints.sort(key=lambda loss: -loss.lost)
        del report.endpoints[LOSSES_SHOWN:]
        return report

    async def cases(self, rollout: Rollout) -> list[Case]:
        """Every endpoint's attempts in this stage and before it."""
        found: list[Case] = []
        async for _, watched, _ in self._all():
            if watched.tally is not None:
                found += watched.tally.cases(rollout.mark)
        return found

    async def review(self, tenant: str | None = None) -> list[Reviewed]:
        """Each endpoint's limits beside what it takes, those with something to look at first."""
        found = []
        async for listed, watched, notes in self._all(tenant):
            reviewed = self._review(listed, watched, notes)
            if reviewed.review.phases:
                found.append(reviewed)
        found.sort(key=lambda one: not one.review.worth_a_look)
        return found

    def note_review(self, number: int) -> bool:
        """Keep with our own endpoint how its budgets fit, so that a later review can say since when. False: nothing is known."""
        listed, value = self._catalogue.get(number), self._watch.value_of(number)
        if listed is None or value is None:
            return False
        reviewed = self._review(listed, watched_of(value), self._memory.get(number, REVIEW))
        notes: dict[str, Value] = {
            phase.limit: [phase.fit.value, phase.since]
            for phase in reviewed.review.phases
            if phase.fit is not Fit.FITS  # what fits is no news, and would be kept in memory for every endpoint
        }
        self._memory.put(number, REVIEW, notes or None)
        return True

    # -------------------------------------------------------------------------------------------------- helpers

    def _review(self, listed: Listed, watched: Watched, notes: Value | None) -> Reviewed:
        def since(name: str, fit: Fit) -> int | None:
            match notes.get(name) if isinstance(notes, dict) else None:
                case [str(said), int(at)] if said == fit:
                    return at
                case _:
                    return None

        made = review(watched.times, listed.policy, since, self._now(), watched.p99)
        return Reviewed(listed.endpoint.id, listed.endpoint.tenant, listed.settings.host, made)

    async def _all(self, tenant: str | None = None) -> AsyncIterator[tuple[Listed, Watched, Value | None]]:
        """Endpoints about which something is kept, with it, and the notes of the last review."""
        numbers = list(self._catalogue.numbers if tenant is None else self._catalogue.endpoints_of(tenant))
        for at in range(0, len(numbers), PORTION):
            portion = numbers[at : at + PORTION]
            others = [number for number in portion if not self._owns(number)]
            states = await self._store.load_states(others) if others else {}
            for number in portion:
                listed = self._catalogue.get(number)
                if listed is None:
                    continue
                if number in states:
                    sections = sections_of(states[number])
                    value, notes = sections.get(SECTION), sections.get(REVIEW)
                else:
                    value, notes = self._watch.value_of(number), self._memory.get(number, REVIEW)
                if value is not None:
                    yield listed, watched_of(value), notes
            await asyncio.sleep(0)


def _proposal(watched: Watched, name: str) -> float | None:
    """Three times what the endpoint takes in the phases that the limit bounds; None: too little is known."""
    if name == COMPLETE:
        return None  # a switch: nothing to propose but to leave it off
    if name == "total_timeout":
        parts = [_proposal(watched, part) for part in ("connect_timeout", "write_timeout", LEARNABLE)]
        known = [part for part in parts if part is not None]  # over kept connections there is no set-up
        return round(sum(known), 3) if parts[-1] is not None else None
    worst = watched.p99 if name == LEARNABLE else None
    if worst is None:
        worst = watched.times.quantile(_PHASE_OF[name], 0.99)
    return None if worst is None else round(PROPOSED * worst, 3)
