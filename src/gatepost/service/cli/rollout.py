"""`gatepost rollout`: let a change of the policy prove itself on the way to all endpoints, watch it, push it on, or end it."""

from __future__ import annotations

from typing import Annotated

import typer

from gatepost.service.cli.api_client import DEFAULT_URL, ApiClient, KeyOption, UrlOption
from gatepost.service.cli.output import DONE, NOT, JsonFlag, fail, print_fields, print_json, print_line, print_table
from gatepost.service.cli.policy import Force, Limits, Why, parse_limits, print_change

app = typer.Typer(help="Roll a change of the policy out by stages that must prove harmless.", no_args_is_help=True)
Hold = Annotated[float, typer.Option(help="Hours.")]


@app.command()
def start(
    limits: Limits,
    why: Why,
    canary: Annotated[
        str | None, typer.Option("--canary", help="Name of the process that goes first; not given: one is chosen.")
    ] = None,
    shadow_hold: Hold = 24.0,
    canary_hold: Hold = 24.0,
    cohort_hold: Hold = 24.0,
    shares: Annotated[str, typer.Option(help="Cohorts: rising shares of the endpoints.")] = "0.01,0.1,0.5",
    night: Annotated[
        str, typer.Option(help="Hours of a day that every stage must have lived through; none: no stage must.")
    ] = "0,6",
    utc_offset: Annotated[float, typer.Option(help="Hours, of the zone that these are hours of.")] = 0.0,
    tolerance: Annotated[float, typer.Option(help="Rise of the failed share that is accepted.")] = 0.005,
    force: Force = False,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Begin: shadow, then one process, then cohorts of endpoints, then all."""
    body = {
        "limits": parse_limits(limits),
        "why": why,
        "canary": canary,
        "shadow_hold": shadow_hold * 3_600,
        "canary_hold": canary_hold * 3_600,
        "cohort_hold": cohort_hold * 3_600,
        "shares": _numbers("--shares", shares),
        "night": None if night == "none" else _numbers("--night", night),
        "utc_offset": utc_offset,
        "tolerance": tolerance,
        "force": force,
    }
    print_change(ApiClient(url, api_key).call("POST", "/v1/policies/rollout", body), as_json)


@app.command()
def status(url: UrlOption = DEFAULT_URL, api_key: KeyOption = None, as_json: JsonFlag = False) -> None:
    """Where it is, what it waits for, and the comparison so far. Exit 1 when there is none, or it was aborted."""
    answer = ApiClient(url, api_key).call("GET", "/v1/policies/rollout")
    rollout = answer["rollout"]
    if as_json:
        print_json(answer)
    elif rollout is None:
        print_line("there is no rollout")
    else:
        shown = {name: value for name, value in rollout.items() if name != "plan" and value not in (None, "")}
        print_fields({**shown, "waits_for": answer["waits_for"]})
        verdict = answer["verdict"]
        if verdict is not None and verdict["strata"]:
            columns = ("attempts_from", "endpoints_with", "endpoints_without", "effect", "error")
            print_table(columns, [[one[name] for name in columns] for one in verdict["strata"]])
    raise typer.Exit(DONE if rollout is not None and rollout["stage"] != "aborted" else NOT)


@app.command()
def advance(why: Why, url: UrlOption = DEFAULT_URL, api_key: KeyOption = None, as_json: JsonFlag = False) -> None:
    """Go to the next stage now, whatever hold and verdict say."""
    api = ApiClient(url, api_key)
    rollout = api.call("GET", "/v1/policies/rollout")["rollout"]
    body = {"why": why, "step": None if rollout is None else rollout["step"]}
    print_change(api.call("POST", "/v1/policies/rollout:advance", body), as_json)


@app.command()
def abort(why: Why, url: UrlOption = DEFAULT_URL, api_key: KeyOption = None, as_json: JsonFlag = False) -> None:
    """End it with the old values in force everywhere within two seconds; also one that has reached all endpoints."""
    print_change(ApiClient(url, api_key).call("POST", "/v1/policies/rollout:abort", {"why": why}), as_json)


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        fail(f"{option} {text!r}: write numbers, for example 0.01,0.1,0.5")
