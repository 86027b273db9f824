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

TABLE_WIDTH_MAX: Final = 1_000
"""Columns of a terminal line: longer cells, such as a payload, are broken."""

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
    """A table; a dash where there is nothing. It may be wider than the terminal: an id that was cut or broken cannot be copied."""
    table = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    console = Console(markup=False, highlight=False)
    natural = console.measure(table, options=console.options.update(width=TABLE_WIDTH_MAX)).maximum
    console.width = max(console.width, natural)
    with console.capture() as printed:
        console.print(table)
    # Without the blanks that would wrap a line whose last cell is short.
    print_line("\n".join(line.rstrip() for line in printed.get().splitlines()))


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
