"""The engine against responses that drip, lie, never end or are no HTTP.

One clock runs from the last request byte to the end of the body, and no byte restarts it; a complete 2xx head means
delivered, whatever the rest does; a connection with any doubt on it is never used again.
"""

from __future__ import annotations

import resource

import pytest

from gatepost.delivery.outcome import Outcome, RetrySafety
from gatepost.testing.hostile import BEHAVIOURS, answering
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import BodyFault, Reason
from tests.hostile.engine import BIG, LIMIT, Expected, answered, fault, limits, meet, timed_out

READ_LIMIT = timed_out(Outcome.READ_TIMEOUT, Phase.READ, Reason.RESPONSE_TIMEOUT)
BODY_LIMIT = answered(body_fault=BodyFault.TIMEOUT, reason=Reason.RESPONSE_TIMEOUT, at_least=LIMIT)
INCOMPLETE = answered(body_fault=BodyFault.INCOMPLETE, reason=Reason.RESPONSE_INCOMPLETE)
TOO_LARGE = answered(body_fault=BodyFault.TOO_LARGE, reason=Reason.RESPONSE_TOO_LARGE)
BAD_BODY = answered(body_fault=BodyFault.PROTOCOL, reason=Reason.RESPONSE_PROTOCOL_ERROR)
NO_HTTP = fault(Phase.READ, Reason.RESPONSE_PROTOCOL_ERROR)

CASES: list[tuple[str, float | None, Expected]] = [
    ("drip-head", 0.02, READ_LIMIT),
    ("drip-body", 0.02, BODY_LIMIT),
    ("slow-interim", 0.05, READ_LIMIT),
    ("interim-then-silence", None, READ_LIMIT),
    ("long-content-length", None, INCOMPLETE),
    ("long-content-length-open", None, BODY_LIMIT),
    ("short-content-length", None, answered()),
    ("endless-interim", None, fault(Phase.READ, Reason.RESPONSE_TOO_MANY_INTERIM)),
    ("endless-headers", None, fault(Phase.READ, Reason.RESPONSE_HEADERS_TOO_LARGE)),
    ("endless-body", None, TOO_LARGE),
    ("endless-chunks", None, TOO_LARGE),
    ("endless-trailers", None, BAD_BODY),
    ("chunked-cut", None, INCOMPLETE),
    ("bad-chunk", None, BAD_BODY),
    ("banner", None, fault((Phase.READ, Phase.WRITE), Reason.RESPONSE_PROTOCOL_ERROR)),
    ("garbage", None, NO_HTTP),
    ("garbled-interim", None, NO_HTTP),
    ("http-0.9", None, NO_HTTP),
    ("switching-protocols", None, fault(Phase.READ, Reason.RESPONSE_UPGRADE)),
    ("two-responses", None, answered()),
    ("body-on-204", None, answered(204)),
    ("body-on-304", None, answered(304, safety=RetrySafety.SAFE)),
]


@pytest.mark.parametrize(("name", "seconds", "expected"), CASES, ids=[case[0] for case in CASES])
async def test_a_bad_response_is_bounded_and_named(name: str, seconds: float | None, expected: Expected) -> None:
    """Every limit here has been missing in some client, and each missing one holds a slot for ever."""
    await meet(name, expected, seconds=seconds)


async def test_the_body_of_a_failure_decides_nothing_but_is_bounded_too() -> None:
    """A huge or dripping error page must not hold the slot longer than a good answer may."""
    head = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 10000000\r\n\r\n"
    unsafe = RetrySafety.AMBIGUOUS
    large = answered(500, safety=unsafe, body_fault=BodyFault.TOO_LARGE, reason=Reason.RESPONSE_TOO_LARGE)
    await meet(answering(head + bytes(1_000_000)), large)
    late = answered(500, safety=unsafe, body_fault=BodyFault.TIMEOUT, reason=Reason.RESPONSE_TIMEOUT, at_least=LIMIT)
    await meet(answering(head + b"x"), late)
    cut = answered(500, safety=unsafe, body_fault=BodyFault.INCOMPLETE, reason=Reason.RESPONSE_INCOMPLETE)
    await meet(answering(head + b"x", close=True), cut)


TOO_BIG = answered(413, safety=RetrySafety.SAFE, phase=(Phase.READ, Phase.WRITE))


@pytest.mark.parametrize("name", ["early-413-close", "early-413-drain", "early-413-open"])
@pytest.mark.parametrize("size", [1_024, 262_144, 4_000_000, len(BIG)])
async def test_an_early_refusal_is_read_and_not_lost_behind_a_broken_pipe(name: str, size: int) -> None:
    """A refusal for size is final for the event; taken for a reset it would be sent again for days. The size must not matter."""
    attempt = await meet(name, TOO_BIG, payload=BIG[:size])
    assert attempt.elapsed < LIMIT, "the head ends the attempt, not the write limit"


async def test_an_early_success_on_a_fresh_connection_counts() -> None:
    """Some receivers answer from the signature header alone; the connection is out of step and must go."""
    await meet("early-200", answered(phase=(Phase.READ, Phase.WRITE)), payload=BIG)


async def test_an_early_success_before_a_reset_is_either_read_or_ambiguous() -> None:
    """The reset may overtake the answer; what must never happen is "safe", since the receiver may have acted."""
    read = answered(phase=(Phase.READ, Phase.WRITE))
    lost = fault((Phase.WRITE, Phase.WAIT), Reason.CONNECTION_RESET)
    for _ in range(10):
        await meet("early-200-reset", read, or_else=lost, payload=BIG)


async def test_an_endless_body_is_not_gathered_in_memory() -> None:
    """Twenty receivers that stream for ever may cost what twenty bounded bodies cost."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(20):
        attempt = await meet("endless-body", TOO_LARGE, policy=limits(max_response_body=4_096))
        assert len(attempt.body) == 4_096
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 20 * 1_024


async def test_heads_and_interim_responses_are_counted_and_not_only_timed() -> None:
    """At full speed a time limit lets gigabytes through."""
    policy = limits(read_timeout=20.0, max_response_head=2_048, max_interim_responses=3)
    await meet("endless-headers", fault(Phase.READ, Reason.RESPONSE_HEADERS_TOO_LARGE), policy=policy)
    await meet("endless-interim", fault(Phase.READ, Reason.RESPONSE_TOO_MANY_INTERIM), policy=policy)
    await meet("interim", fault(Phase.READ, Reason.RESPONSE_TOO_MANY_INTERIM), policy=policy)
    await meet("interim", answered(kept=True), policy=limits(max_interim_responses=4))


async def test_slow_and_successful_is_a_success_within_the_limit_and_a_timeout_beyond_it() -> None:
    """The limit is the only difference between the two."""
    attempt = await meet("slow-ok", answered(kept=True, at_least=0.2), seconds=0.2, policy=limits(read_timeout=2.0))
    assert attempt.phases[Phase.WAIT] >= 0.19
    await meet("slow-ok", timed_out(Outcome.READ_TIMEOUT, Phase.WAIT, Reason.WAIT_TIMEOUT), seconds=1.0)


def test_the_catalogue_says_what_the_engine_does() -> None:
    """The catalogue is printed by `gatepost hostile --list` and in the documentation."""
    for name, _, expected in CASES:
        told = BEHAVIOURS[name].expected
        assert told.startswith(f"{expected.outcome} · {expected.phase[0]} · {expected.reason[0]}"), name
