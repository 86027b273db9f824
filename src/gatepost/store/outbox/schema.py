"""The table `gatepost_outbox`: its DDL, its statements, and what is said when a database does not have it.

One row of one table is all that Gatepost asks of a producer's database. Used by everything else in this package, by
`gatepost migrate --outbox` and by the migration of `gatepost.contrib.django`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, Literal

from gatepost.errors import ConfigurationError
from gatepost.store.rows import OutboxEvent

Dialect = Literal["postgres", "sqlite"]

TABLE: Final = "gatepost_outbox"
COLUMNS: Final = (
    "event_id",
    "tenant",
    "key",
    "type",
    "content_type",
    "ordering_key",
    "priority",
    "not_before",
    "created_at",
    "body",
)
"""In the order of `values_of`; `done_at` is the follower's."""
TRACE: Final = "trace"
"""One column more, written only for events that carry a trace context: tables made by an earlier version do not have it."""
TRACED: Final = (*COLUMNS, TRACE)
HAS_TRACE: Final = f"SELECT 1 FROM pragma_table_info('{TABLE}') WHERE name = '{TRACE}'"  # noqa: S608 - constants
"""For SQLite, which has no ADD COLUMN IF NOT EXISTS."""
ADD_TRACE: Final = f"ALTER TABLE {TABLE} ADD COLUMN {TRACE} TEXT"
UNDEFINED_TABLE: Final = "42P01"
"""PostgreSQL's SQLSTATE."""
UNDEFINED_COLUMN: Final = "42703"


def outbox_statements(dialect: Dialect) -> list[str]:
    """The DDL, a statement each; safe to run again."""
    script = (files("gatepost.store") / "migrations" / "outbox" / f"{dialect}.sql").read_text("utf-8")
    statements, pending = [], ""
    for line in script.splitlines():
        pending += line + "\n"
        # SQLite's own reading of where a statement ends holds for this plain DDL in either dialect.
        if sqlite3.complete_statement(pending):
            statements.append(pending.strip())
            pending = ""
    return statements


def columns_of(event: OutboxEvent) -> tuple[str, ...]:
    """The columns it fills."""
    return COLUMNS if event.trace is None else TRACED


def insert_statement(placeholders: str, names: Sequence[str] = COLUMNS) -> str:
    """One row; nothing at all when its id is taken."""
    columns = ", ".join(names)
    return f"INSERT INTO {TABLE} ({columns}) VALUES ({placeholders}) ON CONFLICT (event_id) DO NOTHING"  # noqa: S608 - constants


def values_of(event: OutboxEvent) -> tuple[object, ...]:
    """The parameters of `insert_statement` with `columns_of` the event."""
    values = (
        event.event_id,
        event.tenant,
        event.key,
        event.type,
        event.content_type,
        event.ordering_key,
        event.priority,
        event.not_before,
        event.created_at,
        event.body,
    )
    return values if event.trace is None else (*values, event.trace)


def event_of(row: Mapping[str, Any]) -> OutboxEvent:
    """A row with all the columns that the table has."""
    return OutboxEvent(
        row["event_id"],
        row["event_id"],
        row["tenant"],
        row["key"],
        row["type"],
        row["content_type"],
        row["body"],
        row["ordering_key"],
        row["priority"],
        row["not_before"],
        row["created_at"],
        row[TRACE] if TRACE in row.keys() else None,  # noqa: SIM118 - asyncpg's records look for values otherwise
    )


def missing_table() -> ConfigurationError:
    """What is raised when the table is not there."""
    return ConfigurationError(
        f"this database has no table {TABLE}: run `gatepost migrate --outbox URL` once with the URL of this database "
        "(with gatepost.contrib.django: `manage.py migrate gatepost`), and name it among the dispatcher's `outboxes`"
    )


def missing_column() -> ConfigurationError:
    """What is raised when the table is an earlier version's and the event carries a trace context."""
    return ConfigurationError(
        f"{TABLE} has no column {TRACE}, which an earlier version did not make: run `gatepost migrate --outbox URL` once, for "
        "Gatepost's own database `gatepost migrate --database URL`, with gatepost.contrib.django `manage.py migrate gatepost`"
    )


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE that a driver, or a wrapper around a driver, reports. No error is recognised by its text."""
    seen: list[BaseException] = []
    todo: list[object] = [error]
    while todo:
        one = todo.pop()
        if not isinstance(one, BaseException) or one in seen:
            continue
        seen.append(one)
        for name in ("sqlstate", "pgcode"):
            code = getattr(one, name, None)
            if isinstance(code, str):
                return code
        todo += [getattr(one, "orig", None), one.__cause__]
    return None
