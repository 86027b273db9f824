"""The eight phases of an attempt, in wire order. A phase is where time went and where it ended; it decides nothing."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where an attempt is, or ended. `wait` is last request byte out to first response byte; `read` from there to the end of the body."""

    ADMISSION = "admission"
    POOL = "pool"
    DNS = "dns"
    CONNECT = "connect"
    TLS = "tls"
    WRITE = "write"
    WAIT = "wait"
    READ = "read"


PHASES: tuple[Phase, ...] = tuple(Phase)
"""In wire order."""

SETUP_PHASES = frozenset({Phase.ADMISSION, Phase.POOL, Phase.DNS, Phase.CONNECT, Phase.TLS})
"""Phases in which no request byte can have left us."""
