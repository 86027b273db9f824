"""Makes `gatepost_outbox`, from the same SQL as `gatepost migrate --outbox URL`; safe where that has run before."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from gatepost.store.outbox.schema import TABLE, Dialect, outbox_statements

_DIALECTS: dict[str, Dialect] = {"postgresql": "postgres", "sqlite": "sqlite"}


def _create(apps: Any, schema_editor: Any) -> None:
    dialect = _DIALECTS.get(schema_editor.connection.vendor)
    # Other databases cannot hold an outbox, and `publish` says so; they need not stop a project's migrations.
    for statement in outbox_statements(dialect) if dialect is not None else ():
        schema_editor.execute(statement, None)


def _drop(apps: Any, schema_editor: Any) -> None:
    schema_editor.execute(f"DROP TABLE IF EXISTS {TABLE}", None)


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    """The first."""

    initial = True
    dependencies: list[tuple[str, str]] = []  # noqa: RUF012 - Django's own form
    operations = [migrations.RunPython(_create, _drop)]  # noqa: RUF012
