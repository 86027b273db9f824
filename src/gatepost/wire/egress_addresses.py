"""Decides whether an address may be connected to: the rule that holds whatever name led there.

Order of rules: metadata, operator deny, declared NAT64, operator allow, own interfaces, deny table, global unicast.
Looks nothing up and opens nothing. Called for IP literals in URLs, for each resolver answer, for the peer of a new
connection and at each borrow of a pooled one, which is why verdicts are cached.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from gatepost.wire.egress_hosts import check_name
from gatepost.wire.egress_policy import Denied, EgressPolicy, Network, find_network, is_wrapping, parse_network
from gatepost.wire.egress_tables import DENY_IPV4, DENY_IPV6, IPV6_ONLY_INSIDE, METADATA_ADDRESSES
from gatepost.wire.reasons import Reason

VERDICTS_MAX: Final = 16_384
"""Cached verdicts, at most 16 MiB if all are refusals: as many as `serve` has sockets open."""

_TABLES: Final = {
    version: tuple((parse_network(cidr), reason, entry) for cidr, reason, entry in table)
    for version, table in ((4, DENY_IPV4), (6, DENY_IPV6))
}
_GLOBAL_UNICAST: Final = parse_network(IPV6_ONLY_INSIDE)
_METADATA: Final = frozenset(
    (address.version, int(address)) for address in map(ipaddress.ip_address, METADATA_ADDRESSES)
)
_UNOPENABLE: Final = "Nothing opens it; register the receiver's own address or name."


def check_address(
    address: str,
    policy: EgressPolicy,
    own_addresses: frozenset[str] = frozenset(),
    *,
    nat64_seen: tuple[str, ...] = (),
) -> Denied | None:
    """None when the address may be connected to.

    `own_addresses` are this machine's interface addresses in canonical text. `nat64_seen` are NAT64 prefixes that the
    network was found to use (RFC 7050); undeclared ones are refused, and the remedy names the setting. About 0.2 µs for an
    address already seen.
    """
    return _verdict(address, policy, own_addresses, nat64_seen)


def check_addresses(
    addresses: Sequence[str],
    policy: EgressPolicy,
    chain: Sequence[str] = (),
    own_addresses: frozenset[str] = frozenset(),
    *,
    nat64_seen: tuple[str, ...] = (),
) -> tuple[str, ...] | Denied:
    """All answers for one name, as canonical texts without duplicates in the resolver's order, or why the name is refused.

    All or nothing: one refused answer refuses the name, since a name that answers both ways is an attack or a mistake.
    `chain` holds the CNAMEs passed on the way, if the resolver tells; each must be a name we would ask for ourselves.
    """
    for link in chain:
        denied = check_name(link.lower().removesuffix("."), policy)
        if denied is not None:
            return denied
    if not addresses:
        return Denied(
            Reason.DNS_NO_ADDRESS,
            "the name has no address",
            "answer",
            "Check the spelling, and the zone's A and AAAA records.",
        )
    if len(addresses) > policy.max_answers:
        return Denied(
            Reason.DNS_TOO_MANY_ANSWERS,
            f"the name has {len(addresses)} addresses, more than max_answers={policy.max_answers}",
            "answer",
            "Raise max_answers if the receiver really needs them.",
        )
    verdicts = [_verdict(address, policy, own_addresses, nat64_seen) for address in addresses]
    refusals = [verdict for verdict in verdicts if verdict is not None]
    if not refusals:
        return tuple(dict.fromkeys(map(canonical, addresses)))
    first = refusals[0]
    if len(refusals) == len(verdicts):
        return first
    only_ipv6 = all(":" in refusal.subject for refusal in refusals) and any(":" not in text for text in addresses)
    return Denied(
        Reason.DNS_MIXED_ANSWERS,
        f"{len(refusals)} of {len(verdicts)} addresses are refused, so all are; the first because {first.rule}",
        first.subject,
        f"{'Only IPv6 answers are refused: check the AAAA records. ' if only_ipv6 else ''}{first.remedy}",
    )


def canonical(address: str) -> str:
    """The one spelling of an address that passed `check_address`."""
    return str(ipaddress.ip_address(address))


@lru_cache(maxsize=VERDICTS_MAX)
def _verdict(
    text: str, policy: EgressPolicy, own_addresses: frozenset[str], nat64_seen: tuple[str, ...]
) -> Denied | None:
    if "%" in text:  # parses as an address, but compares unequal to every table entry
        return Denied(
            Reason.IPV6_ZONE_ID, "a zone names an interface of this machine", ascii(text[:100])[1:-1], _UNOPENABLE
        )
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        reason = Reason.ADDR_NOT_GLOBAL_UNICAST if ":" in text else Reason.IPV4_NONCANONICAL
        return Denied(
            reason,
            "this is no IP address in its usual spelling",
            ascii(text[:100])[1:-1],
            "Check what the resolver returns.",
        )
    return _check(address.version, int(address), str(address), policy, own_addresses, nat64_seen)


def _check(
    version: int,
    value: int,
    text: str,
    policy: EgressPolicy,
    own_addresses: frozenset[str],
    nat64_seen: tuple[str, ...],
) -> Denied | None:
    if (version, value) in _METADATA:
        return Denied(
            Reason.ADDR_METADATA, "it is a cloud metadata service, which hands out credentials", text, _UNOPENABLE
        )
    denied_by = find_network(policy.deny_networks, version, value)
    if denied_by is not None:
        return Denied(
            Reason.ADDR_OPERATOR_DENIED,
            f"{denied_by.text} is in deny_cidrs",
            text,
            f"Take {denied_by.text} out of deny_cidrs, or narrow it, if this receiver is meant to be reached.",
        )
    prefix = find_network(policy.nat64_networks, version, value)
    if prefix is not None:
        return _check_nat64(prefix, value, text, policy, own_addresses, nat64_seen)
    if not is_wrapping(version, value) and find_network(policy.allow_networks, version, value) is not None:
        return None
    if text in own_addresses:
        return Denied(
            Reason.ADDR_LOCAL_INTERFACE,
            "it is an address of this machine",
            text,
            f"If the receiver runs here on purpose, add '{text}' to allow_cidrs.",
        )
    for network in map(parse_network, nat64_seen):
        if find_network((network,), version, value) is not None:
            return _undeclared_nat64(text, network.text)
    return _check_table(version, value, text)


def _check_nat64(
    prefix: Network,
    value: int,
    text: str,
    policy: EgressPolicy,
    own_addresses: frozenset[str],
    nat64_seen: tuple[str, ...],
) -> Denied | None:
    inner = decode_nat64(value, int(prefix.text.rpartition("/")[2]))
    if inner is None:
        return Denied(
            Reason.ADDR_NAT64,
            f"bits 64 to 71 must be zero in an address of {prefix.text} (RFC 6052 section 2.2)",
            text,
            "Check the DNS64 resolver: it made an address that no translator accepts.",
        )
    inner_text = str(ipaddress.IPv4Address(inner))
    denied = _check(4, inner, inner_text, policy, own_addresses, nat64_seen)
    if denied is None:
        return None
    return Denied(denied.reason, f"it is {inner_text} behind NAT64, and {denied.rule}", text, denied.remedy)


def decode_nat64(value: int, length: int) -> int | None:
    """The IPv4 address inside an IPv6 one under a prefix of `length` bits (RFC 6052 section 2.2); None if the u-octet is set.

    The address follows the prefix and skips bits 64 to 71.
    """
    if length == 96:
        return value & 0xFFFF_FFFF
    if value >> 56 & 0xFF:
        return None
    without_u = (value >> 64) << 56 | value & ((1 << 56) - 1)  # 120 bits
    return without_u >> (120 - length - 32) & 0xFFFF_FFFF


def _check_table(version: int, value: int, text: str) -> Denied | None:
    for network, reason, entry in _TABLES[version]:
        if network.first <= value <= network.last:
            if reason is Reason.ADDR_NAT64:
                return _undeclared_nat64(text, network.text)
            remedy = (
                "Write the IPv4 address itself."
                if is_wrapping(version, value)
                else f"If this receiver is yours, add '{text}' or its network to allow_cidrs."
            )
            return Denied(reason, f"{network.text} is {entry}", text, remedy)
    if version == 6 and not _GLOBAL_UNICAST.first <= value <= _GLOBAL_UNICAST.last:
        return Denied(
            Reason.ADDR_NOT_GLOBAL_UNICAST,
            f"only {IPV6_ONLY_INSIDE} is global unicast space",
            text,
            f"If this receiver is yours, add '{text}' or its network to allow_cidrs.",
        )
    return None


def _undeclared_nat64(text: str, prefix: str) -> Denied:
    return Denied(
        Reason.ADDR_NAT64,
        f"{prefix} leads to IPv4 addresses through a NAT64 translator that is not declared",
        text,
        f"If your platform translates with it, add '{prefix}' to nat64_prefixes: the IPv4 address inside is then checked.",
    )
