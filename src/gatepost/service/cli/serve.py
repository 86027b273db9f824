"""`gatepost serve`, `worker` and `demo`: the commands that run for a while. What they run lives beside the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from gatepost.service.cli.policy import ConfigOption
from gatepost.service.config import check_shared, load_settings, open_files_limit

if TYPE_CHECKING:
    from gatepost.service.child import Place

DatabaseOption = Annotated[str | None, typer.Option("--db", help="Where events are kept; beats database.")]
ProcessesOption = Annotated[
    int | None, typer.Option("--processes", help="Processes on this machine; beats fleet.processes.")
]
MigrateOption = Annotated[
    bool, typer.Option("--migrate", help="Bring the database to this version's schema first, as gatepost migrate does.")
]
ChildOption = Annotated[int | None, typer.Option(hidden=True)]
"""Given by the parent to the processes that it starts."""
SiblingsOption = Annotated[Path | None, typer.Option(hidden=True)]
"""So is this: the directory in which they find each other."""


def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; beats listen.host.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 0 for any; beats listen.port.")] = None,
    database: DatabaseOption = None,
    processes: ProcessesOption = None,
    migrate: MigrateOption = False,
    child: ChildOption = None,
    parent_fd: ChildOption = None,
    listener_fd: ChildOption = None,
    siblings: SiblingsOption = None,
    sibling_count: ChildOption = None,
) -> None:
    """Accept events over HTTP and deliver them, until SIGTERM or SIGINT; then drain. A second signal leaves at once.

    With several processes SIGHUP replaces them one after the other, without a gap; a single one drains.
    """
    given = {
        "GATEPOST_LISTEN_HOST": host,
        "GATEPOST_LISTEN_PORT": port,
        "GATEPOST_DATABASE": database,
        "GATEPOST_FLEET_PROCESSES": processes,
    }
    place = _place(True, child, parent_fd, listener_fd, siblings, sibling_count)
    _run("serve", config, given, place, migrate=migrate)


def worker(
    config: ConfigOption = None,
    database: DatabaseOption = None,
    processes: ProcessesOption = None,
    child: ChildOption = None,
    parent_fd: ChildOption = None,
    siblings: SiblingsOption = None,
    sibling_count: ChildOption = None,
) -> None:
    """Deliver events that others accept, until SIGTERM or SIGINT; then drain. Serves health and metrics at fleet.host and fleet.port."""
    given = {"GATEPOST_DATABASE": database, "GATEPOST_FLEET_PROCESSES": processes}
    _run("worker", config, given, _place(False, child, parent_fd, None, siblings, sibling_count))


def _place(
    public: bool,
    child: int | None,
    parent_fd: int | None,
    listener_fd: int | None,
    siblings: Path | None,
    sibling_count: int | None,
) -> Place:
    from gatepost.service.child import Place
    from gatepost.service.siblings import Seat

    index = child or 0
    seat = None if siblings is None else Seat(siblings, index, sibling_count or 1)
    return Place(index, public, listener_fd, parent_fd, seat)


def _run(
    command: str,
    config: Path | None,
    given: Mapping[str, object],
    place: Place,
    *,
    migrate: bool = False,
) -> NoReturn:
    from gatepost.service.app import serve as run
    from gatepost.service.processes import run_processes

    environ = {**os.environ, **{name: str(value) for name, value in given.items() if value is not None}}
    open_files_limit(raise_it=True)
    settings = load_settings(config, environ)
    if migrate:
        from gatepost.service.cli.migrate import migrate_first

        migrate_first(settings.database)
    if not place.public:
        check_shared(settings.database, "a worker delivers what others accept", "run gatepost serve instead")
    if place.parent is None and settings.fleet.processes > 1:
        arguments = [command] if config is None else [command, "--config", str(config)]
        raise typer.Exit(run_processes(settings, arguments, environ, public=place.public))
    raise typer.Exit(run(settings, place=place))


def demo(
    events: Annotated[int, typer.Option(min=10, max=5_000, help="Events to publish to every endpoint.")] = 300,
    keep: Annotated[
        bool, typer.Option("--keep", envvar="DEMO_KEEP", help="Leave everything running at the end.")
    ] = False,
) -> None:
    """Show one good and four hostile endpoints side by side, in under 30 seconds. Exit 1 when a promise did not hold."""
    from gatepost.service.demo import run_demo

    raise typer.Exit(run_demo(events=events, keep=keep))
