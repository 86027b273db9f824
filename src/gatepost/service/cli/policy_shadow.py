"""`gatepost policy shadow` and `review`: what other limits would do, and which no longer fit. They change nothing by themselves."""

from __future__ import annotations

from typing import Annotated

import typer

from gatepost.service.cli.api_client import DEFAULT_URL, ApiClient, KeyOption, TenantOption, UrlOption
from gatepost.service.cli.output import DONE, NOT, USAGE, JsonFlag, fail, print_json, print_line, print_table
from gatepost.service.cli.policy import Limits, Why, parse_limits, print_change

app = typer.Typer(help="Try limits: each attempt says whether they would have ended it.", no_args_is_help=True)


@app.command("set")
def set_shadow(
    limits: Limits, why: Why, url: UrlOption = DEFAULT_URL, api_key: KeyOption = None, as_json: JsonFlag = False
) -> None:
    """Try these limits from now on, instead of what was tried. What is in force stays in force."""
    body = {"limits": parse_limits(limits), "why": why}
    print_change(ApiClient(url, api_key).call("POST", "/v1/policies/shadow", body), as_json)


@app.command("clear")
def clear_shadow(why: Why, url: UrlOption = DEFAULT_URL, api_key: KeyOption = None, as_json: JsonFlag = False) -> None:
    """Try nothing any more."""
    body = {"limits": {}, "why": why}
    print_change(ApiClient(url, api_key).call("POST", "/v1/policies/shadow", body), as_json)


@app.command()
def report(
    apply: Annotated[bool, typer.Option("--apply", help="Write the proposed overrides; needs --why.")] = False,
    why: Annotated[str | None, typer.Option("--why", help="Kept in the history.")] = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Who would lose successful deliveries, and the override (three times its p99) that would spare it. Exit 1: somebody would."""
    if apply and not why:
        fail("--apply changes endpoints: write --why too", USAGE)
    client = ApiClient(url, api_key)
    answer = client.call("GET", "/v1/policies/shadow")
    if apply:
        answer["applied"] = client.call("POST", "/v1/policies/shadow:apply", {"why": why})
    if as_json:
        print_json(answer)
    else:
        print_line(
            f"{answer['judged']} attempts judged, {answer['delivered']} delivered; {answer['lost']} of those would have become "
            f"failures, at {answer['endpoints_losing']} endpoints ({answer['endpoints_unspared']} without an override)"
        )
        print_table(("host", "lost"), [(one["host"], one["lost"]) for one in answer["hosts"]])
        rows = []
        for one in answer["endpoints"]:
            met = " ".join(f"{name}:{count}" for name, count in one["limits"].items())
            proposed = " ".join(f"{name}={seconds:g}" for name, seconds in one["proposed"].items()) or None
            rows.append((one["endpoint_id"], one["tenant"], one["lost"], one["delivered"], met, proposed))
        print_table(("endpoint", "tenant", "lost", "delivered", "would meet", "proposed"), rows)
        if apply:
            print_line(f"{answer['applied']['endpoints']} endpoints have overrides now")
    raise typer.Exit(DONE if apply or not answer["endpoints_unspared"] else NOT)


def review(
    tenant: TenantOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Endpoints whose budgets fit, too.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Endpoints at most.")] = 100,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Which budgets no longer fit what endpoints take, and since when. Suggests; changes nothing."""
    query = {"tenant": tenant, "all": str(everything).lower(), "limit": limit}
    answer = ApiClient(url, api_key).call("GET", "/v1/policies/review", query=query)
    if as_json:
        print_json(answer)
        return
    rows = []
    for one in answer["items"]:
        trip = None if one["round_trip"] is None else f"{one['round_trip'] * 1e3:.0f} ms"
        for row in one["limits"]:
            if everything or row["fit"] != "fits":
                suggested = None if row["suggested"] is None else f"{row['suggested']:g}"
                times = (f"{row['p50']:.3f}", f"{row['p99']:.3f}", f"{row['budget']:g}", f"{row['headroom']:.1f}")
                rows.append((one["endpoint_id"], row["limit"], *times, trip, row["fit"], row["since"], suggested))
    print_line(f"{answer['reviewed']} endpoints reviewed")
    columns = ("endpoint", "limit", "p50", "p99", "budget", "headroom", "round trip", "fit", "since", "suggested")
    print_table(columns, rows)
