"""The addresses of this machine's own interfaces, so that a webhook cannot be aimed at what runs beside us.

Reads what Linux shows in /proc; elsewhere it asks the kernel which address it would send from. Loopback is left out, since the
egress tables know it. Called once when a client is made; it sends nothing and never raises.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from pathlib import Path
from typing import Final

FILE_BYTES_MAX: Final = 4 * 1_048_576
"""Read at most this much of a table: a machine with a full routing table is a router, and its local entries come anyway."""

_LOCAL_IPV4: Final = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")
_IPV6_LINE: Final = re.compile(r"^([0-9a-f]{32}) ", re.MULTILINE)
_FAR_AWAY: Final = ((socket.AF_INET, "198.51.100.1"), (socket.AF_INET6, "2001:db8::1"))
"""Documentation addresses; connecting a datagram socket to them sends nothing."""


def own_addresses(proc: Path = Path("/proc/net")) -> frozenset[str]:
    """Canonical texts, loopback left out; `proc` is where the kernel's tables are."""
    found = set(_LOCAL_IPV4.findall(_read(proc / "fib_trie")))
    found |= {str(ipaddress.IPv6Address(int(digits, 16))) for digits in _IPV6_LINE.findall(_read(proc / "if_inet6"))}
    if not found:
        found = _sending_addresses()
    return frozenset(text for text in found if not ipaddress.ip_address(text).is_loopback)


def _read(file: Path) -> str:
    try:
        with file.open(encoding="ascii", errors="replace") as stream:
            return stream.read(FILE_BYTES_MAX)
    except OSError:  # no such table: another system, a hidden /proc, or no IPv6
        return ""


def _sending_addresses() -> set[str]:
    found = set()
    for family, address in _FAR_AWAY:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect((address, 9))
                found.add(str(sock.getsockname()[0]).partition("%")[0])
        except OSError:  # no route, or no such family
            continue
    return found
