"""One dispatcher per file: an OS lock on `<file>.lock`, which the system drops when its holder dies.

It decides who may open a `SqliteStore` and names the holder to everyone else; publishers never take it.
"""

from __future__ import annotations

import fcntl
import os

from gatepost.errors import StoreError, StoreLocked


class FileLock:
    """The ownership of one SQLite file. Raises `StoreLocked` naming the holder's process id."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        lock = self._path = f"{os.fspath(path)}.lock"
        try:
            self._descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"cannot open {lock}: {error.strerror}") from error
        try:
            # flock belongs to the open file, so a second store in the same process is refused as well.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StoreLocked(
                f"{os.fspath(path)} is owned by process {holder}: stop that dispatcher, or publish with Publisher.open, "
                "which needs no ownership"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def check(self) -> None:
        """Raises `StoreLocked` when the lock file was removed: another process may have locked a new one and own the file."""
        if self._descriptor < 0:
            raise StoreError("the store is closed")
        held = os.fstat(self._descriptor)
        try:
            found = os.stat(self._path)
        except OSError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != (held.st_dev, held.st_ino):
            raise StoreLocked(
                f"{self._path} was removed while this process owned it, so another may own the file too: restart this one; "
                "the lock file is never stale, since its lock ends with the process"
            )

    def release(self) -> None:
        """Give the file up. Idempotent. The lock file stays: removing it would let two holders lock two files."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
