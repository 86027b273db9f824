"""`gatepost portal`: links that show one tenant's pages of the console, read only."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from gatepost.service.cli.api_client import DEFAULT_URL, ApiClient, KeyOption, UrlOption, segment
from gatepost.service.cli.output import JsonFlag, fail, print_json, print_line

app = typer.Typer(help="Show a tenant its own pages of the console, without an API key.", no_args_is_help=True)

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


@app.callback()
def _commands() -> None:
    """Keeps `link` a command of its own, as more may come."""


@app.command()
def link(
    tenant: Annotated[str, typer.Option("--tenant", help="Whose pages.")],
    expires: Annotated[str, typer.Option("--expires", help="How long it works: 30m, 1h, 7d (the most).")] = "1h",
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print a link that works until it expires, or until the API key that made it is revoked."""
    body = {"expires_in": _seconds(expires)}
    made = ApiClient(url, api_key).call("POST", f"/v1/tenants/{segment(tenant)}/portal-links", body)
    # The service names itself as it was called; a proxy on the way may have hidden how.
    made["url"] = url.rstrip("/") + made["path"]
    if as_json:
        print_json(made)
    else:
        print_line(made["url"])


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        fail(f"--expires {text!r}: write a number and s, m, h or d, for example 30m or 1h")
    return float(match[1]) * _UNITS[match[2]]
