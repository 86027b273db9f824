"""Parts on PostgreSQL keep the ownership contract, with sessions that are real connections."""

from __future__ import annotations

from gatepost.clock import Clock
from gatepost.store.port import Store
from gatepost.store.postgres.store import PostgresStore
from gatepost.testing.contract_ownership import OwnershipContract
from gatepost.testing.postgres_store import end_session, new_postgres, open_postgres
from gatepost.testing.virtual import VirtualClock

PARTS = 8


class TestPostgresOwnership(OwnershipContract):
    """Two stores on one database."""

    async def open_store(self, clock: Clock) -> Store:
        """On a new database."""
        self.clock = clock
        return await new_postgres(clock, PARTS)

    async def open_peer(self, store: Store) -> Store:
        """A second process."""
        assert isinstance(store, PostgresStore)
        assert isinstance(self.clock, VirtualClock)
        return await open_postgres(store.url, self.clock)

    async def lose_session(self, store: Store) -> None:
        """Its server process is ended."""
        assert isinstance(store, PostgresStore)
        await end_session(store, store.url)
