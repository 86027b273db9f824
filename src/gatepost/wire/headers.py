"""Decides which header fields a caller or endpoint may add to a request, by name and by value.

Refuses what would change the framing or speak for the client, and every byte a receiver could read as a second header
(RFC 9110 section 5). Asked when an endpoint is registered and again when a request is written, because stored headers may
be older than a rule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gatepost.errors import GatepostError
from gatepost.wire.reasons import Reason

NAME_BYTES_MAX: Final = 256
"""A header name; real ones have under 40 bytes."""
VALUE_BYTES_MAX: Final = 4_096
"""A header value; RFC 9110 sets no limit, common servers refuse 8 KiB for a whole line."""

CLIENT_NAMES: Final = frozenset(
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
"""Fields the client writes itself, or that would change the framing or ask for what it cannot do."""
CLIENT_PREFIXES: Final = ("proxy-", "sec-")
"""Fields for a proxy or from a browser, which would reach the endpoint or mislead it."""
WEBHOOK_PREFIX: Final = "webhook-"
"""Fields of the signature. Endpoints may not set them; a caller of `DispatchClient.deliver` who signs himself may."""

# Matched on the text itself: characters such as U+010A turn into a line feed where a writer keeps the low byte only.
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?")


class HeaderRefused(GatepostError, ValueError):
    """A header may not be sent; `code` is its `Reason`. The text names the header and never shows its value."""

    def __init__(self, code: Reason, message: str) -> None:
        super().__init__(message)
        self.code = code


def check_header(name: str, value: str, *, allow_webhook: bool = False) -> str:
    """The name in lower case, if the header may be sent.

    Raises `HeaderRefused` with `header_name_invalid`, `header_forbidden`, `header_too_long` or `header_value_invalid`, and
    `TypeError` for anything but text. `allow_webhook` lets the signature's own fields through.
    """
    field = check_name(name, allow_webhook=allow_webhook)
    check_value(name, value)
    return field


def check_headers(headers: Mapping[str, str], *, allow_webhook: bool = False) -> dict[str, str]:
    """All of them with lower-case names, in order. Raises as `check_header`, and for a name given in two spellings."""
    checked: dict[str, str] = {}
    for name, value in headers.items():
        field = check_header(name, value, allow_webhook=allow_webhook)
        if field in checked:
            raise HeaderRefused(
                Reason.HEADER_FORBIDDEN, f"header {field!r} is given twice in different letter case: write it once"
            )
        checked[field] = value
    return checked


def check_name(name: str, *, allow_webhook: bool = False) -> str:
    """The name in lower case; raises as `check_header`."""
    if not isinstance(name, str):
        raise TypeError(f"header name {name!r}: write a str")
    if len(name) > NAME_BYTES_MAX:
        raise HeaderRefused(
            Reason.HEADER_TOO_LONG, f"a header name has {len(name)} characters: write at most {NAME_BYTES_MAX}"
        )
    if _NAME.fullmatch(name) is None:
        shown, colon, _ = name.partition(":")  # behind the colon of a whole line stands its value
        raise HeaderRefused(
            Reason.HEADER_NAME_INVALID,
            f"header name {shown!a}{' with a colon' * len(colon)} is no token (RFC 9110 section 5.1): write letters, digits and hyphens",
        )
    field = name.lower()
    if field in CLIENT_NAMES or field.startswith(CLIENT_PREFIXES):
        raise HeaderRefused(
            Reason.HEADER_FORBIDDEN,
            f"header {name!r} is written by the client itself or would change the framing: leave it out",
        )
    if not allow_webhook and field.startswith(WEBHOOK_PREFIX):
        raise HeaderRefused(
            Reason.HEADER_FORBIDDEN,
            f"header {name!r} belongs to the signature: use a name that does not start with webhook-",
        )
    return field


def check_value(name: str, value: str) -> None:
    """Raises as `check_header`; `name` is for the text only."""
    if not isinstance(value, str):
        raise TypeError(f"the value of header {name!r} is a {type(value).__name__}: write a str")
    if len(value) > VALUE_BYTES_MAX:
        raise HeaderRefused(
            Reason.HEADER_TOO_LONG,
            f"the value of header {name!r} has {len(value)} characters: write at most {VALUE_BYTES_MAX}",
        )
    if _VALUE.fullmatch(value) is None:
        raise HeaderRefused(
            Reason.HEADER_VALUE_INVALID,
            f"the value of header {name!r} has a character that may not stand there: write visible ASCII with blanks "
            "inside only, and encode anything else, for example with RFC 8187",
        )
