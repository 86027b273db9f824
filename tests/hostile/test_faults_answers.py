"""The engine against lawful receivers: what they answer is the outcome, and a clean connection is used again."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from gatepost.delivery.outcome import Outcome, RetrySafety
from gatepost.net.client import DispatchClient
from gatepost.testing.hostile import BEHAVIOURS, HostileServer, answering
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import BodyFault, Reason
from tests.hostile.engine import (
    IDENTITY,
    LOOPBACK,
    SMALL,
    Expected,
    answered,
    assert_nothing_held,
    fault,
    limits,
    meet,
)

SAFE = RetrySafety.SAFE
OFF = Reason.REDIRECT_DISABLED
AMBIGUOUS = RetrySafety.AMBIGUOUS

CASES: list[tuple[str, Expected]] = [
    ("ok", answered(kept=True)),
    ("chunked", answered(kept=True)),
    ("chunked-trailers", answered(kept=True)),
    ("late-last-chunk", answered(kept=True, at_least=0.05)),
    ("interim", answered(kept=True)),
    ("close-delimited", answered()),
    ("http-1.0", answered()),
    ("gone", answered(410, kept=True, safety=SAFE)),
    ("too-many-requests", answered(429, kept=True, safety=SAFE)),
    ("unavailable", answered(503, kept=True, safety=SAFE)),
    ("error", answered(500, kept=True, safety=AMBIGUOUS)),
    ("redirect-302", answered(302, kept=True, safety=SAFE, reason=OFF)),
    ("redirect-307", answered(307, kept=True, safety=SAFE, reason=OFF)),
    ("redirect-loop", answered(307, kept=True, safety=SAFE, reason=OFF)),
]


@pytest.mark.parametrize(("name", "expected"), CASES, ids=[case[0] for case in CASES])
async def test_a_lawful_answer_is_the_outcome(name: str, expected: Expected) -> None:
    """The status says whether the receiver acted."""
    attempt = await meet(name, expected)
    if name == "too-many-requests":
        assert attempt.header("Retry-After") == "30"
    if name == "chunked":
        assert attempt.body == b"hello world"
    if name == "chunked-trailers":
        assert attempt.header("retry-after") is None, "a trailer is no header"


@pytest.mark.parametrize("name", ["ok", "chunked", "chunked-trailers", "late-last-chunk", "interim", "error"])
async def test_a_clean_connection_is_used_again(name: str) -> None:
    """A handshake costs forty requests; and a connection with a chunk outstanding must never be handed out."""
    async with HostileServer(name) as server, DispatchClient(limits(), egress=LOOPBACK) as client:
        for number in range(5):
            attempt = await client.deliver(server.url, SMALL, IDENTITY)
            assert attempt.outcome is Outcome.RESPONSE
            assert attempt.reused is (number > 0)
        assert server.connections == 1
        assert_nothing_held(client, idle=1)


def head(*lines: str, status: str = "200 OK") -> bytes:
    """A response head of these header lines."""
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode("latin-1")


CHUNKS = b"2\r\nok\r\n0\r\n\r\n"
BAD_BODY = answered(body_fault=BodyFault.PROTOCOL, reason=Reason.RESPONSE_PROTOCOL_ERROR)
NO_HTTP = fault(Phase.READ, Reason.RESPONSE_PROTOCOL_ERROR)
UPGRADE = fault(Phase.READ, Reason.RESPONSE_UPGRADE)

DOUBTFUL: list[tuple[str, bytes, Expected]] = [
    ("length-negative", head("Content-Length: -10") + b"ok", BAD_BODY),
    ("length-signed", head("Content-Length: +5") + b"hello", BAD_BODY),
    ("length-list", head("Content-Length: 5, 5") + b"hello", answered(kept=True)),
    ("length-twice-different", head("Content-Length: 5", "Content-Length: 6") + b"hello!", BAD_BODY),
    ("length-hexadecimal", head("Content-Length: 0x10") + b"hello", BAD_BODY),
    ("length-underscore", head("Content-Length: 1_0") + b"hello", BAD_BODY),
    ("length-arabic-digit", head("Content-Length: \xd9\xa3") + b"hel", BAD_BODY),
    ("length-empty", head("Content-Length:") + b"ok", BAD_BODY),
    ("length-40-digits", head("Content-Length: " + "9" * 40) + b"ok", BAD_BODY),
    ("coding-trailing-blank", head("Transfer-Encoding: chunked ") + CHUNKS, answered(kept=True)),
    ("coding-upper-case", head("Transfer-Encoding:  Chunked") + CHUNKS, answered(kept=True)),
    ("coding-gzip-chunked", head("Transfer-Encoding: gzip, chunked") + CHUNKS, answered(kept=True)),
    ("coding-chunked-gzip", head("Transfer-Encoding: chunked, gzip") + CHUNKS, BAD_BODY),
    ("coding-unknown", head("Transfer-Encoding: xchunked") + CHUNKS, BAD_BODY),
    ("coding-twice", head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + CHUNKS, BAD_BODY),
    ("coding-and-length", head("Transfer-Encoding: chunked", "Content-Length: 2") + CHUNKS, answered()),
    ("gzip-label-on-garbage", head("Content-Encoding: gzip", "Content-Length: 2") + b"ok", answered(kept=True)),
    ("connection-close", head("Connection: close", "Content-Length: 2") + b"ok", answered()),
    ("folded-line", head("X-A: one", "\ttwo", "Content-Length: 2") + b"ok", answered()),
    ("bare-line-feeds", b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", answered()),
    ("version-2", head("Content-Length: 2").replace(b"HTTP/1.1", b"HTTP/2.0") + b"ok", NO_HTTP),
    ("status-2-digits", head("Content-Length: 2", status="20 OK") + b"ok", NO_HTTP),
    ("bare-carriage-return", head("X-A: one\rX-B: two", "Content-Length: 2") + b"ok", NO_HTTP),
    ("blank-before-colon", head("Content-Length : 2") + b"ok", NO_HTTP),
    ("leftover-html", b"<p>...HTTP/1.1 200 OK\r\n\r\n" + head("Content-Length: 0", status="503 Busy"), NO_HTTP),
    ("upgrade-1.0", b"HTTP/1.0 101 Switching\r\n\r\n", UPGRADE),
    ("upgrade-chunked", head("Transfer-Encoding: chunked", status="101 Switching"), UPGRADE),
    ("bad-request", head("Content-Length: 0", status="400 Bad Request"), answered(400, safety=SAFE)),
    ("request-timeout", head("Content-Length: 0", status="408 Request Timeout"), answered(408, safety=SAFE)),
]  # fmt: skip
"""name, the bytes answered, what they come to; a 2xx head that nobody can frame is still delivered, and never reused"""


@pytest.mark.parametrize(("raw", "expected"), [case[1:] for case in DOUBTFUL], ids=[case[0] for case in DOUBTFUL])
async def test_doubtful_framing_never_changes_the_status_and_is_never_reused(raw: bytes, expected: Expected) -> None:
    """Two readings of one length are how answers get mixed up between requests."""
    await meet(answering(raw), expected)


async def test_answers_of_many_receivers_never_mix() -> None:
    """The worst fault of a pool is somebody else's answer."""
    policy = limits(max_connections=4, max_per_host=4, pool_timeout=5.0)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(DispatchClient(policy, egress=LOOPBACK))
        urls = []
        for number in range(6):
            behaviour = answering(head(f"X-Number: {number}", "Content-Length: 0"))
            urls.append((await stack.enter_async_context(HostileServer(behaviour))).url)

        async def one(number: int) -> None:
            attempt = await client.deliver(urls[number], SMALL, IDENTITY)
            assert attempt.header("x-number") == str(number)

        async with asyncio.TaskGroup() as deliveries:
            for turn in range(36):
                deliveries.create_task(one(turn % 6))
        assert_nothing_held(client, idle=4)


def test_the_catalogue_says_what_the_engine_does() -> None:
    """The catalogue is printed by `gatepost hostile --list` and in the documentation."""
    for name, expected in CASES:
        told = BEHAVIOURS[name].expected
        assert told.startswith(f"{expected.outcome} · {expected.phase[0]} · {expected.reason[0]}"), name
