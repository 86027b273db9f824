"""Request heads: the bytes of one POST, from parts that were checked.

Writes what RFC 9110 and RFC 9112 ask of a client and nothing a receiver could be confused by: no cookies, no `Expect`, no
compression, one Content-Length. Header injection is impossible here whatever came before: every line is matched once more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

VALUE_BYTES_MAX: Final = 4_096
"""A header value; RFC 9110 sets no limit, common servers refuse 8 KiB for a whole line."""
HEAD_BYTES_MAX: Final = 32_768
"""All headers of a request together: beyond it nginx and others answer 431 or 400."""

OWN_NAMES: Final = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Fields that the client writes itself, or that would change the framing; a caller's header of that name is refused."""
OWN_PREFIXES: Final = ("proxy-", "sec-")

_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?")
_NAMES_REMEMBERED: Final = 4_096
_known_names: dict[str, str] = {}


def static_head(method: str, target: str, host_header: str, user_agent: str) -> str:
    """The part of a head that is the same for every request to a URL."""
    return f"{method} {target} HTTP/1.1\r\nhost: {host_header}\r\nuser-agent: {user_agent}\r\naccept-encoding: identity\r\n"


def request_head(static: str, content_type: str, length: int, headers: Mapping[str, str] | None) -> bytes:
    """The head of one request, up to and with its empty line.

    Raises `ValueError` naming the header and what is wrong with it.
    """
    lines = [static]
    if headers:
        match_value = _VALUE.fullmatch
        known = _known_names
        for name, value in headers.items():
            field = known.get(name) or _check_name(name)
            if not isinstance(value, str):
                raise TypeError(f"the value of header {name!r} is a {type(value).__name__}: write a str")
            if match_value(value) is None or len(value) > VALUE_BYTES_MAX:
                raise ValueError(_value_help(name, value))
            lines.append(f"{field}: {value}\r\n")
    if _VALUE.fullmatch(content_type) is None or not content_type:
        raise ValueError(_value_help("content-type", content_type))
    lines.append(f"content-type: {content_type}\r\ncontent-length: {length}\r\n\r\n")
    head = "".join(lines)
    if len(head) > HEAD_BYTES_MAX:
        raise ValueError(f"the request's headers take {len(head)} bytes: write at most {HEAD_BYTES_MAX}")
    return head.encode("ascii")


def _check_name(name: object) -> str:
    """The name in lower case; raises `TypeError` or `ValueError`, and remembers what it allowed."""
    if not isinstance(name, str):
        raise TypeError(f"header name {name!r}: write a str")
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"header name {name!r} is not a token (RFC 9110 5.1): write letters, digits and hyphens")
    field = name.lower()
    if field in OWN_NAMES or field.startswith(OWN_PREFIXES):
        raise ValueError(f"header {name!r} is written by the client itself or would change the framing: leave it out")
    if len(_known_names) < _NAMES_REMEMBERED:
        _known_names[name] = field
    return field


def _value_help(name: str, value: str) -> str:
    # The value may be a credential: it is never shown.
    if len(value) > VALUE_BYTES_MAX:
        return f"the value of header {name!r} has {len(value)} characters: write at most {VALUE_BYTES_MAX}"
    return (
        f"the value of header {name!r} has a character that may not stand there: write visible ASCII, "
        "with blanks inside only (encode anything else, for example with RFC 8187)"
    )
