"""The HTTP side of the test receiver: a minimal request parser and prebuilt answers chosen by path.

It understands what a webhook sender sends (a head and a `Content-Length` body, keep-alive, pipelining) and refuses chunked
requests. Built for load: a 1 KiB POST costs a few microseconds. Used by `receiver.Receiver` only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from typing import Final, cast
from urllib.parse import urlsplit

from gatepost.clock import SYSTEM_CLOCK
from gatepost.testing.receiver_ledger import Ledger, ReceivedRequest

HEAD_BYTES_MAX: Final = 65_536
"""A request head beyond this is answered 431: no sender of webhooks comes near it."""
BODY_BYTES_MAX: Final = 64 * 1_048_576
"""A request body beyond this is answered 413: larger than any payload Gatepost accepts, small enough for a test machine."""
ROUTES_MAX: Final = 20_000
"""Paths remembered with their prebuilt answer and count; further ones are answered without being counted by path."""

Verifier = Callable[[bytes, Mapping[str, str]], bool]
"""Whether body and headers (lower-case names) carry a good signature."""


@dataclass(slots=True)
class Route:
    """How one path answers. `count` is how many requests it got."""

    response: bytes
    status: int = 200
    delay: float = 0.0
    """Seconds before the answer."""
    close: bool = False
    """Close after the answer."""
    failures: int = 0
    """Each webhook-id gets `failure` this many times before `response`."""
    failure: bytes = b""
    failure_status: int = 0
    count: int = field(default=0)


def build_response(
    status: int, body: bytes = b"ok", headers: Mapping[str, str] | None = None, *, close: bool = False
) -> bytes:
    """A whole HTTP/1.1 response as bytes. 204 and 304 carry no body."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Status"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in (headers or {}).items())]
    if status in (204, 304):
        body = b""
    else:
        lines.append(f"Content-Length: {len(body)}")
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def route_for(target: str) -> Route:
    """The behaviour a path asks for; see `receiver.Receiver` for the list. A wrong argument answers 400 and says why."""
    name, _, rest = urlsplit(target).path.strip("/").partition("/")
    arguments = rest.split("/") if rest else []
    try:
        match name, arguments:
            case "status", [status]:
                return Route(build_response(_status(status)), status=_status(status))
            case "retry-after", [seconds]:
                return Route(build_response(503, b"later", {"Retry-After": seconds}), status=503)
            case "retry-after", [seconds, status]:
                return Route(
                    build_response(_status(status), b"later", {"Retry-After": seconds}), status=_status(status)
                )
            case "slow", [seconds]:
                return Route(build_response(200), delay=_seconds(seconds))
            case "slow", [seconds, status]:
                return Route(build_response(_status(status)), status=_status(status), delay=_seconds(seconds))
            case "flaky", [times, status]:
                failure = _status(status)
                return Route(
                    build_response(200), failures=int(times), failure=build_response(failure), failure_status=failure
                )
            case "bytes", [size]:
                return Route(build_response(200, bytes(min(max(int(size), 0), BODY_BYTES_MAX))))
            case "close", []:
                return Route(build_response(200, close=True), close=True)
            case (("status" | "retry-after" | "slow" | "flaky" | "bytes"), _):
                raise ValueError("wrong number of arguments")
            case _:
                return Route(build_response(200))
    except ValueError as error:
        return Route(build_response(400, f"{target}: {error}\n".encode()), status=400)


class Routes:
    """The routes met so far, by request target, with counts."""

    def __init__(self) -> None:
        self.by_target: dict[bytes, Route] = {}

    def find(self, target: bytes) -> Route:
        """The route of a target not met before."""
        route = route_for(target.decode("latin-1"))
        if len(self.by_target) < ROUTES_MAX:
            self.by_target[target] = route
        return route


class Connection(asyncio.Protocol):
    """One accepted connection."""

    __slots__ = (
        "_arrived_ns",
        "_buffer",
        "_connections",
        "_ledger",
        "_need",
        "_routes",
        "_timer",
        "_transport",
        "_verify",
    )

    def __init__(self, ledger: Ledger, routes: Routes, connections: set[Connection], verify: Verifier | None) -> None:
        self._ledger = ledger
        self._routes = routes
        self._connections = connections
        self._verify = verify
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._need = 0  # bytes the buffer must hold before parsing it again can help
        self._arrived_ns = 0
        self._timer: asyncio.TimerHandle | None = None  # a delayed answer; requests behind it wait

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        self._ledger.connections += 1
        self._ledger.open_connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._ledger.open_connections -= 1
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._arrived_ns:
            self._arrived_ns = SYSTEM_CLOCK.monotonic_ns()
        buffer = self._buffer
        if buffer:
            buffer += data
            if len(buffer) < self._need:
                return
            data = bytes(buffer)
            buffer.clear()
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        while data and self._timer is None:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > HEAD_BYTES_MAX:
                    self._refuse(431)
                    return
                self._need = len(data) + 1
                break
            head = data[: end + 2]
            lower = head.lower()
            length = content_length(lower)
            if length is None or length > BODY_BYTES_MAX:
                self._refuse(400 if length is None else 413)
                return
            total = end + 4 + length
            if len(data) < total:
                self._need = total
                break
            self._answer(head, lower, data, end + 4, total)
            if self._transport is None or self._transport.is_closing():
                return
            data = data[total:] if len(data) > total else b""
            self._arrived_ns = SYSTEM_CLOCK.monotonic_ns() if data else 0
        if data:
            self._buffer += data

    def _answer(self, head: bytes, lower: bytes, data: bytes, start: int, stop: int) -> None:
        ledger = self._ledger
        method, _, rest = head.partition(b" ")
        target, _, _ = rest.partition(b" ")
        if target.startswith(b"/__") and method == b"GET":
            self._send(self._report(target), close=False)
            return
        route = self._routes.by_target.get(target) or self._routes.find(target)
        route.count += 1
        if self._verify is not None or ledger.wants_requests:
            headers = _headers(head)
            body = data[start:stop]
            if ledger.wants_requests:
                ledger.received.append(
                    ReceivedRequest(method.decode(), target.decode("latin-1"), headers, body, self._arrived_ns)
                )
            if self._verify is not None and not self._verify(body, headers):
                # Not in the ledger: a request nobody signed proves no delivery.
                ledger.bad_signatures += 1
                ledger.requests += 1
                self._send(_UNAUTHORIZED, close=False)
                return
        seen = ledger.record(_value(head, lower, b"\r\nwebhook-id:"), self._arrived_ns, route.status)
        response = route.response if seen > route.failures or not route.failures else route.failure
        close = route.close or b"\r\nconnection: close" in lower
        if route.delay:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(route.delay, self._send_late, response, close)
        else:
            self._send(response, close=close)

    def _send_late(self, response: bytes, close: bool) -> None:
        self._timer = None
        self._send(response, close=close)
        if self._buffer and not close:
            data = bytes(self._buffer)
            self._buffer.clear()
            self._parse(data)

    def _send(self, response: bytes, *, close: bool) -> None:
        transport = self._transport
        if transport is None:
            return
        transport.write(response)
        if close:
            transport.close()

    def _refuse(self, status: int) -> None:
        self._ledger.malformed += 1
        self._send(build_response(status, b"", close=True), close=True)

    def _report(self, target: bytes) -> bytes:
        ledger = self._ledger
        body: object
        if target == b"/__stats":
            body = asdict(ledger.statistics())
        elif target == b"/__ledger":
            body = ledger.by_id
        elif target == b"/__stamps":
            body = ledger.first_ns
        elif target == b"/__paths":
            body = {path.decode("latin-1"): route.count for path, route in self._routes.by_target.items()}
        else:
            return build_response(404, b"write /__stats, /__ledger, /__stamps or /__paths\n")
        return build_response(200, json.dumps(body).encode(), {"Content-Type": "application/json"})


_UNAUTHORIZED: Final = build_response(401, b"bad signature")


def content_length(lower: bytes) -> int | None:
    """Body bytes announced by a lower-cased head: 0 without the header, None when it cannot be told."""
    at = lower.find(b"\r\ncontent-length:")
    if at < 0:
        return None if b"\r\ntransfer-encoding:" in lower else 0
    text = lower[at + 17 : lower.index(b"\r\n", at + 17)].strip()
    return int(text) if text.isdigit() else None


def _value(head: bytes, lower: bytes, name: bytes) -> bytes | None:
    """The value of the first header called `name` (given with its leading line end and colon), in its own case."""
    at = lower.find(name)
    if at < 0:
        return None
    start = at + len(name)
    return head[start : head.index(b"\r\n", start)].strip()


def _headers(head: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.lower()] = value.strip()
    return headers


def _status(text: str) -> int:
    status = int(text)
    if not 200 <= status <= 599:
        raise ValueError("write a status from 200 to 599")
    return status


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 86_400:
        raise ValueError("write seconds from 0 to 86400")
    return seconds
