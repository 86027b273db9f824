"""A real `Dispatcher` under load, for the pipeline, isolation and memory benchmarks: endpoints, a tally, and two ways to publish.

It runs in the measured process. Closed loop keeps a given number of deliveries waiting or in flight; open loop publishes at
fixed instants whatever happens, so that a stall shows as latency and not as fewer events.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gatepost import ClientPolicy, Dispatcher, EgressPolicy
from gatepost.dispatch.dispatcher import DispatcherSettings
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation

PAYLOAD: Final = b'{"type":"bench.event","data":"' + b"x" * (1024 - 32) + b'"}'
"""Exactly 1 KiB of JSON."""
PUBLISHERS: Final = 128
"""Concurrent publishers, as an API under load has: their events share commits."""
TICK: Final = 0.004
"""Seconds between releases of the open loop; also its resolution."""
FOLLOWED: Final = 2.0
"""Seconds within which every process of a fleet hears of an endpoint."""
LOOPBACK: Final = EgressPolicy(schemes=("http", "https"), allow_cidrs=("127.0.0.0/8",))


@dataclass(slots=True)
class Tally:
    """Counts what the dispatcher decides; an `Observer`."""

    published: int = 0
    completed: int = 0
    others: Counter[str] = field(default_factory=Counter)
    """Decisions other than complete, by decision and reason."""
    apart: str | None = None
    """The event type of a backlog: its completions are counted in `others`, since they are not in `published`."""

    @property
    def outstanding(self) -> int:
        """Published and not delivered."""
        return self.published - self.completed

    def attempt_finished(self, observation: AttemptObservation) -> None:
        """Not counted: decisions are."""

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        """Count it."""
        if observation.decision == "complete" and observation.event_type != self.apart:
            self.completed += 1
        else:
            self.others[f"{observation.decision} {observation.why}"] += 1

    def operational(self, observation: OperationalObservation) -> None:
        """Count it, so that the report shows what was wrong."""
        self.others[f"operational {observation.kind}"] += 1


@dataclass(slots=True)
class Rig:
    """An open dispatcher with one endpoint per URL."""

    gp: Dispatcher
    tally: Tally
    types: Sequence[str]
    """Event types; each goes to exactly one endpoint."""
    payload: bytes = PAYLOAD
    due_ns: dict[str, int] = field(default_factory=dict)
    """When each event of an open loop was due, monotonic ns, by event id."""

    async def publish(self, number: int) -> str:
        """Publish one event to the endpoint `number` (counted round); returns its id."""
        self.tally.published += 1
        receipt = await self.gp.publish(self.types[number % len(self.types)], self.payload)
        return receipt.event_id

    async def closed_loop(self, depth: int, stop: asyncio.Event) -> None:
        """Keep `depth` deliveries outstanding until `stop`; begins with nothing outstanding."""
        turn = 0
        # With several processes each delivers what others published: what was published here and is done stays a difference.
        base = self.tally.outstanding

        async def publisher() -> None:
            nonlocal turn
            while not stop.is_set():
                if self.tally.outstanding - base >= depth:
                    await asyncio.sleep(TICK / 2)
                    continue
                turn += 1
                await self.publish(turn)

        async with asyncio.TaskGroup() as group:
            for _ in range(PUBLISHERS):
                group.create_task(publisher())

    async def open_loop(self, rate: float, seconds: float) -> int:
        """Publish `rate` events a second at fixed instants; returns how many. Due instants are in `due_ns`."""
        waiting: asyncio.Queue[tuple[int, int] | None] = asyncio.Queue()

        async def publisher() -> None:
            while (item := await waiting.get()) is not None:
                number, due = item
                self.due_ns[await self.publish(number)] = due

        count = round(rate * seconds)
        async with asyncio.TaskGroup() as group:
            for _ in range(PUBLISHERS * 4):
                group.create_task(publisher())
            started = time.monotonic_ns()
            released = 0
            while released < count:
                elapsed = (time.monotonic_ns() - started) / 1e9
                for number in range(released, min(count, int(elapsed * rate) + 1)):
                    waiting.put_nowait((number, started + round(number / rate * 1e9)))
                    released = number + 1
                await asyncio.sleep(TICK)
            for _ in range(PUBLISHERS * 4):
                waiting.put_nowait(None)
        return count

    async def wait_share(self, processes: int, seconds: float) -> bool:
        """Wait until this process owns its share of the parts and has heard of all endpoints; False when that took too long."""
        share = self.gp.store.capabilities.parts / processes
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            await asyncio.sleep(FOLLOWED)
            if abs(self.gp.statistics().parts - share) <= 1:
                return True
        return False

    async def wait_still(self, seconds: float) -> None:
        """Wait until nothing was delivered here for `seconds`: with several processes nobody counts all of them."""
        seen = -1
        while seen != self.tally.completed:
            seen = self.tally.completed
            await asyncio.sleep(seconds)

    async def wait_delivered(self, seconds: float, but: int = 0) -> bool:
        """Wait until all but `but` deliveries are complete; False when `seconds` were not enough."""
        limit = time.monotonic() + seconds
        while self.tally.outstanding > but:
            if time.monotonic() > limit:
                return False
            await asyncio.sleep(0.01)
        return True


@asynccontextmanager
async def open_rig(
    directory: Path,
    urls: Sequence[str],
    *,
    slots: int,
    database: str | None = None,
    keys: Sequence[str] | None = None,
    name: str = "bench",
) -> AsyncIterator[Rig]:
    """A running dispatcher on a fresh SQLite file or on `database`, its metrics collected as `gatepost serve` does.

    `name` keeps the event types of several rigs on one database apart.
    """
    from gatepost.service.metrics import Metrics
    from gatepost.service.observers import Observers

    tally = Tally()
    policy = ClientPolicy(max_connections=max(slots * 2, len(urls) * 8), keepalive_expiry=120.0)
    async with Dispatcher.open(
        database or f"sqlite:///{directory / 'bench.db'}",
        policy=policy,
        egress=LOOPBACK,
        observer=Observers(Metrics(), tally),
        keys=keys,
        run=True,
        settings=DispatcherSettings(slots=slots),
    ) as gp:
        types = [f"{name}.{number}" for number in range(len(urls))]
        for name, url in zip(types, urls, strict=True):
            await gp.endpoints.create(url, event_types=(name,))
        yield Rig(gp, tally, types)
