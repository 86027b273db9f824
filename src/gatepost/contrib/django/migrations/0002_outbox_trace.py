"""Adds the column for trace contexts to a `gatepost_outbox` that an earlier version made; safe where it is there."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from gatepost.store.outbox.schema import ADD_TRACE, HAS_TRACE, outbox_statements


def _add(apps: Any, schema_editor: Any) -> None:
    connection = schema_editor.connection
    if connection.vendor == "postgresql":
        for statement in outbox_statements("postgres"):
            schema_editor.execute(statement, None)
    elif connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute(HAS_TRACE)
            there = cursor.fetchone() is not None
        if not there:
            schema_editor.execute(ADD_TRACE, None)


def _leave(apps: Any, schema_editor: Any) -> None:
    """Code of the version before does not mind the column."""


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    """The second."""

    dependencies = [("gatepost", "0001_outbox")]  # noqa: RUF012 - Django's own form
    operations = [migrations.RunPython(_add, _leave)]  # noqa: RUF012
