"""Which process is at the other end of a loopback connection, read from `/proc`: the receiver of a chaos run asks it of senders."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

UNKNOWN = 0


def process_at(peer_port: int, own_port: int, pids: Iterable[int]) -> int:
    """The one of `pids` that has the IPv4 socket from `peer_port` to `own_port`; `UNKNOWN` when none has, or nobody can tell."""
    inode = _inode(peer_port, own_port)
    if inode is None:
        return UNKNOWN
    wanted = f"socket:[{inode}]"
    for pid in pids:
        try:
            with os.scandir(f"/proc/{pid}/fd") as entries:
                for entry in entries:
                    if _link(entry.path) == wanted:
                        return pid
        except OSError:  # it has ended
            continue
    return UNKNOWN


def _inode(local_port: int, remote_port: int) -> str | None:
    local, remote = f":{local_port:04X}", f":{remote_port:04X}"
    try:
        lines = Path("/proc/net/tcp").read_text().splitlines()
    except OSError:  # no Linux
        return None
    for line in lines[1:]:
        fields = line.split()
        if fields[1].endswith(local) and fields[2].endswith(remote):
            return fields[9]
    return None


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
