"""Which store a URL names, and what is said about one that names none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatepost.errors import ConfigurationError
from gatepost.store.memory import MemoryStore
from gatepost.store.open import open_store, sqlite_path
from gatepost.store.secretbox import SecretBox
from gatepost.store.sqlite.store import SqliteStore


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///gatepost.db", "gatepost.db"),
        ("sqlite:////var/lib/gatepost.db", "/var/lib/gatepost.db"),
        ("sqlite:///with%20blank/a%23b.db", "with blank/a#b.db"),
    ],
)
def test_three_slashes_and_a_path(url: str, path: str) -> None:
    """As in other tools of this field: a fourth slash makes it absolute."""
    assert sqlite_path(url) == path


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://host/db", "every process needs the same keys"),
        ("postgres://host/db", "every process needs the same keys"),
        ("mysql://host/db", "does not name a store"),
        ("gatepost.db", "does not name a store"),
        ("", "does not name a store"),
        ("sqlite://", "a path"),
        ("sqlite:///", "a path"),
        ("sqlite://gatepost.db", "there is no host"),
        ("sqlite:///gatepost.db?mode=ro", "no options"),
        ("sqlite:///:memory:", "memory://"),
        ("memory://name", "write memory://"),
    ],
)
async def test_other_urls_are_refused_with_what_to_write(url: str, message: str) -> None:
    """Before any file is touched."""
    with pytest.raises(ConfigurationError, match=message):
        await open_store(url)


async def test_each_scheme_opens_its_engine(tmp_path: Path) -> None:
    """Keys are used when given, else a key file appears beside the database."""
    assert isinstance(await open_store("memory://"), MemoryStore)
    for name, keys in (("a.db", None), ("b.db", [SecretBox.new_key()])):
        store = await open_store(f"sqlite:///{tmp_path}/{name}", keys=keys)
        assert isinstance(store, SqliteStore)
        assert store.capabilities.durability == "fsync"
        await store.aclose()
        assert key_file(tmp_path, name) == (keys is None)


def key_file(directory: Path, name: str) -> bool:
    """Whether a key file lies beside the database."""
    return (directory / f"{name}.key").exists()
