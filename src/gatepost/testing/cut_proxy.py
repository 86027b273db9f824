"""A TCP proxy that breaks connections on purpose: at a commit whose answer is lost, before a request arrives, by going silent, or by
passing everything on late.

It knows no protocol: a request is told by bytes it contains, an answer is whatever the server sends next. For tests of stores and
the chaos bench; it runs in the event loop of its user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit, urlunsplit

CHUNK: Final = 65_536


class CutProxy:
    """Stands before `host:port`; connect to `port` of it. An async context manager.

    Faults, from the next byte on: `cut_answer(marker)` passes the request that contains `marker` on and, when the server answers,
    drops the answer and the connection: it was done, and nobody knows. `cut_request(marker)` drops it before. `answer_lost`, called
    for each answer, does the same as `cut_answer` whenever it returns True. `black_hole()` keeps connections open and passes
    nothing. `cut_all()` ends those there are, `refuse()` also those to come. While `delay` is set, every piece of an answer comes so
    many seconds late. `restore()` ends every fault but what is cut.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._ended = asyncio.Event()
        """No handler runs."""
        self._ended.set()
        self._open = asyncio.Event()
        self._open.set()
        self._refusing = False
        self._markers: dict[bytes, bool] = {}  # to whether the request is passed on first
        self.answer_lost: Callable[[], bool] | None = None
        self.delay = 0.0
        """Seconds by which answers are late."""
        self.port = 0
        self.cuts = 0
        """Connections cut at a request or an answer."""
        self.accepted = 0
        """Connections made to us."""

    @classmethod
    def before(cls, url: str) -> CutProxy:
        """Before the server of a `postgresql://` URL."""
        parts = urlsplit(url)
        return cls(parts.hostname or "127.0.0.1", parts.port or 5432)

    def url(self, url: str) -> str:
        """The same URL, through the proxy."""
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{self.port}" if user else f"127.0.0.1:{self.port}"))

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._open.set()
        self.cut_all()
        await self._ended.wait()
        await self._server.wait_closed()

    # -- faults

    def cut_answer(self, marker: bytes) -> None:
        """Lose the answer to the next request that contains these bytes, and the connection."""
        self._markers[marker] = True

    def cut_request(self, marker: bytes) -> None:
        """Lose the next request that contains these bytes, and the connection."""
        self._markers[marker] = False

    def black_hole(self) -> None:
        """Pass nothing more in either direction, and say nothing."""
        self._open.clear()

    def refuse(self) -> None:
        """End all connections, and new ones as soon as they are made."""
        self._refusing = True
        self.cut_all()

    def cut_all(self) -> None:
        """End all connections at once."""
        for link in list(self._links):
            link.abort()

    def restore(self) -> None:
        """Be a wire again. What was held back by a black hole is passed on."""
        self._markers.clear()
        self.answer_lost = None
        self._refusing = False
        self.delay = 0.0
        self._open.set()

    # -- passing on

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = _Link(writer)
        self._links.add(link)
        self._ended.clear()
        try:
            if self._refusing:
                return
            await self._open.wait()
            server_reader, server_writer = await asyncio.open_connection(*self._target)
            link.server = server_writer
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_requests(link, reader, server_writer))
                group.create_task(self._pass_answers(link, server_reader, writer))
        except* (OSError, EOFError):
            pass  # one side has gone, so goes the other
        finally:
            link.abort()
            self._links.discard(link)
            if not self._links:
                self._ended.set()

    async def _pass_requests(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tail = b""
        while data := await reader.read(CHUNK):
            await self._open.wait()
            seen = tail + data
            for marker, passed_on in list(self._markers.items()):
                if marker in seen:
                    del self._markers[marker]
                    self.cuts += 1
                    if not passed_on:
                        raise EOFError
                    link.lose_answer = True
            longest = max(map(len, self._markers), default=1)
            tail = seen[-(longest - 1) :] if longest > 1 else b""
            writer.write(data)
            await writer.drain()
        raise EOFError

    async def _pass_answers(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            await self._open.wait()
            if self.delay:
                await asyncio.sleep(self.delay)
            if link.lose_answer:
                raise EOFError
            if self.answer_lost is not None and self.answer_lost():
                self.cuts += 1
                raise EOFError
            writer.write(data)
            await writer.drain()
        raise EOFError


class _Link:
    """One connection through the proxy."""

    __slots__ = ("_client", "lose_answer", "server")

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self._client = client
        self.server: asyncio.StreamWriter | None = None
        self.lose_answer = False

    def abort(self) -> None:
        self._client.transport.abort()
        if self.server is not None:
            self.server.transport.abort()
