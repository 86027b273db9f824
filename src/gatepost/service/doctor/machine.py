"""Open files and disk of the process, as the system tells. Read by `collect` and `offline`; it judges nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gatepost.service.config import SERVE_SLOTS, open_files_limit
from gatepost.service.doctor.facts import DiskFacts, FileFacts
from gatepost.store.open import sqlite_path
from gatepost.store.sqlite.space import disk_reserve

FILES_MIN: Final = 1_024
"""What shells begin with: a service with less was given so few by mistake."""
OWN_FILES: Final = Path("/proc/self/fd")


def file_facts(max_connections: int, slots: int, *, open_now: bool = True) -> FileFacts:
    """`max_connections` may be half of the limit because somebody wrote that, or because there were no more."""
    limit = open_files_limit()
    narrows = max_connections == limit // 2 and slots >= max_connections and slots < SERVE_SLOTS
    return FileFacts(
        limit=limit,
        open=_open_files() if open_now else None,
        needed=max(FILES_MIN, 2 * (SERVE_SLOTS if narrows else max_connections)),
        narrows=narrows,
    )


def _open_files() -> int | None:
    try:
        return len(os.listdir(OWN_FILES))
    except OSError:
        return None


def disk_directory(database: str) -> str | None:
    """The directory of an SQLite file; None for a store that is elsewhere or nowhere."""
    if urlsplit(database).scheme != "sqlite":
        return None
    return os.path.dirname(os.path.abspath(sqlite_path(database)))


def disk_facts(directory: str) -> DiskFacts | None:
    """The disk that a directory is on; None when the system cannot tell."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return None
    total = disk.f_blocks * disk.f_frsize
    return DiskFacts(directory, disk.f_bavail * disk.f_frsize, total, disk_reserve(total))
