"""`gatepost serve` and `gatepost demo`: the commands that run for a while. What they run lives beside the command line."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from gatepost.service.cli.policy import ConfigOption
from gatepost.service.config import load_settings, open_files_limit


def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; beats listen.host.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 0 for any; beats listen.port.")] = None,
    database: Annotated[str | None, typer.Option("--db", help="Where events are kept; beats database.")] = None,
) -> None:
    """Accept events over HTTP and deliver them, until SIGTERM or SIGINT; then drain. A second signal leaves at once."""
    from gatepost.service.app import serve as run

    given = {"GATEPOST_LISTEN_HOST": host, "GATEPOST_LISTEN_PORT": port, "GATEPOST_DATABASE": database}
    environ = {**os.environ, **{name: str(value) for name, value in given.items() if value is not None}}
    open_files_limit(raise_it=True)
    raise typer.Exit(run(load_settings(config, environ)))


def demo(
    events: Annotated[int, typer.Option(min=10, max=5_000, help="Events to publish to every endpoint.")] = 300,
    keep: Annotated[
        bool, typer.Option("--keep", envvar="DEMO_KEEP", help="Leave everything running at the end.")
    ] = False,
) -> None:
    """Show one good and four hostile endpoints side by side, in under 30 seconds. Exit 1 when a promise did not hold."""
    from gatepost.service.demo import run_demo

    raise typer.Exit(run_demo(events=events, keep=keep))
