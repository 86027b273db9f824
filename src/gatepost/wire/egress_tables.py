"""Addresses, names and ports that no webhook may reach: data only, read by the other `wire.egress_*` files.

The table is ours and complete on purpose. `ipaddress.is_global` and `is_private` differ between Python versions and let
several ranges through that matter here (IPv4-compatible and translated forms, site-local, CGNAT), so nothing uses them.
Within a family the order decides only which reason is named.
"""

from __future__ import annotations

from typing import Final

from gatepost.wire.reasons import Reason

DENY_IPV4: Final[tuple[tuple[str, Reason, str], ...]] = (
    ("0.0.0.0/8", Reason.ADDR_UNSPECIFIED, "'This network' / 'This host on this network' (RFC 791, RFC 1122)"),
    ("10.0.0.0/8", Reason.ADDR_PRIVATE, "Private-Use (RFC 1918)"),
    ("100.64.0.0/10", Reason.ADDR_SHARED, "Shared Address Space, CGNAT (RFC 6598)"),
    ("127.0.0.0/8", Reason.ADDR_LOOPBACK, "Loopback (RFC 1122)"),
    ("169.254.0.0/16", Reason.ADDR_LINK_LOCAL, "Link Local (RFC 3927)"),
    ("172.16.0.0/12", Reason.ADDR_PRIVATE, "Private-Use (RFC 1918)"),
    (
        "192.0.0.0/24",
        Reason.ADDR_IETF_PROTOCOL,
        "IETF Protocol Assignments (RFC 6890), sub-entries such as PCP and TURN anycast included",
    ),
    ("192.0.2.0/24", Reason.ADDR_DOCUMENTATION, "TEST-NET-1 (RFC 5737)"),
    ("192.31.196.0/24", Reason.ADDR_AS112, "AS112-v4 (RFC 7535)"),
    ("192.52.193.0/24", Reason.ADDR_AMT, "AMT (RFC 7450)"),
    (
        "192.88.99.0/24",
        Reason.ADDR_6TO4_RELAY,
        "Deprecated 6to4 Relay Anycast (RFC 7526), incl. 192.88.99.2 6a44 relay (RFC 6751)",
    ),
    ("192.168.0.0/16", Reason.ADDR_PRIVATE, "Private-Use (RFC 1918)"),
    ("192.175.48.0/24", Reason.ADDR_AS112, "Direct Delegation AS112 (RFC 7534)"),
    ("198.18.0.0/15", Reason.ADDR_BENCHMARKING, "Benchmarking (RFC 2544)"),
    ("198.51.100.0/24", Reason.ADDR_DOCUMENTATION, "TEST-NET-2 (RFC 5737)"),
    ("203.0.113.0/24", Reason.ADDR_DOCUMENTATION, "TEST-NET-3 (RFC 5737)"),
    ("224.0.0.0/4", Reason.ADDR_MULTICAST, "Multicast (RFC 5771; separate IANA registry)"),
    ("255.255.255.255/32", Reason.ADDR_BROADCAST, "Limited Broadcast (RFC 919)"),
    ("240.0.0.0/4", Reason.ADDR_RESERVED, "Reserved (RFC 1112)"),
)
"""CIDR, reason and the IANA registry entry or RFC behind it."""

DENY_IPV6: Final[tuple[tuple[str, Reason, str], ...]] = (
    ("::/128", Reason.ADDR_UNSPECIFIED, "Unspecified Address (RFC 4291)"),
    ("::1/128", Reason.ADDR_LOOPBACK, "Loopback Address (RFC 4291)"),
    ("::ffff:0:0/96", Reason.ADDR_IPV4_MAPPED, "IPv4-mapped Address (RFC 4291)"),
    ("::/96", Reason.ADDR_IPV4_COMPATIBLE, "IPv4-Compatible, deprecated (RFC 4291 2.5.5.1)"),
    ("::ffff:0:0:0/96", Reason.ADDR_IPV4_TRANSLATED, "IPv4-translated / SIIT (RFC 2765, removed)"),
    ("64:ff9b::/96", Reason.ADDR_NAT64, "IPv4-IPv6 Translat. well-known prefix (RFC 6052)"),
    ("64:ff9b:1::/48", Reason.ADDR_NAT64, "IPv4-IPv6 Translat. local use (RFC 8215)"),
    ("100::/64", Reason.ADDR_DISCARD, "Discard-Only (RFC 6666)"),
    ("100:0:0:1::/64", Reason.ADDR_DUMMY, "Dummy IPv6 Prefix (RFC 9780)"),
    ("2001::/32", Reason.ADDR_TEREDO, "TEREDO (RFC 4380, RFC 8190)"),
    ("2001:2::/48", Reason.ADDR_BENCHMARKING, "Benchmarking (RFC 5180)"),
    ("2001:10::/28", Reason.ADDR_ORCHID, "Deprecated ORCHID (RFC 4843)"),
    ("2001:20::/28", Reason.ADDR_ORCHID, "ORCHIDv2 (RFC 7343)"),
    ("2001:30::/28", Reason.ADDR_IETF_PROTOCOL, "Drone Remote ID Protocol Entity Tags (RFC 9374)"),
    (
        "2001::/23",
        Reason.ADDR_IETF_PROTOCOL,
        "IETF Protocol Assignments (RFC 2928), with PCP/TURN/SRP anycast, AMT, AS112-v6",
    ),
    ("2001:db8::/32", Reason.ADDR_DOCUMENTATION, "Documentation (RFC 3849)"),
    ("2002::/16", Reason.ADDR_6TO4, "6to4 (RFC 3056)"),
    ("2620:4f:8000::/48", Reason.ADDR_AS112, "Direct Delegation AS112 (RFC 7534)"),
    ("3fff::/20", Reason.ADDR_DOCUMENTATION, "Documentation (RFC 9637)"),
    ("5f00::/16", Reason.ADDR_SRV6, "Segment Routing SIDs (RFC 9602)"),
    ("fc00::/7", Reason.ADDR_ULA, "Unique-Local (RFC 4193)"),
    ("fe80::/10", Reason.ADDR_LINK_LOCAL, "Link-Local Unicast (RFC 4291)"),
    ("fec0::/10", Reason.ADDR_SITE_LOCAL, "Site-local, deprecated (RFC 3879)"),
    ("ff00::/8", Reason.ADDR_MULTICAST, "Multicast (RFC 4291)"),
)
"""The same for IPv6; whatever is outside `IPV6_ONLY_INSIDE` is refused besides."""

IPV6_ONLY_INSIDE: Final = "2000::/3"
"""All global unicast space that IANA hands out (RFC 4291 section 2.4); the rest of IPv6 hosts no webhook."""

METADATA_ADDRESSES: Final[frozenset[str]] = frozenset(
    {
        "100.100.100.200",
        "168.63.129.16",
        "169.254.0.23",
        "169.254.169.123",
        "169.254.169.253",
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "169.254.42.42",
        "192.0.0.192",
        "192.80.8.124",
        "fd00:42::42",
        "fd00:ec2::123",
        "fd00:ec2::23",
        "fd00:ec2::253",
        "fd00:ec2::254",
        "fd20:ce::254",
        "fe80::a9fe:a9fe",
    }
)
"""Cloud metadata services, which hand out credentials: refused before any allow-list is read."""

METADATA_NAMES: Final[frozenset[str]] = frozenset(
    {
        "api.metadata.cloud.ibm.com",
        "instance-data",
        "instance-data.ec2.internal",
        "metadata",
        "metadata.azure.internal",
        "metadata.goog",
        "metadata.google.internal",
        "metadata.oraclecloud.com",
        "metadata.packet.net",
        "metadata.platformequinix.com",
        "metadata.tencentyun.com",
        "rancher-metadata",
    }
)
"""Names of the same services."""

SPECIAL_USE_SUFFIXES: Final[frozenset[str]] = frozenset(
    {
        "localhost",
        "localdomain",
        "local",
        "internal",
        "intranet",
        "private",
        "corp",
        "home",
        "lan",
        "home.arpa",
        "arpa",
        "onion",
        "alt",
        "test",
        "invalid",
        "example",
        "svc",
        "cluster.local",
        "consul",
        "mail",
    }
)
"""Names that never belong to a public receiver (RFC 6761 and customs of private networks), with everything below them."""

# fmt: off
SERVICE_PORTS: Final[frozenset[int]] = frozenset(
    {
        0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42,
        43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104, 109, 110, 111, 113, 115,
        117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 445, 465, 512, 513, 514,
        515, 526, 530, 531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 873, 989, 990,
        993, 995, 1719, 1720, 1723, 2049, 2375, 2376, 2379, 2380, 3306, 3389, 3659, 4045, 4190, 5060,
        5061, 5432, 5900, 5984, 6000, 6379, 6443, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 8500,
        9042, 9092, 9200, 9300, 10080, 10250, 10255, 11211, 15672, 25672, 27017,
    }
)
"""Ports of other protocols, from the Fetch standard's bad ports plus databases, caches and control planes: a POST there
can be read as commands."""
# fmt: on

FIRST_FREE_PORT: Final = 1024
"""The default port rule opens this and everything above, less the service ports."""
