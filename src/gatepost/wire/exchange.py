"""One response, sans I/O: bytes in, facts out. The only file that knows the HTTP parser (llhttp by way of httptools).

Heads and Content-Length bodies are read here (see `wire.head`), chunked framing by llhttp. `ResponseReader` never raises for
what a peer sends and never waits; it says when a response is complete, what was wrong with it, and whether the connection
may serve again. `net.flight` feeds it.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

import httptools

from gatepost.wire.head import Head, find_head_end, known_head, parse_head, starts_like_head
from gatepost.wire.reasons import BodyFault, Reason

LEADING_LINES_MAX: Final = 8
"""Bytes of empty lines tolerated before a status line (RFC 9112 2.2 speaks of one for servers; some peers send a few)."""
FRAMING_PER_BODY_BYTE: Final = 16
"""Chunk framing tolerated per body byte, on top of `head_bytes_max`: one-byte chunks cost 6. Bounds endless trailers."""

SHOWN_MAX: Final = 64
"""Bytes kept of what is no head: a banner or an alert is recognised by them."""
PARTS_MAX: Final = 64
"""Pieces of a body held apart. Each takes 40 bytes beside its own: in chunks of two bytes a body would take twenty times its size."""

_EMPTY_LINES = re.compile(rb"(?:\r?\n)*")
_LAST_NEWLINES: Final = 4
"""Bytes of line ends at the end of a chunked response: of the last chunk or trailer, and of the empty line."""
_CHUNKED_HEAD: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class _State(Enum):
    HEAD = auto()
    LENGTH = auto()
    CHUNKED = auto()
    UNTIL_EOF = auto()
    DONE = auto()


_HEAD, _LENGTH, _CHUNKED, _UNTIL_EOF, _DONE = _State


class ResponseReader:
    """Reads one final response. After each `feed` or `end`, look at `done`.

    `fault` is set when no usable head came; with a head, `body_fault` says what was wrong behind it.
    """

    __slots__ = (
        "_body_max",
        "_chunk_parser",
        "_framing",
        "_head_bytes",
        "_head_max",
        "_interim_max",
        "_leading",
        "_newlines",
        "_parts",
        "_pending",
        "_state",
        "began",
        "body_bytes",
        "body_fault",
        "done",
        "fault",
        "head",
        "instead",
        "interim_count",
        "surplus",
    )

    def __init__(self, head_bytes_max: int, body_bytes_max: int, interim_max: int) -> None:
        self._head_max = head_bytes_max
        self._body_max = body_bytes_max
        self._interim_max = interim_max
        self._state = _HEAD
        self._pending: bytearray | None = None
        self._head_bytes = 0
        self._leading = 0
        self._newlines = 0
        self._parts: list[bytes] = []
        self._chunk_parser: httptools.HttpResponseParser | None = None
        self._framing = 0
        self.began = False
        """At least one response byte arrived, interim ones included."""
        self.done = False
        """Nothing more is wanted."""
        self.head: Head | None = None
        self.fault: Reason | None = None
        self.instead = b""
        """The first bytes of what came in place of a head."""
        self.body_fault: BodyFault | None = None
        self.body_bytes = 0
        self.interim_count = 0
        self.surplus = False
        """Bytes came behind the response."""

    @property
    def body(self) -> bytes:
        """The first body bytes, at most `body_bytes_max`."""
        parts = self._parts
        if not parts:
            return b""
        whole = parts[0] if len(parts) == 1 else b"".join(parts)
        return whole if len(whole) <= self._body_max else whole[: self._body_max]

    @property
    def final_began(self) -> bool:
        """Bytes of the final response arrived, not only interim ones."""
        return self.head is not None or self._pending is not None or self.fault is not None

    @property
    def reusable(self) -> bool:
        """The connection may serve another request as far as this response goes."""
        head = self.head
        return self.done and head is not None and head.reusable and self.body_fault is None and not self.surplus

    def feed(self, data: bytes) -> None:
        """Take the next bytes from the peer."""
        self.began = True
        state = self._state
        if state is _HEAD:
            rest = self._feed_head(data)
            while rest:  # behind an interim response; no recursion, there may be thousands in one segment
                rest = self._feed_head(rest)
        elif state is _LENGTH:
            self._feed_length(data)
        elif state is _CHUNKED:
            self._feed_chunked(data)
        elif state is _UNTIL_EOF:
            self._take(data)
        else:
            self.surplus = True

    def end(self, orderly: bool) -> None:
        """The peer sends no more; `orderly`: by FIN, which is how a body without a length ends."""
        if self.done:
            return
        if self._state is _HEAD:
            self._fail(Reason.RESPONSE_INCOMPLETE if self.began else Reason.CONNECTION_CLOSED)
        elif self._state is _UNTIL_EOF and orderly:
            self._finish(None)
        else:
            self._finish(BodyFault.INCOMPLETE)

    def time_out(self) -> None:
        """A limit fired behind the head."""
        if not self.done:
            self._finish(BodyFault.TIMEOUT)

    # ------------------------------------------------------------------------------------------------ heads

    def _feed_head(self, data: bytes) -> bytes:
        """Read one head, or less; returns what follows an interim one."""
        pending = self._pending
        if pending is not None:
            searched = len(pending)
            pending += data
            end = find_head_end(pending, searched - 3)
            if end < 0:
                return self._check_partial(pending)
            data = bytes(pending)
            self._pending = None
        else:
            end = data.find(b"\r\n\r\n") + 4
            head = known_head(data[:end])
            if head is not None and self._head_bytes + end <= self._head_max:
                return self._take_head(head, data, end)
            end = find_head_end(data, 0)
            if end < 0:
                self._pending = bytearray(data)
                return self._check_partial(self._pending)
        if data[0] in b"\r\n":
            return self._skip_empty_lines(data)
        if self._head_bytes + end > self._head_max:
            return self._fail(Reason.RESPONSE_HEADERS_TOO_LARGE)
        parsed = parse_head(data[:end])
        if isinstance(parsed, Reason):
            return self._fail(parsed, data)
        return self._take_head(parsed, data, end)

    def _take_head(self, head: Head, data: bytes, end: int) -> bytes:
        rest = data[end:] if end < len(data) else b""
        if head.status < 200:
            return self._interim(head, end, rest)
        self._final(head, rest)
        return b""

    def _check_partial(self, pending: bytearray) -> bytes:
        if self._head_bytes + len(pending) > self._head_max:
            return self._fail(Reason.RESPONSE_HEADERS_TOO_LARGE)
        if pending[0] in b"\r\n":
            if len(pending) > LEADING_LINES_MAX:
                self._pending = None
                return self._skip_empty_lines(bytes(pending))
        elif not starts_like_head(pending):
            return self._fail(Reason.RESPONSE_PROTOCOL_ERROR, bytes(pending))
        return b""

    def _skip_empty_lines(self, data: bytes) -> bytes:
        match = _EMPTY_LINES.match(data)
        skipped = 0 if match is None else match.end()
        self._leading += skipped
        self._head_bytes += skipped
        rest = data[skipped:]
        if self._leading > LEADING_LINES_MAX or (rest[:1] == b"\r" and len(rest) > 1):
            return self._fail(Reason.RESPONSE_PROTOCOL_ERROR, data)
        return rest

    def _interim(self, head: Head, size: int, rest: bytes) -> bytes:
        self._head_bytes += size
        if head.status == 101:
            return self._fail(Reason.RESPONSE_UPGRADE)
        self.interim_count += 1
        if self.interim_count > self._interim_max:
            return self._fail(Reason.RESPONSE_TOO_MANY_INTERIM)
        return rest

    def _final(self, head: Head, rest: bytes) -> None:
        self.head = head
        if head.bodyless or (head.length == 0 and not head.chunked):
            self._finish(None)
            self.surplus = bool(rest)
        elif not head.framing_ok:
            self._finish(BodyFault.PROTOCOL)
        elif head.chunked:
            self._state = _CHUNKED
            self._chunk_parser = httptools.HttpResponseParser(self)
            self._chunk_parser.feed_data(_CHUNKED_HEAD)
            if rest:
                self._feed_chunked(rest)
        elif head.length is not None:
            self._state = _LENGTH
            if rest:
                self._feed_length(rest)
        else:
            self._state = _UNTIL_EOF
            if rest:
                self._take(rest)

    # ----------------------------------------------------------------------------------------------- bodies

    def _feed_length(self, data: bytes) -> None:
        assert self.head is not None
        assert self.head.length is not None
        wanted = self.head.length - self.body_bytes
        size = len(data)
        if size > wanted:
            data = data[:wanted]
            self.surplus = True
        self._take(data)
        if size >= wanted and not self.done:
            self._finish(None)

    def _take(self, data: bytes) -> None:
        self.body_bytes += len(data)
        parts = self._parts
        parts.append(data)
        if len(parts) == PARTS_MAX:
            parts[:] = (b"".join(parts),)
        if self.body_bytes > self._body_max:
            self._finish(BodyFault.TOO_LARGE)

    def _feed_chunked(self, data: bytes) -> None:
        assert self._chunk_parser is not None
        before = self.body_bytes
        try:
            self._chunk_parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            # Behind a complete body this is surplus (a 101, for example), before it the framing is broken.
            if self.done:
                self.surplus = True
            else:
                self._finish(BodyFault.PROTOCOL)
        else:
            newlines = len(data) - len(data.rstrip(b"\r\n"))
            self._newlines = newlines + (self._newlines if newlines == len(data) else 0)
            self._framing += len(data) - (self.body_bytes - before)
            if self.done:
                # llhttp passes over line ends between messages in silence.
                self.surplus = self.surplus or self._newlines > _LAST_NEWLINES
            elif self._framing > self._head_max + FRAMING_PER_BODY_BYTE * self.body_bytes:
                self._finish(BodyFault.PROTOCOL)
        if self.done:
            self._chunk_parser = None  # it refers to us: without this only the garbage collector frees both

    def on_message_begin(self) -> None:
        """Called by llhttp; a second message is surplus."""
        if self.done:
            self.surplus = True

    def on_body(self, data: bytes) -> None:
        """Called by llhttp with the bytes of a chunk."""
        if not self.done:
            self._take(data)

    def on_message_complete(self) -> None:
        """Called by llhttp behind the last chunk and its trailers, which are read and dropped."""
        if not self.done:
            self._finish(None)

    # ------------------------------------------------------------------------------------------------- ends

    def _finish(self, fault: BodyFault | None) -> None:
        self._state = _DONE
        self.body_fault = fault
        self.done = True

    def _fail(self, reason: Reason, instead: bytes = b"") -> bytes:
        """No usable head; the first bytes of what came `instead` are kept, for whoever has to find out who answered."""
        self.instead = instead[:SHOWN_MAX]
        self._state = _DONE
        self._pending = None
        self.fault = reason
        self.done = True
        return b""
