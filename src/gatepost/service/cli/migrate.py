"""`gatepost migrate`: bring a database to this version's schema, install the outbox in a producer's, move a house.

It talks to databases, not to a running service. What it would do is shown with `--plan`; what it did, as JSON, with `--json`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from gatepost.service.cli.output import DONE, NOT, JsonFlag, fail, print_fields, print_json, print_line
from gatepost.service.cli.policy import ConfigOption
from gatepost.service.config import Settings, load_settings
from gatepost.store.house import Kind
from gatepost.store.migrate import Migrated, install_outbox, migrate_database, plan_database
from gatepost.store.moving import Moved, move_house
from gatepost.store.moving import Progress as OnProgress


def migrate(
    database: Annotated[
        str | None, typer.Option("--database", "--db", help="The database; not given: the setting `database`.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be done, and do nothing.")] = False,
    post: Annotated[
        bool, typer.Option("--post", help="Also steps that no process of the version before survives.")
    ] = False,
    outbox: Annotated[
        str | None,
        typer.Option("--outbox", help="Create the outbox table in this producer's database, and nothing else."),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", help="Move everything from this sqlite:/// database …")
    ] = None,
    target: Annotated[str | None, typer.Option("--to", help="… to this empty postgresql:// database.")] = None,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Bring a database to the schema of this version, while the version before goes on running.

    `post` steps wait for --post, once no process of the version before is left. --from and --to move a house: stop its
    dispatcher first, publishers may go on; a run that was cut is repeated. Exit 1 when the database is not ready for this version.
    """
    if (source is None) != (target is None):
        fail("write both --from sqlite:///… and --to postgresql://…")
    if sum(given is not None for given in (database, outbox, source)) > 1:
        fail("write one of --database, --outbox, and --from with --to")
    if (plan or post) and (outbox or source):
        fail("--plan and --post go with --database only")
    settings = load_settings(config, os.environ)
    if outbox is not None:
        place = asyncio.run(install_outbox(outbox))
        _print({"place": place, "table": "gatepost_outbox"}, f"{place} has the table gatepost_outbox", as_json)
    elif source is not None and target is not None:
        _move(source, target, settings, as_json)
    else:
        _migrate(database or settings.database, plan, post, as_json)


def migrate_first(database: str) -> None:
    """`serve --migrate`: what `gatepost migrate` does, before a service starts."""
    if database != "memory://":
        _tell(asyncio.run(migrate_database(database, on_wait=_wait)), planned=False)


def _migrate(database: str, planned: bool, post: bool, as_json: bool) -> None:
    if planned:
        found = asyncio.run(plan_database(database, post=post))
    else:
        found = asyncio.run(migrate_database(database, post=post, on_wait=_wait))
    if as_json:
        print_json({**asdict(found), "planned": planned})
    else:
        _tell(found, planned)
    raise typer.Exit(NOT if found.blocked else DONE)


def _tell(found: Migrated, planned: bool) -> None:
    what = "would run" if planned else "ran"
    print_line(f"{found.place}: schema {found.schema or 'none'}, this version has {found.code}")
    for step in found.steps:
        print_line(f"  {what} {step}")
    for step in found.held:
        print_line(f"  waits {step}")
    if found.held:
        print_line("steps that wait run with --post, once no process of the version before is left")
    if not found.steps and not found.held:
        print_line("nothing to do")


def _move(source: str, target: str, settings: Settings, as_json: bool) -> None:
    keys = [key.reveal() for key in settings.keys]
    with _bar() as on_progress:
        moved = asyncio.run(
            move_house(
                source,
                target,
                keys=keys,
                idempotency=settings.retention.idempotency,
                on_progress=on_progress,
            )
        )
    receipt = _receipt(moved)
    if as_json:
        print_json(receipt)
        return
    counts = receipt.pop("moved")
    print_fields({**receipt, **counts})
    print_line(
        f"start the service with the database {moved.target} from now on (the URL that you gave as --to); {source} is closed"
    )


def _receipt(moved: Moved) -> dict[str, Any]:
    return {
        "from": moved.source,
        "to": moved.target,
        "started_at": _time(moved.started_at),
        "finished_at": _time(moved.finished_at),
        "resumed": moved.resumed,
        "verified": True,
        "moved": {kind.value: count for kind, count in moved.counts.items()},
    }


@contextmanager
def _bar() -> Iterator[OnProgress]:
    """A bar per kind, on standard error; none where nobody looks."""
    columns = (TextColumn("{task.description:<17}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        tasks: dict[Kind, TaskID] = {}

        def show(kind: Kind, done: int, total: int) -> None:
            if kind not in tasks:
                tasks[kind] = progress.add_task(kind.value.replace("_", " "), total=total)
            progress.update(tasks[kind], completed=done, total=total)

        yield show


def _wait(what: str) -> None:
    sys.stderr.write(f"gatepost: {what}: waiting\n")


def _print(document: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print_line(text)


def _time(micro: int) -> str:
    return datetime.fromtimestamp(micro / 1e6, UTC).isoformat(timespec="milliseconds")
