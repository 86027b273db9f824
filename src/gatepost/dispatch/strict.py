"""Whether an attempt may take so long where several processes share a store: on ordered lanes it must not, elsewhere it should not.

An ordered lane that changes hands must not have an attempt of its last owner under way, so an attempt there has to fit into
the part lease. On other lanes the worst is that one more attempt than the cap runs after a process froze. Called by
`dispatch.dispatcher`; the deadline that makes it so is set by `dispatch.attempt`.
"""

from __future__ import annotations

from collections.abc import Iterable

from gatepost.dispatch.catalogue import Listed
from gatepost.dispatch.leases import LEASE_MARGIN, STRICT_BUDGET_MAX
from gatepost.errors import ConfigurationError
from gatepost.store.rows import PART_LEASE

ARITHMETIC = f"the part lease of {PART_LEASE:g} s less the margin of {LEASE_MARGIN:g} s is {STRICT_BUDGET_MAX:g} s"


def check_ordered(takers: Iterable[Listed]) -> None:
    """Refuse an event with an ordering key for an endpoint whose attempts may outlast a part lease.

    Raises `ConfigurationError` with the arithmetic.
    """
    for listed in takers:
        budget = listed.policy.attempt_budget
        if budget >= STRICT_BUDGET_MAX:
            raise ConfigurationError(
                f"ordering_key: an attempt at {listed.endpoint.id} may take {budget:g} s, and on an ordered lane it must end "
                f"before another process may take over: {ARITHMETIC}; lower its limits, for example read_timeout, by more than "
                f"{budget - STRICT_BUDGET_MAX:g} s, or leave ordering_key out"
            )


def doubt_of(budget: float) -> str | None:
    """What to warn of when attempts may take `budget` seconds; None when they end within a part lease."""
    if budget < STRICT_BUDGET_MAX:
        return None
    return (
        f"an attempt may take {budget:g} s, and {ARITHMETIC}: after a process froze, its last attempts may run beside those of "
        "its successor, above the endpoint's cap; and events with an ordering_key are refused"
    )
