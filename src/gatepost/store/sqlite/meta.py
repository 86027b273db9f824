"""The file's own numbers (table `meta`): node counter, markers, row counts."""

from __future__ import annotations

import sqlite3


def read_meta(connection: sqlite3.Connection, name: str) -> int:
    """A number by name."""
    return int(connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()[0])


def write_meta(connection: sqlite3.Connection, name: str, value: int) -> None:
    """Set a number."""
    connection.execute("UPDATE meta SET value = ? WHERE name = ?", (value, name))


def next_node(connection: sqlite3.Connection, nodes: int) -> int:
    """A node number, different for each of `nodes` calls."""
    row = connection.execute(
        "UPDATE meta SET value = (value + 1) % ? WHERE name = 'node' RETURNING value", (nodes,)
    ).fetchone()
    return int(row[0])
