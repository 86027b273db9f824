"""`gatepost endpoint`: destinations of a running service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gatepost.errors import ConfigurationError
from gatepost.service.cli.api_client import DEFAULT_URL, ApiClient, KeyOption, TenantOption, UrlOption, segment
from gatepost.service.cli.learned import learned_lines
from gatepost.service.cli.output import DONE, NOT, JsonFlag, fail, print_fields, print_json, print_line, print_table
from gatepost.service.cli.send import parse_headers

app = typer.Typer(help="Register, change, pause and test destinations.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ENDPOINT_ID", help="ep_…")]
Types = Annotated[list[str] | None, typer.Option("--type", help="Event type or pattern such as invoice.*; repeat.")]
Headers = Annotated[list[str] | None, typer.Option("--header", "-H", help="NAME: VALUE; repeat for more.")]
Limits = Annotated[list[str] | None, typer.Option("--limit", metavar="FIELD=SECONDS", help="Such as read_timeout=20.")]
Rules = Annotated[
    list[str] | None, typer.Option("--status-rule", metavar="STATUS=CLASS", help="Such as 404=final or 5xx=slow.")
]
Schedule = Annotated[str | None, typer.Option(help="Seconds before each attempt, separated by commas.")]
Concurrency = Annotated[int | None, typer.Option(help="Attempts in flight at once.")]
Rate = Annotated[float | None, typer.Option(help="Attempts started per second.")]
DisableAfter = Annotated[
    float | None, typer.Option(help="Seconds of nothing but failures after which it is disabled; 0: never.")
]
Window = Annotated[float | None, typer.Option(help="Seconds within which a delivery is tried.")]
CaFile = Annotated[Path | None, typer.Option("--ca-file", help="PEM file of the authority to trust instead.")]
ClientCert = Annotated[Path | None, typer.Option("--client-cert", help="PEM file of a client certificate.")]
ClientKey = Annotated[Path | None, typer.Option("--client-key", help="PEM file of its key, without password.")]
SendDeadline = Annotated[
    bool | None,
    typer.Option("--send-deadline/--no-send-deadline", help="Send Request-Timeout: how long its answer is waited for."),
]
SendTrace = Annotated[
    bool | None,
    typer.Option("--send-trace/--no-send-trace", help="Send traceparent and tracestate, for receivers that trace."),
]
Tier = Annotated[str | None, typer.Option(help="Profile of limits: same_dc, cross_region, datastore or third_party.")]
NoProbe = Annotated[bool, typer.Option("--no-probe", help="Do not look at its certificate first: store as unverified.")]
Description = Annotated[str | None, typer.Option(help="A note for people.")]


@app.command()
def create(
    destination: Annotated[str, typer.Argument(metavar="URL", help="Where deliveries go.")],
    event_type: Types = None,
    description: Description = None,
    header: Headers = None,
    schedule: Schedule = None,
    window: Window = None,
    status_rule: Rules = None,
    concurrency: Concurrency = None,
    rate: Rate = None,
    disable_after: DisableAfter = None,
    limit: Limits = None,
    ca_file: CaFile = None,
    client_cert: ClientCert = None,
    client_key: ClientKey = None,
    no_probe: NoProbe = False,
    send_deadline: SendDeadline = None,
    send_trace: SendTrace = None,
    tier: Tier = None,
    secret: Annotated[
        str | None, typer.Option(envvar="GATEPOST_ENDPOINT_SECRET", help="whsec_…; default: made.")
    ] = None,
    tenant: TenantOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Register a destination and print its signing secret, this once."""
    fields = _fields(
        event_type, description, header, schedule, window, status_rule, concurrency, rate, disable_after, limit
    )
    fields |= _tls_fields(ca_file, client_cert, client_key, no_probe)
    body = {
        "url": destination,
        "tenant": tenant,
        "secret": secret,
        "send_deadline": send_deadline,
        "send_trace": send_trace,
        "tier": tier,
        **fields,
    }
    answer = _client(url, api_key).call(
        "POST", "/v1/endpoints", {name: value for name, value in body.items() if value is not None}
    )
    _print_with_secret(answer, as_json)


@app.command("list")
def list_endpoints(
    tenant: TenantOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows at most.")] = 100,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Endpoints in order of id; with --json one a line."""
    items = _client(url, api_key).pages("/v1/endpoints", {"tenant": tenant}, limit)
    if as_json:
        for item in items:
            print_json(item)
        return
    print_table(
        ("id", "tenant", "status", "verified", "types", "url"),
        [
            (
                item["id"],
                item["tenant"],
                item["status"],
                item["unverified"] or ("yes" if item["url"].lower().startswith("https:") else "-"),
                ",".join(item["event_types"]),
                item["url"],
            )
            for item in items
        ],
    )


@app.command()
def show(endpoint_id: Id, url: UrlOption = DEFAULT_URL, api_key: KeyOption = None, as_json: JsonFlag = False) -> None:
    """One endpoint, and what was learned about it."""
    answer = _client(url, api_key).call("GET", _path(endpoint_id))
    if as_json:
        print_json(answer)
        return
    learned = answer.pop("learned")
    print_fields(answer)
    for line in ["", *learned_lines(learned)]:
        print_line(line)


@app.command()
def update(
    endpoint_id: Id,
    destination: Annotated[str | None, typer.Option("--to", metavar="URL", help="The new destination.")] = None,
    event_type: Types = None,
    description: Description = None,
    header: Headers = None,
    schedule: Schedule = None,
    window: Window = None,
    status_rule: Rules = None,
    concurrency: Concurrency = None,
    rate: Rate = None,
    disable_after: DisableAfter = None,
    limit: Limits = None,
    ca_file: CaFile = None,
    client_cert: ClientCert = None,
    client_key: ClientKey = None,
    no_probe: NoProbe = False,
    send_deadline: SendDeadline = None,
    send_trace: SendTrace = None,
    tier: Tier = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Change the given fields."""
    changes = _fields(
        event_type, description, header, schedule, window, status_rule, concurrency, rate, disable_after, limit
    )
    changes |= _tls_fields(ca_file, client_cert, client_key, no_probe)
    if destination is not None:
        changes["url"] = destination
    if send_deadline is not None:
        changes["send_deadline"] = send_deadline
    if send_trace is not None:
        changes["send_trace"] = send_trace
    if tier is not None:
        changes["tier"] = tier
    _print(_client(url, api_key).call("PATCH", _path(endpoint_id), changes), as_json)


@app.command()
def delete(endpoint_id: Id, url: UrlOption = DEFAULT_URL, api_key: KeyOption = None) -> None:
    """Remove an endpoint and cancel its waiting deliveries."""
    _client(url, api_key).call("DELETE", _path(endpoint_id))


@app.command()
def pause(
    endpoint_id: Id,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks at it next.")] = "paused by its owner",
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Stop attempts; deliveries wait."""
    _print(_client(url, api_key).call("POST", _path(endpoint_id, "/pause"), {"reason": reason}), as_json)


@app.command()
def resume(endpoint_id: Id, url: UrlOption = DEFAULT_URL, api_key: KeyOption = None, as_json: JsonFlag = False) -> None:
    """Go on."""
    _print(_client(url, api_key).call("POST", _path(endpoint_id, "/resume")), as_json)


@app.command()
def rotate(
    endpoint_id: Id,
    overlap: Annotated[float, typer.Option(min=0, help="Seconds the old secret signs beside the new one.")] = 86_400.0,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a new signing secret and print it, this once."""
    answer = _client(url, api_key).call("POST", _path(endpoint_id, "/rotate-secret"), {"overlap": overlap})
    _print_with_secret(answer, as_json)


@app.command("test")
def send_test(
    endpoint_id: Id, url: UrlOption = DEFAULT_URL, api_key: KeyOption = None, as_json: JsonFlag = False
) -> None:
    """Send one signed test event now; exit 0 when delivered, 1 when not."""
    attempt = _client(url, api_key).call("POST", _path(endpoint_id, "/test"))
    if as_json:
        print_json(attempt)
    else:
        print_fields({name: attempt[name] for name in ("delivered", "outcome", "status", "phase", "reason", "elapsed")})
    raise typer.Exit(DONE if attempt["delivered"] else NOT)


def _client(url: str, api_key: str | None) -> ApiClient:
    return ApiClient(url, api_key)


def _path(endpoint_id: str, more: str = "") -> str:
    return f"/v1/endpoints/{segment(endpoint_id)}{more}"


def _fields(
    event_type: list[str] | None,
    description: str | None,
    header: list[str] | None,
    schedule: str | None,
    window: float | None,
    status_rule: list[str] | None,
    concurrency: int | None,
    rate: float | None,
    disable_after: float | None,
    limit: list[str] | None,
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "event_types": event_type or None,
        "description": description,
        "headers": parse_headers(header) if header else None,
        "schedule": None if schedule is None else [_number("--schedule", part) for part in schedule.split(",")],
        "window": window,
        "status_rules": dict(_pair("--status-rule", text) for text in status_rule) if status_rule else None,
        "concurrency": concurrency,
        "rate": rate,
        "disable_after": disable_after,
        "limits": {name: _number(name, text) for name, text in (_pair("--limit", text) for text in limit)}
        if limit
        else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _tls_fields(ca: Path | None, certificate: Path | None, key: Path | None, no_probe: bool) -> dict[str, Any]:
    files = {"ca_pem": ca, "client_cert_pem": certificate, "client_key_pem": key}
    fields: dict[str, Any] = {name: _pem(file) for name, file in files.items() if file is not None}
    return {**fields, "probe": False} if no_probe else fields


def _pem(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError as error:
        fail(f"{file}: {error.strerror}")


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        fail(f"{option} {text!r}: write NAME=VALUE")
    return name, value


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{option}: {text!r} is not a number of seconds") from None


def _print(endpoint: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(endpoint)
    else:
        print_fields(endpoint)


def _print_with_secret(endpoint: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(endpoint)
        return
    secret = endpoint.pop("secret", None)
    print_fields(endpoint)
    if secret is not None:
        print_line(f"\nsigning secret, shown this once: {secret}")
