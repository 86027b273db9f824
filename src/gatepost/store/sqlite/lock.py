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
        self._path = os.fspath(path)
        self._descriptor = _lock(self._path)

    def check(self) -> None:
        """Prove the ownership; called with every heartbeat.

        Somebody may have removed the lock file as "stale", which lets another process in: then this one must take the new
        file's lock, or raises `StoreLocked` since the other one has it. `StoreError` after `release`.
        """
        if self._descriptor < 0:
            raise StoreError("the store is closed")
        held = os.fstat(self._descriptor)
        try:
            found = os.stat(f"{self._path}.lock")
        except OSError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != (held.st_dev, held.st_ino):
            descriptor = _lock(self._path)
            os.close(self._descriptor)
            self._descriptor = descriptor

    def release(self) -> None:
        """Give the file up. Idempotent. The lock file stays: removing it would let two holders lock two files."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _lock(path: str) -> int:
    """A descriptor that holds the lock."""
    lock = f"{path}.lock"
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreError(f"cannot open {lock}: {error.strerror}") from error
    try:
        # flock belongs to the open file, so a second store in the same process is refused as well.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise StoreLocked(
            f"{path} is owned by process {holder}: stop that dispatcher, or publish with Publisher.open, "
            "which needs no ownership"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
