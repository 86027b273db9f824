"""One socket to one host: reads, writes and TLS on the loop's readers and writers, and nothing else.

It tells its user (a flight) or, when idle, its keeper (the pool) what happened; it decides nothing, has no limits of its own,
and never raises for the network. Its reader stays registered while it is idle, so that a FIN or stray bytes are seen at once.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
from typing import Final, Protocol

from gatepost.net.faults import stream_reason
from gatepost.net.tls import tls_reason
from gatepost.net.tls_socket import TlsSocket
from gatepost.net.tls_stream import WRITE_SIZE, TlsStream
from gatepost.wire.reasons import Reason

if sys.platform != "win32":
    import fcntl
    import termios

RECEIVE_SIZE: Final = 65_536
_RESET: Final = struct.pack("ii", 1, 0)
_NO_BYTES: Final = bytes(struct.calcsize("i"))


class ConnectionUser(Protocol):
    """Who a connection works for while it is leased."""

    def on_secure(self) -> None:
        """The TLS handshake is done."""
        ...

    def on_written(self) -> None:
        """The whole request has been handed to the kernel."""
        ...

    def on_write_failed(self, reason: Reason) -> None:
        """Writing failed; what the peer may have answered before is still to be read."""
        ...

    def on_data(self, data: bytes) -> None:
        """Response bytes."""
        ...

    def on_end(self, reason: Reason | None) -> None:
        """The peer sends no more: None for an orderly end, else why."""
        ...


class ConnectionKeeper(Protocol):
    """Who watches a connection while it is idle."""

    def on_idle_event(self, connection: Connection) -> None:
        """FIN, reset or bytes that nobody asked for: the connection is of no use any more."""
        ...


class Connection:
    """A connected socket. `usable_until` is the pool's business."""

    __slots__ = (
        "_handshaking",
        "_loop",
        "_reading",
        "_rest",
        "_sealed",
        "_sealed_plain",
        "_sock",
        "_stopped",
        "_tls",
        "_unfinished",
        "_writing",
        "address",
        "bytes_sent",
        "closed",
        "cut",
        "expires_at",
        "generation",
        "idle_since",
        "keeper",
        "opened_at",
        "peer",
        "policy_checked",
        "served_count",
        "usable_until",
        "user",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket | TlsSocket,
        address: str,
        port: int,
        keeper: ConnectionKeeper,
        now: float,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._tls: TlsStream | None = None
        self._handshaking = False
        self._reading = False
        self._writing = False
        self._rest: list[memoryview] = []
        """Request bytes not yet handed over; with TLS, not yet encrypted."""
        self._sealed = memoryview(b"")
        """Ciphertext not yet handed over."""
        self._sealed_plain = 0
        """Request bytes in it."""
        self._unfinished = False
        """A request was begun and not wholly handed over."""
        self._stopped = False
        """It never will be. What TLS says of itself may still empty the buffers, which must not look like a whole request."""
        self.address = address
        """The peer's address without the port."""
        self.peer = peer_text(address, port)
        """With it, as records show it."""
        self.keeper = keeper
        self.user: ConnectionUser | None = None
        self.opened_at = now
        self.idle_since = now
        self.usable_until = 0.0
        """Monotonic seconds; set whenever it becomes idle."""
        self.expires_at = 0.0
        """The end of its age; `expires_at` and `generation` are set by `Pool.adopt`."""
        self.generation = 0
        self.served_count = 0
        """Responses received on it."""
        self.bytes_sent = 0
        """Of the current request."""
        self.closed = False
        self.cut = False
        """The stream ended without TLS's own end (close_notify): a body that only the end delimits may be cut short by anybody."""
        self.policy_checked: object = None
        """The egress rules under which the address last passed."""

    # ----------------------------------------------------------------------------------------------- set-up

    def start_plain(self) -> None:
        """Begin to listen."""
        self._listen()

    def start_tls(self, context: ssl.SSLContext, server_hostname: str) -> None:
        """Begin the handshake; `on_secure` or `on_end` of the user follows."""
        self._tls = TlsStream(context, server_hostname)
        self._handshaking = True
        self._listen()
        self._handshake(b"")

    @property
    def alpn(self) -> str | None:
        """The application protocol that the peer chose."""
        return None if self._tls is None else self._tls.alpn

    def _listen(self) -> None:
        self._loop.add_reader(self._sock.fileno(), self._on_readable)
        self._reading = True

    def _handshake(self, data: bytes) -> None:
        tls = self._tls
        assert tls is not None
        try:
            done = tls.handshake(data)
        except ssl.SSLError as error:
            self._flush_alert(tls)
            self._end(tls_reason(error, data))
            return
        if not self._send_now(tls.outgoing()):
            return
        if done:
            self._handshaking = False
            if self.user is not None:
                self.user.on_secure()

    def _flush_alert(self, tls: TlsStream) -> None:
        """Tell the peer why, if it still listens."""
        try:
            self._sock.send(tls.outgoing())
        except OSError:
            pass

    # ---------------------------------------------------------------------------------------------- writing

    def write(self, head: bytes, body: bytes) -> None:
        """Send a request; `on_written` or `on_write_failed` of the user follows, possibly before this returns."""
        self.bytes_sent = 0
        self._unfinished = True
        self._stopped = False
        if len(body) <= WRITE_SIZE:
            data = head + body
            if self._tls is None:
                # The common case: one call, and everything is with the kernel.
                try:
                    sent = self._sock.send(data)
                except (BlockingIOError, InterruptedError):
                    sent = 0
                except OSError as error:
                    self._write_failed(error)
                    return
                self.bytes_sent = sent
                if sent == len(data):
                    self._unfinished = False
                    assert self.user is not None
                    self.user.on_written()
                    return
                self._rest = [memoryview(data)[sent:]]
            else:
                self._rest = [memoryview(data)]
        else:
            whole = memoryview(body)
            self._rest = [memoryview(head), *(whole[at : at + WRITE_SIZE] for at in range(0, len(body), WRITE_SIZE))]
        self._write_on()

    def stop_writing(self) -> None:
        """Drop what has not been written: the answer is already here. `on_written` will not follow."""
        self._rest = []
        self._stopped = True
        self._stop_writer()

    def _write_on(self) -> None:
        """Hand over as much as the kernel takes; a writer waits for the rest."""
        rest = self._rest
        try:
            while True:
                if self._sealed:
                    self._send_sealed()
                elif not rest:
                    break
                elif self._tls is not None:
                    piece = rest.pop(0)
                    self._sealed = memoryview(self._tls.encrypt(piece))
                    self._sealed_plain = len(piece)
                else:
                    sent = self._sock.send(rest[0])
                    self.bytes_sent += sent
                    if sent == len(rest[0]):
                        del rest[0]
                    else:
                        rest[0] = rest[0][sent:]
        except (BlockingIOError, InterruptedError):
            self._start_writer()
            return
        except ssl.SSLError as error:
            self.stop_writing()
            if self.user is not None:
                self.user.on_write_failed(tls_reason(error))
            return
        except OSError as error:
            self._write_failed(error)
            return
        self._stop_writer()
        if self._unfinished and not self._stopped:
            self._unfinished = False
            if self.user is not None:
                self.user.on_written()

    def _send_sealed(self) -> None:
        """Send ciphertext; the plaintext in it counts as sent with its last byte, all but the first byte of it."""
        sent = self._sock.send(self._sealed)
        plain = self._sealed_plain if sent == len(self._sealed) else min(sent, self._sealed_plain - 1)
        if plain > 0:
            self.bytes_sent += plain
            self._sealed_plain -= plain
        self._sealed = self._sealed[sent:]

    def _send_now(self, data: bytes) -> bool:
        """Send what TLS itself wants to say, behind ciphertext that waits. False when the connection failed."""
        if not data:
            return True
        try:
            sent = 0 if self._sealed else self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._end(stream_reason(error.errno))
            return False
        if sent < len(data):
            self._sealed = memoryview(bytes(self._sealed) + data[sent:])
            self._start_writer()
        return True

    def _write_failed(self, error: OSError) -> None:
        self.stop_writing()
        if self.user is not None:
            self.user.on_write_failed(stream_reason(error.errno))

    def _start_writer(self) -> None:
        if not self._writing:
            self._writing = True
            self._loop.add_writer(self._sock.fileno(), self._write_on)

    def _stop_writer(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock.fileno())

    # ---------------------------------------------------------------------------------------------- reading

    def read_now(self) -> None:
        """Take what has arrived without waiting for the loop to say so."""
        if not self.closed:
            self._on_readable()

    def still_idle(self, look: bool) -> bool:
        """Whether the next request may be written; False when it had to be closed. `look` costs a system call.

        Bytes that arrived since the loop last polled would be taken for the answer to what is written now, so whoever cannot
        say that it polled just now must `look`. A FIN is not looked for: it can only cost a stale retry.
        """
        tls = self._tls
        if tls is not None and (tls.eof or tls.fault is not None):
            self._end(None)
        elif look and _queued(self._sock, termios.FIONREAD) != _NO_BYTES:
            self._on_readable()
        return not self.closed

    def _on_readable(self) -> None:
        try:
            data = self._sock.recv(RECEIVE_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(stream_reason(error.errno))
            return
        if self._tls is not None:
            self._on_ciphertext(self._tls, data)
        elif self.user is None:
            self.keeper.on_idle_event(self)
        elif data:
            self.user.on_data(data)
        else:
            self._end(None)

    def _on_ciphertext(self, tls: TlsStream, data: bytes) -> None:
        if self._handshaking:
            if data:
                self._handshake(data)
                return
            try:
                tls.handshake_end()
            except ssl.SSLError as error:
                self._end(tls_reason(error))
            else:
                self._end(Reason.TLS_CONNECTION_CLOSED)
            return
        if not data:
            self.cut = not tls.eof
            self._end(None)
            return
        try:
            plain = tls.receive(data)
        except ssl.SSLError as error:
            self._end(tls_reason(error))
            return
        if self.user is None:
            if plain or tls.eof:
                self.keeper.on_idle_event(self)
                return
        elif plain:
            self.user.on_data(plain)
            if self.closed:
                return
        # Behind the plaintext: an answer that is here counts, also when the peer takes no more of ours.
        answer = tls.outgoing()
        if answer and not self._send_now(answer):
            return
        if tls.fault is not None:
            self._end(tls_reason(tls.fault, data))
        elif tls.eof:
            self._end(None)

    # -------------------------------------------------------------------------------------------------- end

    def _end(self, reason: Reason | None) -> None:
        """No more will come. The reader goes, since a closed socket would be readable for ever."""
        self._stop_reader()
        if self.user is None:
            self.keeper.on_idle_event(self)
        else:
            self.user.on_end(reason)

    def _stop_reader(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock.fileno())

    def close(self) -> None:
        """Close at once; repeating it does nothing.

        With bytes that the peer has not taken, it ends in a reset: half a request is of no use to it, and the kernel would
        keep megabytes, and the FIN behind them, for a peer that never reads.
        """
        if self.closed:
            return
        if self._unfinished or _queued(self._sock, termios.TIOCOUTQ) != _NO_BYTES:
            try:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            except OSError:  # the peer was faster
                pass
        self.closed = True
        self.user = None
        self._rest = []
        self._sealed = memoryview(b"")
        self._stop_writer()
        self._stop_reader()
        self._sock.close()


def peer_text(address: str, port: int) -> str:
    """Address and port as records show them."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _queued(sock: socket.socket | TlsSocket, queue: int) -> bytes:
    """Bytes in one of the kernel's queues of a socket, an int as the kernel writes it: FIONREAD is received and not read, TIOCOUTQ
    (the number of SIOCOUTQ) sent and not acknowledged. `_NO_BYTES` where the system cannot say.
    """
    try:
        return fcntl.ioctl(sock.fileno(), queue, _NO_BYTES)
    except OSError:
        return _NO_BYTES
