"""An endpoint that moves leaves connections behind: they are dropped, but not by one tenant as often as it likes.

Decides when; the client does it. Connections are shared by all endpoints of a host, so that a tenant who changes a record
every second could otherwise keep everybody's connections cold. Told by the catalogue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gatepost.clock import Clock

ONCE_PER: Final = 60.0
"""Seconds between two drops that one tenant causes. What is not dropped ends by its keep-alive, at most 30 s of idleness."""
TENANTS_MAX: Final = 10_000
"""Tenants remembered; the one whose drop is oldest goes first."""


class Moves:
    """`forget` closes the idle connections of `scheme://host:port` and lets those in use finish."""

    __slots__ = ("_clock", "_forget", "_last")

    def __init__(self, clock: Clock, forget: Callable[[str], None]) -> None:
        self._clock = clock
        self._forget = forget
        self._last: OrderedDict[str, float] = OrderedDict()

    def left(self, tenant: str, origin: str) -> None:
        """An endpoint of `tenant` no longer uses `origin` the way it did."""
        now = self._clock.monotonic()
        last = self._last.get(tenant)
        if last is not None and now - last < ONCE_PER:
            return
        self._last[tenant] = now
        self._last.move_to_end(tenant)
        if len(self._last) > TENANTS_MAX:
            self._last.popitem(last=False)
        self._forget(origin)
