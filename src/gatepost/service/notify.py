"""Tells the service manager that started us how we are: systemd's readiness protocol, one datagram (sd_notify(3)).

Decides nothing and never fails: without `NOTIFY_SOCKET`, or when the manager does not listen, nothing happens. `service.app`
and `service.processes` call it, for the process that the manager knows.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

READY: Final = "READY=1"
"""Requests are accepted: `systemctl start` returns, and what is ordered after us starts."""
STOPPING: Final = "STOPPING=1"
"""The drain has begun."""


def notify(state: str, environ: Mapping[str, str]) -> None:
    """Send `state` to the manager that `environ` names, if it does."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
            line.setblocking(False)
            # A leading @ stands for the NUL of Linux' abstract names.
            line.sendto(state.encode("ascii"), f"\0{address[1:]}" if address.startswith("@") else address)
    except OSError:
        pass  # a manager that has gone is no reason to stop delivering
