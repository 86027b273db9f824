"""How every benchmark talks: progress on standard error, then one table or one JSON object on standard output.

It formats what it is given; benchmarks decide what to measure and whether a target was met.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.machine import facts

RESULT: Final = "result.json"
"""Where a worker leaves its result, in the directory of its task."""


class Steps:
    """A progress bar that says what is running; silent when standard error is no terminal."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def begin(self, what: str) -> None:
        """Name the step that starts now."""
        self._progress.update(self._task, description=what)

    def done(self, count: float = 1) -> None:
        """One step (or part of one) is finished."""
        self._progress.advance(self._task, count)


@contextmanager
def steps(total: float) -> Iterator[Steps]:
    """Show progress over `total` steps while the block runs."""
    columns = (TextColumn("{task.description:<44}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Steps(progress, progress.add_task("", total=total))


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """`--json` and `--quick`, the same everywhere."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: a look, not a figure to quote")


def print_json(result: dict[str, Any]) -> None:
    """The result with the machine's facts, as ASCII JSON."""
    json.dump({"machine": facts(), **result}, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table with numbers to the right."""
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, str) else f"{cell:,}" for cell in row))
    Console().print(table)


def print_line(text: str) -> None:
    """A sentence under a table."""
    Console(highlight=False).print(text)


def print_machine() -> None:
    """One line of machine facts, under the tables."""
    known = facts()
    versions = ", ".join(f"{name} {version}" for name, version in known["versions"].items())
    print_line(
        f"[dim]{known['cpu']}, {known['cores']} cores, {known['system']}, Python {known['python']}; {versions}[/dim]"
    )


def run_worker(module: str, task: Any, directory: Path, limit: float) -> dict[str, Any]:
    """Run `python -m module` on a task (a dataclass, as JSON on its standard input); its result comes back as a file.

    A file and not standard output: a ledger is megabytes, and an unbuffered interpreter may write such a text only in part.
    """
    subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(asdict(task)),
        cwd=Path(__file__).resolve().parents[1],
        text=True,
        timeout=limit,
        check=True,
    )
    result: dict[str, Any] = json.loads((directory / RESULT).read_text())
    return result


def write_result(directory: str, result: dict[str, Any]) -> None:
    """What a worker does at its end."""
    (Path(directory) / RESULT).write_text(json.dumps(result))
