"""The table of commands, and a command line made of all of them or of the one that is asked for.

Importing all takes half a second, which a script that publishes an event, or a health check, would pay each time. So `run`
imports the module of its command only. A new command is a line here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, Final, NoReturn

import typer

from gatepost.errors import ConfigurationError, GatepostError
from gatepost.service.cli.output import DONE, NOT, USAGE

PLACES: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("serve", "serve"),
    "worker": ("serve", "worker"),
    "status": ("status", "status"),
    "demo": ("serve", "demo"),
    "migrate": ("migrate", "migrate"),
    "send": ("send", "send"),
    "publish": ("publish", "publish"),
    "capacity": ("capacity", "capacity"),
    "doctor": ("doctor", "doctor"),
    "endpoint": ("endpoint", "app"),
    "event-type": ("event_type", "app"),
    "deliveries": ("deliveries", "app"),
    "dead": ("dead", "app"),
    "tenant": ("tenant", "tenants"),
    "key": ("tenant", "keys"),
    "portal": ("portal", "app"),
    "egress": ("egress", "app"),
    "policy": ("policy", "app"),
    "rollout": ("rollout", "app"),
    "deadline": ("deadline", "app"),
    "hostile": ("hostile", "app"),
    "bench": ("bench", "app"),
}
"""Of each command, in the order of the help: the module beside this one, and the function or group in it."""


@cache
def build(only: str | None = None) -> typer.Typer:
    """The command line, of one command or of all."""
    app = typer.Typer(
        name="gatepost",
        help="Deliver webhooks with bounded, classified outcomes.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    app.callback()(_options)
    for name in PLACES if only is None else (only,):
        found = _load(name)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


@cache
def _load(name: str) -> Any:
    module, attribute = PLACES[name]
    found = getattr(import_module(f"gatepost.service.cli.{module}"), attribute)
    # What is in a group and has a file of its own.
    if name == "endpoint":
        from gatepost.service.cli.reseal import reseal

        found.command()(reseal)
    elif name == "policy":
        from gatepost.service.cli import policy_shadow

        found.add_typer(policy_shadow.app, name="shadow")
        found.command()(policy_shadow.review)
    return found


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"gatepost {version('gatepost')}\n")
        raise typer.Exit


def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command (`arguments` None: those of the process) and exit; what a user can mend is a message, not a traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    asked = given[0] if given and given[0] in PLACES else None
    try:
        build(asked)(args=arguments)
    except ConfigurationError as error:
        sys.stderr.write(f"gatepost: {error}\n")
        sys.exit(USAGE)
    except GatepostError as error:
        sys.stderr.write(f"gatepost: {error}\n")
        sys.exit(NOT)
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does.
        sys.stderr.close()
        sys.exit(NOT)
    sys.exit(DONE)
