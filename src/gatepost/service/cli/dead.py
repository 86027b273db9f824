"""`gatepost dead`: dead letters of a running service."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gatepost.service.cli.api_client import DEFAULT_URL, ApiClient, KeyOption, TenantOption, UrlOption
from gatepost.service.cli.output import JsonFlag, fail, print_json, print_line, print_table

app = typer.Typer(help="Look at dead letters; replay or purge them.", no_args_is_help=True)

Endpoint = Annotated[str | None, typer.Option("--endpoint", help="ep_…")]
EventType = Annotated[str | None, typer.Option("--type", help="Event type.")]
Why = Annotated[str | None, typer.Option(help="Such as attempts_exhausted.")]
Delivery = Annotated[str | None, typer.Option("--delivery", help="dlv_…")]


@app.command("list")
def list_letters(
    endpoint: Endpoint = None,
    event_type: EventType = None,
    why: Why = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows at most.")] = 100,
    tenant: TenantOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Dead letters, newest first; with --json one a line."""
    query = {"endpoint_id": endpoint, "event_type": event_type, "why": why, "tenant": tenant}
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
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    rate: Annotated[float, typer.Option(min=0.01, help="Starts per second at most.")] = 50.0,
    tenant: TenantOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Deliver matching dead letters again, with the same ids and new windows."""
    body = _selection(endpoint, event_type, why, delivery, tenant, everything)
    answer = ApiClient(url, api_key).call("POST", "/v1/dead-letters:replay", {**body, "rate": rate})
    _print(answer, "replayed", as_json)


@app.command()
def purge(
    endpoint: Endpoint = None,
    event_type: EventType = None,
    why: Why = None,
    delivery: Delivery = None,
    tenant: TenantOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Delete matching dead letters for good."""
    body = _selection(endpoint, event_type, why, delivery, tenant, everything=False)
    _print(ApiClient(url, api_key).call("POST", "/v1/dead-letters:purge", body), "purged", as_json)


def _selection(
    endpoint: str | None,
    event_type: str | None,
    why: str | None,
    delivery: str | None,
    tenant: str | None,
    everything: bool,
) -> dict[str, Any]:
    given = {
        "endpoint_id": endpoint,
        "event_type": event_type,
        "why": why,
        "delivery_id": delivery,
        "tenant": tenant,
    }
    body = {name: value for name, value in given.items() if value is not None}
    if not body and not everything:
        fail("write at least one of --endpoint, --type, --why, --delivery and --tenant")
    return body


def _print(answer: dict[str, Any], what: str, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        print_line(f"{answer[what]} {what}")
