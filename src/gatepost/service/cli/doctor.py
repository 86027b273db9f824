"""`gatepost doctor`: what is wrong with a running fleet; with a URL, what is wrong on the way to that endpoint.

It asks the processes and prints; the facts are gathered and judged in `service.doctor`. Without a service it looks at the
configuration and this machine, and says that it could not see more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gatepost.service.cli.api_client import DEFAULT_URL, Answer, ApiClient, KeyOption, Unreachable, UrlOption, refuse
from gatepost.service.cli.doctor_endpoint import examine_endpoint
from gatepost.service.cli.output import DONE, NOT, USAGE, JsonFlag, fail, print_json, print_line
from gatepost.service.cli.policy import ConfigOption
from gatepost.service.cli.policy_options import AllowCidr, AllowHttp, PolicyFields
from gatepost.service.config import load_settings, open_files_limit
from gatepost.service.doctor.asking import ToAsk, limits_differ, others_to_ask, unreachable
from gatepost.service.doctor.collect import facts_json
from gatepost.service.doctor.finding import RANK, Finding, Severity, finding_from, merged
from gatepost.service.doctor.offline import examine_settings, facts_of

PATH: Final = "/v1/doctor"
OTHERS_TIMEOUT: Final = 6.0
"""Seconds for another process: its own look takes two for a store and names that hang."""
ASKED_AT_ONCE: Final = 8


def doctor(
    target: Annotated[
        str | None, typer.Argument(metavar="URL", help="An endpoint to take apart; not given: examine the fleet.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    config: ConfigOption = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no service: look at the configuration and this machine only.")
    ] = False,
    compare: Annotated[
        Path | None, typer.Option(help="A configuration file to compare with what runs; this environment counts too.")
    ] = None,
    fail_on: Annotated[Severity, typer.Option(help="Exit 1 from this severity on.")] = Severity.NOTICE,
    send: Annotated[
        bool, typer.Option("--send", help="URL: POST a test event instead of asking with OPTIONS.")
    ] = False,
    secret: Annotated[
        str | None,
        typer.Option(envvar="GATEPOST_SEND_SECRET", help="URL: sign the test event with this whsec_… secret."),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="URL: another endpoint that is known to be well, to compare our way out with.")
    ] = None,
    ca_file: Annotated[Path | None, typer.Option(help="URL: PEM file of a private CA to trust.")] = None,
    policy: PolicyFields = None,
    allow_cidr: AllowCidr = None,
    allow_http: AllowHttp = False,
    as_json: JsonFlag = False,
) -> None:
    """Find what is wrong: in a running fleet (an admin's key), or with a URL on the way to one endpoint.

    Exit 0 when nothing was found, 1 when something was, 2 when the service cannot be reached.
    """
    if target is not None:
        raise typer.Exit(
            examine_endpoint(
                target,
                send=send,
                secret=secret,
                reference=reference,
                ca_file=ca_file,
                policy=policy,
                allow_cidr=allow_cidr,
                allow_http=allow_http,
                fail_on=fail_on,
                as_json=as_json,
            )
        )
    if send or secret or reference or ca_file or policy or allow_cidr or allow_http:
        fail(
            "--send, --secret, --reference, --ca-file, --policy, --allow-cidr and --allow-http are for `gatepost doctor URL`"
        )
    if offline:
        raise typer.Exit(_from_configuration(config, fail_on, as_json, None))
    answer = ApiClient(url, api_key).look(PATH)
    if isinstance(answer, Unreachable):
        _from_configuration(config, fail_on, as_json, f"no service at {url} ({answer.why})")
        raise typer.Exit(USAGE)
    if answer.status == 404:
        fail(f"{url} does not tell: give an admin's key (--api-key), and let the service run this version")
    if answer.status >= 400:
        refuse(answer)
    if not isinstance(answer.document, dict) or "answered_by" not in answer.document:
        fail(f"{url} answered something else; is it Gatepost?")
    raise typer.Exit(_of_fleet(answer.document, url, api_key, compare, fail_on, as_json))


def _of_fleet(
    first: dict[str, Any], url: str, api_key: str | None, compare: Path | None, fail_on: Severity, as_json: bool
) -> int:
    to_ask = others_to_ask(first, url)
    documents, failed = [first, *first["siblings"]], []
    not_asked = [one for one in to_ask if one.url is None]
    askable = [one for one in to_ask if one.url is not None]
    with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="doctor") as executor:
        for one, answer in zip(askable, executor.map(lambda one: _ask(one, api_key), askable), strict=True):
            match answer:
                case Unreachable(why):
                    failed.append((one.name, f"{one.url}: {why}"))
                case Answer(200, {"answered_by": name}) if name == one.name:
                    documents.append(answer.document)
                case _:
                    not_asked.append(ToAsk(one.name, None, f"somebody else answers at {one.url}"))
    processes = [document["process"] for document in documents]
    found = [finding_from(finding) for document in documents for finding in document["findings"]]
    written = [] if compare is None else [_as_written(compare)]
    found += [one for one in (unreachable(failed), limits_differ([*processes, *written])) if one is not None]
    findings = merged(found)
    bad = _counts(findings, fail_on)
    asked = [document["answered_by"] for document in documents]
    if as_json:
        print_json(
            {
                "source": "service",
                "url": url,
                "healthy": not bad,
                "asked": asked,
                "not_asked": [{"name": one.name, "why": one.why} for one in not_asked],
                "findings": [finding.as_json() for finding in findings],
                "processes": processes,
                "fleet": first["fleet"],
            }
        )
        return NOT if bad else DONE
    _print(findings)
    for one in not_asked:
        print_line(f"not asked: {one.name}, {one.why}")
    print_line(f"{_verdict(findings)}; asked {', '.join(asked)}")
    return NOT if bad else DONE


def _as_written(config: Path) -> dict[str, Any]:
    """What processes would have that start with this file now."""
    open_files_limit(raise_it=True)
    facts = facts_of(load_settings(config, os.environ))
    return {"node": str(config), "limits": facts_json(facts.limits)}


def _ask(one: ToAsk, api_key: str | None) -> Answer | Unreachable:
    assert one.url is not None, "only those that can be asked"
    return ApiClient(one.url, api_key, timeout=OTHERS_TIMEOUT).look(PATH, {"fleet": "false"})


def _from_configuration(config: Path | None, fail_on: Severity, as_json: bool, why: str | None) -> int:
    """`why`: there is no service to ask."""
    open_files_limit(raise_it=True)  # as `serve` does
    findings = examine_settings(load_settings(config, os.environ))
    bad = _counts(findings, fail_on)
    if as_json:
        print_json(
            {
                "source": "configuration",
                "unreachable": why,
                "healthy": None if why is not None else not bad,
                "findings": [finding.as_json() for finding in findings],
            }
        )
    else:
        _print(findings)
        print_line(f"{_verdict(findings)}; seen: the configuration and this machine, no running service")
    if why is not None:
        sys.stderr.write(f"gatepost: {why}; start it with `gatepost serve`, or set GATEPOST_URL\n")
    return NOT if bad else DONE


def _counts(findings: Sequence[Finding], fail_on: Severity) -> bool:
    return any(RANK[finding.severity] <= RANK[fail_on] for finding in findings)


def _print(findings: Sequence[Finding]) -> None:
    for finding in findings:
        where = f" ({', '.join(finding.processes)})" if finding.processes else ""
        print_line(f"{finding.severity.value.upper()} {finding.code}{where}")
        print_line(f"  {finding.what}")
        for line in finding.evidence:
            print_line(f"    {line}")
        print_line(f"  Do: {finding.todo}\n")


def _verdict(findings: Sequence[Finding]) -> str:
    if not findings:
        return "nothing found"
    return f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"
