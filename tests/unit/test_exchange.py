"""One response, sans I/O: every way a body can end, every limit on the way, and that the network's cuts change nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies

from gatepost.wire.exchange import FRAMING_PER_BODY_BYTE, LEADING_LINES_MAX, ResponseReader
from gatepost.wire.reasons import BodyFault, Reason

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Read:
    """What a response came to."""

    status: int | None = None
    body: bytes = b""
    fault: Reason | None = None
    body_fault: BodyFault | None = None
    reusable: bool = False
    surplus: bool = False
    interim: int = 0
    done: bool = True


def read(
    parts: Iterable[bytes],
    *,
    end: bool | None = None,
    head_max: int = 4_096,
    body_max: int = 4_096,
    interim_max: int = 10,
) -> Read:
    """Feed `parts` until the response is over, as `net.flight` does; then what is left counts as surplus."""
    reader = ResponseReader(head_max, body_max, interim_max)
    left = [part for part in parts if part]
    while left and not reader.done:
        reader.feed(left.pop(0))
    while left and reader.fault is None and reader.body_fault is None:
        reader.feed(left.pop(0))
    if end is not None:
        reader.end(orderly=end)
    return Read(
        None if reader.head is None else reader.head.status,
        reader.body,
        reader.fault,
        reader.body_fault,
        reader.reusable,
        reader.surplus,
        reader.interim_count,
        reader.done,
    )


def whole(
    data: bytes,
    *,
    end: bool | None = None,
    head_max: int = 4_096,
    body_max: int = 4_096,
    interim_max: int = 10,
) -> Read:
    """The data in one piece, byte by byte, and cut in two everywhere: always the same."""

    def read_parts(*parts: bytes) -> Read:
        return read(parts, end=end, head_max=head_max, body_max=body_max, interim_max=interim_max)

    result = read_parts(data)
    assert read_parts(*(data[at : at + 1] for at in range(len(data)))) == result
    for at in range(1, len(data)):
        assert read_parts(data[:at], data[at:]) == result, f"cut at {at}"
    return result


# ------------------------------------------------------------------------------------------------ complete ones


COMPLETE = [
    (OK + b"Content-Length: 5\r\n\r\nhello", Read(200, b"hello", reusable=True)),
    (OK + b"Content-Length: 0\r\n\r\n", Read(200, reusable=True)),
    (b"HTTP/1.1 204 No Content\r\n\r\n", Read(204, reusable=True)),
    (b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", Read(204)),
    (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", Read(304, reusable=True)),
    (b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n", Read(304)),
    (b"HTTP/1.1 500 X\r\nContent-Length: 2\r\n\r\nno", Read(500, b"no", reusable=True)),
    (OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nok", Read(200, b"ok")),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", Read(200, b"ok")),
    (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", Read(200, b"ok", reusable=True)),
    (CHUNKED + b"0\r\n\r\n", Read(200, reusable=True)),
    (CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", Read(200, b"hello", reusable=True)),
    (CHUNKED + b"2\r\nhe\r\n00003\r\nllo\r\n0\r\n\r\n", Read(200, b"hello", reusable=True)),
    (
        CHUNKED + b"A\r\n0123456789\r\na\r\n\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n",
        Read(200, b"0123456789" + b"\r\n" * 5, reusable=True),
    ),
    (CHUNKED + b'5;name=value;q="a;b"\r\nhello\r\n0;last\r\n\r\n', Read(200, b"hello", reusable=True)),
    (CHUNKED + b"5\r\nhello\r\n0\r\nX-Sum: 1\r\nX-B: 2\r\n\r\n", Read(200, b"hello", reusable=True)),
    (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", Read(200, b"ok")),
    (OK + b"Transfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n2\r\nok\r\n0\r\n\r\n", Read(200, b"ok")),
    (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", Read(200, b"ok")),
    (b"\r\n\n\r\n" + OK + b"Content-Length: 2\r\n\r\nok", Read(200, b"ok", reusable=True)),
    (
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nok",
        Read(200, b"ok", reusable=True, interim=1),
    ),
    (
        b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 102 P\r\nA: b\r\n\r\n\r\nHTTP/1.1 103 E\r\nLink: x\r\n\r\nHTTP/1.1 204 N\r\n\r\n",
        Read(204, reusable=True, interim=3),
    ),
]


@pytest.mark.parametrize(("data", "expected"), COMPLETE, ids=range(len(COMPLETE)))
def test_a_complete_response_is_read_alike_however_it_is_cut(data: bytes, expected: Read) -> None:
    """TCP has no messages: an answer that depends on where segments end is right in the test and wrong at night."""
    assert expected == whole(data)


UNTIL_END = [
    (OK + b"\r\n", b""),
    (OK + b"\r\nhello", b"hello"),
    (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"),
]


@pytest.mark.parametrize(("data", "body"), UNTIL_END)
def test_a_body_without_a_length_ends_with_the_connection(data: bytes, body: bytes) -> None:
    """RFC 9112 6.3. Only a FIN is an end; a reset cuts."""
    assert read([data]) == Read(200, body, done=False)
    assert whole(data, end=True) == Read(200, body)
    assert whole(data, end=False) == Read(200, body, body_fault=BodyFault.INCOMPLETE)


CUT = [
    (OK + b"Content-Length: 5\r\n\r\n", b""),
    (OK + b"Content-Length: 5\r\n\r\nhell", b"hell"),
    (CHUNKED, b""),
    (CHUNKED + b"5\r\nhel", b"hel"),
    (CHUNKED + b"5\r\nhello\r\n", b"hello"),
    (CHUNKED + b"5\r\nhello\r\n0\r\n", b"hello"),
    (CHUNKED + b"5\r\nhello\r\n0\r\nX: 1\r\n", b"hello"),
]


@pytest.mark.parametrize(("data", "body"), CUT)
@pytest.mark.parametrize("orderly", [True, False])
def test_a_body_that_is_cut_is_delivered_and_incomplete(data: bytes, body: bytes, orderly: bool) -> None:
    """A missing last chunk is a cut too, even between chunks; and the status stands, since the head was whole."""
    assert whole(data, end=orderly) == Read(200, body, body_fault=BodyFault.INCOMPLETE)


@pytest.mark.parametrize("orderly", [True, False])
def test_a_cut_before_the_end_of_the_head_is_no_response(orderly: bool) -> None:
    """Nothing at all and half a head are told apart: only the first may be a stale connection."""
    head = b"HTTP/1.1 103 E\r\n\r\n" + OK + b"Content-Length: 0\r\n\r\n"
    assert read([], end=orderly) == Read(fault=Reason.CONNECTION_CLOSED)
    for at in range(1, len(head)):
        interim = int(at >= 18)
        assert read([head[:at]], end=orderly) == Read(fault=Reason.RESPONSE_INCOMPLETE, interim=interim)


def test_a_limit_behind_the_head_leaves_the_status() -> None:
    """A receiver that answered 200 and then drips its page has the event."""
    reader = ResponseReader(4_096, 4_096, 10)
    reader.feed(OK + b"Content-Length: 5\r\n\r\nhe")
    reader.time_out()
    assert (reader.done, reader.body_fault, reader.body, reader.reusable) == (True, BodyFault.TIMEOUT, b"he", False)
    reader.time_out()
    reader.end(orderly=True)
    assert reader.body_fault is BodyFault.TIMEOUT, "the first end counts"


# ------------------------------------------------------------------------------------------------ any cut at all

TEXT = strategies.binary(max_size=60)
LINE = strategies.text("abcXYZ019 -", max_size=12).map(lambda text: text.strip().encode())
NEWLINE = strategies.sampled_from([b"\r\n", b"\r\n", b"\n"])


@strategies.composite
def responses(draw: strategies.DrawFn) -> tuple[bytes, bytes, int]:
    """A valid response, its body, and the number of interim responses in front."""
    newline = draw(NEWLINE)
    interim = draw(strategies.integers(0, 3))
    parts = [b"HTTP/1.1 10%d X" % draw(strategies.sampled_from([0, 2, 3])) + newline + newline for _ in range(interim)]
    parts.append(b"HTTP/1.1 %d " % draw(strategies.sampled_from([200, 201, 404, 500])) + draw(LINE) + newline)
    for number in range(draw(strategies.integers(0, 3))):
        parts.append(b"X-%d:" % number + draw(strategies.sampled_from([b"", b" "])) + draw(LINE) + newline)
    body = draw(TEXT)
    if draw(strategies.booleans()):
        parts += [b"Content-Length: %d" % len(body), newline, newline, body]
    else:
        parts += [b"Transfer-Encoding: chunked", newline, newline]
        at = 0
        while at < len(body):
            size = draw(strategies.integers(1, len(body) - at))
            extension = draw(strategies.sampled_from([b"", b";a", b";a=b"]))
            parts += [b"%x" % size, extension, b"\r\n", body[at : at + size], b"\r\n"]
            at += size
        parts.append(b"0\r\n")
        parts += [b"X-Trailer: %d\r\n" % number for number in range(draw(strategies.integers(0, 2)))]
        parts.append(b"\r\n")
    return b"".join(parts), body, interim


def cut(data: bytes, places: set[int]) -> list[bytes]:
    """The data in pieces."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@settings(max_examples=300)
@given(responses(), strategies.sets(strategies.integers(0, 1_000), max_size=8))
def test_any_cuts_give_the_same_response(response: tuple[bytes, bytes, int], places: set[int]) -> None:
    """Property of the above, over heads, framings and cuts in any number."""
    data, body, interim = response
    result = read(cut(data, places))
    assert result == read([data])
    assert (result.body, result.interim, result.fault, result.body_fault) == (body, interim, None, None)
    assert (result.done, result.surplus) == (True, False)


@settings(max_examples=300)
@given(
    strategies.binary(max_size=200), strategies.sets(strategies.integers(0, 1_000), max_size=6), strategies.booleans()
)
def test_no_bytes_make_it_raise(junk: bytes, places: set[int], orderly: bool) -> None:
    """An exception in a callback of the loop leaves an attempt hanging until its limit."""
    for front in (
        b"",
        OK,
        CHUNKED,
        CHUNKED + b"5\r\nhello\r\n",
        CHUNKED + b"0\r\n\r\n",
        OK + b"Content-Length: 3\r\n\r\n",
    ):
        result = read(cut(front + junk, places), end=orderly, head_max=64, body_max=32)
        assert result.done
        assert (result.fault is None) == (result.status is not None)
        assert len(result.body) <= 32


# ------------------------------------------------------------------------------------------------ broken framing

BAD_CHUNKS = [
    b"5\nhello\n0\n\n",
    b"x\r\n",
    b"-1\r\n",
    b"+5\r\nhello\r\n0\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"5 \r\nhello\r\n0\r\n\r\n",
    b"FFFFFFFFFFFFFFFFF\r\n",
    b"\r\n",
    b"5\r\nhello0\r\n\r\n",
    b"5\r\nhelloX",
    b"5\r\nhello\r\n0\r\nno colon\r\n\r\n",
    b"5\r\nhello\r\n0\r\nX: a\rb\r\n\r\n",
]


@pytest.mark.parametrize("chunks", BAD_CHUNKS)
def test_broken_chunks_are_a_fault_of_the_body_only(chunks: bytes) -> None:
    """The head said 200: the delivery stands, the connection does not."""
    result = whole(CHUNKED + chunks)
    assert (result.status, result.body_fault, result.reusable) == (200, BodyFault.PROTOCOL, False)


@pytest.mark.parametrize("field", [b"Content-Length: 5, 6", b"Content-Length: x", b"Transfer-Encoding: gzip"])
def test_unknown_framing_reads_no_body(field: bytes) -> None:
    """Nobody can tell where it ends, so nothing of it is waited for."""
    assert read([OK + field + b"\r\n\r\n"]) == Read(200, body_fault=BodyFault.PROTOCOL)
    assert read([b"HTTP/1.1 500 X\r\n" + field + b"\r\n\r\nabc"]) == Read(500, body_fault=BodyFault.PROTOCOL)


def test_trailers_are_read_and_never_become_fields() -> None:
    """A Retry-After, Location or Content-Length in a trailer would be set behind every check."""
    for name in (b"Retry-After: 9", b"Location: /", b"Transfer-Encoding: gzip", b"Connection: close", b"Upgrade: x"):
        reader = ResponseReader(4_096, 4_096, 10)
        reader.feed(CHUNKED + b"2\r\nok\r\n0\r\n" + name + b"\r\n\r\n")
        assert reader.done
        assert reader.head is not None
        assert reader.head.fields == (("transfer-encoding", "chunked"),)
        assert (reader.body, reader.body_fault) == (b"ok", None)


SURPLUS = [
    b"junk",
    b"H",
    b"\r\n",
    b"\n",
    b" ",
    b"\x00",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nbytes of another protocol",
    b"0\r\n\r\n",
]
ENDINGS = {
    "length": OK + b"Content-Length: 2\r\n\r\nok",
    "no content": b"HTTP/1.1 204 X\r\nContent-Length: 0\r\n\r\n",
    "not modified": b"HTTP/1.1 304 X\r\n\r\n",
    "length 0": OK + b"Content-Length: 0\r\n\r\n",
    "chunks": CHUNKED + b"2\r\nok\r\n0\r\n\r\n",
    "trailers": CHUNKED + b"2\r\nok\r\n0\r\nX: 1\r\n\r\n",
}


@pytest.mark.parametrize("surplus", SURPLUS)
@pytest.mark.parametrize("response", ENDINGS.values(), ids=ENDINGS)
def test_bytes_behind_a_response_end_the_connection_and_not_the_delivery(response: bytes, surplus: bytes) -> None:
    """Read as the answer of the next request they shift all answers by one: "ok" for events that were refused."""
    clean, result = read([response]), whole(response + surplus)
    assert (clean.reusable, clean.surplus) == (True, False)
    assert (result.status, result.body, result.body_fault) == (clean.status, clean.body, None)
    assert (result.reusable, result.surplus) == (False, True)


# ------------------------------------------------------------------------------------------------ limits


def test_a_head_may_be_as_long_as_the_limit_and_no_longer() -> None:
    """Counted while it arrives, so that an endless head is cut at the limit and not at its end."""
    head = OK + b"Content-Length: 0\r\n\r\n"
    assert whole(head, head_max=len(head)).status == 200
    assert whole(head, head_max=len(head) - 1).fault is Reason.RESPONSE_HEADERS_TOO_LARGE
    endless = b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100
    assert read([endless], head_max=100).fault is Reason.RESPONSE_HEADERS_TOO_LARGE
    assert read([endless[:100]], head_max=100).done is False


def test_interim_heads_count_against_the_limit_of_heads() -> None:
    """Else a peer could send ten heads of 64 KiB each, and each empty line again."""
    interim = b"HTTP/1.1 103 X\r\nA: b\r\n\r\n"
    final = OK + b"Content-Length: 0\r\n\r\n"
    assert whole(interim * 2 + final, head_max=2 * len(interim) + len(final)).status == 200
    result = whole(interim * 2 + final, head_max=2 * len(interim) + len(final) - 1)
    assert (result.fault, result.interim) == (Reason.RESPONSE_HEADERS_TOO_LARGE, 2)


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_interim_responses_are_counted(allowed: int) -> None:
    """A peer can send them for ever without a byte of an answer."""
    interim = b"HTTP/1.1 100 X\r\n\r\n"
    final = OK + b"Content-Length: 0\r\n\r\n"
    assert whole(interim * allowed + final, interim_max=allowed).status == 200
    result = whole(interim * (allowed + 1) + final, interim_max=allowed)
    assert (result.fault, result.done) == (Reason.RESPONSE_TOO_MANY_INTERIM, True)


def test_thousands_of_interim_responses_in_one_segment_are_read_without_recursion() -> None:
    """A policy may allow them; the interpreter's recursion limit is no limit of ours."""
    data = b"HTTP/1.1 100 X\r\n\r\n" * 3_000 + OK + b"Content-Length: 0\r\n\r\n"
    assert read([data], head_max=65_536, interim_max=5_000) == Read(200, reusable=True, interim=3_000)


def test_a_switch_of_protocols_is_refused_at_once() -> None:
    """Nobody asked: taken for an interim response it is waited behind, taken for an upgrade the rest is misread."""
    for tail in (b"\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
        result = whole(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n" + tail)
        assert (result.fault, result.done) == (Reason.RESPONSE_UPGRADE, True)
    assert whole(b"HTTP/1.0 101 X\r\n\r\n").fault is Reason.RESPONSE_UPGRADE


def test_a_few_empty_lines_may_stand_before_a_status_line() -> None:
    """Some servers end the answer before with one too many; more than a few is another protocol."""
    final = OK + b"Content-Length: 0\r\n\r\n"
    assert whole(b"\r\n" * (LEADING_LINES_MAX // 2) + final).status == 200
    assert whole(b"\n" * LEADING_LINES_MAX + final).status == 200
    assert whole(b"\r\n" * (LEADING_LINES_MAX // 2) + b"\n" + final).fault is Reason.RESPONSE_PROTOCOL_ERROR
    for bare in (b"\r", b"\r\r\n", b"\n\r", b"\r\n\r"):
        assert whole(bare + final).fault is Reason.RESPONSE_PROTOCOL_ERROR, "a bare CR is no line end"


@pytest.mark.parametrize(
    "garbage", [b"0\r\n\r\n", b"SSH-2.0-x\r\n", b"\x15\x03\x01\x00\x02\x02\x16", b"<html>", b"HTTP/2.0 200\r\n"]
)
def test_garbage_is_refused_before_any_limit(garbage: bytes) -> None:
    """The reason must say "no HTTP", not "slow"; and nobody searches forward for something that looks like a status line."""
    assert whole(garbage + OK + b"Content-Length: 0\r\n\r\n").fault is Reason.RESPONSE_PROTOCOL_ERROR
    assert read([garbage]).fault is Reason.RESPONSE_PROTOCOL_ERROR


@pytest.mark.parametrize("size", [0, 1, 10])
def test_a_body_may_be_as_long_as_the_limit_and_no_longer(size: int) -> None:
    """Cut in the reading, not in the storing: a peer may send until memory is full."""
    for head, tail in (
        (OK + b"Content-Length: %d\r\n\r\n", b""),
        (CHUNKED + b"%x\r\n", b"\r\n0\r\n\r\n"),
    ):
        if size or b"%x" not in head:
            assert whole(head % size + b"a" * size + tail, body_max=size) == Read(200, b"a" * size, reusable=True)
        more = whole(head % (size + 1) + b"a" * (size + 1) + tail, body_max=size)
        assert (more.status, more.body, more.body_fault) == (200, b"a" * size, BodyFault.TOO_LARGE)
        assert not more.reusable
    more = whole(OK + b"\r\n" + b"a" * (size + 1), body_max=size)
    assert (more.body, more.body_fault, more.done) == (b"a" * size, BodyFault.TOO_LARGE, True)


def test_chunk_framing_is_bounded_like_a_head() -> None:
    """Endless trailers, extensions, or zeros before a size are no body and would pass every limit on bodies."""
    for endless in (b"0\r\n" + b"X: y\r\n" * 200, b"1;" + b"a" * 1_000, b"0" * 1_000):
        result = read([CHUNKED + endless[:100], *(endless[at : at + 50] for at in range(100, 1_000, 50))], head_max=300)
        assert (result.status, result.body_fault) == (200, BodyFault.PROTOCOL)


def test_one_byte_chunks_are_within_the_bound() -> None:
    """Odd servers flush every byte; that is slow and legal."""
    chunks = b"1\r\na\r\n" * 500 + b"0\r\n\r\n"
    assert FRAMING_PER_BODY_BYTE >= 5
    assert read([CHUNKED, *(chunks[at : at + 7] for at in range(0, len(chunks), 7))], head_max=128) == Read(
        200, b"a" * 500, reusable=True
    )


# ------------------------------------------------------------------------------------------------ bookkeeping


def test_a_byte_of_any_kind_counts_as_begun() -> None:
    """Only a connection without a single byte may be taken for stale; an interim response is a byte."""
    for data in (b"\r", b"H", b"HTTP/1.1 100 X\r\n\r\n", b"junk"):
        reader = ResponseReader(4_096, 4_096, 10)
        assert not reader.began
        reader.feed(data)
        assert reader.began


@pytest.mark.parametrize(
    "end", [b"0\r\n\r\n", b"0\r\n\r\nHTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", b"x\r\n"]
)
def test_a_finished_reader_is_freed_without_the_garbage_collector(end: bytes) -> None:
    """Parser and reader refer to each other; a million chunked answers must not wait for a collection."""
    before = sum(type(thing) is ResponseReader for thing in gc.get_objects())
    gc.disable()
    try:
        for _ in range(10):
            reader = ResponseReader(4_096, 4_096, 10)
            reader.feed(CHUNKED + b"2\r\nok\r\n" + end)
            assert reader.done
            del reader
        assert before == sum(type(thing) is ResponseReader for thing in gc.get_objects())
    finally:
        gc.enable()
