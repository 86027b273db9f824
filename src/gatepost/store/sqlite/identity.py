"""Notices that the file at a path is no longer the one that is open: removed, restored from a copy, or replaced.

SQLite does not notice in WAL mode: it goes on committing into the file that has lost its name, and everything it accepted
is gone with the process. Asked before new events are taken and by the store's ping; it repairs nothing.
"""

from __future__ import annotations

import os

from gatepost.errors import StoreError


class FileIdentity:
    """Remembers which file a path named when it was opened."""

    __slots__ = ("_path", "_seen")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._seen = self._look()

    def check(self) -> None:
        """Raises `StoreError` when the path names another file now, or none. Costs a microsecond."""
        if self._look() != self._seen:
            raise StoreError(
                f"{self._path} was removed or replaced while it is open: nothing new is taken, since it would be lost with "
                "this process; put the file back under its name, or restart on the new one"
            )

    def _look(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino
