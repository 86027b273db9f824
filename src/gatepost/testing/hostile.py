"""A receiver on loopback that misbehaves by name: every way in which an endpoint can keep a sender waiting or confused.

It listens, accepts and lets one behaviour play each connection; what an attempt against it should come to stands beside each
behaviour and is kept true by Gatepost's own tests. Used by those tests, by `gatepost hostile` and `gatepost demo`, and meant
for users' tests of any HTTP client.
"""

from __future__ import annotations

import asyncio
import difflib
import errno
import signal
import socket
import ssl
import sys
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import Final, Self

from gatepost.clock import SYSTEM_CLOCK
from gatepost.errors import ConfigurationError
from gatepost.testing import hostile_answers, hostile_connections, hostile_responses, hostile_surplus
from gatepost.testing.hostile_peer import WATCH_INTERVAL, Behaviour, Peer, PeerGone, Request, TLSUse
from gatepost.testing.hostile_responses import answering

__all__ = [
    "BEHAVIOURS",
    "Behaviour",
    "HostileServer",
    "Peer",
    "PeerGone",
    "Request",
    "TLSUse",
    "answering",
    "find_behaviour",
    "run_hostile",
    "serve_forever",
]

BEHAVIOURS: Final[Mapping[str, Behaviour]] = MappingProxyType(
    {
        behaviour.name: behaviour
        for behaviour in (
            hostile_connections.BLACK_HOLE,
            *hostile_connections.CATALOGUE.behaviours,
            *hostile_responses.CATALOGUE.behaviours,
            *hostile_surplus.CATALOGUE.behaviours,
            *hostile_answers.CATALOGUE.behaviours,
        )
    }
)
"""Every behaviour by name: those of the connection first, then of the response, then the lawful ones."""

LISTEN_BACKLOG: Final = 1_024
REQUESTS_KEPT: Final = 1_000
"""Requests remembered for assertions, the newest ones."""
FILLERS_MAX: Final = 16
"""Connects that fill the backlog of a black hole: Linux takes one or two for `listen(0)`, other kernels a few more."""
FILLER_PATIENCE: Final = 0.1
"""Seconds after which an unanswered connect on loopback proves the backlog full: an answered one takes microseconds."""


class HostileServer:
    """Listens while the `async with` block runs: `async with HostileServer("silence") as server: … server.url …`.

    `behaviour` is a name in `BEHAVIOURS` or a `Behaviour` of your own (see `answering`). `seconds` replaces the behaviour's
    own delay or interval. `tls_context` is a server-side context with a certificate: the behaviour then plays inside TLS.
    On exit everything is closed and no task is left. Raises `ConfigurationError` for an unknown name or missing certificate.
    """

    def __init__(
        self,
        behaviour: str | Behaviour,
        *,
        seconds: float | None = None,
        tls_context: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.behaviour = find_behaviour(behaviour) if isinstance(behaviour, str) else behaviour
        self.seconds = self.behaviour.seconds if seconds is None else seconds
        name = self.behaviour.name
        if self.seconds < 0:
            raise ConfigurationError(f"seconds={seconds}: write a time of 0 or more")
        if self.behaviour.tls is TLSUse.REQUIRED and tls_context is None:
            raise ConfigurationError(f"{name} plays inside TLS: pass tls_context= (or --tls CERT KEY)")
        if self.behaviour.tls is TLSUse.RAW and tls_context is not None:
            raise ConfigurationError(f"{name} spoils the handshake itself: leave tls_context out")
        self._context = tls_context
        self._host = host
        self._port = port
        self._listener: socket.socket | None = None
        self._fillers: list[socket.socket] = []
        self._retry: asyncio.TimerHandle | None = None
        self._open: dict[socket.socket, None] = {}
        self._players: set[asyncio.Task[None]] = set()
        self.connections = 0
        """Connections accepted so far."""
        self.requests: deque[Request] = deque(maxlen=REQUESTS_KEPT)
        """The newest requests, each as far as its behaviour read it."""
        self.request_count = 0
        self.bytes_seen = 0
        """Bytes read from all finished connections."""
        self.refused_handshakes = 0
        """TLS handshakes the client gave up."""

    def __repr__(self) -> str:
        return f"<HostileServer {self.behaviour.name} connections={self.connections} open={self.open_connections}>"

    @property
    def port(self) -> int:
        """The port listened on."""
        return self._port

    @property
    def url(self) -> str:
        """`scheme://host:port/`."""
        scheme = "http" if self._context is None and self.behaviour.tls is TLSUse.OPTIONAL else "https"
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{scheme}://{host}:{self._port}/"

    @property
    def open_connections(self) -> int:
        """Connections not yet closed on this side; it closes soon after the client does."""
        return len(self._open)

    async def __aenter__(self) -> Self:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._listener = listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self.behaviour.receive_buffer is not None:
                # Before listen(): accepted sockets inherit it, and the window is agreed in the handshake.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.behaviour.receive_buffer)
            listener.bind((self._host, self._port))
            listener.listen(LISTEN_BACKLOG if self.behaviour.accepts else 0)
            self._port = int(listener.getsockname()[1])
            if self.behaviour.accepts:
                asyncio.get_running_loop().add_reader(listener, self._accept, listener)
            else:
                await self._fill_backlog(family)
        except BaseException:
            self._close_sockets()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        players = tuple(self._players)
        self._close_sockets()
        for player in players:
            player.cancel()
        ends = await asyncio.gather(*players, return_exceptions=True)
        for sock in self._open:  # of players cancelled before their first step
            sock.close()
        self._open.clear()
        # A behaviour that failed in itself is a bug that must not look like a fault of the client.
        bugs = [end for end in ends if isinstance(end, Exception)]
        if bugs:
            raise ExceptionGroup(f"behaviour {self.behaviour.name} failed", bugs)

    async def wait_disconnected(self, timeout: float = 2.0) -> None:
        """Wait until the client has closed every connection; raises `TimeoutError` when it has not after `timeout` seconds."""
        until = SYSTEM_CLOCK.monotonic() + timeout
        while self.open_connections:
            if SYSTEM_CLOCK.monotonic() > until:
                raise TimeoutError(f"{self.open_connections} connections still open after {timeout} s")
            await asyncio.sleep(0.001)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            # The listener stays readable: look again when some connection may have ended.
            loop.remove_reader(listener)
            self._retry = loop.call_later(WATCH_INTERVAL, loop.add_reader, listener, self._accept, listener)
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connections += 1
        self._open[sock] = None
        player = loop.create_task(self._play(sock), name=repr(self))  # ended in __aexit__
        self._players.add(player)
        player.add_done_callback(self._forget_player)

    def _forget_player(self, player: asyncio.Task[None]) -> None:
        # One that failed stays, for __aexit__ to tell.
        if player.cancelled() or player.exception() is None:
            self._players.discard(player)

    async def _play(self, sock: socket.socket) -> None:
        peer = Peer(sock, self._record, self._context)
        try:
            try:
                await peer.handshake()
            except OSError:  # an alert (ssl.SSLError is an OSError), or the client closed without one
                self.refused_handshakes += 1
                return
            await self.behaviour.run(peer, self.seconds)
        except OSError:
            pass  # the client closed or reset: the end of most behaviours
        finally:
            peer.close()
            self.bytes_seen += peer.bytes_seen
            self._open.pop(sock, None)

    def _record(self, request: Request) -> None:
        self.request_count += 1
        self.requests.append(request)

    async def _fill_backlog(self, family: socket.AddressFamily) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(FILLERS_MAX):
            filler = socket.socket(family, socket.SOCK_STREAM)
            self._fillers.append(filler)
            filler.setblocking(False)
            try:
                async with asyncio.timeout(FILLER_PATIENCE):
                    await loop.sock_connect(filler, (self._host, self._port))
            except TimeoutError:
                return
        raise RuntimeError(
            f"this kernel answered {FILLERS_MAX} connects beyond a backlog of 0: no black hole to be had"
        )

    def _close_sockets(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for filler in self._fillers:
            filler.close()
        self._fillers.clear()


def find_behaviour(name: str) -> Behaviour:
    """The behaviour called `name` (underscores count as hyphens); raises `ConfigurationError` that names the nearest ones."""
    behaviour = BEHAVIOURS.get(name.replace("_", "-"))
    if behaviour is None:
        near = difflib.get_close_matches(name, BEHAVIOURS, cutoff=0.4) or sorted(BEHAVIOURS)
        raise ConfigurationError(f"there is no hostile behaviour {name!r}; write for example {', '.join(near)}")
    return behaviour


async def serve_forever(
    name: str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    seconds: float | None = None,
    tls_context: ssl.SSLContext | None = None,
    announce: Callable[[HostileServer], None] | None = None,
) -> None:
    """Serve one behaviour until cancelled; `announce` is called once it listens."""
    async with HostileServer(name, seconds=seconds, tls_context=tls_context, host=host, port=port) as server:
        if announce is not None:
            announce(server)
        await asyncio.Event().wait()


def run_hostile(
    name: str,
    port: int = 0,
    *,
    host: str = "127.0.0.1",
    seconds: float | None = None,
    tls: tuple[str, str] | None = None,
    announce: Callable[[HostileServer], None] | None = None,
) -> None:
    """Serve one behaviour until SIGINT or SIGTERM: the body of `gatepost hostile`.

    `tls` names two PEM files, certificate chain and key. Without `announce` the URL is written to standard output.
    """
    context = None
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        serving = asyncio.current_task()
        assert serving is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, serving.cancel)
        try:
            await serve_forever(
                name, host=host, port=port, seconds=seconds, tls_context=context, announce=announce or _write_url
            )
        except asyncio.CancelledError:
            pass  # the signal: this task is the whole program

    with asyncio.Runner() as runner:
        runner.run(run())


def _write_url(server: HostileServer) -> None:
    sys.stdout.write(f"{server.url}  {server.behaviour.name}: {server.behaviour.summary}\n")
    sys.stdout.flush()
