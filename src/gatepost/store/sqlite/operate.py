"""What operators do: cancel waiting deliveries, replay and purge dead letters; and retention's deletions by id.

Which rows are meant is found on a reader's connection; here, in the writer's transaction, each id is taken only if it still
is what it was found as. Called by `store` and `maintenance`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from gatepost.store.rows import SUB_BULK, lane_of
from gatepost.store.sqlite.bulk import where_in
from gatepost.store.sqlite.tally import Tally

PART: Final = 0
"""One process owns the file, so there is one part."""

_TAKE_WAITING = """
DELETE FROM delivery WHERE id = ?1 AND (lane, due_at) = (SELECT lane, at FROM history WHERE id = ?1 AND state = 0)
 RETURNING lane"""
_DEAD = """
SELECT d.event_id, d.endpoint, EXISTS (SELECT 1 FROM event AS e WHERE e.id = d.event_id) FROM dead AS d WHERE d.id = ?"""
_RESTORE_EVENT = """
INSERT INTO event (id, tenant, type, content_type, created_at, targets, body)
 SELECT event_id, tenant, event_type, content_type, ?2, '[]', body FROM dead WHERE id = ?1"""
# An event is kept while one of its targets waits, so a restored one must know the deliveries that brought it back.
_ADD_TARGET = """
UPDATE event SET targets = json_insert(targets, '$[#]', ?2) WHERE id = ?1
 AND NOT EXISTS (SELECT 1 FROM json_each(targets) WHERE value = ?2)"""
_DEAD_OF = where_in("SELECT id FROM dead WHERE id IN")
_DELETE_DEAD = where_in("DELETE FROM dead WHERE id IN")
_DELETE_ATTEMPTS = where_in("DELETE FROM attempt WHERE delivery_id IN")
_DELETE_HISTORY = where_in("DELETE FROM history WHERE id IN")


def cancel(connection: sqlite3.Connection, tally: Tally, ids: Sequence[int], now: int) -> list[int]:
    """Cancel those of `ids` that still wait; returns them."""
    cancelled = []
    for number in ids:
        lane = take_waiting(connection, number)
        if lane is not None:
            connection.execute("UPDATE history SET state = 2, at = ? WHERE id = ?", (now, number))
            tally.leave([lane])
            cancelled.append(number)
    return cancelled


def take_waiting(connection: sqlite3.Connection, number: int) -> int | None:
    """Remove the delivery's row if it waits; returns its lane."""
    row: tuple[int] | None = connection.execute(_TAKE_WAITING, (number,)).fetchone()
    return None if row is None else row[0]


def replay(
    connection: sqlite3.Connection, tally: Tally, ids: Sequence[int], first_due: int, spacing_us: int
) -> list[tuple[int, int, int]]:
    """Put those of `ids` that still are dead letters back to wait, in order; returns (part, lane, due_at) of each."""
    moved: list[tuple[int, int, int]] = []
    for number in ids:
        row = connection.execute(_DEAD, (number,)).fetchone()
        if row is None:
            continue
        event_id, endpoint, event_stored = row
        due = first_due + len(moved) * spacing_us
        if not event_stored:
            connection.execute(_RESTORE_EVENT, (number, due))
            tally.count("events", 1)
        connection.execute(_ADD_TARGET, (event_id, number))
        connection.execute("DELETE FROM dead WHERE id = ?", (number,))
        lane = lane_of(endpoint, SUB_BULK)
        connection.execute(
            "INSERT INTO delivery (lane, due_at, id, event_id, born_at) VALUES (?, ?, ?, ?, ?)",
            (lane, due, number, event_id, due),
        )
        connection.execute("UPDATE history SET state = 0, lane = ?, at = ? WHERE id = ?", (lane, due, number))
        tally.wait([lane])
        tally.count("dead", -1)
        moved.append((PART, lane, due))
    return moved


def purge_dead(connection: sqlite3.Connection, tally: Tally, ids: Sequence[int]) -> int:
    """Delete those of `ids` that still are dead letters, with all that is known of their deliveries; returns how many."""
    known = [row[0] for row in _DEAD_OF.fetch(connection, ids)]
    tally.count("dead", -_DELETE_DEAD.run(connection, known))
    tally.count("attempts", -_DELETE_ATTEMPTS.run(connection, known))
    _DELETE_HISTORY.run(connection, known)
    return len(known)
