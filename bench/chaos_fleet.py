"""What the chaos scenarios play with: workers in processes of their own, publishers that repeat themselves, a receiver, a database.

Used by `bench.chaos`; it breaks nothing itself.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.chaos_receiver import ChaosReceiver
from bench.postgres import MeasuredServer
from bench.rig import LOOPBACK
from gatepost import Dispatcher, Endpoint
from gatepost.errors import Overloaded, StoreError
from gatepost.store.rows import DeadFilter
from gatepost.testing.cut_proxy import CutProxy

ROOT: Final = Path(__file__).resolve().parents[1]
CAP: Final = 4
"""Attempts in flight at one endpoint."""
ENDPOINTS: Final = 60
ORDERED: Final = 20
"""Of the endpoints, how many get ordered events."""
KEYS: Final = 3
"""Ordering keys of each ordered endpoint."""
DOOMED: Final = ENDPOINTS
"""Number of an endpoint more, which fails all it gets until the run's end: its dead letters are replayed then."""
DOOMED_EVENTS: Final = 20
DOOMED_SCHEDULE: Final = (0.0, 0.2)
LATER: Final = 0.02
"""Share of the unordered events that are published for `LATER_BY` seconds later."""
LATER_BY: Final = 2.0
TWICE: Final = 0.05
"""Share of the events published twice at once under one idempotency key."""
SCHEDULE: Final = (0.0, 0.2, 0.4, 0.8, 1.5, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0)
"""Delays before each attempt: a run must end."""
READY_LIMIT: Final = 60.0
PUBLISHERS: Final = 32


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run does."""

    workers: int
    events: int
    rate: float
    """Events a second."""
    kills: int = 0
    restarts: int = 0
    """Of the database, immediate: no checkpoint, all sessions gone."""
    freezes: int = 0
    cuts: int = 0
    """Commits whose answer is lost on its way to the first worker."""
    silences: int = 0
    """The first worker's connections go silent for longer than a lease."""
    failing: float = 0.1
    order: Sequence[str] = ()
    """Faults in this order (kill, restart, freeze, cut, silence) instead of shuffled counts of them."""
    gap: float | None = None
    """Seconds between faults; None spreads them over the time that the events take."""
    breakers: bool = False
    """Whether the workers' breakers are on: what they hold then waits longer than a fault explains."""
    logs: Path | None = None
    """A directory for what the workers say; None: nowhere."""

    def faults(self) -> list[str]:
        """All of them, in turn."""
        if self.order:
            return list(self.order)
        faults = ["kill"] * self.kills + ["restart"] * self.restarts + ["freeze"] * self.freezes
        faults += ["cut"] * self.cuts + ["silence"] * self.silences
        random.Random(3).shuffle(faults)
        return faults


@dataclass(slots=True)
class Worker:
    """A process that delivers."""

    number: int
    url: str
    process: asyncio.subprocess.Process


@dataclass(slots=True)
class Published:
    """What was accepted."""

    ids: dict[int, str] = field(default_factory=dict)
    """Event id by sequence number."""
    endpoints: dict[int, int] = field(default_factory=dict)
    """The endpoint of each."""
    ready: dict[int, float] = field(default_factory=dict)
    """Monotonic seconds from which each could start, were nothing ahead of it."""
    ahead: dict[int, int] = field(default_factory=dict)
    """The event before it under its ordering key."""
    chains: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    """The events of each (endpoint, ordering key), in the order they were accepted."""
    timed: int = 0
    """Events published for later."""
    repeated: int = 0
    split: int = 0
    """Keys that were answered with two event ids: must be 0."""
    retried: int = 0
    """Publishes repeated because the store did not answer."""


class Fleet:
    """Workers on one database, started, killed and replaced."""

    def __init__(
        self, server: MeasuredServer, proxy: CutProxy, logs: Path | None = None, breakers: bool = False
    ) -> None:
        self._server = server
        self._proxy = proxy
        self._logs = logs
        self._breakers = breakers
        self._started: list[Worker] = []
        self.workers: list[Worker] = []
        """Those that were ready, the dead ones until they are replaced."""
        self.frozen: set[int] = set()
        """Processes that are stopped."""

    @property
    def running(self) -> list[Worker]:
        """Those that live and are not stopped, by their number."""
        able = [one for one in self.living if one.process.pid not in self.frozen]
        return sorted(able, key=lambda one: one.number)

    @property
    def living(self) -> list[Worker]:
        """Those that run."""
        return [one for one in self.workers if one.process.returncode is None]

    @property
    def pids(self) -> list[int]:
        """Of all that were ever started, the newest first."""
        return [one.process.pid for one in reversed(self._started)]

    async def start(self, number: int) -> Worker:
        """Start worker `number`, the first behind the proxy; returns when it holds parts."""
        url = self._proxy.url(self._server.url) if number == 0 else self._server.url
        with open(os.devnull if self._logs is None else self._logs / f"worker-{number}.log", "ab") as log:  # noqa: ASYNC230
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "bench.chaos_worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
            )
        worker = Worker(number, url, process)
        self._started.append(worker)
        task = {"url": url, "keys": list(self._server.keys), "cap": CAP, "breakers": self._breakers}
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(task).encode() + b"\n")
        async with asyncio.timeout(READY_LIMIT):
            if (await process.stdout.readline()).strip() != b"ready":
                raise RuntimeError(f"worker {number} ended with {await process.wait()}")
        self.workers = [one for one in self.workers if one.number != number] + [worker]
        return worker

    async def kill(self, worker: Worker) -> None:
        """SIGKILL."""
        worker.process.kill()
        await worker.process.wait()

    async def drain(self, worker: Worker) -> None:
        """SIGTERM, and wait for its end."""
        worker.process.terminate()
        if await worker.process.wait() != 0:
            raise RuntimeError(f"worker {worker.number} did not end well")

    async def stop(self) -> None:
        """End all."""
        for worker in self._started:
            if worker.process.returncode is None:
                worker.process.kill()
                await worker.process.wait()


class Load:
    """Publishes at a rate, with idempotency keys, and repeats what was not answered."""

    def __init__(self, publishers: Sequence[Dispatcher], rate: float) -> None:
        self._publishers = publishers
        self._rate = rate
        self._random = random.Random(7)
        self._ahead: dict[tuple[int, int], int] = {}
        self._turns: dict[tuple[int, int], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._numbers = itertools.count()
        self.published = Published()

    async def run(self, count: int | None, stop: asyncio.Event | None = None) -> None:
        """Publish `count` events, or until `stop`."""
        started = time.monotonic()
        slots = asyncio.Semaphore(PUBLISHERS)
        async with asyncio.TaskGroup() as group:
            for done in itertools.count():
                if done == count or (stop is not None and stop.is_set()):
                    return
                wait = started + done / self._rate - time.monotonic()
                if wait > 0:
                    await asyncio.sleep(wait)
                await slots.acquire()
                task = group.create_task(self._one(next(self._numbers)))
                task.add_done_callback(lambda _: slots.release())

    async def doom(self, count: int) -> None:
        """Publish `count` events to the endpoint that fails them all."""
        for _ in range(count):
            seq = next(self._numbers)
            await self._publish_once_or_twice(seq, DOOMED, {"seq": seq}, None)

    async def replay(self, where: DeadFilter) -> int:
        """Replay dead letters; returns how many."""
        return await self._publishers[0].dead_letters.replay(where, rate=100.0)

    async def _one(self, seq: int) -> None:
        endpoint = self._random.randrange(ENDPOINTS)
        if endpoint >= ORDERED:
            body: dict[str, Any] = {"seq": seq}
            if self._random.random() < LATER:
                body["not_before"] = time.time() + LATER_BY
                self.published.timed += 1
            await self._publish_once_or_twice(seq, endpoint, body, None)
            return
        place = (endpoint, self._random.randrange(KEYS))
        # The order of a key's events is that in which they were accepted: a producer waits for one before it sends the next.
        async with self._turns[place]:
            body = {"seq": seq, "ahead": self._ahead.get(place)}
            await self._publish_once_or_twice(seq, endpoint, body, f"k{place[1]}")
            self._ahead[place] = seq
            self.published.chains[place].append(seq)
            if body["ahead"] is not None:
                self.published.ahead[seq] = body["ahead"]

    async def _publish_once_or_twice(self, seq: int, endpoint: int, body: dict[str, Any], key: str | None) -> None:
        twice = self._random.random() < TWICE
        answers = await asyncio.gather(
            *(self._publish(one, seq, endpoint, body, key) for one in self._publishers[: 2 if twice else 1])
        )
        self.published.repeated += twice
        self.published.split += len(set(answers)) > 1
        self.published.ids[seq] = answers[0]
        self.published.endpoints[seq] = endpoint
        later = max(0.0, body.get("not_before", 0.0) - time.time())
        self.published.ready[seq] = time.monotonic() + later

    async def _publish(
        self, publisher: Dispatcher, seq: int, endpoint: int, body: dict[str, Any], key: str | None
    ) -> str:
        while True:
            try:
                receipt = await publisher.publish(
                    f"chaos.{endpoint}",
                    body,
                    idempotency_key=f"run-{seq}",
                    ordering_key=key,
                    not_before=body.get("not_before"),
                )
                return receipt.event_id
            except (StoreError, Overloaded):
                self.published.retried += 1
                await asyncio.sleep(0.2)


@dataclass(slots=True)
class Field:
    """Everything a scenario plays with."""

    server: MeasuredServer
    proxy: CutProxy
    fleet: Fleet
    receiver: ChaosReceiver
    load: Load
    numbers: dict[int, int]
    """Endpoint number in the store, by ours."""
    breakers: bool


@asynccontextmanager
async def prepared(plan: Plan, server: MeasuredServer) -> AsyncIterator[Field]:
    """A receiver, publishers and workers on the database, with the endpoints registered."""
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(CutProxy.before(server.url))
        fleet = Fleet(server, proxy, plan.logs, plan.breakers)
        stack.push_async_callback(fleet.stop)
        receiver = await stack.enter_async_context(
            ChaosReceiver(cap=CAP, failing=plan.failing, senders=lambda: fleet.pids)
        )
        receiver.broken.add(DOOMED)
        publishers = [
            await stack.enter_async_context(Dispatcher.open(server.url, keys=server.keys, egress=LOOPBACK))
            for _ in range(2)
        ]
        endpoints: list[Endpoint] = [
            await publishers[0].endpoints.create(
                receiver.url(number), event_types=(f"chaos.{number}",), schedule=SCHEDULE, concurrency=CAP
            )
            for number in range(ENDPOINTS)
        ]
        endpoints.append(
            await publishers[0].endpoints.create(
                receiver.url(DOOMED), event_types=(f"chaos.{DOOMED}",), schedule=DOOMED_SCHEDULE, concurrency=CAP
            )
        )
        await asyncio.sleep(2.0)  # the second publisher follows the registry within that
        await asyncio.gather(*(fleet.start(number) for number in range(plan.workers)))
        load = Load(publishers, plan.rate)
        numbers = {number: one.number for number, one in enumerate(endpoints)}
        yield Field(server, proxy, fleet, receiver, load, numbers, plan.breakers)
