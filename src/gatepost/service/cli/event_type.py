"""`gatepost event-type`: JSON Schemas that events must fit, by type."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gatepost.service.cli.api_client import DEFAULT_URL, ApiClient, KeyOption, TenantOption, UrlOption, segment
from gatepost.service.cli.output import JsonFlag, fail, print_json, print_line, print_table

app = typer.Typer(help="Give event types a JSON Schema, which refuses events that do not fit.", no_args_is_help=True)

Type = Annotated[str, typer.Argument(metavar="TYPE", help="Such as invoice.paid.")]


@app.command("set")
def set_schema(
    event_type: Type,
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON Schema, 2020-12; - reads standard input.")],
    tenant: TenantOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Set the schema of a type; events that do not fit are refused from now on."""
    body = {"schema": _read(file), "tenant": tenant}
    answer = ApiClient(url, api_key).call("PUT", f"/v1/event-types/{segment(event_type)}", body)
    if as_json:
        print_json(answer)
    else:
        print_line(f"{answer['type']}: version {answer['version']} is in force")


@app.command("list")
def list_types(
    tenant: TenantOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows at most.")] = 100,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Types that ever had a schema; with --json one a line."""
    items = ApiClient(url, api_key).pages("/v1/event-types", {"tenant": tenant}, limit)
    if as_json:
        for item in items:
            print_json(item)
        return
    print_table(
        ("type", "tenant", "version", "in force", "at", "by"),
        [
            (one["type"], one["tenant"], one["version"], "no" if one["schema"] is None else "yes", one["at"], one["by"])
            for one in items
        ],
    )


@app.command()
def show(
    event_type: Type,
    version: Annotated[int | None, typer.Option(help="Not given: the newest.")] = None,
    tenant: TenantOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """The schema of a type; with --json also its versions."""
    query = {"tenant": tenant, "version": version}
    answer = ApiClient(url, api_key).call("GET", f"/v1/event-types/{segment(event_type)}", query=query)
    if as_json:
        print_json(answer)
    else:
        print_line(json.dumps(answer["schema"], indent=2))


@app.command()
def remove(
    event_type: Type, tenant: TenantOption = None, url: UrlOption = DEFAULT_URL, api_key: KeyOption = None
) -> None:
    """Remove the schema of a type: its events may be anything again."""
    ApiClient(url, api_key).call("DELETE", f"/v1/event-types/{segment(event_type)}", query={"tenant": tenant})


def _read(file: str) -> Any:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file}: {error}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        fail(f'{file} is not JSON: write a JSON Schema, such as {{"type": "object", "required": ["number"]}}')
