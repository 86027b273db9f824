"""Opens connections to an SQLite file the one way Gatepost uses them, and turns SQLite's errors into the store's.

Errors are told apart by their code, never by their text. Called by every module of this engine that opens a file.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Final

from gatepost.errors import ConfigurationError, StoreError, StoreFull

BUSY_TIMEOUT: Final = 5.0
"""Seconds to wait for another process's transaction. Those last milliseconds; 5 s means that something is stuck."""
WRITER_CACHE_KIB: Final = 32_768
"""The hot ends of all tables, with room for one strip of the key index. SQLite fills what it is given before it lets a page go:
this is full after some 50,000 deliveries, and from then on the process does not grow. Twice as much costs no less CPU."""
READER_CACHE_KIB: Final = 8_192
CHECKPOINT_PAGES: Final = 4_000
"""16 MiB of write-ahead log: a page written often is copied once per checkpoint, and a checkpoint stays below ~50 ms."""
WAL_KEPT_BYTES: Final = 64 << 20
"""A log that a burst or a long reader has grown beyond this is cut when it restarts."""
STATEMENTS_CACHED: Final = 256
"""Distinct statements per connection: some forty, in up to four lengths each."""


def connect(path: str | os.PathLike[str], *, query_only: bool = False) -> sqlite3.Connection:
    """A connection with explicit transactions, usable from the thread that will own it. Raises `StoreError`, `ConfigurationError`."""
    try:
        connection = sqlite3.connect(
            path,
            timeout=BUSY_TIMEOUT,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=STATEMENTS_CACHED,
        )
    except sqlite3.Error as error:
        raise opening_error(error, path) from error
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
        connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB if query_only else WRITER_CACHE_KIB}")
        connection.execute("PRAGMA temp_store = MEMORY")
        if query_only:
            connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        connection.close()
        raise opening_error(error, path) from error
    return connection


def opening_error(error: sqlite3.Error, path: str | os.PathLike[str]) -> ConfigurationError | StoreError:
    """What is raised when a file does not open: the wrong kind of file is the configuration's fault."""
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
        return ConfigurationError(f"{os.fspath(path)} is not an SQLite file: give Gatepost a file of its own")
    return store_error(error, path)


def store_error(error: sqlite3.Error, path: str | os.PathLike[str]) -> StoreError:
    """What the store raises for an error of SQLite, by its code."""
    code = getattr(error, "sqlite_errorcode", None)  # absent on errors of the Python module itself
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE):
        return StoreFull(f"no room for {os.fspath(path)} ({name}): free disk space; deliveries accepted before go on")
    if is_busy(error):
        return StoreError(f"{os.fspath(path)} was held by another writer for {BUSY_TIMEOUT:.0f} s ({name})")
    return StoreError(f"{os.fspath(path)}: {name}: {error}")


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection held the file."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
