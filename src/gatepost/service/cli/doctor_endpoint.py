"""`gatepost doctor URL`: runs the look at one endpoint and prints it: phases, addresses, certificate, verdict and curl line."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gatepost.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from gatepost.delivery.policy import ClientPolicy
from gatepost.errors import ConfigurationError
from gatepost.service.attempt_view import attempt_json
from gatepost.service.cli.output import DONE, NOT, fail, print_json, print_line
from gatepost.service.cli.policy_options import client_policy, egress_policy
from gatepost.service.doctor.collect import facts_json
from gatepost.service.doctor.curl import curl_line
from gatepost.service.doctor.endpoint import EventToSend, look_at
from gatepost.service.doctor.endpoint_facts import EndpointFacts
from gatepost.service.doctor.endpoint_verdict import Fault, Trouble, fault_of, judge
from gatepost.service.doctor.finding import RANK, Severity
from gatepost.wire.egress import EgressPolicy

_VERDICT = {
    Fault.NOBODY: "nothing found",
    Fault.THEIRS: "theirs: the endpoint, its network or its DNS",
    Fault.OURS: "ours: our rules, resolver, machine or way out",
    Fault.UNKNOWN: "not to be told from here: give --reference URL of an endpoint that is well",
}


def examine_endpoint(
    url: str,
    *,
    send: bool,
    secret: str | None,
    reference: str | None,
    ca_file: Path | None,
    policy: Sequence[str] | None,
    allow_cidr: Sequence[str] | None,
    allow_http: bool,
    fail_on: Severity,
    as_json: bool,
) -> int:
    """The exit code: 0 when nothing was found, 1 when something was."""
    limits, destinations = client_policy(policy), egress_policy(allow_cidr, allow_http)
    event = _event(secret) if send else None
    try:
        ca = None if ca_file is None else ca_file.read_bytes()
    except OSError as error:
        fail(f"--ca-file {ca_file}: {error.strerror}")
    try:
        facts = asyncio.run(_look(url, limits, destinations, ca, event, reference))
    except ConfigurationError:
        raise
    except (ValueError, TypeError) as error:
        fail(str(error))
    troubles = judge(facts)
    fault = fault_of(troubles)
    curl = None if facts.denied is not None else _curl(url, facts, event, ca_file)
    bad = any(RANK[one.finding.severity] <= RANK[fail_on] for one in troubles)
    if as_json:
        print_json(_document(facts, troubles, fault, curl, healthy=not bad))
    else:
        _print(facts, troubles, fault, curl)
    return NOT if bad else DONE


async def _look(
    url: str,
    limits: ClientPolicy,
    destinations: EgressPolicy,
    ca: bytes | None,
    event: EventToSend | None,
    reference: str | None,
) -> EndpointFacts:
    from gatepost.net.client import DispatchClient
    from gatepost.net.tls import TLSProfile

    tls = None if ca is None else TLSProfile(ca_pem=ca)
    async with DispatchClient(limits, egress=destinations) as client:
        return await look_at(client, url, tls=tls, event=event, reference=reference)


def _event(secret: str | None) -> EventToSend:
    """Of the type that `gatepost endpoint test` sends; signed when there is a secret."""
    from gatepost.delivery.ids import EVENT, encode_id
    from gatepost.dispatch.dispatcher import TEST_TYPE
    from gatepost.wire.payload import payload_bytes
    from gatepost.wire.signing import sign

    payload = payload_bytes({"type": TEST_TYPE, "data": {}})
    event_id = encode_id(EVENT, int.from_bytes(SYSTEM_ENTROPY.token(8), "big") >> 1)
    if secret is None:
        return EventToSend(payload, {"webhook-id": event_id})
    try:
        return EventToSend(payload, sign(event_id, SYSTEM_CLOCK.wall_us() // 1_000_000, payload, [secret]))
    except (ValueError, TypeError) as error:
        fail(f"--secret: {error}")


def _curl(url: str, facts: EndpointFacts, event: EventToSend | None, ca_file: Path | None) -> str:
    """To the address that was used, else the first that may be."""
    allowed = [one for one in facts.addresses if one.denied is None]
    reached = [one for one in allowed if one.connect == "ok"]
    address = (reached or allowed)[0].address if allowed else None
    payload = None if event is None else event.payload
    return curl_line(url, address, payload=payload, ca_file=None if ca_file is None else str(ca_file))


def _document(
    facts: EndpointFacts, troubles: Sequence[Trouble], fault: Fault, curl: str | None, *, healthy: bool
) -> dict[str, Any]:
    return {
        "endpoint": facts.origin,
        "healthy": healthy,
        "fault": fault.value,
        "findings": [{"fault": one.fault.value, **one.finding.as_json()} for one in troubles],
        "sent": facts.sent,
        "denied": facts.denied or facts.address_denied,
        "dns": facts_json(facts.name),
        "addresses": facts_json(facts.addresses),
        "tls": facts_json(facts.tls),
        "exchanges": [attempt_json(attempt) for attempt in facts.exchanges],
        "keep_alive": facts.keep_alive,
        "reference": facts_json(facts.reference),
        "curl": curl,
    }


def _print(facts: EndpointFacts, troubles: Sequence[Trouble], fault: Fault, curl: str | None) -> None:
    print_line(f"{facts.origin} (sent: {facts.sent})\n")
    if facts.name is not None:
        again = "" if facts.name.again_seconds is None else f", again {_ms(facts.name.again_seconds)}"
        via = f", by way of {', '.join(facts.name.chain)}" if facts.name.chain else ""
        print_line(f"dns      {facts.name.name}: {facts.name.reason} in {_ms(facts.name.seconds)}{again}{via}")
    for one in facts.addresses:
        rule = f"refused by {one.denied}" if one.denied is not None else "allowed"
        connect = "not tried" if one.connect is None else f"connect {one.connect} in {_ms(one.seconds or 0.0)}"
        print_line(f"address  {one.address}: {rule}, {connect}")
    if facts.tls is not None:
        tls = facts.tls
        print_line(
            f"tls      {tls.reason} in {_ms(tls.seconds)}: {tls.version or '-'}, {tls.cipher or '-'}, ALPN {tls.alpn or '-'}"
        )
        for place, certificate in enumerate(tls.chain):
            print_line(
                f"  {place}      {certificate.subject or '-'} by {certificate.issuer}, until {certificate.not_after} "
                f"({certificate.days_left:.0f} days)"
                + (f", for {', '.join(certificate.names)}" if certificate.names else "")
            )
    for attempt in facts.exchanges:
        phases = ", ".join(f"{phase.value} {_ms(seconds)}" for phase, seconds in attempt.phases.items())
        came = attempt.reason.value if attempt.status is None else str(attempt.status)
        kept = "on the same connection" if attempt.reused else "on a new connection"
        print_line(f"http     {came} in {_ms(attempt.elapsed)} {kept}: {phases}")
    if facts.keep_alive is not None:
        print_line(f"kept     {facts.keep_alive}")
    if facts.reference is not None:
        print_line(
            f"compared {facts.reference.origin}: dns {facts.reference.dns}, connect {facts.reference.connect or '-'}"
        )
    print_line("")
    for trouble in troubles:
        finding = trouble.finding
        print_line(f"{finding.severity.value.upper()} {finding.code} ({trouble.fault.value})")
        print_line(f"  {finding.what}")
        for line in finding.evidence:
            print_line(f"    {line}")
        print_line(f"  Do: {finding.todo}\n")
    print_line(f"fault    {_VERDICT[fault]}")
    if curl is not None:
        print_line(f"\n{curl}")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
