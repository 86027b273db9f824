"""A socket inside TLS, with the calls that `net.connection` makes on a socket: for a receiver behind an https proxy.

Non-blocking like the socket it holds; decides nothing. Everything decrypted is handed out by the `recv` that decrypted it, so
that the kernel's readability tells the whole truth.
"""

from __future__ import annotations

import errno
import socket
import ssl

from gatepost.net.tls_stream import TlsStream


class TlsSocket:
    """`send`, `recv` and the rest, through `stream`."""

    __slots__ = ("_committed", "_sealed", "_sock", "stream")

    def __init__(self, sock: socket.socket, stream: TlsStream) -> None:
        self._sock = sock
        self.stream = stream
        self._sealed = b""
        """Ciphertext that the kernel has not taken."""
        self._committed = 0
        """Bytes at the start of the caller's data that are in it: he comes back with the same data."""

    def fileno(self) -> int:
        """The kernel's number."""
        return self._sock.fileno()

    def setsockopt(self, level: int, option: int, value: bytes | int) -> None:
        """As of the socket."""
        self._sock.setsockopt(level, option, value)

    def close(self) -> None:
        """Close without a farewell: the tunnel has ended by itself, or is worth nothing."""
        self._sock.close()

    def send(self, data: bytes | memoryview) -> int:
        """How much was taken. As soon as a byte may have left, at least one counts as sent. Raises `BlockingIOError`."""
        if not self._committed:
            self._flush()
            if self._sealed:  # something of TLS's own
                raise BlockingIOError
            self._sealed = self.stream.encrypt(data)
            self._committed = len(data)
            whole = len(self._sealed)
            self._flush()
            if self._sealed:
                if len(self._sealed) == whole or self._committed == 1:
                    raise BlockingIOError
                self._committed -= 1
                return 1
        else:
            self._flush()
            if self._sealed:
                raise BlockingIOError
        taken, self._committed = self._committed, 0
        return taken

    def recv(self, _size: int) -> bytes:
        """What could be decrypted; b"" at the end. Raises `BlockingIOError` when nothing could, `OSError` for a broken stream."""
        data = self._sock.recv(_size)
        if not data:
            return b""
        plain = self.stream.receive(data)
        own = self.stream.outgoing()
        if own:
            self._sealed += own
            self._flush()
        if plain:
            return plain
        if self.stream.fault is not None:
            raise ConnectionResetError(errno.ECONNRESET, "the TLS session to the proxy broke")
        if self.stream.eof:
            return b""
        raise BlockingIOError

    def _flush(self) -> None:
        if self._sealed:
            try:
                sent = self._sock.send(self._sealed)
            except (BlockingIOError, InterruptedError, ssl.SSLWantWriteError):
                return
            self._sealed = self._sealed[sent:]
