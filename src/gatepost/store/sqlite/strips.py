"""Indexes that are written later: the rounds in which rows of an append-only table reach an index in sorted strips.

An index over random values touches a page per row (measured: 20 µs of CPU for a 30-byte row); the same rows written in sorted
strips share their pages. Until its round is over a row is found elsewhere (in memory, or in the tail of its table), and a
crash loses nothing, since the tail is read again from the marker on.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from gatepost.store.sqlite.meta import read_meta, write_meta

INDEX_LAG_MAX: Final = 32_768
"""Rows that may wait for their index before a round starts. As keys in memory they take ~6 MB, as a tail some 3 ms to scan,
and after a crash both are read again in well under a second; the more wait, the more of them share a page."""
STRIP_ROWS: Final = 256
"""Rows written per transaction before the rest waits for the next: about 2 ms. Short strips follow each other until then."""


class Rounds:
    """Which ids an index covers, and which strip is next.

    A round starts with the newest id then known as its goal and writes all strips, some per transaction; at its end the marker
    moves to the goal. A row that comes later with an id up to the goal must be written to the index directly.
    """

    __slots__ = ("_connection", "_goal", "_marker", "_name", "_newest", "_next", "_strips", "_taken")

    def __init__(self, connection: sqlite3.Connection, marker_name: str, strips: int, newest: int) -> None:
        self._connection = connection
        self._name = marker_name
        self._strips = strips
        self._marker = read_meta(connection, marker_name)
        self._goal = self._marker
        self._newest = max(newest, self._marker)
        self._next: int | None = None  # strip to write next; None between rounds
        self._taken: list[int] = []  # strips of the transaction under way

    @property
    def marker(self) -> int:
        """Rows up to this id are in the index."""
        return self._marker

    @property
    def goal(self) -> int:
        """Rows up to this id must be written to the index directly."""
        return self._goal

    @property
    def running(self) -> bool:
        """A round is under way."""
        return self._next is not None

    def covers(self, before: int) -> bool:
        """Every row with an id below `before` is in the index."""
        return self._marker >= min(before - 1, self._newest)

    def saw(self, newest: int) -> None:
        """Rows up to this id exist."""
        self._newest = max(self._newest, newest)

    def begin(self) -> None:
        """Start a round over everything that exists now, unless one is under way. Between transactions only: a row that was
        added before its own transaction moved the goal would be in neither place.
        """
        if self._next is None:
            self._goal, self._next = self._newest, 0

    def take(self) -> int | None:
        """A strip that this transaction must write, or None; with the last one the marker moves."""
        if self._next is None:
            return None
        strip = self._next + len(self._taken)
        if strip == self._strips:
            return None
        self._taken.append(strip)
        if strip == self._strips - 1:
            write_meta(self._connection, self._name, self._goal)
        return strip

    def committed(self) -> list[int]:
        """The transaction is durable; returns the strips it wrote."""
        written, self._taken = self._taken, []
        if written:
            self._next = written[-1] + 1
            if self._next == self._strips:
                self._next, self._marker = None, self._goal
        return written

    def rolled_back(self) -> None:
        """Nothing was written: the same strips are next."""
        self._taken = []
