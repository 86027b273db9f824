"""What an attempt says about endpoint and host: the whole truth table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gatepost.admission.evidence import Facts, Sign, facts_of
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason

ANSWERED = Attempt(
    outcome=Outcome.RESPONSE,
    delivered=True,
    phase=Phase.READ,
    reason=Reason.OK,
    retry_safety=RetrySafety.POINTLESS,
    blame=Blame.ENDPOINT,
    status=200,
    host="https://a.example",
    address=None,
    elapsed=1.0,
    phases={Phase.CONNECT: 0.5, Phase.WAIT: 0.3, Phase.READ: 0.1},
    reused=False,
    stale_retry=False,
    bytes_sent=100,
    response_headers=(),
    body=b"",
    body_fault=None,
    started_at=0.0,
)


@pytest.mark.parametrize(
    ("status", "sign"),
    [
        (200, Sign.OK),
        (302, Sign.OK),
        (404, Sign.OK),
        (429, Sign.BUSY),
        (500, Sign.FAILED),
        (502, Sign.FAILED),
        (503, Sign.REFUSED),
    ],
)
def test_a_status_is_a_sign(status: int, sign: Sign) -> None:
    """Every answer but 429 and 5xx is a service time; the connection's time is not part of it."""
    facts = facts_of(replace(ANSWERED, status=status, delivered=status == 200))
    assert facts._replace(seconds=0.0) == Facts(sign, 0.0, status == 200, False)
    assert facts.seconds == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("outcome", "phase", "sign", "waited"),
    [
        (Outcome.READ_TIMEOUT, Phase.WAIT, Sign.TIMEOUT, True),
        (Outcome.READ_TIMEOUT, Phase.READ, Sign.TIMEOUT, True),
        (Outcome.WRITE_TIMEOUT, Phase.WRITE, Sign.TIMEOUT, False),
        (Outcome.DEADLINE_EXCEEDED, Phase.WAIT, Sign.TIMEOUT, True),
        (Outcome.DEADLINE_EXCEEDED, Phase.TLS, Sign.SETUP, False),
        (Outcome.CONNECT_TIMEOUT, Phase.DNS, Sign.SETUP, False),
        (Outcome.CONNECT_TIMEOUT, Phase.CONNECT, Sign.SETUP, False),
        (Outcome.TRANSPORT_ERROR, Phase.TLS, Sign.SETUP, False),
        (Outcome.TRANSPORT_ERROR, Phase.WRITE, Sign.FAILED, False),
        (Outcome.TRANSPORT_ERROR, Phase.WAIT, Sign.FAILED, False),
        (Outcome.EGRESS_DENIED, Phase.CONNECT, Sign.NOTHING, False),
    ],
)
def test_what_comes_before_the_request_is_the_hosts_affair(
    outcome: Outcome, phase: Phase, sign: Sign, waited: bool
) -> None:
    """Evidence from names, connections and TLS belongs to the host, the rest to the endpoint."""
    facts = facts_of(replace(ANSWERED, outcome=outcome, phase=phase, delivered=False, status=None))
    assert (facts.sign, facts.waited, facts.success) == (sign, waited, False)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_what_is_ours_says_nothing(outcome: Outcome) -> None:
    """Neither our faults nor the results of a lagging loop may be charged to anybody."""
    assert facts_of(replace(ANSWERED, outcome=outcome, blame=Blame.US)).sign is Sign.NOTHING
    assert facts_of(replace(ANSWERED, outcome=outcome, lagged=True)).sign is Sign.NOTHING


def test_an_endpoints_own_tls_settings_are_its_own_affair() -> None:
    """A wrong certificate authority of one tenant must not close a shared host for all others."""
    failed = replace(ANSWERED, outcome=Outcome.TRANSPORT_ERROR, phase=Phase.TLS, delivered=False, status=None)
    assert facts_of(failed, own_tls=True).sign is Sign.FAILED
    unreachable = replace(failed, phase=Phase.CONNECT)
    assert facts_of(unreachable, own_tls=True).sign is Sign.SETUP
