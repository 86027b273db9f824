"""What one finished attempt says about its endpoint and its host: a truth table over outcome, phase, blame and status.

It judges single attempts and remembers nothing. What is our fault, or ended while our loop ran late, says nothing about
anybody. Names, connections and TLS are the host's affair, what comes after them the endpoint's. Called by
`admission.limits`; breaker, learner and concurrency see only the `Facts` made here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import Blame, Outcome
from gatepost.wire.phases import Phase


class Sign(IntEnum):
    """What an attempt shows. Closed; the numbers are places in arrays and in stored states."""

    NOTHING = 0
    """Ours, cut short by us, or from a lagging loop: no evidence of anything."""
    OK = 1
    """It answered: 2xx, 3xx, 4xx other than 429. Its time is a service time."""
    BUSY = 2
    """429: alive and asks for less. Not a service time, and no failure."""
    REFUSED = 3
    """503: a failure that asks for less too."""
    FAILED = 4
    """Another 5xx, a reset, a broken answer."""
    TIMEOUT = 5
    """Not answered, or not taken, in time."""
    SETUP = 6
    """No connection: name, route or handshake."""


SIGNS: Final = len(Sign)

ENDPOINT_FAILURES: Final = frozenset({Sign.REFUSED, Sign.FAILED, Sign.TIMEOUT})
"""What an endpoint's breaker counts against it."""


class Facts(NamedTuple):
    """One attempt as the limits see it."""

    sign: Sign
    seconds: float
    """From the last request byte to the end: the time the read limit bounds. 0.0 when it did not come so far."""
    success: bool
    """A complete 2xx head: what a probe must have, however long it took."""
    waited: bool
    """It was cut off while the endpoint owed the answer: `seconds` is a lower bound of its service time."""


NOTHING: Final = Facts(Sign.NOTHING, 0.0, False, False)
"""Of an attempt that says nothing."""
_SETUP: Final = Facts(Sign.SETUP, 0.0, False, False)
_HOST_PHASES: Final = frozenset({Phase.DNS, Phase.CONNECT, Phase.TLS})
_ANSWER_PHASES: Final = frozenset({Phase.WAIT, Phase.READ})
_TIMEOUTS: Final = frozenset({Outcome.READ_TIMEOUT, Outcome.WRITE_TIMEOUT, Outcome.DEADLINE_EXCEEDED})

# Looking an enumeration's member up costs as much as the rest of a step; these run for every attempt.
_US: Final = Blame.US
_RESPONSE: Final = Outcome.RESPONSE
_DENIED: Final = Outcome.EGRESS_DENIED
_TLS: Final = Phase.TLS
_WAIT: Final = Phase.WAIT
_READ: Final = Phase.READ
_OK: Final = Sign.OK
_BUSY: Final = Sign.BUSY
_REFUSED: Final = Sign.REFUSED
_FAILED: Final = Sign.FAILED
_TIMEOUT: Final = Sign.TIMEOUT


def facts_of(attempt: Attempt, *, own_tls: bool = False) -> Facts:
    """Judge a finished attempt. `own_tls`: the endpoint has its own TLS settings, so that a failed handshake is its own affair
    and cannot close the host for others."""
    if attempt.lagged or attempt.blame is _US:
        return NOTHING
    outcome = attempt.outcome
    if outcome is _RESPONSE:
        phases = attempt.phases
        seconds = phases.get(_WAIT, 0.0) + phases.get(_READ, 0.0)
        return Facts(sign_of_status(attempt.status or 0), seconds, attempt.delivered, False)
    if outcome is _DENIED:
        return NOTHING  # nobody was asked
    if attempt.phase in _HOST_PHASES:
        return Facts(_FAILED, 0.0, False, False) if own_tls and attempt.phase is _TLS else _SETUP
    phases = attempt.phases
    seconds = phases.get(_WAIT, 0.0) + phases.get(_READ, 0.0)
    if outcome in _TIMEOUTS:
        return Facts(_TIMEOUT, seconds, False, attempt.phase in _ANSWER_PHASES)
    return Facts(_FAILED, seconds, False, False)


def sign_of_status(status: int) -> Sign:
    """What a complete response head shows."""
    if status < 500:
        return _BUSY if status == 429 else _OK
    return _REFUSED if status == 503 else _FAILED
