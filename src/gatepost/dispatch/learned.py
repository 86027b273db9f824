"""What is known about an endpoint's limits by whoever owns it: from this process, or from what its owner stored last.

It reads and never changes a limit. Called by the API for the endpoint's record and for `policy explain`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

from gatepost.admission.endpoint_limits import EndpointLimits, EndpointStatistics
from gatepost.dispatch.catalogue import Catalogue
from gatepost.dispatch.endpoint_memory import Value, sections_of
from gatepost.dispatch.limits import SECTION, DispatchLimits
from gatepost.store.port import DeliveryStore


@dataclass(frozen=True, slots=True)
class KnownLimits:
    """The limits of one endpoint, and where that comes from."""

    statistics: EndpointStatistics
    live: bool
    """This process attempts the endpoint. False: as stored, up to five minutes ago (a breaker's change: seconds), and what is
    in flight is not known."""


class LearnedLimits:
    """Looks an endpoint up; O(1), and one read of the store when it is another process'."""

    def __init__(self, store: DeliveryStore, catalogue: Catalogue, limits: DispatchLimits) -> None:
        self._store = store
        self._catalogue = catalogue
        self._limits = limits

    async def of(self, number: int) -> KnownLimits | None:
        """None: there is no such endpoint, or nobody has learned anything about it. Raises `StoreError`."""
        here = self._limits.endpoint(number)
        if here is not None:
            return KnownLimits(here, live=True)
        state = (await self._store.load_states([number])).get(number)
        return None if state is None else self.known(number, sections_of(state))

    def known(self, number: int, stored: Mapping[str, Value] | None) -> KnownLimits | None:
        """As `of`, from a stored state that was read already; None: there is none."""
        here = self._limits.endpoint(number)
        if here is not None:
            return KnownLimits(here, live=True)
        listed = self._catalogue.get(number)
        packed = None if stored is None else stored.get(SECTION)
        if listed is None or not isinstance(packed, str):
            return None
        try:
            limits = EndpointLimits.from_bytes(base64.b85decode(packed), self._limits.rules_of(listed))
        except (ValueError, binascii.Error):
            return None  # written by another version
        return KnownLimits(limits.statistics(), live=False)
