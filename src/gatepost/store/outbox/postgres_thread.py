"""Puts events into an outbox on PostgreSQL without an event loop: one connection, one event at a time, from any thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from gatepost.errors import ConfigurationError
from gatepost.store.outbox.postgres_common import (
    NAMES,
    PATIENCE,
    PROBE,
    SAME,
    TRIES,
    Numbers,
    all_values_of,
    connection_lost,
    no_id,
    translated,
    unknown_fate,
)
from gatepost.store.outbox.schema import TABLE, TRACED
from gatepost.store.postgres.address import PostgresAddress, libpq_url
from gatepost.store.rows import OutboxEvent

if TYPE_CHECKING:
    import psycopg

_INSERT_ONE: Final = (
    f"INSERT INTO {TABLE} ({NAMES}) VALUES ({', '.join(['%s'] * len(TRACED))})"  # noqa: S608 - constants
    " ON CONFLICT (event_id) DO NOTHING RETURNING event_id"
)


class ThreadSide:
    """One connection, one event at a time; no event loop and no thread."""

    def __init__(self, address: PostgresAddress, numbers: Numbers) -> None:
        try:
            import psycopg
        except ImportError:
            raise ConfigurationError(
                "publishing to PostgreSQL from synchronous code needs psycopg: pip install 'psycopg[binary]'"
            ) from None
        self._psycopg = psycopg
        known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
        self._url = libpq_url(address.url, known)
        self._place = address.place
        self._numbers = numbers
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Connect and find the table."""
        with self._lock:
            try:
                self._connected().execute(PROBE)
            except self._psycopg.Error as error:
                self._drop()
                raise translated(error, self._place) from error

    def put(self, event: OutboxEvent) -> OutboxEvent:
        """Store an event; returns it with its id."""
        event, sent = self._numbers.give(event), False
        failure: BaseException | None = None
        with self._lock:
            for _ in range(TRIES):
                try:
                    connection = self._connected()
                except self._psycopg.Error as error:
                    raise (unknown_fate if sent else translated)(error, self._place) from error
                sent = True
                try:
                    if connection.execute(_INSERT_ONE, all_values_of(event)).fetchone() is not None:
                        return event
                    row = connection.execute(SAME + "%s", (event.event_id,)).fetchone()
                except self._psycopg.Error as error:
                    failure, lost = error, connection.closed or connection_lost(error)
                    self._drop()
                    if not lost:
                        raise translated(error, self._place) from error
                else:
                    failure = None
                    if row is not None:
                        if row == all_values_of(event):
                            return event
                        event = self._numbers.give(event)
        raise unknown_fate(failure, self._place) if failure else no_id(self._place)

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            self._connection = self._psycopg.connect(
                self._url,
                autocommit=True,
                prepare_threshold=None,  # a PgBouncer that pools by transaction would mix prepared statements up
                connect_timeout=int(PATIENCE),
                # A peer that has vanished must not hold a web worker longer than other writers would.
                tcp_user_timeout=int(PATIENCE * 1_000),
            )
        return self._connection

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
