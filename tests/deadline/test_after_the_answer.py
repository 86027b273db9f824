"""What the ASGI middleware does once the first byte is out, or too late for it: streams, background tasks, and who inherits
what. Starlette makes answers in several tasks, which a small app of one's own does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from gatepost.deadline import Counters, Deadline, DeadlineExceeded, Metric, current, deadline, shield
from gatepost.deadline.asgi import DeadlineMiddleware
from gatepost.deadline.context import request_scope
from gatepost.deadline.gate import Operation
from gatepost.testing.virtual import run_virtual

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

START = {"type": "http.response.start", "status": 200, "headers": []}


async def call(app: Any, budget: str, *, kind: str = "http", leaves_at: float | None = None) -> list[Message]:
    """What the app sent for one GET with that `Request-Timeout`."""
    sent: list[Message] = []
    scope = {"type": kind, "method": "GET", "path": "/", "raw_path": b"/", "query_string": b"", "http_version": "1.1"}
    scope |= {
        "headers": [(b"request-timeout", budget.encode())],
        "scheme": "http",
        "server": ("a", 80),
        "root_path": "",
    }
    requests = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if requests:
            return requests.pop()
        await asyncio.sleep(10_000 if leaves_at is None else leaves_at)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def bounded(app: Any, **settings: Any) -> DeadlineMiddleware:
    """The middleware on the loop's own clock."""
    clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]  # a VirtualLoop
    return DeadlineMiddleware(app, clock=clock, **settings)


class PassOn(BaseHTTPMiddleware):
    """Runs the app in a task of its own, and hands its messages on in another, as every `@app.middleware("http")` does."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


@pytest.mark.parametrize("around", [[], [Middleware(PassOn)]], ids=["bare", "with a middleware"])
def test_a_stream_and_what_follows_it_have_no_deadline_in_whatever_task_they_run(around: list[Middleware]) -> None:
    """They would fail at their first call after the request's time, though the client is still reading."""
    seen: dict[str, Deadline | None] = {}

    async def later() -> None:
        await asyncio.sleep(1)
        seen["background"] = current()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.sleep(1)
        seen["stream"] = current()
        yield b"b"

    async def stream(_request: Request) -> Response:
        seen["handler"] = current()
        return StreamingResponse(pieces(), background=BackgroundTask(later))

    async def main() -> None:
        sent = await call(bounded(Starlette(routes=[Route("/", stream)], middleware=around)), "0.5")
        assert b"".join(message.get("body", b"") for message in sent) == b"ab"
        handler = seen.pop("handler")
        assert handler is not None
        assert handler.clamped_by is None
        assert seen == {"stream": None, "background": None}

    run_virtual(main)


def test_a_shield_around_the_first_byte_does_not_bring_the_cut_back() -> None:
    """A shield holds the cut and gives it back at its end; an answer that has begun in it has no cut any more."""

    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        with shield(5):
            await send(dict(START))
        assert current() is None
        await asyncio.sleep(2)
        await send({"type": "http.response.body", "body": b"x"})

    async def main() -> None:
        assert (await call(bounded(app), "1"))[-1]["body"] == b"x"

    run_virtual(main)


def test_an_endless_stream_that_began_too_late_ends() -> None:
    """Its messages go nowhere after the refusal, so nothing but us would end it."""

    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        asyncio.get_running_loop().clock.advance(2)  # type: ignore[attr-defined]  # code that blocks the loop
        await send(dict(START))
        while True:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(0.1)

    async def main() -> None:
        counters = Counters()
        sent = await asyncio.wait_for(call(bounded(app, counters=counters), "1"), 5)
        assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
        assert sent[0]["status"] == 504
        assert counters.value(Metric.EXCEEDED, "handler") == 1

    run_virtual(main)


def test_what_follows_a_whole_declared_stream_is_not_cut() -> None:
    """The deadline is the answer's; background work after it, or after a WebSocket was closed, is no part of that."""
    done: list[Deadline | None] = []

    async def page(_scope: Any, _receive: Receive, send: Send) -> None:
        await send(dict(START))
        await send({"type": "http.response.body", "body": b"x"})
        await asyncio.sleep(2)
        done.append(current())

    async def session(_scope: Any, _receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 1000})
        await asyncio.sleep(2)
        done.append(current())

    async def main() -> None:
        streams = {"/": Operation(stream=True)}
        assert len(await call(bounded(page, operations=streams), "1")) == 2
        closes = await call(bounded(session, operations=streams), "1", kind="websocket")
        assert [message["type"] for message in closes] == ["websocket.accept", "websocket.close"]
        assert done == [None, None]

    run_virtual(main)


def test_a_disconnect_waits_for_the_end_of_a_shield() -> None:
    """A shield is for work that must end once it has begun; that the client has gone is known when it ends."""
    steps: list[str] = []

    async def app(_scope: Any, receive: Receive, _send: Send) -> None:
        await receive()
        async with shield(5):
            await asyncio.sleep(2)
            steps.append("written")
        await asyncio.sleep(1)
        steps.append("never")

    async def main() -> None:
        counters = Counters()
        assert await call(bounded(app, cancel_on_disconnect=True, counters=counters), "10", leaves_at=1) == []
        assert steps == ["written"]
        assert counters.value(Metric.DISCONNECTED) == 1

    run_virtual(main)


def test_dark_mode_does_not_count_a_stream_that_began_in_time() -> None:
    """Enforced, it would not have been cut either."""

    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        await send(dict(START))
        await asyncio.sleep(2)
        await send({"type": "http.response.body", "body": b"x"})

    async def main() -> None:
        for streams, expected in ((False, 0), (True, 1)):
            counters = Counters()
            operations = {"/": Operation(stream=streams)}
            await call(bounded(app, mode="dark", operations=operations, counters=counters), "1")
            assert counters.value(Metric.WOULD_REJECT, "handler") == expected

    run_virtual(main)


def test_a_scope_opened_inside_keeps_its_limit_after_the_release() -> None:
    """Only what the request brought is let go; a limit that the program wrote is its own."""

    async def main() -> None:
        clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]  # a VirtualLoop
        scope = request_scope(Deadline.after(1, clock=clock), name="handler")
        async with scope:
            with deadline(0.5) as inner:
                scope.release()
                assert current() is inner
            assert current() is None
            with deadline(30, clock=clock) as longer:
                assert longer.remaining() == 30
            await asyncio.sleep(2)
        with pytest.raises(DeadlineExceeded):
            async with request_scope(Deadline.after(1, clock=clock), name="handler"):
                await asyncio.sleep(2)

    run_virtual(main)


@pytest.mark.parametrize("until", [1e12, 1e30, 1e300, 10**400, float("nan")])
def test_an_instant_that_never_comes_is_refused(until: float) -> None:
    """It would be a deadline in name only, and the locks of the standard library cannot wait for that long."""
    with pytest.raises(ValueError, match="monotonic clock"):
        deadline(until=until)
