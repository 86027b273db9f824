"""One TLS handshake for looking: verified like any other, and seen from outside, so that a certificate that is refused can be shown.

Up to TLS 1.2 a peer's chain travels in the clear, so it is read from the bytes that came while the handshake itself refuses it;
no context that trusts everybody is needed, and nothing is ever sent behind the handshake. Called by `endpoint`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

from gatepost.clock import Clock
from gatepost.net.faults import stream_reason
from gatepost.net.tls import TLSContexts, TLSProfile, tls_reason
from gatepost.net.tls_stream import TlsStream
from gatepost.service.doctor.certificates import CertificateFacts, chain_in, read_certificate
from gatepost.service.doctor.endpoint_facts import TlsFacts
from gatepost.wire.reasons import Reason

RECEIVE_SIZE: Final = 65_536
HANDSHAKE_BYTES_MAX: Final = 1 << 20
"""A peer that sends more than that for a handshake is not looked at any longer."""
OFFERED: Final = ("h2", "http/1.1")
"""Both, to learn what the peer prefers; deliveries offer http/1.1 only."""


async def shake_hands(
    sock: socket.socket,
    sni: str,
    profile: TLSProfile | None,
    patience: float,
    clock: Clock,
    *,
    in_the_clear: bool = False,
) -> TlsFacts:
    """Make the handshake on a connected socket, which is closed. `in_the_clear`: TLS 1.2 at most, so that the chain can be read.

    Raises `ConfigurationError` for a profile that cannot be read.
    """
    context = await asyncio.to_thread(_context, profile, in_the_clear)
    stream = TlsStream(context, sni)
    seen = bytearray()
    began = clock.monotonic()
    reason = Reason.OK
    try:
        async with asyncio.timeout(patience):
            reason = await _run(sock, stream, seen)
    except TimeoutError:
        reason = Reason.TLS_TIMEOUT
    finally:
        sock.close()
    elapsed = clock.monotonic() - began
    done = reason is Reason.OK
    return TlsFacts(
        reason=reason.value,
        seconds=round(elapsed, 6),
        version=stream.version if done else None,
        cipher=stream.cipher if done else None,
        alpn=stream.alpn if done else None,
        chain=_chain(stream, bytes(seen), done, clock.wall_us() / 1e6),
    )


def _context(profile: TLSProfile | None, in_the_clear: bool) -> ssl.SSLContext:
    context = TLSContexts().get(profile)  # of our own: it is changed
    context.set_alpn_protocols(list(OFFERED))
    if in_the_clear:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


async def _run(sock: socket.socket, stream: TlsStream, seen: bytearray) -> Reason:
    loop = asyncio.get_running_loop()
    data = b""
    try:
        while True:
            try:
                done = stream.handshake(data)
            except ssl.SSLError as error:
                return tls_reason(error, data)
            outgoing = stream.outgoing()
            if outgoing:
                await loop.sock_sendall(sock, outgoing)
            if done:
                return Reason.OK
            data = await loop.sock_recv(sock, RECEIVE_SIZE)
            if not data:
                return _cut_off(stream)
            seen += data
            if len(seen) > HANDSHAKE_BYTES_MAX:
                return Reason.TLS_HANDSHAKE_FAILURE
    except OSError as error:
        return stream_reason(error.errno)


def _cut_off(stream: TlsStream) -> Reason:
    try:
        stream.handshake_end()
    except ssl.SSLError as error:
        return tls_reason(error)
    return Reason.TLS_CONNECTION_CLOSED


def _chain(stream: TlsStream, seen: bytes, done: bool, now: float) -> tuple[CertificateFacts, ...]:
    raw = chain_in(seen)
    if not raw and done and (own := stream.certificate) is not None:
        raw = (own,)
    return tuple(facts for der in raw if (facts := read_certificate(der, now)) is not None)
