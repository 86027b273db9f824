"""`gatepost bench NAME`: the benchmarks of the source tree, which are not installed with the package.

They need what the package does not (other clients to compare with), so the command says where to get them when missing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import typer

import gatepost
from gatepost.service.cli.output import fail

app = typer.Typer(help="Measure this machine (needs the source tree).", no_args_is_help=True)

_SUMMARIES = {
    "client": "CPU of one POST, beside other clients.",
    "pipeline": "Durable deliveries per second, and what each stage costs.",
    "isolation": "What one bad endpoint costs the healthy ones.",
    "queue": "The store alone: enqueue, peek, settle.",
    "console": "How long the console's pages take over a million deliveries.",
}


def _command(name: str) -> Callable[[typer.Context], None]:
    def command(context: typer.Context) -> None:
        raise typer.Exit(_load(name)(context.args))

    return command


for _name, _summary in _SUMMARIES.items():
    app.command(
        _name,
        help=f"{_summary} Options are the benchmark's own: add --help after them.",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    )(_command(_name))


def _load(name: str) -> Callable[[Sequence[str]], int]:
    """The benchmark's `main`, from the `bench` package beside `src`."""
    root = Path(gatepost.__file__).parents[2]
    if not (root / "bench" / "__init__.py").is_file():
        fail(
            "benchmarks are in the source tree, not in the package: clone it, run `make bench`, or install it editable"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    try:
        module = importlib.import_module(f"bench.{name}")
    except ModuleNotFoundError as error:
        if error.name == f"bench.{name}":
            fail(f"this source tree has no bench/{name}.py")
        fail(f"{error.name} is not installed; run `make bench`, which installs what benchmarks need")
    return cast(Callable[[Sequence[str]], int], module.main)
