"""Engines that several processes may share keep the ownership contract."""

from __future__ import annotations

from gatepost.clock import Clock
from gatepost.store.memory import MemoryStore
from gatepost.store.port import Store
from gatepost.testing.contract_ownership import OwnershipContract


class TestMemoryStore(OwnershipContract):
    """The executable specification, with eight parts."""

    async def open_store(self, clock: Clock) -> Store:
        """In memory."""
        return MemoryStore(clock, parts=8)

    async def open_peer(self, store: Store) -> Store:
        """Another view of it."""
        assert isinstance(store, MemoryStore)
        return store.peer()

    async def lose_session(self, store: Store) -> None:
        """As a crash would."""
        assert isinstance(store, MemoryStore)
        store.lose_session()
