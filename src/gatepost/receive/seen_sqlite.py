"""A memory of webhook ids in an SQLite file, with the standard library: for the processes of one machine, kept over restarts.

Expired rows are deleted a few at a time, as new ids come. In a database that your work is written to anyway, a unique column
in the same transaction is better still: then id and work are there together, or neither is.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Final

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.receive.seen import Seen, check_seconds

BUSY_TIMEOUT: Final = 5.0
"""Seconds to wait for another writer; a claim takes well under a millisecond."""
_RETRY_PAUSE: Final = 0.005
"""Seconds between two tries to make the file."""
SWEEP_ROWS: Final = 20
"""Expired rows deleted with each claim: more than it adds, so that the table shrinks to what is kept, and no claim is slow."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS gatepost_seen (id TEXT PRIMARY KEY, state TEXT NOT NULL, until REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS gatepost_seen_until ON gatepost_seen (until);
"""


class SqliteSeenIds:
    """Ids in the file `path`, made when it is missing. Safe between threads and processes; `close()` at the end.

    Times are wall-clock seconds, since several processes must agree on them. Raises `sqlite3.Error` when the file cannot be used:
    the sender gets a 5xx and comes again.
    """

    def __init__(self, path: str | Path, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
        give_up_at = clock.monotonic() + BUSY_TIMEOUT
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.executescript(_SCHEMA)
                return
            except sqlite3.OperationalError as error:
                # Processes that make the same file at once meet here: switching to WAL does not wait for the other by itself.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or clock.monotonic() >= give_up_at:
                    self._connection.close()
                    raise
            threading.Event().wait(_RETRY_PAUSE)

    def __repr__(self) -> str:
        return f"<SqliteSeenIds {self._path}>"

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def claim(self, id: str, lease: float) -> Seen:  # noqa: A002
        """As in `SeenIds`."""
        check_seconds("lease", lease)
        now = self._clock.wall_us() / 1e6
        with self._lock, self._connection as run:
            run.execute("BEGIN IMMEDIATE")
            run.execute(
                "DELETE FROM gatepost_seen WHERE id IN (SELECT id FROM gatepost_seen WHERE until <= ? ORDER BY until LIMIT ?)",
                (now, SWEEP_ROWS),
            )
            found = run.execute("SELECT state FROM gatepost_seen WHERE id = ? AND until > ?", (id, now)).fetchone()
            if found is not None:
                return Seen(found[0])
            run.execute("INSERT OR REPLACE INTO gatepost_seen VALUES (?, ?, ?)", (id, Seen.BUSY.value, now + lease))
            return Seen.NEW

    def finish(self, id: str, keep: float) -> None:  # noqa: A002
        """As in `SeenIds`."""
        check_seconds("keep", keep)
        until = self._clock.wall_us() / 1e6 + keep
        with self._lock:
            self._connection.execute(
                "INSERT OR REPLACE INTO gatepost_seen VALUES (?, ?, ?)", (id, Seen.DONE.value, until)
            )

    def release(self, id: str) -> None:  # noqa: A002
        """As in `SeenIds`."""
        with self._lock:
            self._connection.execute("DELETE FROM gatepost_seen WHERE id = ? AND state = ?", (id, Seen.BUSY.value))
