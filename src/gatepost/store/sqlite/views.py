"""What operators look at: deliveries, their attempts, dead letters. Plain queries on a reader's connection.

`finder` says which deliveries a page holds; this module shows them. Rows of dead letters are listed without their bodies.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from gatepost.store.paging import check_limit, check_listing, decode_numbers, encode_cursor
from gatepost.store.rows import AttemptRow, DeadFilter, DeadLetter, DeliveryFilter, DeliveryInfo, Page
from gatepost.store.showing import delivery_info
from gatepost.store.sqlite.bulk import where_in
from gatepost.store.sqlite.finder import NEWEST, WALK_MAX, find, newest_of
from gatepost.store.sqlite.tally import Tally

_SHOW = where_in("""
SELECT h.id, h.event_id, o.tenant, o.endpoint, h.state, h.at, d.attempt, coalesce(e.type, x.event_type, ''),
  a.number, a.outcome, a.status, a.started_at + a.elapsed_us, x.attempts, x.outcome, x.status
 FROM history AS h JOIN destination AS o ON o.endpoint = h.lane >> 8
 LEFT JOIN delivery AS d ON h.state = 0 AND d.lane = h.lane AND d.due_at = h.at AND d.id = h.id
 LEFT JOIN event AS e ON e.id = h.event_id
 LEFT JOIN dead AS x ON h.state = 1 AND x.id = h.id
 LEFT JOIN attempt AS a ON a.delivery_id = h.id
  AND a.started_at = (SELECT max(started_at) FROM attempt WHERE delivery_id = h.id)
 WHERE h.id IN""")
_ATTEMPTS = f"SELECT {', '.join(AttemptRow._fields)} FROM attempt WHERE delivery_id = ? ORDER BY started_at"  # noqa: S608
# Word for word the condition of the index attempt_remarkable: what is not prompt (rows.PROMPT_US).
REMARKABLE: Final = (
    "number > 1 OR decision <> 'complete' OR started_at / 1000 - (delivery_id >> 22) > 1735689600000 + 10000"
)
_REMARKABLE = (
    f"SELECT {', '.join(AttemptRow._fields)} FROM attempt WHERE endpoint = ? AND ({REMARKABLE})"  # noqa: S608
    " ORDER BY started_at DESC LIMIT ?"
)
_PROMPT = where_in(f"SELECT {', '.join(AttemptRow._fields)} FROM attempt WHERE NOT ({REMARKABLE}) AND delivery_id IN")  # noqa: S608
_DEAD_COLUMNS: Final = (
    "id, event_id, tenant, endpoint, event_type, content_type, attempts, why, outcome, status, died_at"
)
_DEAD_TESTS: Final = (
    # The first that is given chooses the index; all that are given hold.
    ("delivery_id", "id = :delivery_id"),
    ("endpoint", "endpoint = :endpoint"),
    ("tenant", "tenant = :tenant"),
    ("event_type", "event_type = :event_type"),
    ("why", "why = :why"),
    ("died_from", "died_at >= :died_from"),
    ("died_before", "died_at < :died_before"),
)


def deliveries(
    connection: sqlite3.Connection, tally: Tally, where: DeliveryFilter, after: str | None, limit: int
) -> Page[DeliveryInfo]:
    """A page of deliveries, newest first."""
    check_limit(limit)
    check_listing(where)
    start = decode_numbers(after, 1)
    ids, resume = find(connection, tally, where, start[0] if start else NEWEST, limit + 1)
    if len(ids) > limit:
        resume = ids[limit - 1]
    return Page(show(connection, ids[:limit]), None if resume is None else encode_cursor(resume))


def show(connection: sqlite3.Connection, ids: Sequence[int]) -> list[DeliveryInfo]:
    """The deliveries of these ids that exist, newest first."""
    return [delivery_info(*row) for row in sorted(_SHOW.fetch(connection, ids), reverse=True, key=lambda row: row[0])]


def attempts_of(connection: sqlite3.Connection, delivery_id: int) -> list[AttemptRow]:
    """The attempt log of one delivery, oldest first."""
    return list(map(AttemptRow._make, connection.execute(_ATTEMPTS, (delivery_id,))))


def newest_attempts(connection: sqlite3.Connection, endpoint: int, limit: int) -> list[AttemptRow]:
    """The newest attempts at an endpoint, newest first: what has an order of its own, and what its newest deliveries show."""
    check_limit(limit)
    found = list(map(AttemptRow._make, connection.execute(_REMARKABLE, (endpoint, limit))))
    prompt: list[AttemptRow] = []
    for walk in (limit, WALK_MAX):
        ids = newest_of(connection, endpoint, max(walk, limit))
        prompt = list(map(AttemptRow._make, _PROMPT.fetch(connection, ids)))
        if len(prompt) >= limit or len(ids) < walk:
            break
    return sorted(found + prompt, key=lambda row: (row.started_at, row.delivery_id), reverse=True)[:limit]


def dead_letter(connection: sqlite3.Connection, delivery_id: int) -> DeadLetter | None:
    """One dead letter with its body."""
    row = connection.execute(f"SELECT {_DEAD_COLUMNS}, body FROM dead WHERE id = ?", (delivery_id,)).fetchone()  # noqa: S608
    return None if row is None else DeadLetter(*row)


def dead_letters(connection: sqlite3.Connection, where: DeadFilter, after: str | None, limit: int) -> Page[DeadLetter]:
    """A page of dead letters, newest death first."""
    check_limit(limit)
    start = decode_numbers(after, 2)
    tests, values = _dead_tests(where, ("event_type", "why"))
    if start is not None:
        tests.append("(died_at, id) < (:start_at, :start_id)")
        values |= {"start_at": start[0], "start_id": start[1]}
    # Type and reason have no order of their own: they are tested on a bounded number of rows.
    query = f"SELECT {_DEAD_COLUMNS} FROM dead {_where(tests)} ORDER BY died_at DESC, id DESC LIMIT :walk"  # noqa: S608
    walked = [
        DeadLetter(*row) for row in connection.execute(query, values | {"walk": max(WALK_MAX, limit + 1)}).fetchall()
    ]
    found = [
        letter for letter in walked if where.event_type in (None, letter.event_type) and where.why in (None, letter.why)
    ]
    last = None
    if len(found) > limit:
        last = found[limit - 1]
    elif len(walked) >= max(WALK_MAX, limit + 1):
        last = walked[-1]
    return Page(found[:limit], None if last is None else encode_cursor(last.died_at, last.delivery_id))


def dead_ids(connection: sqlite3.Connection, where: DeadFilter, limit: int) -> list[int]:
    """Ids of up to `limit` dead letters that match, oldest death first. May read all of them: not for the writer."""
    tests, values = _dead_tests(where)
    query = f"SELECT id FROM dead {_where(tests)} ORDER BY died_at, id LIMIT :limit"  # noqa: S608 - our own words
    return [row[0] for row in connection.execute(query, values | {"limit": limit})]


def _dead_tests(where: DeadFilter, leave_out: Sequence[str] = ()) -> tuple[list[str], dict[str, Any]]:
    given = {name: getattr(where, name) for name, _ in _DEAD_TESTS}
    tests = [test for name, test in _DEAD_TESTS if given[name] is not None and name not in leave_out]
    return tests, {name: value for name, value in given.items() if value is not None}


def _where(tests: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(tests)}" if tests else ""
