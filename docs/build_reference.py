"""Writes the reference pages that come from code, so that they cannot drift: `python docs/build_reference.py`.

`--check` writes nothing and fails when a page is stale; the tests call it. Only facts the code knows are written here;
prose that argues belongs in the other pages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from gatepost.delivery.attempt import Attempt
from gatepost.delivery.decide import DeliveryRules, StatusAction, Why, uses_attempt
from gatepost.delivery.outcome import Blame, End, Evidence, Outcome, RetrySafety, Verdict, classify, status_safety
from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.records import DEFAULT_JITTER, DEFAULT_SCHEDULE, DEFAULT_WINDOW, SLOW_SCHEDULE
from gatepost.delivery.retry import FAST_RETRY_MAX, check_schedule, describe_seconds
from gatepost.wire.phases import PHASES, SETUP_PHASES, Phase
from gatepost.wire.reason_help import REASON_HELP
from gatepost.wire.reasons import PERMANENT_TLS_REASONS, US_REASONS, BodyFault, Reason

REFERENCE = Path(__file__).parent / "reference"
COMMAND = "python docs/build_reference.py"

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
ACTION_HELP = {
    StatusAction.DELIVERED: "Delivered.",
    StatusAction.FINAL: "This event will never be taken: dead letter.",
    StatusAction.DISABLE: "Nothing will be taken any more: dead letter, and the endpoint is disabled.",
    StatusAction.RETRY: "Tried again on the normal schedule.",
    StatusAction.SLOW: "Tried again on the slow schedule, with a notice: the owner must change something first.",
}
WHY_HELP = {
    Why.DELIVERED: "A complete 2xx head arrived.",
    Why.STATUS_RULE: "The endpoint's `status_rules` count this status as delivered.",
    Why.SCHEDULED: "The next place of the normal schedule.",
    Why.RETRY_AFTER: "The receiver asked for a later time.",
    Why.SETUP_FAILED: "The first attempt failed before a request byte was sent: tried again at once.",
    Why.OWNER_MUST_ACT: "The next place of the slow schedule.",
    Why.OUR_FAULT: "The fault was ours; no attempt is used up.",
    Why.NOT_ADMITTED: "No slot or connection was free; no attempt is used up.",
    Why.CANCELLED: "A drain stopped the attempt; no attempt is used up.",
    Why.ATTEMPTS_EXHAUSTED: "The schedule has no further place.",
    Why.WINDOW_OVER: "The next attempt would start after the delivery window.",
    Why.GONE: "The receiver wants nothing any more (410).",
    Why.REFUSED: "The receiver will never take this event (413, or a `final` rule).",
    Why.URL_DENIED: "The endpoint's URL breaks an egress rule.",
    Why.EVENT_MISSING: "The event's body is gone from the store.",
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
        f"*Generated by `{COMMAND}` from the code that decides; do not edit.*",
        "Every attempt ends as one `Attempt`. Ask `attempt.delivered` whether it arrived (a complete 2xx head did); "
        "`outcome` says how it ended, `phase` where, `reason` why, `retry_safety` whether the receiver may have acted, and "
        "`blame` whose fault it was. **All these lists may grow in minor versions: give a `match` over them a default.**",
        "## Outcomes",
        _table(
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
        _table(
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
        _table(
            ("status", "delivered", "retry safety"),
            [(name, "yes" if name == "2xx" else "no", f"`{safety}`") for name, safety in _status_rows()],
        ),
        "`retry_safety` says what may have happened, not what happens next; that is in [Decisions](decisions.md).",
        "## Faults in the body of a delivered response",
        _table(("`body_fault`", "what"), [(f"`{fault}`", BODY_FAULT_HELP[fault]) for fault in BodyFault]),
        "The event still counts as delivered and the connection is not used again. With `require_complete_body=True` such a "
        "fault becomes `read_timeout` or `transport_error`, both `ambiguous`.",
        "## Reasons",
        "Codes for programs; they never derive from error text.",
    ]
    for heading, reasons in _reason_groups():
        parts.append(f"### {heading}")
        parts.append(_table(("reason", "meaning", ""), [_reason_row(reason) for reason in reasons]))
    return "\n\n".join(parts) + "\n"


def render_decisions() -> str:
    """`decisions.md`."""
    assert ACTION_HELP.keys() == set(StatusAction)
    assert WHY_HELP.keys() == set(Why)
    check = check_schedule(DEFAULT_SCHEDULE, DEFAULT_WINDOW, ClientPolicy().attempt_budget)
    parts = [
        "# Decisions: what happens after an attempt",
        f"*Generated by `{COMMAND}` from the code that decides; do not edit.*",
        "A decision is `complete`, `retry_at`, `defer` (nothing was tried that counts; the row waits) or `dead_letter`. It "
        "follows the outcome, for a response its status, and what the endpoint says in `status_rules`, `schedule` and "
        "`window`. These lists may grow in minor versions.",
        "## By status",
        _table(
            ("status", "action", "what it does"),
            [(name, f"`{action}`", ACTION_HELP[action]) for name, action in _action_rows()],
        ),
        "An endpoint may say otherwise, for one status or a class: "
        '`status_rules={"404": "final", "5xx": "slow"}`. `Retry-After` may make the next attempt later, never sooner.',
        "Without a response: a denied URL is a dead letter at once and disables the endpoint; a denied address, and TLS "
        "faults that the owner must mend, follow the slow schedule; all else the normal one. A first attempt that failed "
        f"safely in set-up is tried again once within {FAST_RETRY_MAX:g} s.",
        "## Schedules",
        _table(
            ("attempt", "normal: after the previous one", "slow: after the previous one"),
            [
                (
                    str(number + 1),
                    describe_seconds(delay) if number else "at once",
                    describe_seconds(SLOW_SCHEDULE[number - 1]) if 0 < number <= len(SLOW_SCHEDULE) else "",
                )
                for number, delay in enumerate(DEFAULT_SCHEDULE)
            ],
        ),
        f"Every delay is drawn from ±{DEFAULT_JITTER:.0%}. {check}; then the delivery is a dead letter.",
        "## Why",
        _table(("`why`", "meaning"), [(f"`{why}`", WHY_HELP[why]) for why in Why]),
    ]
    return "\n\n".join(parts) + "\n"


PAGES = {REFERENCE / "outcomes.md": render_outcomes, REFERENCE / "decisions.md": render_decisions}


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with `--check` only compare."""
    stale = [path for path, render in PAGES.items() if not path.exists() or path.read_text() != render()]
    for path in stale:
        if "--check" in arguments:
            print(f"{path.name} is stale: run {COMMAND}", file=sys.stderr)
        else:
            path.write_text(PAGES[path]())
            print(f"wrote {path.name}")
    return 1 if stale and "--check" in arguments else 0


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


def _action_rows() -> Iterable[tuple[str, StatusAction]]:
    rules = DeliveryRules()
    for first in (2, 3, 4, 5):
        statuses = range(first * 100, first * 100 + 100)
        usual = rules.action(statuses[-1])
        yield f"{first}xx", usual
        for status in statuses:
            if rules.action(status) is not usual:
                yield str(status), rules.action(status)


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


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
