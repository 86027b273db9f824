"""Tells a wrong secret key when a process opens the database, instead of at the first delivery that needs one.

Each key leaves one sealed word. On a shared database there is no generated key file: a key that only one machine has would
make the secrets it sealed useless to all others. Called by the store when it opens.
"""

from __future__ import annotations

from collections.abc import Sequence

from gatepost.errors import ConfigurationError
from gatepost.store.key_words import judge_keys, sealed_word
from gatepost.store.postgres.pool import Connection
from gatepost.store.secretbox import SecretBox


def box_of(keys: Sequence[str] | None) -> SecretBox:
    """The box for these keys. Raises `ConfigurationError` without any, saying what to write."""
    if not keys:
        raise ConfigurationError(
            "a PostgreSQL database is shared, so every process needs the same keys for endpoint secrets: write security.keys "
            f"(or GATEPOST_SECURITY_KEYS, or keys=[…] of Dispatcher.open) with a key such as {SecretBox.new_key()!r}, made once and "
            "given to every process"
        )
    return SecretBox(keys)


async def check_keys(connection: Connection, box: SecretBox) -> None:
    """Raises `ConfigurationError` when a key is not the one of its id, or when no key of the database is given."""
    rows = await connection.fetch("SELECT key_id, sealed FROM gp_key_check")
    known = {row["key_id"]: row["sealed"] for row in rows}
    if judge_keys(known, box, "database"):
        # Another process may be first with the same key: then its word is as good as ours, and is judged like any.
        insert = "INSERT INTO gp_key_check (key_id, sealed) VALUES ($1, $2) ON CONFLICT (key_id) DO NOTHING"
        await connection.execute(insert, box.key_ids[0], sealed_word(box))
        rows = await connection.fetch("SELECT key_id, sealed FROM gp_key_check")
        judge_keys({row["key_id"]: row["sealed"] for row in rows}, box, "database")
