"""TLS over any byte pipe: `ssl.MemoryBIO` on both sides, so that every phase is visible and an idle connection takes 40 KiB.

It moves bytes and raises `ssl.SSLError`; `net.connection` owns the socket and `net.tls` names the failures.
"""

from __future__ import annotations

import ssl
from typing import Final

READ_SIZE: Final = 65_536
WRITE_SIZE: Final = 65_536
"""Plaintext encrypted at a time: bounds what a peer that never reads makes us hold."""
FEED_SIZE: Final = 4_096
"""Ciphertext decrypted before the overhead is looked at."""
OVERHEAD_FREE: Final = 32_768
OVERHEAD_PER_BYTE: Final = 32
"""Bytes that may carry no plaintext: a record that is not whole yet (16 KiB), session tickets (up to 4 KiB each), and the frame
of one-byte records (23 each). A key update has 27 bytes and takes 45 µs and an answer of 27 bytes: a peer that sends nothing
else would hold the loop and fill our memory."""


class TlsStream:
    """One TLS client session. `handshake` and `receive` take ciphertext; `outgoing` gives what must be sent."""

    __slots__ = ("_credit", "_incoming", "_outgoing", "_session", "eof", "fault")

    def __init__(self, context: ssl.SSLContext, server_hostname: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        # No session is ever passed: resumption would skip the name check (CPython), and gains nothing here.
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        self.eof = False
        """The peer closed the session (close_notify)."""
        self.fault: ssl.SSLError | None = None
        """What ended the session behind plaintext that is good."""
        self._credit = OVERHEAD_FREE

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
        """Plaintext in `data`, possibly none (a session ticket is no answer). Sets `eof`; raises `ssl.SSLError`.

        When plaintext came before the error, it is returned and the error is kept in `fault`: an answer that is here counts.
        """
        parts: list[bytes] = []
        try:
            for at in range(0, len(data), FEED_SIZE):
                piece = data[at : at + FEED_SIZE]
                self._incoming.write(piece)
                size = self._read(parts)
                if self.eof:
                    break
                self._credit += size * OVERHEAD_PER_BYTE - len(piece)
                if self._credit < 0:
                    raise _too_much_overhead()
        except ssl.SSLError as error:
            if not parts:
                raise
            self.fault = error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read(self, parts: list[bytes]) -> int:
        """Append what can be decrypted; returns its size."""
        size = 0
        read = self._session.read
        try:
            while part := read(READ_SIZE):
                parts.append(part)
                size += len(part)
        except ssl.SSLWantReadError:
            return size
        except ssl.SSLZeroReturnError:
            pass
        self.eof = True
        return size

    def encrypt(self, data: bytes | memoryview) -> bytes:
        """Ciphertext of `data`."""
        self._session.write(data)
        return self._outgoing.read()

    def outgoing(self) -> bytes:
        """Ciphertext that waits to be sent (handshake messages, alerts, key updates)."""
        return self._outgoing.read() if self._outgoing.pending else b""

    @property
    def version(self) -> str | None:
        """The protocol's version, `TLSv1.3`."""
        return self._session.version()

    @property
    def cipher(self) -> str | None:
        """The cipher suite's name."""
        chosen = self._session.cipher()
        return None if chosen is None else chosen[0]

    @property
    def certificate(self) -> bytes | None:
        """The peer's certificate, verified, in DER; None before the handshake is done."""
        return self._session.getpeercert(binary_form=True)

    @property
    def alpn(self) -> str | None:
        """The protocol the peer chose, None when it chose none."""
        return self._session.selected_alpn_protocol()


def _too_much_overhead() -> ssl.SSLError:
    error = ssl.SSLError(ssl.SSL_ERROR_SSL, "the peer sends records without content")
    error.reason = "TOO_MANY_KEY_UPDATES"  # OpenSSL 1.1.1's own name, from when it had such a limit
    return error
