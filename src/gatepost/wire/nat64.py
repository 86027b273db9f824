"""Finds the NAT64 prefix of a network in the answer for `ipv4only.arpa` (RFC 7050). Decides nothing about destinations.

The name has two IPv4 addresses that everybody knows; a network that answers with IPv6 addresses has put its prefix before
them. Read by resolvers, for `wire.egress` to name a prefix that the operator did not declare.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from gatepost.wire.egress_addresses import decode_nat64
from gatepost.wire.egress_policy import NAT64_LENGTHS

NAT64_NAME: Final = "ipv4only.arpa"
"""RFC 7050 section 2.2."""
_KNOWN: Final = frozenset(int(ipaddress.IPv4Address(text)) for text in ("192.0.0.170", "192.0.0.171"))


def nat64_prefixes_in(addresses: Iterable[str]) -> tuple[str, ...]:
    """The prefixes that the answers were made with, as CIDR texts; none when nothing translates (RFC 7050 section 3)."""
    found: dict[str, None] = {}
    for text in addresses:
        if ":" not in text or "%" in text:
            continue
        value = int(ipaddress.IPv6Address(text))
        for length in NAT64_LENGTHS:
            if decode_nat64(value, length) in _KNOWN:
                first = ipaddress.IPv6Address(value >> (128 - length) << (128 - length))
                found[f"{first}/{length}"] = None
    return tuple(found)
