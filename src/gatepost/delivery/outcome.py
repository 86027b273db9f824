"""What one attempt came to: evidence in, one verdict out, by a truth table.

`classify` is the only place that turns evidence into outcome, retry safety and blame. It refuses nothing and knows no
network; `net.client` collects the evidence, `delivery.decide` says what happens next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from gatepost.wire.phases import SETUP_PHASES, Phase
from gatepost.wire.reasons import US_REASONS, BodyFault, Reason


class Outcome(StrEnum):
    """How an attempt ended. Closed in our code, may grow in minor versions: users' code needs a default branch."""

    RESPONSE = "response"
    SHED = "shed"
    CIRCUIT_OPEN = "circuit_open"
    POOL_TIMEOUT = "pool_timeout"
    CONNECT_TIMEOUT = "connect_timeout"
    WRITE_TIMEOUT = "write_timeout"
    READ_TIMEOUT = "read_timeout"
    TRANSPORT_ERROR = "transport_error"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    EGRESS_DENIED = "egress_denied"
    CANCELLED = "cancelled"


class RetrySafety(StrEnum):
    """Whether the receiver may have acted: `safe` it has not, `ambiguous` it may have, `pointless` another try cannot end otherwise."""

    SAFE = "safe"
    AMBIGUOUS = "ambiguous"
    POINTLESS = "pointless"


class Blame(StrEnum):
    """Whose fault it was. Breakers, learning and alerts look only at `path` and `endpoint`."""

    US = "us"
    PATH = "path"
    ENDPOINT = "endpoint"


class End(StrEnum):
    """What ended the attempt, as the engine saw it."""

    RESPONSE = "response"  # a complete response head arrived
    SHED = "shed"  # no endpoint slot in time
    CIRCUIT_OPEN = "circuit_open"
    LIMIT = "limit"  # a phase limit of the policy fired
    TOTAL = "total"  # the attempt's own total fired
    DEADLINE = "deadline"  # the caller's deadline fired
    FAULT = "fault"  # the network, the peer or its answer
    DENIED = "denied"  # the destination is not allowed
    CANCELLED = "cancelled"  # we stopped it


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the engine knows when an attempt ends."""

    end: End
    phase: Phase
    """The phase reached."""
    reason: Reason
    status: int | None = None
    request_started: bool = False
    """At least one request byte was handed to the kernel."""
    body_fault: BodyFault | None = None
    require_complete_body: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The classified end of an attempt."""

    outcome: Outcome
    phase: Phase
    reason: Reason
    retry_safety: RetrySafety
    blame: Blame
    delivered: bool


SAFE_STATUSES = frozenset({408, 425, 429, 503})
"""Beside 3xx and 4xx: the receiver says it did not act."""

PATH_PHASES = SETUP_PHASES
"""A fault in these phases is the path's (name, route, handshake); later ones are the endpoint's."""


def classify(evidence: Evidence) -> Verdict:
    """The truth table of the outcomes. Total: every evidence has a verdict."""
    phase = evidence.phase
    reason = evidence.reason
    match evidence.end:
        case End.RESPONSE:
            return _classify_response(evidence)
        case End.SHED:
            return Verdict(Outcome.SHED, Phase.ADMISSION, reason, RetrySafety.SAFE, Blame.US, False)
        case End.CIRCUIT_OPEN:
            return Verdict(Outcome.CIRCUIT_OPEN, Phase.ADMISSION, reason, RetrySafety.SAFE, Blame.US, False)
        case End.LIMIT:
            safety = _safety(evidence) if phase in SETUP_PHASES else RetrySafety.AMBIGUOUS
            return Verdict(_LIMIT_OUTCOME[phase], phase, reason, safety, _limit_blame(phase), False)
        case End.TOTAL:
            return Verdict(Outcome.DEADLINE_EXCEEDED, phase, reason, _safety(evidence), _limit_blame(phase), False)
        case End.DEADLINE:
            return Verdict(Outcome.DEADLINE_EXCEEDED, phase, reason, _safety(evidence), Blame.US, False)
        case End.FAULT:
            blame = Blame.US if reason in US_REASONS else _fault_blame(phase)
            return Verdict(Outcome.TRANSPORT_ERROR, phase, reason, _safety(evidence), blame, False)
        case End.DENIED:
            return Verdict(Outcome.EGRESS_DENIED, phase, reason, RetrySafety.POINTLESS, Blame.ENDPOINT, False)
        case End.CANCELLED:
            return Verdict(Outcome.CANCELLED, phase, reason, _safety(evidence), Blame.US, False)
        case never:
            assert_never(never)


def status_safety(status: int) -> RetrySafety:
    """Retry safety of a complete response by its status: 5xx other than 503 may follow a side effect, 2xx has had it."""
    if status in SAFE_STATUSES or 300 <= status < 500:
        return RetrySafety.SAFE
    if 200 <= status < 300:
        return RetrySafety.POINTLESS
    return RetrySafety.AMBIGUOUS


_LIMIT_OUTCOME: Mapping[Phase, Outcome] = {
    Phase.ADMISSION: Outcome.SHED,
    Phase.POOL: Outcome.POOL_TIMEOUT,
    Phase.DNS: Outcome.CONNECT_TIMEOUT,
    Phase.CONNECT: Outcome.CONNECT_TIMEOUT,
    Phase.TLS: Outcome.CONNECT_TIMEOUT,
    Phase.WRITE: Outcome.WRITE_TIMEOUT,
    Phase.WAIT: Outcome.READ_TIMEOUT,
    Phase.READ: Outcome.READ_TIMEOUT,
}


def _classify_response(evidence: Evidence) -> Verdict:
    status = evidence.status
    assert status is not None, "a response has a status"
    fault = evidence.body_fault
    ok = 200 <= status < 300
    if fault is not None and ok and evidence.require_complete_body:
        outcome = Outcome.READ_TIMEOUT if fault is BodyFault.TIMEOUT else Outcome.TRANSPORT_ERROR
        return Verdict(outcome, Phase.READ, evidence.reason, RetrySafety.AMBIGUOUS, Blame.ENDPOINT, False)
    return Verdict(Outcome.RESPONSE, evidence.phase, evidence.reason, status_safety(status), Blame.ENDPOINT, ok)


def _safety(evidence: Evidence) -> RetrySafety:
    return RetrySafety.AMBIGUOUS if evidence.request_started else RetrySafety.SAFE


def _limit_blame(phase: Phase) -> Blame:
    if phase is Phase.ADMISSION or phase is Phase.POOL:
        return Blame.US
    return Blame.PATH if phase in PATH_PHASES else Blame.ENDPOINT


def _fault_blame(phase: Phase) -> Blame:
    return Blame.PATH if phase in PATH_PHASES else Blame.ENDPOINT
