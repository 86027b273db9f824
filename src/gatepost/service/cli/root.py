"""All commands together, for whoever looks at the whole command line: tests, and the reference page. `commands` has the table."""

from __future__ import annotations

from gatepost.service.cli.commands import build, run

__all__ = ["app", "run"]

app = build()
