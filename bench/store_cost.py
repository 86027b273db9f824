"""What the SQLite store costs per delivery in CPU time, all threads counted: `python -m bench.store_cost [--json]`.

A loop of enqueue (1 KiB event, one delivery, an idempotency key) and settle (delivered, with an attempt row), in batches, on
a file with a history; then peeks of a backlog. Figures are CPU microseconds of the whole process per row.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gatepost.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from gatepost.delivery.ids import IdSource, new_endpoint_number
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
from gatepost.store.sqlite.store import SqliteStore


def make_events(ids: IdSource, endpoints: Sequence[int], count: int, body: bytes, start: int) -> list[NewEvent]:
    """Events with a key, for endpoints in turn."""
    now = SYSTEM_CLOCK.wall_us()
    events = []
    for at in range(start, start + count):
        event_id, delivery_id = ids.next(), ids.next()
        lane = lane_of(endpoints[(at * 7919) % len(endpoints)], 0)
        target = Target(lane, 0, delivery_id, now)
        key = f"order-{event_id}-{at}"
        events.append(NewEvent(event_id, "default", key, "invoice.paid", "application/json", body, now, (target,)))
    return events


def make_settle(events: Sequence[NewEvent], epoch: int) -> SettleBatch:
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
    return SettleBatch({0: epoch}, done=done, attempts=attempts)


async def measure(path: Path, *, rounds: int, batch: int, endpoint_count: int, warm: int) -> dict[str, float]:
    """Figures of one run, by name."""
    store = SqliteStore.open(path)
    try:
        heartbeat = await store.heartbeat(Node("bench"), {}, 1)
        epoch = heartbeat.leases[0].epoch
        ids = IdSource(await store.new_node(), SYSTEM_CLOCK)
        endpoints = [new_endpoint_number(SYSTEM_ENTROPY) for _ in range(endpoint_count)]
        body = os.urandom(1_024)
        spent = {"make": 0.0, "enqueue": 0.0, "settle": 0.0}
        waiting: list[list[NewEvent]] = []
        wall = 0.0
        for number in range(warm + rounds):
            if number == warm:
                spent = dict.fromkeys(spent, 0.0)
                wall = time.perf_counter()
            at = time.process_time()
            events = make_events(ids, endpoints, batch, body, number * batch)
            made = time.process_time()
            await store.enqueue(events)
            enqueued = time.process_time()
            waiting.append(events)
            spent["make"] += made - at
            spent["enqueue"] += enqueued - made
            if len(waiting) > 10:
                settle = make_settle(waiting.pop(0), epoch)
                at = time.process_time()
                await store.settle(settle)
                spent["settle"] += time.process_time() - at
        wall = time.perf_counter() - wall
        rows = rounds * batch
        figures = {f"{name}_us": spent[name] / rows * 1e6 for name in ("enqueue", "settle")}
        figures["per_delivery_us"] = figures["enqueue_us"] + figures["settle_us"]
        figures["deliveries_per_s_one_caller"] = rows / wall
        figures["peek_us"] = await measure_peek(store, ids, endpoints, body, batch)
        figures["page_ms"] = await measure_pages(store, endpoints)
        return figures
    finally:
        await store.aclose()


async def measure_peek(store: SqliteStore, ids: IdSource, endpoints: Sequence[int], body: bytes, batch: int) -> float:
    """CPU microseconds per peeked row, 24 rows a lane."""
    backlog = 24 * 50
    for start in range(0, backlog, batch):
        await store.enqueue(make_events(ids, endpoints[:50], batch, body, start))
    wants = [LaneWant(lane_of(endpoint, 0), 24, 0) for endpoint in endpoints[:50]]
    now = SYSTEM_CLOCK.wall_us()
    at = time.process_time()
    rows = 0
    for _ in range(20):
        rows += sum(len(lane.rows) for lane in await store.peek(wants, now))
    return (time.process_time() - at) / rows * 1e6


async def measure_pages(store: SqliteStore, endpoints: Sequence[int]) -> float:
    """Milliseconds for an operator's page of 50, by endpoint and by tenant in turn."""
    at = time.perf_counter()
    for endpoint in endpoints[:20]:
        await store.deliveries(DeliveryFilter(endpoint=endpoint), None, 50)
        await store.deliveries(DeliveryFilter(tenant="default"), None, 50)
    return (time.perf_counter() - at) / 40 * 1e3


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1_000, help="batches measured")
    parser.add_argument("--warm", type=int, default=1_000, help="batches before, so that the file has a history")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--endpoints", type=int, default=400)
    parser.add_argument(
        "--directory", type=Path, default=None, help="where the file goes; default: the temporary directory"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        figures = asyncio.run(
            measure(
                Path(directory) / "bench.db",
                rounds=options.rounds,
                batch=options.batch,
                endpoint_count=options.endpoints,
                warm=options.warm,
            )
        )
    figures = {name: round(value, 2) for name, value in figures.items()}
    setup = {"batch": options.batch, "endpoints": options.endpoints, "sqlite": sqlite3.sqlite_version}
    if options.json:
        print(json.dumps({**setup, **figures}))
    else:
        for name, value in {**setup, **figures}.items():
            print(f"{name:<30}{value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
