"""Which dead letters are meant: the filter of the dead letters' pages, from a query or a form, and back into links and forms.

A tenant's selection is its own letters, whatever is written. It reads text and refuses what means nothing; the store selects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Final, Self

from fastapi import Query

from gatepost.delivery.decide import Why
from gatepost.delivery.ids import DELIVERY, ENDPOINT
from gatepost.service.api.context import read_filter_id
from gatepost.service.api.problems import Problem
from gatepost.service.console.access import Access
from gatepost.store.rows import DeadFilter

REASONS: Final = (
    Why.ATTEMPTS_EXHAUSTED,
    Why.WINDOW_OVER,
    Why.GONE,
    Why.REFUSED,
    Why.URL_DENIED,
    Why.EVENT_MISSING,
)
"""Why deliveries are given up."""
TEXT_MAX: Final = 256

Given = Annotated[str, Query(max_length=TEXT_MAX)]


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions as they were written; empty: any."""

    tenant: str = ""
    endpoint: str = ""
    type: str = ""
    why: str = ""
    since: str = ""
    """When it was given up, in UTC: then or later."""
    until: str = ""
    delivery: str = ""

    @classmethod
    def of_form(cls, form: Mapping[str, str]) -> Self:
        """The selection that a form carries."""
        return cls(**{name: form[name][:TEXT_MAX] for name in cls.__dataclass_fields__ if name in form})

    @property
    def fields(self) -> dict[str, str]:
        """For links and for hidden fields."""
        return {name: text for name, text in asdict(self).items() if text.strip()}

    @property
    def empty(self) -> bool:
        """Everything is meant."""
        return not self.fields

    def filter(self, access: Access) -> DeadFilter:
        """The store's words. Raises `Problem` for what cannot be meant, and not-found for somebody else's tenant."""
        where = DeadFilter(
            tenant=access.tenant_filter(self.tenant.strip()),
            endpoint=read_filter_id("endpoint", ENDPOINT, self.endpoint.strip() or None),
            event_type=self.type.strip() or None,
            why=self.why.strip() or None,
            delivery_id=read_filter_id("delivery", DELIVERY, self.delivery.strip() or None),
            died_from=_micros("since", self.since),
            died_before=_micros("until", self.until),
        )
        if where.died_from is not None and where.died_before is not None and where.died_from >= where.died_before:
            raise Problem("invalid_request", "given up from must be before given up before")
        return where


def selection_of(
    tenant: Given = "",
    endpoint: Given = "",
    type: Given = "",  # noqa: A002 - as it stands in the address
    why: Given = "",
    since: Given = "",
    until: Given = "",
    delivery: Given = "",
) -> Selection:
    """The selection of a query: a FastAPI dependency."""
    return Selection(tenant, endpoint, type, why, since, until, delivery)


def cut_off(where: DeadFilter, died_before: int | None) -> DeadFilter:
    """The same letters without those that die later: what a replay brings back must not be taken twice."""
    if died_before is None:
        return where
    return replace(where, died_before=min(died_before, where.died_before or died_before))


def _micros(name: str, text: str) -> int | None:
    if not text.strip():
        return None
    try:
        at = datetime.fromisoformat(text.strip())
        return round((at.replace(tzinfo=UTC) if at.tzinfo is None else at).timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        raise Problem("invalid_request", f"{name}: write a time in UTC, for example 2026-11-30T08:15") from None
