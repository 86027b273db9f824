"""A payload as text for a page: bounded, JSON laid out, invisible characters written out. What it returns is text, never markup.

Every byte of it was chosen by somebody else. The templates escape it like any text; here it only becomes readable, without
changing a token: numbers, escapes and doubled keys stay as they were sent. Pure; called by the delivery page.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final, Literal

from gatepost.service.console.filters import visible

SHOWN_BYTES_MAX: Final = 65_536
"""Of a payload on a page; the rest is left out, and the page says how much."""
LAID_OUT_BYTES_MAX: Final = 131_072
"""JSON up to this size is laid out: some 10 ms, in which nobody else is served."""
DEPTH_SHOWN: Final = 40
"""Levels that are indented; deeper ones stay at the margin of the last."""
INDENT: Final = "  "

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_PLAIN: Final = re.compile(r"[^\x20-\x7e\n\t]+")


@dataclass(frozen=True, slots=True)
class PayloadText:
    """What a page shows of a payload."""

    text: str
    kind: Literal["empty", "JSON", "text", "bytes"]
    size: int
    """Bytes of the whole payload."""
    complete: bool
    """All of it is there."""


def payload_text(body: bytes, limit: int = SHOWN_BYTES_MAX) -> PayloadText:
    """The payload as text: its first `limit` bytes, or as many characters of it laid out."""
    if not body:
        return PayloadText("", "empty", 0, complete=True)
    if _is_json(body):
        laid_out = _laid_out(body.decode(), limit)
        return PayloadText(_shown(laid_out[:limit]), "JSON", len(body), complete=len(laid_out) <= limit)
    part = body[:limit]
    complete = len(part) == len(body)
    try:
        text = part.decode("utf-8")
    except UnicodeDecodeError as error:
        if complete or error.start < len(part) - 3:  # else a character was cut in two
            return PayloadText(_shown(part.decode("utf-8", "backslashreplace")), "bytes", len(body), complete)
        text = part[: error.start].decode("utf-8")
    return PayloadText(_shown(text), "text", len(body), complete)


def _is_json(body: bytes) -> bool:
    if len(body) > LAID_OUT_BYTES_MAX or body[:1] not in (b"{", b"["):
        return False
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def _laid_out(text: str, limit: int) -> str:
    """The same tokens, a member a line; somewhat more than `limit` characters when there is more."""
    lines: list[str] = []
    depth, begun, written = 0, False, 0
    line: list[str] = []

    def end_line() -> None:
        nonlocal written
        lines.append("".join(line))
        written += len(lines[-1])
        line.clear()
        line.append(INDENT * min(depth, DEPTH_SHOWN))

    for piece in _TOKEN.findall(text):
        if piece in "}]":
            depth -= 1
            if not begun:
                end_line()
            line.append(piece)
        else:
            if begun:
                end_line()
            line.append(": " if piece == ":" else piece)
            if piece == ",":
                end_line()
        begun = piece in "{["
        depth += begun
        if written > limit:
            break
    lines.append("".join(line))
    return "\n".join(lines)


def _shown(text: str) -> str:
    return _PLAIN.sub(lambda found: visible(found[0]), text)
