"""The Django application: `gatepost` in migrations and commands."""

from __future__ import annotations

from django.apps import AppConfig


class GatepostConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """Holds the migration that makes the outbox table, and the command `gatepost`."""

    name = "gatepost.contrib.django"
    label = "gatepost"
    verbose_name = "Gatepost"
