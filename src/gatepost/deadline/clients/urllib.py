"""`urlopen` of the standard library with a true total, for programs without any HTTP package.

`urllib.request.urlopen(url, timeout=)` bounds the connect to each address and each single read, and without the argument
nothing at all. Here look-up, connect, TLS, head and body together have the earlier of the ambient deadline and the tier's
total. Redirects share it; an internal tier gets `Request-Timeout`, a redirect to another host does not.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from gatepost.deadline.clients.bounded_socket import BoundedSocket
from gatepost.deadline.clients.call import Call, CallExceeded, call_in_force, caused_by, find_exceeded, working_for
from gatepost.deadline.clients.dialling import dial
from gatepost.deadline.tiers import Tier


class DeadlineTimeout(CallExceeded):
    """The call's time is up: a `DeadlineExceeded`, hence a `TimeoutError`."""


def urlopen(
    request: str | urllib.request.Request,
    data: bytes | None = None,
    *,
    tier: Tier,
    context: ssl.SSLContext | None = None,
) -> http.client.HTTPResponse:
    """As `urllib.request.urlopen` for `http` and `https`, within the time of one call to `tier`.

    Raises `DeadlineTimeout` when that is up, here or while the body is read; otherwise what urllib raises, `HTTPError` for
    a status of 400 and more included. For an opener with more handlers see `handlers`.
    """
    call = Call(tier, DeadlineTimeout)
    opener = urllib.request.build_opener(*handlers(context))
    with working_for(call):
        try:
            response: http.client.HTTPResponse = opener.open(request, data, timeout=tier.read)
        except urllib.error.HTTPError as answer:
            refused = call.refused(answer.code, answer.headers)
            if refused is None:
                raise
            answer.close()
            raise refused from None
        except OSError as error:
            exceeded = find_exceeded(error)
            if exceeded is None:
                # A handshake is bounded as a whole by ssl itself, and ends in ssl's own error.
                if not (call.expired and caused_by(error, TimeoutError)):
                    raise
                exceeded = call.exceeded("call")
            raise exceeded from error
    return response


def handlers(context: ssl.SSLContext | None = None) -> tuple[urllib.request.BaseHandler, ...]:
    """Handlers for `urllib.request.build_opener` that bound what they open while a call is in force."""
    return (_HTTPHandler(), _HTTPSHandler(context=context))


class BoundedHTTPConnection(http.client.HTTPConnection):
    """A plain connection of the call in force."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._create_connection = _dialled

    def connect(self) -> None:
        """Connect within the call's time."""
        super().connect()
        _bind(self)


class BoundedHTTPSConnection(http.client.HTTPSConnection):
    """A TLS connection of the call in force."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._create_connection = _dialled

    def connect(self) -> None:
        """Connect within the call's time."""
        super().connect()
        _bind(self)


class _HTTPHandler(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        _tell(request)
        return self.do_open(BoundedHTTPConnection, request)


class _HTTPSHandler(urllib.request.HTTPSHandler):
    def __init__(self, *, context: ssl.SSLContext | None) -> None:
        self._own_context = ssl.create_default_context() if context is None else context
        super().__init__(context=self._own_context)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        _tell(request)
        return self.do_open(BoundedHTTPSConnection, request, context=self._own_context)


def _tell(request: urllib.request.Request) -> None:
    call = call_in_force()
    if call is None:
        return
    host = urllib.parse.urlsplit(request.full_url).hostname
    if call.host is None:
        call.host = host
    if host == call.host:  # elsewhere a redirect may lead to somebody else
        sent = {name.lower(): value for name, value in request.header_items()}
        for name, value in call.headers(sent):
            # "Unredirected" headers are not copied into the request that a redirect makes.
            request.add_unredirected_header(name, value)


def _dialled(address: tuple[str, int], timeout: Any, source_address: tuple[str, int] | None) -> Any:
    call = call_in_force()
    if call is None:
        return socket.create_connection(address, timeout, source_address)
    sock = dial(call, *address, source_address=source_address)
    bounded = BoundedSocket(sock, call)  # at once, for a proxy's CONNECT
    bounded.settimeout(call.tier.tls or call.tier.connect)
    return bounded


def _bind(connection: http.client.HTTPConnection) -> None:
    call = call_in_force()
    if call is not None:
        if not isinstance(connection.sock, BoundedSocket):
            connection.sock = BoundedSocket(connection.sock, call)
        connection.sock.settimeout(call.tier.read)
