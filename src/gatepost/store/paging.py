"""Opaque cursors of the operators' lists, and what their filters must name.

A cursor is the sort key of the last row seen, written so that nobody is tempted to build one. Called by every engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from gatepost.delivery.ids import first_id_at
from gatepost.errors import ConfigurationError
from gatepost.store.rows import DeliveryFilter, Page

Item = TypeVar("Item")


def encode_cursor(*key: int | str) -> str:
    """The cursor that goes on after the row with this sort key."""
    return ".".join(f"{part:x}" if isinstance(part, int) else part.encode().hex() for part in key)


def decode_numbers(cursor: str | None, count: int) -> tuple[int, ...] | None:
    """The numbers behind a cursor, None for the first page. Raises `ConfigurationError` for a foreign one."""
    if cursor is None:
        return None
    try:
        numbers = tuple(int(part, 16) for part in cursor.split("."))
    except ValueError:
        numbers = ()
    if len(numbers) != count or any(not -(1 << 63) <= number < 1 << 63 for number in numbers):
        raise _foreign(cursor)
    return numbers


def decode_text(cursor: str | None) -> str | None:
    """The text behind a cursor, None for the first page. Raises `ConfigurationError` for a foreign one."""
    if cursor is None:
        return None
    try:
        return bytes.fromhex(cursor).decode()
    except ValueError:
        raise _foreign(cursor) from None


def decode_event_type(cursor: str | None) -> tuple[str, str]:
    """Tenant and type behind a cursor of `event_types`, before all of them for the first page."""
    tenant, _, event_type = (decode_text(cursor) or "").rpartition(" ")
    return tenant, event_type


def text_page(items: Sequence[Item], names: Sequence[str], limit: int) -> Page[Item]:
    """A page of at most `limit` of `items`, which hold one more than that when there is a next page."""
    more = len(items) > limit
    return Page(items[:limit], encode_cursor(names[limit - 1]) if more else None)


def check_limit(limit: int) -> None:
    """Raises `ValueError` for a page or chunk that could hold nothing."""
    if limit < 1:
        raise ValueError(f"limit={limit}: write 1 or more")


def check_filter(where: DeliveryFilter) -> None:
    """Raises `ValueError` when a filter would ask for every delivery of every tenant."""
    if where.event_id is None and where.endpoint is None and where.tenant is None:
        raise ValueError("deliveries are chosen by an event_id, an endpoint or a tenant; a list also by a time")


def check_listing(where: DeliveryFilter) -> None:
    """`check_filter` for lists, where a time bounds what is asked for too."""
    if where.accepted_from is None and where.accepted_before is None:
        check_filter(where)


def id_bounds(where: DeliveryFilter, before: int) -> tuple[int, int]:
    """Delivery ids of the time asked for: from the first, below the second, which is at most `before`."""
    since = 0 if where.accepted_from is None else first_id_at(where.accepted_from)
    return since, before if where.accepted_before is None else min(before, first_id_at(where.accepted_before))


def _foreign(cursor: str) -> ConfigurationError:
    return ConfigurationError(f"cursor {cursor[:40]!r} was not given out by this list; leave it out for the first page")
