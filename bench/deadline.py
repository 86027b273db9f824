"""What deadlines cost: `python -m bench.deadline` prints microseconds and ratios against bare `asyncio.timeout`.

Short runs, the least of many, and what is compared takes turns, so that a busy machine disturbs little. `--json` prints one
object.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fastapi import FastAPI

from gatepost.deadline import Counters, deadline, timeout_for
from gatepost.deadline.asgi import DeadlineMiddleware, Message, Receive, Send

CALLS: Final = 1_000
"""In one run."""
RUNS: Final = 60
SYNC_MAX_US: Final = 4.0
RATIO_MAX: Final = 1.5

App = Callable[[Any, Receive, Send], Awaitable[None]]


def least(run: Callable[[], float]) -> float:
    """Microseconds a call, in the quickest of the runs."""
    return min(run() for _ in range(RUNS)) / CALLS * 1e6


def least_of_two(one: Callable[[], float], other: Callable[[], float]) -> tuple[float, float]:
    """The same of two that take turns."""
    runs = [(one(), other()) for _ in range(RUNS)]
    first, second = zip(*runs, strict=True)
    return min(first) / CALLS * 1e6, min(second) / CALLS * 1e6


def sync_scope() -> float:
    """Seconds for `CALLS` of `with deadline(…): timeout_for(…)`."""
    started = time.perf_counter()
    for _ in range(CALLS):
        with deadline(2.0):
            timeout_for(1.0)
    return time.perf_counter() - started


async def async_scope() -> float:
    """The same of `async with deadline(…)`."""
    started = time.perf_counter()
    for _ in range(CALLS):
        async with deadline(2.0):
            pass
    return time.perf_counter() - started


async def bare_timeout() -> float:
    """The same of `asyncio.timeout`."""
    started = time.perf_counter()
    for _ in range(CALLS):
        async with asyncio.timeout(2.0):  # noqa: ASYNC100 - its cost is what is measured
            pass
    return time.perf_counter() - started


async def requests(app: App, headers: list[tuple[bytes, bytes]]) -> float:
    """Seconds for `CALLS` requests straight into an ASGI app."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/orders/17",
        "raw_path": b"/orders/17",
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_message: Message) -> None:
        pass

    started = time.perf_counter()
    for _ in range(CALLS):
        await app(dict(scope), receive, send)
    return time.perf_counter() - started


def bounded_by_timeout(app: App) -> App:
    """What one writes without this library."""

    async def bounded(scope: Any, receive: Receive, send: Send) -> None:
        async with asyncio.timeout(2.0):
            await app(scope, receive, send)

    return bounded


async def plain(_scope: Any, _receive: Receive, send: Send) -> None:
    """The least an ASGI app can do: an upper bound of the ratio."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def framework() -> App:
    """A FastAPI app with one route."""
    app = FastAPI()

    @app.get("/orders/{order}")
    async def order(order: int) -> dict[str, int]:
        return {"order": order}

    return app


def measure() -> dict[str, float]:
    """All figures."""
    headers = [(b"host", b"example.com"), (b"accept", b"*/*"), (b"user-agent", b"bench"), (b"request-timeout", b"2.5")]
    figures = {"sync_us": least(sync_scope)}
    with asyncio.Runner() as runner:

        def timed(work: Callable[[], Awaitable[float]]) -> Callable[[], float]:
            async def main() -> float:
                return await work()

            return lambda: runner.run(main())

        def compare(name: str, bare: Callable[[], float], ours: Callable[[], float], suffix: str) -> None:
            bare_us, ours_us = least_of_two(bare, ours)
            figures.update(
                {f"{name}_timeout_us": bare_us, f"{name}_{suffix}_us": ours_us, f"{name}_ratio": ours_us / bare_us}
            )

        compare("async", timed(bare_timeout), timed(async_scope), "scope")
        for name, app in (("plain", plain), ("fastapi", framework())):
            bare = bounded_by_timeout(app)
            ours = DeadlineMiddleware(app, counters=Counters())
            compare(
                name,
                timed(functools.partial(requests, bare, headers)),
                timed(functools.partial(requests, ours, headers)),
                "middleware",
            )
    return figures


def main(arguments: list[str]) -> int:
    """Print the figures; 1 when one is over its bound."""
    figures = measure()
    if "--json" in arguments:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:24} {value:8.2f}")
    held = figures["sync_us"] <= SYNC_MAX_US and max(figures["async_ratio"], figures["fastapi_ratio"]) <= RATIO_MAX
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
