"""Reads responses by our reader and by others, and names every difference: h11 always, aiohttp's parser when it is installed.

`tests/unit/test_differential.py` runs it against h11; `python -m bench.differential` runs more, and both. A difference is
allowed only when it has a row in `docs/explanation/engine.md`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import h11

from bench.fuzz import mutated, valid_response
from gatepost.wire.exchange import ResponseReader

LIMIT = 65_536


@dataclass(frozen=True)
class Reading:
    """What a parser made of the bytes and the end of the connection behind them."""

    status: int | None
    """None: refused, or no whole head."""
    body: bytes
    complete: bool
    """The body ended where its framing said."""
    reusable: bool
    """The parser would read another response on this connection."""


def ours(raw: bytes) -> Reading:
    """Our reader."""
    reader = ResponseReader(LIMIT, LIMIT, 100)
    if raw:
        reader.feed(raw)
    reusable = reader.reusable
    reader.end(orderly=True)
    head = reader.head
    if head is None:
        return Reading(None, b"", False, False)
    return Reading(head.status, reader.body, reader.body_fault is None, reusable)


def by_h11(raw: bytes) -> Reading:
    """h11 as a client that sent a POST."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=LIMIT)
    connection.send(h11.Request(method="POST", target="/", headers=[("Host", "a"), ("Content-Length", "0")]))
    connection.send(h11.EndOfMessage())
    status: int | None = None
    body = b""
    ended = False
    try:
        connection.receive_data(raw)
        for last in (False, True):
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    break
                if isinstance(event, h11.InformationalResponse):
                    if event.status_code == 101:
                        return Reading(None, b"", False, False)
                elif isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    ended = True
                    reusable = connection.their_state is h11.DONE and not connection.trailing_data[0]
                    return Reading(status, body, True, reusable and not last)
                else:
                    return Reading(status, body, ended, False)
            if not last:
                connection.receive_data(b"")
    except h11.RemoteProtocolError:
        return Reading(status, body, False, False)
    return Reading(status, body, ended, False)


@contextmanager
def aiohttp_reader() -> Iterator[Callable[[bytes], Reading]]:
    """aiohttp's response parser (llhttp too, with its own settings); raises `ImportError` when it is not installed."""
    from aiohttp.base_protocol import BaseProtocol
    from aiohttp.http_exceptions import HttpProcessingError
    from aiohttp.http_parser import HttpResponseParser
    from aiohttp.streams import EMPTY_PAYLOAD

    loop = asyncio.new_event_loop()

    def read(raw: bytes) -> Reading:
        async def run() -> Reading:
            parser = HttpResponseParser(
                BaseProtocol(loop), loop, LIMIT, max_line_size=LIMIT, max_headers=1_000, max_field_size=LIMIT,
                read_until_eof=True, auto_decompress=False,
            )  # fmt: skip
            try:
                messages, upgraded, rest = parser.feed_data(raw)
            except HttpProcessingError:
                return Reading(None, b"", False, False)
            messages = [
                (message, payload) for message, payload in messages if message.code >= 200 or message.code == 101
            ]
            if not messages:
                return Reading(None, b"", False, False)
            message, payload = messages[0]
            if message.code == 101:
                return Reading(None, b"", False, False)
            try:
                parser.feed_eof()
            except Exception:  # noqa: BLE001 - whatever it raises at the end of a connection, the payload knows
                pass
            clean = not rest and not upgraded and len(messages) == 1 and not message.should_close
            if payload is EMPTY_PAYLOAD:
                return Reading(message.code, b"", True, clean)
            body = b""
            if payload.exception() is None and payload.is_eof():
                body = await payload.read()
                return Reading(message.code, body, True, clean)
            body = payload.read_nowait()
            return Reading(message.code, body, False, False)

        return loop.run_until_complete(run())

    try:
        yield read
    finally:
        loop.close()


DIFFERENT: dict[str, str] = {
    "accepts doubtful-framing": "a head whose length nobody can tell: its status stands, no body is read",
    "accepts faulty-body": "a whole head before a body that breaks its framing: its status stands",
    "accepts empty-lines": "up to eight bytes of empty lines before a status line",
    "accepts blanks": "up to four blanks before the status code",
    "accepts long-status": "a status of 600 to 999: a failure like any that is unknown",
    "accepts bare-line-feed": "LF as a line end in a head",
    "accepts length-beside-coding": "Transfer-Encoding beside Content-Length: chunked counts",
    "accepts repeated-length": "the same Content-Length given twice",
    "accepts coding-in-1.0": "chunked in HTTP/1.0 is read as it says",
    "accepts obsolete-text": "bytes beyond ASCII in a value or reason, as Latin-1",
    "accepts folds": "a folded line outside the framing",
    "accepts missing-reason": "no reason phrase, with or without its blank",
    "accepts unknown-codings": "other codings before chunked: read in its frame and not decoded",
    "accepts interim": "a final response behind interim ones, whatever those say of framing, version or closing",
    "accepts surplus": "bytes behind a complete response: it counts",
    "refuses version": "any version but 1.0 and 1.1",
    "refuses control": "control characters in a head",
    "refuses bare-return": "a CR that ends no line",
    "refuses framing-fold": "a fold in Content-Length or Transfer-Encoding, or before the first field",
    "refuses switching": "101, an answer to nothing we asked",
    "refuses name": "a field name that is no token, a blank before the colon, a line without a colon",
    "refuses status-line": "a status line out of its form",
    "cuts chunk-lines": "chunk framing out of its form",
    "cuts until-eof": "a body whose length nobody can tell",
    "reuses 1.0-keep-alive": "an HTTP/1.0 connection that says keep-alive",
    "reuses coding-trailer": "a connection with a Transfer-Encoding among the trailers, which means nothing there",
}
"""Every difference allowed, with what we do. `docs/explanation/engine.md` has the reasons; a test compares the two."""

_VERSION = re.compile(rb"HTTP/(?!1\.[01])[0-9]+(?:\.[0-9]+)? ")
_STATUS_LINE = re.compile(rb"(?:\r?\n)*HTTP/1\.[01] [1-9][0-9]{2}(?: [\t\x20-\x7e\x80-\xff]*)?\r?\n")


def difference(raw: bytes, us: Reading, them: Reading) -> str | None:
    """The name of a difference (a key of `DIFFERENT`, or beginning with "unexplained"), or None.

    Reuse is compared one way: we must never reuse what the other would not.
    """
    if us.status != them.status:
        if us.status is None:
            return f"refuses {_why_refused(raw)}"
        return f"accepts {_why_accepted(raw, us)}"
    if us.status is None:
        return None
    if us.reusable and not them.reusable:
        if b"HTTP/1.0 " in raw:
            return "reuses 1.0-keep-alive"
        trailers = raw.lower().rpartition(b"\r\n0\r\n")[2]
        return "reuses coding-trailer" if b"transfer-encoding:" in trailers else "unexplained reuse"
    if us.reusable and (us.complete, us.body) != (them.complete, them.body):
        return "unexplained body"
    if us.complete != them.complete or us.body != them.body:
        # Neither of these connections serves again: what differs is how much of a doubtful body is shown to people.
        return "cuts chunk-lines" if b"chunked" in raw.lower() else "cuts until-eof"
    return None


def _why_refused(raw: bytes) -> str:
    head = raw.partition(b"\r\n\r\n")[0]
    if _VERSION.search(head):
        return "version"
    if any((byte < 32 and byte not in b"\r\n\t") or byte == 127 for byte in raw):
        return "control"
    if b"\r" in raw.replace(b"\r\n", b""):
        return "bare-return"
    if re.search(rb"(?i)(?:content-length|transfer-encoding)[ \t]*:[^\r\n]*\r?\n[ \t]", raw) or re.search(
        rb"HTTP/[^\n]*\n[ \t]", raw
    ):
        return "framing-fold"
    if b" 101" in raw:
        return "switching"
    if not _STATUS_LINE.match(raw):
        return "status-line"
    return "name"


def _why_accepted(raw: bytes, us: Reading) -> str:
    reader = ResponseReader(LIMIT, LIMIT, 100)
    reader.feed(raw)
    head = reader.head
    assert head is not None
    if not head.framing_ok:
        return "doubtful-framing"
    if not us.complete:
        return "faulty-body"
    final = raw[raw.rfind(b"HTTP/1.", 0, raw.find(b"%d" % head.status)) :]
    fields = [name for name, _ in head.fields]
    if raw[:1] in (b"\r", b"\n") or re.search(rb"\r?\n\r?\n(?:\r?\n)+HTTP/", raw):
        return "empty-lines"
    if re.search(rb"HTTP/1\.[01] {2,4}", raw):
        return "blanks"
    if head.status >= 600:
        return "long-status"
    if "transfer-encoding" in fields and "content-length" in fields:
        return "length-beside-coding"
    if b"\n" in raw.replace(b"\r\n", b""):
        return "bare-line-feed"
    if fields.count("content-length") > 1:
        return "repeated-length"
    if head.chunked and final.startswith(b"HTTP/1.0"):
        return "coding-in-1.0"
    if re.search(rb"\r\n[ \t]", raw):
        return "folds"
    if re.search(rb"HTTP/1\.[01] +[0-9]{3}\r\n", raw):
        return "missing-reason"
    if any(byte > 126 for byte in raw):
        return "obsolete-text"
    if (
        head.chunked
        and ",".join(value for name, value in head.fields if name == "transfer-encoding").lower() != "chunked"
    ):
        return "unknown-codings"
    if reader.interim_count:
        return "interim"
    if not us.reusable:
        return "surplus"
    return "unexplained"


def compare(count: int, seed: int, other: Callable[[bytes], Reading]) -> tuple[Counter[str], dict[str, bytes]]:
    """Differences over `count` mutated responses: how often each name, and an example of it."""
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    examples: dict[str, bytes] = {}
    for number in range(count):
        raw = mutated(rng, valid_response(rng, f"d{number}"))
        name = difference(raw, ours(raw), other(raw))
        if name is not None:
            found[name] += 1
            examples.setdefault(name, raw)
    return found, examples


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the differences by name, with an example of each."""
    parser = argparse.ArgumentParser(prog="python -m bench.differential", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    others: dict[str, Callable[[bytes], Reading]] = {"h11": by_h11}
    with ExitStack() as stack:
        try:
            others["aiohttp"] = stack.enter_context(aiohttp_reader())
        except ImportError:
            sys.stdout.write("aiohttp is not installed (it is in the group bench): compared with h11 only\n")
        for name, read in others.items():
            found, examples = compare(chosen.count, chosen.seed, read)
            sys.stdout.write(f"\n{name}: {found.total():,} differences in {chosen.count:,} responses\n")
            for what, times in found.most_common():
                sys.stdout.write(f"{times:>8,}  {what}\n          {examples[what][:200]!r}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
