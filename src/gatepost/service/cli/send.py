"""`gatepost send`: one signed or plain POST through the phase-exact client, and everything known about how it ended."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from gatepost.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.policy import ClientPolicy
from gatepost.errors import ConfigurationError
from gatepost.service.attempt_view import attempt_json
from gatepost.service.cli.output import DONE, NOT, JsonFlag, fail, print_fields, print_json, print_table
from gatepost.service.cli.policy_options import AllowCidr, AllowHttp, PolicyFields, client_policy, egress_policy
from gatepost.wire.egress import EgressPolicy


def send(
    url: Annotated[str, typer.Argument(help="Where to POST.")],
    data: Annotated[str, typer.Option(help="The body; @FILE reads a file, @- standard input.")] = "{}",
    header: Annotated[list[str] | None, typer.Option("--header", "-H", help="NAME: VALUE; repeat for more.")] = None,
    content_type: Annotated[str, typer.Option(help="Content-Type of the body.")] = "application/json",
    secret: Annotated[
        str | None, typer.Option(envvar="GATEPOST_SEND_SECRET", help="Sign with this whsec_… secret.")
    ] = None,
    policy: PolicyFields = None,
    allow_cidr: AllowCidr = None,
    allow_http: AllowHttp = False,
    ca_file: Annotated[Path | None, typer.Option(help="PEM file of a private CA to trust.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Exit 0 when delivered (a complete 2xx response head arrived), 1 when not."""
    payload = read_data(data)
    headers = parse_headers(header or ())
    limits = client_policy(policy)
    destinations = egress_policy(allow_cidr, allow_http)
    ca = None if ca_file is None else read_data(f"@{ca_file}")
    try:
        if secret is not None:
            from gatepost.delivery.ids import EVENT, encode_id
            from gatepost.wire.signing import sign

            event_id = encode_id(EVENT, int.from_bytes(SYSTEM_ENTROPY.token(8), "big") >> 1)
            headers.update(sign(event_id, SYSTEM_CLOCK.wall_us() // 1_000_000, payload, [secret]))
        attempt = asyncio.run(_deliver(url, payload, headers, content_type, limits, destinations, ca))
    except ConfigurationError:
        raise
    except (ValueError, TypeError) as error:
        fail(str(error))
    if as_json:
        print_json(attempt_json(attempt))
    else:
        print_attempt(attempt)
    raise typer.Exit(DONE if attempt.delivered else NOT)


async def _deliver(
    url: str,
    payload: bytes,
    headers: dict[str, str],
    content_type: str,
    limits: ClientPolicy,
    destinations: EgressPolicy,
    ca: bytes | None,
) -> Attempt:
    from gatepost.net.client import DispatchClient
    from gatepost.net.tls import TLSProfile

    tls = None if ca is None else TLSProfile(ca_pem=ca)
    async with DispatchClient(limits, egress=destinations) as client:
        return await client.deliver(url, payload, headers, content_type=content_type, tls=tls)


def read_data(data: str) -> bytes:
    """The bytes an option means: as written, or a file after `@`."""
    if not data.startswith("@"):
        return data.encode()
    if data == "@-":
        return sys.stdin.buffer.read()
    try:
        return Path(data[1:]).read_bytes()
    except OSError as error:
        fail(f"--data {data}: {error.strerror}")


def parse_headers(lines: list[str] | tuple[str, ...]) -> dict[str, str]:
    """`NAME: VALUE` lines as a mapping."""
    headers = {}
    for number, line in enumerate(lines, 1):
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            fail(f"--header number {number} is not of the form NAME: VALUE")  # not shown: it may be the value alone
        headers[name.strip()] = value.strip()
    return headers


def print_attempt(attempt: Attempt) -> None:
    """For people: the verdict first, then where the time went."""
    from gatepost.wire.reasons import Reason

    shown = attempt_json(attempt)
    verdict = {
        "delivered": "yes" if attempt.delivered else "no",
        "outcome": shown["outcome"],
        "status": shown["status"],
        "ended in": shown["phase"],
        "reason": shown["reason"],
        "retry": shown["retry_safety"],
        "blame": shown["blame"],
        "host": shown["host"],
        "address": shown["address"],
        "elapsed": f"{attempt.elapsed * 1e3:.1f} ms",
        "bytes sent": shown["bytes_sent"],
    }
    if attempt.reason is Reason.OK:
        del verdict["reason"]
    if attempt.body_fault is not None:
        verdict["body fault"] = shown["body_fault"]
    print_fields(verdict)
    print_table(("phase", "ms"), [(name, f"{seconds * 1e3:.3f}") for name, seconds in shown["phases"].items()])
    if attempt.body:
        print_table(("response body",), [(shown["body"],)])
