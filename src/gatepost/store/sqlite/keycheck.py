"""Tells a wrong secret key when the file is opened, instead of at the first delivery that needs one.

Each key leaves one sealed word in the file. Called by the store when opening, before any thread runs.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from gatepost.errors import ConfigurationError, StoreError
from gatepost.store.secretbox import Place, SecretBox

_WORD: Final = "gatepost"


def check_keys(connection: sqlite3.Connection, box: SecretBox) -> None:
    """Raises `ConfigurationError` when a key is not the one of its id, or when no key of the file is given."""
    known = dict(connection.execute("SELECT key_id, sealed FROM key_check").fetchall())
    for key_id in box.key_ids:
        if key_id in known:
            try:
                box.open(known[key_id], _place(key_id))
            except StoreError:
                raise ConfigurationError(
                    f"key {key_id!r} of {box.origin} is not the key of that id that sealed this file's secrets: "
                    "give the right one, or give the new key another id"
                ) from None
    if known and not set(box.key_ids) & set(known):
        raise ConfigurationError(
            f"this file's secrets are sealed with key {', '.join(map(repr, known))}; {box.origin} has only "
            f"{', '.join(map(repr, box.key_ids))}: restore the old key, and put a new one before it to change keys"
        )
    writer = box.key_ids[0]
    if writer not in known:
        connection.execute(
            "INSERT INTO key_check (key_id, sealed) VALUES (?, ?)", (writer, box.seal(_WORD, _place(writer)))
        )


def _place(key_id: str) -> Place:
    return Place("", key_id, "key_check")
