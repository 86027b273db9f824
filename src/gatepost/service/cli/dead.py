"""`gatepost dead`: dead letters of a running service.

Replays, purges and exports go in portions, so that any number of letters neither waits for one answer nor stands in memory; on a
terminal a bar shows how far they are.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from gatepost.service.cli.api_client import DEFAULT_URL, ApiClient, KeyOption, TenantOption, UrlOption
from gatepost.service.cli.output import JsonFlag, fail, json_line, print_json, print_line, print_table

app = typer.Typer(help="Look at dead letters; replay, export or purge them.", no_args_is_help=True)

REPLAY_PORTION: Final = 2_000
PURGE_PORTION: Final = 5_000
"""Letters in one call: some seconds of a store that has other work as well."""

Endpoint = Annotated[str | None, typer.Option("--endpoint", help="ep_…")]
EventType = Annotated[str | None, typer.Option("--type", help="Event type.")]
Why = Annotated[str | None, typer.Option(help="Such as attempts_exhausted.")]
Delivery = Annotated[str | None, typer.Option("--delivery", help="dlv_…")]
From = Annotated[str | None, typer.Option("--from", metavar="TIME", help="Died then or later: 2027-01-31T12:00:00Z.")]
Before = Annotated[str | None, typer.Option("--before", metavar="TIME", help="Died before: 2027-01-31T12:00:00Z.")]
Advance = Callable[[int], None]
COUNTED_MAX: Final = 100_000
"""Dead letters counted for a bar: seconds of reading; beyond it the count moves without an end in sight."""


@app.command("list")
def list_letters(
    endpoint: Endpoint = None,
    event_type: EventType = None,
    why: Why = None,
    died_from: From = None,
    died_before: Before = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows at most.")] = 100,
    tenant: TenantOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Dead letters, newest first; with --json one a line."""
    query = _query(endpoint, event_type, why, died_from, died_before, tenant)
    items = ApiClient(url, api_key).pages("/v1/dead-letters", query, limit)
    if as_json:
        for item in items:
            print_json(item)
        return
    columns = ("delivery_id", "died_at", "why", "attempts", "outcome", "status", "event_type", "endpoint_id")
    print_table(columns, [[item[name] for name in columns] for item in items])


@app.command()
def replay(
    endpoint: Endpoint = None,
    event_type: EventType = None,
    why: Why = None,
    delivery: Delivery = None,
    died_from: From = None,
    died_before: Before = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    rate: Annotated[float, typer.Option(min=0.01, help="Starts per second at most.")] = 50.0,
    tenant: TenantOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Deliver matching dead letters again, with the same ids and new windows."""
    body = _selection(endpoint, event_type, why, delivery, died_from, died_before, tenant, everything)
    client = ApiClient(url, api_key, keep_alive=True)
    moved = 0
    with _progress("replayed", total=lambda: _count(client, body)) as advance:
        more = True
        while more:
            asked = {**body, "rate": rate, "limit": REPLAY_PORTION}
            answer = client.call("POST", "/v1/dead-letters:replay", asked)
            moved += answer["replayed"]
            advance(answer["replayed"])
            more = answer["more"]
            # The next portion follows the last one's, so that all together keep to the rate; what dies again stays out.
            body |= {"not_before": answer["next_at"], "died_before": answer["died_before"]}
    client.close()
    _print(moved, "replayed", as_json)


@app.command()
def purge(
    endpoint: Endpoint = None,
    event_type: EventType = None,
    why: Why = None,
    delivery: Delivery = None,
    died_from: From = None,
    died_before: Before = None,
    tenant: TenantOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Delete matching dead letters for good."""
    body = _selection(endpoint, event_type, why, delivery, died_from, died_before, tenant, everything=False)
    client = ApiClient(url, api_key, keep_alive=True)
    gone = 0
    with _progress("purged", total=lambda: _count(client, body)) as advance:
        more = True
        while more:
            answer = client.call("POST", "/v1/dead-letters:purge", {**body, "limit": PURGE_PORTION})
            gone += answer["purged"]
            advance(answer["purged"])
            more = answer["more"]
    client.close()
    _print(gone, "purged", as_json)


@app.command()
def export(
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Add to this file; default: print.")] = None,
    endpoint: Endpoint = None,
    event_type: EventType = None,
    why: Why = None,
    died_from: From = None,
    died_before: Before = None,
    after: Annotated[
        str | None, typer.Option(help="Go on behind this cursor, as an export that broke off says.")
    ] = None,
    tenant: TenantOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
) -> None:
    """Dead letters with their payloads as JSON lines, newest first: `payload` as text, or `payload_base64` where it is none.

    Written page by page. An export that breaks off says on standard error how to go on behind its last line.
    """
    query = {**_query(endpoint, event_type, why, died_from, died_before, tenant), "payload": "true"}
    client = ApiClient(url, api_key, keep_alive=True)
    written, cursor, ended = 0, after, False
    try:
        with _lines_to(out) as lines, _progress("exported", shown=out is not None) as advance:
            while not ended:
                page = client.call("GET", "/v1/dead-letters", query={**query, "after": cursor, "limit": 100})
                for item in page["items"]:
                    if item["payload_base64"] is None:
                        continue  # replayed or purged between two looks
                    lines.write(json_line(_with_payload(item)))
                    written += 1
                lines.flush()
                cursor, ended = page["next"], page["next"] is None
                advance(len(page["items"]))
    finally:
        client.close()
        if not ended and cursor is not None:
            sys.stderr.write(f"gatepost: broke off after {written} dead letters; go on with --after {cursor}\n")
    if out is not None:
        print_line(f"{written} exported to {out}")


def _with_payload(item: dict[str, Any]) -> dict[str, Any]:
    raw = base64.b64decode(item["payload_base64"])
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return item
    del item["payload_base64"]
    return {**item, "payload": text}


def _query(
    endpoint: str | None,
    event_type: str | None,
    why: str | None,
    died_from: str | None,
    died_before: str | None,
    tenant: str | None,
) -> dict[str, Any]:
    return {
        "endpoint_id": endpoint,
        "event_type": event_type,
        "why": why,
        "died_from": died_from,
        "died_before": died_before,
        "tenant": tenant,
    }


def _selection(
    endpoint: str | None,
    event_type: str | None,
    why: str | None,
    delivery: str | None,
    died_from: str | None,
    died_before: str | None,
    tenant: str | None,
    everything: bool,
) -> dict[str, Any]:
    given = {**_query(endpoint, event_type, why, died_from, died_before, tenant), "delivery_id": delivery}
    body = {name: value for name, value in given.items() if value is not None}
    if not body and not everything:
        fail("write at least one of --endpoint, --type, --why, --delivery, --from, --before and --tenant")
    return body


def _count(client: ApiClient, body: dict[str, Any]) -> int | None:
    """How many there are to come; None when there are too many to count for a bar."""
    answer = client.call("GET", "/v1/dead-letters:count", query={**body, "at_most": COUNTED_MAX})
    return int(answer["count"]) if answer["complete"] else None


class _RateColumn(ProgressColumn):
    """Letters a second, by the last portions; with one portion by all of its time."""

    def render(self, task: Task) -> Text:
        """Nothing before the first portion."""
        speed = task.finished_speed or task.speed or task.completed / (task.elapsed or 1.0)
        return Text(f"{speed:,.0f}/s" if speed else "")


@contextmanager
def _progress(what: str, *, shown: bool = True, total: Callable[[], int | None] | None = None) -> Iterator[Advance]:
    """A bar on a terminal, of what `total` counts; without one a count that moves."""
    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda _: None
        return
    known = None if total is None else total()
    shape = (
        (SpinnerColumn(), TextColumn("{task.completed:.0f} " + what), _RateColumn())
        if known is None
        else (BarColumn(), MofNCompleteColumn(), TextColumn(what), _RateColumn(), TimeRemainingColumn())
    )
    with Progress(*shape, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(what, total=known)
        yield lambda count: progress.advance(task, count)


@contextmanager
def _lines_to(out: Path | None) -> Iterator[IO[str]]:
    if out is None:
        yield sys.stdout
        return
    try:
        with out.open("a", encoding="ascii") as file:
            yield file
    except OSError as error:
        fail(f"--out {out}: {error.strerror}")


def _print(count: int, what: str, as_json: bool) -> None:
    if as_json:
        print_json({what: count})
    else:
        print_line(f"{count} {what}")
