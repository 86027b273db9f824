"""What a durable delivery costs: publish, store, schedule, sign, send and settle, 1 KiB to 400 endpoints.

The dispatcher runs in a process of its own (on PostgreSQL in several, which then deliver each other's events), the receiver
in another. Reports deliveries per second with the queue kept full, CPU per delivery in the dispatchers and in the database
server, the time from publish to first byte at half that rate, and what each stage costs. `python -m bench.pipeline
[--store postgres --processes N]` and `gatepost bench pipeline`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from bench.figures import arrivals_after
from bench.machine import raise_file_limit
from bench.pipeline_worker import PipelineTask
from bench.postgres import MeasuredServer, measured_server
from bench.report import add_common_options, print_json, print_line, print_machine, print_table, run_worker, steps
from gatepost.testing.receiver_process import ReceiverProcess

ENDPOINTS: Final = 400
SLOTS: Final = 512
DEPTH: Final = 4_096
"""Outstanding deliveries with the queue kept full: several times the slots, so that none is ever idle."""
LATENCY_SHARE: Final = 0.5
TARGET_CPU_MS: Final = 0.2
WORKER_LIMIT: Final = 300.0
"""Seconds after which a hanging worker is given up."""


def measure_once(
    seconds: float,
    warm_up: float,
    *,
    profile: bool,
    directory: str | None = None,
    store: str = "sqlite",
    processes: int = 1,
) -> dict[str, Any]:
    """One receiver, fresh dispatchers on a fresh store; the ledger of the receiver decides what arrived when."""
    raise_file_limit()
    with (
        tempfile.TemporaryDirectory(prefix="gatepost-bench-", dir=directory) as place,
        ReceiverProcess("--stamps", "--ports", str(ENDPOINTS)) as receiver,
        measured_server(directory) if store == "postgres" else nullcontext() as server,
    ):
        tasks = []
        for number in range(processes):
            own = Path(place) / f"p{number}"
            own.mkdir()
            task = PipelineTask(
                directory=str(own),
                urls=[f"{url}/hooks" for url in receiver.urls[number::processes]],
                slots=SLOTS,
                depth=DEPTH // processes,
                warm_up=warm_up,
                seconds=seconds,
                latency_share=LATENCY_SHARE,
                profile=profile,
                database=None if server is None else server.url,
                keys=None if server is None else server.keys,
                processes=processes,
            )
            tasks.append(task)
        used = 0.0 if server is None else server.cpu_seconds()
        with ThreadPoolExecutor(processes) as pool:
            done = list(
                pool.map(lambda one: run_worker("bench.pipeline_worker", one, Path(one.directory), WORKER_LIMIT), tasks)
            )
        stats = receiver.stats()
        result = _together(done)
        due_ns = {event: due for one in done for event, due in one.pop("due_ns").items()}
        result["latency"].update(arrivals_after(due_ns, receiver.stamps()).as_dict())
        result["receiver"] = {name: stats[name] for name in ("requests", "unique_ids", "duplicates", "connections")}
        result["lost"] = result["published"] - stats["unique_ids"]
        if isinstance(server, MeasuredServer):
            used = server.cpu_seconds() - used
            result["server_cpu_ms_per_delivery"] = round(used * 1_000 / max(stats["unique_ids"], 1), 5)
        else:
            files = Path(place).glob("p0/bench.db*")
            result["database_mib"] = round(sum(one.stat().st_size for one in files) / 2**20, 1)
    return result


def _together(done: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of several processes as one: rates are added up, CPU per delivery is weighed by deliveries."""
    result = {**done[0], "latency": dict(done[0]["latency"]), "processes": len(done)}
    parts = [one["throughput"] for one in done]
    count = sum(part["deliveries"] for part in parts)
    result["throughput"] = {
        "deliveries": count,
        "deliveries_per_second": round(sum(part["deliveries_per_second"] for part in parts), 1),
        "cpu_ms_per_delivery": round(
            sum(part["cpu_ms_per_delivery"] * part["deliveries"] for part in parts) / max(count, 1), 5
        ),
        "cores_used": round(sum(part["cores_used"] for part in parts), 3),
    }
    result["latency"]["rate"] = round(sum(one["latency"]["rate"] for one in done), 1)
    result["published"] = sum(one["published"] for one in done)
    result["rss_mib"] = max(one["rss_mib"] for one in done)
    return result


def run(
    rounds: int,
    seconds: float,
    warm_up: float,
    directory: str | None = None,
    store: str = "sqlite",
    processes: int = 1,
) -> dict[str, Any]:
    """Several rounds; the cheapest counts for CPU, the quickest for throughput, its own latency beside it."""
    done = []
    with steps(rounds) as progress:
        for number in range(rounds):
            progress.begin(f"pipeline, round {number + 1} of {rounds}")
            last = number == rounds - 1
            done.append(
                measure_once(seconds, warm_up, profile=last, directory=directory, store=store, processes=processes)
            )
            progress.done()
    cheapest = min(done, key=lambda one: one["throughput"]["cpu_ms_per_delivery"])
    quickest = max(done, key=lambda one: one["throughput"]["deliveries_per_second"])
    return {
        "endpoints": ENDPOINTS,
        "slots": SLOTS,
        "payload_bytes": 1_024,
        "store": store,
        "processes": processes,
        "deliveries_per_second": quickest["throughput"]["deliveries_per_second"],
        "cpu_ms_per_delivery": cheapest["throughput"]["cpu_ms_per_delivery"],
        **(
            {"server_cpu_ms_per_delivery": statistics.median(one["server_cpu_ms_per_delivery"] for one in done)}
            if store == "postgres"
            else {}
        ),
        "target_cpu_ms_per_delivery": TARGET_CPU_MS,
        "latency": quickest["latency"],
        "stages": next(one["stages"] for one in reversed(done) if "stages" in one),
        "lost": sum(one["lost"] for one in done),
        "duplicates": sum(one["receiver"]["duplicates"] for one in done),
        "rounds": done,
    }


def show(result: dict[str, Any]) -> None:
    """Tables for people."""
    latency = result["latency"]
    print_table(
        f"Durable deliveries on {result['store']}, {result['processes']} dispatching: signed, 1 KiB, {ENDPOINTS} endpoints",
        ("", "value"),
        [
            ("deliveries per second, queue kept full", f"{result['deliveries_per_second']:,.0f}"),
            ("CPU ms per delivery, dispatcher", f"{result['cpu_ms_per_delivery']:.4f}"),
            *(
                [("CPU ms per delivery, database server", f"{result['server_cpu_ms_per_delivery']:.4f}")]
                if "server_cpu_ms_per_delivery" in result
                else []
            ),
            (f"publish to first byte at {latency['rate']:,.0f}/s: p50 ms", f"{latency['p50_ms']:.2f}"),
            ("p99 ms", f"{latency['p99_ms']:.2f}"),
            ("lost", result["lost"]),
            ("duplicates", result["duplicates"]),
        ],
    )
    stages = result["stages"]["us_per_delivery"]
    total = sum(stages.values())
    print_table(
        "Where the CPU goes (with the looking, which adds a little)",
        ("stage", "µs per delivery", "share"),
        [(name, f"{cost:.1f}", f"{cost / total:.0%}") for name, cost in stages.items()],
    )
    print_line(f"Target: below {TARGET_CPU_MS} ms CPU per delivery.")
    print_machine()


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line. Exit 1 when an event was lost."""
    parser = argparse.ArgumentParser("bench.pipeline", description=__doc__.partition("\n")[0] if __doc__ else None)
    add_common_options(parser)
    parser.add_argument("--rounds", type=int, help="fresh dispatchers (default 3; 1 with --quick)")
    parser.add_argument("--seconds", type=float, help="seconds of each part (default 10; 4 with --quick)")
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--processes", type=int, default=1, help="dispatchers that share the store (postgres only)")
    parser.add_argument("--directory", help="where the database goes; its disk is what is measured")
    options = parser.parse_args(argv)
    rounds = options.rounds or (1 if options.quick else 3)
    seconds = options.seconds or (4.0 if options.quick else 10.0)
    if options.processes != 1 and options.store != "postgres":
        parser.error("one process owns an SQLite file: write --store postgres for several")
    result = run(rounds, seconds, min(2.0, seconds / 2), options.directory, options.store, options.processes)
    if options.json:
        print_json(result)
    else:
        show(result)
    return 1 if result["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
