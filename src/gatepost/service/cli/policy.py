"""`gatepost policy`: the effective limits, and who set each of them. Reads configuration; changes nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from gatepost.service.cli.output import JsonFlag, print_json, print_table
from gatepost.service.config import load_settings
from gatepost.service.effective import doubts, limit_rows

app = typer.Typer(help="Show the limits in force.", no_args_is_help=True)
ConfigOption = Annotated[
    Path | None, typer.Option("--config", envvar="GATEPOST_CONFIG", help="Configuration file; default gatepost.toml.")
]


@app.command()
def show(config: ConfigOption = None, as_json: JsonFlag = False) -> None:
    """Each limit of `gatepost serve` with this configuration, and its value."""
    rows = limit_rows(load_settings(config, os.environ))
    if as_json:
        print_json({row.name: row.value for row in rows})
    else:
        print_table(("limit", "value"), [(row.name, row.value) for row in rows])


@app.command()
def explain(config: ConfigOption = None, as_json: JsonFlag = False) -> None:
    """Each limit, who set it, and what it beat; doubts go to standard error."""
    settings = load_settings(config, os.environ)
    rows = limit_rows(settings)
    for doubt in doubts(settings):
        sys.stderr.write(f"gatepost: {doubt}\n")
    if as_json:
        print_json([{"limit": row.name, "value": row.value, "source": row.source} for row in rows])
    else:
        print_table(("limit", "value", "source"), [(row.name, row.value, row.source) for row in rows])
