"""Endpoints that take nothing: since when every attempt has failed, and when that has lasted so long that they are disabled.

A streak counts attempts that ended with blame on the endpoint or the path; what is ours counts for nobody, and one delivery
ends it. It begins anew with the endpoint's next life: one that was paused, disabled or resumed starts from nothing. Told by
`dispatch.attempt` of every attempt; the beginning of a streak survives a restart in `dispatch.endpoint_memory`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gatepost.delivery.records import DISABLE_AFTER
from gatepost.dispatch.catalogue import Catalogue, Listed
from gatepost.dispatch.endpoint_memory import EndpointMemory

DISABLE_ATTEMPTS_MIN: Final = 10
"""Attempts a streak must have: two failures a week apart say little."""
FAILING: Final = "failing"
"""Status reason of an endpoint disabled by this rule, and the section of its streak: [since, attempts]."""

_MICROSECONDS: Final = 1_000_000


class Streaks:
    """`disable` is told an endpoint and the reason; `span` is the dispatcher's own, in seconds, 0 for never."""

    def __init__(
        self,
        memory: EndpointMemory,
        catalogue: Catalogue,
        disable: Callable[[Listed, str], None],
        span: float = DISABLE_AFTER,
    ) -> None:
        self._memory = memory
        self._catalogue = catalogue
        self._disable = disable
        self._span = span

    def took(self, number: int) -> None:
        """It took a delivery."""
        if self._memory.get(number, FAILING) is not None:
            self._memory.put(number, FAILING, None)

    def failed(self, listed: Listed, now: int) -> None:
        """An attempt failed by its fault or the path's; `now` in UTC microseconds."""
        current = self._catalogue.get(listed.number)
        if current is None or not current.settings.open:
            return  # the last attempts of an endpoint that was stopped meanwhile
        since, attempts = self.streak(listed.number) or (now, 0)
        attempts += 1
        # Every attempt of thousands of dead endpoints is not worth a write: at most half of the count is lost with us.
        self._memory.put(listed.number, FAILING, [since, attempts], save=attempts & (attempts - 1) == 0)
        span = self._span if listed.endpoint.disable_after is None else listed.endpoint.disable_after
        if span and attempts >= DISABLE_ATTEMPTS_MIN and now - since >= span * _MICROSECONDS:
            self._disable(listed, FAILING)

    def streak(self, number: int) -> tuple[int, int] | None:
        """Since when (UTC microseconds) and in how many attempts it has taken nothing; None: it has not failed."""
        match self._memory.get(number, FAILING):
            case [int(since), int(attempts)]:
                return since, attempts
            case _:
                return None

    def changed(self, number: int) -> None:
        """The endpoint's record changed. One that is stopped, or gone, fails no more."""
        listed = self._catalogue.get(number)
        if listed is None or not listed.settings.open:
            self._memory.put(number, FAILING, None)
