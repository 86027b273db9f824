"""A fast webhook receiver on loopback: the good endpoint of tests, demo and benchmarks, with a ledger by `webhook-id`.

It answers by path, counts, and can verify signatures; it is no example of how to write a receiver (it stores nothing and
trusts its neighbours). Used in-process (`async with Receiver() as receiver`) or as a process of its own
(`python -m gatepost.testing.receiver`, see `receiver_process`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import ssl
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gatepost.clock import SYSTEM_CLOCK
from gatepost.errors import ConfigurationError
from gatepost.testing.receiver_http import Connection, Route, Routes, Verifier, build_response
from gatepost.testing.receiver_ledger import FLUSH_INTERVAL, Ledger, ReceivedRequest, ReceiverStatistics

LISTEN_BACKLOG: Final = 1_024
"""Connections that may wait to be accepted: a load test opens hundreds at once, and a dropped SYN would cost it a second."""


class Receiver:
    """Listens while the `async with` block runs.

    Paths: `/status/503` · `/slow/0.25` (seconds) and `/slow/0.25/503` · `/flaky/2/503` (each webhook-id fails twice, then
    200) · `/retry-after/30` and `/retry-after/30/429` · `/bytes/4096` · `/close` (answers with `Connection: close`) · every
    other path, such as `/ok` and `/e/17`, answers 200. `answer()` sets a path's answer while it runs.
    `GET /__stats`, `/__ledger`, `/__stamps`, `/__paths` answer JSON and are counted nowhere.

    `port` 0 picks free ports; `ports` more than 1 listens on that many (as many hosts to a pool). With `secrets` every
    request must carry a good Standard Webhooks signature of one of them, else it is answered 401 and not in the ledger.
    `ledger_path` appends a line `id arrival-ns status` per request. `keep` is how many requests `received` remembers.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        ports: int = 1,
        tls: ssl.SSLContext | None = None,
        secrets: Sequence[str] = (),
        tolerance: float = 300.0,
        ledger_path: Path | str | None = None,
        keep_ids: bool = True,
        stamps: bool = False,
        keep: int = 0,
    ) -> None:
        if ports < 1 or (port and port + ports - 1 > 65_535):
            raise ConfigurationError(f"port={port} and ports={ports}: write at least one port, and none above 65535")
        path = Path(ledger_path) if ledger_path is not None else None
        self._ledger = Ledger(keep_ids=keep_ids, stamps=stamps, keep=keep, path=path)
        self._routes = Routes()
        self._verify = _verifier(secrets, tolerance) if secrets else None
        self._host = host
        self._wanted = [port + index if port else 0 for index in range(ports)]
        self._tls = tls
        self._servers: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._flush: asyncio.TimerHandle | None = None
        self.ports: tuple[int, ...] = ()
        """The ports listened on, in order; empty before the start."""

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Receiver {self._host} ports={len(self.ports)} requests={self.requests}>"

    @property
    def port(self) -> int:
        """The first port."""
        return self.ports[0]

    @property
    def url(self) -> str:
        """`scheme://host:port` of the first port, without a path."""
        return self.urls[0]

    @property
    def urls(self) -> tuple[str, ...]:
        """`scheme://host:port` of every port."""
        scheme = "http" if self._tls is None else "https"
        host = f"[{self._host}]" if ":" in self._host else self._host
        return tuple(f"{scheme}://{host}:{port}" for port in self.ports)

    @property
    def requests(self) -> int:
        """Complete requests so far."""
        return self._ledger.requests

    @property
    def ledger(self) -> Mapping[str, int]:
        """How often each `webhook-id` arrived."""
        return self._ledger.by_id

    @property
    def stamps(self) -> Mapping[str, int]:
        """First arrival by `webhook-id`, monotonic ns (with `stamps=True`)."""
        return self._ledger.first_ns

    @property
    def paths(self) -> Mapping[str, int]:
        """How many requests each path got."""
        return {path.decode("latin-1"): route.count for path, route in self._routes.by_target.items()}

    @property
    def received(self) -> deque[ReceivedRequest]:
        """The last `keep` requests, oldest first."""
        return self._ledger.received

    @property
    def connections(self) -> int:
        """Connections accepted so far."""
        return self._ledger.connections

    def statistics(self) -> ReceiverStatistics:
        """A snapshot of the totals."""
        return self._ledger.statistics()

    def answer(
        self,
        path: str,
        status: int = 200,
        *,
        body: bytes = b"ok",
        headers: Mapping[str, str] | None = None,
        delay: float = 0.0,
        close: bool = False,
    ) -> None:
        """From now on `path` answers this, `delay` seconds after the request is complete."""
        old = self._routes.by_target.get(path.encode("latin-1"))
        response = build_response(status, body, headers, close=close)
        route = Route(response, status=status, delay=delay, close=close, count=old.count if old else 0)
        self._routes.by_target[path.encode("latin-1")] = route

    async def aclose(self) -> None:
        """Stop listening, close what is open, flush the ledger file."""
        # What was accepted in this very turn must become a connection first: asyncio loses its socket when the server is
        # closed before.
        loop = asyncio.get_running_loop()
        for server in self._servers:
            for listener in server.sockets:
                loop.remove_reader(listener.fileno())
        for _ in range(3):
            await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        for connection in tuple(self._connections):
            connection.abort()
        while self._connections:  # noqa: ASYNC110  # a loop turn in which the aborted transports report their loss
            await asyncio.sleep(0)
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        self._ledger.close()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        found = []
        for port in self._wanted:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            listener = socket.create_server((self._host, port), family=family, backlog=LISTEN_BACKLOG)
            found.append(int(listener.getsockname()[1]))
            server = await loop.create_server(self._connect, sock=listener, backlog=LISTEN_BACKLOG, ssl=self._tls)
            self._servers.append(server)
        self.ports = tuple(found)
        if self._ledger.has_file:
            self._flush_again()

    def _connect(self) -> Connection:
        return Connection(self._ledger, self._routes, self._connections, self._verify)

    def _flush_again(self) -> None:
        self._ledger.flush()
        self._flush = asyncio.get_running_loop().call_later(FLUSH_INTERVAL, self._flush_again)


def _verifier(secrets: Sequence[str], tolerance: float) -> Verifier:
    from gatepost.errors import SignatureError
    from gatepost.wire.signing import verify

    def check(body: bytes, headers: Mapping[str, str]) -> bool:
        try:
            verify(body, headers, secrets, tolerance=tolerance, now=SYSTEM_CLOCK.wall_us() / 1e6)
        except SignatureError:
            return False
        return True

    return check


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, when it is installed; None lets asyncio choose."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def main(argv: Sequence[str] | None = None) -> int:
    """Run a receiver until SIGTERM, SIGINT or, with `--until-eof`, the end of standard input."""
    options = _parser().parse_args(argv)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(options))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("gatepost.testing.receiver", description=str(Receiver.__doc__))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="first port; 0 picks free ones")
    parser.add_argument("--ports", type=int, default=1, help="how many ports to listen on")
    parser.add_argument("--tls", nargs=2, metavar=("CERT", "KEY"), help="PEM files; https instead of http")
    parser.add_argument("--secret", action="append", default=[], help="whsec_…: verify signatures; may be given again")
    parser.add_argument("--ledger", type=Path, help="append a line per request to this file")
    parser.add_argument("--no-ids", action="store_true", help="remember no ids, for memory measurements")
    parser.add_argument("--stamps", action="store_true", help="remember the first arrival of each id (GET /__stamps)")
    parser.add_argument("--stats", action="store_true", help="print the totals as a JSON line at the end")
    parser.add_argument(
        "--until-eof", action="store_true", help="also end when standard input ends, as when the parent dies"
    )
    return parser


async def _serve(options: argparse.Namespace) -> None:
    tls = None
    if options.tls is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*options.tls)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    receiver = Receiver(
        host=options.host,
        port=options.port,
        ports=options.ports,
        tls=tls,
        secrets=options.secret,
        ledger_path=options.ledger,
        keep_ids=not options.no_ids,
        stamps=options.stamps,
    )
    async with receiver:
        if options.until_eof:
            loop.add_reader(sys.stdin.fileno(), stop.set)
        _print({"url": receiver.url, "port": receiver.port, "ports": receiver.ports})
        await stop.wait()
        if options.until_eof:
            loop.remove_reader(sys.stdin.fileno())
        if options.stats:
            _print(asdict(receiver.statistics()))


def _print(value: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
