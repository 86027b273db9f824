"""The house that is moved out: reads an SQLite file whole, batch by batch, while nobody dispatches from it.

It holds the file's lock from the beginning to the end; publishers may go on until `leave`, which carries over their last events
and closes the file for good in the transaction in which nobody else can write. Called by `gatepost.store.moving`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from gatepost.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from gatepost.delivery.ids import first_id_at
from gatepost.delivery.records import ApiKey
from gatepost.errors import ConfigurationError
from gatepost.store.codec import endpoint_from_document, tenant_from_document
from gatepost.store.house import (
    Carried,
    CarriedAudit,
    CarriedDelivery,
    CarriedEvent,
    CarriedKey,
    CarriedLetter,
    CarriedState,
    Kind,
)
from gatepost.store.port import AuditEntry, EventSchema, PolicyVersion
from gatepost.store.rows import AttemptRow, DeadLetter, FanOut, OutboxEvent
from gatepost.store.secretbox import SecretBox
from gatepost.store.sqlite.connection import connect, store_error
from gatepost.store.sqlite.keycheck import check_keys
from gatepost.store.sqlite.lock import FileLock
from gatepost.store.sqlite.maintenance import NOT_NEEDED
from gatepost.store.sqlite.schema import MOVED, prepare

BATCH_ROWS: Final = 500
BATCH_BYTES: Final = 4 << 20
"""One transaction of the new house."""

_WAITS: Final = """
EXISTS (SELECT 1 FROM history AS h JOIN delivery AS d ON d.lane = h.lane AND d.due_at = h.at AND d.id = h.id
 WHERE h.id = a.delivery_id AND h.state = 0)"""
_SOURCES: Final[dict[Kind, str]] = {
    Kind.TENANTS: "SELECT document FROM tenant ORDER BY name",
    Kind.ENDPOINTS: "SELECT document FROM endpoint ORDER BY id",
    Kind.API_KEYS: "SELECT id, hash, tenant, name, created_at FROM api_key ORDER BY id",
    Kind.POLICIES: "SELECT version, at, actor, action, why, document FROM policy ORDER BY version",
    Kind.EVENT_TYPES: "SELECT tenant, type, version, at, actor, document FROM event_type ORDER BY tenant, type, version",
    Kind.AUDIT: "SELECT number, at, actor, action, subject, tenant, detail FROM audit ORDER BY number",
    Kind.EVENTS: f"""
SELECT e.id, e.created_at, e.tenant, e.type, e.content_type, e.body, e.trace FROM event AS e
 WHERE NOT ({NOT_NEEDED}) OR EXISTS (SELECT 1 FROM fan_out AS f WHERE f.event_id = e.id) ORDER BY e.id""",  # noqa: S608 - our own words
    Kind.DELIVERIES: """
SELECT d.lane, d.due_at, d.id, d.event_id, d.born_at, d.attempt, o.tenant
 FROM delivery AS d JOIN destination AS o ON o.endpoint = d.lane >> 8 ORDER BY d.lane, d.due_at, d.id""",
    Kind.DEAD_LETTERS: """
SELECT coalesce(h.lane, x.endpoint << 8), x.id, x.event_id, x.tenant, x.endpoint, x.event_type, x.content_type, x.attempts,
  x.why, x.outcome, x.status, x.died_at, x.body FROM dead AS x LEFT JOIN history AS h ON h.id = x.id ORDER BY x.id""",
    Kind.ATTEMPTS: f"""
SELECT {", ".join(f"a.{name}" for name in AttemptRow._fields)} FROM attempt AS a
 WHERE EXISTS (SELECT 1 FROM dead AS x WHERE x.id = a.delivery_id) OR {_WAITS} ORDER BY a.delivery_id, a.started_at""",  # noqa: S608 - our own words
    # The newest event that used a key: an older one's use has expired.
    Kind.IDEMPOTENCY_KEYS: "SELECT tenant, key, max(id) FROM event WHERE key IS NOT NULL AND id >= ? GROUP BY tenant, key",
    Kind.FAN_OUTS: "SELECT event_id, 0, tenant, type, sub, due_at, after FROM fan_out ORDER BY event_id",
    Kind.ENDPOINT_STATES: "SELECT endpoint, state FROM endpoint_state ORDER BY endpoint",
    Kind.OUTBOX: """
SELECT event_id, event_id, tenant, key, type, content_type, body, ordering_key, priority, not_before, created_at, trace
 FROM outbox ORDER BY event_id""",
}
# Publishers that have the file open still could write to it; their commit fails then, instead of being read by nobody.
_CLOSE_OUTBOX: Final = """
CREATE TRIGGER IF NOT EXISTS outbox_moved BEFORE INSERT ON outbox BEGIN
 SELECT RAISE(ABORT, 'this database was moved: publish to the new one'); END"""


class SqliteHouse:
    """An SQLite file that is moved out of."""

    def __init__(self, path: str, box: SecretBox) -> None:
        """Raises `ConfigurationError` when there is no such file, `StoreLocked` while a dispatcher owns it, `StoreError`."""
        if not Path(path).exists():
            raise ConfigurationError(f"there is no file {path}: write the sqlite:/// URL of the database to move")
        self.place = os.path.realpath(path)
        self._box = box
        self.keys_since = 0
        """Idempotency keys used since (UTC microseconds) are carried."""
        with ExitStack() as undo:
            lock = FileLock(self.place)
            undo.callback(lock.release)
            self._connection = connect(self.place)
            undo.callback(self._connection.close)
            prepare(self._connection, self.place, SYSTEM_CLOCK, may_migrate=True, may_have_moved=True)
            try:
                check_keys(self._connection, box)
                self.number = self._house_number()
                self.left = self._meta(MOVED) is not None
                self.epoch = int(self._connection.execute("SELECT epoch FROM part").fetchone()[0])
                """Raised whenever a dispatcher opens the file."""
            except sqlite3.Error as error:
                raise store_error(error, self.place) from error
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Give the file up. Idempotent."""
        self._undo.close()

    def counts(self) -> dict[Kind, int]:
        """Rows by kind."""
        found = {}
        for kind, query in _SOURCES.items():
            counting = f"SELECT count(*) FROM ({query})"  # noqa: S608 - our own words
            found[kind] = int(self._connection.execute(counting, self._values(kind)).fetchone()[0])
        return found

    def batches(self, kind: Kind) -> Iterator[list[Carried]]:
        """All rows of a kind, in batches of bounded size."""
        make = self._maker(kind)
        batch: list[Carried] = []
        size = 0
        for row in self._connection.execute(_SOURCES[kind], self._values(kind)):
            batch.append(make(row))
            size += sum(len(value) for value in row if isinstance(value, bytes | str))
            if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def begin_to_leave(self) -> None:
        """From here on nobody else can write to the file, until `leave` or `stay`."""
        self._connection.execute("BEGIN IMMEDIATE")

    def leave(self, now: int) -> None:
        """Close the file for good: nothing opens it any more."""
        self._connection.execute(_CLOSE_OUTBOX)
        self._connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (MOVED, now))
        self._connection.execute("COMMIT")
        self.left = True

    def stay(self) -> None:
        """Undo `begin_to_leave`."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _values(self, kind: Kind) -> tuple[int, ...]:
        return (first_id_at(self.keys_since),) if kind is Kind.IDEMPOTENCY_KEYS else ()

    def _maker(self, kind: Kind) -> Callable[[Any], Carried]:
        makers: dict[Kind, Callable[[Any], Carried]] = {
            Kind.TENANTS: lambda row: tenant_from_document(row[0]),
            Kind.ENDPOINTS: lambda row: endpoint_from_document(row[0], self._box),
            Kind.API_KEYS: lambda row: ApiKey(*row),
            Kind.POLICIES: lambda row: PolicyVersion(*row),
            Kind.EVENT_TYPES: lambda row: EventSchema(*row),
            Kind.AUDIT: lambda row: CarriedAudit(row[0], AuditEntry(*row[1:])),
            Kind.EVENTS: CarriedEvent._make,
            Kind.DELIVERIES: CarriedDelivery._make,
            Kind.DEAD_LETTERS: lambda row: CarriedLetter(row[0], DeadLetter(*row[1:])),
            Kind.ATTEMPTS: AttemptRow._make,
            Kind.IDEMPOTENCY_KEYS: CarriedKey._make,
            Kind.FAN_OUTS: FanOut._make,
            Kind.ENDPOINT_STATES: CarriedState._make,
            Kind.OUTBOX: lambda row: OutboxEvent(*row),
        }
        return makers[kind]

    def _house_number(self) -> int:
        """A number that names this file, drawn once."""
        number = self._meta("house")
        if number is None:
            number = int.from_bytes(SYSTEM_ENTROPY.token(8), "big") >> 1
            self._connection.execute("INSERT INTO meta (name, value) VALUES ('house', ?)", (number,))
        return number

    def _meta(self, name: str) -> int | None:
        row = self._connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else int(row[0])
