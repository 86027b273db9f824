"""The page of outcomes, phases and reasons, from the truth table that decides them. Used by `docs.build_reference`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from docs.tables import generated_note, table
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.decide import uses_attempt
from gatepost.delivery.outcome import Blame, End, Evidence, Outcome, RetrySafety, Verdict, classify, status_safety
from gatepost.wire.phases import PHASES, SETUP_PHASES, Phase
from gatepost.wire.reason_help import REASON_HELP
from gatepost.wire.reasons import PERMANENT_TLS_REASONS, US_REASONS, BodyFault, Reason

PHASE_HELP = {
    Phase.ADMISSION: "Waiting for one of the endpoint's slots.",
    Phase.POOL: "Waiting for a connection lease: the host's cap or the client's ceiling.",
    Phase.DNS: "Resolving the name and checking every answer.",
    Phase.CONNECT: "TCP, over all checked addresses.",
    Phase.TLS: "The handshake.",
    Phase.WRITE: "First to last request byte handed to the kernel.",
    Phase.WAIT: "Last request byte out to first response byte in: the receiver is working.",
    Phase.READ: "First response byte to the end of the body.",
}
OUTCOME_HELP = {
    Outcome.RESPONSE: "A complete response head arrived, whatever its status.",
    Outcome.SHED: "No endpoint slot within `admission_timeout`.",
    Outcome.CIRCUIT_OPEN: "The breaker refused.",
    Outcome.POOL_TIMEOUT: "No connection lease within `pool_timeout`.",
    Outcome.CONNECT_TIMEOUT: "The connection was not ready in time; `phase` says dns, connect or tls.",
    Outcome.WRITE_TIMEOUT: "The request was not fully written within `write_timeout`.",
    Outcome.READ_TIMEOUT: "Written, and not answered in full within `read_timeout`.",
    Outcome.TRANSPORT_ERROR: "The network or the peer failed: refused, reset, closed, TLS, not HTTP.",
    Outcome.DEADLINE_EXCEEDED: "The attempt's `total_timeout`, or the caller's own deadline, ran out.",
    Outcome.EGRESS_DENIED: "The destination is not allowed.",
    Outcome.CANCELLED: "We stopped it: a drain, a cancelled delivery, `aclose()`.",
}
BODY_FAULT_HELP = {
    BodyFault.INCOMPLETE: "The connection ended before the body did.",
    BodyFault.TIMEOUT: "`read_timeout` ran out while the body came.",
    BodyFault.TOO_LARGE: "The body is larger than `max_response_body`.",
    BodyFault.PROTOCOL: "The body breaks its own framing.",
}
REASON_GROUPS = (
    ("Limits and admission", Reason.OK),
    ("Names", Reason.DNS_NO_ADDRESS),
    ("Connections", Reason.CONNECTION_REFUSED),
    ("TLS", Reason.TLS_CERT_EXPIRED),
    ("Responses", Reason.RESPONSE_PROTOCOL_ERROR),
    ("Redirects", Reason.REDIRECT_DISABLED),
    ("Our own proxy", Reason.PROXY_FAILED),
    ("Refused URLs", Reason.URL_CONTROL_CHAR),
    ("Refused addresses", Reason.ADDR_6TO4),
)
"""Heading, and the first reason under it, in the order of the enum."""
_STARTED = {
    phase: (False,) if phase in SETUP_PHASES else (False, True) if phase is Phase.WRITE else (True,) for phase in PHASES
}
"""Whether a request byte can have left us in each phase."""
_PHASE_SAFETY = {
    (False,): "`safe`",
    (False, True): "`safe`; `ambiguous` from the first byte sent",
    (True,): "`ambiguous`",
}


def render_outcomes() -> str:
    """`outcomes.md`."""
    assert PHASE_HELP.keys() == set(Phase)
    assert OUTCOME_HELP.keys() == set(Outcome)
    assert BODY_FAULT_HELP.keys() == set(BodyFault)
    parts = [
        "# Outcomes, phases and reasons",
        generated_note(),
        "Every attempt ends as one `Attempt`. Ask `attempt.delivered` whether it arrived (a complete 2xx head did); "
        "`outcome` says how it ended, `phase` where, `reason` why, `retry_safety` whether the receiver may have acted, and "
        "`blame` whose fault it was. **All these lists may grow in minor versions: give a `match` over them a default.**",
        "## Outcomes",
        table(
            ("outcome", "when", "retry safety", "blame", "uses up an attempt"),
            [
                (
                    f"`{outcome}`",
                    OUTCOME_HELP[outcome],
                    _words(_safeties(outcome)),
                    _words(_blames(outcome)),
                    _words(_uses(outcome)),
                )
                for outcome in Outcome
            ],
        ),
        "What is blamed on us is never charged to the endpoint: breakers, learning and alerts look only at `path` and "
        "`endpoint`, and a `transport_error` that is ours uses up no attempt. What happens next is in "
        "[Decisions](decisions.md).",
        "## Phases, in wire order",
        table(
            ("phase", "what happens", "its limit ends as", "its faults are blamed on", "retry safety"),
            [
                (
                    f"`{phase}`",
                    PHASE_HELP[phase],
                    f"`{classify(Evidence(End.LIMIT, phase, Reason.TOTAL_TIMEOUT)).outcome}`",
                    f"`{classify(Evidence(End.LIMIT, phase, Reason.TOTAL_TIMEOUT)).blame}`",
                    _PHASE_SAFETY[_STARTED[phase]],
                )
                for phase in PHASES
            ],
        ),
        "## Responses by status",
        table(
            ("status", "delivered", "retry safety"),
            [(name, "yes" if name == "2xx" else "no", f"`{safety}`") for name, safety in _status_rows()],
        ),
        "`retry_safety` says what may have happened, not what happens next; that is in [Decisions](decisions.md).",
        "## Faults in the body of a delivered response",
        table(("`body_fault`", "what"), [(f"`{fault}`", BODY_FAULT_HELP[fault]) for fault in BodyFault]),
        "The event still counts as delivered and the connection is not used again. With `require_complete_body=True` such a "
        "fault becomes `read_timeout` or `transport_error`, both `ambiguous`.",
        "## Reasons",
        "Codes for programs; they never derive from error text.",
    ]
    for heading, reasons in _reason_groups():
        parts.append(f"### {heading}")
        parts.append(table(("reason", "meaning", ""), [_reason_row(reason) for reason in reasons]))
    return "\n\n".join(parts) + "\n"


def _verdicts(outcome: Outcome) -> Iterable[Verdict]:
    """Every combination the truth table gives this outcome."""
    for end in End:
        if end is End.RESPONSE:
            continue
        for phase in PHASES:
            for reason in (Reason.TOTAL_TIMEOUT, *US_REASONS):
                for started in _STARTED[phase]:
                    verdict = classify(Evidence(end, phase, reason, request_started=started))
                    if verdict.outcome is outcome:
                        yield verdict


def _safeties(outcome: Outcome) -> list[str]:
    if outcome is Outcome.RESPONSE:
        return ["by status, below"]
    found = {verdict.retry_safety for verdict in _verdicts(outcome)}
    return [f"`{safety}`" for safety in RetrySafety if safety in found]


def _blames(outcome: Outcome) -> list[str]:
    if outcome is Outcome.RESPONSE:
        return [f"`{Blame.ENDPOINT}`"]
    found = {verdict.blame for verdict in _verdicts(outcome)}
    return [f"`{blame}`" for blame in Blame if blame in found]


def _uses(outcome: Outcome) -> list[str]:
    verdicts = list(_verdicts(outcome)) or [classify(Evidence(End.RESPONSE, Phase.READ, Reason.OK, status=500))]
    found = {uses_attempt(_attempt(verdict)) for verdict in verdicts}
    if found == {True, False}:
        return ["yes, unless it is ours"]
    return ["yes" if found == {True} else "no"]


def _attempt(verdict: Verdict) -> Attempt:
    return Attempt(
        outcome=verdict.outcome,
        delivered=verdict.delivered,
        phase=verdict.phase,
        reason=verdict.reason,
        retry_safety=verdict.retry_safety,
        blame=verdict.blame,
        status=None,
        host="https://example.com:443",
        address=None,
        elapsed=0.0,
        phases={},
        reused=False,
        stale_retry=False,
        bytes_sent=0,
        response_headers=(),
        body=b"",
        body_fault=None,
        started_at=0.0,
    )


def _status_rows() -> Iterable[tuple[str, RetrySafety]]:
    for first in (2, 3, 4, 5):
        statuses = range(first * 100, first * 100 + 100)
        usual = status_safety(statuses[-1])
        yield f"{first}xx", usual
        for status in statuses:
            if status_safety(status) is not usual:
                yield str(status), status_safety(status)


def _reason_groups() -> Iterable[tuple[str, list[Reason]]]:
    order = list(Reason)
    starts = [order.index(first) for _, first in REASON_GROUPS]
    assert starts == sorted(starts)
    assert starts[0] == 0
    for (heading, _), start, stop in zip(REASON_GROUPS, starts, [*starts[1:], len(order)], strict=True):
        yield heading, order[start:stop]


def _reason_row(reason: Reason) -> tuple[str, str, str]:
    note = ""
    if reason in US_REASONS:
        note = "blame `us`"
    elif reason in PERMANENT_TLS_REASONS:
        note = "slow schedule"
    return f"`{reason}`", REASON_HELP[reason], note


def _words(words: Sequence[str]) -> str:
    return " or ".join(words)
