"""How a change of the policy goes out: shadow, one process, cohorts of endpoints, all; each step held until it has proved harmless.

A state machine over values: `step` says what to do next from the state, the verdict and the time, and `dispatch.rollout` does it.
A stage ends when its hold is over, a whole night has passed in it and the verdict is good; a verdict that is not good holds it
for as long as it takes, and a bad one ends the rollout with the old values in force. It measures nothing (`admission.compare`
does) and stores nothing (`admission.policy_book`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, assert_never

from gatepost.admission.breaker_layers import of_breaker
from gatepost.admission.compare import TOLERANCE, Finding, Verdict
from gatepost.admission.shadow import JUDGED
from gatepost.delivery.policy_layers import Values
from gatepost.errors import ConfigurationError, Conflict

HOLD: Final = 86_400.0
"""Seconds of a stage: a day, so that every hour of it is compared."""
SHARES: Final = (0.01, 0.1, 0.5)
"""Cohorts: 1 % shows what a single process may have been spared, and each further one is at most ten times the last."""
SHARES_MAX: Final = 10
NIGHT: Final = (0.0, 6.0)
"""Hours of the day within which batches run: receivers and senders behave differently there."""

_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US
_COHORTS: Final = 1 << 32


class Stage(StrEnum):
    """Where a rollout is. `shadow`: only recorded. `all` and `aborted` are ends."""

    SHADOW = "shadow"
    CANARY = "canary"
    COHORT = "cohort"
    ALL = "all"
    ABORTED = "aborted"


ENDS: Final = frozenset({Stage.ALL, Stage.ABORTED})


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """How a rollout goes. Durations in seconds."""

    shadow_hold: float = HOLD
    canary_hold: float = HOLD
    cohort_hold: float = HOLD
    shares: tuple[float, ...] = SHARES
    night: tuple[float, float] | None = NIGHT
    """Hours of the day, by UTC plus `utc_offset`, from the first to the second, over midnight where that is the smaller one; None: no
    stage needs a night."""
    utc_offset: float = 0.0
    """Hours. It stands still when clocks change: a zone that has summer time writes a night an hour longer."""
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        for name in ("shadow_hold", "canary_hold", "cohort_hold"):
            if not 0 <= getattr(self, name) <= 365 * 86_400.0:
                raise ConfigurationError(f"{name}={getattr(self, name)}: write seconds, from 0 to a year")
        rising = all(low < high for low, high in zip(self.shares, self.shares[1:], strict=False))
        if not 1 <= len(self.shares) <= SHARES_MAX or not rising or not all(0 < share < 1 for share in self.shares):
            raise ConfigurationError(
                f"shares={list(self.shares)}: write 1 to {SHARES_MAX} rising shares of the endpoints, for example 0.01,0.1,0.5"
            )
        if self.night is not None and (
            not all(0 <= hour <= 24 for hour in self.night) or self.night[0] == self.night[1]
        ):
            raise ConfigurationError(f"night={list(self.night)}: write two hours of the day, for example 0,6 or 22,5")
        if not -14 <= self.utc_offset <= 14:
            raise ConfigurationError(f"utc_offset={self.utc_offset}: write hours from -14 to 14")
        if not 0 < self.tolerance <= 1:
            raise ConfigurationError(f"tolerance={self.tolerance}: write a share above 0, for example 0.005")

    def hold_of(self, stage: Stage) -> float:
        """Seconds that a stage lasts at least."""
        match stage:
            case Stage.SHADOW:
                return self.shadow_hold
            case Stage.CANARY:
                return self.canary_hold
            case Stage.COHORT:
                return self.cohort_hold
            case Stage.ALL | Stage.ABORTED:
                return 0.0
            case _ as never:
                assert_never(never)

    def held_until(self, stage: Stage, since: int) -> int:
        """When a stage that began at `since` may end at the earliest: hold over, and one whole night inside it."""
        until = since + round(self.hold_of(stage) * 1e6)
        if self.night is None:
            return until
        shift = round(self.utc_offset * _HOUR_US)
        first, last = (round(hour * _HOUR_US) for hour in self.night)
        midnight = (since + shift) // _DAY_US * _DAY_US
        begins = midnight + first
        if begins < since + shift:
            begins += _DAY_US
        return max(until, begins + ((last - first) % _DAY_US or _DAY_US) - shift)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout; frozen, each step makes the next."""

    number: int
    """Counts rollouts: names it in what endpoints remember."""
    values: Values
    """What is rolled out."""
    plan: RolloutPlan
    stage: Stage
    step: int
    """Rises with each stage."""
    started_at: int
    """UTC microseconds."""
    stage_at: int
    by: str
    why: str
    share: float = 0.0
    """Of the endpoints that have the new values, while in cohorts."""
    canary: str | None = None
    """The process that has them, while it is the canary."""
    canary_exact: bool = False
    """Other processes were alive under the same name when it was chosen: it is this one run of it, and no restart of it is."""
    skipped: str = ""
    """Why there was no canary."""
    told: str = ""
    """What the last step said."""
    fleet_before: Values = field(default_factory=dict)
    """What the fleet layer said of these limits: an abort after the last stage brings it back."""

    @property
    def running(self) -> bool:
        """It is between its start and its end."""
        return self.stage not in ENDS

    @property
    def mark(self) -> str:
        """Names the stage, in what endpoints remember of it."""
        return f"{self.number}.{self.step}"

    def is_canary(self, process: str) -> bool:
        """The process is the canary: the one that was named, or where that name was nobody else's, its successor."""
        return names_process(self.canary, self.canary_exact, process)

    @property
    def judged(self) -> bool:
        """A shadow can say something of its values; of others only the canary can."""
        return any(name in JUDGED or of_breaker(name) for name in self.values)

    def same(self, mark: str) -> bool:
        """It is a stage of this rollout that is named so."""
        return mark.partition(".")[0] == str(self.number)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a step looks at."""

    verdict: Verdict | None
    """None in shadow."""
    shadowed: int
    """Deliveries that were judged in shadow."""
    losses: int
    """Endpoints without an override that would lose successful deliveries."""
    processes: tuple[str, ...]
    """Names of those alive."""


@dataclass(frozen=True, slots=True)
class Stay:
    """Nothing changes. `until`: the hold ends then, None: it is over and something else is missing."""

    why: str
    until: int | None


@dataclass(frozen=True, slots=True)
class Go:
    """The next stage."""

    rollout: Rollout


@dataclass(frozen=True, slots=True)
class Abort:
    """End it; the old values are in force."""

    rollout: Rollout


Step = Stay | Go | Abort


def cohort_of(number: int) -> float:
    """The endpoint's place among all of them, 0 to 1: the same for ever, in every process and version.

    Those with a place below the share have the new values. A digest, since endpoint numbers also say which process owns them.
    """
    return int.from_bytes(hashlib.blake2b(number.to_bytes(8, "big"), digest_size=4).digest(), "big") / _COHORTS


def stem(process: str) -> str:
    """A process' name without what is drawn anew at each start: the canary is the same process after a restart."""
    return process.rpartition("-")[0] or process


def names_process(name: str | None, exact: bool, process: str) -> bool:
    """`process` is the one that was called `name` (None: nobody was), or unless `exact` one that was started anew under its name."""
    return name is not None and (process == name if exact else stem(process) == stem(name))


def choose_canary(wanted: str | None, processes: tuple[str, ...]) -> tuple[str, bool]:
    """A canary among those alive, and whether only that run of it is one, because others go by the same name: a canary is one process.
    One that is not alive is waited for."""
    name = wanted or min(processes)
    alike = sorted(one for one in processes if stem(one) == stem(name))
    if len(alike) < 2:
        return name, False
    return (name if name in alike else alike[0]), True


def step(rollout: Rollout, evidence: Evidence, now: int) -> Step:
    """What to do with a running rollout. Raises `ValueError` for one that has ended."""
    if not rollout.running:
        raise ValueError(f"rollout {rollout.number} has ended ({rollout.stage})")
    verdict = evidence.verdict
    if verdict is not None and (verdict.sure_low > 0 and verdict.effect > rollout.plan.tolerance):
        return Abort(abort(rollout, f"it makes deliveries fail: {verdict}", now))
    if rollout.stage is Stage.CANARY and not any(rollout.is_canary(one) for one in evidence.processes):
        mend = (
            "others have its name, so that none can take its place: abort"
            if rollout.canary_exact
            else "start it again, or abort"
        )
        return Stay(f"the canary {rollout.canary} is not alive: {mend}", None)
    until = rollout.plan.held_until(rollout.stage, rollout.stage_at)
    if now < until:
        return Stay(_so_far(rollout, evidence), until)
    match rollout.stage:
        case Stage.SHADOW:
            if not evidence.shadowed and rollout.judged:
                return Stay("no delivery was judged in shadow yet", None)
            if evidence.losses:
                return Stay(
                    f"{evidence.losses} endpoints would lose successful deliveries: `gatepost policy shadow report` lists them, "
                    "with --apply each gets an override of its own",
                    None,
                )
        case Stage.CANARY | Stage.COHORT:
            assert verdict is not None, "every stage behind the shadow is compared"
            if verdict.finding is Finding.BAD:
                return Abort(abort(rollout, f"it makes deliveries fail: {verdict}", now))
            if verdict.finding is not Finding.GOOD:
                return Stay(str(verdict), None)
        case Stage.ALL | Stage.ABORTED:
            raise AssertionError("ended")
        case _ as never:
            assert_never(never)
    return Go(following(rollout, evidence.processes, now, "" if verdict is None else str(verdict)))


def following(rollout: Rollout, processes: tuple[str, ...], now: int, told: str) -> Rollout:
    """The next stage, whatever the evidence. Raises `Conflict` behind the end."""
    plan = rollout.plan
    fresh = replace(rollout, stage_at=now, step=rollout.step + 1, told=told)
    match rollout.stage:
        case Stage.SHADOW:
            if len(set(processes)) < 2:
                skipped = "there is one process only: it has no peers to be compared with"
                return replace(fresh, stage=Stage.COHORT, share=plan.shares[0], skipped=skipped)
            canary, exact = choose_canary(rollout.canary, processes)
            return replace(fresh, stage=Stage.CANARY, canary=canary, canary_exact=exact)
        case Stage.CANARY:
            return replace(fresh, stage=Stage.COHORT, share=plan.shares[0])
        case Stage.COHORT:
            wider = [share for share in plan.shares if share > rollout.share]
            if wider:
                return replace(fresh, share=wider[0])
            return replace(fresh, stage=Stage.ALL, share=1.0)
        case Stage.ALL | Stage.ABORTED:
            raise Conflict(f"rollout {rollout.number} has ended ({rollout.stage}): start another one")
        case _ as never:
            assert_never(never)


def abort(rollout: Rollout, why: str, now: int) -> Rollout:
    """End it with the old values in force, also after its last stage. Raises `Conflict` when it was aborted before."""
    if rollout.stage is Stage.ABORTED:
        raise Conflict(f"rollout {rollout.number} was aborted before: {rollout.told}")
    return replace(rollout, stage=Stage.ABORTED, stage_at=now, step=rollout.step + 1, told=why)


def _so_far(rollout: Rollout, evidence: Evidence) -> str:
    if evidence.verdict is not None:
        return str(evidence.verdict)
    if not rollout.judged:
        return f"a shadow cannot judge {', '.join(rollout.values)}: the next stage will"
    return f"{evidence.shadowed} deliveries judged, {evidence.losses} endpoints would lose successful ones"
