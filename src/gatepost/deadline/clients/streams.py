"""Blocking network streams for httpcore and httpcore2 that end each step with the call it works for.

httpcore applies a timeout to each read by itself, so a head that drips passes every one of them; here each step gets what is
left of the call, the look-up included, and all addresses share one connect limit. Used by the httpx transports beside it.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from gatepost.deadline.clients.call import Call, call_in_force
from gatepost.deadline.clients.dialling import dial


class BlockingStream:
    """A socket as httpcore's `NetworkStream`. `library` is the module httpcore or httpcore2."""

    def __init__(self, sock: socket.socket, library: ModuleType) -> None:
        self._sock = sock
        self._library = library

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next bytes, none at the end of the stream."""
        with _named(self._library, "Read"):
            self._arm(timeout, "read")
            return self._sock.recv(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """All of `buffer`."""
        with _named(self._library, "Write"), memoryview(buffer) as view:
            sent = 0
            while sent < len(view):
                self._arm(timeout, "write")
                sent += self._sock.send(view[sent:])

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> BlockingStream:
        """The stream inside TLS. The handshake as a whole has the tier's limit."""
        if isinstance(self._sock, ssl.SSLSocket):
            raise self._library.UnsupportedProtocol("TLS to a proxy reached by TLS: write the proxy's URL with http://")
        call = call_in_force()
        limit = timeout if call is None else call.tier.tls or call.tier.connect
        try:
            with _named(self._library, "Connect"):
                self._arm(limit, "tls")
                return BlockingStream(
                    ssl_context.wrap_socket(self._sock, server_hostname=server_hostname), self._library
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close at once."""
        self._sock.close()

    def get_extra_info(self, info: str) -> Any:
        """What httpcore and its users ask about a stream."""
        match info:
            case "socket":
                return self._sock
            case "ssl_object":
                # TLS facts (version, ALPN) are methods of the socket itself too.
                return self._sock if isinstance(self._sock, ssl.SSLSocket) else None
            case "client_addr":
                return self._sock.getsockname()
            case "server_addr":
                return self._sock.getpeername()
            case "is_readable":
                return _is_readable(self._sock)
            case _:
                return None

    def _arm(self, own: float | None, where: str) -> None:
        call = call_in_force()
        self._sock.settimeout(own if call is None else call.seconds(own, where))


class BlockingBackend:
    """httpcore's `NetworkBackend` over `dial`. Connects only for a call in force, as the transports always are."""

    def __init__(self, library: ModuleType, sleep: Any) -> None:
        self._library = library
        self._sleep = sleep

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[tuple[Any, ...]] | None = None,
    ) -> BlockingStream:
        """A connected stream."""
        call = _call_here()
        options = [*(socket_options or ()), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
        source = None if local_address is None else (local_address, 0)
        with _named(self._library, "Connect"):
            return BlockingStream(
                dial(call, host, port, seconds=timeout, source_address=source, options=options), self._library
            )

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[tuple[Any, ...]] | None = None
    ) -> BlockingStream:
        """A stream to a socket in the file system."""
        call = _call_here()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            for option in socket_options or ():
                sock.setsockopt(*option)
            with _named(self._library, "Connect"):
                sock.settimeout(call.seconds(call.tier.connect if timeout is None else timeout, "connect"))
                sock.connect(path)
        except BaseException:
            sock.close()
            raise
        return BlockingStream(sock, self._library)

    def sleep(self, seconds: float) -> None:
        """Between connect retries; raises at once when the time would be over by then."""
        call = _call_here()
        if seconds >= call.seconds(None, "connect"):
            raise call.exceeded("connect")
        self._sleep(seconds)


def _call_here() -> Call:
    call = call_in_force()
    assert call is not None
    return call


@contextmanager
def _named(library: ModuleType, step: str) -> Iterator[None]:
    """Raise what httpcore's own streams do (`ReadTimeout`, `ReadError` …), or `CallExceeded` when the call's time is up."""
    try:
        yield
    except TimeoutError as error:
        call = call_in_force()
        if call is not None and call.expired:
            raise call.exceeded(step.lower()) from error
        raise getattr(library, f"{step}Timeout")(str(error)) from error
    except OSError as error:
        raise getattr(library, f"{step}Error")(str(error)) from error


def _is_readable(sock: socket.socket) -> bool:
    if sock.fileno() < 0:
        return True  # closed: as good as a peer's end
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
