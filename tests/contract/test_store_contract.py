"""Every engine keeps the store's contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatepost.clock import Clock
from gatepost.store.memory import MemoryStore
from gatepost.store.port import Store
from gatepost.store.sqlite.store import SqliteStore
from gatepost.testing.postgres_store import new_postgres
from gatepost.testing.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    """The executable specification."""

    async def open_store(self, clock: Clock) -> Store:
        """In memory."""
        return MemoryStore(clock)


class TestSqliteStore(StoreContract):
    """The embedded engine, on a real file."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    async def open_store(self, clock: Clock) -> Store:
        """On a new file."""
        return SqliteStore.open(self.directory / "gatepost.db", clock=clock)


class TestPostgresStore(StoreContract):
    """The fleet's engine, on a new database of a real server. One part, because the suite plays one owner of everything."""

    async def open_store(self, clock: Clock) -> Store:
        """On a new database."""
        return await new_postgres(clock, 1)
