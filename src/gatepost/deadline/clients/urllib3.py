"""urllib3 with a true total for each call: connection classes and a pool manager whose sockets belong to the call they serve.

urllib3's own `total` bounds the connect and each single read, so a body that drips outlives it. Retries, redirects and the
body share one call here. `gatepost.deadline.clients.requests` builds its adapter on these.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

try:
    import urllib3
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError
    from urllib3.exceptions import TimeoutError as Urllib3Timeout
except ImportError as error:
    raise ImportError("gatepost.deadline.clients.urllib3 needs urllib3: pip install urllib3") from error

from gatepost.deadline.clients.bounded_socket import BoundedSocket
from gatepost.deadline.clients.call import Call, CallExceeded, call_in_force, caused_by, find_exceeded, working_for
from gatepost.deadline.clients.dialling import dial
from gatepost.deadline.tiers import Tier
from gatepost.deadline.wire import REQUEST_TIMEOUT


class DeadlineTimeout(CallExceeded, Urllib3Timeout):
    """The call's time is up: a `DeadlineExceeded`, and what `except urllib3.exceptions.TimeoutError` catches."""


class BoundedResponse(urllib3.HTTPResponse):
    """A response whose body ends with its call, in the call's own error."""

    def read(self, *args: Any, **options: Any) -> bytes:
        with _unwrapped():
            return super().read(*args, **options)

    def read1(self, *args: Any, **options: Any) -> bytes:
        with _unwrapped():
            return super().read1(*args, **options)

    def stream(self, *args: Any, **options: Any) -> Generator[bytes, None, None]:
        with _unwrapped():
            yield from super().stream(*args, **options)

    def read_chunked(self, *args: Any, **options: Any) -> Generator[bytes, None, None]:
        with _unwrapped():
            yield from super().read_chunked(*args, **options)


class _Bounded:
    """What both kinds of connection do differently from urllib3's."""

    sock: Any

    def _connected(self: Any, connect: Callable[[], None]) -> None:
        call = call_in_force()
        connect()
        if call is not None and self.sock is not None and not isinstance(self.sock, BoundedSocket):
            self.sock = BoundedSocket(self.sock, call)
        self._serve()

    def _dialled(self: Any) -> socket.socket:
        call = call_in_force()
        assert call is not None
        try:
            sock = dial(
                call,
                self._dns_host,
                self.port,
                seconds=self.timeout,
                source_address=self.source_address,
                options=self.socket_options,
            )
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        except CallExceeded:
            raise
        except TimeoutError as error:
            raise ConnectTimeoutError(self, str(error)) from error
        except OSError as error:
            raise NewConnectionError(self, f"Failed to establish a new connection: {error}") from error
        bounded = BoundedSocket(sock, call)  # at once: a proxy's CONNECT is answered before TLS begins
        bounded.settimeout(call.tier.tls or call.tier.connect)
        return bounded  # type: ignore[return-value]  # all that urllib3 and ssl ask of one

    def _serve(self: Any) -> None:
        call = call_in_force()
        if call is not None and isinstance(self.sock, BoundedSocket):
            self.sock.serve(call)
            self.sock.settimeout(call.tier.write)  # reading has urllib3's read timeout, set when the answer is awaited


class BoundedHTTPConnection(_Bounded, HTTPConnection):
    """A plain connection of the call in force."""

    def _new_conn(self) -> socket.socket:
        return super()._new_conn() if call_in_force() is None else self._dialled()

    def connect(self) -> None:
        self._connected(super().connect)

    def request(self, *args: Any, **options: Any) -> None:
        self._serve()
        super().request(*args, **options)

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]  # as in urllib3 itself
        with _unwrapped():
            return _bounded_response(super().getresponse())


class BoundedHTTPSConnection(_Bounded, HTTPSConnection):
    """A TLS connection of the call in force."""

    def _new_conn(self) -> socket.socket:
        return super()._new_conn() if call_in_force() is None else self._dialled()

    def connect(self) -> None:
        self._connected(super().connect)

    def request(self, *args: Any, **options: Any) -> None:
        self._serve()
        super().request(*args, **options)

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]  # as in urllib3 itself
        with _unwrapped():
            return _bounded_response(super().getresponse())


class _HTTPPool(urllib3.HTTPConnectionPool):
    ConnectionCls = BoundedHTTPConnection


class _HTTPSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = BoundedHTTPSConnection


POOL_CLASSES: Mapping[str, type[urllib3.HTTPConnectionPool]] = {"http": _HTTPPool, "https": _HTTPSPool}
"""For `pool_classes_by_scheme` of a pool or proxy manager."""


class DeadlinePoolManager(urllib3.PoolManager):
    """`urllib3.PoolManager` (same arguments) whose calls belong to `tier`.

    Redirects, retries and the body share the time of the first request. Raises `DeadlineTimeout` when it is up.
    """

    def __init__(self, tier: Tier, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tier = tier
        self.pool_classes_by_scheme = dict(POOL_CLASSES)

    def urlopen(self, method: str, url: str, redirect: bool = True, **options: Any) -> Any:  # type: ignore[override]
        """As urllib3's (and as incompatible with its base class); calls itself for each redirect."""
        call = call_in_force()
        sent = urllib3.HTTPHeaderDict(options.pop("headers", None) or self.headers or {})
        host = urllib3.util.parse_url(url).host
        if call is not None:
            sent.discard(REQUEST_TIMEOUT)
            if host == call.host:  # elsewhere a redirect may lead to somebody else
                sent.update(call.headers({}))
            return super().urlopen(method, url, redirect, headers=sent, **options)
        call = Call(self.tier, DeadlineTimeout)
        call.host = host
        for name, value in call.headers(sent):
            sent[name] = value
        options["timeout"] = timeout_of(call)
        options["retries"] = bounded_retry(options.get("retries"))
        with working_for(call), mapped(call):
            response = super().urlopen(method, url, redirect, headers=sent, **options)
            refused = call.refused(response.status, response.headers)
            if refused is not None:
                response.close()
                raise refused
            return response


def timeout_of(call: Call) -> urllib3.Timeout:
    """The tier's phases for one attempt."""
    left = call.seconds(None, "before the call")
    return urllib3.Timeout(connect=min(call.tier.connect, left), read=min(call.tier.read, left))


class BoundedRetry(urllib3.Retry):
    """Gives up before a sleep that would outlast the call, however long `Retry-After` asks for."""

    def sleep(self, response: Any = None) -> None:
        """Sleep before the next attempt."""
        call = call_in_force()
        if call is not None:
            asked = self.get_retry_after(response) if response is not None and self.respect_retry_after_header else None
            if (asked or self.get_backoff_time()) >= call.seconds(None, "retry"):
                raise call.exceeded("retry")
        super().sleep(response)


def bounded_retry(given: urllib3.Retry | bool | int | None) -> urllib3.Retry:
    """The same retries, bounded. A subclass of somebody else's keeps its own ways."""
    retry = urllib3.Retry.from_int(given)
    if type(retry) is urllib3.Retry:
        retry = retry.new()
        retry.__class__ = BoundedRetry  # the subclass adds no state, and `new` keeps the class
    return retry


@contextmanager
def mapped(call: Call) -> Iterator[None]:
    """Raise the call's own error for whatever urllib3 or requests made of it."""
    try:
        yield
    except CallExceeded:
        raise
    except Exception as error:
        exceeded = find_exceeded(error)
        if (
            exceeded is None
            and call.expired
            and caused_by(error, Urllib3Timeout, TimeoutError, urllib3.exceptions.EmptyPoolError)
        ):
            exceeded = call.exceeded("call")
        if exceeded is None:
            raise
        raise exceeded from error


@contextmanager
def _unwrapped() -> Iterator[None]:
    try:
        yield
    except CallExceeded:
        raise
    except Exception as error:
        exceeded = find_exceeded(error)
        if exceeded is None:
            raise
        raise exceeded from error


def _bounded_response(response: Any) -> urllib3.HTTPResponse:
    # urllib3 makes its response inside getresponse and offers no class to choose; the subclass adds no state.
    if type(response) is urllib3.HTTPResponse:
        response.__class__ = BoundedResponse
    return response  # type: ignore[no-any-return]
