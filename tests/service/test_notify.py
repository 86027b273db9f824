"""systemd is told when requests are accepted and when the drain begins, and a hangup drains: as `deploy/gatepost.service` says."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

from gatepost.service.notify import READY, STOPPING, notify
from tests.service.served import PATIENCE, served


def manager(address: str) -> socket.socket:
    """What systemd listens with."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    line.settimeout(PATIENCE)
    line.bind(address)
    return line


def test_a_hangup_drains_and_the_manager_hears_of_start_and_end(tmp_path: Path) -> None:
    """A unit that is "active" before it listens fails whatever starts after it; a closed terminal must not lose results."""
    address = str(tmp_path / "notify")
    with manager(address) as line, served(tmp_path, NOTIFY_SOCKET=address) as service:
        assert line.recv(100).decode() == READY
        for _ in range(2):  # a shell and the terminal both say it
            service.signal(signal.SIGHUP)
        assert line.recv(100).decode() == STOPPING
        assert service.wait() == 0
        assert service.lines[-1]["event"] == "stopped"


def test_abstract_names_are_understood_and_nobody_listening_is_no_error(tmp_path: Path) -> None:
    """Containers get the one, and a manager that has gone must not end the service."""
    name = f"gatepost-test-{tmp_path.name}"
    with manager(f"\0{name}") as line:
        notify(READY, {"NOTIFY_SOCKET": f"@{name}"})
        assert line.recv(100).decode() == READY
    for environ in ({}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}, {"NOTIFY_SOCKET": "vsock:2:1234"}):
        notify(READY, environ)
