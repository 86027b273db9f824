"""What an attempt was allowed, for people: each time limit with its value and who set it.

Worked out once for all attempts that have the same limits, since it is told with every one of them. It decides nothing; asked by
`dispatch.attempt` for observers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.policy_layers import LEARNABLE, LayerName
from gatepost.dispatch.catalogue import Listed
from gatepost.dispatch.limits import Flying
from gatepost.dispatch.policy_view import Shared

SHOWN: Final = (
    "pool_timeout",
    "connect_timeout",
    "dns_timeout",
    "tls_timeout",
    "write_timeout",
    "read_timeout",
    "total_timeout",
)
KEPT_MAX: Final = 4_096
"""Sets of limits remembered, as many as `dispatch.limits` keeps policies; emptied when full."""
PROBE: Final = "probe"
DERIVED: Final = "derived"


class LimitsTold:
    """Limits by policy."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, bool], tuple[Shared, ClientPolicy, Mapping[str, tuple[float, str]]]] = {}

    def of(self, listed: Listed, flying: Flying) -> Mapping[str, tuple[float, str]]:
        """Seconds and who set them, by limit; the same object for the same limits."""
        shared, policy = listed.shared, flying.policy
        key = (id(shared), id(policy), flying.tracked.flight.probe)
        known = self._known.get(key)
        if known is not None and known[0] is shared and known[1] is policy:
            return known[2]
        if len(self._known) >= KEPT_MAX:
            self._known.clear()
        told = MappingProxyType({name: _told(name, listed, flying) for name in SHOWN})
        self._known[key] = (shared, policy, told)
        return told


def _told(name: str, listed: Listed, flying: Flying) -> tuple[float, str]:
    policy = flying.policy
    value = getattr(policy, name)
    if value is None:
        return (policy.attempt_budget if name == "total_timeout" else policy.connect_timeout), DERIVED
    if name == LEARNABLE and value != listed.policy.read_timeout:
        return value, PROBE if flying.tracked.flight.probe else LayerName.LEARNED.value
    if name in listed.endpoint.limits:
        return value, LayerName.ENDPOINT.value
    effective = listed.shared.effective.of(name)
    return value, f"{effective.layer} ({effective.by})" if effective.by else effective.layer
