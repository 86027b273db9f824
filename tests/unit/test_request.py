"""Request heads: nothing that a caller gives can become a second header, a second request, or other framing."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings, strategies

from gatepost.delivery.records import Secret
from gatepost.wire.headers import CLIENT_NAMES, VALUE_BYTES_MAX, HeaderRefused
from gatepost.wire.request import HEAD_BYTES_MAX, NAMES_REMEMBERED, request_head, static_head

STATIC = static_head("POST", "/hook?a=1", "receiver.example:8443")
AGENT = "gatepost/0.1"

LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+: [\x20-\x7e\t]*")
OWN_LINES = 5
"""host, accept-encoding, user-agent, content-type, content-length."""


def head(headers: Mapping[str, str] | None = None, content_type: str = "application/json", length: int = 7) -> bytes:
    """The head of a request with these headers."""
    return request_head(STATIC, AGENT, content_type, length, headers)


def test_a_head_says_what_a_receiver_needs_and_nothing_else() -> None:
    """No cookies, no Expect, no compression, one length; and a body of nothing has a length too."""
    assert head({"Webhook-Id": "evt_1", "X-Empty": ""}, length=0) == (
        b"POST /hook?a=1 HTTP/1.1\r\n"
        b"host: receiver.example:8443\r\n"
        b"accept-encoding: identity\r\n"
        b"webhook-id: evt_1\r\n"
        b"x-empty: \r\n"
        b"user-agent: gatepost/0.1\r\n"
        b"content-type: application/json\r\n"
        b"content-length: 0\r\n"
        b"\r\n"
    )


def test_the_caller_may_name_itself() -> None:
    """Some receivers allow-list a user agent; two of them would be one too many."""
    lines = head({"User-Agent": "acme-webhooks/2"}).split(b"\r\n")
    assert [line for line in lines if line.startswith(b"user-agent")] == [b"user-agent: acme-webhooks/2"]


NASTY = strategies.text(
    strategies.one_of(
        strategies.sampled_from("\r\n\0\t :;,\x0b\x0c\x1c\x85\u2028\u010a\u010d\u560a\u560dAaZ09-_"),
        strategies.characters(),
    ),
    max_size=30,
)


@settings(max_examples=500)
@given(strategies.dictionaries(NASTY, NASTY, max_size=4), NASTY)
@example({"x": "a\r\nb: c"}, "a")
@example({"x": "a\n"}, "a")
@example({"x\r\ny": "a"}, "a")
@example({"x": "a"}, "text/plain\r\nx: y")
@example({"x": "\u560d\u560ab: c"}, "a")
def test_no_name_and_no_value_makes_a_second_line(headers: dict[str, str], content_type: str) -> None:
    """Header values come from customers: a line break in one would add a header, or a whole request, in our name."""
    try:
        raw = head(headers, content_type)
    except ValueError:
        return
    first, *lines, empty, nothing = raw.split(b"\r\n")
    assert first == b"POST /hook?a=1 HTTP/1.1"
    assert empty == nothing == b""
    assert len(lines) == OWN_LINES + len(headers) - ("user-agent" in {name.lower() for name in headers})
    for line in lines:
        assert LINE.fullmatch(line), line
    names = [line.partition(b":")[0] for line in lines]
    assert len(names) == len(set(names))
    assert b"content-length: 7" in lines
    assert not {b"transfer-encoding", b"connection", b"expect", b"cookie"} & set(names)
    for name, value in headers.items():
        assert f"{name.lower()}: {value}".encode("ascii") in lines


@pytest.mark.parametrize("name", sorted({*CLIENT_NAMES, "Transfer-Encoding", "HOST", "Proxy-Authorization", "Sec-X"}))
def test_framing_and_the_clients_own_fields_cannot_be_given(name: str) -> None:
    """A second Content-Length is request smuggling at the receiver's proxy."""
    with pytest.raises(HeaderRefused, match=re.escape(name)):
        head({name: "x"})


class Disguised(str):
    """Text that formats as something else, as enumerations and masked secrets do."""

    def __format__(self, spec: str) -> str:
        return "x\r\ntransfer-encoding: chunked"


def test_the_characters_that_were_checked_are_the_ones_sent() -> None:
    """A masked secret once went out as `***`, and any other __format__ past the rules."""
    raw = head({"Authorization": Secret("Bearer t0ken"), Disguised("x-a"): Disguised("1")}, Disguised("text/plain"))
    assert b"authorization: Bearer t0ken\r\nx-a: 1\r\n" in raw
    assert b"content-type: text/plain\r\n" in raw
    assert b"chunked" not in raw


SECRET = "hunter2\r\n"
BAD_VALUES = [SECRET, "hunter2\x00", " hunter2", "hunter2 ", "hunter2\xe9", "hunter2" * VALUE_BYTES_MAX]


@pytest.mark.parametrize("value", BAD_VALUES, ids=["CRLF", "NUL", "blank before", "blank behind", "not ASCII", "long"])
def test_messages_name_the_header_and_never_show_the_value(value: str) -> None:
    """The value may be a credential, and error texts end up in logs."""
    with pytest.raises(ValueError, match="Authorization") as caught:
        head({"Authorization": value})
    assert "hunter2" not in str(caught.value)
    assert "write" in str(caught.value), "it says what to do instead"


@pytest.mark.parametrize("name", ["", "x y", "x:", "x\r\ny", "ü", "x" * 300])
def test_a_bad_name_is_refused_in_printable_words(name: str) -> None:
    """The name is shown escaped: a message with a line break in it could forge a log line."""
    with pytest.raises(HeaderRefused) as caught:
        head({name: "x"})
    assert str(caught.value).isprintable()


def test_one_header_in_two_spellings_is_refused() -> None:
    """Which of two webhook-ids a receiver reads is anybody's guess."""
    with pytest.raises(HeaderRefused, match="twice"):
        head({"webhook-id": "evt_1", "Webhook-Id": "evt_2"})


def test_what_is_not_text_is_a_type_error() -> None:
    """bytes and None are slips of the caller; turned into text they would be sent as b'...' and None."""
    wrong: list[Mapping[object, object]] = [{b"x": "1"}, {1: "1"}, {"x": b"1"}, {"x": None}, {"x": 1}]
    for headers in wrong:
        with pytest.raises(TypeError, match="write a str"):
            head(headers)  # type: ignore[arg-type]  # misuse on purpose
    with pytest.raises(TypeError, match="content-type"):
        head(None, None)  # type: ignore[arg-type]  # misuse on purpose


def test_the_content_type_is_checked_like_any_value() -> None:
    """It is a parameter of its own and must not be the way around the rules."""
    for value in ("text/plain\r\nx: y", "text/plain\n", " text/plain", "text/plän", ""):
        with pytest.raises(ValueError, match="content-type"):
            head(None, value)


def test_all_headers_together_are_bounded() -> None:
    """Receivers answer 431 or 400 to more; here the text says how much is too much."""
    headers = {f"x-{number}": "a" * VALUE_BYTES_MAX for number in range(HEAD_BYTES_MAX // VALUE_BYTES_MAX)}
    with pytest.raises(ValueError, match=str(HEAD_BYTES_MAX)):
        head(headers)


def test_remembered_names_are_bounded_and_change_no_verdict() -> None:
    """Names are remembered for speed; a caller that makes up new ones must not fill the memory, nor get one past the rules."""
    for number in range(NAMES_REMEMBERED + 100):
        assert f"x-{number}: a\r\n".encode() in head({f"X-{number}": "a"})
    for _ in range(2):
        with pytest.raises(HeaderRefused):
            head({"Content-Length": "3"})
