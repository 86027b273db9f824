"""What a store costs per delivery in CPU time: `python -m bench.store_cost [--store postgres]` and `gatepost bench queue`.

Enqueue (1 KiB event, one delivery, an idempotency key), peek, load of bodies and settle (delivered, with an attempt row), in
batches of 100 and 500, on a store with a history. Client figures are CPU microseconds of this whole process per row, all threads;
server figures (PostgreSQL) those of all processes of the database server, its writers and vacuum included.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.postgres import MeasuredServer, measured_server
from bench.report import Steps, add_common_options, print_json, print_line, print_machine, print_table, steps
from gatepost.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from gatepost.delivery.ids import IdSource, new_endpoint_number
from gatepost.store.open import open_store
from gatepost.store.port import Store
from gatepost.store.rows import (
    AttemptRow,
    DeliveryFilter,
    DoneRow,
    LaneWant,
    NewEvent,
    Node,
    RowKey,
    SettleBatch,
    Target,
    lane_of,
)

BATCHES: Final = (100, 500)
"""Rows in a transaction: what a settle waits for, and what it takes at most."""
STRIDE: Final = 2_000
"""Rows enqueued, read and settled in turn: long enough for the server's clock of 10 ms, short as a queue that keeps up."""
LANE_ROWS: Final = 24
"""Rows of one lane in a read."""
TARGET_US: Final = 15.0
"""Client CPU per delivery that a dispatcher may spend on the queue: reading rows and bodies, and settling."""


@dataclass(slots=True)
class Spending:
    """CPU by operation, of this process and of the database server."""

    server: MeasuredServer | None
    rows: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    client: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    database: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def of(self, name: str, rows: int) -> Iterator[None]:
        """Charge what is spent in the block to an operation on so many rows."""
        database, client = self._database(), time.process_time()
        yield
        self.client[name] += time.process_time() - client
        self.database[name] += self._database() - database
        self.rows[name] += rows

    def _database(self) -> float:
        return 0.0 if self.server is None else self.server.cpu_seconds()

    def us(self, spent: Mapping[str, float]) -> dict[str, float]:
        """Microseconds per row, by operation."""
        return {name: spent[name] / rows * 1e6 for name, rows in self.rows.items() if rows}


def make_events(ids: IdSource, lanes: Sequence[tuple[int, int]], count: int, body: bytes, start: int) -> list[NewEvent]:
    """Events with a key, for (lane, part)s in turn."""
    now = SYSTEM_CLOCK.wall_us()
    events = []
    for at in range(start, start + count):
        event_id, delivery_id = ids.next(), ids.next()
        lane, part = lanes[(at * 7919) % len(lanes)]
        target = Target(lane, part, delivery_id, now)
        key = f"order-{event_id}-{at}"
        events.append(NewEvent(event_id, "default", key, "invoice.paid", "application/json", body, now, (target,)))
    return events


def make_settle(events: Sequence[NewEvent], epochs: Mapping[int, int]) -> SettleBatch:
    """All delivered at the first attempt."""
    now = SYSTEM_CLOCK.wall_us()
    done, attempts = [], []
    for event in events:
        lane, _, delivery_id, due_at = event.targets[0]
        done.append(DoneRow(RowKey(lane, due_at, delivery_id), event.event_id))
        attempts.append(
            AttemptRow(
                delivery_id, 1, event.event_id, lane >> 8, "default", now, "response", "read", "ok", "pointless",
                "endpoint", 200, 1_834, "pool:4 write:31 wait:1700 read:3", "203.0.113.7:443", b"ok", "complete", "bench",
            )
        )  # fmt: skip
    parts = {event.targets[0].part for event in events}
    return SettleBatch({part: epochs[part] for part in parts}, done=done, attempts=attempts)


@dataclass(frozen=True, slots=True)
class Bench:
    """A store that this process owns, and what fills it."""

    store: Store
    ids: IdSource
    lanes: Sequence[tuple[int, int]]
    """(lane, part) of each endpoint."""
    epochs: Mapping[int, int]
    body: bytes

    @classmethod
    async def on(cls, store: Store, endpoints: int) -> Bench:
        """Own all of a store."""
        parts = store.capabilities.parts
        beat = await store.heartbeat(Node("bench"), {}, parts)
        if len(beat.leases) != parts:
            raise RuntimeError(f"{parts - len(beat.leases)} parts are somebody else's: measure on a store of your own")
        numbers = [new_endpoint_number(SYSTEM_ENTROPY) for _ in range(endpoints)]
        lanes = [(lane_of(number, 0), number % parts) for number in numbers]
        epochs = {part: lease.epoch for part, lease in beat.leases.items()}
        return cls(store, IdSource(await store.new_node(), SYSTEM_CLOCK), lanes, epochs, os.urandom(1_024))

    async def stride(self, spending: Spending, batch: int, start: int) -> None:
        """Enqueue, read and settle `STRIDE` rows."""
        store = self.store
        batches = [
            make_events(self.ids, self.lanes, batch, self.body, at) for at in range(start, start + STRIDE, batch)
        ]
        with spending.of("enqueue", STRIDE):
            for events in batches:
                await store.enqueue(events)
        # As a dispatcher whose events were published elsewhere: it reads their rows, then their bodies.
        wants = [LaneWant(lane, LANE_ROWS, 0) for lane, _ in self.lanes]
        now = SYSTEM_CLOCK.wall_us() + 10_000_000
        per_read = max(1, batch * len(wants) // STRIDE)
        found = 0
        with spending.of("peek", 0):
            for at in range(0, len(wants), per_read):
                found += sum(len(lane.rows) for lane in await store.peek(wants[at : at + per_read], now))
        spending.rows["peek"] += found
        with spending.of("load bodies", STRIDE):
            for events in batches:
                await store.load_events([event.event_id for event in events])
        results = [make_settle(events, self.epochs) for events in batches]
        with spending.of("settle", STRIDE):
            for result in results:
                await store.settle(result)

    async def page_ms(self) -> float:
        """Milliseconds for an operator's page of 50, by endpoint and by tenant in turn."""
        at = time.perf_counter()
        for lane, _ in self.lanes[:20]:
            await self.store.deliveries(DeliveryFilter(endpoint=lane >> 8), None, 50)
            await self.store.deliveries(DeliveryFilter(tenant="default"), None, 50)
        return (time.perf_counter() - at) / 40 * 1e3


async def measure(
    url: str, server: MeasuredServer | None, *, strides: int, warm: int, endpoints: int, progress: Steps
) -> dict[str, Any]:
    """Figures by batch."""
    store = await open_store(url, keys=None if server is None else server.keys)
    try:
        bench = await Bench.on(store, endpoints)
        result: dict[str, Any] = {"batches": {}}
        start = 0
        for batch in BATCHES:
            progress.begin(f"batches of {batch}")
            spending = Spending(server)
            for number in range(warm + strides):
                if number == warm:
                    spending = Spending(server)
                    wall = time.perf_counter()
                await bench.stride(spending, batch, start)
                start += STRIDE
                progress.done()
            result["batches"][str(batch)] = _figures(spending, strides * STRIDE / (time.perf_counter() - wall))
        result["page_ms"] = round(await bench.page_ms(), 2)
        return result
    finally:
        await store.aclose()


def _figures(spending: Spending, rate: float) -> dict[str, Any]:
    client = spending.us(spending.client)
    figures: dict[str, Any] = {
        "client_us": {name: round(cost, 2) for name, cost in client.items()},
        "dispatcher_us_per_delivery": round(client["peek"] + client["load bodies"] + client["settle"], 2),
        "per_delivery_us": round(sum(client.values()), 2),
        "deliveries_per_s_one_caller": round(rate),
    }
    if spending.server is not None:
        database = spending.us(spending.database)
        figures["server_us"] = {name: round(cost, 1) for name, cost in database.items()}
        figures["server_us_per_delivery"] = round(sum(database.values()), 1)
    return figures


def run(store: str, *, strides: int, warm: int, endpoints: int, directory: str | None = None) -> dict[str, Any]:
    """Measure on a fresh store."""
    with steps(len(BATCHES) * (strides + warm)) as progress:
        if store == "postgres":
            with measured_server(directory) as server:
                figures = uvloop.run(
                    measure(server.url, server, strides=strides, warm=warm, endpoints=endpoints, progress=progress)
                )
        else:
            with tempfile.TemporaryDirectory(dir=directory) as place:
                figures = uvloop.run(
                    measure(
                        f"sqlite:///{Path(place) / 'bench.db'}",
                        None,
                        strides=strides,
                        warm=warm,
                        endpoints=endpoints,
                        progress=progress,
                    )
                )
    about = {"store": store, "endpoints": endpoints, "rows": strides * STRIDE, "target_us": TARGET_US}
    return {**about, **({"sqlite": sqlite3.sqlite_version} if store == "sqlite" else {}), **figures}


def show(result: dict[str, Any]) -> None:
    """A table for people."""
    batches = result["batches"]
    rows: list[tuple[object, ...]] = []
    for side in ("client", "server"):
        for name in next(iter(batches.values())).get(f"{side}_us", {}):
            rows.append((f"{side}: {name}", *(one[f"{side}_us"][name] for one in batches.values())))
    for key, name in (
        ("dispatcher_us_per_delivery", "client: all but enqueue, a dispatcher"),
        ("per_delivery_us", "client: all"),
        ("server_us_per_delivery", "server: all"),
        ("deliveries_per_s_one_caller", "deliveries per second, one caller"),
    ):
        if key in next(iter(batches.values())):
            rows.append((name, *(one[key] for one in batches.values())))
    print_table(
        f"CPU µs per delivery of the queue on {result['store']}, {result['endpoints']} endpoints",
        ("", *(f"batches of {batch}" for batch in batches)),
        rows,
    )
    print_line(
        f"An operator's page of 50: {result['page_ms']} ms. Target: a dispatcher's share below {TARGET_US:g} µs."
    )
    print_machine()


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser("bench.queue", description=__doc__.partition("\n")[0] if __doc__ else None)
    add_common_options(parser)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--strides", type=int, help=f"{STRIDE:,} rows each (default 25; 4 with --quick)")
    parser.add_argument("--warm", type=int, help="strides before, so that the store has a history (default 25; 1)")
    parser.add_argument("--endpoints", type=int, default=400)
    parser.add_argument("--directory", help="where the database goes; default: the temporary directory")
    options = parser.parse_args(argv)
    strides = options.strides or (4 if options.quick else 25)
    warm = (1 if options.quick else 25) if options.warm is None else options.warm
    result = run(options.store, strides=strides, warm=warm, endpoints=options.endpoints, directory=options.directory)
    if options.json:
        print_json(result)
    else:
        show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
