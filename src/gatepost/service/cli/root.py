"""Puts the commands together and turns errors into messages and exit codes. Commands that need much import it when called."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from gatepost.errors import ConfigurationError, GatepostError
from gatepost.service.cli import (
    bench,
    dead,
    deadline,
    deliveries,
    egress,
    endpoint,
    event_type,
    hostile,
    policy,
    policy_shadow,
    portal,
    rollout,
    tenant,
)
from gatepost.service.cli.capacity import capacity
from gatepost.service.cli.doctor import doctor
from gatepost.service.cli.migrate import migrate
from gatepost.service.cli.output import DONE, NOT, USAGE
from gatepost.service.cli.publish import publish
from gatepost.service.cli.reseal import reseal
from gatepost.service.cli.send import send
from gatepost.service.cli.serve import demo, serve, worker
from gatepost.service.cli.status import status

app = typer.Typer(
    name="gatepost",
    help="Deliver webhooks with bounded, classified outcomes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(serve)
app.command()(worker)
app.command()(status)
app.command()(demo)
app.command()(migrate)
app.command()(send)
app.command()(publish)
app.command()(capacity)
app.command()(doctor)
endpoint.app.command()(reseal)
app.add_typer(endpoint.app, name="endpoint")
app.add_typer(event_type.app, name="event-type")
app.add_typer(deliveries.app, name="deliveries")
app.add_typer(dead.app, name="dead")
app.add_typer(tenant.tenants, name="tenant")
app.add_typer(tenant.keys, name="key")
app.add_typer(portal.app, name="portal")
app.add_typer(egress.app, name="egress")
policy.app.add_typer(policy_shadow.app, name="shadow")
policy.app.command()(policy_shadow.review)
app.add_typer(policy.app, name="policy")
app.add_typer(rollout.app, name="rollout")
app.add_typer(deadline.app, name="deadline")
app.add_typer(hostile.app, name="hostile")
app.add_typer(bench.app, name="bench")


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"gatepost {version('gatepost')}\n")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command (`arguments` None: those of the process) and exit; what a user can mend is a message, not a traceback."""
    try:
        app(args=arguments)
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
