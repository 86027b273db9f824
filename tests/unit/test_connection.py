"""One connection over real sockets with tiny buffers: every byte goes out once and in order, and its user hears of it once."""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import trustme

from gatepost.net.connection import Connection
from gatepost.net.tls import TLSContexts, TLSProfile
from gatepost.wire.reasons import Reason

AUTHORITY = trustme.CA()
CONTEXT = TLSContexts().get(TLSProfile(ca_pem=AUTHORITY.cert_pem.bytes()))
NAME = "receiver.example"
HEAD = b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n"


class User:
    """Hears what a flight hears; `on` maps an event to something to do inside the callback."""

    def __init__(self, **on: Callable[[], None]) -> None:
        self.heard: list[str] = []
        self.data = b""
        self._on = on

    def _hear(self, event: str) -> None:
        self.heard.append(event)
        self._on.get(event.partition(" ")[0], lambda: None)()

    def on_secure(self) -> None:
        """The handshake is done."""
        self._hear("secure")

    def on_written(self) -> None:
        """The request is out."""
        self._hear("written")

    def on_write_failed(self, reason: Reason) -> None:
        """Writing failed."""
        self._hear(f"write_failed {reason}")

    def on_data(self, data: bytes) -> None:
        """An answer."""
        self.data += data
        self._hear("data")

    def on_end(self, reason: Reason | None) -> None:
        """The end."""
        self._hear(f"end {reason}")


class Keeper:
    """Hears of idle connections that moved, and closes them as the pool does."""

    def __init__(self) -> None:
        self.moved: list[Connection] = []

    def on_idle_event(self, connection: Connection) -> None:
        """Keep it."""
        self.moved.append(connection)
        connection.close()


class Peer:
    """The other end, read and written by hand, with TLS when it is given a context."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        self.sock = sock
        self.junk = 0
        """Bytes that come first and belong to nobody: they fill the client's buffers."""
        self.plain = b""
        self.secure = context is None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = None
        if context is not None:
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def read(self) -> int:
        """Take what has arrived; returns how much."""
        taken = 0
        with suppress(OSError):  # nothing there, or reset
            while data := self.sock.recv(1 << 20):
                taken += len(data)
                junk = min(self.junk, len(data))
                self.junk -= junk
                if self._tls is None:
                    self.plain += data[junk:]
                else:
                    self._incoming.write(data[junk:])
        if self._tls is not None:
            with suppress(ssl.SSLWantReadError):
                if not self.secure:
                    self._tls.do_handshake()
                    self.secure = True
                while part := self._tls.read(1 << 20):
                    self.plain += part
        return taken

    def say(self, data: bytes = b"") -> None:
        """Send `data`, and what TLS has to say."""
        if self._tls is None:
            self.sock.sendall(data)
            return
        if data:
            self._tls.write(data)
        self.sock.sendall(self._outgoing.read())


@asynccontextmanager
async def linked(user: User, *, tls: bool) -> AsyncIterator[tuple[Connection, Peer, Keeper, socket.socket]]:
    """A connection and its peer over loopback TCP with the smallest buffers there are."""
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        AUTHORITY.issue_cert(NAME).configure_cert(context)
    with socket.socket() as listener, socket.socket() as ours:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        ours.connect(listener.getsockname())
        theirs, _ = listener.accept()
        with theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keeper = Keeper()
            connection = Connection(asyncio.get_running_loop(), ours, "127.0.0.1", 80, keeper, 0.0)
            connection.user = user
            yield connection, Peer(theirs, context), keeper, ours
            connection.close()


def fill(sock: socket.socket) -> int:
    """Send junk until the buffers are full; returns how much."""
    sent = 0
    with suppress(BlockingIOError):
        while True:
            sent += sock.send(b"\0" * 1_000)
    return sent


async def until(done: Callable[[], bool], peer: Peer) -> None:
    """Let the loop run and the peer read until `done`."""
    async with asyncio.timeout(20.0):
        while not done():
            if not peer.read():
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)


async def secured(connection: Connection, peer: Peer, user: User) -> None:
    """Run the handshake to its end."""
    connection.start_tls(CONTEXT, NAME)
    async with asyncio.timeout(20.0):
        while "secure" not in user.heard or not peer.secure:
            peer.read()
            peer.say()
            await asyncio.sleep(0.001)
    peer.say()  # tickets


BODIES = [0, 1, 5_000, 65_536, 65_537, 400_000]


def body_of(size: int) -> bytes:
    """Bytes of which no two stretches are alike."""
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("size", BODIES)
async def test_a_request_goes_out_whole_and_is_told_once(tls: bool, size: int) -> None:
    """Through buffers of a few KiB, so that almost every write is a partial one."""
    user = User()
    async with linked(user, tls=tls) as (connection, peer, _, _):
        if tls:
            await secured(connection, peer, user)
        else:
            connection.start_plain()
        head, body = HEAD % size, body_of(size)
        connection.write(head, body)
        await until(lambda: "written" in user.heard and len(peer.plain) == len(head) + size, peer)
        assert hashlib.sha256(peer.plain).digest() == hashlib.sha256(head + body).digest()
        assert connection.bytes_sent == len(head) + size
        peer.say(b"answer")
        await until(lambda: user.data == b"answer", peer)
        assert user.heard == [*(["secure"] if tls else []), "written", "data"]


@pytest.mark.parametrize("size", BODIES)
async def test_a_request_follows_handshake_bytes_that_could_not_be_sent(size: int) -> None:
    """The client's last handshake message waits in our buffer when the request is written: overtaken, or counted as a part of
    the request, it would break the session or the account of what was sent."""
    user = User()
    async with linked(user, tls=True) as (connection, peer, _, ours):
        peer.junk = fill(ours)
        connection.start_tls(CONTEXT, NAME)  # the first message waits behind the junk
        await until(lambda: peer.junk == 0, peer)
        await until(lambda: peer._outgoing.pending > 0, peer)
        peer.junk = fill(ours)  # and so will the last one
        head, body = HEAD % size, body_of(size)

        def write() -> None:
            connection.write(head, body)
            assert connection.bytes_sent == 0, "nothing of the request has left"
            assert "written" not in user.heard

        user._on["secure"] = write
        peer.say()
        await asyncio.sleep(0.05)
        assert user.heard[0] == "secure"
        await until(lambda: "written" in user.heard and len(peer.plain) == len(head) + size, peer)
        assert peer.plain == head + body
        assert connection.bytes_sent == len(head) + size
        assert user.heard == ["secure", "written"]


async def test_no_request_byte_counts_before_a_whole_record_could_be_read() -> None:
    """Half a record cannot be decrypted: the receiver cannot have acted, and the attempt may say "safe"."""
    user = User()
    async with linked(user, tls=True) as (connection, peer, _, ours):
        await secured(connection, peer, user)
        peer.junk = fill(ours)
        connection.write(b"", b"x")
        assert connection.bytes_sent == 0
        await until(lambda: "written" in user.heard, peer)
        assert connection.bytes_sent == 1


async def test_after_stop_writing_nothing_is_told_and_nothing_more_is_sent() -> None:
    """Half a request must never look like a whole one: the connection would be kept, and the rest taken for the next request."""
    user = User()
    async with linked(user, tls=False) as (connection, peer, _, _):
        connection.start_plain()
        connection.write(HEAD % 400_000, bytes(400_000))
        connection.stop_writing()
        sent = connection.bytes_sent
        assert 0 < sent < 400_000
        await until(lambda: len(peer.plain) == sent, peer)
        await asyncio.sleep(0.02)
        peer.read()
        assert (connection.bytes_sent, len(peer.plain), user.heard) == (sent, sent, [])
        peer.say(b"413")
        await until(lambda: user.data == b"413", peer)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_an_answer_before_a_reset_is_read(tls: bool) -> None:
    """A 413 and then a reset: taken for a reset, the event would be sent again for days."""
    user = User()
    async with linked(user, tls=tls) as (connection, peer, _, _):
        if tls:
            await secured(connection, peer, user)
        else:
            connection.start_plain()
        user._on["write_failed"] = connection.read_now
        connection.write(HEAD % 400_000, bytes(400_000))
        peer.say(b"HTTP/1.1 413 X\r\n\r\n")
        peer.sock.shutdown(socket.SHUT_WR)
        await until(lambda: user.data != b"", peer)
        assert user.data == b"HTTP/1.1 413 X\r\n\r\n"
        await until(lambda: user.heard[-1].startswith("end"), peer)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("event", ["written", "data", "secure", "end"])
async def test_its_user_may_close_it_inside_any_callback(tls: bool, event: str) -> None:
    """A flight ends in the middle of a callback; nothing may be touched behind it."""
    errors: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    user = User()
    async with linked(user, tls=tls) as (connection, peer, keeper, _):
        user._on[event] = connection.close
        if tls:
            connection.start_tls(CONTEXT, NAME)
        else:
            connection.start_plain()
        for _ in range(30):
            peer.read()
            with suppress(OSError, ssl.SSLError):
                peer.say()
            if not connection.closed and (not tls or "secure" in user.heard) and "written" not in user.heard:
                connection.write(HEAD % 0, b"")
            if "written" in user.heard and not connection.closed:
                with suppress(OSError, ssl.SSLError):
                    peer.say(b"answer")
                if user.data:
                    with suppress(OSError):
                        peer.sock.shutdown(socket.SHUT_WR)
            await asyncio.sleep(0.001)
        if event == "secure" and not tls:
            return
        assert connection.closed
        assert user.heard[-1].partition(" ")[0] == event, "nothing is told behind it"
        assert not errors
        assert not keeper.moved
        connection.close()
        connection.read_now()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("what", ["bytes", "end"])
async def test_an_idle_connection_tells_its_keeper_once(tls: bool, what: str) -> None:
    """And a session ticket, which most TLS 1.3 servers send late, is neither."""
    user = User()
    async with linked(user, tls=tls) as (connection, peer, keeper, _):
        if tls:
            await secured(connection, peer, user)
        else:
            connection.start_plain()
        connection.user = None
        await asyncio.sleep(0.01)
        assert not keeper.moved, "tickets are no event"
        assert connection.still_idle(look=True)
        if what == "bytes":
            peer.say(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        else:
            peer.sock.shutdown(socket.SHUT_WR)
        await asyncio.sleep(0.01)
        assert keeper.moved == [connection]
        assert connection.closed
