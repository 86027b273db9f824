"""Moves a rollout on while everything runs, on the process that owns part 0; and reviews each process' own endpoints once a week.

It gathers the evidence, asks `admission.rollout` and stores the step; a process that dies between is followed by the next owner,
who looks anew. A loop of the supervisor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final, assert_never

from gatepost.admission.compare import compare
from gatepost.admission.rollout import Abort, Evidence, Go, Rollout, Stage, Stay, step
from gatepost.dispatch.notices import Notices
from gatepost.dispatch.policies import Policies
from gatepost.dispatch.policy_reports import PolicyReports
from gatepost.dispatch.policy_watch import PolicyWatch
from gatepost.errors import Conflict, GatepostError
from gatepost.store.port import DeliveryStore

LOOK_EVERY: Final = 30.0
"""Seconds between looks at a rollout."""
ENDPOINTS_PER_SECOND: Final = 1_000
"""Endpoints read for a verdict, at most: with a hundred thousand it is looked at every hundred seconds."""
TELL_EVERY: Final = 5.0
"""Seconds between writes of what a shadow or a rollout counted here."""
REST_EVERY: Final = 300.0
REVIEW_EVERY: Final = 7 * 86_400.0
"""Seconds: consumers' deployments are days apart."""
REVIEW_AFTER: Final = 3_600.0
"""Seconds from a start to the first one: a process that is deployed every few days would never come to one else."""
REVIEWED_AT_ONCE: Final = 200
BY: Final = "rollout"
"""Who the history names for a step of its own."""

_log = logging.getLogger("gatepost.dispatch")


class RolloutLoop:
    """`owns` says whether this process moves rollouts; `ours` names the endpoints whose owner it is."""

    def __init__(
        self,
        store: DeliveryStore,
        policies: Policies,
        reports: PolicyReports,
        watch: PolicyWatch,
        notices: Notices,
        now: Callable[[], int],
        owns: Callable[[], bool],
        ours: Callable[[], Collection[int]],
    ) -> None:
        self._store = store
        self._policies = policies
        self._reports = reports
        self._watch = watch
        self._notices = notices
        self._now = now
        self._owns = owns
        self._ours = ours
        self.told = ""
        """What the last look said; empty where rollouts are not moved."""

    async def run(self) -> None:
        """Look, rest, review; until cancelled."""
        looked_at = rested_at = self._now()
        review_at = looked_at + round(REVIEW_AFTER * 1e6)
        while True:
            await asyncio.sleep(TELL_EVERY)
            now = self._now()
            self._watch.tell()
            if now - looked_at >= max(LOOK_EVERY, self._policies.endpoint_count / ENDPOINTS_PER_SECOND) * 1e6:
                looked_at = now
                if self._owns():
                    await self.look()
            if now - rested_at >= REST_EVERY * 1e6:
                rested_at = now
                self._watch.rest()
            if now >= review_at:
                review_at = now + round(REVIEW_EVERY * 1e6)
                await self.review()

    async def look(self) -> str:
        """One look at the rollout, and the step that follows; says what was found. Never raises for a store that fails."""
        rollout = self._policies.book.rollout
        if rollout is None or not rollout.running:
            self.told = ""
            return self.told
        try:
            evidence = await self.evidence(rollout)
            found = step(rollout, evidence, self._now())
            match found:
                case Stay():
                    self.told = found.why
                case Go():
                    self.told = f"{found.rollout.stage}: {found.rollout.told}"
                    await self._policies.move_rollout(
                        rollout, found.rollout, by=BY, why=found.rollout.told or "hold over"
                    )
                    _log.info("rollout %d goes to %s", rollout.number, found.rollout.stage)
                case Abort():
                    self.told = found.rollout.told
                    await self._policies.move_rollout(rollout, found.rollout, by=BY, why=found.rollout.told)
                    self._notices.trouble("rollout_aborted", f"rollout {rollout.number}: {found.rollout.told}")
                case _ as never:
                    assert_never(never)
        except Conflict:
            pass  # somebody moved it meanwhile
        except GatepostError as error:
            self._notices.trouble("rollout_stands_still", error)
        return self.told

    async def evidence(self, rollout: Rollout) -> Evidence:
        """What there is to judge it by. Raises `StoreError`."""
        processes = tuple(sorted(info.node.name for info in await self._store.nodes() if not info.node.draining))
        if rollout.stage is Stage.SHADOW:
            report = await self._reports.shadow(self._policies.book.shadow_number)
            return Evidence(None, report.judged, report.unspared, processes)
        cases = await self._reports.cases(rollout)
        return Evidence(compare(cases, rollout.plan.tolerance), 0, 0, processes)

    async def review(self) -> int:
        """Note how the budgets of our endpoints fit; returns of how many."""
        noted = 0
        for seen, number in enumerate(list(self._ours()), 1):
            noted += self._reports.note_review(number)
            if seen % REVIEWED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return noted
