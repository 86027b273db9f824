"""What a blocked endpoint's backlog costs the others: half of a million due rows wait for one that takes nothing.

The same store, alternately with that endpoint blocked (paused, or silent so that its cap is full) and open; a counting store says
which rows were read. Reports deliveries per second of both and the rows read for the blocked endpoint. `python -m bench.blocked
[--store sqlite] [--how silent]`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.bad_endpoints import silent_endpoint
from bench.machine import cpu_time, raise_file_limit
from bench.pipeline import SLOTS
from bench.postgres import measured_server
from bench.report import Steps, add_common_options, print_json, print_line, print_machine, print_table, steps
from bench.rig import LOOPBACK, Tally
from bench.store_cost import make_events
from gatepost import ClientPolicy, DispatchClient, Dispatcher
from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.ids import IdSource
from gatepost.delivery.records import Endpoint
from gatepost.dispatch.dispatcher import DispatcherSettings
from gatepost.dispatch.lanes import window_of
from gatepost.dispatch.maintenance import EXPIRE_ROWS
from gatepost.store.open import open_store
from gatepost.store.rows import lane_of
from gatepost.testing.counting_store import CountingStore
from gatepost.testing.receiver_process import ReceiverProcess

HEALTHY: Final = 200
CAP: Final = 6
BODY_BYTES: Final = 200
"""The rows are what counts here, and a million of them have to be written first."""
BATCH: Final = 500
WRITERS: Final = 4
WARM_UP: Final = 1.0
TARGET_RATIO: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run measures."""

    rows: int
    pairs: int
    seconds: float
    how: str
    """paused or silent."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where everything is."""

    url: str
    keys: Sequence[str] | None
    urls: Sequence[str]
    """Of healthy endpoints, the last one of that which is going to be blocked."""
    silent_url: str


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[tuple[Dispatcher, CountingStore, Tally]]:
    """A dispatcher that does not run yet, on a store that counts."""
    from gatepost.service.metrics import Metrics
    from gatepost.service.observers import Observers

    tally = Tally()
    policy = ClientPolicy(max_connections=SLOTS * 4, per_endpoint_concurrency=CAP, keepalive_expiry=120.0)
    store = await open_store(place.url, keys=place.keys)
    observers = Observers(Metrics(), tally)
    client = DispatchClient(policy, egress=LOOPBACK, observer=observers)
    counting = CountingStore(store)
    gp = Dispatcher(counting.as_store, client, settings=DispatcherSettings(slots=SLOTS), observer=observers)
    try:
        await gp.prepare()
        yield gp, counting, tally
    finally:
        await gp.aclose()
        await store.aclose()
        await client.aclose()


async def fill(place: Place, rows: int, progress: Steps) -> str:
    """Register the endpoints and store due rows, every other one for the last; returns that one's id."""
    async with opened(place) as (gp, _, _):
        endpoints = [await gp.endpoints.create(url, event_types=("bench.backlog",)) for url in place.urls]
        parts = gp.store.capabilities.parts
        lanes = []
        for endpoint in endpoints[:-1]:
            lanes += [_lane(endpoint, parts), _lane(endpoints[-1], parts)]
        ids = IdSource(await gp.store.new_node(), SYSTEM_CLOCK)
        body = os.urandom(BODY_BYTES)
        starts = iter(range(0, rows, BATCH))

        async def write() -> None:
            for start in starts:
                await gp.store.enqueue(make_events(ids, lanes, BATCH, body, start))
                progress.done(BATCH / rows)

        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(write())
        return endpoints[-1].id


def _lane(endpoint: Endpoint, parts: int) -> tuple[int, int]:
    return lane_of(endpoint.number, 0), endpoint.number % parts


async def measure(place: Place, endpoint_id: str, plan: Plan, *, blocked: bool) -> dict[str, Any]:
    """A fresh dispatcher on the backlog."""
    async with opened(place) as (gp, counting, tally):
        if plan.how == "silent":
            await gp.endpoints.update(endpoint_id, url=place.silent_url if blocked else place.urls[-1])
        elif blocked:
            await gp.endpoints.pause(endpoint_id)
        else:
            await gp.endpoints.resume(endpoint_id)
        gp.run_in_background()
        await asyncio.sleep(min(WARM_UP, plan.seconds))
        clock = asyncio.get_running_loop().time
        done, used, started = tally.completed, cpu_time(), clock()
        await asyncio.sleep(plan.seconds)
        count, seconds = tally.completed - done, clock() - started
        endpoint = await gp.store.endpoint(endpoint_id)
        assert endpoint is not None, "it was registered"
        return {
            "blocked": blocked,
            "deliveries_per_second": round(count / seconds, 1),
            "cpu_ms_per_delivery": round(cpu_time().since(used).total * 1_000 / max(count, 1), 5),
            "rows_read": counting.rows.total(),
            "rows_read_of_the_blocked": counting.rows_of(endpoint.number),
            "reads_of_the_blocked": counting.reads_of(endpoint.number),
            "depth_probes_of_the_blocked": counting.probes_of(endpoint.number),
        }


async def run(place: Place, plan: Plan, progress: Steps) -> dict[str, Any]:
    """Fill, then pairs in alternating order."""
    progress.begin(f"store {plan.rows:,} rows")
    endpoint_id = await fill(place, plan.rows, progress)
    pairs = []
    for number in range(plan.pairs):
        pair = {}
        for blocked in (True, False) if number % 2 == 0 else (False, True):
            progress.begin(f"pair {number + 1} of {plan.pairs}, {'blocked' if blocked else 'open'}")
            pair["blocked" if blocked else "open"] = await measure(place, endpoint_id, plan, blocked=blocked)
            progress.done()
        if min(one["deliveries_per_second"] for one in pair.values()) == 0:
            raise RuntimeError("the backlog ran dry: write more --rows")
        pairs.append(pair)
    ratios = _ratios(pairs, "deliveries_per_second")
    read = [pair["blocked"]["rows_read_of_the_blocked"] for pair in pairs]
    # Paused: the look at the head whether windows are over. Silent: one window, and what its few ended attempts make room for.
    allowed = EXPIRE_ROWS if plan.how == "paused" else 2 * window_of(CAP)
    return {
        **asdict(plan),
        "healthy_endpoints": len(place.urls) - 1,
        "throughput_ratio": round(statistics.median(ratios), 4),
        # On a machine that others use too, the steadier figure.
        "cpu_ratio": round(statistics.median(_ratios(pairs, "cpu_ms_per_delivery")), 4),
        "target_ratio": TARGET_RATIO,
        "rows_read_of_the_blocked": max(read),
        "rows_allowed": allowed,
        "rows_of_the_blocked": plan.rows // 2,
        "pairs": pairs,
        "reads_ok": max(read) <= allowed,
        "ok": max(read) <= allowed and statistics.median(ratios) >= TARGET_RATIO,
    }


def _ratios(pairs: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [pair["blocked"][name] / pair["open"][name] for pair in pairs]


@contextmanager
def prepared(store: str, directory: str | None) -> Iterator[Place]:
    """A store, a receiver and a silent address."""
    with ReceiverProcess("--ports", str(HEALTHY + 1)) as receiver, silent_endpoint() as silent_url:
        urls = [f"{url}/hooks" for url in receiver.urls]
        if store == "postgres":
            with measured_server(directory) as server:
                yield Place(server.url, server.keys, urls, silent_url)
        else:
            with tempfile.TemporaryDirectory(prefix="gatepost-bench-", dir=directory) as place:
                yield Place(f"sqlite:///{Path(place) / 'bench.db'}", None, urls, silent_url)


def show(result: dict[str, Any]) -> None:
    """A table for people."""
    print_table(
        f"{result['rows']:,} due rows on {result['store']}, half of them for one endpoint that is {result['how']}",
        ("", "blocked", "open"),
        [
            (f"pair {number}: {name.replace('_', ' ')}", pair["blocked"][name], pair["open"][name])
            for number, pair in enumerate(result["pairs"], 1)
            for name in ("deliveries_per_second", "cpu_ms_per_delivery", "rows_read", "rows_read_of_the_blocked")
        ],
    )
    print_line(
        f"Throughput with it blocked: {result['throughput_ratio']:.1%} (target {TARGET_RATIO:.0%}), CPU per delivery "
        f"{result['cpu_ratio']:.1%}; rows read of it: "
        f"{result['rows_read_of_the_blocked']} of {result['rows_of_the_blocked']:,} (at most {result['rows_allowed']})."
    )
    print_machine()


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line. Exit 1 when a target was missed; with `--quick` only rows are judged."""
    parser = argparse.ArgumentParser("bench.blocked", description=__doc__.partition("\n")[0] if __doc__ else None)
    add_common_options(parser)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="postgres")
    parser.add_argument("--how", choices=("paused", "silent"), default="paused")
    parser.add_argument("--rows", type=int, help="due rows (default 1,000,000; 50,000 with --quick)")
    parser.add_argument("--pairs", type=int, help="default 10; 1 with --quick")
    parser.add_argument(
        "--seconds",
        type=float,
        help="of each side (default 3: short, so that both sides see the same machine; 1.5 with --quick)",
    )
    parser.add_argument("--directory", help="where the database goes; its disk is what is measured")
    options = parser.parse_args(argv)
    plan = Plan(
        rows=options.rows or (50_000 if options.quick else 1_000_000),
        pairs=options.pairs or (1 if options.quick else 10),
        seconds=options.seconds or (1.5 if options.quick else 3.0),
        how=options.how,
    )
    raise_file_limit()
    with prepared(options.store, options.directory) as place, steps(1 + 2 * plan.pairs) as progress:
        result = {"store": options.store, **uvloop.run(run(place, plan, progress))}
    if options.json:
        print_json(result)
    else:
        show(result)
    return 0 if result["ok"] or (options.quick and result["reads_ok"]) else 1


if __name__ == "__main__":
    sys.exit(main())
