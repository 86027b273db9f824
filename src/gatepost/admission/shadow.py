"""Would other limits have ended this attempt? A judgement over one finished attempt, and counts of such judgements by endpoint.

The attempt went by the limits in force; what it took in each phase says which of the tried ones it would have met. It sees what an
observation shows: a wait that never came to pass, as for a lower cap, is told apart from an end. Pure; `dispatch.policy_watch`
feeds it, `dispatch.policy_reports` reads the counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gatepost.admission.breaker import Breaker, BreakerRules
from gatepost.admission.window import WINDOW
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import Blame
from gatepost.delivery.policy import ClientPolicy
from gatepost.wire.phases import Phase

CAP: Final = "per_endpoint_concurrency"
BREAKER: Final = "breaker"
ENDS: Final[Mapping[str, tuple[Phase, ...]]] = {
    "pool_timeout": (Phase.POOL,),
    "dns_timeout": (Phase.DNS,),
    "connect_timeout": (Phase.DNS, Phase.CONNECT, Phase.TLS),
    "tls_timeout": (Phase.TLS,),
    "write_timeout": (Phase.WRITE,),
    "read_timeout": (Phase.WAIT, Phase.READ),
    "total_timeout": (Phase.DNS, Phase.CONNECT, Phase.TLS, Phase.WRITE, Phase.WAIT, Phase.READ),
}
"""Limit to the phases whose seconds it bounds together."""
HOST_CAP: Final = "max_per_host"
COMPLETE: Final = "require_complete_body"
JUDGED: Final = frozenset({*ENDS, CAP, HOST_CAP, COMPLETE})
"""Limits that a finished attempt can be judged by; of the others (how long connections are kept, sizes, redirects) it does not show
what they would have done, and silence would pass for harmlessness."""
LIMITS: Final = (*ENDS, CAP, HOST_CAP, COMPLETE, BREAKER)
"""What a shadow counts, by name. The two caps make wait and end nothing."""


_RULES: Final = BreakerRules()


def would_end(attempt: Attempt, in_force: ClientPolicy, tried: ClientPolicy) -> tuple[str, ...]:
    """Limits that would have ended the attempt and were not what ended it: only those that are tighter than the ones in force.

    The waits of admission belong to no attempt of a dispatcher; `in_force` and `tried` are complete, learned values included.
    """
    found = []
    for name, phases in ENDS.items():
        before, limit = _limit(in_force, name), _limit(tried, name)
        if limit is None or (before is not None and limit >= before):
            continue
        if sum(attempt.phases.get(phase, 0.0) for phase in phases) > limit:
            found.append(name)
    if tried.require_complete_body and attempt.delivered and attempt.body_fault is not None:
        found.append(COMPLETE)  # one in force would not have delivered it
    return tuple(found)


def _limit(policy: ClientPolicy, name: str) -> float | None:
    if name == "total_timeout":
        return policy.attempt_budget
    value: float | None = getattr(policy, name)
    return value


@dataclass(slots=True)
class ShadowCount:
    """What was judged at one endpoint under one shadow."""

    number: int
    """Of the shadow (`PolicyBook.shadow_number`)."""
    judged: int = 0
    delivered: int = 0
    lost: int = 0
    """Of those delivered: they would have been ended, so that the receiver may get them twice."""
    limits: dict[str, int] = field(default_factory=dict)
    """By limit: attempts that met it, delivered or not."""


class ShadowBreaker:
    """The breaker as it would be if attempts had ended by the tried limits. It counts openings and goes on from a closed one."""

    __slots__ = ("_breaker",)

    def __init__(self, passed: int = 0, now: int = 0) -> None:
        """`passed`: attempts before, which gave it no reason to be looked at."""
        self._breaker = Breaker()
        for _ in range(min(passed, WINDOW)):
            self._breaker.passed(False, now, False, WINDOW, 1, 0.5, _RULES)

    def saw(
        self,
        attempt: Attempt,
        ended: bool,
        tried: ClientPolicy,
        now: int,
        cap: int,
        in_flight: int,
        rules: BreakerRules,
    ) -> bool:
        """One attempt; `ended`: a tried limit would have ended it. True: the breaker would have opened by it."""
        if attempt.lagged or (attempt.blame is Blame.US and not ended and not attempt.delivered):
            return False
        seconds = attempt.phases.get(Phase.WAIT, 0.0) + attempt.phases.get(Phase.READ, 0.0)
        slow = seconds >= rules.slow_limit(tried.read_timeout)
        if ended:
            opened = self._breaker.failed(True, slow, now, False, cap, in_flight, 0.5, rules)
        elif attempt.delivered:
            opened = self._breaker.passed(slow, now, False, cap, in_flight, 0.5, rules)
        else:
            hard = attempt.status is None
            opened = self._breaker.failed(hard, slow, now, False, cap, in_flight, 0.5, rules)
        if opened:
            self._breaker = Breaker()
        return opened
