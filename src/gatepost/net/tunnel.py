"""Opens a tunnel through the egress proxy on a connected socket: TLS to the proxy if it wants that, then one CONNECT.

It reports a socket that speaks to the receiver, or why there is none, always as a `proxy_*` reason: nothing that happens here
is the receiver's doing. It has no limits of its own; `net.flight` ends it by `cancel`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from gatepost.net.proxy import ProxyConfig
from gatepost.net.tls_socket import TlsSocket
from gatepost.net.tls_stream import TlsStream
from gatepost.wire.egress import Target
from gatepost.wire.head import find_head_end, parse_head
from gatepost.wire.reasons import Reason

HEAD_BYTES_MAX: Final = 16_384
"""Of the proxy's answer. Longer is no answer to a CONNECT."""
INTERIM_MAX: Final = 10
"""1xx answers before the final one."""
RECEIVE_SIZE: Final = 16_384

Opened = Callable[["socket.socket | TlsSocket"], None]
Failed = Callable[[Reason], None]


class Tunnel:
    """One attempt at a tunnel: calls `opened` or `failed` once, never from inside `__init__`. After `cancel` neither."""

    __slots__ = (
        "_context",
        "_failed",
        "_interim",
        "_loop",
        "_opened",
        "_pending",
        "_proxy",
        "_read",
        "_sock",
        "_stream",
        "_target",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        proxy: ProxyConfig,
        target: Target,
        context: ssl.SSLContext | None,
        opened: Opened,
        failed: Failed,
    ) -> None:
        self._loop = loop
        self._sock: socket.socket | None = sock
        self._proxy = proxy
        self._target = target
        self._context = context
        self._opened = opened
        self._failed = failed
        self._stream: TlsStream | TlsSocket | None = None
        self._pending = b""
        self._read = b""
        self._interim = 0

    def start(self) -> None:
        """Begin."""
        assert self._sock is not None
        self._loop.add_reader(self._sock.fileno(), self._on_readable)
        if self._context is not None:
            self._stream = TlsStream(self._context, self._proxy.host)
            self._handshake(b"")
        else:
            self._ask()

    def cancel(self) -> None:
        """Close the socket; repeating it does nothing."""
        sock = self._detach()
        if sock is not None:
            sock.close()

    def _handshake(self, data: bytes) -> None:
        stream = self._stream
        assert isinstance(stream, TlsStream)
        try:
            done = stream.handshake(data)
        except ssl.SSLError:
            self._fail(Reason.PROXY_TLS_FAILED)
            return
        self._send(stream.outgoing())
        if done and self._sock is not None:
            self._stream = TlsSocket(self._sock, stream)
            self._ask()

    def _ask(self) -> None:
        target = self._target
        host = f"[{target.host}]" if ":" in target.host else target.host
        lines = [f"CONNECT {host}:{target.port} HTTP/1.1", f"Host: {host}:{target.port}"]
        if self._proxy.authorization is not None:
            lines.append(f"Proxy-Authorization: {self._proxy.authorization}")
        request = "\r\n".join([*lines, "", ""]).encode("ascii")
        if isinstance(self._stream, TlsSocket):
            self._send(self._stream.stream.encrypt(request))
        else:
            self._send(request)

    def _send(self, data: bytes) -> None:
        """Hand over; what the kernel does not take at once (hardly ever) waits for the writer."""
        self._pending += data
        sock = self._sock
        if sock is None or not self._pending:
            return
        try:
            sent = sock.send(self._pending)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._fail(Reason.PROXY_CONNECT_FAILED)
            return
        self._pending = self._pending[sent:]
        if self._pending:
            self._loop.add_writer(sock.fileno(), self._send, b"")
        else:
            self._loop.remove_writer(sock.fileno())

    def _on_readable(self) -> None:
        sock = self._sock
        assert sock is not None
        try:
            source = self._stream if isinstance(self._stream, TlsSocket) else sock
            data = source.recv(RECEIVE_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._fail(Reason.PROXY_CLOSED)
            return
        if not data:
            self._fail(Reason.PROXY_TLS_FAILED if isinstance(self._stream, TlsStream) else Reason.PROXY_CLOSED)
        elif isinstance(self._stream, TlsStream):
            self._handshake(data)
        else:
            self._read += data
            self._on_answer()

    def _on_answer(self) -> None:
        while True:
            end = find_head_end(self._read, 0)
            if end < 0:
                if len(self._read) > HEAD_BYTES_MAX:
                    self._fail(Reason.PROXY_PROTOCOL_ERROR)
                return
            head = parse_head(self._read[:end])
            if isinstance(head, Reason):
                self._fail(Reason.PROXY_PROTOCOL_ERROR)
                return
            if head.status >= 200:
                break
            self._interim += 1
            self._read = self._read[end:]
            if self._interim > INTERIM_MAX or head.status == 101:
                self._fail(Reason.PROXY_PROTOCOL_ERROR)
                return
        if head.status >= 300:
            self._fail(_refusal(head.status))
        elif (
            len(self._read) > end
        ):  # the receiver does not speak first, so this is the proxy's, and would spoil the stream
            self._fail(Reason.PROXY_PROTOCOL_ERROR)
        else:  # a 2xx to CONNECT has no body, whatever its fields say (RFC 9110 section 9.3.6)
            secured = self._stream
            sock = self._detach()
            assert sock is not None
            self._opened(secured if isinstance(secured, TlsSocket) else sock)

    def _fail(self, reason: Reason) -> None:
        if self._sock is not None:
            self.cancel()
            self._failed(reason)

    def _detach(self) -> socket.socket | None:
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.remove_reader(sock.fileno())
            self._loop.remove_writer(sock.fileno())
        return sock


def _refusal(status: int) -> Reason:
    if status == 407:
        return Reason.PROXY_AUTH_REQUIRED
    if 400 <= status < 500:
        return Reason.PROXY_REFUSED
    if status in (502, 503, 504):
        return Reason.PROXY_UPSTREAM_FAILED
    return Reason.PROXY_FAILED
