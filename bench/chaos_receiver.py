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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Self

from bench.chaos_overlaps import NOBODY, Overlap, Start
from bench.peer_process import process_at

DELAY: Final = (0.005, 0.025)
"""Seconds an answer takes, drawn evenly."""
ANSWERS: Final = {
    True: b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    False: b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n",
}
REFUSED: Final = b"HTTP/1.1 425 X\r\ncontent-length: 0\r\n\r\n"
"""What a broken endpoint says: tried again like a 500, but an answer, so that no breaker holds what is to die soon."""


@dataclass(slots=True)
class Arrivals:
    """What came."""

    starts: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """Successes by (webhook id, endpoint), written `id/endpoint`."""
    successes: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    """Monotonic seconds and sender's process of each success, by the same."""
    begun: dict[int, float] = field(default_factory=dict)
    """Monotonic seconds of an event's first start, by sequence number."""
    done: dict[int, float] = field(default_factory=dict)
    """The same of its first success that was answered."""
    overlaps: list[Overlap] = field(default_factory=list)
    """Starts at an endpoint that had its cap in flight already, or something of another process."""
    log: list[Start] = field(default_factory=list)
    """All starts."""
    early: int = 0
    """Starts before the time that the event was published for."""
    out_of_order: int = 0
    """Starts of an ordered event before the one ahead of it had succeeded."""
    last_at: dict[int, float] = field(default_factory=dict)
    """Monotonic seconds of the last start, by endpoint."""

    @property
    def over_cap(self) -> int:
        """How many starts above the cap."""
        return sum(one.over_cap for one in self.overlaps)


class ChaosReceiver:
    """`async with ChaosReceiver(cap=6, failing=0.1) as receiver`: `receiver.url(n)` is endpoint n.

    Bodies are `{"seq": number, "ahead": sequence number of the key's event before it, or null, "not_before": Unix seconds or
    absent}`. `senders` tells the processes that may be at the other end. Endpoints in `broken` answer 425 to everything.
    """

    def __init__(
        self, *, cap: int, failing: float, seed: int = 1, senders: Callable[[], Iterable[int]] = tuple
    ) -> None:
        self._cap = cap
        self._failing = failing
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._senders = senders
        self._in_flight: dict[int, list[int]] = defaultdict(list)
        self.broken: set[int] = set()
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
        peer = writer.get_extra_info("peername")
        # In a thread: after a crash hundreds connect at once, and answers must not wait for all these looks.
        senders = list(self._senders())
        pid = await asyncio.to_thread(process_at, peer[1], self.port, senders) if peer and senders else NOBODY
        try:
            while await self._exchange(reader, writer, pid):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the sender was killed, which is what this is about
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = head.split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
        body = json.loads(await reader.readexactly(int(fields["content-length"])))
        endpoint = int(lines[0].split()[1].rpartition("/")[2])
        good = self._random.random() >= self._failing and endpoint not in self.broken
        self._start(endpoint, fields["webhook-id"], body, good, pid)
        try:
            try:
                async with asyncio.timeout(self._random.uniform(*DELAY)):
                    return bool(await reader.read(1))  # nothing more is sent before our answer, so this is the end
            except TimeoutError:
                pass
            if good:
                self._succeed(endpoint, body)
            writer.write(REFUSED if endpoint in self.broken else ANSWERS[good])
            await writer.drain()
        finally:
            self._in_flight[endpoint].remove(pid)
        return True

    def _start(self, endpoint: int, webhook_id: str, body: dict[str, Any], good: bool, pid: int) -> None:
        arrivals = self.arrivals
        now = time.monotonic()
        arrivals.starts += 1
        arrivals.last_at[endpoint] = now
        arrivals.begun.setdefault(body["seq"], now)
        arrivals.early += time.time() < body.get("not_before", 0.0)
        in_flight = self._in_flight[endpoint]
        arrivals.log.append(Start(endpoint, now, pid))
        over = len(in_flight) >= self._cap
        if over or (pid != NOBODY and any(other not in (pid, NOBODY) for other in in_flight)):
            arrivals.overlaps.append(Overlap(endpoint, now, pid, tuple(in_flight), over))
        in_flight.append(pid)
        ahead = body.get("ahead")
        if ahead is not None and ahead not in self._done[endpoint]:
            arrivals.out_of_order += 1
        if good:
            name = f"{webhook_id}/{endpoint}"
            arrivals.counts[name] += 1
            arrivals.successes[name].append((now, pid))

    def _succeed(self, endpoint: int, body: dict[str, Any]) -> None:
        self._done[endpoint].add(body["seq"])
        self.arrivals.done.setdefault(body["seq"], time.monotonic())
