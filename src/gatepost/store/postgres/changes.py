"""Numbers the changes of registry records so that a follower misses none, however late a transaction commits.

The last number is one row. Whoever changes a record raises it and so holds its lock until the commit: a number becomes visible
only after all lower ones. A sequence would not do, since it hands numbers out in an order that commits do not keep: a follower
that has seen 8 would never see 7. Used by the registry, the purge of a tenant and moving house, last in their transactions.
"""

from __future__ import annotations

from collections.abc import Sequence

from gatepost.store.port import Change
from gatepost.store.postgres.pool import Connection

_NUMBER = "UPDATE gp_meta SET value = value + $1 WHERE name = 'last_change' RETURNING value"
_RECORD = """
INSERT INTO gp_change (kind, id, number)
 SELECT kind, id, $1::bigint + at FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS c (kind, id, at) ORDER BY kind, id
 ON CONFLICT (kind, id) DO UPDATE SET number = excluded.number"""
_SINCE = "SELECT kind, id, number FROM gp_change WHERE number > $1 ORDER BY number"


async def record(connection: Connection, changes: Sequence[Change]) -> None:
    """Note that these records changed, each named once; the last statements before the commit, since others wait from here on."""
    if changes:
        last: int = await connection.fetchval(_NUMBER, len(changes))
        kinds, ids = [kind for kind, _ in changes], [name for _, name in changes]
        await connection.execute(_RECORD, last - len(changes), kinds, ids)


async def since(connection: Connection, cursor: int) -> tuple[Sequence[Change], int]:
    """Changes after `cursor`, oldest first, and the new cursor."""
    rows = await connection.fetch(_SINCE, cursor)
    return [(row["kind"], row["id"]) for row in rows], rows[-1]["number"] if rows else cursor
