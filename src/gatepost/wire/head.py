"""Response heads: finds their end, forgives what RFC 9112 lets a client forgive, refuses the rest, and reads the framing.

Pure and cached: one receiver's heads repeat within a second, so most responses cost one dict lookup. `wire.exchange` is the
only caller. What is forgiven: bare LF line ends, folded lines (RFC 9112 5.2: one blank), a missing reason phrase, blanks
around the status, identical repeated Content-Length. What is never forgiven: a bare CR, control characters, names that are
no token, blanks before the colon, another version than 1.0 or 1.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gatepost.wire.reasons import Reason

CACHE_MAX: Final = 1_024
"""Distinct heads remembered; the cache is emptied when full, since a new second brings new Date headers anyway."""
CACHED_HEAD_MAX: Final = 2_048
CACHED_FIELDS_MAX: Final = 32
"""Bytes and fields; a longer head is parsed anew. Each field takes some 200 bytes more than its text, so that the cache stays
below 12 MiB whatever peers send, and at 1 MiB with usual heads."""
LENGTH_DIGITS_MAX: Final = 19
"""Content-Length digits: what fits 63 bits, as common servers count. More is no length but an attack on arithmetic."""

_NAME = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_VALUE = r"[\t\x20-\x7e\x80-\xff]*"
_HEAD = re.compile(rf"HTTP/1\.([01]) {{1,4}}([1-9][0-9]{{2}})(?: {_VALUE})?\r\n((?:{_NAME}:{_VALUE}\r\n)*)\r\n")
_END = re.compile(rb"\n\r?\n")
_FOLD = re.compile(r"\r\n[ \t]+")
_LENGTHS = re.compile(r"([0-9]+)(?:[ \t]*,[ \t]*\1)*")
_KEEP_ALIVE = re.compile(r"(?:^|,)\s*(timeout|max)\s*=\s*\"?([0-9]{1,9})\"?\s*(?=,|$)", re.IGNORECASE)
_START: Final = b"HTTP/1."


@dataclass(frozen=True, slots=True)
class Head:
    """A response head that can be trusted: status, fields and how long its body is."""

    status: int
    fields: tuple[tuple[str, str], ...]
    """As received, names in lower case, values in Latin-1 (RFC 9110 5.5: bytes beyond ASCII are opaque)."""
    bodyless: bool
    """1xx, 204 and 304 have no body whatever their fields say (RFC 9112 6.3)."""
    length: int | None
    """Content-Length."""
    chunked: bool
    framing_ok: bool
    """False: nobody can tell where the body ends (RFC 9112 6.3), so none is read and the connection is dropped."""
    reusable: bool
    """The peer keeps the connection, and the framing leaves no doubt."""
    keep_alive_timeout: int | None
    """Seconds, from `Keep-Alive: timeout=N`."""
    keep_alive_max: int | None
    """Requests, from `Keep-Alive: max=N`."""


def starts_like_head(data: bytes | bytearray) -> bool:
    """Whether these first bytes can still become a status line: garbage is refused at once, not when a limit fires."""
    return data[:7] == _START[: len(data)]


def find_head_end(data: bytes | bytearray, start: int) -> int:
    """The offset behind the empty line that ends the head, or -1; `start` is where the search may begin."""
    match = _END.search(data, max(0, start))
    return -1 if match is None else match.end()


_cache: dict[bytes, Head] = {}


def known_head(raw: bytes) -> Head | None:
    """The head if these very bytes were read before. A cached head is whole, so no earlier empty line can hide in it."""
    return _cache.get(raw)


def parse_head(raw: bytes) -> Head | Reason:
    """The head, or the reason why it is none. `raw` ends with its empty line."""
    text = raw.decode("latin-1")
    match = _HEAD.fullmatch(text)
    forgiven = False
    if match is None:
        text = _normalised(text)
        match = _HEAD.fullmatch(text)
        forgiven = True
        if match is None:
            return Reason.RESPONSE_PROTOCOL_ERROR
    head = _read(match, forgiven)
    if len(raw) <= CACHED_HEAD_MAX and len(head.fields) <= CACHED_FIELDS_MAX:
        if len(_cache) >= CACHE_MAX:
            _cache.clear()
        _cache[raw] = head
    return head


def _normalised(text: str) -> str:
    """The same head with CRLF line ends and without folds. The first field line may not begin with a blank."""
    text = text.replace("\r\n", "\n").replace("\n", "\r\n")
    status_line, _, rest = text.partition("\r\n")
    if rest[:1] in (" ", "\t"):
        return ""
    *folded, last = _FOLD.split(rest)
    if folded and _folded_framing(rest):
        return ""
    # Blanks before the fold go by `rstrip`: a pattern that begins with them takes n² steps on a line of n blanks.
    return "\r\n".join((status_line, " ".join([*(part.rstrip(" \t") for part in folded), last])))


def _folded_framing(rest: str) -> bool:
    """A folded Content-Length or Transfer-Encoding is an attack, not an old server."""
    return re.search(r"(?im)^(?:content-length|transfer-encoding)[ \t]*:[^\r\n]*\r\n[ \t]", rest) is not None


def _read(match: re.Match[str], forgiven: bool) -> Head:
    status = int(match[2])
    # Split, not matched once more: a lazy value before optional blanks takes n² steps on a value of n blanks.
    lines = [line.partition(":") for line in match[3].split("\r\n")[:-1]]
    fields = tuple([(name.lower(), value.strip(" \t")) for name, _, value in lines])
    lengths: list[str] = []
    codings: list[str] = []
    connection = ""
    keep_alive = ""
    for name, value in fields:
        if name == "content-length":
            lengths.append(value)
        elif name == "transfer-encoding":
            codings.append(value)
        elif name == "connection":
            connection += "," + value.lower()
        elif name == "keep-alive":
            keep_alive += "," + value
    length, length_ok = _length(lengths)
    chunked, coding_ok = _chunked(codings)
    options = {option.strip(" \t") for option in connection.split(",")}
    stays = "close" not in options and (match[1] == "1" or "keep-alive" in options)
    timeout, limit = _keep_alive(keep_alive)
    bodyless = status < 200 or status in (204, 304)
    framing_ok = bodyless or (coding_ok and (length_ok or chunked))
    clear = not forgiven and coding_ok and length_ok and not (chunked and lengths) and not (chunked and match[1] == "0")
    if bodyless and (codings or (length and status != 304)):
        clear = False  # announced bytes that will not be read as a body may come all the same
    return Head(
        status=status,
        fields=fields,
        bodyless=bodyless,
        length=length,
        chunked=chunked,
        framing_ok=framing_ok,
        # 400 and 408 may be the answer to something else than our request (an idle timer, a broken earlier one).
        reusable=stays and clear and status not in (400, 408) and (bodyless or chunked or length is not None),
        keep_alive_timeout=timeout,
        keep_alive_max=limit,
    )


def _length(values: list[str]) -> tuple[int | None, bool]:
    """Content-Length and whether it is sound (RFC 9112 6.3: a list of identical numbers may pass)."""
    if not values:
        return None, True
    match = _LENGTHS.fullmatch(",".join(values))
    if match is None or len(match[1]) > LENGTH_DIGITS_MAX:
        return None, False
    return int(match[1]), True


def _chunked(values: list[str]) -> tuple[bool, bool]:
    """Whether the body is chunked, and whether the transfer codings are sound: chunked once, and last."""
    if not values:
        return False, True
    # Blank and tab only: `strip()` would make `chunked` of U+00A0 before or behind it, which other parsers do not.
    codings = [coding.strip(" \t").lower() for coding in ",".join(values).split(",")]
    sound = codings[-1] == "chunked" and codings.count("chunked") == 1
    return sound, sound


def _keep_alive(value: str) -> tuple[int | None, int | None]:
    timeout: int | None = None
    limit: int | None = None
    if value:
        for name, number in _KEEP_ALIVE.findall(value):
            if name.lower() == "timeout":
                timeout = int(number)
            else:
                limit = int(number)
    return timeout, limit
