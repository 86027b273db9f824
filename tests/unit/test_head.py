"""Response heads: what RFC 9112 lets a client forgive, what it must refuse, and what the framing fields come to.

The cases come from faults that other clients had; their origin is named where a rule would look arbitrary without it.
"""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, strategies

from gatepost.clock import SYSTEM_CLOCK
from gatepost.wire import head as head_module
from gatepost.wire.exchange import ResponseReader
from gatepost.wire.head import (
    CACHE_MAX,
    CACHED_FIELDS_MAX,
    CACHED_HEAD_MAX,
    Head,
    find_head_end,
    known_head,
    parse_head,
    starts_like_head,
)
from gatepost.wire.reasons import Reason


def parsed(raw: bytes) -> Head:
    """The head of `raw`, which must be one, read without the cache and again with it."""
    head_module._cache.clear()
    head = parse_head(raw)
    assert isinstance(head, Head), raw
    assert known_head(raw) in (head, None)
    assert parse_head(raw) == head
    return head


def with_fields(*lines: str, status: str = "HTTP/1.1 200 OK") -> Head:
    """The head with these field lines."""
    return parsed("\r\n".join((status, *lines, "", "")).encode("latin-1"))


FORGIVEN = [
    (b"HTTP/1.1 200 OK\nServer: old\n\n", 200, (("server", "old"),), "bare line feeds"),
    (b"HTTP/1.1 200 OK\r\nA: 1\nB: 2\r\n\n", 200, (("a", "1"), ("b", "2")), "mixed line ends"),
    (b"HTTP/1.1 200 OK\r\nX-Note: one\r\n two\r\n\r\n", 200, (("x-note", "one two"),), "a folded line"),
    (b"HTTP/1.1 200 OK\r\nX-Note: one \t\r\n \t two\r\n\tthree\r\n\r\n", 200, (("x-note", "one two three"),), "folds"),
    (b"HTTP/1.1 200 OK\r\nX:\r\n  \r\nY: 1\r\n\r\n", 200, (("x", ""), ("y", "1")), "a fold without content"),
    (b"HTTP/1.1 404\r\n\r\n", 404, (), "no reason phrase and no blank"),
    (b"HTTP/1.1 404 \r\n\r\n", 404, (), "an empty reason phrase"),
    (b"HTTP/1.1  200 OK\r\n\r\n", 200, (), "two blanks before the status"),
    (b"HTTP/1.1 200 Tr\xc3\xa8s bien\r\n\r\n", 200, (), "a reason phrase beyond ASCII"),
    (b"HTTP/1.0 299 whatever it says\r\n\r\n", 299, (), "any reason phrase"),
    (b"HTTP/1.1 999 Denied\r\n\r\n", 999, (), "a status of no class"),
    (b"HTTP/1.1 200 OK\r\nX:\r\nY: \t \r\n\r\n", 200, (("x", ""), ("y", "")), "empty values"),
    (b"HTTP/1.1 200 OK\r\nX:\t a b \t\r\n\r\n", 200, (("x", "a b"),), "blanks around a value"),
    (b"HTTP/1.1 200 OK\r\nX: a\xfc\xff\r\n\r\n", 200, (("x", "a\xfc\xff"),), "opaque bytes, as Latin-1"),
    (b"HTTP/1.1 200 OK\r\n!#$%&'*+-.^_`|~09Az: x\r\n\r\n", 200, (("!#$%&'*+-.^_`|~09az", "x"),), "any token as a name"),
    (b"HTTP/1.1 200 OK\r\nA: 1\r\na: 2\r\n\r\n", 200, (("a", "1"), ("a", "2")), "a repeated field"),
]


@pytest.mark.parametrize(
    ("raw", "status", "fields"), [case[:3] for case in FORGIVEN], ids=[case[3] for case in FORGIVEN]
)
def test_what_old_servers_send_is_read(raw: bytes, status: int, fields: tuple[tuple[str, str], ...]) -> None:
    """A strict parser reports deliveries that succeeded as failures, and so sends them again for days."""
    head = parsed(raw)
    assert status == head.status
    assert fields == head.fields


REFUSED = [
    (b"0\r\n\r\n", "a number alone"),
    (b"SSH-2.0-x\r\n\r\n", "another protocol"),
    (b"HTTP/2.0 200 OK\r\n\r\n", "HTTP/2.0"),
    (b"HTTP/1.2 200 OK\r\n\r\n", "HTTP/1.2"),
    (b"HTTP/1.10 200 OK\r\n\r\n", "two digits of minor version"),
    (b"http/1.1 200 OK\r\n\r\n", "lower case"),
    (b"HTTP/1.1 2000 OK\r\n\r\n", "four digits"),
    (b"HTTP/1.1 099 X\r\n\r\n", "a status below 100"),
    (b"HTTP/1.1 20 X\r\n\r\n", "two digits"),
    (b"HTTP/1.1 +20 X\r\n\r\n", "a sign"),
    (b"HTTP/1.1 \xb2\xb20 X\r\n\r\n", "digits beyond ASCII"),
    (b"HTTP/1.1\t200 OK\r\n\r\n", "a tab before the status"),
    (b"HTTP/1.1     200 OK\r\n\r\n", "five blanks before the status"),
    (b"HTTP/1.1 200\tOK\r\n\r\n", "a tab behind the status"),
    (b"HTTP/1.1 200OK\r\n\r\n", "no blank behind the status"),
    (b" HTTP/1.1 200 OK\r\n\r\n", "a blank in front"),
    (b"HTTP/1.1 200 O\x00K\r\n\r\n", "NUL in the reason"),
    (b"HTTP/1.1 200 OK\r\r\nX: 1\r\n\r\n", "two CR"),
    (b"HTTP/1.1 200 OK\rX: 1\r\n\r\n", "a bare CR behind the status line"),
    (b"HTTP/1.1 200 OK\r\nX: a\rContent-Length: 9\r\n\r\n", "a bare CR in a value"),
    (b"HTTP/1.1 200 OK\r\nFoo:\rContent-Length: 5\r\n\r\n", "a bare CR behind an empty value"),
    (b"HTTP/1.1 200 OK\nX: a\rb\n\n", "a bare CR between bare line feeds"),
    (b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n", "NUL in a value"),
    (b"HTTP/1.1 200 OK\r\nX: a\x0bb\r\n\r\n", "a control character in a value"),
    (b"HTTP/1.1 200 OK\r\nX: a\x7f\r\n\r\n", "DEL in a value"),
    (b"HTTP/1.1 200 OK\r\nX : 1\r\n\r\n", "a blank before the colon"),
    (b"HTTP/1.1 200 OK\r\nX\t: 1\r\n\r\n", "a tab before the colon"),
    (b"HTTP/1.1 200 OK\r\n: 1\r\n\r\n", "no name"),
    (b"HTTP/1.1 200 OK\r\nX y: 1\r\n\r\n", "a blank in a name"),
    (b"HTTP/1.1 200 OK\r\nX\xfc: 1\r\n\r\n", "a name beyond ASCII"),
    (b"HTTP/1.1 200 OK\r\nX(y): 1\r\n\r\n", "a delimiter in a name"),
    (b"HTTP/1.1 200 OK\r\nno colon at all\r\n\r\n", "no colon"),
    (b"HTTP/1.1 200 OK\r\n X: 1\r\n\r\n", "the first field line begins with a blank"),
    (b"HTTP/1.1 200 OK\r\n\tX: 1\r\n\r\n", "the first field line begins with a tab"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n 0\r\n\r\n", "a folded Content-Length"),
    (b"HTTP/1.1 200 OK\r\nA: 1\r\ncontent-length:\r\n\t10\r\n\r\n", "a folded Content-Length without a first part"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip,\r\n chunked\r\n\r\n", "a folded Transfer-Encoding"),
    (b"HTTP/1.1 200 OK\nTransfer-Encoding: gzip,\n chunked\n\n", "the same with bare line feeds"),
]


@pytest.mark.parametrize("raw", [case[0] for case in REFUSED], ids=[case[1] for case in REFUSED])
def test_what_two_parsers_could_read_differently_is_refused(raw: bytes) -> None:
    """A peer that hides a Content-Length inside another line decides where the next response begins."""
    head_module._cache.clear()
    assert parse_head(raw) is Reason.RESPONSE_PROTOCOL_ERROR
    assert not head_module._cache, "what is refused is not remembered"


def test_forgiven_heads_never_keep_the_connection() -> None:
    """Who frames lines in his own way may frame bodies in his own way too."""
    assert not parsed(b"HTTP/1.1 200 OK\nContent-Length: 0\n\n").reusable
    assert not parsed(b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n").reusable
    assert parsed(b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n").reusable, "a missing reason phrase frames nothing"


LENGTHS = [
    (("0",), 0),
    (("5",), 5),
    ((" 5\t",), 5),
    (("0005",), 5),
    (("5, 5",), 5),
    (("5,5 ,\t5",), 5),
    (("5", "5"), 5),
    (("5", "5, 5"), 5),
    (("9" * 19,), int("9" * 19)),
]
NO_LENGTHS = [
    "-10",
    "+5",
    "0x10",
    "1_0",
    "5.0",
    "",
    "5 5",
    "5;",
    "5, 6",
    "5,",
    ",5",
    "5, 05",
    "9" * 20,
    "1" * 40,
    "²",
    "5\xa0",
]


@pytest.mark.parametrize(("values", "length"), LENGTHS)
def test_a_content_length_is_one_plain_number(values: tuple[str, ...], length: int) -> None:
    """RFC 9112 6.3: identical repetitions may pass."""
    head = with_fields(*(f"Content-Length: {value}" for value in values))
    assert (length, True, True) == (head.length, head.framing_ok, head.reusable)


@pytest.mark.parametrize("value", NO_LENGTHS)
def test_anything_else_is_no_length_and_the_status_stands(value: str) -> None:
    """`int()` takes signs, underscores and Arabic digits; a complete 2xx head still means delivered."""
    head = with_fields(f"Content-Length: {value}")
    assert (head.status, head.length, head.framing_ok, head.reusable) == (200, None, False, False)


def test_two_lengths_that_differ_frame_nothing() -> None:
    """Request smuggling by way of a response: nobody can tell where the next one begins."""
    head = with_fields("Content-Length: 5", "Content-Length: 6")
    assert (head.length, head.framing_ok, head.reusable) == (None, False, False)


CODINGS = [
    (("chunked",), True, True),
    (("chunked ",), True, True),
    ((" Chunked",), True, True),
    (("gzip, chunked",), True, True),
    (("gzip", "chunked"), True, True),
    (("chunked, gzip",), False, False),
    (("xchunked",), False, False),
    (("chunked, chunked",), False, False),
    (("chunked", "chunked"), False, False),
    (("identity",), False, False),
    (("gzip",), False, False),
    (("",), False, False),
    (("chunked;q=1",), False, False),
    (("chunked\xa0",), False, False),
    (("\x85chunked",), False, False),
    (("gzip,\xa0chunked",), False, False),
]


@pytest.mark.parametrize(("values", "chunked", "sound"), CODINGS)
def test_a_body_is_chunked_when_chunked_comes_once_and_last(
    values: tuple[str, ...], chunked: bool, sound: bool
) -> None:
    """RFC 9112 6.1. A value compared without trimming leaks chunk sizes into the body."""
    head = with_fields(*(f"Transfer-Encoding: {value}" for value in values))
    assert (chunked, sound, sound) == (head.chunked, head.framing_ok, head.reusable)


def test_chunked_beats_a_length_and_the_connection_is_dropped() -> None:
    """RFC 9112 6.3: the combination may be an attack; the body is read by its chunks and nothing is reused."""
    head = with_fields("Transfer-Encoding: chunked", "Content-Length: 5")
    assert (head.chunked, head.framing_ok, head.reusable) == (True, True, False)
    head = with_fields("Transfer-Encoding: chunked", "Content-Length: nonsense")
    assert (head.chunked, head.framing_ok, head.reusable) == (True, True, False)


@pytest.mark.parametrize("status", [100, 103, 199, 204, 304])
def test_statuses_without_a_body_have_none_whatever_the_fields_say(status: int) -> None:
    """RFC 9112 6.3: a 204 with a Content-Length is a delivery, not a protocol error."""
    for field in ("Content-Length: 5", "Transfer-Encoding: chunked", "Content-Length: nonsense", "X: 1"):
        head = with_fields(field, status=f"HTTP/1.1 {status} X")
        assert head.bodyless
        assert head.framing_ok


NO_BODY_ANNOUNCED = [
    (204, ("Content-Length: 0",), True),
    (204, ("Content-Length: 5",), False),
    (204, ("Transfer-Encoding: chunked",), False),
    (304, ("Content-Length: 5",), True),
    (304, ("Transfer-Encoding: chunked",), False),
]


@pytest.mark.parametrize(("status", "fields", "kept"), NO_BODY_ANNOUNCED)
def test_a_body_that_is_announced_and_not_read_costs_the_connection(
    status: int, fields: tuple[str, ...], kept: bool
) -> None:
    """A framework that answers 204 with the text "ok" may send it: a moment later it would begin the next answer.

    A 304 may say how long the body would have been (RFC 9110 8.6).
    """
    assert kept == with_fields(*fields, status=f"HTTP/1.1 {status} X").reusable


KEPT = [
    ("HTTP/1.1", (), True),
    ("HTTP/1.1", ("Connection: close",), False),
    ("HTTP/1.1", ("Connection: CLOSE",), False),
    ("HTTP/1.1", ("Connection: keep-alive, close",), False),
    ("HTTP/1.1", ("Connection: x", "Connection:  Close ,y"), False),
    ("HTTP/1.1", ("Connection: closed",), True),
    ("HTTP/1.0", (), False),
    ("HTTP/1.0", ("Connection: Keep-Alive",), True),
    ("HTTP/1.0", ("Connection: keep-alive, close",), False),
]


@pytest.mark.parametrize(("version", "fields", "kept"), KEPT)
def test_the_peer_says_whether_the_connection_stays(version: str, fields: tuple[str, ...], kept: bool) -> None:
    """RFC 9112 9.3. A connection kept against the peer's word costs the next delivery its first try."""
    assert kept == with_fields("Content-Length: 0", *fields, status=f"{version} 200 OK").reusable


def test_a_body_that_ends_with_the_connection_does_not_keep_it() -> None:
    """There is no other end."""
    assert not with_fields().reusable


@pytest.mark.parametrize(("status", "kept"), [(400, False), (408, False), (401, True), (429, True), (500, True)])
def test_answers_that_may_belong_to_something_else_are_not_followed_by_a_request(status: int, kept: bool) -> None:
    """A 408 is what an idle timer sends: read as the answer to the next request it shifts all answers by one."""
    assert kept == with_fields("Content-Length: 0", status=f"HTTP/1.1 {status} X").reusable


KEEP_ALIVE = [
    (("timeout=5",), 5, None),
    (("timeout=5, max=100",), 5, 100),
    (("max=7,timeout=3",), 3, 7),
    (('Timeout = "12"',), 12, None),
    (("timeout=5", "max=2"), 5, 2),
    (("timeout=0",), 0, None),
    (("timeout=-1",), None, None),
    (("timeout=5.5",), None, None),
    (("timeout",), None, None),
    (("xtimeout=5",), None, None),
    (("timeout=1234567890",), None, None),
    (("timeout=5 s",), None, None),
    (("",), None, None),
]


@pytest.mark.parametrize(("values", "timeout", "limit"), KEEP_ALIVE)
def test_the_keep_alive_hint_is_read_or_ignored(
    values: tuple[str, ...], timeout: int | None, limit: int | None
) -> None:
    """Honouring it avoids most stale connections; nonsense in it must not."""
    head = with_fields(*(f"Keep-Alive: {value}" for value in values))
    assert (timeout, limit) == (head.keep_alive_timeout, head.keep_alive_max)


def test_the_end_of_a_head_is_found_from_where_the_search_stopped() -> None:
    """A dripped head must not be searched from its start at every byte."""
    raw = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody"
    assert find_head_end(raw, 0) == len(raw) - 4
    assert find_head_end(raw, -3) == len(raw) - 4
    assert find_head_end(raw, raw.index(b"\r\n\r\n") + 1) == len(raw) - 4
    assert find_head_end(b"a\n\nb", 0) == 3
    assert find_head_end(b"a\r\n\nb", 0) == 4
    assert find_head_end(b"a\n\r\r\nb", 0) == -1


def test_garbage_is_seen_with_its_first_byte() -> None:
    """Waiting for the read limit would blame slowness for what is another protocol."""
    assert all(starts_like_head(b"HTTP/1.1 200"[:size]) for size in range(1, 12))
    assert not any(starts_like_head(text) for text in (b"S", b"HTTQ", b"http/1.", b"HTTP/2", b"\x15\x03\x01"))


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nA: b" + b" " * 60_000 + b"c\r\n\r\n",
        b"HTTP/1.1 200 OK\nA: b" + b" " * 60_000 + b"c\n\n",
        b"HTTP/1.1 200 OK\nA: b" + b"\n " * 30_000 + b"c\n\n",
        b"HTTP/1.1 200 OK\nA: b" + b" \n" * 30_000 + b"c\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"1," * 30_000 + b"1x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"1" * 60_000 + b"x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1" + b" " * 60_000 + b"x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nKeep-Alive: " + b", " * 30_000 + b"x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1" + b" " * 60_000 + b"x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: " + b"a," * 30_000 + b"x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + b"a ," * 20_000 + b"x\r\n\r\n",
        b"HTTP/1.1 200 " + b" " * 60_000 + b"\x00\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 10_000 + b"x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A" * 60_000 + b"\r\n\r\n",
    ],
    ids=range(14),
)
def test_no_head_costs_more_than_its_length(raw: bytes) -> None:
    """Trimming by a pattern once took 4 s for 60,000 blanks: one endpoint held the loop of all others."""
    started = SYSTEM_CLOCK.monotonic()
    parse_head(raw)
    assert SYSTEM_CLOCK.monotonic() - started < 0.5


# ------------------------------------------------------------------------------------------------- the cache

PIECES = strategies.sampled_from(
    [
        "HTTP/1.1 200 OK",
        "HTTP/1.0 404",
        "\r\n",
        "\n",
        "\r",
        " ",
        "\t",
        "A: b",
        "Content-Length: 5",
        ": ",
        "\x00",
        "ü",
        "x",
    ]
)


@given(strategies.lists(PIECES, max_size=12), strategies.integers(0, 80))
def test_a_remembered_head_reads_as_at_the_first_time(pieces: list[str], limit: int) -> None:
    """The cache may save work; it must not let a head through that is malformed, or longer than this policy allows."""
    data = "".join(["HTTP/1.1 204 X\r\n", *pieces, "\r\n\r\n"]).encode("latin-1")
    results = set()
    for cold, size in ((True, len(data)), (False, len(data)), (False, len(data)), (True, 1)):
        if cold:
            head_module._cache.clear()
        reader = ResponseReader(limit, 10, 3)
        for at in range(0, len(data), size):
            if not reader.fault:
                reader.feed(data[at : at + size])
        results.add((reader.done, reader.fault, reader.body_fault, reader.head, reader.surplus, reader.body))
    assert len(results) == 1


def test_a_head_found_in_the_cache_ends_at_its_first_empty_line() -> None:
    """Bytes that follow a head with bare line feeds belong to the body, however much the whole looks like a known head."""
    head_module._cache.clear()
    inner = b"HTTP/1.1 200 OK\n\nHTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"
    for _ in range(2):
        reader = ResponseReader(1_000, 1_000, 3)
        reader.feed(inner)
        reader.end(orderly=True)
        assert reader.head is not None
        assert (200, inner[17:]) == (reader.head.status, reader.body)


def test_the_cache_is_bounded_in_number_and_size() -> None:
    """A peer that sends a new header value with each answer must not fill our memory."""
    head_module._cache.clear()
    for number in range(2 * CACHE_MAX + 10):
        parse_head(b"HTTP/1.1 200 OK\r\nX-Request: %d\r\n\r\n" % number)
        assert len(head_module._cache) <= CACHE_MAX
    head_module._cache.clear()
    assert isinstance(parse_head(b"HTTP/1.1 200 OK\r\nX: " + b"a" * CACHED_HEAD_MAX + b"\r\n\r\n"), Head)
    assert isinstance(parse_head(b"HTTP/1.1 200 OK\r\n" + b"X:\r\n" * (CACHED_FIELDS_MAX + 1) + b"\r\n"), Head)
    assert not head_module._cache


def test_the_cache_takes_the_memory_it_claims() -> None:
    """2 KiB of two-letter fields are 60 KiB of objects; a thousand such heads once took 58 MiB where 2 were promised."""
    head_module._cache.clear()
    names = [f"{first}{second}" for first in "abcdefgh" for second in "abcd"][: CACHED_FIELDS_MAX - 1]
    value_bytes = (CACHED_HEAD_MAX - 100) // CACHED_FIELDS_MAX - 6
    tracemalloc.start()
    for number in range(CACHE_MAX):
        lines = "".join(f"{name}:{'v' * value_bytes}\r\n" for name in names)
        assert isinstance(parse_head(f"HTTP/1.1 200 OK\r\nx-number: {number}\r\n{lines}\r\n".encode()), Head)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(head_module._cache) == CACHE_MAX
    head_module._cache.clear()
    assert taken < 12 * 2**20
