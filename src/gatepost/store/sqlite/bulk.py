"""Statements over many rows at once: `INSERT … VALUES (…), (…)`, `DELETE … WHERE (…) OR (…)`, `SELECT … IN (…)`.

The `sqlite3` module gives up the interpreter lock for every step and must win it back; one step for 64 rows instead of 64
keeps a busy event loop from starving the writer thread. Few lengths, so that the prepared statements stay cached.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, Final

ROWS: Final = (64, 16, 4, 1)
"""Lengths of VALUES and IN lists. 64 rows of 18 columns are 1,152 parameters, far below the 32,766 allowed."""
ALTERNATIVES: Final = (16, 4, 1)
"""Lengths of OR chains, each arm answered from the primary key. `(a, b) IN (VALUES …)` would scan the table instead."""


class BulkStatement:
    """One statement in several lengths."""

    __slots__ = ("_texts", "_width")

    def __init__(
        self, head: str, row: str, *, separator: str = ", ", tail: str = "", lengths: Sequence[int] = ROWS
    ) -> None:
        self._width = row.count("?")
        self._texts = [(length, head + separator.join([row] * length) + tail) for length in lengths]

    def run(self, connection: sqlite3.Connection, values: Sequence[Any]) -> int:
        """Execute over `values` (the rows, flattened); returns how many rows changed."""
        return sum(cursor.rowcount for cursor in self._cursors(connection, values))

    def fetch(self, connection: sqlite3.Connection, values: Sequence[Any]) -> list[Any]:
        """Execute over `values` and return all result rows."""
        rows: list[Any] = []
        for cursor in self._cursors(connection, values):
            rows += cursor.fetchall()
        return rows

    def pieces(self, connection: sqlite3.Connection, values: Sequence[Any]) -> Iterator[tuple[int, int, int]]:
        """Execute; yields (first row, rows given, rows changed) of each piece."""
        at = 0
        for cursor, given in zip(
            self._cursors(connection, values), self._lengths(len(values) // self._width), strict=True
        ):
            yield at, given, cursor.rowcount
            at += given

    def _lengths(self, rows: int) -> Iterator[int]:
        for length, _ in self._texts:
            whole, rows = divmod(rows, length)
            for _ in range(whole):
                yield length

    def _cursors(self, connection: sqlite3.Connection, values: Sequence[Any]) -> Iterator[sqlite3.Cursor]:
        at, end = 0, len(values)
        for length, text in self._texts:
            step = length * self._width
            while end - at >= step:
                yield connection.execute(text, values[at : at + step])
                at += step


def insert(table: str, columns: str, *, or_ignore: bool = False) -> BulkStatement:
    """INSERT of whole rows."""
    places = ", ".join("?" * (columns.count(",") + 1))
    verb = "INSERT OR IGNORE" if or_ignore else "INSERT"
    return BulkStatement(f"{verb} INTO {table} ({columns}) VALUES ", f"({places})")


def where_in(statement: str) -> BulkStatement:
    """`statement` ends in `IN`; the list follows."""
    return BulkStatement(f"{statement} (", "?", tail=")")


def where_any(statement: str, condition: str) -> BulkStatement:
    """`statement` ends in `WHERE`; any of the conditions follows."""
    return BulkStatement(f"{statement} ", f"({condition})", separator=" OR ", lengths=ALTERNATIVES)
