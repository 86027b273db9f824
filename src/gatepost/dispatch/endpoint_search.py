"""Endpoints by a word of their id, URL, tenant or description: a page of a list, from the registry in memory.

No engine has an index for that, and every process has all endpoints at hand. A call looks at a bounded number of them, so that
nobody waits behind a search over a hundred thousand. Asked by the console.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, Literal

from gatepost.delivery.ids import ENDPOINT, decode_id
from gatepost.delivery.records import Endpoint, EndpointStatus
from gatepost.dispatch.catalogue import Catalogue, Listed
from gatepost.store.rows import Page

LOOKED_AT_MAX: Final = 20_000
"""Endpoints that one call looks at: some 10 ms. Where nothing was found among them the page is short and says where to go on."""
WORD_CHARS_MAX: Final = 200

Shown = Literal["active", "paused", "disabled", "unverified"]
"""What a list is narrowed to: a status, or those whose certificate nobody has seen yet."""


class EndpointSearch:
    """O(endpoints of the tenant) numbers are put in order for each page, O(looked at) texts are compared."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def get(self, number: int) -> Endpoint | None:
        """The record behind a number, None when it is gone."""
        listed = self._catalogue.get(number)
        return None if listed is None else listed.endpoint

    def page(
        self, tenant: str | None, word: str = "", state: Shown | None = None, after: str | None = None, limit: int = 50
    ) -> Page[Listed]:
        """Endpoints in order of id, as the store lists them, behind the id `after`. A page may be short while `next` says there
        are more. `ValueError` for an `after` that is no endpoint's id."""
        owned = self._catalogue.numbers if tenant is None else self._catalogue.endpoints_of(tenant).keys()
        numbers = sorted(owned)  # nearly in order already, since they were read so
        begin = 0 if after is None else bisect_right(numbers, decode_id(ENDPOINT, after))
        wanted = word[:WORD_CHARS_MAX].casefold().strip()
        found: list[Listed] = []
        for place in range(begin, min(len(numbers), begin + LOOKED_AT_MAX)):
            listed = self._catalogue.get(numbers[place])
            assert listed is not None, "no await since the numbers were read"
            if _is_meant(listed, wanted, state):
                if len(found) == limit:
                    return Page(found, found[-1].endpoint.id)
                found.append(listed)
        end = begin + LOOKED_AT_MAX
        last = self._catalogue.get(numbers[end - 1]) if end < len(numbers) else None
        return Page(found, None if last is None else last.endpoint.id)


def _is_meant(listed: Listed, wanted: str, state: Shown | None) -> bool:
    endpoint = listed.endpoint
    match state:
        case None:
            pass
        case "unverified":
            if endpoint.unverified is None:
                return False
        case _:
            if endpoint.status is not EndpointStatus(state):
                return False
    return not wanted or any(
        wanted in text.casefold() for text in (endpoint.url, endpoint.id, endpoint.tenant, endpoint.description)
    )
