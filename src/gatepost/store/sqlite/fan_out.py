"""Events whose targets are too many for one transaction: where each of them stands.

The cursor moves in the transaction that adds the targets (`intake`), so a crash at any point leaves both or neither. Reads
are for a reader's connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

from gatepost.store.rows import FanOut, Target
from gatepost.store.sqlite.bulk import insert

PART: Final = 0
"""One process owns the file, so there is one part."""

_INSERT = insert("fan_out", "event_id, tenant, type, sub, due_at, after")
# The event's list of its deliveries is a JSON array as `intake` writes it: "[]" or "[1,2]".
_ADD_TO_LIST = """
UPDATE event SET targets = CASE targets WHEN '[]' THEN '[' ELSE substr(targets, 1, length(targets) - 1) || ',' END || ?2 || ']'
 WHERE id = ?1"""


def begin(connection: sqlite3.Connection, fan_outs: Iterable[FanOut]) -> None:
    """Store the cursors of new events."""
    values: list[Any] = []
    for fan_out in fan_outs:
        values += (fan_out.event_id, fan_out.tenant, fan_out.type, fan_out.sub, fan_out.due_at, fan_out.after)
    _INSERT.run(connection, values)


def unfinished(connection: sqlite3.Connection, limit: int) -> list[FanOut]:
    """Cursors in order of their events."""
    query = "SELECT event_id, ?, tenant, type, sub, due_at, after FROM fan_out ORDER BY event_id LIMIT ?"
    return [FanOut(*row) for row in connection.execute(query, (PART, limit))]


def move(connection: sqlite3.Connection, fan_out: FanOut, after: int | None) -> int | None:
    """Move a cursor that still is where `fan_out` says; None removes it.

    Returns the start of the event's delivery windows, or None when the cursor is somewhere else: then nothing may be added.
    """
    where = (fan_out.event_id, fan_out.after)
    if after is None:
        moved = connection.execute("DELETE FROM fan_out WHERE event_id = ? AND after = ?", where).rowcount
    else:
        moved = connection.execute(
            "UPDATE fan_out SET after = ? WHERE event_id = ? AND after = ?", (after, *where)
        ).rowcount
    if not moved:
        return None
    return int(connection.execute("SELECT created_at FROM event WHERE id = ?", (fan_out.event_id,)).fetchone()[0])


def list_targets(connection: sqlite3.Connection, event_id: int, targets: Sequence[Target]) -> None:
    """Note in the event which deliveries it got, by which retention knows how long it is needed."""
    if targets:
        ids = ",".join(str(target.delivery_id) for target in targets)
        connection.execute(_ADD_TO_LIST, (event_id, ids))
