"""Whose fault it is: what was seen on the way to one endpoint, judged phase by phase in the order of the wire.

Pure. A thing is theirs when we got to them and they failed, or when only their part was slow; it is ours when our rules refuse it
or a reference fares no better; without a reference it stays open where it cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import Outcome
from gatepost.service.doctor.checks_machine import NAME_SLOW
from gatepost.service.doctor.codes import Code
from gatepost.service.doctor.endpoint_facts import AddressFacts, EndpointFacts, NameLook, ReferenceFacts, TlsFacts
from gatepost.service.doctor.finding import RANK, Finding, Severity, shortened
from gatepost.wire.phases import Phase
from gatepost.wire.reason_help import REASON_HELP
from gatepost.wire.reasons import Reason

CONNECT_SLOW: Final = 0.5
"""Seconds for a TCP handshake: twice the round trip to the other side of the earth."""
ANSWER_SLOW: Final = 1.0
"""Seconds beyond a round trip: a receiver should take a message in and answer, and work on it afterwards."""
EXPIRES_SOON: Final = 14.0
"""Days."""
KEEP_ALIVE_SHORT: Final = 30
"""Seconds, our own keepalive_expiry."""
_OK: Final = Reason.OK.value
_UNANSWERED: Final = frozenset(
    {Reason.DNS_TIMEOUT.value, Reason.DNS_TEMPORARY_FAILURE.value, Reason.DNS_OVERLOAD.value}
)
_REFUSED: Final = frozenset({Reason.CONNECTION_REFUSED.value, Reason.CONNECTION_RESET.value})
_LOCAL: Final = frozenset({Reason.LOCAL_RESOURCES.value, Reason.NETWORK_UNREACHABLE.value})
_BY_CLOCK: Final = frozenset({Reason.TLS_CERT_EXPIRED.value, Reason.TLS_CERT_NOT_YET_VALID.value})
_NOTHING_MEANT: Final = frozenset({400, 401, 403, 404, 405, 411, 415, 422, 501})
"""What receivers of POST answer to OPTIONS without being unwell."""


class Fault(StrEnum):
    """Whose."""

    NOBODY = "nobody"
    THEIRS = "theirs"
    OURS = "ours"
    UNKNOWN = "unknown"
    """Not to be told apart from here; a `--reference` would."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A finding and whose fault it is."""

    fault: Fault
    finding: Finding


def judge(facts: EndpointFacts) -> list[Trouble]:
    """What is wrong, in the order of the wire; what stops deliveries ends the list."""
    found: list[Trouble] = []
    for step in (_url, _name, _rules, _connects, _handshake, _answer):
        stopped, troubles = step(facts)
        found += troubles
        if stopped:
            break
    return found


def fault_of(troubles: Sequence[Trouble]) -> Fault:
    """Of the worst of them, the first in the order of the wire."""
    if not troubles:
        return Fault.NOBODY
    return min(troubles, key=lambda one: RANK[one.finding.severity]).fault


Step = tuple[bool, list[Trouble]]
"""Whether deliveries end here, and what is wrong."""
_FINE: Final[Step] = (False, [])


def _stop(fault: Fault, code: Code, what: str, evidence: Sequence[str], todo: str) -> Step:
    return True, [Trouble(fault, Finding(code, Severity.CRITICAL, what, shortened(evidence), todo))]


def _note(fault: Fault, severity: Severity, code: Code, what: str, evidence: Sequence[str], todo: str) -> Trouble:
    return Trouble(fault, Finding(code, severity, what, shortened(evidence), todo))


def _help(reason: str) -> str:
    known = [text for code, text in REASON_HELP.items() if code == reason]
    return known[0] if known else reason


# ------------------------------------------------------------------------------------------- rules and names


def _url(facts: EndpointFacts) -> Step:
    if facts.denied is None:
        return _FINE
    return _stop(
        Fault.OURS,
        Code.URL_DENIED,
        "Our own rules refuse the URL; nothing was sent.",
        [f"{facts.denied[0]}: {facts.denied[1]}"],
        "Change the URL as the rule says, or open the rules if you operate the receiver (--allow-http, --allow-cidr, egress.*).",
    )


def _name(facts: EndpointFacts) -> Step:
    name = facts.name
    if name is None:
        return _FINE
    if name.reason == _OK:
        return False, _slow_name(name, facts.reference)
    evidence = [f"{name.name}: {name.reason} after {_ms(name.seconds)}. {_help(name.reason)}"]
    if name.reason not in _UNANSWERED:
        return _stop(
            Fault.THEIRS,
            Code.NAME_UNKNOWN,
            "The name has no address.",
            evidence,
            "Its owner has to mend the name, or register another URL.",
        )
    fault, compared = _against(facts.reference, lambda one: None if one.dns_seconds is None else one.dns == _OK)
    return _stop(
        fault,
        Code.NAME_UNANSWERED,
        "The name is not answered" + _whose(fault, "its zone's servers", "our resolver"),
        evidence + compared,
        "Ask the resolvers of /etc/resolv.conf one by one (`dig @ADDRESS NAME`), then the zone's own servers (`dig +trace NAME`).",
    )


def _slow_name(name: NameLook, reference: ReferenceFacts | None) -> list[Trouble]:
    if name.seconds <= NAME_SLOW:
        return []
    fault, compared = _against(
        reference, lambda one: None if one.dns_seconds is None else one.dns == _OK and one.dns_seconds <= NAME_SLOW
    )
    again = "" if name.again_seconds is None else f", asked again {_ms(name.again_seconds)}"
    return [
        _note(
            fault,
            Severity.WARNING,
            Code.NAME_SLOW,
            "The name is answered late" + _whose(fault, "its zone's servers", "our resolver"),
            [f"{name.name}: {_ms(name.seconds)}{again}", *compared],
            "It takes its time out of connect_timeout. A longer TTL of the record, or a caching resolver here, hides it.",
        )
    ]


def _rules(facts: EndpointFacts) -> Step:
    if facts.address_denied is None:
        return _FINE
    return _stop(
        Fault.OURS,
        Code.ADDRESS_DENIED,
        "Our own rules refuse where the name leads; nothing was sent.",
        [
            f"{facts.address_denied[0]}: {facts.address_denied[1]}",
            *(f"{one.address}: {one.denied or 'allowed'}" for one in facts.addresses),
        ],
        "A name that leads to private addresses is its owner's to mend; open egress.allow_cidrs only for receivers of your own.",
    )


# ------------------------------------------------------------------------------------------ connect and TLS


def _connects(facts: EndpointFacts) -> Step:
    tried = [one for one in facts.addresses if one.connect is not None]
    failed = [one for one in tried if one.connect != _OK]
    evidence = [_connected(one) for one in tried]
    if tried and len(failed) == len(tried):
        return _no_connect(failed, evidence, facts.reference)
    if failed:
        return False, [
            _note(
                Fault.THEIRS,
                Severity.WARNING,
                Code.ADDRESS_DEAD,
                "Some of its addresses do not take connections while others do: every connect that tries a dead one first is late.",
                evidence,
                "Its owner takes the dead addresses out of DNS, or mends them.",
            )
        ]
    fastest = min((one.seconds for one in tried if one.seconds is not None), default=0.0)
    if fastest <= CONNECT_SLOW:
        return _FINE
    fault, compared = _against(
        facts.reference,
        lambda one: None if one.connect_seconds is None else one.connect == _OK and one.connect_seconds < fastest / 2,
    )
    return False, [
        _note(
            fault,
            Severity.WARNING,
            Code.CONNECT_SLOW,
            "Connecting takes long" + _whose(fault, "they, or the way to them", "our way out"),
            evidence + compared,
            "Compare with `mtr` or the curl line from another network; a firewall here that is short of memory drops SYNs and "
            "makes connects take 1 s or 3 s.",
        )
    ]


def _no_connect(failed: Sequence[AddressFacts], evidence: list[str], reference: ReferenceFacts | None) -> Step:
    reasons = {one.connect for one in failed}
    if reasons & _REFUSED:
        return _stop(
            Fault.THEIRS,
            Code.CONNECT_REFUSED,
            "Somebody answers at the address and refuses the connection: nobody listens at this port, or their firewall rejects us.",
            evidence,
            "Its owner starts the server, or mends the port of the URL or the firewall.",
        )
    if reasons <= _LOCAL:
        return _stop(
            Fault.OURS,
            Code.CONNECT_IMPOSSIBLE,
            "This machine cannot make the connection: it has no route, or no local port or file descriptor is left.",
            evidence,
            "Look at `ip route get ADDRESS`, `ss -s` and the limit on open files; run `gatepost doctor` here.",
        )
    fault, compared = _against(reference, lambda one: None if one.connect is None else one.connect == _OK)
    return _stop(
        fault,
        Code.CONNECT_TIMEOUT,
        "No address takes a connection, and nothing says why"
        + _whose(fault, "they, or a firewall before them", "our way out"),
        evidence + compared,
        "Run the curl line here and from another network. If it fails only here: our firewall, NAT or route, or they block our address.",
    )


def _handshake(facts: EndpointFacts) -> Step:
    tls = facts.tls
    if tls is None:
        return _FINE
    elsewhere = [f"{address}: {reason}" for address, reason in facts.tls_elsewhere]
    evidence = [f"{tls.reason} after {_ms(tls.seconds)}. {_help(tls.reason)}", *_certificates(tls), *elsewhere]
    if tls.reason != _OK:
        todo = "Its owner mends the certificate or the server. There is no way to send without checking."
        if tls.reason in _BY_CLOCK:
            todo += " Compare the clock of this machine first (`timedatectl`)."
        elif tls.reason == Reason.TLS_CERT_UNKNOWN_CA.value:
            todo = _unknown_authority(tls)
        elif tls.reason == Reason.TLS_CERT_SELF_SIGNED.value:
            todo += " A receiver of your own is served by pinning its certificate as ca_pem (--ca-file here)."
        return _stop(Fault.THEIRS, Code.TLS_FAILED, "The TLS handshake fails; no request was sent.", evidence, todo)
    found = []
    if any(reason != _OK for _, reason in facts.tls_elsewhere):
        found.append(
            _note(
                Fault.THEIRS,
                Severity.WARNING,
                Code.TLS_DIFFERS,
                "The handshake fails at some of its addresses and not at others: deliveries fail by chance.",
                [f"{next((one.address for one in facts.addresses if one.connect == _OK), '')}: {_OK}", *elsewhere],
                "Its owner mends the certificate on every server behind the name.",
            )
        )
    leaf = tls.chain[0] if tls.chain else None
    if leaf is not None and leaf.days_left < EXPIRES_SOON:
        found.append(
            _note(
                Fault.THEIRS,
                Severity.WARNING,
                Code.CERTIFICATE_EXPIRES,
                f"The certificate expires in {leaf.days_left:.0f} days; deliveries end with it.",
                _certificates(tls),
                "Its owner renews it; automatic renewal should have done so by now.",
            )
        )
    return False, found


def _unknown_authority(tls: TlsFacts) -> str:
    if len(tls.chain) == 1 and not tls.chain[0].self_signed:
        return (
            "The server sends its own certificate only: its owner has to send the intermediate certificates too (the full chain). "
            "Browsers fetch them by themselves, which hides it."
        )
    return "The authority is not one the public trusts: a receiver of your own gets its authority as ca_pem (--ca-file here)."


def _certificates(tls: TlsFacts) -> list[str]:
    return [
        f"{one.subject or 'no subject'}, for {', '.join(one.names) or 'no host'}, by {one.issuer}, until {one.not_after} "
        f"({one.days_left:.0f} days)"
        for one in tls.chain[:1]
    ]


# -------------------------------------------------------------------------------------------------- exchange


def _answer(facts: EndpointFacts) -> Step:
    if not facts.exchanges:
        return _FINE
    first = facts.exchanges[0]
    if first.outcome is not Outcome.RESPONSE:
        return _no_answer(first, facts)
    found = _about_status(first, facts.sent)
    if first.body_fault is not None:
        found.append(
            _note(
                Fault.THEIRS,
                Severity.WARNING,
                Code.BODY_FAULTY,
                "The answer's head is complete and its body is not: the connection cannot be kept.",
                [f"{first.body_fault.value}: {first.reason.value}. {_help(first.reason.value)}"],
                "Its owner sends the body that the head announces, or none.",
            )
        )
    waited = first.phases.get(Phase.WAIT, 0.0)
    round_trip = min((one.seconds for one in facts.addresses if one.seconds is not None), default=0.0)
    if waited - round_trip > ANSWER_SLOW:
        found.append(
            _note(
                Fault.THEIRS,
                Severity.WARNING,
                Code.ANSWER_SLOW,
                "Connecting is quick and the answer takes long: the time goes in their application.",
                [f"round trip {_ms(round_trip)}, then {_ms(waited)} until the first byte of the answer"],
                "Its owner stores the message, answers, and works on it afterwards.",
            )
        )
    return False, found + _about_keeping(facts, first)


def _no_answer(first: Attempt, facts: EndpointFacts) -> Step:
    round_trip = min((one.seconds for one in facts.addresses if one.seconds is not None), default=0.0)
    ours = first.blame.value == "us"
    connected = f"connected in {_ms(round_trip)}"
    if facts.tls is not None:
        connected += f", TLS in {_ms(facts.tls.seconds)}"
    return _stop(
        Fault.OURS if ours else Fault.THEIRS,
        Code.NO_ANSWER if first.phase in (Phase.WAIT, Phase.READ) else Code.REQUEST_FAILED,
        "We stopped it ourselves."
        if ours
        else "They take the connection and give no answer that can be used: our way there is fine."
        if first.phase not in (Phase.DNS, Phase.CONNECT, Phase.TLS)
        else "The connection for the request failed, although another one before it did not.",
        [
            f"{first.outcome.value} in {first.phase.value} after {_ms(first.elapsed)}: {first.reason.value}. {_help(first.reason.value)}",
            connected,
            *([f"they speak {facts.tls.alpn}"] if facts.tls is not None and facts.tls.alpn == "h2" else []),
        ],
        "Its owner offers HTTP/1.1 beside HTTP/2 (ALPN http/1.1)."
        if first.reason is Reason.TLS_NO_HTTP1
        else "Its owner looks at the server behind the port; the curl line shows the same from here.",
    )


def _about_status(first: Attempt, sent: str) -> list[Trouble]:
    status = first.status or 0
    asked = not sent.startswith("POST")
    if 200 <= status < 300 or (asked and status in _NOTHING_MEANT):
        return []
    evidence = [f"{sent} was answered with {status}"]
    if (location := first.header("location")) is not None:
        evidence.append(f"location: {location}")
    return [
        _note(
            Fault.THEIRS,
            Severity.WARNING,
            Code.STATUS_UNWELL,
            "They answer, and not as a receiver that is well.",
            evidence,
            "Redirects are not followed: register the final URL. For 5xx its owner looks at the application."
            if status >= 500 or 300 <= status < 400
            else "Its owner looks why the message is refused; a wrong secret or path is the usual cause.",
        )
    ]


def _about_keeping(facts: EndpointFacts, first: Attempt) -> list[Trouble]:
    if first.body_fault is not None:
        return []
    said = (facts.keep_alive or "").lower()
    second = facts.exchanges[1] if len(facts.exchanges) > 1 else None
    announced = first.header("keep-alive") or ""
    seconds = [part.partition("=")[2].strip() for part in announced.split(",") if part.strip().startswith("timeout")]
    short = bool(seconds) and seconds[0].isdigit() and int(seconds[0]) < KEEP_ALIVE_SHORT
    # What refuses OPTIONS often closes behind its answer, whatever it does with a POST.
    tells = 200 <= (first.status or 0) < 300 or facts.sent.startswith("POST")
    closes = tells and ("close" in said or (second is not None and not second.reused))
    if not short and not closes:
        return []
    return [
        _note(
            Fault.THEIRS,
            Severity.NOTICE,
            Code.NOT_KEPT,
            "Connections are not kept: every delivery pays for a new one."
            if closes
            else "Idle connections are kept for a short time: deliveries further apart pay for a new one.",
            [facts.keep_alive or "no header says so, and the second request needed a new connection"],
            "Its owner keeps idle connections for a minute or longer.",
        )
    ]


# --------------------------------------------------------------------------------------------------- helpers


def _against(
    reference: ReferenceFacts | None, well: Callable[[ReferenceFacts], bool | None]
) -> tuple[Fault, list[str]]:
    """Whose fault, by whether the reference fares well (None: it does not tell), and the line that says so."""
    if reference is None:
        return Fault.UNKNOWN, ["nothing to compare with: give --reference URL of an endpoint that is well"]
    fares = well(reference)
    line = f"reference {reference.origin}: dns {reference.dns}"
    if reference.dns_seconds is not None:
        line += f" in {_ms(reference.dns_seconds)}"
    if reference.connect is not None:
        line += f", connect {reference.connect}"
        if reference.connect_seconds is not None:
            line += f" in {_ms(reference.connect_seconds)}"
    if fares is None:
        return Fault.UNKNOWN, [line]
    return (Fault.THEIRS if fares else Fault.OURS), [line]


def _whose(fault: Fault, they: str, we: str) -> str:
    match fault:
        case Fault.THEIRS:
            return f": {they}, since the reference fares better."
        case Fault.OURS:
            return f": {we}, since the reference fares no better."
        case _:
            return "."


def _connected(one: AddressFacts) -> str:
    return f"{one.address}: {one.connect}" + ("" if one.seconds is None else f" after {_ms(one.seconds)}")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"
