"""Reads the kernel's table of TCP sockets and counts those that wait out their end (TIME_WAIT), by the peer they went to.

Linux only, and of the network namespace that the process is in; elsewhere it says that it cannot tell. The reading takes
milliseconds for a full table, so whoever has a loop calls it in a thread.
"""

from __future__ import annotations

import ipaddress
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from gatepost.service.doctor.facts import SocketFacts

TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORTS_DEFAULT: Final = 28_232
"""Linux' own range, 32768 to 60999."""
PEERS_MAX: Final = 20
"""Peers told, those with the most."""
_LISTEN: Final = "0A"
_TIME_WAIT: Final = "06"


def read_sockets(ports: Collection[int]) -> SocketFacts | None:
    """Sockets in TIME_WAIT; `ports` are those that this process connects to. None where the system does not tell."""
    lines: list[str] = []
    for table in TABLES:
        try:
            lines += table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
    return count_sockets(lines, ports, _local_ports()) if lines else None


def count_sockets(lines: Iterable[str], ports: Collection[int], local_ports: int) -> SocketFacts:
    """The same from lines of the tables (proc_net_tcp(5)): `number: local remote state …`, addresses and ports in hexadecimal."""
    waiting: list[tuple[int, str, int]] = []
    listening: set[int] = set()
    for line in lines:
        fields = line.split(maxsplit=4)
        if len(fields) < 4:
            continue
        if fields[3] == _LISTEN:
            listening.add(int(fields[1].rpartition(":")[2], 16))
        elif fields[3] == _TIME_WAIT:
            remote, _, number = fields[2].rpartition(":")
            waiting.append((int(fields[1].rpartition(":")[2], 16), remote, int(number, 16)))
    # Whoever closes first waits. A peer that is on this machine too may have been that: its port is then the local one.
    peers: Counter[tuple[str, int]] = Counter()
    for local, address, port in waiting:
        if local in listening:
            if local in ports:
                peers[address, local] += 1
        elif port in ports:
            peers[address, port] += 1
    outgoing: Counter[str] = Counter()
    for (address, port), count in peers.items():
        outgoing[_text(address, port)] += count  # one peer, by IPv4 and by IPv4 inside IPv6
    return SocketFacts(len(waiting), dict(outgoing.most_common(PEERS_MAX)), local_ports)


def _text(address: str, port: int) -> str:
    raw = bytes.fromhex(address)
    if sys.byteorder == "little":  # the kernel prints 32-bit words as it holds them
        raw = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    parsed = ipaddress.ip_address(raw)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return f"[{parsed}]:{port}" if parsed.version == 6 and mapped is None else f"{mapped or parsed}:{port}"


def _local_ports() -> int:
    try:
        low, high = PORT_RANGE.read_text(encoding="ascii").split()
        return int(high) - int(low) + 1
    except (OSError, ValueError):
        return PORTS_DEFAULT
