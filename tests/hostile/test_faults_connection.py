"""The engine against connections that go wrong: silence, stalls, closes and resets at every point.

Each case pins which limit applies to which phase and who is to blame: that is what a sender of webhooks decides by.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gatepost.delivery.outcome import Outcome
from gatepost.testing.hostile import BEHAVIOURS
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import BodyFault, Reason
from tests.hostile.engine import BIG, Expected, answered, fault, limits, meet, timed_out

RESET_OR_CLOSED = (Reason.CONNECTION_RESET, Reason.CONNECTION_CLOSED)


async def test_a_black_hole_costs_the_connect_limit() -> None:
    """SYNs that nobody answers are the commonest way for a dead host to look."""
    attempt = await meet("black-hole", timed_out(Outcome.CONNECT_TIMEOUT, Phase.CONNECT, Reason.CONNECT_TIMEOUT))
    assert attempt.bytes_sent == 0
    assert attempt.address == attempt.host.removeprefix("http://"), "the operator wants to know which address it was"


async def test_a_silent_receiver_costs_the_read_limit() -> None:
    """Accepted, read, never answered: the receiver may have acted, so the outcome is ambiguous."""
    attempt = await meet("silence", timed_out(Outcome.READ_TIMEOUT, Phase.WAIT, Reason.WAIT_TIMEOUT))
    assert attempt.bytes_sent > 0


async def test_a_receiver_that_never_reads_costs_the_write_limit() -> None:
    """Most HTTP clients have no limit on writing and hang here for ever."""
    attempt = await meet(
        "never-reads", timed_out(Outcome.WRITE_TIMEOUT, Phase.WRITE, Reason.WRITE_TIMEOUT), payload=BIG
    )
    assert 0 < attempt.bytes_sent < len(BIG)


async def test_a_receiver_that_reads_slowly_costs_the_write_limit_too() -> None:
    """Bytes that trickle out must not extend the limit, or one receiver holds a slot for as long as it likes."""
    attempt = await meet(
        "slow-read", timed_out(Outcome.WRITE_TIMEOUT, Phase.WRITE, Reason.WRITE_TIMEOUT), seconds=0.005, payload=BIG
    )
    assert 0 < attempt.bytes_sent < len(BIG)


async def test_a_small_request_is_written_even_if_nobody_reads_it() -> None:
    """The kernel takes it, so the wait for the answer is what runs out: never a write timeout."""
    await meet("never-reads", timed_out(Outcome.READ_TIMEOUT, Phase.WAIT, Reason.WAIT_TIMEOUT))


CUTS: list[tuple[str, bytes, Expected]] = [
    ("close-at-accept", b"", fault((Phase.WRITE, Phase.WAIT), RESET_OR_CLOSED)),
    ("reset-at-accept", b"", fault((Phase.WRITE, Phase.WAIT), RESET_OR_CLOSED)),
    ("close-before-response", b"", fault(Phase.WAIT, Reason.CONNECTION_CLOSED)),
    ("reset-before-response", b"", fault(Phase.WAIT, Reason.CONNECTION_RESET)),
    ("close-mid-request", BIG, fault((Phase.WRITE, Phase.WAIT), Reason.CONNECTION_RESET)),
    ("reset-mid-request", BIG, fault((Phase.WRITE, Phase.WAIT), Reason.CONNECTION_RESET)),
    ("close-mid-head", b"", fault(Phase.READ, Reason.RESPONSE_INCOMPLETE)),
    ("reset-mid-head", b"", fault(Phase.READ, Reason.CONNECTION_RESET)),
    ("close-mid-body", b"", answered(body_fault=BodyFault.INCOMPLETE, reason=Reason.RESPONSE_INCOMPLETE)),
    ("reset-mid-body", b"", answered(body_fault=BodyFault.INCOMPLETE, reason=Reason.RESPONSE_INCOMPLETE)),
]


@pytest.mark.parametrize(("name", "payload", "expected"), CUTS, ids=[case[0] for case in CUTS])
async def test_a_connection_cut_short_is_named_by_where_it_was_cut(
    name: str, payload: bytes, expected: Expected
) -> None:
    """Before the head nobody knows what happened; after a 2xx head the event is delivered, whatever became of the body."""
    await meet(name, expected, payload=payload, policy=limits(write_timeout=2.0, read_timeout=2.0))


async def test_a_faulty_body_fails_the_attempt_when_the_caller_wants_it_whole() -> None:
    """`require_complete_body` is for receivers whose answer matters."""
    policy = limits(require_complete_body=True)
    cut = replace(fault(Phase.READ, Reason.RESPONSE_INCOMPLETE), status=200, body_fault=BodyFault.INCOMPLETE)
    await meet("close-mid-body", cut, policy=policy)
    late = timed_out(Outcome.READ_TIMEOUT, Phase.READ, Reason.RESPONSE_TIMEOUT)
    await meet("drip-body", replace(late, status=200, body_fault=BodyFault.TIMEOUT), seconds=0.02, policy=policy)


def test_the_catalogue_says_what_the_engine_does() -> None:
    """The catalogue is printed by `gatepost hostile --list` and in the documentation."""
    for name, _, expected in CUTS:
        told = BEHAVIOURS[name].expected
        assert told.startswith(expected.outcome), name
        assert any(reason in told for reason in expected.reason), name
