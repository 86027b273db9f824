"""`gatepost tenant` and `gatepost key`: who owns endpoints and events, and who may call the API. For admins."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from gatepost.service.cli.api_client import DEFAULT_URL, ApiClient, KeyOption, TenantOption, UrlOption, segment
from gatepost.service.cli.output import NOT, JsonFlag, fail, print_fields, print_json, print_line, print_table

tenants = typer.Typer(help="Create tenants and set their limits.", no_args_is_help=True)
keys = typer.Typer(help="Make and revoke API keys.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TENANT")]
Events = Annotated[float | None, typer.Option("--events-per-second", help="Not given: unlimited.")]
Bytes = Annotated[float | None, typer.Option("--bytes-per-second", help="Not given: unlimited.")]
Backlog = Annotated[int | None, typer.Option("--backlog-rows", help="Waiting deliveries; not given: unlimited.")]
Endpoints = Annotated[int | None, typer.Option("--endpoints", help="Not given: unlimited.")]


@tenants.command()
def create(
    name: Name,
    events_per_second: Events = None,
    bytes_per_second: Bytes = None,
    backlog_rows: Backlog = None,
    endpoints: Endpoints = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a tenant."""
    body = {"name": name, "limits": _limits(events_per_second, bytes_per_second, backlog_rows, endpoints)}
    _print(ApiClient(url, api_key).call("POST", "/v1/tenants", body), as_json)


@tenants.command("list")
def list_tenants(
    limit: Annotated[int, typer.Option(min=1, help="Rows at most.")] = 100,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Tenants in order of name; with --json one a line."""
    items = ApiClient(url, api_key).pages("/v1/tenants", {}, limit)
    if as_json:
        for item in items:
            print_json(item)
        return
    columns = ("events_per_second", "bytes_per_second", "backlog_rows", "endpoints")
    print_table(("name", *columns), [(item["name"], *(item["limits"][name] for name in columns)) for item in items])


@tenants.command()
def show(name: Name, url: UrlOption = DEFAULT_URL, api_key: KeyOption = None, as_json: JsonFlag = False) -> None:
    """One tenant."""
    _print(ApiClient(url, api_key).call("GET", f"/v1/tenants/{segment(name)}"), as_json)


@tenants.command()
def limit(
    name: Name,
    events_per_second: Events = None,
    bytes_per_second: Bytes = None,
    backlog_rows: Backlog = None,
    endpoints: Endpoints = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Replace all limits of a tenant; what is not given becomes unlimited."""
    body = {"limits": _limits(events_per_second, bytes_per_second, backlog_rows, endpoints)}
    _print(ApiClient(url, api_key).call("PATCH", f"/v1/tenants/{segment(name)}", body), as_json)


@tenants.command()
def purge(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Erase a tenant for good, with everything it ever sent, its secrets and its keys; prints the receipt. Repeat it when cut."""
    if not yes:
        typed = typer.prompt(f"Everything of tenant {name} will be erased. Type its name to go on", err=True)
        if typed != name:
            fail("nothing was erased: write the tenant's name, or --yes", NOT)
    client = ApiClient(url, api_key, keep_alive=True)  # one connection: one process, whose receipt counts everything
    try:
        with Console(stderr=True).status(f"stopping {name}") as status:
            while (answer := client.call("DELETE", f"/v1/tenants/{segment(name)}"))["state"] != "erased":
                status.update(f"erasing {name}: {sum(answer['erased'].values())} rows so far")
    finally:
        client.close()
    if as_json:
        print_json(answer)
    else:
        erased = answer.pop("erased")
        print_fields({**answer, **erased})
    missed = [place for place, rows in answer["outboxes"].items() if rows is None]
    if missed:
        fail(
            f"no answer from {', '.join(missed)}: erase there what gatepost_outbox holds of the tenant when it is back",
            NOT,
        )


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    tenant: TenantOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a key for --tenant, or an admin key without it, and print it, this once."""
    made = ApiClient(url, api_key).call("POST", "/v1/api-keys", {"name": name, "tenant": tenant})
    if as_json:
        print_json(made)
    else:
        print_line(f"{made['id']}  {'admin' if tenant is None else tenant}\n\nkey, shown this once: {made['key']}")


@keys.command("list")
def list_keys(url: UrlOption = DEFAULT_URL, api_key: KeyOption = None, as_json: JsonFlag = False) -> None:
    """All keys, without the keys themselves; with --json one a line."""
    items = ApiClient(url, api_key).call("GET", "/v1/api-keys")["items"]
    if as_json:
        for item in items:
            print_json(item)
        return
    print_table(
        ("id", "tenant", "name", "created_at"),
        [(item["id"], item["tenant"] or "(admin)", item["name"], item["created_at"]) for item in items],
    )


@keys.command("delete")
def delete_key(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="key_…")],
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
) -> None:
    """Revoke a key at once."""
    ApiClient(url, api_key).call("DELETE", f"/v1/api-keys/{segment(key_id)}")


def _limits(events: float | None, size: float | None, backlog: int | None, endpoints: int | None) -> dict[str, Any]:
    return {
        "events_per_second": events,
        "bytes_per_second": size,
        "backlog_rows": backlog,
        "endpoints": endpoints,
    }


def _print(tenant: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(tenant)
    else:
        print_fields(tenant)
