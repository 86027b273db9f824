"""Hostile behaviours of the connection itself: silence, stalls, closes and resets at every point, stale keep-alive, TLS.

Each is a coroutine over `Peer` that plays one connection; what they mean for an attempt stands beside them and is checked by
the tests. Listed by `hostile.BEHAVIOURS`.
"""

from __future__ import annotations

from typing import Final

from gatepost.testing.hostile_peer import Behaviour, Catalogue, Peer, TLSUse

CATALOGUE: Final = Catalogue()
OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HALF_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConte"
HALF_BODY: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"x" * 50
SMALL_RECEIVE_BUFFER: Final = 4_096
"""Bytes the kernel takes for a behaviour that never reads, so that a body of a few MB is enough to stop the sender."""
DRIP: Final = 1.0
"""Seconds between dripped bytes: slow enough to take minutes, quick enough to defeat any limit per read."""

_ALERT_FATAL: Final = b"\x15\x03\x03\x00\x02\x02"  # TLS record: alert, TLS 1.2 on the wire, two bytes, level fatal


async def _never(peer: Peer, seconds: float) -> None:
    raise AssertionError("a black hole accepts nothing")


BLACK_HOLE: Final = Behaviour(
    "black-hole",
    "never accepts and the backlog is full, so that a connect gets no answer",
    "connect_timeout · connect · connect_timeout",
    _never,
    accepts=False,
)


@CATALOGUE.add(
    "silence",
    "accepts, reads the request and never answers",
    "read_timeout · wait · wait_timeout",
)
async def silence(peer: Peer, seconds: float) -> None:
    while True:
        await peer.read_request()


@CATALOGUE.add(
    "never-reads",
    "accepts and never reads a byte; needs a body larger than the kernel's buffers",
    "write_timeout · write · write_timeout",
    receive_buffer=SMALL_RECEIVE_BUFFER,
)
async def never_reads(peer: Peer, seconds: float) -> None:
    await peer.hold()


@CATALOGUE.add(
    "slow-read",
    "reads 4 KiB of the request every `seconds`; needs a body larger than the kernel's buffers",
    "write_timeout · write · write_timeout: progress does not extend the limit",
    seconds=DRIP,
    receive_buffer=SMALL_RECEIVE_BUFFER,
)
async def slow_read(peer: Peer, seconds: float) -> None:
    while True:
        await peer.read_exactly(SMALL_RECEIVE_BUFFER)
        await peer.pause(seconds)


@CATALOGUE.add(
    "close-at-accept",
    "closes (FIN) as soon as the connection is accepted",
    "transport_error · wait · connection_closed, ambiguous: the request had been sent",
)
async def close_at_accept(peer: Peer, seconds: float) -> None:
    await peer.fin()


@CATALOGUE.add(
    "reset-at-accept",
    "resets as soon as the connection is accepted",
    "transport_error · write or wait · connection_reset",
)
async def reset_at_accept(peer: Peer, seconds: float) -> None:
    peer.rst()


@CATALOGUE.add(
    "close-before-response",
    "reads the request and closes without a byte",
    "transport_error · wait · connection_closed",
)
async def close_before_response(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.fin()


@CATALOGUE.add(
    "reset-before-response",
    "reads the request and resets without a byte",
    "transport_error · wait · connection_reset",
)
async def reset_before_response(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    peer.rst()


@CATALOGUE.add(
    "close-mid-request",
    "reads half of a large body and closes",
    "transport_error · write · connection_closed or connection_reset",
    receive_buffer=SMALL_RECEIVE_BUFFER,
)
async def close_mid_request(peer: Peer, seconds: float) -> None:
    request = await peer.read_request_head()
    await peer.read_exactly(request.length // 2)
    peer.close()


@CATALOGUE.add(
    "reset-mid-request",
    "reads half of a large body and resets",
    "transport_error · write · connection_reset",
    receive_buffer=SMALL_RECEIVE_BUFFER,
)
async def reset_mid_request(peer: Peer, seconds: float) -> None:
    request = await peer.read_request_head()
    await peer.read_exactly(request.length // 2)
    peer.rst()


@CATALOGUE.add(
    "close-mid-head",
    "closes in the middle of the response head",
    "transport_error · read · response_incomplete",
)
async def close_mid_head(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(HALF_HEAD)
    await peer.fin()


@CATALOGUE.add(
    "reset-mid-head",
    "resets in the middle of the response head",
    "transport_error · read · connection_reset",
    seconds=0.02,
)
async def reset_mid_head(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(HALF_HEAD)
    await peer.pause(seconds)  # else the reset may overtake what was sent
    peer.rst()


@CATALOGUE.add(
    "close-mid-body",
    "closes in the middle of the response body",
    "response · read · response_incomplete: delivered, body fault incomplete",
)
async def close_mid_body(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(HALF_BODY)
    await peer.fin()


@CATALOGUE.add(
    "reset-mid-body",
    "resets in the middle of the response body",
    "response · read · response_incomplete: delivered, body fault incomplete",
    seconds=0.02,
)
async def reset_mid_body(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(HALF_BODY)
    await peer.pause(seconds)
    peer.rst()


@CATALOGUE.add(
    "stale-close",
    "answers one request keep-alive and closes `seconds` after the answer, whatever arrives meanwhile",
    "response · read · ok: delivered, by one stale retry when the next request crossed the close",
)
async def stale_close(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(OK)
    await peer.pause_exactly(seconds)
    await peer.fin()


@CATALOGUE.add(
    "stale-reset",
    "answers one request keep-alive and resets `seconds` after the answer, whatever arrives meanwhile",
    "response · read · ok: delivered, by one stale retry when the next request crossed the reset",
)
async def stale_reset(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(OK)
    await peer.pause_exactly(seconds)
    peer.rst()


@CATALOGUE.add(
    "stale-close-on-request",
    "answers one request keep-alive and closes `seconds` after the next one has arrived whole",
    "response · read · ok: delivered, by one stale retry",
)
async def stale_close_on_request(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(OK)
    await peer.read_request()
    await peer.pause_exactly(seconds)
    await peer.fin()


@CATALOGUE.add(
    "stale-reset-on-request",
    "answers one request keep-alive and resets `seconds` after the next one has arrived whole",
    "response · read · ok: delivered, by one stale retry",
)
async def stale_reset_on_request(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(OK)
    await peer.read_request()
    await peer.pause_exactly(seconds)
    peer.rst()


@CATALOGUE.add(
    "close-after-204",
    "answers 204 keep-alive and closes in the same moment",
    "response · read · ok: delivered, and the connection is not used again",
)
async def close_after_204(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 204 No Content\r\nConnection: keep-alive\r\n\r\n")
    await peer.fin(close_notify=False)


@CATALOGUE.add(
    "tls-stall",
    "reads the ClientHello and never answers it",
    "connect_timeout · tls · tls_timeout",
    tls=TLSUse.RAW,
)
async def tls_stall(peer: Peer, seconds: float) -> None:
    await peer.drain()


@CATALOGUE.add(
    "tls-close",
    "closes after the ClientHello",
    "transport_error · tls · tls_connection_closed",
    tls=TLSUse.RAW,
)
async def tls_close(peer: Peer, seconds: float) -> None:
    await peer.receive()
    await peer.fin()


@CATALOGUE.add(
    "tls-reset",
    "resets after the ClientHello",
    "transport_error · tls · connection_reset",
    tls=TLSUse.RAW,
)
async def tls_reset(peer: Peer, seconds: float) -> None:
    await peer.receive()
    peer.rst()


@CATALOGUE.add(
    "tls-not-tls",
    "answers the ClientHello in plain HTTP, as a server on the wrong port does",
    "transport_error · tls · tls_not_tls",
    tls=TLSUse.RAW,
)
async def tls_not_tls(peer: Peer, seconds: float) -> None:
    await peer.receive()
    await peer.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await peer.fin()


@CATALOGUE.add(
    "tls-no-http1",
    "refuses the handshake because no application protocol suits it, as a peer with HTTP/2 only does",
    "transport_error · tls · tls_no_http1",
    tls=TLSUse.RAW,
)
async def tls_no_http1(peer: Peer, seconds: float) -> None:
    await peer.receive()
    await peer.send(_ALERT_FATAL + b"\x78")  # no_application_protocol (RFC 7301 section 3.2)
    await peer.fin()


@CATALOGUE.add(
    "tls-old-version",
    "refuses the handshake with the alert protocol_version",
    "transport_error · tls · tls_protocol_version",
    tls=TLSUse.RAW,
)
async def tls_old_version(peer: Peer, seconds: float) -> None:
    await peer.receive()
    await peer.send(_ALERT_FATAL + b"\x46")  # protocol_version (RFC 8446 section 6.2)
    await peer.fin()


@CATALOGUE.add(
    "tls-handshake-failure",
    "refuses the handshake with the alert handshake_failure",
    "transport_error · tls · tls_handshake_failure",
    tls=TLSUse.RAW,
)
async def tls_handshake_failure(peer: Peer, seconds: float) -> None:
    await peer.receive()
    await peer.send(_ALERT_FATAL + b"\x28")  # handshake_failure (RFC 8446 section 6.2)
    await peer.fin()


@CATALOGUE.add(
    "tls-bad-certificate",
    "serves the certificate given (wrong name, expired, self-signed …) and answers 200 to whoever accepts it",
    "transport_error · tls · tls_hostname_mismatch, tls_cert_expired, tls_cert_self_signed …",
    tls=TLSUse.REQUIRED,
)
async def tls_bad_certificate(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(OK)
    await peer.drain()


@CATALOGUE.add(
    "tls-no-shutdown",
    "answers `Connection: close` inside TLS, then ignores everything and leaves the connection open",
    "response · read · ok: delivered, and nothing waits for the shutdown",
    tls=TLSUse.REQUIRED,
)
async def tls_no_shutdown(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
    await peer.hold()
