"""The contract that every store keeps, as a suite to subclass: whoever writes an engine runs it, and so do we.

    class TestMyStore(StoreContract):
        async def open_store(self, clock):
            return MyStore(clock=clock)

Tests are `async def` methods with plain asserts; run them with whatever runs coroutine tests. Nothing here needs pytest.
"""

from __future__ import annotations

from gatepost.testing.contract_operators import OperatorContract
from gatepost.testing.contract_queue import QueueContract
from gatepost.testing.contract_registry import RegistryContract


class StoreContract(QueueContract, OperatorContract, RegistryContract):
    """Both ports. Give it an engine by overriding `open_store`."""
