"""`gatepost status`: who is alive in the fleet, who owns what, and how late deliveries are."""

from __future__ import annotations

from typing import Annotated

import typer

from gatepost.service.cli.api_client import DEFAULT_URL, ApiClient, KeyOption, UrlOption
from gatepost.service.cli.output import DONE, NOT, JsonFlag, print_fields, print_json, print_line, print_table


def status(
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", help="ep_…: tell who owns it, and how late its deliveries are.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the processes of the fleet and what each holds. Exit 1 while parts are free or their owner is gone."""
    document = ApiClient(url, api_key).call("GET", "/v1/fleet", query={"endpoint_id": endpoint})
    whole = document["parts"]["free"] == 0 and all(node["alive"] or not node["parts"] for node in document["nodes"])
    if as_json:
        print_json(document)
        raise typer.Exit(DONE if whole else NOT)
    columns = ("name", "alive", "parts", "share", "weight", "draining", "shortest_lease", "seen_ago", "address")
    print_table(columns, [[node[name] for name in columns] for node in document["nodes"]])
    parts, here = document["parts"], document["here"]
    print_line(f"{parts['all']} parts, {parts['free']} free; shortest lease {parts['shortest_lease']:g} s")
    print_line(f"{document['answered_by']}: lag {here['lag']:g} s, clock {here['clock_skew']:+g} s to the store's")
    for outbox in here["outboxes"]:
        error = "" if outbox["error"] is None else f": {outbox['error']}"
        print_line(
            f"outbox {outbox['place']} {outbox['state']}, {outbox['taken']} taken, {outbox['set_aside']} set aside{error}"
        )
    if "endpoint" in document:
        print_fields(document["endpoint"])
    raise typer.Exit(DONE if whole else NOT)
