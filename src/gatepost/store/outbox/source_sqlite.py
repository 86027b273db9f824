"""Follows the outbox of a producer's SQLite file: reads what waits, has it judged, and deletes it when the file can be written.

SQLite has one writer. While a producer's transaction is open the end of what was taken cannot be recorded: it is remembered here
and recorded later, and what is taken meanwhile is read all the same. All work on the file is done in one thread of its own.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from gatepost.clock import SYSTEM_CLOCK
from gatepost.store.outbox.schema import TABLE, event_of, missing_table
from gatepost.store.outbox.source import ROWS_MAX, Judge, Look, OutboxUnavailable, Verdict, portion
from gatepost.store.sqlite.connection import is_busy

BUSY_TIMEOUT: Final = 0.05
"""Seconds to wait for a producer's transaction; the next look is soon."""
SWEEP_ROWS: Final = 500

_HAS_TABLE: Final = f"SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{TABLE}'"  # noqa: S608 - a constant
_LOOK: Final = (
    f"SELECT event_id, tenant, length(body) FROM {TABLE} WHERE done_at IS NULL"  # noqa: S608
    " AND event_id NOT IN (SELECT value FROM json_each(?)) AND tenant NOT IN (SELECT value FROM json_each(?))"
    " ORDER BY event_id LIMIT ?"
)
# Every column it has: a table that an earlier version made has no trace.
_READ: Final = (
    f"SELECT * FROM {TABLE}"  # noqa: S608
    " WHERE event_id IN (SELECT value FROM json_each(?)) ORDER BY event_id"
)
_DONE: Final = f"DELETE FROM {TABLE} WHERE event_id = ?"  # noqa: S608
_ASIDE: Final = f"UPDATE {TABLE} SET done_at = -? WHERE event_id = ?"  # noqa: S608
_RENUMBER: Final = f"UPDATE {TABLE} SET event_id = ?, created_at = ? WHERE event_id = ?"  # noqa: S608
_SWEEP: Final = (
    f"DELETE FROM {TABLE} WHERE event_id IN (SELECT event_id FROM {TABLE}"  # noqa: S608
    " WHERE done_at IS NOT NULL AND abs(done_at) < ? LIMIT ?)"
)
_ERASE: Final = f"DELETE FROM {TABLE} WHERE tenant = ?"  # noqa: S608
ERASE_BUSY_TIMEOUT: Final = 10.0
"""Seconds to wait for a producer's transaction where nothing else waits for us."""

T = TypeVar("T")


class SqliteSource:
    """One connection in one thread, opened when needed; the file must exist, and is left in the journal mode it has."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._unrecorded = Verdict()
        """Judged, and not yet written down."""

    def __repr__(self) -> str:
        return f"SqliteSource({self._path})"

    @property
    def place(self) -> str:
        """The file."""
        return f"sqlite:///{self._path}"

    async def take(self, body_max: int, without: Collection[str], judge: Judge) -> bool:
        """Read, judge, record."""
        look = await self._run(lambda: self._look(body_max, without))
        if not look:
            return False
        verdict = await judge(look)
        self._unrecorded.done += verdict.done
        self._unrecorded.aside += verdict.aside
        self._unrecorded.renumbered += verdict.renumbered
        await self._run(self._record)
        return look.more and bool(verdict)

    async def sweep(self, before_us: int) -> bool:
        """Some rows that were put away long ago."""

        def remove() -> bool:
            return self._connected().execute(_SWEEP, (before_us, SWEEP_ROWS)).rowcount == SWEEP_ROWS

        return await self._run(remove) or False

    async def erase(self, tenant: str) -> int:
        """What is deleted is overwritten, as in our own file."""
        return await asyncio.to_thread(self._erase, tenant)

    async def aclose(self) -> None:
        """Close the file and end the thread."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            await asyncio.get_running_loop().run_in_executor(thread, self._close)
            thread.shutdown(wait=False)

    # ---------------------------------------------------------------------------------------- in the thread

    async def _run(self, work: Callable[[], T]) -> T | None:
        """The result of `work` in the thread; None while a producer holds the file."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "gatepost outbox")
        # Shielded: a look that is cancelled half-way would leave the thread's connection to two.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, work))

    def _guarded(self, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except sqlite3.Error as error:
            if is_busy(error):
                return None
            missing = self._connection is not None and not self._has_table()
            self._close()
            name = getattr(error, "sqlite_errorname", type(error).__name__)
            what = str(missing_table()) if missing else f"{name}: {error}"
            raise OutboxUnavailable(f"{self.place}: {what}") from error

    def _erase(self, tenant: str) -> int:
        try:
            with closing(_open(self._path, ERASE_BUSY_TIMEOUT)) as connection:
                connection.execute("PRAGMA secure_delete = ON")
                return connection.execute(_ERASE, (tenant,)).rowcount
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", type(error).__name__)
            raise OutboxUnavailable(f"{self.place}: {name}: {error}") from error

    def _has_table(self) -> bool:
        assert self._connection is not None
        try:
            return self._connection.execute(_HAS_TABLE).fetchone() is not None
        except sqlite3.Error:
            return True  # it cannot be told

    def _look(self, body_max: int, without: Collection[str]) -> Look:
        self._record_if_possible()
        connection, pending = self._connected(), self._unrecorded
        hidden = [*pending.done, *pending.aside, *(old for old, _ in pending.renumbered)]
        sizes = connection.execute(_LOOK, (_json(hidden), _json(without), ROWS_MAX)).fetchall()
        ids, oversized, more = portion(sizes, body_max)
        if not ids:
            return Look([], oversized, more)
        cursor = connection.execute(_READ, (_json(ids),))
        names = [column[0] for column in cursor.description]
        return Look([event_of(dict(zip(names, row, strict=True))) for row in cursor], oversized, more)

    def _record_if_possible(self) -> None:
        try:
            self._record()
        except sqlite3.Error as error:
            if not is_busy(error):
                raise

    def _record(self) -> None:
        """Write down what was judged, in one transaction; safe to repeat."""
        verdict = self._unrecorded
        if not verdict:
            return
        connection, now = self._connected(), SYSTEM_CLOCK.wall_us()
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(_DONE, [(event_id,) for event_id in verdict.done])
            connection.executemany(_ASIDE, [(now, event_id) for event_id in verdict.aside])
            connection.executemany(_RENUMBER, [(new, now, old) for old, new in verdict.renumbered])
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        self._unrecorded = Verdict()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _open(self._path, BUSY_TIMEOUT)
            # One row with a broken text must not make all unreadable; it is refused for what it says.
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _open(path: str, patience: float) -> sqlite3.Connection:
    # Not created: a file that is not there is a wrong path, or a producer that has not started.
    uri = f"file:{quote(str(Path(path).absolute()))}?mode=rw"
    return sqlite3.connect(uri, uri=True, timeout=patience, isolation_level=None, check_same_thread=False)


def _json(values: Collection[int] | Collection[str]) -> str:
    import json

    return json.dumps(list(values))
