"""Async network streams for httpcore and httpcore2 that end each step with the call it works for.

They wrap the library's own, for asyncio and trio alike: no task is cancelled, each step's timeout is what is left of the call.
httpcore's async connect already covers the look-up and all addresses by one limit. Used by the httpx transports beside it.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from gatepost.deadline.clients.call import call_in_force


class BoundedAsyncStream:
    """`stream` of `library` (httpcore or httpcore2), bounded."""

    def __init__(self, stream: Any, library: ModuleType) -> None:
        self._stream = stream
        self._library = library

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next bytes, none at the end of the stream."""
        with _named(self._library, "read"):
            data: bytes = await self._stream.read(max_bytes, _seconds(timeout, "read"))
            return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """All of `buffer`."""
        with _named(self._library, "write"):
            await self._stream.write(buffer, _seconds(timeout, "write"))

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> BoundedAsyncStream:
        """The stream inside TLS. The handshake as a whole has the tier's limit."""
        call = call_in_force()
        limit = timeout if call is None else call.tier.tls or call.tier.connect
        with _named(self._library, "tls"):
            inner = await self._stream.start_tls(ssl_context, server_hostname, _seconds(limit, "tls"))
            return BoundedAsyncStream(inner, self._library)

    async def aclose(self) -> None:
        """Close at once."""
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        """What the library's own stream says."""
        return self._stream.get_extra_info(info)


class BoundedAsyncBackend:
    """`backend` of `library`, bounded."""

    def __init__(self, backend: Any, library: ModuleType) -> None:
        self._backend = backend
        self._library = library

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[tuple[Any, ...]] | None = None,
    ) -> BoundedAsyncStream:
        """A connected stream."""
        with _named(self._library, "connect"):
            stream = await self._backend.connect_tcp(
                host, port, _seconds(_own_connect(timeout), "connect"), local_address, socket_options
            )
            return BoundedAsyncStream(stream, self._library)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[tuple[Any, ...]] | None = None
    ) -> BoundedAsyncStream:
        """A stream to a socket in the file system."""
        with _named(self._library, "connect"):
            stream = await self._backend.connect_unix_socket(
                path, _seconds(_own_connect(timeout), "connect"), socket_options
            )
            return BoundedAsyncStream(stream, self._library)

    async def sleep(self, seconds: float) -> None:
        """Between connect retries; raises at once when the time would be over by then."""
        call = call_in_force()
        if call is not None and seconds >= call.seconds(None, "connect"):
            raise call.exceeded("connect")
        await self._backend.sleep(seconds)


def _seconds(own: float | None, where: str) -> float | None:
    call = call_in_force()
    return own if call is None else call.seconds(own, where)


def _own_connect(timeout: float | None) -> float | None:
    call = call_in_force()
    if call is None:
        return timeout
    return call.tier.connect if timeout is None else min(timeout, call.tier.connect)


@contextmanager
def _named(library: ModuleType, where: str) -> Iterator[None]:
    try:
        yield
    except library.TimeoutException as error:
        call = call_in_force()
        if call is not None and call.expired:
            raise call.exceeded(where) from error
        raise
