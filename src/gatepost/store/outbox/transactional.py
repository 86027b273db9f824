"""Puts an event into the outbox of a producer's database, in the transaction that the producer's connection is in.

Gives the event its id; a rollback leaves nothing of it. It neither commits nor reads, and knows no store of Gatepost's. Called
by `Dispatcher.publish` and `Publisher.publish` when they are given a connection.
"""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace
from typing import Final

from gatepost.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from gatepost.delivery.ids import ScatteredIds
from gatepost.errors import StoreError
from gatepost.store.outbox.drivers import async_driver, sync_driver
from gatepost.store.rows import OutboxEvent

TRIES: Final = 5
"""Ids tried for one event. Two producers meet once in millions of events; five in a row means that something else is wrong."""


_PROCESS_IDS: Final = ScatteredIds(SYSTEM_CLOCK, SYSTEM_ENTROPY)
"""One source for the process: ids must rise in the order of publishing, also for programs that make a Publisher per request."""
_PROCESS_LOCK: Final = threading.Lock()


class TransactionalOutbox:
    """Safe to share between threads and tasks. `ids` None: those of the process."""

    def __init__(self, ids: ScatteredIds | None = None) -> None:
        self._ids = ids or _PROCESS_IDS

    def put(self, connection: object, event: OutboxEvent) -> OutboxEvent:
        """Write the row; returns it with the id it got.

        Raises `TypeError` for what is no synchronous connection, `ConfigurationError` when the database has no outbox table,
        and whatever the connection itself raises. Warns when the connection is in no transaction.
        """
        driver = sync_driver(connection)
        if not driver.in_transaction(connection):
            warnings.warn(_by_itself(driver.what), RuntimeWarning, stacklevel=3)
        for _ in range(TRIES):
            numbered = self._numbered(event)
            if driver.insert(connection, numbered):
                return numbered
        raise _no_id()

    async def put_async(self, connection: object, event: OutboxEvent) -> OutboxEvent:
        """`put` for asynchronous connections."""
        driver = async_driver(connection)
        if not driver.in_transaction(connection):
            warnings.warn(_by_itself(driver.what), RuntimeWarning, stacklevel=3)
        for _ in range(TRIES):
            numbered = self._numbered(event)
            if await driver.insert(connection, numbered):
                return numbered
        raise _no_id()

    def _numbered(self, event: OutboxEvent) -> OutboxEvent:
        with _PROCESS_LOCK:
            return replace(event, event_id=self._ids.next())


def _by_itself(what: str) -> str:
    return (
        f"connection is {what} outside a transaction: the event is committed by itself, whatever becomes of your own "
        "writes; begin a transaction first, or leave connection out"
    )


def _no_id() -> StoreError:
    return StoreError(
        f"{TRIES} new ids in a row were taken in gatepost_outbox: nothing was written, look at this table"
    )
