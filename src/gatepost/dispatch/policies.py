"""`dispatcher.policies`: change the limits of a whole fleet while it runs, see who set which, and take a change back.

Every change is checked, stored as the next version with who, when and why, and in force here when the call returns; other
processes follow within two seconds. Attempts under way end under the limits they began with. It decides no rollout
(`admission.rollout` does) and counts no attempts.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gatepost.admission.adapt import AdaptMode
from gatepost.admission.breaker_layers import check_said, of_breaker
from gatepost.admission.endpoint_limits import EndpointStatistics
from gatepost.admission.policy_book import PolicyBook
from gatepost.admission.rollout import Rollout, RolloutPlan, Stage, following, stem
from gatepost.delivery.budget import strict_fault, window_fault
from gatepost.delivery.ids import ENDPOINT, decode_id
from gatepost.delivery.policy_layers import (
    LEARNABLE,
    Effective,
    EffectivePolicy,
    LayerName,
    LayerValue,
    LearnedLimit,
    Values,
    consequence_of,
    for_endpoint,
    number_of,
)
from gatepost.delivery.records import Endpoint
from gatepost.dispatch.catalogue import Catalogue, Listed
from gatepost.dispatch.endpoints import Endpoints
from gatepost.dispatch.leases import STRICT_BUDGET_MAX
from gatepost.dispatch.notices import Notices
from gatepost.dispatch.policy_view import NOBODY, PolicyView, Shared, own_values
from gatepost.dispatch.strict import ARITHMETIC
from gatepost.errors import ConfigurationError, Conflict, NotFound
from gatepost.store.port import PolicyVersion, Store

CHANGE_TRIES: Final = 5
"""A change that met another writer is repeated on the newer version."""
CHECKED_AT_ONCE: Final = 500
"""Endpoints checked against a new policy before others may run."""
FAULTS_SHOWN: Final = 10
HISTORY_PAGE: Final = 100

_log = logging.getLogger("gatepost.dispatch")


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """A change that is stored and in force."""

    version: int
    said: tuple[str, ...]
    """What it does that may not be expected, a sentence each."""


@dataclass(frozen=True, slots=True)
class Explained:
    """The limits of one endpoint in this process."""

    endpoint_id: str
    process: str
    version: int
    effective: EffectivePolicy
    breaker: tuple[Effective, ...]
    """Settings of its breaker."""
    learned: EndpointStatistics | None
    """None: nothing is known here; another process may own the endpoint."""
    place: float
    """Among all endpoints, 0 to 1: it is in cohorts above it."""


class Policies:
    """`now` is UTC microseconds. `in_force` is told when limits changed that the client and the scheduler must know of."""

    def __init__(
        self,
        store: Store,
        catalogue: Catalogue,
        view: PolicyView,
        endpoints: Endpoints,
        statistics: Callable[[int], EndpointStatistics | None],
        mode: AdaptMode,
        notices: Notices,
        now: Callable[[], int],
        in_force: Callable[[bool], None],
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._view = view
        self._endpoints = endpoints
        self._statistics = statistics
        self._learning = mode is AdaptMode.ON
        self._notices = notices
        self._now = now
        self._in_force = in_force
        self._reading = asyncio.Lock()
        self.version = 0
        """Stored version in force here; 0: nobody has changed the policy yet."""

    # ------------------------------------------------------------------------------------------------- looking

    @property
    def book(self) -> PolicyBook:
        """What is in force here."""
        return self._view.book

    @property
    def endpoint_count(self) -> int:
        """Endpoints known."""
        return self._catalogue.endpoint_count

    @property
    def process(self) -> str:
        """This process' name."""
        return self._view.process

    def of_process(self) -> EffectivePolicy:
        """What this process has for an endpoint of no tier, outside of any cohort."""
        return self._view.of_process

    def breaker_of_process(self) -> tuple[Effective, ...]:
        """Settings of breakers in this process, for an endpoint of no tier, outside of any cohort."""
        return self._view.shared(None, NOBODY).breaker_rows

    def explain(self, endpoint_id: str) -> Explained:
        """The limits of an endpoint, who set each, when, why, and what it beat. Raises `NotFound`."""
        listed = self._listed(endpoint_id)
        known = self._statistics(listed.number)
        effective = for_endpoint(
            listed.shared.effective, listed.endpoint.limits, _learned(known, listed), listed.endpoint.updated_at
        )
        return Explained(
            endpoint_id, self._view.process, self.version, effective, listed.shared.breaker_rows, known, listed.place
        )

    async def history(self, before: int | None = None, limit: int = HISTORY_PAGE) -> Sequence[PolicyVersion]:
        """Versions, newest first."""
        return await self._store.policies(before, limit)

    # ------------------------------------------------------------------------------------------------- changes

    async def set(
        self,
        layer: LayerName,
        values: Mapping[str, LayerValue],
        *,
        by: str,
        why: str,
        tier: str | None = None,
        share: float | None = None,
        process: str | None = None,
        force: bool = False,
    ) -> PolicyChange:
        """Set limits for a tier, the fleet, a cohort (`share` of the endpoints) or one process (`process`, its name).

        `force` stores what makes ordered events impossible or windows too short. Raises `ConfigurationError` saying what to
        write instead, `Conflict` while a rollout owns the layer.
        """
        if not values:
            raise ConfigurationError("write what to set, for example read_timeout=8")
        signed = self._signed(values, by, why)
        alive = [info.node.name for info in await self._store.nodes()] if layer is LayerName.CANARY else []

        def changed(book: PolicyBook) -> PolicyBook:
            made = book.set(layer, signed, tier)
            if layer is LayerName.COHORT:
                wanted = share if share is not None else book.cohort_share
                if not 0 < wanted < 1:
                    raise ConfigurationError(f"share={wanted}: write which share of the endpoints, for example 0.05")
                return replace(made, cohort_share=wanted)
            if layer is LayerName.CANARY:
                name = process or book.canary_process
                if not name:
                    raise ConfigurationError("process: write the canary's name, as `gatepost status` shows it")
                if process is None:
                    return made
                alike = sorted(one for one in alive if stem(one) == stem(name))
                if len(alike) > 1 and name not in alike:
                    raise ConfigurationError(
                        f"process={name}: several go by that name, write one of {', '.join(alike)}"
                    )
                return replace(made, canary_process=name, canary_exact=len(alike) > 1)
            return made

        for name, given in signed.items():
            check_said(layer, name, given)
        below = self._view.of_process if tier is None else self._view.shared(tier, NOBODY).effective
        said = [text for name, value in signed.items() for text in _consequence_of(name, value, below)]
        action = f"set {layer} {tier or ''}".rstrip()
        version = await self._change(f"{action} {_written(signed)}", by, why, changed, force=force)
        return PolicyChange(version, tuple(said))

    async def clear(
        self,
        layer: LayerName,
        names: Sequence[str] | None,
        *,
        by: str,
        why: str,
        tier: str | None = None,
        force: bool = False,
    ) -> PolicyChange:
        """Take limits of one layer away; None: all of them. Raises as `set`."""
        what = "all" if names is None else " ".join(names)
        version = await self._change(
            f"clear {layer} {f'{tier} ' if tier else ''}{what}",
            by,
            why,
            lambda book: book.clear(layer, names, tier),
            force=force,
        )
        return PolicyChange(version, ())

    async def roll_back(self, to: int | None, *, by: str, why: str) -> PolicyChange:
        """The layers of an earlier version (None: the newest one with other layers), as a new version. A rollout is aborted.

        Raises `NotFound` when that version is not kept, `Conflict` when there is nothing to take back.
        """
        wanted = await self._before_newest() if to is None else to
        older = await self._store.policy(wanted) if wanted > 0 else None
        if older is None and wanted:
            raise NotFound(f"version {wanted} of the policy is not kept")
        book = PolicyBook() if older is None else PolicyBook.from_text(older.document)
        now = self._now()
        version = await self._change(
            f"roll back to {wanted}", by, why, lambda current: current.back_to(book, now, why), force=True
        )
        return PolicyChange(version, ())

    async def roll_back_endpoint(self, endpoint_id: str, *, by: str, why: str) -> Mapping[str, float]:
        """Give one endpoint the values that the last rollout changed, as they were before, whatever becomes of the rollout.

        They become its own overrides, which are returned; one that it had before stays. Raises `NotFound`, and `Conflict` when
        no rollout has changed anything, or nothing that one endpoint can have for itself.
        """
        rollout = self.book.rollout
        if rollout is None or rollout.stage is Stage.ABORTED:
            raise Conflict(
                "no rollout has changed anything: an endpoint's own limits are changed with gatepost endpoint update"
            )
        listed = self._listed(endpoint_id)
        fleet = {name: value for name, value in self.book.fleet.items() if name not in rollout.values}
        before = replace(self.book, fleet={**fleet, **self._fleet_before(rollout)})
        policy = self._view.proposed(listed.endpoint, {}, before)
        own = dict(listed.endpoint.limits)
        pinned = own_values(policy, rollout.values, own)
        if not pinned and not any(name in own for name in rollout.values):
            raise Conflict(
                f"no endpoint has a value of its own of {', '.join(rollout.values)}: take it back for all with gatepost rollout abort"
            )
        await self.override({endpoint_id: pinned}, by=by, why=f"rollout {rollout.number} taken back: {why}")
        return pinned

    async def override(self, limits: Mapping[str, Mapping[str, float]], *, by: str, why: str) -> int:
        """Give endpoints (by id) overrides beside those they have, noted as one change of the policy; returns how many got some.

        An endpoint that is gone by now is left out.
        """
        _check_reason(why, by)  # before the first of them is written
        given = {endpoint_id: own for endpoint_id, own in limits.items() if own}
        written: list[str] = []
        try:
            for endpoint_id, own in given.items():
                try:
                    listed = self._listed(endpoint_id)
                    await self._endpoints.update(endpoint_id, limits={**listed.endpoint.limits, **own})
                except NotFound:
                    continue
                written.append(f"{endpoint_id} {' '.join(f'{name}={value:g}' for name, value in own.items())}")
        finally:  # those that were written are in force, whatever became of the next one
            if written:
                several = f"override {len(written)}: {', '.join(written)}"
                action = several if len(written) > 1 else f"override {written[0]}"
                await self._change(action, by, why, lambda book: book, force=True)
        return len(written)

    async def try_in_shadow(self, values: Mapping[str, LayerValue], *, by: str, why: str) -> PolicyChange:
        """Record of each delivery whether these limits would have ended it, instead of what was tried; none: record nothing."""
        signed = self._signed(values, by, why)
        action = f"shadow {_written(signed)}" if signed else "shadow nothing"
        return PolicyChange(await self._change(action, by, why, lambda book: book.with_shadow(signed)), ())

    async def begin_rollout(
        self,
        values: Mapping[str, LayerValue],
        plan: RolloutPlan,
        *,
        by: str,
        why: str,
        canary: str | None = None,
        force: bool = False,
    ) -> PolicyChange:
        """Start a rollout of these values, in shadow. What they would come to for the whole fleet is checked now."""
        signed = self._signed(values, by, why)
        newest = await self._store.policy()
        book = PolicyBook() if newest is None else PolicyBook.from_text(newest.document)
        now = self._now()
        begun = book.begin(signed, plan, by, why, now, canary)  # says first what is wrong with the values themselves
        if not force:
            await self._check(replace(begun, fleet={**begun.fleet, **signed}))
        version = await self._change(
            f"rollout start {_written(signed)}",
            by,
            why,
            lambda current: current.begin(signed, plan, by, why, now, canary),
        )
        return PolicyChange(version, ())

    async def advance_rollout(
        self, processes: Sequence[str], *, by: str, why: str, step: int | None = None
    ) -> PolicyChange:
        """The next stage now, whatever hold and verdict say: an operator's word. Raises `Conflict` without a running rollout, and
        when it is no longer at the `step` that the operator saw: two who say "go on" at once mean one step."""
        now = self._now()

        def advanced(book: PolicyBook) -> PolicyBook:
            if book.rollout is None:
                raise Conflict("there is no rollout to advance")
            if step is not None and book.rollout.step != step:
                raise Conflict(f"the rollout went to its stage {book.rollout.stage} meanwhile: look at it again")
            return book.at(following(book.rollout, tuple(processes), now, f"advanced by {by}: {why}"))

        return PolicyChange(await self._change("rollout advance", by, why, advanced), ())

    async def abort_rollout(self, *, by: str, why: str) -> PolicyChange:
        """End a rollout with the old values in force everywhere; also one that has reached all. Raises `Conflict`."""
        now = self._now()
        version = await self._change("rollout abort", by, why, lambda book: book.aborted(why, now), force=True)
        return PolicyChange(version, ())

    async def move_rollout(self, seen: Rollout, moved: Rollout, *, by: str, why: str) -> None:
        """A step of the rollout itself; nothing happens when it is no longer where it was seen. Raises `StoreError`."""

        def stepped(book: PolicyBook) -> PolicyBook:
            if book.rollout is None or book.rollout.mark != seen.mark:
                raise Conflict("the rollout is somewhere else by now")
            return book.at(moved)

        action = f"rollout {moved.stage}" + (f" {moved.share:g}" if moved.stage is Stage.COHORT else "")
        await self._change(action, by, why, stepped, force=True)

    # ----------------------------------------------------------------------------------------------- following

    async def refresh(self) -> None:
        """Put the newest version in force here, if it is not. One that cannot be in this process leaves the last one in force."""
        async with self._reading:
            newest = await self._store.policy()
            if newest is None or newest.version == self.version:
                return
            before = self._view.client_policy, self._caps()
            try:
                self._view.use(PolicyBook.from_text(newest.document))
            except (ConfigurationError, ValueError, KeyError, TypeError) as error:
                _log.error("version %d of the policy cannot be in force here: %s", newest.version, error)
                self._notices.trouble("policy_refused", f"version {newest.version}: {error}")
                return
            self.version = newest.version
            for doubt in self.doubts():
                _log.warning("version %d of the policy: %s", newest.version, doubt)
            if before[0] is not self._view.client_policy or before[1] != self._caps():
                self._in_force(before[1] != self._caps())

    def doubts(self) -> list[str]:
        """What will run and may not have been meant: budgets of endpoints without settings of their own, a sentence each."""
        return list(self._shared_faults(self._view, self.book).values())

    # ------------------------------------------------------------------------------------------------- helpers

    def _caps(self) -> list[object]:
        """What the scheduler goes by: caps, and breakers, whose holds end when they are switched off."""
        view = self._view
        shared = [view.shared(tier, place) for tier, place in view.kinds()]
        return [view.book.cohort_share, *((one.cap, one.breaker) for one in shared)]

    def _listed(self, endpoint_id: str) -> Listed:
        try:
            listed = self._catalogue.get(decode_id(ENDPOINT, endpoint_id))
        except ValueError:
            listed = None
        if listed is None:
            raise NotFound(f"there is no endpoint {endpoint_id[:40]}")
        return listed

    def _signed(self, values: Mapping[str, LayerValue], by: str, why: str) -> Values:
        now = self._now()
        return {name: replace(value, by=by, at=now, why=why) for name, value in values.items()}

    async def _before_newest(self) -> int:
        """The version whose layers the newest ones replaced; shadows and overrides of endpoints change no layer."""
        newest = await self._store.policy()
        if newest is None:
            raise Conflict("nobody has changed the policy yet: there is nothing to take back")
        now, before = PolicyBook.from_text(newest.document).in_layers, newest.version
        while page := await self._store.policies(before, HISTORY_PAGE):
            for version in page:
                if PolicyBook.from_text(version.document).in_layers != now:
                    return version.version
            before = page[-1].version
        if now == PolicyBook().in_layers:
            raise Conflict("the layers were never others than now: there is nothing to take back")
        return 0

    def _fleet_before(self, rollout: Rollout) -> Values:
        if rollout.stage is Stage.ALL:
            return rollout.fleet_before
        return {name: value for name, value in self.book.fleet.items() if name in rollout.values}

    async def _change(
        self, action: str, by: str, why: str, change: Callable[[PolicyBook], PolicyBook], *, force: bool = False
    ) -> int:
        _check_reason(why, by)
        for _ in range(CHANGE_TRIES):
            newest = await self._store.policy()
            book = change(PolicyBook() if newest is None else PolicyBook.from_text(newest.document))
            if not force:
                await self._check(book)
            version = 1 if newest is None else newest.version + 1
            try:
                await self._store.put_policy(
                    PolicyVersion(version, self._now(), by, action[:500], why[:500], book.to_text())
                )
            except Conflict:
                continue
            await self.refresh()
            return version
        raise Conflict(f"the policy was changed by others {CHANGE_TRIES} times meanwhile: try again")

    async def _check(self, book: PolicyBook) -> None:
        """Refuse a book under which something no longer fits that fits now. Raises `ConfigurationError` with the arithmetic."""
        tried = self._view.trial(book)
        before = self._shared_faults(self._view, self.book)
        for key, fault in self._shared_faults(tried, book).items():
            if key not in before:
                raise ConfigurationError(f"{fault}; write another value, or force it")
        faults = []
        for seen, listed in enumerate(list(self._catalogue.all), 1):
            endpoint = listed.endpoint
            if endpoint.limits or endpoint.schedule is not None or endpoint.window is not None:
                unfit = self._endpoint_fault(tried.of(endpoint), endpoint)
                if unfit is not None and self._endpoint_fault(listed.shared, endpoint) is None:
                    faults.append(f"{endpoint.id}: {unfit}")
            if seen % CHECKED_AT_ONCE == 0:
                await asyncio.sleep(0)
        if faults:
            more = f" (and {len(faults) - FAULTS_SHOWN} more)" if len(faults) > FAULTS_SHOWN else ""
            raise ConfigurationError("; ".join(faults[:FAULTS_SHOWN]) + more + "; write another value, or force it")

    def _shared_faults(self, view: PolicyView, book: PolicyBook) -> dict[tuple[str, str], str]:
        """By what does not fit, and for whom."""
        found = {}
        for tier, place in view.kinds():
            shared = view.shared(tier, place)
            who = "an endpoint of no tier" if tier is None else f"an endpoint of tier {tier}"
            most = shared.adapt.ceiling if self._learning else None
            if self._store.capabilities.shared:
                strict = strict_fault(shared.policy, most, STRICT_BUDGET_MAX, ARITHMETIC)
                if strict is not None:
                    found[f"{tier} {place}", "strict"] = f"{who}: {strict}"
            unfit = window_fault(shared.policy, most, None)
            if unfit is not None:
                found[f"{tier} {place}", "window"] = f"{who}: {unfit}"
        return found

    def _endpoint_fault(self, shared: Shared, endpoint: Endpoint) -> str | None:
        try:
            policy = shared.policy.with_values(endpoint.limits)
        except ConfigurationError as error:
            return str(error)
        most = None if LEARNABLE in endpoint.limits or not self._learning else shared.adapt.ceiling
        return window_fault(policy, most, endpoint)


def _learned(known: EndpointStatistics | None, listed: Listed) -> LearnedLimit | None:
    if known is None:
        return None
    learned = known.learned
    in_force = known.read_timeout if learned.in_force and known.read_timeout != listed.policy.read_timeout else None
    return LearnedLimit(in_force, learned.learned_at, learned.text)


def _consequence_of(name: str, said: LayerValue, below: EffectivePolicy) -> list[str]:
    return [] if of_breaker(name) else consequence_of(name, number_of(said.value), below)


def _check_reason(why: str, by: str) -> None:
    if not why.strip() or "\x00" in why + by:
        raise ConfigurationError("why: say why, in words; whoever reads it in a year was not there")


def _written(values: Values) -> str:
    words = []
    for name, value in values.items():
        if value.value is not None:
            words.append(f"{name}={json.dumps(value.value)}")
        words += [
            f"{name}.{bound}={getattr(value, bound):g}" for bound in ("floor", "ceiling") if getattr(value, bound)
        ]
    return " ".join(words)
