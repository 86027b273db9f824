"""The egress policy together with what was found out about this machine and its network: one value that answers every question.

Registration, each attempt, each borrow of a connection and each redirect ask the same three functions through it, so that no
place can forget a part. It finds nothing out itself: `net.client` makes a new one when something is learned or reloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gatepost.wire.egress import Target, check_url
from gatepost.wire.egress_addresses import check_address, check_addresses
from gatepost.wire.egress_policy import Denied, EgressPolicy


@dataclass(frozen=True, slots=True)
class EgressRules:
    """What holds now. Compared by identity on the hot path: a connection remembers under which rules it passed."""

    policy: EgressPolicy = field(default_factory=EgressPolicy)
    own_addresses: frozenset[str] = frozenset()
    """Canonical addresses of this machine's interfaces."""
    nat64_seen: tuple[str, ...] = ()
    """NAT64 prefixes that the network uses; undeclared ones are refused by name."""

    def check_url(self, url: str) -> Target | Denied:
        """See `wire.egress.check_url`."""
        return check_url(url, self.policy, self.own_addresses, nat64_seen=self.nat64_seen)

    def check_address(self, address: str) -> Denied | None:
        """See `wire.egress.check_address`."""
        return check_address(address, self.policy, self.own_addresses, nat64_seen=self.nat64_seen)

    def check_addresses(self, addresses: Sequence[str], chain: Sequence[str] = ()) -> tuple[str, ...] | Denied:
        """See `wire.egress.check_addresses`."""
        return check_addresses(addresses, self.policy, chain, self.own_addresses, nat64_seen=self.nat64_seen)

    @property
    def nat64_undeclared(self) -> tuple[str, ...]:
        """Prefixes seen that the policy does not declare."""
        return tuple(prefix for prefix in self.nat64_seen if prefix not in self.policy.nat64_prefixes)
