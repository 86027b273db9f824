"""Keeps room on the disk for finishing what was accepted: says whether new events may still come in.

A full disk would stop deliveries too, since their results must be written; so ingest stops before. Called by the writer
and by publishers before they store events.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Final

from gatepost.clock import SYSTEM_CLOCK
from gatepost.errors import StoreFull

RESERVE_SHARE: Final = 0.05
"""Of the file system: what operators are used to."""
RESERVE_MIN_BYTES: Final = 32 << 20
"""On a small disk: a write-ahead log of `CHECKPOINT_PAGES` and its copy into the file. With less the log cannot be emptied any
more, and then neither results nor retention find room. At most half of the disk."""
RESERVE_MAX_BYTES: Final = 1 << 30
"""Enough to finish millions of deliveries; 5 % of a large disk would be waste."""
_LOOK_INTERVAL: Final = 0.1
"""Seconds, of the real clock, for which a look at the disk counts: at 100 MB/s it misses 10 MB."""


class SpaceGuard:
    """Refuses ingest while there is less room than the reserve.

    `max_bytes` bounds the database file itself (None: only the disk does), `reserve_bytes` is what is kept free of either;
    None: 5 % of it, at least 32 MiB of a disk, at most 1 GiB.
    """

    __slots__ = (
        "_connection",
        "_directory",
        "_disk_refusal",
        "_look_at",
        "_max_pages",
        "_page_bytes",
        "_path",
        "_reserve_bytes",
    )

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str | os.PathLike[str],
        *,
        max_bytes: int | None = None,
        reserve_bytes: int | None = None,
    ) -> None:
        self._connection = connection
        self._path = os.fspath(path)
        self._directory = os.path.dirname(os.path.abspath(self._path))
        self._reserve_bytes = reserve_bytes
        self._page_bytes: int = connection.execute("PRAGMA page_size").fetchone()[0]
        self._max_pages: int | None = None
        if max_bytes is not None:
            pages = max(1, max_bytes // self._page_bytes)
            self._max_pages = connection.execute(f"PRAGMA max_page_count = {pages}").fetchone()[0]
        self._look_at = 0.0
        self._disk_refusal: str | None = None

    def check(self) -> None:
        """Raises `StoreFull` when there is no room for new events."""
        now = SYSTEM_CLOCK.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_INTERVAL
            self._disk_refusal = self._look()
        refusal = self._disk_refusal
        if refusal is None and self._max_pages is not None:
            refusal = self._look_inside(self._max_pages)
        if refusal is not None:
            raise StoreFull(refusal)

    def _look(self) -> str | None:
        try:
            disk = os.statvfs(self._directory)
        except OSError:
            return None  # a directory in trouble: the write itself will say so
        reserve = disk_reserve(disk.f_blocks * disk.f_frsize)
        return self._judge(disk.f_bavail * disk.f_frsize, reserve, f"the disk of {self._path}")

    def _look_inside(self, max_pages: int) -> str | None:
        pages = self._connection.execute("PRAGMA page_count").fetchone()[0]
        unused = self._connection.execute("PRAGMA freelist_count").fetchone()[0]
        free = (max_pages - pages + unused) * self._page_bytes
        reserve = int(max_pages * self._page_bytes * RESERVE_SHARE)
        return self._judge(free, min(reserve, RESERVE_MAX_BYTES), f"{self._path} within its max_bytes")

    def _judge(self, free: int, reserve: int, where: str) -> str | None:
        if self._reserve_bytes is not None:
            reserve = self._reserve_bytes
        if free >= reserve:
            return None
        return (
            f"{where} has {free:,} bytes free, {reserve:,} are kept for finishing deliveries: no new events until there is "
            "more room; free disk space or shorten retention"
        )


def disk_reserve(total: int) -> int:
    """Bytes to keep free on a disk of `total` bytes."""
    least = min(RESERVE_MIN_BYTES, total // 2)
    return min(max(int(total * RESERVE_SHARE), least), RESERVE_MAX_BYTES)
