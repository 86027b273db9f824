"""One round of one HTTP client, in a process of its own: reads its task as JSON from standard input, prints what it used.

It drives the client as a user would (public calls, one event loop, uvloop) and counts CPU over all threads. Started by
`bench.client` only.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass

import uvloop

from bench.machine import cpu_time, pin, raise_file_limit, rss_bytes

PAYLOAD = b'{"type":"bench.event","data":"' + b"x" * (1024 - 32) + b'"}'
"""Exactly 1 KiB of JSON."""

DRAWS = 20_000
"""Hosts are drawn at random, the same for every client: events arrive in no order, and some meet at one host."""

Send = Callable[[str], Awaitable[bool]]
"""One POST to a URL; True when it was answered 2xx and the response was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTask:
    """What one round does."""

    client: str
    urls: Sequence[str]
    """Hosts that get the load."""
    idle_urls: Sequence[str] = ()
    """Hosts that get one request each first, and then sit idle in the pool."""
    in_flight: int
    warm_up: int
    """Requests before counting starts."""
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What one round used."""

    requests: int
    failed: int
    seconds: float
    cpu_user: float
    cpu_system: float
    rss_before: int
    """Bytes resident before the first connection."""
    rss_idle: int
    """Bytes resident with the idle connections open."""
    pinned: bool
    """The process kept to one core, the receiver on another."""


async def run_round(task: RoundTask, pinned: bool) -> RoundResult:
    """Open the idle hosts, warm up, then count."""
    rss_before = rss_bytes()
    async with AsyncExitStack() as stack:
        send = await OPENERS[task.client](stack, task)
        failed = await drive(send, task.idle_urls, 64, len(task.idle_urls))
        rss_idle = rss_bytes()
        order = random.Random(1).choices(task.urls, k=DRAWS)
        failed += await drive(send, order, task.in_flight, task.warm_up)
        started, used = time.perf_counter(), cpu_time()
        failed += await drive(send, order, task.in_flight, task.requests)
        used = cpu_time().since(used)
        seconds = time.perf_counter() - started
    return RoundResult(
        requests=task.requests,
        failed=failed,
        seconds=seconds,
        cpu_user=used.user,
        cpu_system=used.system,
        rss_before=rss_before,
        rss_idle=rss_idle,
        pinned=pinned,
    )


async def drive(send: Send, urls: Sequence[str], in_flight: int, requests: int) -> int:
    """Closed loop: `in_flight` tasks share `requests`, over `urls` in turn. Returns how many failed."""
    turn = itertools.cycle(urls)
    left = requests
    failed = 0

    async def lane() -> None:
        nonlocal left, failed
        while left > 0:
            left -= 1
            if not await send(next(turn)):
                failed += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(min(in_flight, requests)):
            group.create_task(lane())
    return failed


async def open_gatepost(stack: AsyncExitStack, task: RoundTask) -> Send:
    """Our client, its ceilings raised to what the round opens, as `gatepost serve` does."""
    from gatepost import ClientPolicy, DispatchClient, EgressPolicy

    policy = ClientPolicy(
        max_connections=len(task.urls) * 8 + len(task.idle_urls) + task.in_flight,
        keepalive_expiry=600.0,
        max_connection_age=600.0,
    )
    egress = EgressPolicy(schemes=("http",), allow_cidrs=("127.0.0.0/8",))
    client = await stack.enter_async_context(DispatchClient(policy, egress=egress))

    async def send(url: str) -> bool:
        return (await client.deliver(url, PAYLOAD)).delivered

    return send


async def open_aiohttp(stack: AsyncExitStack, task: RoundTask) -> Send:
    """aiohttp at its quickest: no limit, no cookies, no tracing; the response is read."""
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=600.0)
    session = await stack.enter_async_context(
        aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
    )
    headers = {"content-type": "application/json"}

    async def send(url: str) -> bool:
        async with session.post(url, data=PAYLOAD, headers=headers) as response:
            await response.read()
            return response.status == 200

    return send


async def open_httpx2(stack: AsyncExitStack, task: RoundTask) -> Send:
    """httpx2 without limits of its own."""
    import httpx2

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=600.0)
    client = await stack.enter_async_context(httpx2.AsyncClient(limits=limits, timeout=60.0, trust_env=False))
    headers = {"content-type": "application/json"}

    async def send(url: str) -> bool:
        response = await client.post(url, content=PAYLOAD, headers=headers)
        return response.status_code == 200

    return send


async def open_httpx(stack: AsyncExitStack, task: RoundTask) -> Send:
    """httpx without limits of its own."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=600.0)
    client = await stack.enter_async_context(httpx.AsyncClient(limits=limits, timeout=60.0, trust_env=False))
    headers = {"content-type": "application/json"}

    async def send(url: str) -> bool:
        response = await client.post(url, content=PAYLOAD, headers=headers)
        return response.status_code == 200

    return send


async def open_httpx_limited(stack: AsyncExitStack, task: RoundTask) -> Send:
    """httpx as a careful user sets it up: layered timeouts, 200 connections, and a gate of 6 for each endpoint.

    A gate that is not free within a second sheds the delivery, which counts as failed here. Endpoints on loopback differ
    by port only, so the gate is by host and port.
    """
    import httpx

    client = await stack.enter_async_context(
        httpx.AsyncClient(
            timeout=httpx.Timeout(connect=3.0, write=5.0, read=10.0, pool=2.0),
            limits=httpx.Limits(max_connections=200, max_keepalive_connections=100, keepalive_expiry=30.0),
            follow_redirects=False,
            trust_env=False,
        )
    )
    gates: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(6))
    headers = {"content-type": "application/json"}

    async def send(url: str) -> bool:
        gate = gates[httpx.URL(url).netloc.decode()]
        try:
            async with asyncio.timeout(1.0):
                await gate.acquire()
        except TimeoutError:
            return False
        try:
            response = await client.post(url, content=PAYLOAD, headers=headers)
        except httpx.HTTPError:
            return False
        finally:
            gate.release()
        return response.status_code == 200

    return send


Opener = Callable[[AsyncExitStack, RoundTask], Awaitable[Send]]
OPENERS: dict[str, Opener] = {
    "gatepost": open_gatepost,
    "aiohttp": open_aiohttp,
    "httpx2": open_httpx2,
    "httpx": open_httpx,
    "httpx-limited": open_httpx_limited,
}


def main() -> int:
    """Read the task, run it, print the result as one JSON line."""
    task = RoundTask(**json.load(sys.stdin))
    raise_file_limit()
    print(json.dumps(asdict(uvloop.run(run_round(task, pin(0, 0))))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
