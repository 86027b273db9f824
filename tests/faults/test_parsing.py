"""Fault cases of class parsing: what may be forgiven in a head, and what must not be."""

from __future__ import annotations

import resource

from gatepost.net.client import DispatchClient
from gatepost.testing.hostile import HostileServer, answering
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import BodyFault, Reason
from tests.faults.kit import Case, head, meet_all
from tests.hostile.engine import (
    IDENTITY,
    LIMIT,
    LOOPBACK,
    SMALL,
    Certificates,
    answered,
    assert_nothing_held,
    fault,
    limits,
    meet,
)

NO_HTTP = fault((Phase.READ, Phase.WRITE), Reason.RESPONSE_PROTOCOL_ERROR)
CUT_HEAD = fault(Phase.READ, Reason.RESPONSE_INCOMPLETE)
CUT_BODY = answered(body_fault=BodyFault.INCOMPLETE, reason=Reason.RESPONSE_INCOMPLETE)


async def test_parse_02_bare_line_feeds_are_forgiven_once_and_a_bare_return_never() -> None:
    """An old server is no attacker; a CR that one reader takes for a line end and another does not is."""
    await meet_all(
        [
            Case(answering(b"HTTP/1.1 200 OK\nContent-Length: 0\n\n"), answered()),
            Case(answering(b"HTTP/1.1 200 OK\r\nX: a\nContent-Length: 0\r\n\n"), answered()),
            Case(answering(b"HTTP/1.1 200 OK\nX: a\r\nContent-Length: 0\n\r\n"), answered()),
            Case(answering(b"HTTP/1.1 200 OK\r\nX: a\rContent-Length: 9\r\nContent-Length: 0\r\n\r\n"), NO_HTTP),
            Case(answering(b"HTTP/1.1 200 OK\rX: a\r\n\r\n"), NO_HTTP),
            Case(answering(b"HTTP/1.1 200 OK\r\nX: a\r\r\n\r\n"), NO_HTTP),
        ]
    )


async def test_parse_03_an_empty_value_and_a_bare_return_smuggle_nothing() -> None:
    """llhttp's own leniency ended the field there; ours is a grammar of its own, before any parser sees the bytes."""
    chunked = b"HTTP/1.1 200 OK\r\nFoo:\rContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    await meet_all(
        [
            Case(answering(chunked), NO_HTTP),
            Case(answering(b"HTTP/1.1 200 OK\r\nFoo:\rContent-Length: 5\r\n\r\nhello"), NO_HTTP),
            Case(answering(b"HTTP/1.1 200 OK\r\nFoo: \rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), NO_HTTP),
            Case(answering(b"HTTP/1.1 200 OK\r\nFoo:\x00Content-Length: 5\r\n\r\nhello"), NO_HTTP),
        ]
    )


async def test_parse_04_a_folded_line_is_joined_but_never_in_the_framing() -> None:
    """A fold in a note is an old server, one in the length or before the first field is an attack."""
    cases = [
        Case(answering(head("X-Note: one", " two", "Content-Length: 2") + b"ok"), answered()),
        Case(answering(head("Content-Length: 1", " 0") + b"0123456789"), NO_HTTP),
        Case(answering(head("Transfer-Encoding:", " chunked") + b"0\r\n\r\n"), NO_HTTP),
        Case(answering(head(" X-Note: one", "Content-Length: 2") + b"ok"), NO_HTTP),
    ]
    first = (await meet_all(cases))[0]
    assert first.header("x-note") == "one two"
    large = fault(Phase.READ, Reason.RESPONSE_HEADERS_TOO_LARGE)
    folds = head("X-Note: one", *[" " + "x" * 100] * 100, "Content-Length: 0")
    await meet_all([Case(answering(folds), large)], limits(max_response_head=4_096))


NONSENSE = [
    b"0\r\n\r\n",
    b"SSH-2.0-x\r\n",
    b"\x15\x03\x01\x00\x02\x02\x46",
    b"HTTP/1.1 2000 OK\r\n\r\n",
    b"HTTP/1.1 099 X\r\n\r\n",
    b"HTTP/1.1 000 X\r\n\r\n",
    b"HTTP/2.0 200\r\n\r\n",
    b"HTTP/1.2 200 OK\r\n\r\n",
    b"HTTP/1.1\t200 OK\r\n\r\n",
    b"HTTP/1.1 200OK\r\n\r\n",
    b"HTTP/1.1 2 00\r\n\r\n",
    b"http/1.1 200 OK\r\n\r\n",
    b" HTTP/1.1 200 OK\r\n\r\n",
    b"ICY 200 OK\r\n\r\n",
]


async def test_parse_06_nonsense_where_the_status_line_should_be_fails_at_once() -> None:
    """The record keeps the first 64 bytes as bytes: an SSH banner, a TLS alert on a plain port, another protocol.

    The case also asks for a hint in words that a TLS port was addressed in plain text. An attempt carries codes and no prose, so
    there is none: the alert's bytes (0x15 0x03) in `body` are what tells it.
    """
    long = b"220 mail.example.com ESMTP " + b"x" * 200 + b"\r\n"
    attempts = await meet_all([Case(answering(raw), NO_HTTP) for raw in (*NONSENSE, long)])
    assert max(attempt.elapsed for attempt in attempts) < LIMIT
    for raw, attempt in zip((*NONSENSE, long), attempts, strict=True):
        assert attempt.body == raw[:64]
        assert attempt.status is None
        assert "SSH" not in repr(attempt)


async def test_parse_06_three_spellings_of_a_good_head_pass() -> None:
    """No reason phrase, two blanks, and a few empty lines in front."""
    length = b"\r\nContent-Length: 0\r\n\r\n"
    await meet_all(
        [
            Case(answering(b"HTTP/1.1 200" + length), answered(kept=True)),
            Case(answering(b"HTTP/1.1  200 OK" + length), answered(kept=True)),
            Case(answering(b"\r\n\r\n\r\nHTTP/1.1 200 OK" + length), answered(kept=True)),
            Case(answering(b"\r\n" * 5 + b"HTTP/1.1 200 OK" + length), NO_HTTP),
        ]
    )


async def test_parse_08_bytes_beyond_ascii_in_a_value_are_kept_as_latin_1() -> None:
    """They are opaque (RFC 9110 section 5.5), and no reason to lose a delivery."""
    raw = (
        b'HTTP/1.1 200 OK\r\nContent-Disposition: attachment; filename="\xfc.pdf"\r\n'
        b"Location: /\xc3\xbc\r\nContent-Length: 0\r\n\r\n"
    )
    (attempt,) = await meet_all([Case(answering(raw), answered(kept=True))])
    assert attempt.header("content-disposition") == 'attachment; filename="\xfc.pdf"'
    assert attempt.header("location") == "/\xc3\xbc"


async def test_parse_09_an_end_is_told_from_no_data_plain_and_in_tls() -> None:
    """Half a head ends the attempt at once, half a body leaves the status; and nobody spins until a limit."""
    certificates = Certificates.make()
    before = resource.getrusage(resource.RUSAGE_SELF)
    await meet_all([Case("close-mid-head", CUT_HEAD), Case("close-mid-body", CUT_BODY)])
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime - before.ru_utime < 0.5, "the limits are seconds away: whoever spins burns all of them"
    for name, expected in (("close-mid-head", CUT_HEAD), ("close-mid-body", CUT_BODY)):
        await meet(
            name,
            expected,
            tls_context=certificates.server("127.0.0.1"),
            tls=certificates.profile,
            policy=limits(connect_timeout=3.0),
        )


async def test_parse_09_nothing_at_all_before_the_end_is_its_own_reason() -> None:
    """The same kind: no byte is "closed", half a head is "incomplete"."""
    async with HostileServer("close-before-response") as server, DispatchClient(limits(), egress=LOOPBACK) as client:
        fault(Phase.WAIT, Reason.CONNECTION_CLOSED).check(await client.deliver(server.url, SMALL, IDENTITY))
        assert_nothing_held(client)
