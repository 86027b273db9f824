"""The store's time: the database's clock, or in tests the clock they move.

Statements take a parameter for it, null in production, and fall back on the database's clock themselves.
"""

from __future__ import annotations

from typing import Final

from gatepost.clock import SYSTEM_CLOCK, Clock

DATABASE_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
"""SQL for UTC microseconds."""


class StoreClock:
    """`given` None: the database's clock."""

    __slots__ = ("_given",)

    def __init__(self, given: Clock | None) -> None:
        self._given = given

    def wall_us(self) -> int | None:
        """For a statement's parameter; None: let the database say."""
        return None if self._given is None else self._given.wall_us()

    def monotonic(self) -> float:
        """Seconds, for intervals of this process."""
        return (self._given or SYSTEM_CLOCK).monotonic()
