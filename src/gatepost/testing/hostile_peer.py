"""What a hostile behaviour is made of: one accepted connection as a `Peer`, and the `Behaviour` that plays on it.

`Peer` reads, writes, drips, closes and resets one raw socket, with TLS through memory buffers so that every fault is possible
under TLS too; it knows no behaviour. The `hostile_*` modules write behaviours with it, `hostile.HostileServer` runs them.
"""

from __future__ import annotations

import asyncio
import math
import select
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gatepost.clock import SYSTEM_CLOCK
from gatepost.testing.receiver_http import HEAD_BYTES_MAX, content_length

READ_SIZE: Final = 65_536
KEPT_BYTES_MAX: Final = 8_192
"""Bytes of each request kept for assertions; the rest is read and forgotten, or a test with 50 MB bodies would keep them all."""
WATCH_INTERVAL: Final = 0.02
"""Seconds between looks at a connection that is not being read: how late its end may be noticed."""
SPIN: Final = 0.002
"""Seconds before an exact moment at which sleeping turns into spinning: event loops round their timers to a millisecond."""


class PeerGone(ConnectionError):
    """The client closed while a behaviour still wanted bytes; ends the behaviour quietly."""


class TLSUse(StrEnum):
    """What a behaviour has to do with TLS."""

    OPTIONAL = "optional"  # plain, or inside TLS when the server has a context
    RAW = "raw"  # an https URL whose handshake the behaviour itself spoils: no context
    REQUIRED = "required"  # needs a context with a certificate


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One way of being a bad (or odd, or good) receiver."""

    name: str
    summary: str
    """What the server does."""
    expected: str
    """What an attempt against it comes to, as `outcome · phase · reason` and a remark, for the documentation."""
    run: Callable[[Peer, float], Awaitable[None]]
    """Plays one connection; the second argument is `seconds`. The connection is closed when it returns."""
    seconds: float = 0.0
    """Default of the one time a behaviour has: a delay, or the interval of a drip."""
    tls: TLSUse = TLSUse.OPTIONAL
    accepts: bool = True
    """False: connections are never accepted, and the backlog is full."""
    receive_buffer: int | None = None
    """Bytes of the kernel's receive buffer, when a small one matters."""


class Catalogue:
    """Collects behaviours in the order they are written."""

    def __init__(self) -> None:
        self.behaviours: list[Behaviour] = []

    def add(
        self,
        name: str,
        summary: str,
        expected: str,
        *,
        seconds: float = 0.0,
        tls: TLSUse = TLSUse.OPTIONAL,
        receive_buffer: int | None = None,
    ) -> Callable[[Callable[[Peer, float], Awaitable[None]]], Behaviour]:
        """Decorates the coroutine function that plays one connection."""

        def decorate(run: Callable[[Peer, float], Awaitable[None]]) -> Behaviour:
            behaviour = Behaviour(name, summary, expected, run, seconds, tls, receive_buffer=receive_buffer)
            self.behaviours.append(behaviour)
            return behaviour

        return decorate


@dataclass(slots=True)
class Request:
    """A request as far as it has been read."""

    head: bytes
    """Request line and headers with the blank line."""
    length: int
    """Body bytes announced."""
    body: bytes = b""
    """The first bytes of the body."""
    body_read: int = 0
    """Body bytes read so far."""


class Peer:
    """One accepted connection. Every reading method raises `PeerGone` at the client's end; writing to a closed client raises `OSError`."""

    def __init__(self, sock: socket.socket, record: Callable[[Request], None], context: ssl.SSLContext | None) -> None:
        self._sock = sock
        self._record = record
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self.bytes_seen = 0
        """Bytes read from the network, TLS records counted as such."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True) if context is not None else None

    async def handshake(self) -> None:
        """Shake hands, when the server has a TLS context; raises `ssl.SSLError` when the client refuses."""
        while self._tls is not None:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                self._incoming.write(await self.receive())
            except ssl.SSLError:
                await self._flush()  # the alert that says why
                raise
            else:
                await self._flush()
                return

    async def receive(self) -> bytes:
        """The next bytes from the network, undecrypted."""
        data = await self._loop.sock_recv(self._sock, READ_SIZE)
        if not data:
            raise PeerGone
        self.bytes_seen += len(data)
        return data

    async def read_some(self) -> bytes:
        """The next bytes of the conversation."""
        if self._buffer:
            data = bytes(self._buffer)
            self._buffer.clear()
            return data
        if self._tls is None:
            return await self.receive()
        while True:
            try:
                data = self._tls.read(READ_SIZE)
            except ssl.SSLWantReadError:
                await self._flush()
                self._incoming.write(await self.receive())
                continue
            except ssl.SSLZeroReturnError:
                raise PeerGone from None
            if not data:
                raise PeerGone
            return data

    async def read_exactly(self, size: int) -> bytes:
        """`size` bytes."""
        parts = bytearray()
        while len(parts) < size:
            parts += await self.read_some()
        self._buffer += parts[size:]
        return bytes(parts[:size])

    async def read_request_head(self) -> Request:
        """A request up to its blank line; the body stays unread."""
        head = bytearray()
        while (end := head.find(b"\r\n\r\n")) < 0:
            if len(head) > HEAD_BYTES_MAX:
                raise PeerGone
            head += await self.read_some()
        self._buffer[:0] = head[end + 4 :]
        found = bytes(head[: end + 4])
        request = Request(found, content_length(found.lower()) or 0)
        self._record(request)
        return request

    async def read_request(self) -> Request:
        """A whole request."""
        request = await self.read_request_head()
        await self.read_body(request)
        return request

    async def read_body(self, request: Request) -> None:
        """What is left of the body of `request`."""
        while request.body_read < request.length:
            data = await self.read_some()
            left = request.length - request.body_read
            self._buffer[:0] = data[left:]
            data = data[:left]
            request.body_read += len(data)
            request.body += data[: max(0, KEPT_BYTES_MAX - len(request.body))]

    async def drain(self) -> None:
        """Read and forget until the client closes."""
        try:
            while True:
                await self.read_some()
        except PeerGone:
            return

    async def send(self, data: bytes) -> None:
        """Send all of `data`; waits while the client does not read."""
        if self._tls is None:
            await self._loop.sock_sendall(self._sock, data)
        else:
            self._tls.write(data)
            await self._flush()
        await asyncio.sleep(0)  # an endless sender must let the client of the same loop run

    async def drip(self, data: bytes, interval: float) -> None:
        """Send `data` byte by byte, `interval` seconds apart."""
        for index in range(len(data)):
            await self.send(data[index : index + 1])
            await self.pause(interval)

    async def pause(self, seconds: float) -> None:
        """Wait without reading; raises `PeerGone` as soon as the client closes."""
        if await self._closed_within(seconds):
            raise PeerGone

    async def pause_exactly(self, seconds: float) -> None:
        """Wait without reading, to a fraction of a millisecond."""
        until = SYSTEM_CLOCK.monotonic() + seconds
        if seconds > SPIN:
            await asyncio.sleep(seconds - SPIN)
        while SYSTEM_CLOCK.monotonic() < until:  # noqa: ASYNC110  # timers of event loops are too coarse, see SPIN
            await asyncio.sleep(0)

    def readable_now(self) -> bool:
        """Whether bytes, or the client's end, are here already; reads nothing, and nobody else runs meanwhile."""
        if self._buffer or (self._tls is not None and self._tls.pending()):
            return True
        return bool(select.select([self._sock], [], [], 0)[0])

    async def readable_within(self, seconds: float) -> bool:
        """Whether bytes, or the client's end, arrive in time; reads nothing."""
        if self._buffer or (self._tls is not None and self._tls.pending()):
            return True
        arrived = asyncio.Event()
        self._loop.add_reader(self._sock, arrived.set)
        try:
            async with asyncio.timeout(seconds):
                await arrived.wait()
        except TimeoutError:
            return False
        finally:
            self._loop.remove_reader(self._sock)
        return True

    async def hold(self) -> None:
        """Do nothing, not even read, until the client closes."""
        await self._closed_within(math.inf)

    async def fin(self, *, close_notify: bool = True) -> None:
        """Close our direction (with TLS after a close alert), then read until the client closes too, so that no RST is sent."""
        if self._tls is not None and close_notify:
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass  # it wants the client's alert, which we do not need
            await self._flush()
        self._sock.shutdown(socket.SHUT_WR)
        self._tls = None
        await self.drain()

    def rst(self) -> None:
        """Reset the connection: what the client has not read may be lost."""
        # struct linger: on, zero seconds; closing then drops the connection with RST.
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def close(self) -> None:
        """Close at once; with unread bytes in the kernel's buffer the client gets a RST."""
        self._sock.close()

    async def _closed_within(self, seconds: float) -> bool:
        poll = select.poll()
        # Where the kernel does not tell of a half-close (macOS), a full close still shows as POLLHUP.
        poll.register(self._sock, getattr(select, "POLLRDHUP", 0))
        until = SYSTEM_CLOCK.monotonic() + seconds
        while not poll.poll(0):
            left = until - SYSTEM_CLOCK.monotonic()
            if left <= 0:
                return False
            await asyncio.sleep(min(left, WATCH_INTERVAL))
        return True

    async def _flush(self) -> None:
        while data := self._outgoing.read():
            await self._loop.sock_sendall(self._sock, data)
