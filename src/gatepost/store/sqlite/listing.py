"""The endpoint's list of its deliveries: writes `endpoint_history` in sorted strips, behind `history` (see `strips`).

Rows of `history` after the marker are its tail, short enough to scan. Lives in the writer thread; `views` reads.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from gatepost.store.sqlite.bulk import insert
from gatepost.store.sqlite.strips import STRIP_ROWS, Rounds

STRIPS: Final = 16
"""Each strip scans the tail once more: more strips would cost more than the pages they share."""
_STRIP_BITS: Final = 51
"""Endpoint numbers have 55 random bits (`delivery.ids`), so their upper 4 cut them into equal strips."""

_INSERT = insert("endpoint_history", "endpoint, id", or_ignore=True)


class EndpointListing:
    """Which deliveries each endpoint got."""

    __slots__ = ("_connection", "_lag_max", "_rounds", "_seen", "_since_goal", "_tail")

    def __init__(self, connection: sqlite3.Connection, lag_max: int) -> None:
        self._connection = connection
        self._lag_max = lag_max
        newest = connection.execute("SELECT coalesce(max(id), 0) FROM history").fetchone()[0]
        self._rounds = Rounds(connection, "listed_upto", STRIPS, newest)
        row = connection.execute("SELECT count(*) FROM history WHERE id > ?", (self._rounds.marker,)).fetchone()
        self._tail: int = row[0]
        self._since_goal = 0  # rows of it that the round under way will leave
        self._seen: list[int] = []  # ids added by the transaction under way

    def add(self, ids: Sequence[int], lanes: Sequence[int]) -> None:
        """These deliveries were added to history, in these lanes."""
        goal = self._rounds.goal
        if ids and min(ids) <= goal:
            late = [
                number for pair in zip(lanes, ids, strict=True) if pair[1] <= goal for number in (pair[0] >> 8, pair[1])
            ]
            _INSERT.run(self._connection, late)
        self._seen += ids

    def write_strips(self) -> None:
        """Write the next strips of the round under way."""
        written = 0
        while written < STRIP_ROWS and (strip := self._rounds.take()) is not None:
            written += self._connection.execute(
                "INSERT OR IGNORE INTO endpoint_history (endpoint, id)"
                " SELECT lane >> 8, id FROM history WHERE id > ? AND id <= ? AND lane >> 8 >> ? = ? ORDER BY 1, 2",
                (self._rounds.marker, self._rounds.goal, _STRIP_BITS, strip),
            ).rowcount

    def committed(self) -> None:
        """The transaction is durable."""
        if self._rounds.committed() and not self._rounds.running:
            self._tail = self._since_goal
        if self._seen:
            self._rounds.saw(max(self._seen))
            self._tail += len(self._seen)
            self._since_goal += len(self._seen)
            self._seen.clear()
        if self._tail > self._lag_max and not self._rounds.running:
            self._rounds.begin()
            self._since_goal = 0

    def rolled_back(self) -> None:
        """It never was."""
        self._rounds.rolled_back()
        self._seen.clear()
