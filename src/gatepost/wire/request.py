"""Request heads: the bytes of one POST, from parts that were checked.

Writes what RFC 9110 and RFC 9112 ask of a client and nothing a receiver could be confused by: no cookies, no `Expect`, no
compression, one Content-Length. Header rules are those of `wire.headers`, asked again for every request, so that injection is
impossible whatever came before. Called by `net.client`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gatepost.wire.headers import check_headers, check_name, check_value

HEAD_BYTES_MAX: Final = 32_768
"""All headers of a request together: beyond it nginx and others answer 431 or 400."""
NAMES_REMEMBERED: Final = 4_096
"""Checked header names kept, so that a name costs one dict lookup; further ones are checked each time."""
TYPES_REMEMBERED: Final = 256
"""Likewise content types."""

_known_names: dict[str, str] = {}
_known_types: dict[str, str] = {}


def static_head(method: str, target: str, authority: str) -> str:
    """The part of a head that is the same for every request to a URL."""
    return f"{method} {target} HTTP/1.1\r\nhost: {authority}\r\naccept-encoding: identity\r\n"


def request_head(
    static: str, user_agent: str, content_type: str, length: int, headers: Mapping[str, str] | None
) -> bytes:
    """The head of one request, up to and with its empty line. A `user-agent` among `headers` replaces `user_agent`.

    Raises `HeaderRefused` (a `ValueError`) naming the header and what is wrong with it, or `TypeError`; never shows a value.
    """
    tail = _known_types.get(content_type) or _type_lines(content_type)
    if not headers:
        head = f"{static}user-agent: {user_agent}\r\n{tail}{length}\r\n\r\n"
    else:
        lines = [static]
        own_agent = True
        lower_case = True
        for name, value in headers.items():
            field = _known_names.get(name) or _check_name(name)
            check_value(name, value)
            if field != name:
                lower_case = False
            if field == "user-agent":
                own_agent = False
            # Joined, not formatted: `join` takes the characters that were checked, `format` what a subclass of str makes of
            # them (a masked secret would be sent as ***).
            lines += (field, ": ", value, "\r\n")
        if not lower_case:
            check_headers(headers, allow_webhook=True)  # the same name in two spellings
        if own_agent:
            lines += ("user-agent: ", user_agent, "\r\n")
        lines += (tail, f"{length}\r\n\r\n")
        head = "".join(lines)
    if len(head) > HEAD_BYTES_MAX:
        raise ValueError(f"the request's headers take {len(head)} bytes: write at most {HEAD_BYTES_MAX}")
    return head.encode("ascii")


def _check_name(name: str) -> str:
    field = check_name(name, allow_webhook=True)
    if len(_known_names) < NAMES_REMEMBERED:
        _known_names[name] = field
    return field


def _type_lines(content_type: str) -> str:
    check_value("content-type", content_type)
    if not content_type:
        raise ValueError("content-type is empty: write one, for example application/octet-stream")
    lines = "".join(("content-type: ", content_type, "\r\ncontent-length: "))
    if len(_known_types) < TYPES_REMEMBERED:
        _known_types[content_type] = lines
    return lines


_IDEMPOTENCY_HEADERS: Final = frozenset({"webhook-id", "idempotency-key"})


def names_itself(headers: Mapping[str, str] | None) -> bool:
    """The receiver can tell a repetition, so the request may be sent again when a stale connection swallowed it."""
    if not headers:
        return False
    if "webhook-id" in headers:
        return True
    return any(name.lower() in _IDEMPOTENCY_HEADERS for name in headers)
