"""The policy as people change it: what fleet, cohort and canary say, what is tried in shadow, and the rollout under way.

One frozen document for the whole fleet with a version; every change makes the next one, which the store keeps with who, when and
why. It checks changes and says which layers an endpoint has in a process; it stores nothing, and composes nothing itself
(`delivery.policy_layers` does). Used by `dispatch.policies`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from gatepost.admission.breaker_layers import check_said, of_breaker
from gatepost.admission.rollout import Rollout, RolloutPlan, Stage, abort, names_process
from gatepost.admission.shadow import JUDGED
from gatepost.delivery.policy_layers import (
    NO_VALUES,
    TIERS,
    LayerName,
    LayerValue,
    PolicyLayer,
    Values,
    tier_values,
)
from gatepost.errors import ConfigurationError, Conflict

DOCUMENT_MAX: Final = 65_536
"""Characters of a stored document: all limits in all layers take a tenth of it."""

_STORED_FIELDS: Final = ("fleet", "cohort", "canary", "shadow")


@dataclass(frozen=True, slots=True)
class PolicyBook:
    """One version of it."""

    tiers: Mapping[str, Values] = field(default_factory=dict)
    """What people have set over the profiles of tiers, by tier."""
    fleet: Values = field(default_factory=dict)
    cohort: Values = field(default_factory=dict)
    cohort_share: float = 0.0
    """Endpoints with a place (`rollout.cohort_of`) below it have the cohort's values."""
    canary: Values = field(default_factory=dict)
    canary_process: str | None = None
    """Name of the process that has the canary's values; what is drawn at each start does not count."""
    canary_exact: bool = False
    """Only that run of it: others go by the same name."""
    shadow: Values = field(default_factory=dict)
    """Values that are only tried: each delivery says whether they would have ended it."""
    shadow_number: int = 0
    """Counts shadows: names what was recorded under one."""
    rollout: Rollout | None = None

    # ----------------------------------------------------------------------------------------------- what holds

    def layers(self, tier: str | None, place: float, process: str) -> Sequence[PolicyLayer]:
        """Layers of an endpoint of this tier and place in this process, from the lowest to the highest.

        Raises `ConfigurationError` for a tier that this version does not know.
        """
        found = []
        if tier is not None:
            if tier not in TIERS:
                raise ConfigurationError(f"tier={tier!r}: write one of {', '.join(TIERS)}, or leave it out")
            found.append(PolicyLayer(LayerName.TIER, tier_values(tier, self.tiers.get(tier, NO_VALUES)), tier))
        if self.fleet:
            found.append(PolicyLayer(LayerName.FLEET, self.fleet))
        if self.in_cohort(place):
            found.append(PolicyLayer(LayerName.COHORT, self.cohort, f"{self.cohort_share:.0%}"))
        if self.is_canary(process):
            found.append(PolicyLayer(LayerName.CANARY, self.canary, self.canary_process or ""))
        return found

    @property
    def in_layers(self) -> tuple[object, ...]:
        """What is in force by it: two books with the same are the same to every attempt."""
        return (
            dict(self.tiers),
            dict(self.fleet),
            dict(self.cohort),
            self.cohort_share,
            dict(self.canary),
            self.canary_process,
            self.canary_exact,
        )

    def in_cohort(self, place: float) -> bool:
        """The cohort's values are in force for an endpoint at this place."""
        return bool(self.cohort) and place < self.cohort_share

    def is_canary(self, process: str) -> bool:
        """The canary's values are in force in this process."""
        return bool(self.canary) and names_process(self.canary_process, self.canary_exact, process)

    def treats(self, place: float, process: str) -> bool:
        """An attempt of this endpoint in this process has the values of the rollout."""
        rollout = self.rollout
        if rollout is None:
            return False
        match rollout.stage:
            case Stage.CANARY:
                return self.is_canary(process)
            case Stage.COHORT:
                return self.in_cohort(place)
            case Stage.ALL:
                return True
            case _:
                return False

    # -------------------------------------------------------------------------------------------------- changes

    def set(self, layer: LayerName, values: Values, tier: str | None = None) -> PolicyBook:
        """Values of one layer (of `tier`, where that is the layer) added or replaced.

        Raises `ConfigurationError`, and `Conflict` while a rollout owns the layer.
        """
        for name, value in values.items():
            check_said(layer, name, value)
        self._check_free(layer, values)
        return self._with(layer, {**self._of(layer, tier), **values}, tier)

    def clear(self, layer: LayerName, names: Iterable[str] | None, tier: str | None = None) -> PolicyBook:
        """Values of one layer taken away; None: all of them. Raises `ConfigurationError` for one that is not there."""
        held = dict(self._of(layer, tier))
        wanted = list(held) if names is None else list(names)
        for name in wanted:
            if name not in held:
                raise ConfigurationError(
                    f"the {layer} layer says nothing of {name}: it has {', '.join(held) or 'no values'}"
                )
            del held[name]
        self._check_free(layer, wanted)
        return self._with(layer, held, tier)

    def with_shadow(self, values: Values) -> PolicyBook:
        """Try these in shadow, instead of what was tried; none: nothing. Raises `ConfigurationError`, `Conflict` in a rollout."""
        for name, value in values.items():
            check_said(LayerName.FLEET, name, value)
            if value.value is None:
                raise ConfigurationError(f"{name}: write a value, a shadow has no bounds")
            if name not in JUDGED and not of_breaker(name):
                raise ConfigurationError(
                    f'{name}: what it would do shows in no attempt that went without it, so that a shadow could only say "nothing"; try it '
                    f"in one process (gatepost rollout start {name}=...). A shadow judges {', '.join(sorted(JUDGED))}"
                )
        if self.rollout is not None and self.rollout.stage is Stage.SHADOW:
            raise Conflict(f"rollout {self.rollout.number} tries its values in shadow now: abort it first")
        return replace(self, shadow=dict(values), shadow_number=self.shadow_number + 1)

    def begin(self, values: Values, plan: RolloutPlan, by: str, why: str, now: int, canary: str | None) -> PolicyBook:
        """Start a rollout, in shadow. Raises `ConfigurationError`, and `Conflict` while another one runs."""
        if not values:
            raise ConfigurationError("write what to roll out, for example read_timeout=8")
        for name, value in values.items():
            check_said(LayerName.COHORT, name, value)
            if value.value is None:
                raise ConfigurationError(f"{name}: write a value to roll out")
        if self.rollout is not None and self.rollout.running:
            raise Conflict(
                f"rollout {self.rollout.number} is in its {self.rollout.stage} stage: end it, or wait for its end"
            )
        if self.cohort or self.canary:
            raise Conflict("cohort or canary have values of their own: clear them first, a rollout needs both layers")
        number = 1 if self.rollout is None else self.rollout.number + 1
        rollout = Rollout(number, dict(values), plan, Stage.SHADOW, 0, now, now, by, why, canary=canary)
        judged = {name: value for name, value in values.items() if name in JUDGED or of_breaker(name)}
        return replace(self, shadow=judged, shadow_number=self.shadow_number + 1).at(rollout)

    def at(self, rollout: Rollout) -> PolicyBook:
        """The layers that a stage of this rollout has."""
        before, values = self.rollout, rollout.values
        book = replace(self, rollout=rollout, cohort=NO_VALUES, cohort_share=0.0, canary=NO_VALUES, canary_process=None)
        book = replace(book, canary_exact=False)
        if before is not None and before.stage is Stage.SHADOW and rollout.stage is not Stage.SHADOW:
            book = replace(book, shadow=NO_VALUES)
        match rollout.stage:
            case Stage.CANARY:
                return replace(book, canary=values, canary_process=rollout.canary, canary_exact=rollout.canary_exact)
            case Stage.COHORT:
                return replace(book, cohort=values, cohort_share=rollout.share)
            case Stage.ALL:
                kept = {name: value for name, value in self.fleet.items() if name in values}
                return replace(book, fleet={**self.fleet, **values}, rollout=replace(rollout, fleet_before=kept))
            case _:
                return book

    def aborted(self, why: str, now: int) -> PolicyBook:
        """The rollout ended with the old values in force; also one that has reached all. Raises `Conflict` without one."""
        if self.rollout is None:
            raise Conflict("there is no rollout to abort")
        ended = abort(self.rollout, why, now)
        if self.rollout.stage is not Stage.ALL:
            return self.at(ended)
        fleet = {name: value for name, value in self.fleet.items() if value != self.rollout.values.get(name)}
        # Cohort and canary have been people's again since it reached all: what they say stays.
        return replace(self, rollout=ended, fleet={**self.rollout.fleet_before, **fleet})

    def back_to(self, older: PolicyBook, now: int, why: str) -> PolicyBook:
        """The layers of an older version. A rollout that runs now is aborted; one that ran then does not come back."""
        rollout = self.rollout
        if rollout is not None and rollout.running:
            rollout = abort(rollout, why, now)
        cohort, canary = older, older
        if older.rollout is not None and older.rollout.running:  # their layers were the rollout's
            cohort = canary = PolicyBook()
        return replace(
            self,
            tiers=older.tiers,
            fleet=older.fleet,
            cohort=cohort.cohort,
            cohort_share=cohort.cohort_share,
            canary=canary.canary,
            canary_process=canary.canary_process,
            canary_exact=canary.canary_exact,
            shadow=NO_VALUES,
            rollout=rollout,
        )

    # -------------------------------------------------------------------------------------------------- storing

    def to_text(self) -> str:
        """JSON."""
        document: dict[str, Any] = {
            name: {limit: _said(value) for limit, value in getattr(self, name).items()} for name in _STORED_FIELDS
        }
        document["tiers"] = {
            tier: {limit: _said(value) for limit, value in values.items()} for tier, values in self.tiers.items()
        }
        document["cohort_share"] = self.cohort_share
        document["canary_process"] = self.canary_process
        document["canary_exact"] = self.canary_exact
        document["shadow_number"] = self.shadow_number
        if self.rollout is not None:
            rollout = {one.name: getattr(self.rollout, one.name) for one in fields(Rollout)}
            rollout["plan"] = asdict(self.rollout.plan)
            for name in ("values", "fleet_before"):
                rollout[name] = {limit: _said(value) for limit, value in rollout[name].items()}
            document["rollout"] = rollout
        text = json.dumps(document, separators=(",", ":"))
        if len(text) > DOCUMENT_MAX:
            raise ConfigurationError(
                f"the policy has {len(text)} characters, at most {DOCUMENT_MAX} are kept: shorten the reasons"
            )
        return text

    @classmethod
    def from_text(cls, text: str) -> PolicyBook:
        """What `to_text` wrote. Unknown fields are left out, so that the next version's document can be read."""
        document = json.loads(text)
        given: dict[str, Any] = {name: _values(document.get(name, {})) for name in _STORED_FIELDS}
        given["tiers"] = {tier: _values(said) for tier, said in document.get("tiers", {}).items()}
        for name in ("cohort_share", "canary_process", "canary_exact", "shadow_number"):
            if name in document:
                given[name] = document[name]
        if document.get("rollout") is not None:
            rollout = _known(document["rollout"], Rollout)
            plan = _known(rollout["plan"], RolloutPlan)
            plan["shares"] = tuple(plan["shares"])
            plan["night"] = None if plan.get("night") is None else tuple(plan["night"])
            rollout["plan"] = RolloutPlan(**plan)
            rollout["stage"] = Stage(rollout["stage"])
            rollout["values"] = _values(rollout["values"])
            rollout["fleet_before"] = _values(rollout.get("fleet_before", {}))
            given["rollout"] = Rollout(**rollout)
        return cls(**given)

    # -------------------------------------------------------------------------------------------------- helpers

    def _of(self, layer: LayerName, tier: str | None) -> Values:
        match layer:
            case LayerName.TIER:
                if tier is None or tier not in TIERS:
                    raise ConfigurationError(f"tier={tier!r}: write one of {', '.join(TIERS)}")
                return self.tiers.get(tier, NO_VALUES)
            case LayerName.FLEET | LayerName.COHORT | LayerName.CANARY:
                if tier is not None:
                    raise ConfigurationError(f"tier={tier!r} with layer={layer}: write layer=tier, or no tier")
                values: Values = getattr(self, layer.value)
                return values
            case _:
                raise ConfigurationError(f"layer={layer}: write tier, fleet, cohort or canary")

    def _with(self, layer: LayerName, values: Values, tier: str | None) -> PolicyBook:
        match layer:
            case LayerName.TIER:
                assert tier is not None, "it was asked for before"
                others = {name: said for name, said in self.tiers.items() if name != tier}
                return replace(self, tiers={**others, tier: values} if values else others)
            case LayerName.FLEET:
                return replace(self, fleet=values)
            case LayerName.COHORT:
                return replace(self, cohort=values)
            case LayerName.CANARY:
                return replace(self, canary=values)
            case _:
                raise ConfigurationError(f"layer={layer}: write tier, fleet, cohort or canary")

    def _check_free(self, layer: LayerName, names: Iterable[str]) -> None:
        rollout = self.rollout
        if rollout is None or not rollout.running:
            return
        if layer in (LayerName.COHORT, LayerName.CANARY):
            raise Conflict(f"rollout {rollout.number} owns the {layer} layer until it ends: abort it, or wait")
        taken = [name for name in names if name in rollout.values]
        if taken:
            raise Conflict(
                f"rollout {rollout.number} is changing {', '.join(taken)}: what it compares with must stay as it is until it ends"
            )


def _said(value: LayerValue) -> dict[str, Any]:
    return {one.name: said for one in fields(LayerValue) if (said := getattr(value, one.name)) not in (None, "")}


def _values(document: Mapping[str, Any]) -> Values:
    return {name: LayerValue(**_known(value, LayerValue)) for name, value in document.items()}


def _known(document: Mapping[str, Any], record: type[Any]) -> dict[str, Any]:
    names = {one.name for one in fields(record)}
    return {name: value for name, value in document.items() if name in names}
