"""Hostile behaviours that answer when nothing was asked: surplus bytes, second responses, answers before the request is whole.

Each is a coroutine over `Peer` that plays one connection; what they mean for an attempt stands beside them and is checked by
the tests. Listed by `hostile.BEHAVIOURS`.
"""

from __future__ import annotations

from typing import Final

from gatepost.testing.hostile_connections import OK, SMALL_RECEIVE_BUFFER
from gatepost.testing.hostile_peer import Catalogue, Peer

CATALOGUE: Final = Catalogue()
EARLY_413: Final = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 9\r\nConnection: close\r\n\r\ntoo large"


@CATALOGUE.add(
    "short-content-length",
    "sends more body bytes than it announces",
    "response · read · ok: delivered, and the connection is not used again",
)
async def short_content_length(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more")
    await peer.drain()


@CATALOGUE.add(
    "two-responses",
    "sends two responses for one request, in one write",
    "response · read · ok: delivered, and the connection is not used again",
)
async def two_responses(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    await peer.drain()


@CATALOGUE.add(
    "unsolicited-response",
    "sends a second response `seconds` after the first, on the idle connection",
    "response · read · ok: delivered, and the connection is not used again",
    seconds=0.01,
)
async def unsolicited_response(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(OK)
    await peer.pause_exactly(seconds)
    await peer.send(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await peer.drain()


@CATALOGUE.add(
    "early-200-on-reuse",
    "answers the second request of a connection 200 after its head, leaving a large body unread",
    "transport_error · write · response_unsolicited for the second request",
    receive_buffer=SMALL_RECEIVE_BUFFER,
)
async def early_200_on_reuse(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(OK)
    await peer.read_request_head()
    await peer.send(OK)
    await peer.hold()


@CATALOGUE.add(
    "early-200",
    "answers 200 after the head of the first request, leaving the body unread",
    "response · read · ok: delivered, and the connection is not used again",
    receive_buffer=SMALL_RECEIVE_BUFFER,
)
async def early_200(peer: Peer, seconds: float) -> None:
    await peer.read_request_head()
    await peer.send(OK)
    await peer.hold()


@CATALOGUE.add(
    "early-200-reset",
    "answers 200 after the head and resets without reading the body",
    "response · read · ok, or transport_error · write · connection_reset when the reset overtakes the answer",
    receive_buffer=SMALL_RECEIVE_BUFFER,
)
async def early_200_reset(peer: Peer, seconds: float) -> None:
    await peer.read_request_head()
    await peer.send(OK)
    peer.rst()


@CATALOGUE.add(
    "early-413-close",
    "answers 413 after the head and closes at once, which resets because the body is unread",
    "response · read · ok: status 413",
    receive_buffer=SMALL_RECEIVE_BUFFER,
)
async def early_413_close(peer: Peer, seconds: float) -> None:
    await peer.read_request_head()
    await peer.send(EARLY_413)
    peer.close()


@CATALOGUE.add(
    "early-413-drain",
    "answers 413 after the head, closes its direction and reads on",
    "response · read · ok: status 413",
    receive_buffer=SMALL_RECEIVE_BUFFER,
)
async def early_413_drain(peer: Peer, seconds: float) -> None:
    await peer.read_request_head()
    await peer.send(EARLY_413)
    await peer.fin()


@CATALOGUE.add(
    "early-413-open",
    "answers 413 after the head, reads no more and stays open",
    "response · read · ok: status 413, at once and not at the write limit",
    receive_buffer=SMALL_RECEIVE_BUFFER,
)
async def early_413_open(peer: Peer, seconds: float) -> None:
    await peer.read_request_head()
    await peer.send(EARLY_413)
    await peer.hold()


@CATALOGUE.add(
    "body-on-204",
    "sends bytes after a 204",
    "response · read · ok: delivered, and the connection is not used again",
)
async def body_on_204(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 204 No Content\r\n\r\nunexpected")
    await peer.drain()


@CATALOGUE.add(
    "body-on-304",
    "sends a 304 with a Content-Length and a body",
    "response · read · ok: status 304, and the connection is not used again",
)
async def body_on_304(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\nunexpected")
    await peer.drain()
