"""What operators' calls ask of whoever holds the queue in memory: the dispatcher's worker implements it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Keeper(Protocol):
    """Rows in memory must not start while an operator removes them from the store, and must be found when one adds some."""

    def hold_back(self, endpoint: int) -> None:
        """Start and read nothing of an endpoint until as many `let_go`."""
        ...

    def let_go(self, endpoint: int) -> None:
        """End of one `hold_back`."""
        ...

    async def wait_quiet(self, endpoint: int) -> None:
        """Until nothing of the endpoint is in flight or unsettled."""
        ...

    def forget(self, delivery_ids: Collection[int]) -> None:
        """These rows are gone from the store."""
        ...

    def rows_gone(self, endpoints: Collection[int]) -> None:
        """Rows of these endpoints were removed: other processes that hold them must hear of it."""
        ...

    def expect(self, part: int, lane: int, due_at: int) -> None:
        """A row was added to a lane."""
        ...
