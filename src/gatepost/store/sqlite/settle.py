"""Applies what attempts came to: delivered rows go, retries move, dead letters are copied out, and the log is written.

Every statement names the row exactly as it was read, so repeating a batch changes nothing; retries and dead letters of a
part whose epoch has moved on are left out. Called by `work` inside a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain

from gatepost.store.rows import AttemptRow, DeadRow, RetryRow, SettleBatch, SettleResult
from gatepost.store.sqlite.bulk import insert, where_any
from gatepost.store.sqlite.tally import Tally

_DELETE_DONE = where_any("DELETE FROM delivery WHERE", "lane = ? AND due_at = ? AND id = ?")
_INSERT_ATTEMPTS = insert("attempt", ", ".join(AttemptRow._fields), or_ignore=True)
_RETRY = """
UPDATE delivery SET due_at = ?, attempt = ? WHERE lane = ? AND due_at = ? AND id = ? AND attempt = ?"""
# Only what the statement before has moved, or what stands there from an earlier run of it.
_RETRY_HISTORY = """
UPDATE history SET at = ?1 WHERE id = ?2
 AND EXISTS (SELECT 1 FROM delivery WHERE lane = ?3 AND due_at = ?1 AND id = ?2)"""
# An event is kept while a delivery waits; a row that has lost its event all the same must not wait for ever.
_BURY = """
INSERT INTO dead (id, event_id, tenant, endpoint, event_type, content_type, attempts, why, outcome, status, died_at, body)
 SELECT d.id, d.event_id, o.tenant, o.endpoint, coalesce(e.type, ''), coalesce(e.content_type, ''),
  ?5, ?6, ?7, ?8, ?9, coalesce(e.body, x'')
 FROM delivery AS d JOIN destination AS o ON o.endpoint = d.lane >> 8 LEFT JOIN event AS e ON e.id = d.event_id
 WHERE d.lane = ?1 AND d.due_at = ?2 AND d.id = ?3 AND d.attempt = ?4"""


def settle(connection: sqlite3.Connection, tally: Tally, batches: Sequence[SettleBatch]) -> list[SettleResult]:
    """One result per batch, in order."""
    epochs: dict[int, int] = dict(connection.execute("SELECT part, epoch FROM part"))
    _complete(connection, tally, batches)
    results = []
    for batch in batches:
        fenced = frozenset(part for part, epoch in batch.epochs.items() if epochs.get(part) != epoch)
        _retry(connection, [row for row in batch.retry if row.part not in fenced])
        for row in batch.dead:
            if row.part not in fenced:
                _bury(connection, tally, row)
        results.append(SettleResult(fenced))
    attempts = list(chain.from_iterable(chain.from_iterable(batch.attempts for batch in batches)))
    tally.count("attempts", _INSERT_ATTEMPTS.run(connection, attempts))
    return results


def _complete(connection: sqlite3.Connection, tally: Tally, batches: Sequence[SettleBatch]) -> None:
    keys = [row.key for batch in batches for row in batch.done]
    lanes = [key.lane for key in keys]
    values = list(chain.from_iterable(keys))
    for at, given, removed in _DELETE_DONE.pieces(connection, values):
        piece = lanes[at : at + given]
        if removed == given:
            tally.leave(piece)
        else:
            tally.doubt(piece)


def _retry(connection: sqlite3.Connection, rows: Sequence[RetryRow]) -> None:
    if rows:
        connection.executemany(_RETRY, [(row.new_due, row.next_attempt, *row.key, row.attempt) for row in rows])
        connection.executemany(_RETRY_HISTORY, [(row.new_due, row.key.delivery_id, row.key.lane) for row in rows])


def _bury(connection: sqlite3.Connection, tally: Tally, row: DeadRow) -> None:
    lane, due_at, number = row.key
    buried = connection.execute(
        _BURY, (lane, due_at, number, row.attempt, row.attempts, row.why, row.outcome, row.status, row.died_at)
    ).rowcount
    if buried:
        connection.execute("DELETE FROM delivery WHERE lane = ? AND due_at = ? AND id = ?", row.key)
        connection.execute("UPDATE history SET state = 1, at = ? WHERE id = ?", (row.died_at, number))
        tally.leave([lane])
        tally.count("dead", 1)
