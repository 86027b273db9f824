"""Behaviours that are lawful and still need care: slow successes, refusals, redirects, chunked and close-delimited bodies.

Each is a coroutine over `Peer` that plays one connection and answers as many requests as come; what they mean for an attempt
stands beside them and is checked by the tests. Listed by `hostile.BEHAVIOURS`.
"""

from __future__ import annotations

from typing import Final

from gatepost.testing.hostile_connections import OK
from gatepost.testing.hostile_peer import Catalogue, Peer

CATALOGUE: Final = Catalogue()
_DELIVERED: Final = "response · read · ok: delivered"


@CATALOGUE.add("ok", "answers 200 and keeps the connection", f"{_DELIVERED}, connection used again")
async def ok(peer: Peer, seconds: float) -> None:
    await _answer_all(peer, OK)


@CATALOGUE.add("slow-ok", "answers 200 after `seconds`", _DELIVERED, seconds=2.0)
async def slow_ok(peer: Peer, seconds: float) -> None:
    while True:
        await peer.read_request()
        await peer.pause(seconds)
        await peer.send(OK)


@CATALOGUE.add("chunked", "answers 200 in chunks", f"{_DELIVERED}, connection used again")
async def chunked(peer: Peer, seconds: float) -> None:
    await _answer_all(
        peer, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;note=x\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    )


@CATALOGUE.add(
    "chunked-trailers",
    "answers 200 in chunks with trailers, one of them called Retry-After",
    f"{_DELIVERED}, connection used again, trailers ignored",
)
async def chunked_trailers(peer: Peer, seconds: float) -> None:
    await _answer_all(
        peer,
        b"HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nok\r\n0\r\nX-Sum: 1\r\nRetry-After: 9999\r\n\r\n",
    )


@CATALOGUE.add(
    "late-last-chunk",
    "sends its chunks at once and the last, empty one `seconds` later",
    f"{_DELIVERED}, connection used again",
    seconds=0.05,
)
async def late_last_chunk(peer: Peer, seconds: float) -> None:
    while True:
        await peer.read_request()
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
        await peer.pause(seconds)
        await peer.send(b"0\r\n\r\n")


@CATALOGUE.add(
    "close-delimited",
    "answers 200 with a body that ends with the connection",
    f"{_DELIVERED}, connection not used again",
)
async def close_delimited(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
    await peer.fin()


@CATALOGUE.add("http-1.0", "answers 200 in HTTP/1.0 and closes", f"{_DELIVERED}, connection not used again")
async def http_1_0(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok")
    await peer.fin()


@CATALOGUE.add(
    "keep-alive-timeout",
    "answers 200 with `Keep-Alive: timeout=N` (N = `seconds`) and closes N seconds after its last answer",
    f"{_DELIVERED}, connection used again only within N seconds",
    seconds=1.0,
)
async def keep_alive_timeout(peer: Peer, seconds: float) -> None:
    answer = b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=%d\r\nContent-Length: 2\r\n\r\nok" % int(seconds)
    await _answer_while_fresh(peer, answer, seconds)


@CATALOGUE.add(
    "idle-limit",
    "answers 200, announces nothing and closes `seconds` after its last answer",
    f"{_DELIVERED}, by one stale retry when the next request crossed the close",
    seconds=1.0,
)
async def idle_limit(peer: Peer, seconds: float) -> None:
    await _answer_while_fresh(peer, OK, seconds)


@CATALOGUE.add("gone", "answers 410", "response · read · ok: status 410, safe")
async def gone(peer: Peer, seconds: float) -> None:
    await _answer_all(peer, b"HTTP/1.1 410 Gone\r\nContent-Length: 4\r\n\r\ngone")


@CATALOGUE.add(
    "too-many-requests",
    "answers 429 with `Retry-After: N` (N = `seconds`)",
    "response · read · ok: status 429, safe",
    seconds=30.0,
)
async def too_many_requests(peer: Peer, seconds: float) -> None:
    await _answer_all(
        peer, b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: %d\r\nContent-Length: 4\r\n\r\nwait" % int(seconds)
    )


@CATALOGUE.add("unavailable", "answers 503", "response · read · ok: status 503, safe")
async def unavailable(peer: Peer, seconds: float) -> None:
    await _answer_all(peer, b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy")


@CATALOGUE.add("error", "answers 500 with a page of 4 KiB", "response · read · ok: status 500, ambiguous")
async def error(peer: Peer, seconds: float) -> None:
    await _answer_all(peer, b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4096\r\n\r\n" + b"x" * 4_096)


@CATALOGUE.add(
    "redirect-302",
    "redirects to /elsewhere with 302, which would turn the POST into a GET",
    "response · read · redirect_disabled: status 302, safe, not followed",
)
async def redirect_302(peer: Peer, seconds: float) -> None:
    await _redirect(peer, b"302 Found")


@CATALOGUE.add(
    "redirect-307",
    "redirects to /elsewhere with 307 and answers 200 there",
    "response · read · redirect_disabled: status 307, safe, not followed",
)
async def redirect_307(peer: Peer, seconds: float) -> None:
    await _redirect(peer, b"307 Temporary Redirect")


@CATALOGUE.add(
    "redirect-loop",
    "redirects every request to itself with 307, `seconds` after it arrived",
    "response · read · redirect_disabled: status 307, safe, not followed",
)
async def redirect_loop(peer: Peer, seconds: float) -> None:
    while True:
        await peer.read_request()
        await peer.pause(seconds)
        await peer.send(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /loop\r\nContent-Length: 0\r\n\r\n")


async def _answer_all(peer: Peer, answer: bytes) -> None:
    while True:
        await peer.read_request()
        await peer.send(answer)


async def _answer_while_fresh(peer: Peer, answer: bytes, seconds: float) -> None:
    await peer.read_request()
    await peer.send(answer)
    while await peer.readable_within(seconds):
        await peer.read_request()
        await peer.send(answer)
    await peer.fin()


async def _redirect(peer: Peer, status: bytes) -> None:
    while True:
        request = await peer.read_request()
        if request.head.startswith(b"POST /elsewhere "):
            await peer.send(OK)
        else:
            await peer.send(b"HTTP/1.1 %b\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n" % status)
