"""Did a new policy make deliveries fail? Endpoints that have it against those that have not, each against its own past.

Processes own different endpoints, so that their failure rates differ anyhow, and they change from day to day for all. What is
compared is therefore the *change* of each endpoint's failed share since before, between those with the new policy and those
without (difference in differences), within classes of like volume. Pure arithmetic for `admission.rollout`; it decides nothing
about a rollout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

TOLERANCE: Final = 0.005
"""A rise of the failed share that is accepted: half a percentage point, which is below what a week of ordinary days differs by."""
CONFIDENT: Final = 1.959964
"""Standard errors of a two-sided 95 % interval of very many endpoints: for the verdict at the end of a hold. `student` widens it for
few, whose spread is known no better than their mean."""
SURE: Final = 3.290527
"""Of 99.9 %: for stopping before the end. That is asked every few seconds, and whoever asks so often meets rare accidents."""
ENDPOINTS_MIN: Final = 5
"""Endpoints that must be compared on each side: fewer say more about themselves than about the policy."""
STRATUM_MIN: Final = 2
"""Endpoints on each side of a class of volume; a class with fewer is left out."""


class Ending(NamedTuple):
    """Attempts, and those that failed by somebody else's fault than ours."""

    attempts: int = 0
    failed: int = 0


class Case(NamedTuple):
    """One endpoint, before and since. It has the new policy or not; one that had both is two cases."""

    treated: bool
    before: Ending
    since: Ending


class Finding(StrEnum):
    """`good`: a rise above the tolerance can be ruled out. `bad`: there is one. Anything else is `inconclusive`."""

    GOOD = "good"
    BAD = "bad"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Stratum:
    """One class of volume: endpoints with `least` to ten times as many attempts."""

    least: int
    treated: int
    """Endpoints."""
    control: int
    effect: float
    """Mean change of those treated, less that of the others."""
    error: float
    """Its standard error."""
    freedom: float
    """Degrees of freedom of that error (Welch and Satterthwaite)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison says. Shares, not percentages."""

    finding: Finding
    effect: float
    low: float
    high: float
    """The 95 % interval of `effect`."""
    sure_low: float
    """Lower end of the 99.9 % interval: above 0, there is harm whatever the end of the hold may say."""
    treated: int
    """Endpoints compared."""
    control: int
    attempts: int
    """With the new policy."""
    strata: tuple[Stratum, ...] = ()
    tolerance: float = TOLERANCE

    def __str__(self) -> str:
        if not self.strata:
            return (
                f"inconclusive: {self.treated} endpoints with the new policy and {self.control} without have attempts before and "
                f"since; {ENDPOINTS_MIN} of each are needed, and {STRATUM_MIN} of like volume"
            )
        return (
            f"{self.finding}: failed share {self.effect * 100:+.3f} points (95 % between {self.low * 100:+.3f} and "
            f"{self.high * 100:+.3f}, tolerated {self.tolerance * 100:+.3f}); n = {self.treated} endpoints with {self.attempts} "
            f"attempts against {self.control} without"
        )


def compare(cases: Iterable[Case], tolerance: float = TOLERANCE) -> Verdict:
    """The verdict over all endpoints that have attempts before and since. O(endpoints)."""
    classes: dict[int, tuple[list[Case], list[Case]]] = {}
    treated = control = attempts = 0
    for case in cases:
        if not case.before.attempts or not case.since.attempts:
            continue
        sides = classes.setdefault(_volume(case), ([], []))
        sides[not case.treated].append(case)
        if case.treated:
            treated += 1
            attempts += case.since.attempts
        else:
            control += 1
    strata = tuple(
        _stratum(least, *classes[least])
        for least in sorted(classes)
        if min(len(side) for side in classes[least]) >= STRATUM_MIN
    )
    compared = sum(stratum.treated for stratum in strata), sum(stratum.control for stratum in strata)
    if min(compared) < ENDPOINTS_MIN:
        return Verdict(Finding.INCONCLUSIVE, 0.0, -1.0, 1.0, -1.0, treated, control, attempts, tolerance=tolerance)
    # Weighed by those treated: the question is what the policy did to them.
    weights = [stratum.treated / compared[0] for stratum in strata]
    effect = sum(weight * stratum.effect for weight, stratum in zip(weights, strata, strict=True))
    error = math.sqrt(sum((weight * stratum.error) ** 2 for weight, stratum in zip(weights, strata, strict=True)))
    spread = sum(
        (weight * stratum.error) ** 4 / stratum.freedom for weight, stratum in zip(weights, strata, strict=True)
    )
    freedom = error**4 / spread
    low, high = effect - student(CONFIDENT, freedom) * error, effect + student(CONFIDENT, freedom) * error
    finding = (
        Finding.BAD if low > 0 and effect > tolerance else Finding.GOOD if high < tolerance else Finding.INCONCLUSIVE
    )
    return Verdict(
        finding,
        effect,
        low,
        high,
        effect - student(SURE, freedom) * error,
        *compared,
        attempts,
        strata=strata,
        tolerance=tolerance,
    )


def student(z: float, freedom: float) -> float:
    """The quantile of Student's distribution where the normal one has `z`: how much further one must go when the spread is estimated
    from few. The expansion in 1/freedom (Abramowitz and Stegun 26.7.5), true to 5 %; fewer than 3 degrees count as 3."""
    nu = max(3.0, freedom)
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    g4 = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160
    return z + g1 / nu + g2 / nu**2 + g3 / nu**3 + g4 / nu**4


def _volume(case: Case) -> int:
    return int(10 ** min(6, int(math.log10(case.before.attempts + case.since.attempts))))


def _stratum(least: int, treated: Sequence[Case], control: Sequence[Case]) -> Stratum:
    mean_treated, variance_treated = _change(treated)
    mean_control, variance_control = _change(control)
    return Stratum(
        least,
        len(treated),
        len(control),
        mean_treated - mean_control,
        math.sqrt(variance_treated + variance_control),
        (variance_treated + variance_control) ** 2
        / (variance_treated**2 / (len(treated) - 1) + variance_control**2 / (len(control) - 1)),
    )


def _change(cases: Sequence[Case]) -> tuple[float, float]:
    """Mean change of the failed share, and the variance of that mean.

    The variance is what the endpoints show among themselves, and never less than chance alone gives: five endpoints with one
    attempt each that all succeeded prove nothing.
    """
    changes = [_share(case.since) - _share(case.before) for case in cases]
    count = len(cases)
    mean = sum(changes) / count
    among = sum((change - mean) ** 2 for change in changes) / (count - 1) / count
    chance = sum(_chance(case.before) + _chance(case.since) for case in cases) / count**2
    return mean, max(among, chance)


def _share(ending: Ending) -> float:
    return ending.failed / ending.attempts


def _chance(ending: Ending) -> float:
    """Variance of a share by chance, with half a failure added so that none in few is not taken for none ever."""
    share = (ending.failed + 0.5) / (ending.attempts + 1)
    return share * (1 - share) / ending.attempts
