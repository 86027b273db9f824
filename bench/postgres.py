"""A PostgreSQL server for benchmarks: durable as in production, with a database that has Gatepost's schema, and its CPU time counted.

It comes from the wheel that the tests use, on the disk of `--directory`. Used by `bench.pipeline`, `bench.store_cost` and `bench.chaos`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gatepost.testing.postgres import PostgresServer
from gatepost.testing.postgres_store import KEYS, gatepost_database

SETTINGS: Final = {
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "wal_compression": "on",
}
"""What anybody would set for a queue; everything that durability needs is as PostgreSQL has it."""
TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class MeasuredServer:
    """A running server and one database on it."""

    server: PostgresServer
    url: str
    keys: tuple[str, ...]
    """That seal endpoint secrets in it."""

    def cpu_seconds(self) -> float:
        """CPU that the server has used so far, over all its processes, ended ones included (Linux)."""
        pid = self.server.pid
        assert pid is not None, "the server runs"
        while True:
            own = _stat(pid)[11:15]  # utime stime cutime cstime of the postmaster: it has waited for those that ended
            ticks = sum(own)
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    try:
                        fields = _stat(int(entry.name))
                    except (OSError, IndexError):
                        continue  # it ended while we looked
                    if fields[1] == pid:
                        ticks += fields[11] + fields[12]
            if _stat(pid)[13:15] == own[2:]:  # else one ended meanwhile, and may have been counted nowhere
                return ticks / TICKS


def _stat(pid: int) -> list[int]:
    """Fields of /proc/PID/stat behind the name, as numbers (the state is 0); index 1 is the parent."""
    text = Path(f"/proc/{pid}/stat").read_text()
    _, *rest = text[text.rindex(")") + 2 :].split()
    return [0, *map(int, rest)]


@contextmanager
def measured_server(directory: str | None = None, *, durable: bool = True) -> Iterator[MeasuredServer]:
    """A fresh server, ended with the block; one that is not `durable` starts sooner and survives all but a machine's crash."""
    server = PostgresServer(fsync=durable, directory=directory, settings=SETTINGS)
    try:
        yield MeasuredServer(server, gatepost_database(server=server), KEYS)
    finally:
        server.close()
