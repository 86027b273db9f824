"""The limits in force in this process now: one composed policy for all endpoints that are set alike.

It composes once per version, tier and cohort, so that an endpoint costs one comparison while nothing changes. It reads no store
(`dispatch.policies` gives it each new version) and learns nothing (`dispatch.limits` does). Asked by the catalogue's entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gatepost.admission.adapt import TIERS, AdaptRules
from gatepost.admission.breaker import BreakerRules
from gatepost.admission.breaker_layers import breaker_under, of_breaker
from gatepost.admission.policy_book import PolicyBook
from gatepost.admission.rollout import cohort_of
from gatepost.delivery.policy import POOL_FIELDS, ClientPolicy
from gatepost.delivery.policy_layers import (
    NO_VALUES,
    Effective,
    EffectivePolicy,
    Values,
    compose,
    for_endpoint,
)
from gatepost.delivery.records import Endpoint

NOBODY: Final = 1.0
"""A place that no cohort reaches: of the process as such."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What endpoints of one tier and cohort have in this process before their own overrides."""

    effective: EffectivePolicy = field(repr=False)
    policy: ClientPolicy
    """For calls: the client's own pool limits, since a call cannot have others."""
    cap: int
    """Attempts in flight at one endpoint."""
    adapt: AdaptRules
    """What may be learned."""
    breaker: BreakerRules
    breaker_rows: tuple[Effective, ...] = field(repr=False)
    """Settings of the breaker, with who said each."""


class PolicyView:
    """`process` is this process' name. `adapt`: what its configuration lets be learned about endpoints of no tier; `breaker`: its
    breakers."""

    def __init__(
        self,
        configured: ClientPolicy,
        process: str = "",
        adapt: AdaptRules | None = None,
        breaker: BreakerRules | None = None,
    ) -> None:
        self.configured: Final = configured
        self.process: Final = process
        self._adapt = adapt or AdaptRules()
        self._breaker = breaker or BreakerRules()
        self.version = 0
        """Rises when something here changes; not the stored version, which other processes' layers raise too."""
        self.book = PolicyBook()
        self._shared: dict[tuple[str | None, bool], Shared] = {}
        self._client_policy = configured

    @property
    def of_process(self) -> EffectivePolicy:
        """What the process has for an endpoint of no tier, outside of any cohort."""
        return self.shared(None, NOBODY).effective

    @property
    def client_policy(self) -> ClientPolicy:
        """What the client must have: the configuration with the pool limits in force."""
        return self._client_policy

    def use(self, book: PolicyBook) -> None:
        """Another version is in force from now on. Raises `ConfigurationError`, and changes nothing, for one that cannot be."""
        shared: dict[tuple[str | None, bool], Shared] = {}
        client = _client_policy(self.configured, self._composed(book, None, NOBODY))
        for tier in (None, *TIERS):
            for place in (0.0, NOBODY):
                shared[tier, book.in_cohort(place)] = self._share(book, tier, place, client)
        self.book, self._shared, self._client_policy = book, shared, client
        self.version += 1

    def shared(self, tier: str | None, place: float) -> Shared:
        """What an endpoint of this tier and place has."""
        key = (tier, self.book.in_cohort(place))
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = self._share(self.book, tier, place, self._client_policy)
        return found

    def of(self, endpoint: Endpoint) -> Shared:
        """What an endpoint has before its own overrides."""
        return self.shared(endpoint.tier, cohort_of(endpoint.number))

    def proposed(self, endpoint: Endpoint, values: Values, book: PolicyBook | None = None) -> ClientPolicy:
        """What the endpoint's attempts would have if these were the fleet's values; its own overrides still beat them.

        Raises `ConfigurationError` when they cannot be together.
        """
        own = self.book if book is None else book
        tried = replace(own, fleet={**own.fleet, **values}, cohort=NO_VALUES, canary=NO_VALUES)
        return for_endpoint(self._composed(tried, endpoint.tier, NOBODY), endpoint.limits).policy

    def trial(self, book: PolicyBook) -> PolicyView:
        """A view of another book, for checks. Raises `ConfigurationError` for one that cannot be in force."""
        tried = PolicyView(self.configured, self.process, self._adapt, self._breaker)
        tried.use(book)
        return tried

    def kinds(self) -> list[tuple[str | None, float]]:
        """Every tier, inside and outside of the cohort: what endpoints may have before their own overrides."""
        places = (0.0, NOBODY) if self.book.cohort else (NOBODY,)
        return [(tier, place) for tier in (None, *TIERS) for place in places]

    # -------------------------------------------------------------------------------------------------- helpers

    def _composed(self, book: PolicyBook, tier: str | None, place: float) -> EffectivePolicy:
        bounds = (self._adapt.floor, self._adapt.ceiling)
        return compose(self.configured, book.layers(tier, place, self.process), bounds)

    def _share(self, book: PolicyBook, tier: str | None, place: float, client: ClientPolicy) -> Shared:
        effective = self._composed(book, tier, place)
        floor, ceiling = effective.learning
        breaker, breaker_rows = breaker_under(self._breaker, book.layers(tier, place, self.process))
        rules = self._adapt if tier is None else replace(TIERS[tier], mode=self._adapt.mode)
        return Shared(
            effective,
            effective.policy.with_values({name: getattr(client, name) for name in POOL_FIELDS}),
            effective.policy.per_endpoint_concurrency,
            rules if (floor, ceiling) == (rules.floor, rules.ceiling) else replace(rules, floor=floor, ceiling=ceiling),
            breaker,
            breaker_rows,
        )


def own_values(policy: ClientPolicy, names: Iterable[str], own: Mapping[str, float]) -> dict[str, float]:
    """Overrides that give an endpoint these values of `policy`, beside `own`, which it has. Those of a breaker, and of what all
    endpoints share, cannot be one endpoint's."""
    derived = {
        "total_timeout": policy.attempt_budget,
        "dns_timeout": policy.connect_timeout,
        "tls_timeout": policy.connect_timeout,
    }
    found = {}
    for name in names:
        if name not in own and name not in POOL_FIELDS and not of_breaker(name):
            value = getattr(policy, name)
            found[name] = derived[name] if value is None else value
    return found


def _client_policy(configured: ClientPolicy, effective: EffectivePolicy) -> ClientPolicy:
    pool: Mapping[str, object] = {name: getattr(effective.policy, name) for name in POOL_FIELDS}
    if all(getattr(configured, name) == value for name, value in pool.items()):
        return configured
    return configured.with_values(pool)
