"""`gatepost hostile`: a receiver on this machine that misbehaves by name, to see what a sender makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gatepost.service.cli.output import JsonFlag, print_json, print_line, print_table

if TYPE_CHECKING:
    from gatepost.testing.hostile import HostileServer

app = typer.Typer(help="Run a misbehaving receiver.", no_args_is_help=True)


@app.command("list")
def list_behaviours(as_json: JsonFlag = False) -> None:
    """The behaviours there are."""
    from gatepost.testing.hostile import BEHAVIOURS

    if as_json:
        print_json([{"name": behaviour.name, "summary": behaviour.summary} for behaviour in BEHAVIOURS.values()])
    else:
        print_table(("name", "what it does"), [(one.name, one.summary) for one in BEHAVIOURS.values()])


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="A name from `gatepost hostile list`.")],
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one.")] = 0,
    seconds: Annotated[float | None, typer.Option(help="The behaviour's own delay or interval.")] = None,
    cert: Annotated[str | None, typer.Option(help="PEM certificate chain, to play inside TLS.")] = None,
    key: Annotated[str | None, typer.Option(help="PEM key of --cert.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Serve one behaviour on loopback until interrupted; prints its URL first."""
    from gatepost.testing.hostile import run_hostile

    def announce(server: HostileServer) -> None:
        if as_json:
            print_json({"url": server.url, "port": server.port, "behaviour": server.behaviour.name})
        else:
            print_line(f"{server.url}  {server.behaviour.name}: {server.behaviour.summary}")

    tls = (cert, key) if cert is not None and key is not None else None
    if (cert is None) != (key is None):
        from gatepost.errors import ConfigurationError

        raise ConfigurationError("--cert and --key belong together")
    run_hostile(name, port, seconds=seconds, tls=tls, announce=announce)
