"""`gatepost deliveries`: what became of each event at each endpoint."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gatepost.service.cli.api_client import DEFAULT_URL, ApiClient, KeyOption, TenantOption, UrlOption, segment
from gatepost.service.cli.output import JsonFlag, fail, print_fields, print_json, print_line, print_table

app = typer.Typer(help="Look into deliveries; cancel and replay them.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="DELIVERY_ID", help="dlv_…")]
Endpoint = Annotated[str | None, typer.Option("--endpoint", help="ep_…")]
Event = Annotated[str | None, typer.Option("--event", help="evt_…")]


@app.command("list")
def list_deliveries(
    endpoint: Endpoint = None,
    event: Event = None,
    state: Annotated[str | None, typer.Option(help="waiting, delivered, dead or cancelled.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows at most.")] = 100,
    tenant: TenantOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Deliveries, newest first; with --json one a line. Without any filter: the tenant `default`."""
    query = {
        "endpoint_id": endpoint,
        "event_id": event,
        "state": state,
        "tenant": _tenant(tenant, endpoint, event, api_key),
    }
    items = ApiClient(url, api_key).pages("/v1/deliveries", query, limit)
    if as_json:
        for item in items:
            print_json(item)
        return
    columns = ("id", "state", "attempts", "event_type", "last_outcome", "last_status", "due_at", "endpoint_id")
    print_table(columns, [[item[name] for name in columns] for item in items])


@app.command()
def show(delivery_id: Id, url: UrlOption = DEFAULT_URL, api_key: KeyOption = None, as_json: JsonFlag = False) -> None:
    """One delivery."""
    _print(ApiClient(url, api_key).call("GET", _path(delivery_id)), as_json)


@app.command()
def attempts(
    delivery_id: Id, url: UrlOption = DEFAULT_URL, api_key: KeyOption = None, as_json: JsonFlag = False
) -> None:
    """Its attempts, oldest first; with --json one a line."""
    items = ApiClient(url, api_key).call("GET", _path(delivery_id, "/attempts"))["items"]
    if as_json:
        for item in items:
            print_json(item)
        return
    print_table(
        ("#", "started_at", "outcome", "phase", "reason", "status", "retry", "blame", "ms", "decision"),
        [
            (
                item["number"],
                item["started_at"],
                item["outcome"],
                item["phase"],
                item["reason"],
                item["status"],
                item["retry_safety"],
                item["blame"],
                f"{item['elapsed'] * 1e3:.1f}",
                item["decision"],
            )
            for item in items
        ],
    )


@app.command()
def cancel(
    delivery_id: Annotated[
        str | None, typer.Argument(metavar="[DELIVERY_ID]", help="dlv_…, or use the options.")
    ] = None,
    endpoint: Endpoint = None,
    event: Event = None,
    tenant: TenantOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Give up one waiting delivery, or all of an event, an endpoint or a tenant."""
    client = ApiClient(url, api_key)
    if delivery_id is not None:
        _print(client.call("POST", _path(delivery_id, "/cancel")), as_json)
        return
    if endpoint is None and event is None and tenant is None:
        fail("write a DELIVERY_ID, or at least one of --event, --endpoint and --tenant")
    body = {"endpoint_id": endpoint, "event_id": event, "tenant": tenant}
    answer = client.call(
        "POST", "/v1/deliveries:cancel", {name: value for name, value in body.items() if value is not None}
    )
    if as_json:
        print_json(answer)
    else:
        print_line(f"{answer['cancelled']} cancelled")


@app.command()
def replay(delivery_id: Id, url: UrlOption = DEFAULT_URL, api_key: KeyOption = None, as_json: JsonFlag = False) -> None:
    """Deliver a dead letter again."""
    _print(ApiClient(url, api_key).call("POST", _path(delivery_id, "/replay")), as_json)


def _tenant(tenant: str | None, endpoint: str | None, event: str | None, api_key: str | None) -> str | None:
    """Without a key and without a filter, the one tenant there usually is; a key knows its own."""
    if tenant is None and endpoint is None and event is None and api_key is None:
        return "default"
    return tenant


def _path(delivery_id: str, more: str = "") -> str:
    return f"/v1/deliveries/{segment(delivery_id)}{more}"


def _print(delivery: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(delivery)
    else:
        print_fields(delivery)
