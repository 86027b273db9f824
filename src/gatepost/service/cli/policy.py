"""`gatepost policy`: the limits in force, who set each of them, and changes of them while everything runs.

Without a service to ask, `show` and `explain` read the configuration. What they change, they change through the API.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gatepost.delivery.policy import parse_field
from gatepost.errors import ConfigurationError
from gatepost.service.cli.api_client import DEFAULT_URL, ApiClient, KeyOption, UrlOption, segment
from gatepost.service.cli.learned import learned_lines
from gatepost.service.cli.output import NOT, USAGE, JsonFlag, fail, print_json, print_line, print_table
from gatepost.service.config import load_settings
from gatepost.service.effective import doubts, limit_rows

app = typer.Typer(help="Show the limits in force, and change them while everything runs.", no_args_is_help=True)
ConfigOption = Annotated[
    Path | None, typer.Option("--config", envvar="GATEPOST_CONFIG", help="Configuration file; default gatepost.toml.")
]
Why = Annotated[str, typer.Option("--why", help="Kept in the history.")]
Limits = Annotated[
    list[str],
    typer.Argument(
        metavar="LIMIT=VALUE...", help="For example read_timeout=8, read_timeout.ceiling=12, breaker.open_first=20."
    ),
]
LayerOption = Annotated[str, typer.Option("--layer", help="tier, fleet, cohort or canary.")]
TierOption = Annotated[
    str | None, typer.Option("--tier", help="Which tier, for its profile; the layer is then tier without saying so.")
]
Force = Annotated[bool, typer.Option("--force", help="Store what makes budgets too long for ordered lanes or windows.")]


@app.command()
def show(
    process: Annotated[
        str | None,
        typer.Option("--process", help="Ask this process (its name in `gatepost status`) what it really runs."),
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="What tiers, fleet, cohort and canary say, and the rollout.")
    ] = False,
    config: ConfigOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Each limit of `gatepost serve` with this configuration; with --process or --layers, what a running service says."""
    if process is not None:
        _show_process(process, url, api_key, as_json)
    elif layers:
        _show_layers(ApiClient(url, api_key).call("GET", "/v1/policies"), as_json)
    else:
        rows = limit_rows(load_settings(config, os.environ))
        if as_json:
            print_json({row.name: row.value for row in rows})
        else:
            print_table(("limit", "value"), [(row.name, row.value) for row in rows])


@app.command()
def explain(
    endpoint: Annotated[
        str | None, typer.Argument(metavar="[ENDPOINT]", help="ep_…; without it: the configuration.")
    ] = None,
    config: ConfigOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Each limit, who set it, and what it beat: of an endpoint now, or of the configuration (doubts go to standard error)."""
    if endpoint is not None:
        _explain_endpoint(ApiClient(url, api_key).call("GET", f"/v1/policies/explain/{segment(endpoint)}"), as_json)
        return
    settings = load_settings(config, os.environ)
    rows = limit_rows(settings)
    for doubt in doubts(settings):
        sys.stderr.write(f"gatepost: {doubt}\n")
    if as_json:
        print_json([{"limit": row.name, "value": row.value, "source": row.source} for row in rows])
    else:
        print_table(("limit", "value", "source"), [(row.name, row.value, row.source) for row in rows])


@app.command("set")
def set_limits(
    limits: Limits,
    why: Why,
    layer: LayerOption = "fleet",
    tier: TierOption = None,
    share: Annotated[float | None, typer.Option("--share", help="Of the endpoints, for a cohort.")] = None,
    process: Annotated[str | None, typer.Option("--process", help="Name of the process, for a canary.")] = None,
    force: Force = False,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Set limits of a tier, the fleet, a cohort of endpoints or one process. In force everywhere within two seconds."""
    body = {
        "layer": layer if tier is None else "tier",
        "tier": tier,
        "limits": parse_limits(limits),
        "why": why,
        "share": share,
        "process": process,
        "force": force,
    }
    print_change(ApiClient(url, api_key).call("POST", "/v1/policies/set", body), as_json)


@app.command()
def clear(
    why: Why,
    limits: Annotated[list[str] | None, typer.Argument(metavar="[LIMIT...]", help="None: all of the layer.")] = None,
    layer: LayerOption = "fleet",
    tier: TierOption = None,
    force: Force = False,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Take limits of one layer away: what is below it counts again."""
    body = {
        "layer": layer if tier is None else "tier",
        "tier": tier,
        "limits": limits or None,
        "why": why,
        "force": force,
    }
    print_change(ApiClient(url, api_key).call("POST", "/v1/policies/clear", body), as_json)


@app.command()
def rollback(
    why: Why,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", help="ep_…: only this one gets back what the rollout changed.")
    ] = None,
    version: Annotated[int | None, typer.Option("--version", help="Not given: the one before the newest.")] = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Take a change back, for all or for one endpoint. In force everywhere within two seconds."""
    body = {"endpoint_id": endpoint, "version": version, "why": why}
    answer = ApiClient(url, api_key).call("POST", "/v1/policies/rollback", body)
    if as_json or endpoint is None:
        print_change(answer, as_json)
    else:
        pinned = ", ".join(f"{name}={value:g}" for name, value in answer["overrides"].items())
        print_line(f"{endpoint}: {pinned or 'it has overrides of its own already'}")


@app.command()
def history(
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Versions at most.")] = 20,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Who changed what, when and why, newest first; with --json one a line."""
    items = ApiClient(url, api_key).call("GET", "/v1/policies/history", query={"limit": limit})["items"]
    columns = ("version", "at", "who", "action", "why")
    if as_json:
        for item in items:
            print_json(item)
    else:
        print_table(columns, [[item[name] for name in columns] for item in items])


# ----------------------------------------------------------------------------------------------------- helpers


def parse_limits(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`read_timeout=8`, `read_timeout.ceiling=12` and `breaker.mode=dry_run` as the API takes them. Raises `ConfigurationError`."""
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, _, bound = text.partition("=")[0].partition(".")
        if name == "breaker":
            found[f"breaker.{bound}"] = {"value": _breaker_value(text.partition("=")[2])}
            continue
        if bound:
            if bound not in ("floor", "ceiling"):
                raise ConfigurationError(f"{text!r}: write {name}=, {name}.floor= or {name}.ceiling=")
            name, value = parse_field(f"{name}={text.partition('=')[2]}")
            found.setdefault(name, {})[bound] = value
        else:
            name, value = parse_field(text)
            found.setdefault(name, {})["value"] = value
    return found


def _breaker_value(text: str) -> float | int | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def print_change(answer: dict[str, Any], as_json: bool) -> None:
    """The new version, and what was said with it."""
    if as_json:
        print_json(answer)
        return
    print_line(f"version {answer['version']}, in force everywhere within two seconds")
    for said in answer.get("said", ()):
        print_line(said)


def _show_process(process: str, url: str, api_key: str | None, as_json: bool) -> None:
    nodes = ApiClient(url, api_key).call("GET", "/v1/fleet")["nodes"]
    node = next((one for one in nodes if one["name"] == process or one["name"].rpartition("-")[0] == process), None)
    if node is None:
        fail(
            f"no process {process!r}: write one of {', '.join(one['name'] for one in nodes) or '(none is alive)'}",
            USAGE,
        )
    if node["address"] is None:
        fail(f"{node['name']} has no address to be asked at", NOT)
    answer = ApiClient(node["address"], api_key).call("GET", "/v1/policies/process")
    if as_json:
        print_json(answer)
        return
    print_line(f"{answer['process']}, version {answer['version']} of the policy")
    _print_limits(answer["limits"])
    for doubt in answer["doubts"]:
        sys.stderr.write(f"gatepost: {doubt}\n")


def _explain_endpoint(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    print_line(f"{answer['endpoint_id']} in {answer['process']}, version {answer['version']} of the policy")
    _print_limits(answer["limits"])
    for line in learned_lines(answer["learned"]):
        print_line(line)


def _print_limits(limits: Sequence[dict[str, Any]]) -> None:
    """A line each: a table would cut the reasons on a narrow terminal."""
    for row in limits:
        words = [row["set_by"]]
        words += [f"by {row['who']}"] if row["who"] else []
        words += [f"at {row['at']}"] if row["at"] else []
        words += [f"({row['why']})"] if row["why"] else []
        words += ["beats " + ", ".join(f"{one['set_by']} {one['value']}" for one in row["beat"])] if row["beat"] else []
        words += [f"learned within {row['floor']:g} to {row['ceiling']:g}"] if row["floor"] is not None else []
        print_line(f"{row['limit']:<25} {row['value']!s:<10} {' '.join(words)}")


def _show_layers(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    print_line(f"version {answer['version']}")
    layers = [(f"tier {tier}", limits) for tier, limits in answer["tiers"].items()]
    layers += [("fleet", answer["fleet"]), ("shadow", answer["shadow"])]
    if answer["cohort"] is not None:
        layers.append((f"cohort {answer['cohort']['share']:.0%}", answer["cohort"]["limits"]))
    if answer["canary"] is not None:
        layers.append((f"canary {answer['canary']['process']}", answer["canary"]["limits"]))
    columns = ("limit", "value", "floor", "ceiling", "who", "at", "why")
    print_table(
        ("layer", *columns), [(name, *(one[key] for key in columns)) for name, limits in layers for one in limits]
    )
    if answer["rollout"] is not None:
        rollout = answer["rollout"]
        print_line(f"rollout {rollout['number']}: {rollout['stage']}, since {rollout['stage_at']}")
