"""`gatepost egress check`: may this URL be called, and if not, by which rule. Judges; sends nothing.

One URL on the command line, or a case a line on standard input with `--jsonl`. Looks names up only with `--resolve`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Annotated, Any

import typer

from gatepost.errors import ConfigurationError, ResolveError
from gatepost.service.cli.output import DONE, NOT, USAGE, JsonFlag, fail, print_json, print_line
from gatepost.service.cli.policy_options import AllowCidr, AllowHttp, egress_policy
from gatepost.service.egress_check import CASE_FIELDS, Verdict, check_case
from gatepost.wire.egress import EgressPolicy

app = typer.Typer(help="Ask whether a destination may be called.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `check` a word of its own although it is the only one."""


@app.command()
def check(
    url: Annotated[str | None, typer.Argument(help="The URL to judge.")] = None,
    answers: Annotated[str | None, typer.Option(help="Addresses the resolver gave, separated by commas.")] = None,
    resolve: Annotated[bool, typer.Option("--resolve", help="Look the name up and judge its addresses too.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Read a case a line from standard input.")] = False,
    allow_cidr: AllowCidr = None,
    allow_http: AllowHttp = False,
    as_json: JsonFlag = False,
) -> None:
    """Exit 0 when allowed, 1 when denied. Without --answers or --resolve only the URL itself is judged."""
    policy = egress_policy(allow_cidr, allow_http)
    if jsonl:
        if url is not None or answers is not None or resolve:
            fail("--jsonl reads its cases from standard input; leave URL, --answers and --resolve out")
        raise typer.Exit(_check_lines(policy))
    if url is None:
        fail("write a URL, or --jsonl")
    if answers is not None and resolve:
        fail("--answers and --resolve exclude each other")
    case: dict[str, Any] = {"url": url}
    if answers is not None:
        case["dns_answers"] = [part.strip() for part in answers.split(",") if part.strip()]
    verdict = check_case(case, policy)
    if resolve and verdict.allowed:
        verdict = asyncio.run(_resolved(url, policy))
    if as_json:
        print_json({**verdict.as_json(), "detail": verdict.detail})
    else:
        print_line(f"{'allow' if verdict.allowed else 'deny'} ({verdict.reason}): {verdict.detail}")
    raise typer.Exit(DONE if verdict.allowed else NOT)


def _check_lines(policy: EgressPolicy) -> int:
    """A verdict a line, in order; a line that is no case gets an error in its place, and exit code 2 at the end."""
    code = DONE
    for line in sys.stdin:
        try:
            case = json.loads(line)
            if not isinstance(case, dict):
                raise ConfigurationError(f"a case is an object with {', '.join(CASE_FIELDS)}")
            print_json(check_case(case, policy).as_json())
        except (ConfigurationError, ValueError) as error:
            print_json({"error": str(error)})
            code = USAGE
    return code


async def _resolved(url: str, policy: EgressPolicy) -> Verdict:
    """As an attempt from this machine would find it: with its own addresses and its network's NAT64 prefix."""
    from gatepost.net.own_addresses import own_addresses
    from gatepost.net.resolver import ThreadResolver
    from gatepost.wire.egress import Denied, check_url

    own = own_addresses()
    target = check_url(url, policy)
    if isinstance(target, Denied) or target.address is not None:
        return check_case({"url": url}, policy, own_addresses=own)
    resolver = ThreadResolver(threads=1)
    try:
        found = await resolver.resolve(target.host)
        try:
            nat64 = await resolver.nat64_prefixes()
        except ResolveError:  # nobody could say
            nat64 = ()
    except ResolveError as error:
        return Verdict(False, error.code, f"{target.host} cannot be looked up")
    finally:
        resolver.close()
    case = {"url": url, "dns_answers": list(found.addresses), "cname_chain": list(found.chain)}
    return check_case(case, policy, own_addresses=own, nat64_seen=nat64)
