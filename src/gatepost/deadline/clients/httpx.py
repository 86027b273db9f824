"""httpx transports with a true total: `httpx.Client(mounts={pattern: DeadlineTransport(SAME_DC)})`, and the async twin.

A call has the earlier of the ambient deadline and the tier's total; head and body count alike, wherever the body is read. The
phases are the tier's, tightened by a timeout that the client was given; of a `timeout=` only what is shorter counts. Internal
tiers get `Request-Timeout`. A transport is for one tier: mount one per host pattern, for a redirect looks its transport up
anew, and is a call of its own (only the ambient deadline bounds them together). Mirrored for httpx2 beside it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

try:
    import httpcore
    import httpx
except ImportError as error:
    raise ImportError("gatepost.deadline.clients.httpx needs httpx: pip install httpx") from error

from gatepost.deadline.clients.call import Call, CallExceeded, working_for
from gatepost.deadline.clients.streams import BlockingBackend
from gatepost.deadline.clients.streams_async import BoundedAsyncBackend
from gatepost.deadline.tiers import Tier
from gatepost.errors import ConfigurationError

PHASES: Final = ("connect", "read", "write", "pool")


class DeadlineTimeout(CallExceeded, httpx.TimeoutException):
    """The call's time is up: a `DeadlineExceeded`, and what `except httpx.TimeoutException` catches."""

    _request = None  # what httpx's own constructor would set: httpx fills it in on the way out


class DeadlineTransport(httpx.HTTPTransport):
    """`httpx.HTTPTransport` (same arguments) whose calls belong to `tier`. A slow generator as request body is not cut."""

    def __init__(self, tier: Tier, **options: Any) -> None:
        super().__init__(**options)
        self.tier = tier
        backend = _network(self._pool)
        _replace_network(self._pool, BlockingBackend(httpcore, backend.sleep))

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send it within its time; raises `DeadlineTimeout` when that is up, there or here."""
        call = Call(self.tier, DeadlineTimeout)
        with working_for(call):
            try:
                response = super().handle_request(_bounded(request, call, httpx.SyncByteStream))
            except httpx.TimeoutException as error:
                raise _named(error, call) from error
            refused = call.refused(response.status_code, response.headers)
            if refused is not None:
                response.close()
                raise refused
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _Body(response.stream, call)
        return response


class AsyncDeadlineTransport(httpx.AsyncHTTPTransport):
    """`httpx.AsyncHTTPTransport` (same arguments) whose calls belong to `tier`, on asyncio and trio."""

    def __init__(self, tier: Tier, **options: Any) -> None:
        super().__init__(**options)
        self.tier = tier
        _replace_network(self._pool, BoundedAsyncBackend(_network(self._pool), httpcore))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send it within its time; raises `DeadlineTimeout` when that is up, there or here."""
        call = Call(self.tier, DeadlineTimeout)
        with working_for(call):
            try:
                response = await super().handle_async_request(_bounded(request, call, httpx.AsyncByteStream))
            except httpx.TimeoutException as error:
                raise _named(error, call) from error
            refused = call.refused(response.status_code, response.headers)
            if refused is not None:
                await response.aclose()
                raise refused
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _AsyncBody(response.stream, call)
        return response


class _Body(httpx.SyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream, call: Call) -> None:
        self._stream = stream
        self._call = call

    def __iter__(self) -> Iterator[bytes]:
        parts = iter(self._stream)
        while True:
            # Set for each piece: between them the user's code runs, perhaps in another call.
            with working_for(self._call):
                part = next(parts, None)
            if part is None:
                return
            yield part

    def close(self) -> None:
        self._stream.close()


class _AsyncBody(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, call: Call) -> None:
        self._stream = stream
        self._call = call

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts = aiter(self._stream)
        while True:
            with working_for(self._call):
                part = await anext(parts, None)
            if part is None:
                return
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


def _bounded(request: httpx.Request, call: Call, kind: type[Any]) -> httpx.Request:
    """A copy with the call's limits and header: the original goes on into redirects, which may lead to somebody else."""
    given = request.extensions.get("timeout", {})
    left = call.seconds(None, "before the call")
    timeout = {}
    for phase in PHASES:
        own = getattr(call.tier, phase)
        client = given.get(phase)
        timeout[phase] = min(own, left) if client is None else min(own, client, left)
    headers = httpx.Headers(request.headers)
    for name, value in call.headers(request.headers):
        headers[name] = value
    assert isinstance(request.stream, kind)
    return httpx.Request(
        request.method,
        request.url,
        headers=headers,
        stream=request.stream,
        extensions={**request.extensions, "timeout": timeout},
    )


def _named(error: httpx.TimeoutException, call: Call) -> httpx.TimeoutException:
    """The wait for a pooled connection ends in httpx's own error even when it had all the time that was left."""
    if call.expired and not isinstance(error, CallExceeded):
        exceeded = call.exceeded("pool" if isinstance(error, httpx.PoolTimeout) else "call")
        assert isinstance(exceeded, DeadlineTimeout)
        return exceeded
    return error


def _network(pool: Any) -> Any:
    # httpcore takes a backend by a public argument, but httpx offers no way to pass it on.
    backend = getattr(pool, "_network_backend", None)
    if backend is None:
        raise ConfigurationError(
            "this release of httpx keeps its network elsewhere: use httpx 0.27 to 0.28 with httpcore 1, or write an issue"
        )
    return backend


def _replace_network(pool: Any, backend: object) -> None:
    pool._network_backend = backend  # noqa: SLF001 - see _network
