"""The truth table of the outcomes, every combination of evidence, against a table written out from the contract.

The contract is the table of outcomes in the design and in docs/reference/outcomes.md; nothing here is computed by the code
under test. A row that changes here changes what users' alerts and retries do.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest

from gatepost.delivery.outcome import Blame, End, Evidence, Outcome, RetrySafety, Verdict, classify, status_safety
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import PROXY_REASONS, BodyFault, Reason

SAFE, AMBIGUOUS, POINTLESS = RetrySafety.SAFE, RetrySafety.AMBIGUOUS, RetrySafety.POINTLESS
US, PATH, ENDPOINT = Blame.US, Blame.PATH, Blame.ENDPOINT

SETUP = (Phase.ADMISSION, Phase.POOL, Phase.DNS, Phase.CONNECT, Phase.TLS)
STATUSES = (None, 100, 200, 204, 299, 301, 400, 408, 410, 413, 425, 429, 499, 500, 502, 503, 599, 600, 999)
FAULTS = (None, *BodyFault)
OURS = (Reason.LOCAL_RESOURCES, Reason.DNS_OVERLOAD, *sorted(PROXY_REASONS))


@dataclass(frozen=True)
class Row:
    """What one end in one phase comes to, before and after the first request byte left us."""

    outcome: Outcome
    not_started: RetrySafety
    started: RetrySafety
    blame: Blame


# A request byte can have left us in a set-up phase too: when a reused connection died and the request goes out once more.
LIMITS = {
    Phase.ADMISSION: Row(Outcome.SHED, SAFE, AMBIGUOUS, US),
    Phase.POOL: Row(Outcome.POOL_TIMEOUT, SAFE, AMBIGUOUS, US),
    Phase.DNS: Row(Outcome.CONNECT_TIMEOUT, SAFE, AMBIGUOUS, PATH),
    Phase.CONNECT: Row(Outcome.CONNECT_TIMEOUT, SAFE, AMBIGUOUS, PATH),
    Phase.TLS: Row(Outcome.CONNECT_TIMEOUT, SAFE, AMBIGUOUS, PATH),
    Phase.WRITE: Row(Outcome.WRITE_TIMEOUT, AMBIGUOUS, AMBIGUOUS, ENDPOINT),
    Phase.WAIT: Row(Outcome.READ_TIMEOUT, AMBIGUOUS, AMBIGUOUS, ENDPOINT),
    Phase.READ: Row(Outcome.READ_TIMEOUT, AMBIGUOUS, AMBIGUOUS, ENDPOINT),
}
PHASE_BLAME = {
    Phase.ADMISSION: US,
    Phase.POOL: US,
    Phase.DNS: PATH,
    Phase.CONNECT: PATH,
    Phase.TLS: PATH,
    Phase.WRITE: ENDPOINT,
    Phase.WAIT: ENDPOINT,
    Phase.READ: ENDPOINT,
}
ENDS = {
    End.SHED: {phase: Row(Outcome.SHED, SAFE, SAFE, US) for phase in Phase},
    End.CIRCUIT_OPEN: {phase: Row(Outcome.CIRCUIT_OPEN, SAFE, SAFE, US) for phase in Phase},
    End.LIMIT: LIMITS,
    End.TOTAL: {phase: Row(Outcome.DEADLINE_EXCEEDED, SAFE, AMBIGUOUS, blame) for phase, blame in PHASE_BLAME.items()},
    End.DEADLINE: {phase: Row(Outcome.DEADLINE_EXCEEDED, SAFE, AMBIGUOUS, US) for phase in Phase},
    End.FAULT: {
        phase: Row(Outcome.TRANSPORT_ERROR, SAFE, AMBIGUOUS, PATH if phase in SETUP else ENDPOINT) for phase in Phase
    },
    End.DENIED: {phase: Row(Outcome.EGRESS_DENIED, POINTLESS, POINTLESS, ENDPOINT) for phase in Phase},
    End.CANCELLED: {phase: Row(Outcome.CANCELLED, SAFE, AMBIGUOUS, US) for phase in Phase},
}

STATUS_SAFETY = {
    # delivered: another try can only repeat it
    **dict.fromkeys(range(200, 300), POINTLESS),
    # not followed, or refused: the receiver says it did not act
    **dict.fromkeys(range(300, 500), SAFE),
    # it may have acted before it failed; and what is no class we know is treated like that
    **dict.fromkeys(range(500, 1_000), AMBIGUOUS),
    503: SAFE,
}


def test_the_table_has_a_row_for_every_end() -> None:
    """A new end without a row would be classified by accident."""
    assert ENDS.keys() | {End.RESPONSE} == set(End)
    assert all(rows.keys() == set(Phase) for rows in ENDS.values())


@pytest.mark.parametrize("end", ENDS)
def test_every_end_without_a_response_follows_the_table(end: End) -> None:
    """Outcome, retry safety and blame come from end, phase and whether a byte had left us; nothing else may matter."""
    for phase, started, reason, status, fault, strict in itertools.product(
        Phase, (False, True), (Reason.TOTAL_TIMEOUT, *OURS), STATUSES, FAULTS, (False, True)
    ):
        row = ENDS[end][phase]
        blame = US if end is End.FAULT and reason in OURS else row.blame
        expected = Verdict(
            row.outcome,
            Phase.ADMISSION if end in (End.SHED, End.CIRCUIT_OPEN) else phase,
            reason,
            row.started if started else row.not_started,
            blame,
            False,
        )
        evidence = Evidence(end, phase, reason, status, started, fault, strict)
        assert expected == classify(evidence), evidence


def test_a_complete_head_counts_by_its_status_whatever_the_body_does() -> None:
    """A receiver that said 2xx has the event; sending it again because its page was cut would deliver it twice."""
    for status, phase, fault, started in itertools.product(
        range(200, 1_000), (Phase.WRITE, Phase.READ), FAULTS, (False, True)
    ):
        ok = status < 300
        expected = Verdict(Outcome.RESPONSE, phase, Reason.OK, STATUS_SAFETY[status], ENDPOINT, ok)
        evidence = Evidence(End.RESPONSE, phase, Reason.OK, status, started, fault)
        assert expected == classify(evidence), evidence
        if fault is None or not ok:
            assert expected == classify(replace(evidence, require_complete_body=True)), evidence
    assert all(safety == status_safety(status) for status, safety in STATUS_SAFETY.items())


@pytest.mark.parametrize("status", [200, 204, 299])
@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (BodyFault.TIMEOUT, Outcome.READ_TIMEOUT),
        (BodyFault.INCOMPLETE, Outcome.TRANSPORT_ERROR),
        (BodyFault.TOO_LARGE, Outcome.TRANSPORT_ERROR),
        (BodyFault.PROTOCOL, Outcome.TRANSPORT_ERROR),
    ],
)
def test_who_needs_the_body_gets_its_faults_as_failures(status: int, fault: BodyFault, outcome: Outcome) -> None:
    """`require_complete_body`: some receivers say 200 first and the truth in the body. It may have acted: ambiguous."""
    for phase in (Phase.WRITE, Phase.READ):
        verdict = classify(Evidence(End.RESPONSE, phase, Reason.RESPONSE_TIMEOUT, status, True, fault, True))
        assert verdict == Verdict(outcome, Phase.READ, Reason.RESPONSE_TIMEOUT, AMBIGUOUS, ENDPOINT, False)


def test_a_response_without_a_status_is_a_bug_and_not_a_verdict() -> None:
    """The engine must not be able to call something a response that had no head."""
    with pytest.raises(AssertionError, match="has a status"):
        classify(Evidence(End.RESPONSE, Phase.READ, Reason.OK))


def test_outcome_words_are_as_documented() -> None:
    """Users store and compare these strings."""
    assert [outcome.value for outcome in Outcome] == [
        "response",
        "shed",
        "circuit_open",
        "pool_timeout",
        "connect_timeout",
        "write_timeout",
        "read_timeout",
        "transport_error",
        "deadline_exceeded",
        "egress_denied",
        "cancelled",
    ]
    assert [safety.value for safety in RetrySafety] == ["safe", "ambiguous", "pointless"]
    assert [blame.value for blame in Blame] == ["us", "path", "endpoint"]
    assert [phase.value for phase in Phase] == ["admission", "pool", "dns", "connect", "tls", "write", "wait", "read"]
