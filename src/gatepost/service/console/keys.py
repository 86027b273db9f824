"""Where the keys come from that sign the console's sessions: from those that seal endpoint secrets, so there is none to set up.

A fleet has the same keys in every process (PostgreSQL refuses to start without), an SQLite service has its key file. A store in
memory has neither, and its sessions end with the process. Called by `service.app`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gatepost.clock import SYSTEM_ENTROPY, Entropy
from gatepost.service.api.context import SIGNING_KEY_BYTES
from gatepost.store.open import sqlite_path

if TYPE_CHECKING:
    from gatepost.service.config import Settings

PURPOSE: Final = "console"
_IN_MEMORY: Final = "memory://"


def signing_keys(settings: Settings, entropy: Entropy = SYSTEM_ENTROPY) -> Sequence[bytes]:
    """The keys, the newest first. Raises `ConfigurationError` as the store does for keys that cannot be right."""
    if not settings.keys and settings.database == _IN_MEMORY:
        return (entropy.token(SIGNING_KEY_BYTES),)
    from gatepost.store.secretbox import SecretBox

    if settings.keys:
        return SecretBox([key.reveal() for key in settings.keys]).derive(PURPOSE)
    return SecretBox.for_sqlite(sqlite_path(settings.database)).derive(PURPOSE)
