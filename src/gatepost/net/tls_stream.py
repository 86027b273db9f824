"""TLS over any byte pipe: `ssl.MemoryBIO` on both sides, so that every phase is visible and an idle connection takes 40 KiB.

It moves bytes and raises `ssl.SSLError`; `net.connection` owns the socket and `net.tls` names the failures.
"""

from __future__ import annotations

import ssl
from typing import Final

READ_SIZE: Final = 65_536
WRITE_SIZE: Final = 65_536
"""Plaintext encrypted at a time: bounds what a peer that never reads makes us hold."""


class TlsStream:
    """One TLS client session. `handshake` and `receive` take ciphertext; `outgoing` gives what must be sent."""

    __slots__ = ("_incoming", "_outgoing", "_session", "eof")

    def __init__(self, context: ssl.SSLContext, server_hostname: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        # No session is ever passed: resumption would skip the name check (CPython), and gains nothing here.
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        self.eof = False
        """The peer closed the session (close_notify)."""

    def handshake(self, data: bytes) -> bool:
        """Go on with the handshake; True when it is done. Raises `ssl.SSLError`."""
        if data:
            self._incoming.write(data)
        try:
            self._session.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def handshake_end(self) -> None:
        """The peer closed the pipe during the handshake: raises `ssl.SSLError`."""
        self._incoming.write_eof()
        self._session.do_handshake()

    def receive(self, data: bytes) -> bytes:
        """Plaintext in `data`, possibly none (a session ticket is no answer). Sets `eof`; raises `ssl.SSLError`."""
        self._incoming.write(data)
        read = self._session.read
        parts: list[bytes] = []
        try:
            while True:
                part = read(READ_SIZE)
                if not part:
                    self.eof = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.eof = True
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def encrypt(self, data: bytes | memoryview) -> bytes:
        """Ciphertext of `data`."""
        self._session.write(data)
        return self._outgoing.read()

    def outgoing(self) -> bytes:
        """Ciphertext that waits to be sent (handshake messages, alerts, key updates)."""
        return self._outgoing.read() if self._outgoing.pending else b""

    @property
    def alpn(self) -> str | None:
        """The protocol the peer chose, None when it chose none."""
        return self._session.selected_alpn_protocol()
