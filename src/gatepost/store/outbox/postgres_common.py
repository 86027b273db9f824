"""What both sides of `PostgresOutbox` share: limits, ids, and what is said of a driver's errors. They are told apart by SQLSTATE."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Final

from gatepost.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from gatepost.delivery.ids import ScatteredIds
from gatepost.errors import ConfigurationError, StoreError, StoreFull
from gatepost.store.outbox.schema import (
    TABLE,
    TRACED,
    UNDEFINED_COLUMN,
    UNDEFINED_TABLE,
    missing_column,
    missing_table,
    sqlstate_of,
    values_of,
)
from gatepost.store.rows import OutboxEvent

PATIENCE: Final = 5.0
"""Seconds for connecting and for one statement: what a publisher on SQLite waits for other writers."""
TRIES: Final = 3
"""A group is put again after its connection was lost, and events again whose id was taken."""
DISK_FULL: Final = "53100"
_FAILOVER: Final = frozenset({"57P01", "57P02", "57P03", "25006"})
"""The server stops, starts, or is a standby now: the next connection may find the new primary."""

NAMES: Final = ", ".join(TRACED)
"""Columns, in the order of `all_values_of`: it is our own database, whose schema has them all."""
SAME: Final = f"SELECT {NAMES} FROM {TABLE} WHERE event_id = "  # noqa: S608 - constants
"""To be followed by the parameter."""
PROBE: Final = f"SELECT event_id, trace FROM {TABLE} LIMIT 0"  # noqa: S608 - a constant


def translated(error: BaseException, place: str) -> ConfigurationError | StoreError:
    """What is raised for an error of a driver, by its code."""
    code = sqlstate_of(error)
    if code == UNDEFINED_TABLE:
        return missing_table()
    if code == UNDEFINED_COLUMN:
        return missing_column()
    if code == DISK_FULL:
        return StoreFull(f"{place} has no room for new events")
    what = f"{type(error).__name__} {code}" if code is not None else type(error).__name__
    return StoreError(f"{place}: {what}: {error}")


def all_values_of(event: OutboxEvent) -> tuple[object, ...]:
    """One value for each of `NAMES`."""
    values = values_of(event)
    return values if event.trace is not None else (*values, None)


def connection_lost(error: BaseException) -> bool:
    """Whether another connection may do better: the network failed, or the server went away."""
    code = sqlstate_of(error)
    return isinstance(error, OSError | TimeoutError | EOFError) or code in _FAILOVER or (code or "")[:2] == "08"


class Numbers:
    """Ids for both sides."""

    def __init__(self) -> None:
        self._ids = ScatteredIds(SYSTEM_CLOCK, SYSTEM_ENTROPY)
        self._lock = threading.Lock()

    def give(self, event: OutboxEvent) -> OutboxEvent:
        """The event under a new id."""
        with self._lock:
            return replace(event, event_id=self._ids.next())


def unknown_fate(error: BaseException, place: str) -> StoreError:
    """The connection was lost while the event was on its way."""
    failure = translated(error, place)
    return StoreError(
        f"{failure}; whether the event was stored is not known: publish it again with the same idempotency_key"
    )


def no_id(place: str) -> StoreError:
    """Every id that was tried is another event's."""
    return StoreError(f"{TRIES} ids in a row were taken in {TABLE} of {place}: nothing was stored, look at this table")
