"""Day partitions: makes them ahead, lists them, takes them away. Never waits long for a lock, since all deliveries would wait behind.

A partition that cannot be made or taken now is tried again later: until then the default partition takes its rows, or they
stay. Events, history and attempts are cut by ids, which rise with time; dead letters by their death. Called by `retention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from gatepost.delivery.ids import first_id_at
from gatepost.store.postgres.failures import sqlstate_of
from gatepost.store.postgres.pool import Connection

DAY_US: Final = 86_400_000_000
DAYS_AHEAD: Final = 3
"""A weekend in which nothing that does this is running."""
LOCK_WAIT: Final = "200ms"
"""How long everybody may have to wait behind us."""
LOCKED_MAX: Final = "2s"
"""How long a change may take once it has its locks: attaching reads the default partition through."""
NOT_NOW: Final = frozenset({"55P03", "57014", "40P01", "23514", "23505", "42P07", "42710", "42P01", "55006"})
"""Locks not free, took too long, deadlock, rows of that day in the default partition, or another process was quicker."""
BY_ID: Final = ("gp_event", "gp_history", "gp_attempt")
BY_TIME: Final = ("gp_dead",)
_TOGETHER: Final = (("gp_event",), ("gp_history", "gp_attempt"), ("gp_dead",))
"""A delivery and its attempts are dropped together, so their days are made together."""

_PARTITIONS: Final = """
SELECT p.relname AS parent, c.relname AS name, i.inhrelid IS NOT NULL AS attached, greatest(c.reltuples, 0)::bigint AS rows
 FROM unnest($1::text[]) AS t(name) JOIN pg_class AS p ON p.oid = t.name::regclass
 JOIN pg_class AS c ON c.relnamespace = p.relnamespace AND c.relkind = 'r' AND c.relname ~ ('^' || p.relname || '_p[0-9]{8}$')
 LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid ORDER BY c.relname"""


class Partition(NamedTuple):
    """A day of a table."""

    parent: str
    day: int
    """Days since 1970."""
    attached: bool
    """False: it was taken away and is still to be dropped."""
    rows: int
    """The server's estimate."""

    @property
    def name(self) -> str:
        """Its table."""
        return name_of(self.parent, self.day)


def name_of(parent: str, day: int) -> str:
    """The table of a day."""
    return f"{parent}_p{datetime.fromtimestamp(day * 86_400, UTC):%Y%m%d}"


def bounds(parent: str, day: int) -> tuple[int, int]:
    """First value of a day, and the first of the next."""
    begin, end = day * DAY_US, (day + 1) * DAY_US
    return (begin, end) if parent in BY_TIME else (first_id_at(begin), first_id_at(end))


async def partitions(connection: Connection) -> list[Partition]:
    """All of them, oldest first within a parent."""
    found = []
    for parent, name, attached, rows in await connection.fetch(_PARTITIONS, list(BY_ID + BY_TIME)):
        day = datetime.strptime(name[-8:], "%Y%m%d").replace(tzinfo=UTC)
        found.append(Partition(parent, int(day.timestamp()) // 86_400, attached, rows))
    return found


async def make_ahead(connection: Connection, now: int) -> int:
    """Make the partitions of today and the days to come, as far as that is possible now; returns how many days of a table."""
    today = now // DAY_US
    known = {(one.parent, one.day) for one in await partitions(connection)}
    made = 0
    for day in range(today, today + DAYS_AHEAD + 1):
        for parents in _TOGETHER:
            missing = [parent for parent in parents if (parent, day) not in known]
            if missing and await _make(connection, missing, day):
                made += len(missing)
    return made


async def _make(connection: Connection, parents: Sequence[str], day: int) -> bool:
    statements = []
    for parent in parents:
        name, (begin, end) = name_of(parent, day), bounds(parent, day)
        key = "died_at" if parent in BY_TIME else "delivery_id" if parent == "gp_attempt" else "id"
        used = f"SELECT EXISTS (SELECT 1 FROM {parent}_default WHERE {key} >= {begin} AND {key} < {end})"  # noqa: S608 - our own words
        if await connection.fetchval(used):
            return False  # its rows are there already, and are deleted there in portions
        statements += [
            # Attached, not created in place: that would lock the whole table instead of its default partition only.
            f"CREATE TABLE {name} (LIKE {parent} INCLUDING ALL)",
            f"ALTER TABLE {parent} ATTACH PARTITION {name} FOR VALUES FROM ({begin}) TO ({end})",
        ]
    return await briefly_locked(connection, statements)


async def take_away(connection: Connection, days: Sequence[Partition], carry: Sequence[str]) -> bool:
    """Detach partitions and run `carry` in the same transaction; False when that is not possible now."""
    statements = [f"LOCK TABLE {one.parent} IN ACCESS EXCLUSIVE MODE" for one in days]
    statements += [f"ALTER TABLE {one.parent} DETACH PARTITION {one.name}" for one in days]
    return await briefly_locked(connection, [*statements, *carry])


async def drop(connection: Connection, day: Partition) -> bool:
    """Drop a detached partition: nobody can see it any more, so nobody waits while its files are removed."""
    return await briefly_locked(connection, [f"DROP TABLE IF EXISTS {day.name}"])


async def briefly_locked(connection: Connection, statements: Sequence[str]) -> bool:
    """Run statements in one transaction that waits for no lock and holds none for long; False when that was not possible."""
    try:
        async with connection.transaction():
            await connection.execute(
                f"SET LOCAL lock_timeout = '{LOCK_WAIT}'; SET LOCAL statement_timeout = '{LOCKED_MAX}'"
            )
            for statement in statements:
                await connection.execute(statement)
    except Exception as error:
        if sqlstate_of(error) in NOT_NOW:
            return False
        raise
    return True
