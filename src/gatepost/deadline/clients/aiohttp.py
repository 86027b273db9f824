"""aiohttp within the deadline: `async with DeadlineClient(session, SAME_DC).get(url) as response`.

aiohttp has a true total, with two traps: a total of 0 or less means no limit, and limits over 5 s are rounded up to a whole
second of the loop's clock. This wraps a session's calls so that neither can happen, names the failure, and tells internal
tiers the time left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

try:
    import aiohttp
except ImportError as error:
    raise ImportError("gatepost.deadline.clients.aiohttp needs aiohttp: pip install aiohttp") from error

if not hasattr(aiohttp, "ClientMiddlewareType"):  # what sees each request that redirects make
    raise ImportError("gatepost.deadline.clients.aiohttp needs aiohttp 3.12 or later: pip install 'aiohttp>=3.12'")

from multidict import CIMultiDict

from gatepost.deadline.clients.call import Call, CallExceeded
from gatepost.deadline.tiers import Tier, timeouts_for
from gatepost.deadline.wire import REQUEST_TIMEOUT

Response = AbstractAsyncContextManager[aiohttp.ClientResponse]


class DeadlineTimeout(CallExceeded, aiohttp.ServerTimeoutError):
    """The call's time is up: a `DeadlineExceeded`, and what `except aiohttp.ServerTimeoutError` catches."""


class _Telling:
    """A middleware: the last to see each request, also those that redirects make of the first one's headers."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def __call__(self, request: aiohttp.ClientRequest, handler: Any) -> aiohttp.ClientResponse:
        call = self._call
        if call.host is None:
            call.host = request.url.host
        if request.url.host == call.host:
            request.headers.update(call.headers(request.headers))
        else:  # a redirect may lead to somebody else
            request.headers.popall(REQUEST_TIMEOUT, None)
        response: aiohttp.ClientResponse = await handler(request)
        return response


class DeadlineClient:
    """Calls of `session` to services of `tier`; the session stays the caller's to close.

    Each method is used by `async with`; the block reads the body within the same time. Raises `DeadlineTimeout` when that is
    up, before anything is sent when there is none to begin with. A `timeout=` is refused: the tier says it.
    """

    def __init__(self, session: aiohttp.ClientSession, tier: Tier) -> None:
        self._session = session
        self.tier = tier

    def request(self, method: str, url: Any, **options: Any) -> Response:
        """As `ClientSession.request`."""
        if "timeout" in options:
            raise TypeError(f"timeout={options['timeout']!r}: the tier says it; write tier.evolve(read=…) for another")
        return self._bounded(method, url, options)

    def get(self, url: Any, **options: Any) -> Response:
        """A GET."""
        return self.request("GET", url, **options)

    def head(self, url: Any, **options: Any) -> Response:
        """A HEAD, without following redirects, as aiohttp does."""
        options.setdefault("allow_redirects", False)
        return self.request("HEAD", url, **options)

    def post(self, url: Any, **options: Any) -> Response:
        """A POST."""
        return self.request("POST", url, **options)

    def put(self, url: Any, **options: Any) -> Response:
        """A PUT."""
        return self.request("PUT", url, **options)

    def patch(self, url: Any, **options: Any) -> Response:
        """A PATCH."""
        return self.request("PATCH", url, **options)

    def delete(self, url: Any, **options: Any) -> Response:
        """A DELETE."""
        return self.request("DELETE", url, **options)

    @asynccontextmanager
    async def _bounded(self, method: str, url: Any, options: dict[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        call = Call(self.tier, DeadlineTimeout)
        headers: CIMultiDict[str] = CIMultiDict(options.pop("headers", None) or {})
        told = call.headers(headers)
        if told:
            headers.update(told)
            # Those given to one call replace the session's, which aiohttp shows nowhere else.
            others = options.pop("middlewares", None) or getattr(self._session, "_middlewares", ())
            options["middlewares"] = (*others, _Telling(call))
        timeout = timeouts_for(self.tier, deadline=call.deadline).aiohttp()
        try:
            async with self._session.request(method, url, headers=headers, timeout=timeout, **options) as response:
                refused = call.refused(response.status, response.headers)
                if refused is not None:
                    response.close()
                    raise refused
                yield response
        except CallExceeded:
            raise
        except TimeoutError as error:
            # aiohttp's total, or the deadline itself reached while some phase's own limit fired.
            if call.expired:
                raise call.exceeded("call") from error
            raise
