"""How commands speak: JSON for machines (ASCII), tables and plain lines for people, and the three exit codes.

0: delivered, allowed or done. 1: not. 2: usage or configuration. Used by every command; it asks nothing of anyone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, NoReturn

import typer
from rich.console import Console
from rich.table import Table

DONE: Final = 0
NOT: Final = 1
USAGE: Final = 2

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON (ASCII) for programs.")]


def print_json(value: object) -> None:
    """One JSON document, on one line."""
    sys.stdout.write(json_line(value))
    sys.stdout.flush()


def json_line(value: object) -> str:
    """One JSON document as a line of ASCII."""
    return json.dumps(value, default=str) + "\n"


def print_line(text: str) -> None:
    """One line to standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table; a dash where there is nothing."""
    table = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    Console(markup=False, highlight=False).print(table)


def print_fields(fields: Mapping[str, object]) -> None:
    """A record, a field a line."""
    print_table(("field", "value"), [(name, _flat(value)) for name, value in fields.items()])


def fail(message: str, code: int = USAGE) -> NoReturn:
    """Say what is wrong on standard error, and leave."""
    sys.stderr.write(f"gatepost: {message}\n")
    raise typer.Exit(code)


def _flat(value: object) -> object:
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, default=str)
    return value
