"""Follows the outbox of a producer's PostgreSQL: locks what waits, has it judged, and puts it away, in one short transaction.

SKIP LOCKED passes over rows that another follower holds. A follower that dies leaves nothing locked; one that hangs is cut off
by the server. No session state and no prepared statements, so that it works through a PgBouncer that pools by transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Final

import asyncpg

from gatepost.errors import GatepostError
from gatepost.store.outbox.schema import TABLE, UNDEFINED_TABLE, event_of, missing_table, sqlstate_of
from gatepost.store.outbox.source import ROWS_MAX, Judge, Look, OutboxUnavailable, Verdict, portion
from gatepost.store.postgres.address import postgres_address

CONNECT_MAX: Final = 5.0
TRANSACTION_MAX: Final = 10.0
"""Seconds that rows may be locked, our own store's time included; then the server ends the transaction and they are free."""
SWEEP_ROWS: Final = 500

_LOOK: Final = (
    f"SELECT event_id, tenant, octet_length(body) FROM {TABLE}"  # noqa: S608 - constants
    " WHERE done_at IS NULL AND NOT tenant = ANY($2) ORDER BY event_id LIMIT $1 FOR UPDATE SKIP LOCKED"
)
_ANY: Final = f"SELECT 1 FROM {TABLE} WHERE done_at IS NULL AND NOT tenant = ANY($1) LIMIT 1"  # noqa: S608 - a constant
# Every column it has: a table that an earlier version made has no trace.
_READ: Final = f"SELECT * FROM {TABLE} WHERE event_id = ANY($1) ORDER BY event_id"  # noqa: S608
_DONE: Final = f"DELETE FROM {TABLE} WHERE event_id = ANY($1)"  # noqa: S608
_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_ASIDE: Final = f"UPDATE {TABLE} SET done_at = -{_NOW} WHERE event_id = ANY($1)"  # noqa: S608
_RENUMBER: Final = (
    f"UPDATE {TABLE} o SET event_id = n.new, created_at = {_NOW}"  # noqa: S608
    " FROM unnest($1::bigint[], $2::bigint[]) AS n(old, new) WHERE o.event_id = n.old"
)
_SWEEP: Final = (
    f"DELETE FROM {TABLE} WHERE event_id IN (SELECT event_id FROM {TABLE}"  # noqa: S608
    " WHERE done_at IS NOT NULL AND abs(done_at) < $1 LIMIT $2)"
)
_ERASE: Final = f"DELETE FROM {TABLE} WHERE event_id IN (SELECT event_id FROM {TABLE} WHERE tenant = $1 LIMIT $2)"  # noqa: S608
_LIMITS: Final = "; ".join(
    f"SET LOCAL {name} = '{TRANSACTION_MAX:.0f}s'"
    for name in ("statement_timeout", "idle_in_transaction_session_timeout")
)
_DRIVER_ERRORS: Final = (
    *(OSError, TimeoutError, EOFError),
    *(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError),
)


class PostgresSource:
    """One connection, opened when needed and given up after any fault."""

    def __init__(self, url: str) -> None:
        self._address = postgres_address(url)
        self._connection: asyncpg.Connection[Any] | None = None

    def __repr__(self) -> str:
        return f"PostgresSource({self.place})"

    @property
    def place(self) -> str:
        """Without user and password."""
        return self._address.place

    async def take(self, body_max: int, without: Collection[str], judge: Judge) -> bool:
        """One transaction: lock, judge, put away."""
        try:
            connection = await self._connected()
            # Nothing waits most of the time: one round trip, no transaction.
            if not await connection.fetch(_ANY, list(without)):
                return False
            async with asyncio.timeout(TRANSACTION_MAX + CONNECT_MAX), connection.transaction():
                return await self._take(connection, body_max, without, judge)
        except _DRIVER_ERRORS as error:
            self._terminate()
            raise self._explained(error) from error
        except BaseException:
            self._terminate()  # the transaction may be anywhere
            raise

    async def _take(
        self, connection: asyncpg.Connection[Any], body_max: int, without: Collection[str], judge: Judge
    ) -> bool:
        await connection.execute(_LIMITS)
        sizes = await connection.fetch(_LOOK, ROWS_MAX, list(without))
        ids, oversized, more = portion([(row[0], row[1], row[2]) for row in sizes], body_max)
        rows = await connection.fetch(_READ, ids) if ids else []
        look = Look([event_of(row) for row in rows], oversized, more)
        if not look:
            return False
        verdict = await judge(look)
        await self._put_away(connection, verdict)
        return more and bool(verdict)

    async def _put_away(self, connection: asyncpg.Connection[Any], verdict: Verdict) -> None:
        if verdict.done:
            await connection.execute(_DONE, verdict.done)
        if verdict.aside:
            await connection.execute(_ASIDE, verdict.aside)
        if verdict.renumbered:
            old, new = zip(*verdict.renumbered, strict=True)
            await connection.execute(_RENUMBER, list(old), list(new))

    async def sweep(self, before_us: int) -> bool:
        """Some rows that were put away long ago."""
        try:
            done = await (await self._connected()).execute(_SWEEP, before_us, SWEEP_ROWS)
        except _DRIVER_ERRORS as error:
            self._terminate()
            raise self._explained(error) from error
        return bool(done == f"DELETE {SWEEP_ROWS}")

    async def erase(self, tenant: str) -> int:
        """In portions; one that a follower holds is waited for."""
        erased = 0
        try:
            connection = await self._connect()
            try:
                while True:
                    done = int((await connection.execute(_ERASE, tenant, SWEEP_ROWS)).rpartition(" ")[2])
                    erased += done
                    if not done:
                        return erased
            finally:
                connection.terminate()
        except _DRIVER_ERRORS as error:
            raise self._explained(error) from error

    async def aclose(self) -> None:
        """Close."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=1.0)
            except _DRIVER_ERRORS:
                connection.terminate()

    async def _connected(self) -> asyncpg.Connection[Any]:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._connect()
        return self._connection

    async def _connect(self) -> asyncpg.Connection[Any]:
        return await asyncpg.connect(
            self._address.url, timeout=CONNECT_MAX, command_timeout=TRANSACTION_MAX, statement_cache_size=0
        )

    def _terminate(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    def _explained(self, error: BaseException) -> GatepostError:
        code = sqlstate_of(error)
        if code == UNDEFINED_TABLE:
            return OutboxUnavailable(f"{self.place}: {missing_table()}")
        what = type(error).__name__ if code is None else f"{type(error).__name__} {code}"
        return OutboxUnavailable(f"{self.place}: {what}: {error}")
