"""The house that is moved into: writes what another store held into an empty database, batch by batch, each row at most once.

A batch is one transaction and may be repeated. While the move is unfinished no dispatcher opens the database (`schema.prepare`),
so nothing that was carried can be delivered, gone, and carried again. Called by `gatepost.store.moving`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from gatepost.errors import ConfigurationError
from gatepost.store.codec import endpoint_to_document, tenant_to_document
from gatepost.store.house import Carried, CarriedAudit, CarriedLetter, Kind
from gatepost.store.postgres import changes
from gatepost.store.postgres.enqueue import columns
from gatepost.store.postgres.pool import Connection
from gatepost.store.postgres.time import DATABASE_NOW
from gatepost.store.rows import AttemptRow, endpoint_of, part_of_tenant
from gatepost.store.secretbox import SecretBox

_BIG, _INT, _TEXT, _BYTES = "bigint", "integer", "text", "bytea"
_HISTORY: Final = (
    "gp_history",
    (("id", _BIG), ("lane", _BIG), ("at", _BIG), ("event_id", _BIG), ("state", _INT), ("tenant", _TEXT)),
)
_MARKERS: Final = ("gp_active", (("part", _INT), ("lane", _BIG), ("tenant", _TEXT)))
_TABLES: Final[Mapping[Kind, tuple[str, tuple[tuple[str, str], ...]]]] = {
    Kind.TENANTS: ("gp_tenant", (("name", _TEXT), ("document", _TEXT))),
    Kind.ENDPOINTS: ("gp_endpoint", (("id", _TEXT), ("tenant", _TEXT), ("generation", _BIG), ("document", _TEXT))),
    Kind.API_KEYS: (
        "gp_api_key",
        (("id", _TEXT), ("hash", _BYTES), ("tenant", _TEXT), ("name", _TEXT), ("created_at", _BIG)),
    ),
    Kind.POLICIES: (
        "gp_policy",
        (
            ("version", _BIG),
            ("at", _BIG),
            ("actor", _TEXT),
            ("action", _TEXT),
            ("why", _TEXT),
            ("document", _TEXT),
        ),
    ),
    Kind.EVENT_TYPES: (
        "gp_event_type",
        (
            ("tenant", _TEXT),
            ("type", _TEXT),
            ("version", _BIG),
            ("at", _BIG),
            ("actor", _TEXT),
            ("document", _TEXT),
        ),
    ),
    Kind.AUDIT: (
        "gp_audit",
        (
            ("number", _BIG),
            ("at", _BIG),
            ("actor", _TEXT),
            ("action", _TEXT),
            ("subject", _TEXT),
            ("tenant", _TEXT),
            ("detail", _TEXT),
        ),
    ),
    Kind.EVENTS: (
        "gp_event",
        (
            ("id", _BIG),
            ("created_at", _BIG),
            ("tenant", _TEXT),
            ("type", _TEXT),
            ("content_type", _TEXT),
            ("body", _BYTES),
            ("trace", _TEXT),
        ),
    ),
    Kind.DELIVERIES: (
        "gp_delivery",
        (
            ("lane", _BIG),
            ("due_at", _BIG),
            ("id", _BIG),
            ("event_id", _BIG),
            ("born_at", _BIG),
            ("attempt", _INT),
            ("part", _INT),
        ),
    ),
    Kind.DEAD_LETTERS: (
        "gp_dead",
        (
            ("id", _BIG),
            ("event_id", _BIG),
            ("tenant", _TEXT),
            ("endpoint", _BIG),
            ("event_type", _TEXT),
            ("content_type", _TEXT),
            ("attempts", _INT),
            ("why", _TEXT),
            ("outcome", _TEXT),
            ("status", _INT),
            ("died_at", _BIG),
            ("body", _BYTES),
        ),
    ),
    Kind.ATTEMPTS: (
        "gp_attempt",
        tuple(
            (
                name,
                {"number": _INT, "status": _INT, "response": _BYTES}.get(
                    name,
                    _BIG if name in ("delivery_id", "event_id", "endpoint", "started_at", "elapsed_us") else _TEXT,
                ),
            )
            for name in AttemptRow._fields
        ),
    ),
    Kind.IDEMPOTENCY_KEYS: ("gp_dedup", (("tenant", _TEXT), ("key", _BYTES), ("event_id", _BIG))),
    Kind.FAN_OUTS: (
        "gp_fan_out",
        (
            ("event_id", _BIG),
            ("part", _INT),
            ("tenant", _TEXT),
            ("type", _TEXT),
            ("sub", _INT),
            ("due_at", _BIG),
            ("after", _BIG),
        ),
    ),
    Kind.ENDPOINT_STATES: ("gp_endpoint_state", (("endpoint", _BIG), ("state", _BYTES))),
    Kind.OUTBOX: (
        "gatepost_outbox",
        (
            ("event_id", _BIG),
            ("tenant", _TEXT),
            ("key", _TEXT),
            ("type", _TEXT),
            ("content_type", _TEXT),
            ("body", _BYTES),
            ("ordering_key", _TEXT),
            ("priority", _TEXT),
            ("not_before", _BIG),
            ("created_at", _BIG),
            ("trace", _TEXT),
        ),
    ),
}
_CHANGED: Final[Mapping[Kind, Literal["tenant", "endpoint", "api_key"]]] = {
    Kind.TENANTS: "tenant",
    Kind.ENDPOINTS: "endpoint",
    Kind.API_KEYS: "api_key",
}
"""Kinds whose followers must hear of them, by a record's first column."""
# One that was stopped in order says that it drains, and holds no part.
_ALIVE: Final = f"""
SELECT name FROM gp_node AS n WHERE lease_until > {DATABASE_NOW}
 AND (NOT draining OR EXISTS (SELECT 1 FROM gp_part AS p WHERE p.owner = n.name)) ORDER BY name LIMIT 1"""  # noqa: S608 - our own words
_BEGIN: Final = """
INSERT INTO gp_move (house, epoch, source, started_at) VALUES ($1, $2, $3, $4)"""


class PostgresHouse:
    """A database that is moved into, through one connection of an operator."""

    def __init__(self, connection: Connection, place: str, box: SecretBox) -> None:
        self.place = place
        self._connection = connection
        self._box = box
        self._parts = 0
        self.finished: dict[Kind, int] | None = None
        """What was carried, when the move was finished before."""

    async def begin(self, house: int, epoch: int, source: str, now: int, *, may_begin: bool) -> int:
        """When the move from that house was begun, which may be now if it `may_begin`.

        Raises `ConfigurationError` for a database that holds anything else, that is dispatched from, or that an earlier run began
        to fill with what has changed since.
        """
        self._parts = await self._connection.fetchval("SELECT value FROM gp_meta WHERE name = 'parts'")
        async with self._connection.transaction():
            begun = await self._connection.fetchrow("SELECT * FROM gp_move FOR UPDATE")
            if begun is not None:
                if begun["house"] != house:
                    raise ConfigurationError(
                        f"{self.place} was moved into from {begun['source']}: give --to a database of its own"
                    )
                if begun["finished_at"] is not None:
                    self.finished = {Kind(kind): count for kind, count in json.loads(begun["counts"]).items()}
                elif begun["epoch"] != epoch:
                    raise ConfigurationError(
                        f"a dispatcher has used {source} since an earlier run began to move it: what that run carried to "
                        f"{self.place} may be delivered already; drop that database, create it anew and move again"
                    )
                return int(begun["started_at"])
            alive = await self._connection.fetchval(_ALIVE)
            if alive is not None:
                # It would deliver what is carried, and the old house too when the counts differ in the end.
                raise ConfigurationError(
                    f"{alive} dispatches from {self.place} already: stop it (one that was killed counts for 30 s), and "
                    "start it when the move is finished"
                )
            if not may_begin:
                raise ConfigurationError(f"everything in {source} was moved to another database already: use that one")
            for kind, (table, _) in _TABLES.items():
                if await self._connection.fetchval(f"SELECT EXISTS (SELECT 1 FROM {table})"):  # noqa: S608 - our own words
                    raise ConfigurationError(
                        f"{self.place} holds {kind.value} already: give --to a database that nothing was written to"
                    )
            await self._connection.execute(_BEGIN, house, epoch, source, now)
        return now

    async def put(self, kind: Kind, batch: Sequence[Carried]) -> None:
        """Write a batch; rows that are there already stay as they are."""
        async with self._connection.transaction():
            rows = [self._row(kind, item) for item in batch]
            await self._insert(*_TABLES[kind], rows)
            if kind is Kind.DELIVERIES:
                await self._insert(
                    *_HISTORY, [(row[2], row[0], row[1], row[3], 0, item.tenant) for row, item in _with(rows, batch)]
                )
                markers = {(row[6], row[0], item.tenant) for row, item in _with(rows, batch)}
                await self._insert(*_MARKERS, sorted(markers))
            elif kind is Kind.DEAD_LETTERS:
                await self._insert(*_HISTORY, [_dead_history(item) for item in batch])
            elif kind in _CHANGED:
                await changes.record(self._connection, [(_CHANGED[kind], str(row[0])) for row in rows])

    async def counts(self) -> dict[Kind, int]:
        """Rows by kind."""
        found = {}
        for kind, (table, _) in _TABLES.items():
            found[kind] = int(await self._connection.fetchval(f"SELECT count(*) FROM {table}"))  # noqa: S608 - our own words
        return found

    async def finish(self, counts: Mapping[Kind, int], now: int) -> None:
        """From here on dispatchers may open the database."""
        async with self._connection.transaction():
            await self._connection.execute(
                "SELECT setval(pg_get_serial_sequence('gp_audit', 'number'), coalesce(max(number), 1)) FROM gp_audit"
            )
            document = json.dumps({kind.value: count for kind, count in counts.items()})
            await self._connection.execute("UPDATE gp_move SET finished_at = $1, counts = $2", now, document)

    async def _insert(self, table: str, names: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]) -> None:
        if not rows:
            return
        listed = ", ".join(name for name, _ in names)
        arrays = ", ".join(f"${at}::{type_}[]" for at, (_, type_) in enumerate(names, 1))
        statement = f"INSERT INTO {table} ({listed}) SELECT * FROM unnest({arrays}) ON CONFLICT DO NOTHING"  # noqa: S608
        await self._connection.execute(statement, *columns(rows, len(names)))

    def _row(self, kind: Kind, item: Any) -> tuple[Any, ...]:
        match kind:
            case Kind.TENANTS:
                return item.name, tenant_to_document(item)
            case Kind.ENDPOINTS:
                return item.id, item.tenant, item.generation, endpoint_to_document(item, self._box)
            case Kind.API_KEYS:
                return item.id, item.hash, item.tenant, item.name, item.created_at
            case Kind.POLICIES:
                return item.version, item.at, item.actor, item.action, item.why, item.document
            case Kind.EVENT_TYPES:
                return item.tenant, item.type, item.version, item.at, item.actor, item.document
            case Kind.AUDIT:
                return _audit(item)
            case Kind.DELIVERIES:
                return (*item[:6], endpoint_of(item.lane) % self._parts)
            case Kind.DEAD_LETTERS:
                letter = item.letter
                return tuple(getattr(letter, name if name != "id" else "delivery_id") for name, _ in _TABLES[kind][1])
            case Kind.FAN_OUTS:
                return tuple(item._replace(part=part_of_tenant(item.tenant, self._parts))[: len(_TABLES[kind][1])])
            case Kind.OUTBOX:
                return tuple(getattr(item, name) for name, _ in _TABLES[kind][1])
            case _:
                return tuple(item)


def _with(rows: Sequence[Any], batch: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(rows, batch, strict=True))


def _audit(item: CarriedAudit) -> tuple[Any, ...]:
    entry = item.entry
    return item.number, entry.at, entry.actor, entry.action, entry.subject, entry.tenant, entry.detail


def _dead_history(item: Any) -> tuple[Any, ...]:
    assert isinstance(item, CarriedLetter)
    letter = item.letter
    return letter.delivery_id, item.lane, letter.died_at, letter.event_id, 1, letter.tenant
