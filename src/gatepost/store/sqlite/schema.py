"""Brings a file to the schema this code needs, and refuses files it must not touch.

Migrations are numbered `.sql` files; all that a file lacks are applied in one transaction, the last number as `user_version`.
A file of a newer schema is used when that schema says that this code may (`meta.oldest_code`). Called by the store and the
outbox when opening, and by `gatepost migrate`.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from gatepost.clock import Clock
from gatepost.errors import ConfigurationError, SchemaMismatch, StoreError
from gatepost.store.migration import Migration, migrations_of
from gatepost.store.sqlite.connection import BUSY_TIMEOUT, is_busy, opening_error

OLDEST_SQLITE: Final = (3, 37, 0)
"""STRICT tables (2021-11); RETURNING, upsert and JSON are older."""
APPLICATION_ID: Final = 0x47505354
"""`GPST`, so that `file` and we know our files from others."""
MOVED: Final = "moved_at"
"""The number in `meta` that says when the house was moved to another database, after which nothing opens the file."""
_RETRY_PAUSE: Final = 0.005
"""Seconds; creating the schema takes about twice as long."""


def migrations() -> tuple[Migration, ...]:
    """All steps, in order."""
    return migrations_of("sqlite")


def prepare(
    connection: sqlite3.Connection,
    path: str | os.PathLike[str],
    clock: Clock,
    *,
    may_migrate: bool,
    may_have_moved: bool = False,
) -> None:
    """Create the schema in a new file, and bring an older one up to date when `may_migrate`.

    Raises `ConfigurationError` for an SQLite that is too old or a file that is not Gatepost's, `SchemaMismatch` for a schema
    that is newer than this code allows, `StoreError` for an older one without `may_migrate`, and for a file whose house was moved
    to another database unless `may_have_moved`.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        raise ConfigurationError(
            f"SQLite {sqlite3.sqlite_version} is too old: run a Python with SQLite {needed} or newer"
        )
    give_up_at = clock.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            _prepare(connection, path, may_migrate)
            if not may_have_moved:
                _check_lived_in(connection, path)
            return
        except sqlite3.Error as error:
            # Two processes that create the same file meet here: switching to WAL does not wait for the other by itself.
            if not is_busy(error) or clock.monotonic() >= give_up_at:
                raise opening_error(error, path) from error
        threading.Event().wait(_RETRY_PAUSE)


def _prepare(connection: sqlite3.Connection, path: str | os.PathLike[str], may_migrate: bool) -> None:
    known = migrations()
    version = _number(connection, "PRAGMA user_version")
    if version == 0:
        _check_unused(connection, path)
        # Only before the first table, and before WAL writes the header: lets maintenance give space back to the disk.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise ConfigurationError(
            f"{os.fspath(path)} cannot use a write-ahead log (mode {mode}): put it on a local disk"
        )
    if 0 < version < known[-1].number and not may_migrate:
        raise StoreError(
            f"{os.fspath(path)} has schema {version}, this code needs {known[-1].number}: start the dispatcher of this "
            "version once, it brings the file up to date"
        )
    if version < known[-1].number:
        _apply(connection, known)
    version = _number(connection, "PRAGMA user_version")
    oldest_code = _number(connection, "SELECT value FROM meta WHERE name = 'oldest_code'")
    if version > known[-1].number and oldest_code > known[-1].number:
        raise SchemaMismatch(
            f"{os.fspath(path)} has schema {version}, which needs the code of schema {oldest_code} or newer; "
            f"this code knows {known[-1].number}: run the newer Gatepost"
        )


def _check_lived_in(connection: sqlite3.Connection, path: str | os.PathLike[str]) -> None:
    moved = connection.execute("SELECT value FROM meta WHERE name = ?", (MOVED,)).fetchone()
    if moved is not None:
        when = datetime.fromtimestamp(moved[0] / 1e6, UTC).isoformat(" ", "seconds")
        raise StoreError(f"everything in {os.fspath(path)} was moved to another database on {when}: use that one's URL")


def _check_unused(connection: sqlite3.Connection, path: str | os.PathLike[str]) -> None:
    application = _number(connection, "PRAGMA application_id")
    if application != APPLICATION_ID and _number(connection, "SELECT count(*) FROM sqlite_master") > 0:
        raise ConfigurationError(
            f"{os.fspath(path)} is an SQLite file of something else: give Gatepost a file of its own"
        )


def _apply(connection: sqlite3.Connection, known: Sequence[Migration]) -> None:
    """All that is missing in one transaction, so that nobody meets a file with half of them."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been first, while we waited for the lock.
        version = _number(connection, "PRAGMA user_version")
        for migration in known:
            if migration.number > version:
                for statement in _statements(migration.sql):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {migration.number}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> list[str]:
    """The statements of a script, since `executescript` would commit the transaction around them."""
    statements, pending = [], ""
    for line in script.splitlines():
        pending += line + "\n"
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    return statements


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])
