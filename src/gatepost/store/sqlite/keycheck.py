"""Tells a wrong secret key when the file is opened, instead of at the first delivery that needs one.

Each key leaves one sealed word in the file. Called by the store when opening, before any thread runs.
"""

from __future__ import annotations

import sqlite3

from gatepost.store.key_words import judge_keys, sealed_word
from gatepost.store.secretbox import SecretBox


def check_keys(connection: sqlite3.Connection, box: SecretBox) -> None:
    """Raises `ConfigurationError` when a key is not the one of its id, or when no key of the file is given."""
    known = dict(connection.execute("SELECT key_id, sealed FROM key_check").fetchall())
    if judge_keys(known, box, "file"):
        connection.execute("INSERT INTO key_check (key_id, sealed) VALUES (?, ?)", (box.key_ids[0], sealed_word(box)))
