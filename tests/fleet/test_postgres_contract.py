"""PostgreSQL keeps the store's contract, both halves of it, unchanged."""

from __future__ import annotations

from gatepost.clock import Clock
from gatepost.store.port import Store
from gatepost.testing.postgres_store import new_postgres
from gatepost.testing.store_contract import StoreContract


class TestPostgresStore(StoreContract):
    """The fleet's engine, with one part as the contract's single owner expects."""

    async def open_store(self, clock: Clock) -> Store:
        """On a new database."""
        return await new_postgres(clock, 1)
