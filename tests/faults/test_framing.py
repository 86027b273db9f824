"""Fault cases of class framing: where a response ends is never guessed, and a connection in doubt never serves again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.testing.hostile import Behaviour, Peer, answering
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import BodyFault, Reason
from tests.faults.kit import PATIENT, Case, delivering, head, meet_all
from tests.hostile.engine import (
    BIG,
    IDENTITY,
    LIMIT,
    SMALL,
    answered,
    assert_nothing_held,
    fault,
    limits,
    timed_out,
    wait_idle,
)

SAFE = RetrySafety.SAFE
BAD_BODY = answered(body_fault=BodyFault.PROTOCOL, reason=Reason.RESPONSE_PROTOCOL_ERROR)
CUT = answered(body_fault=BodyFault.INCOMPLETE, reason=Reason.RESPONSE_INCOMPLETE)
NO_HTTP = fault(Phase.READ, Reason.RESPONSE_PROTOCOL_ERROR)
UPGRADE = fault(Phase.READ, Reason.RESPONSE_UPGRADE)
READ_LIMIT = timed_out(Outcome.READ_TIMEOUT, Phase.READ, Reason.RESPONSE_TIMEOUT)
CHUNKS = b"2\r\nok\r\n0\r\n\r\n"


@pytest.mark.parametrize("name", ["two-responses", "unsolicited-response"])
async def test_framing_02_a_second_response_is_nobodys_answer(name: str) -> None:
    """In the same segment or 10 ms later: the connection is dropped and the next delivery has one of its own."""
    async with delivering(name) as (server, client):
        for number in range(3):
            attempt = await client.deliver(server.url, SMALL, IDENTITY)
            assert (attempt.status, attempt.body) == (200, b"ok")
            assert not attempt.reused
            if name == "two-responses":
                assert_nothing_held(client)
            await wait_idle(client, 0)
            assert server.connections == number + 1


async def test_framing_02_a_2xx_before_our_last_byte_on_a_reused_connection_is_unsolicited() -> None:
    """It cannot be ours, so it is no delivery; on a fresh connection it can only be ours."""
    async with delivering("early-200-on-reuse", limits(**PATIENT)) as (server, client):
        assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
        attempt = await client.deliver(server.url, BIG, IDENTITY)
        assert not attempt.delivered
        assert (attempt.reason, attempt.retry_safety) == (Reason.RESPONSE_UNSOLICITED, RetrySafety.AMBIGUOUS)
        assert_nothing_held(client)


async def test_framing_03_bytes_behind_a_bodyless_response_drop_the_connection() -> None:
    """204, 304 and an empty body have no overshoot check in many clients."""
    second = head("Content-Length: 4") + b"evil"
    await meet_all(
        [
            Case(answering(head(status="204 No Content") + b"junk"), answered(204)),
            Case(answering(head(status="204 No Content") + second), answered(204)),
            Case(answering(head("Content-Length: 0") + second), answered()),
            Case(answering(head(status="304 Not Modified") + b"body"), answered(304, safety=SAFE)),
            Case("body-on-304", answered(304, safety=SAFE)),
        ]
    )


async def test_framing_05_a_204_that_announces_a_body_is_still_a_success() -> None:
    """A complete 2xx head decides; what contradicts it may only cost the connection."""
    await meet_all(
        [
            Case(answering(head("Content-Length: 5", status="204 No Content")), answered(204)),
            Case(answering(head("Content-Length: 5", status="204 No Content") + b"hello"), answered(204)),
            Case(answering(head("Transfer-Encoding: chunked", status="204 No Content") + CHUNKS), answered(204)),
            Case(answering(head("Content-Length: 0", status="204 No Content")), answered(204, kept=True)),
        ]
    )


async def test_framing_09_chunks_without_their_last_one_are_cut() -> None:
    """A cut at a chunk's edge looks complete to who counts data only."""
    start = head("Transfer-Encoding: chunked")
    cuts = (b"5\r\nhello\r\n", b"5\r\nhello\r\n0", b"5\r\nhello\r\n0\r\n", b"5\r\nhel", b"5", b"")
    await meet_all([Case(answering(start + cut, close=True), CUT) for cut in cuts])


async def test_framing_12_draining_a_failure_is_bounded_in_bytes_and_time() -> None:
    """A 4 KiB page is read for the connection's sake, 10 MiB are not, and a dripping page has the read limit."""
    unsafe = RetrySafety.AMBIGUOUS
    large = answered(500, safety=unsafe, body_fault=BodyFault.TOO_LARGE, reason=Reason.RESPONSE_TOO_LARGE)
    late = answered(500, safety=unsafe, body_fault=BodyFault.TIMEOUT, reason=Reason.RESPONSE_TIMEOUT, at_least=LIMIT)
    broken = "500 Internal Server Error"

    async def drip(peer: Peer, seconds: float) -> None:
        await peer.read_request()
        await peer.send(head("Content-Length: 4096", status=broken))
        await peer.drip(b"x" * 4_096, 0.02)

    await meet_all(
        [
            Case("error", answered(500, safety=unsafe, kept=True)),
            Case(answering(head("Content-Length: 10485760", status=broken) + bytes(10_485_760)), large),
            Case(Behaviour("drip", "drips an error page", "", drip), late),
        ]
    )


async def test_framing_13_no_expectation_is_sent_and_a_final_answer_in_its_place_stands() -> None:
    """A webhook is small: asking first costs a round trip and a whole class of faults."""
    async with delivering(answering(head("Content-Length: 0", status="401 Unauthorized"))) as (server, client):
        attempt = await client.deliver(server.url, SMALL, IDENTITY)
        answered(401, safety=SAFE, kept=True).check(attempt)
        assert b"expect" not in server.requests[0].head.lower()

    async def early(peer: Peer, seconds: float) -> None:
        await peer.read_request_head()
        await peer.send(head("Content-Length: 0", status="401 Unauthorized"))
        await peer.hold()

    behaviour = Behaviour("401", "refuses behind the head", "", early, receive_buffer=4_096)
    await meet_all([Case(behaviour, answered(401, safety=SAFE, phase=(Phase.READ, Phase.WRITE)), payload=BIG)])


async def test_framing_14_interim_responses_are_skipped_counted_and_extend_nothing() -> None:
    """Four of them pass; a stream of them and a silence behind one end at the read limit, in phase read."""
    await meet_all(
        [
            Case("interim", answered(kept=True)),
            Case("slow-interim", READ_LIMIT, seconds=0.05),
            Case("interim-then-silence", READ_LIMIT),
        ]
    )


async def test_framing_15_a_garbled_interim_line_is_never_resynchronised() -> None:
    """The 200 behind it may be anybody's."""
    garbled = b"HTTP/1.1 10HTTP/1.1 100 Continue2\r\n\r\n"
    await meet_all(
        [
            Case("garbled-interim", NO_HTTP),
            Case(answering(b"HTTP/1.1 100 Continue\r\n\r\n" + garbled + head("Content-Length: 0")), NO_HTTP),
            Case(answering(b"HTTP/1.1 1HTTP/1.1 200 OK\r\n\r\n" + head("Content-Length: 0")), NO_HTTP),
        ]
    )


async def test_framing_16_a_status_line_inside_leftovers_is_no_delivery() -> None:
    """On a reused connection, leftovers of an earlier body hold a forged 200 before the real 503."""

    async def run(peer: Peer, seconds: float) -> None:
        await peer.read_request()
        await peer.send(head("Content-Length: 2") + b"ok")
        await peer.read_request()
        await peer.send(b"<p>...HTTP/1.1 200 OK\r\n\r\n" + head("Content-Length: 0", status="503 Busy"))
        await peer.drain()

    async with delivering(Behaviour("leftovers", "forged", "", run)) as (server, client):
        assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
        attempt = await client.deliver(server.url, SMALL, IDENTITY)
        assert attempt.reused
        replace(NO_HTTP, blame=Blame.ENDPOINT).check(attempt)
        assert not attempt.delivered
        assert_nothing_held(client)


async def test_framing_17_switching_protocols_fails_at_once() -> None:
    """Neither one interim response more nor an upgrade: nothing is waited for."""
    upgrade = ("Upgrade: websocket", "Connection: Upgrade")
    attempts = await meet_all(
        [
            Case("switching-protocols", UPGRADE),
            Case(answering(head(*upgrade, "Transfer-Encoding: chunked", status="101 Switching")), UPGRADE),
            Case(answering(b"HTTP/1.0 101 Switching\r\n\r\n"), UPGRADE),
            Case(answering(head(*upgrade, "Content-Length: 5", status="101 Switching") + b"hello"), UPGRADE),
        ]
    )
    assert max(attempt.elapsed for attempt in attempts) < LIMIT


CODINGS = [
    ("chunked ", answered(kept=True)),
    (" Chunked", answered(kept=True)),
    ("gzip, chunked", answered(kept=True)),
    ("chunked, gzip", BAD_BODY),
    ("xchunked", BAD_BODY),
    ("chunked, chunked", BAD_BODY),
    ("chunked\xa0", BAD_BODY),
    ("", BAD_BODY),
]


async def test_framing_18_only_chunked_as_the_last_coding_is_a_frame() -> None:
    """Anything else says a body whose end nobody knows; the status stands and the connection goes."""
    await meet_all(
        [
            *(Case(answering(head(f"Transfer-Encoding:{value}") + CHUNKS), want) for value, want in CODINGS),
            Case(answering(head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + CHUNKS), BAD_BODY),
            Case(answering(head("Transfer-Encoding: chunked", "Content-Length: 2") + CHUNKS), answered()),
            Case(answering(head("Content-Length: 2", "Transfer-Encoding: xchunked") + b"ok"), BAD_BODY),
        ]
    )


LENGTHS = ["-10", "+5", "0x10", "1_0", "\xd9\xa3", "", "9" * 40, "5 5", "5;5", "5,", "5,6", "1e1", "5.0"]


async def test_framing_19_a_length_is_ascii_digits_and_nothing_else() -> None:
    """A list of one and the same number may pass (RFC 9112 section 6.3), every other reading may not."""
    await meet_all(
        [
            *(Case(answering(head(f"Content-Length: {value}") + b"hello"), BAD_BODY) for value in LENGTHS),
            Case(answering(head("Content-Length: 5, 5") + b"hello"), answered(kept=True)),
            Case(answering(head("Content-Length: 5", "Content-Length: 5") + b"hello"), answered(kept=True)),
            Case(answering(head("Content-Length: 5", "Content-Length: 6") + b"hello!"), BAD_BODY),
        ]
    )


async def test_framing_20_endless_trailers_and_interim_heads_end_by_count_and_not_by_time() -> None:
    """At full speed a limit in seconds lets gigabytes through, and costs their CPU."""
    patient = limits(**PATIENT)
    attempts = await meet_all(
        [
            Case("endless-trailers", BAD_BODY),
            Case("endless-interim", fault(Phase.READ, Reason.RESPONSE_TOO_MANY_INTERIM)),
        ],
        patient,
    )
    assert all(attempt.elapsed < 1.0 for attempt in attempts)


async def test_framing_21_trailers_are_read_and_never_become_headers() -> None:
    """Left in the stream they begin the next answer; merged, they forge the framing, a redirect or a delay."""
    trailers = b"X-Sum: 1\r\nX-B: 2\r\nTransfer-Encoding: gzip\r\nRetry-After: 9999\r\nLocation: /evil\r\n"
    raw = head("Trailer: X-Sum", "Transfer-Encoding: chunked") + b"2\r\nok\r\n0\r\n" + trailers + b"\r\n"
    async with delivering(answering(raw)) as (server, client):
        for number in range(3):
            attempt = await client.deliver(server.url, SMALL, IDENTITY)
            assert (attempt.delivered, attempt.body, attempt.body_fault) == (True, b"ok", None)
            assert attempt.reused is (number > 0)
            assert {name for name, _ in attempt.response_headers} == {"trailer", "transfer-encoding"}
        assert server.connections == 1


async def test_framing_21_a_length_among_the_trailers_costs_the_connection() -> None:
    """Delivered, with the whole body and no forged length. A sender that puts framing there is not trusted with another
    request: stricter than the case, which would keep the connection.
    """
    raw = head("Transfer-Encoding: chunked") + b"2\r\nok\r\n0\r\nContent-Length: 99\r\n\r\n"
    (attempt,) = await meet_all([Case(answering(raw), BAD_BODY)])
    assert (attempt.delivered, attempt.body) == (True, b"ok")
    assert attempt.header("content-length") is None


async def test_framing_23_a_connection_whose_last_chunk_is_outstanding_is_not_handed_out() -> None:
    """The second delivery is asked for while the first one's terminator is on its way."""
    async with delivering("late-last-chunk", limits(**PATIENT), seconds=0.05) as (server, client):
        first = asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY))
        await asyncio.sleep(0.03)
        second = await client.deliver(server.url, SMALL, IDENTITY)
        assert (await first).delivered
        assert second.delivered
        assert not second.reused
        assert server.connections == 2
        third = await client.deliver(server.url, SMALL, IDENTITY)
        assert third.reused
        assert (third.body, third.body_fault) == (b"ok", None)
