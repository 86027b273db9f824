"""Hostile behaviours of the response: drips, lies about length, endless parts, and what is no HTTP.

Each is a coroutine over `Peer` that plays one connection; what they mean for an attempt stands beside them and is checked by
the tests. Listed by `hostile.BEHAVIOURS`.
"""

from __future__ import annotations

from typing import Final

from gatepost.testing.hostile_connections import DRIP, OK
from gatepost.testing.hostile_peer import Behaviour, Catalogue, Peer

CATALOGUE: Final = Catalogue()
BLOCK: Final = b"x" * 65_536


@CATALOGUE.add(
    "drip-head",
    "sends the response head one byte every `seconds`",
    "read_timeout · read · response_timeout",
    seconds=DRIP,
)
async def drip_head(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.drip(b"HTTP/1.1 200 OK\r\n" + b"X-Slow: " + b"x" * 1_000 + b"\r\nContent-Length: 0\r\n\r\n", seconds)


@CATALOGUE.add(
    "drip-body",
    "sends the head at once and the body one byte every `seconds`",
    "response · read · response_timeout: delivered, body fault timeout",
    seconds=DRIP,
)
async def drip_body(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
    await peer.drip(b"x" * 10_000, seconds)


@CATALOGUE.add(
    "long-content-length",
    "announces more body bytes than it sends, then closes",
    "response · read · response_incomplete: delivered, body fault incomplete",
)
async def long_content_length(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nok")
    await peer.fin()


@CATALOGUE.add(
    "long-content-length-open",
    "announces more body bytes than it sends and stays open",
    "response · read · response_timeout: delivered, body fault timeout",
)
async def long_content_length_open(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nok")
    await peer.drain()


@CATALOGUE.add(
    "endless-interim",
    "sends 103 heads for ever, at full speed",
    "transport_error · read · response_too_many_interim",
)
async def endless_interim(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    while True:
        await peer.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n")


@CATALOGUE.add(
    "slow-interim",
    "sends a 103 head every `seconds` and never a final one",
    "read_timeout · read · response_timeout",
    seconds=DRIP,
)
async def slow_interim(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    while True:
        await peer.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n")
        await peer.pause(seconds)


@CATALOGUE.add(
    "interim-then-silence",
    "sends 100 Continue and nothing more",
    "read_timeout · read · response_timeout",
)
async def interim_then_silence(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    await peer.drain()


@CATALOGUE.add(
    "interim",
    "sends 100, 100, 102 and 103 before its 200",
    "response · read · ok: delivered",
)
async def interim(peer: Peer, seconds: float) -> None:
    while True:
        await peer.read_request()
        for line in (b"100 Continue", b"100 Continue", b"102 Processing", b"103 Early Hints\r\nLink: </a.css>"):
            await peer.send(b"HTTP/1.1 " + line + b"\r\n\r\n")
        await peer.send(OK)


@CATALOGUE.add(
    "endless-headers",
    "sends response header lines for ever",
    "transport_error · read · response_headers_too_large",
)
async def endless_headers(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        await peer.send(b"X-More: and more\r\n" * 100)


@CATALOGUE.add(
    "endless-body",
    "sends a close-delimited body for ever, at full speed",
    "response · read · response_too_large: delivered, body fault too_large",
)
async def endless_body(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        await peer.send(BLOCK)


@CATALOGUE.add(
    "endless-chunks",
    "sends chunks for ever, at full speed",
    "response · read · response_too_large: delivered, body fault too_large",
)
async def endless_chunks(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        await peer.send(b"%x\r\n%b\r\n" % (len(BLOCK), BLOCK))


@CATALOGUE.add(
    "endless-trailers",
    "ends its chunks and then sends trailer lines for ever",
    "response · read · response_protocol_error: delivered, body fault protocol",
)
async def endless_trailers(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n")
    while True:
        await peer.send(b"X-More: and more\r\n" * 100)


@CATALOGUE.add(
    "banner",
    "greets with an SMTP line before any request byte",
    "transport_error · read · response_protocol_error",
)
async def banner(peer: Peer, seconds: float) -> None:
    await peer.send(b"220 mail.example ESMTP ready\r\n")
    await peer.drain()


@CATALOGUE.add(
    "garbage",
    "answers with bytes that are no HTTP",
    "transport_error · read · response_protocol_error",
)
async def garbage(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"\x00\xff\x16garbage\r\n\r\n" * 4)
    await peer.drain()


@CATALOGUE.add(
    "garbled-interim",
    "garbles an interim head, then sends a lawful 200",
    "transport_error · read · response_protocol_error: never resynchronised",
)
async def garbled_interim(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 10HTTP/1.1 100 Continue2\r\n\r\n" + OK)
    await peer.drain()


@CATALOGUE.add(
    "http-0.9",
    "answers with a bare body, without status line or headers",
    "transport_error · read · response_protocol_error",
)
async def http_0_9(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"<html>hello from 1991</html>\r\n")
    await peer.fin()


@CATALOGUE.add(
    "switching-protocols",
    "answers 101 and keeps the connection open",
    "transport_error · read · response_upgrade",
)
async def switching_protocols(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
    await peer.drain()


@CATALOGUE.add(
    "chunked-cut",
    "closes between two chunks",
    "response · read · response_incomplete: delivered, body fault incomplete",
)
async def chunked_cut(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
    await peer.fin()


@CATALOGUE.add(
    "bad-chunk",
    "sends a chunk size that is no number",
    "response · read · response_protocol_error: delivered, body fault protocol",
)
async def bad_chunk(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nnonsense\r\n")
    await peer.drain()


def answering(raw: bytes, *, close: bool = False) -> Behaviour:
    """A behaviour of one's own: every request is answered with the bytes `raw`; with `close` the connection then ends (FIN)."""

    async def run(peer: Peer, seconds: float) -> None:
        while True:
            await peer.read_request()
            await peer.pause_exactly(seconds)
            await peer.send(raw)
            if close:
                await peer.fin()
                return

    return Behaviour("answering", "answers the given bytes", "whatever they mean", run)
