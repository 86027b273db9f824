"""One sealed word per key id, kept beside the secrets: tells a wrong key at the start. Shared by the engines on a disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gatepost.errors import ConfigurationError, StoreError
from gatepost.store.secretbox import Place, SecretBox

_WORD: Final = "gatepost"


def judge_keys(known: Mapping[str, str], box: SecretBox, what: str) -> bool:
    """Whether the word of the sealing key is still to be stored; `known` holds the stored ones by key id, `what` is a file or a
    database.

    Raises `ConfigurationError` when a key is not the one of its id, or when no stored key is among those given.
    """
    for key_id in box.key_ids:
        if key_id in known:
            try:
                box.open(known[key_id], _place(key_id))
            except StoreError:
                raise ConfigurationError(
                    f"key {key_id!r} of {box.origin} is not the key of that id that sealed this {what}'s secrets: "
                    "give the right one, or give the new key another id"
                ) from None
    if known and not set(box.key_ids) & set(known):
        raise ConfigurationError(
            f"this {what}'s secrets are sealed with key {', '.join(map(repr, known))}; {box.origin} has only "
            f"{', '.join(map(repr, box.key_ids))}: restore the old key, and put a new one before it to change keys"
        )
    return box.key_ids[0] not in known


def sealed_word(box: SecretBox) -> str:
    """The word of the sealing key."""
    return box.seal(_WORD, _place(box.key_ids[0]))


def _place(key_id: str) -> Place:
    return Place("", key_id, "key_check")
