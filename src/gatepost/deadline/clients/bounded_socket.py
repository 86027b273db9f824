"""A blocking socket whose every read and write ends with the call it serves.

A socket's own timeout starts anew with every byte received, so a peer that drips holds a reader for ever; this one sets the
timeout before each operation to what is left. It wraps plain and TLS sockets for `http.client` and urllib3, which ask no more
of a socket than is offered here.
"""

from __future__ import annotations

import io
import socket
from typing import Any, Final, NoReturn

from gatepost.deadline.clients.call import Call

BUFFER_SIZE: Final = 16_384
"""Bytes read ahead, as urllib3's block size: one TLS record."""


class BoundedSocket:
    """`sock`, kept within `call`; give it the next call with `serve` when the connection is used again.

    Raises `CallExceeded` when the call's time is up, `TimeoutError` when only the timeout set on the socket is. Attributes
    that are not here are those of `sock`.
    """

    def __init__(self, sock: socket.socket, call: Call) -> None:
        self._sock = sock
        self._call = call
        self._timeout = sock.gettimeout()
        self._files = 0
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def __repr__(self) -> str:
        return f"<BoundedSocket {self._call!r} {self._sock!r}>"

    def serve(self, call: Call) -> None:
        """Work for `call` from now on."""
        self._call = call

    def settimeout(self, seconds: float | None) -> None:
        """The limit of each single operation, beside the call's; None for no own limit."""
        self._timeout = seconds

    def gettimeout(self) -> float | None:
        """Seconds that the next operation may take: `ssl` asks before a handshake, which it bounds as a whole."""
        return self._call.seconds(self._timeout, "tls")

    def recv_into(self, buffer: Any, *args: int) -> int:
        """As `socket.recv_into`."""
        self._arm("read")
        try:
            return self._sock.recv_into(buffer, *args)
        except TimeoutError as error:
            self._raise("read", error)

    def recv(self, *args: int) -> bytes:
        """As `socket.recv`."""
        self._arm("read")
        try:
            return self._sock.recv(*args)
        except TimeoutError as error:
            self._raise("read", error)

    def send(self, data: Any, *args: int) -> int:
        """As `socket.send`."""
        self._arm("write")
        try:
            return self._sock.send(data, *args)
        except TimeoutError as error:
            self._raise("write", error)

    def sendall(self, data: Any, *args: int) -> None:
        """As `socket.sendall`; each piece the kernel takes may need the socket's timeout, all of them the call's."""
        with memoryview(data) as view, view.cast("B") as octets:
            sent = 0
            while sent < len(octets):
                sent += self.send(octets[sent:], *args)

    def makefile(self, mode: str = "r", buffering: int | None = None, **_text: Any) -> io.BufferedReader:
        """A binary reader; it keeps the socket open until it is closed itself, as the original's does."""
        if mode != "rb":
            raise ValueError(f"makefile({mode!r}): only 'rb' is offered; write with sendall")
        self._files += 1
        return io.BufferedReader(_Reader(self), buffering if buffering and buffering > 0 else BUFFER_SIZE)

    def close(self) -> None:
        """Close once the last reader has closed."""
        self._closed = True
        if self._files <= 0:
            self._sock.close()

    def file_closed(self) -> None:
        """A reader has closed."""
        self._files -= 1
        if self._closed:
            self.close()

    def _arm(self, where: str) -> None:
        self._sock.settimeout(self._call.seconds(self._timeout, where))

    def _raise(self, where: str, error: TimeoutError) -> NoReturn:
        if self._call.expired:
            raise self._call.exceeded(where) from error
        raise error


class _Reader(io.RawIOBase):
    """Reads from a bounded socket."""

    def __init__(self, sock: BoundedSocket) -> None:
        super().__init__()
        self._bounded: BoundedSocket | None = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        assert self._bounded is not None
        return self._bounded.recv_into(buffer)

    def fileno(self) -> int:
        assert self._bounded is not None
        return int(self._bounded.fileno())

    def close(self) -> None:
        super().close()
        sock, self._bounded = self._bounded, None
        if sock is not None:
            sock.file_closed()
