"""The receiver of the chaos runs: answers slowly, fails a share of what it gets, and remembers who came when.

It runs in the event loop of `bench.chaos`. A request counts as arrived when it was read whole and is going to be answered 200,
whether or not the sender lives to read that: what a receiver has done is done.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final, Self

DELAY: Final = (0.005, 0.025)
"""Seconds an answer takes, drawn evenly."""
ANSWERS: Final = {
    True: b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    False: b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n",
}


@dataclass(slots=True)
class Arrivals:
    """What came."""

    starts: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """Successes by (webhook id, endpoint), written `id/endpoint`."""
    first_at: dict[str, float] = field(default_factory=dict)
    """Monotonic seconds of the first success, by the same."""
    over_cap: int = 0
    """Starts at an endpoint that had its cap in flight already."""
    out_of_order: int = 0
    """Starts of an ordered event before the one ahead of it had succeeded."""
    last_at: dict[int, float] = field(default_factory=dict)
    """Monotonic seconds of the last start, by endpoint."""


class ChaosReceiver:
    """`async with ChaosReceiver(cap=6, failing=0.1) as receiver`: `receiver.url(n)` is endpoint n.

    Bodies are `{"seq": number, "key": key or null, "ahead": sequence number of the key's event before it, or null}`.
    """

    def __init__(self, *, cap: int, failing: float, seed: int = 1) -> None:
        self._cap = cap
        self._failing = failing
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._in_flight: dict[int, int] = defaultdict(int)
        self._done: dict[int, set[int]] = defaultdict(set)
        self.arrivals = Arrivals()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1_024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    def url(self, number: int) -> str:
        """Where endpoint `number` listens."""
        return f"http://127.0.0.1:{self.port}/e/{number}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the sender was killed, which is what this is about
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = head.split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
        body = json.loads(await reader.readexactly(int(fields["content-length"])))
        endpoint = int(lines[0].split()[1].rpartition("/")[2])
        good = self._random.random() >= self._failing
        self._start(endpoint, fields["webhook-id"], body, good)
        try:
            try:
                async with asyncio.timeout(self._random.uniform(*DELAY)):
                    return bool(await reader.read(1))  # nothing more is sent before our answer, so this is the end
            except TimeoutError:
                pass
            if good:
                self._succeed(endpoint, fields["webhook-id"], body)
            writer.write(ANSWERS[good])
            await writer.drain()
        finally:
            self._in_flight[endpoint] -= 1
        return True

    def _start(self, endpoint: int, webhook_id: str, body: dict[str, int], good: bool) -> None:
        arrivals = self.arrivals
        arrivals.starts += 1
        arrivals.last_at[endpoint] = time.monotonic()
        if self._in_flight[endpoint] >= self._cap:
            arrivals.over_cap += 1
        self._in_flight[endpoint] += 1
        ahead = body.get("ahead")
        if ahead is not None and ahead not in self._done[endpoint]:
            arrivals.out_of_order += 1
        if good:
            name = f"{webhook_id}/{endpoint}"
            arrivals.counts[name] += 1
            arrivals.first_at.setdefault(name, time.monotonic())

    def _succeed(self, endpoint: int, webhook_id: str, body: dict[str, int]) -> None:
        self._done[endpoint].add(body["seq"])
