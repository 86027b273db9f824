"""What endpoints that hang or fail cost everybody else: healthy endpoints with and without them, in alternating pairs.

Open load at half of the measured capacity. Of 400 endpoints a share is bad in one phase (`--phase`, `--share`), with a backlog
and a cap; the others are healthy. Reports the median over pairs of healthy throughput and of the 95th percentile from due
to first byte. `python -m bench.isolation` and `gatepost bench isolation`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.bad_endpoints import PHASES, bad_endpoints
from bench.figures import arrivals_after
from bench.isolation_worker import IsolationTask
from bench.machine import raise_file_limit
from bench.pipeline import SLOTS, measure_once
from bench.report import add_common_options, print_json, print_line, print_machine, print_table, run_worker, steps
from gatepost.testing.receiver_process import ReceiverProcess

ENDPOINTS: Final = 400
SHARES: Final = {"1/400": 1, "1/50": 8, "1/10": 40, "3/10": 120}
"""Bad endpoints of the 400, by share."""
CAP: Final = 6
CAPACITY_SHARE: Final = 0.5
TARGET_THROUGHPUT: Final = 0.99
TARGET_P95_RATIO: Final = 1.05
TARGET_P95_EXTRA_MS: Final = 2.0
WORKER_LIMIT: Final = 900.0
"""Seconds after which a hanging worker is given up."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run measures."""

    phase: str
    bad: int
    """Endpoints of the 400 that are bad."""
    pairs: int
    seconds: float
    backlog: int
    rate: float | None
    """Events a second; None measures the capacity first and takes half."""
    directory: str | None


def measure_side(plan: Plan, rate: float, *, bad: bool) -> dict[str, Any]:
    """One fresh dispatcher, receiver and file."""
    with (
        tempfile.TemporaryDirectory(prefix="gatepost-bench-", dir=plan.directory) as place,
        ReceiverProcess("--stamps", "--ports", str(ENDPOINTS - plan.bad)) as receiver,
        bad_endpoints(plan.phase, plan.bad) as bad_urls,
    ):
        task = IsolationTask(
            directory=place,
            urls=[f"{url}/hooks" for url in receiver.urls],
            bad_urls=bad_urls if bad else [],
            backlog=plan.backlog,
            cap=CAP,
            slots=SLOTS,
            rate=rate,
            seconds=plan.seconds,
        )
        result = run_worker("bench.isolation_worker", task, Path(place), WORKER_LIMIT)
        stamps = receiver.stamps()
    due_ns, stopped_ns = result.pop("due_ns"), result.pop("stopped_ns")
    within = sum(1 for event_id in due_ns if stamps.get(event_id, stopped_ns + 1) <= stopped_ns)
    seconds = (stopped_ns - result.pop("started_ns")) / 1e9
    result["healthy_per_second"] = round(within / seconds, 2)
    result["latency"] = arrivals_after(due_ns, stamps).as_dict()
    result["lost"] = result["published"] - result["completed"]
    return result


def run(plan: Plan) -> dict[str, Any]:
    """Capacity, then the pairs, each pair in the other order."""
    raise_file_limit()
    with steps(plan.pairs * 2 + (plan.rate is None)) as progress:
        rate = plan.rate
        if rate is None:
            progress.begin("capacity")
            capacity = measure_once(5.0, 2.0, profile=False, directory=plan.directory)
            rate = capacity["throughput"]["deliveries_per_second"] * CAPACITY_SHARE
            progress.done()
        pairs = []
        for number in range(plan.pairs):
            pair: dict[str, Any] = {}
            for bad in (False, True) if number % 2 == 0 else (True, False):
                progress.begin(f"pair {number + 1} of {plan.pairs}, {'with' if bad else 'without'} the bad ones")
                pair["with" if bad else "without"] = measure_side(plan, rate, bad=bad)
                progress.done()
            pair["throughput_ratio"] = round(
                pair["with"]["healthy_per_second"] / pair["without"]["healthy_per_second"], 4
            )
            pair["p95_ratio"] = round(pair["with"]["latency"]["p95_ms"] / pair["without"]["latency"]["p95_ms"], 4)
            pair["p95_extra_ms"] = round(pair["with"]["latency"]["p95_ms"] - pair["without"]["latency"]["p95_ms"], 3)
            pairs.append(pair)
    throughput = statistics.median(pair["throughput_ratio"] for pair in pairs)
    ratio = statistics.median(pair["p95_ratio"] for pair in pairs)
    extra = statistics.median(pair["p95_extra_ms"] for pair in pairs)
    return {
        "phase": plan.phase,
        "bad": plan.bad,
        "rate": round(rate, 1),
        "seconds": plan.seconds,
        "backlog": plan.backlog,
        "cap": CAP,
        "throughput_ratio": throughput,
        "p95_ratio": ratio,
        "p95_extra_ms": extra,
        "met": throughput >= TARGET_THROUGHPUT and (ratio <= TARGET_P95_RATIO or extra <= TARGET_P95_EXTRA_MS),
        "pairs": pairs,
    }


def show(result: dict[str, Any]) -> None:
    """Tables for people."""
    rows = []
    for number, pair in enumerate(result["pairs"], 1):
        for side in ("without", "with"):
            one = pair[side]
            latency = one["latency"]
            rows.append(
                (
                    f"{number} {side}",
                    f"{one['healthy_per_second']:,.1f}",
                    f"{latency['p50_ms']:.2f}",
                    f"{latency['p95_ms']:.2f}",
                    f"{latency['p99_ms']:.2f}",
                    f"{one['cores_used']:.2f}",
                )
            )
    print_table(
        f"{ENDPOINTS - result['bad']} healthy endpoints at {result['rate']:,.0f}/s, with and without {result['bad']} bad ones "
        f"(phase {result['phase']}, backlog {result['backlog']:,}, cap {result['cap']})",
        ("pair", "delivered/s", "p50 ms", "p95 ms", "p99 ms", "cores"),
        rows,
    )
    print_line(
        f"Median of pairs: throughput {result['throughput_ratio']:.4f} (target: at least {TARGET_THROUGHPUT}), "
        f"p95 {result['p95_ratio']:.3f} × or {result['p95_extra_ms']:+.2f} ms "
        f"(target: at most {TARGET_P95_RATIO} × or +{TARGET_P95_EXTRA_MS:g} ms): {'met' if result['met'] else 'NOT MET'}."
    )
    print_machine()


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line. Exit 1 when the target is not met."""
    parser = argparse.ArgumentParser("bench.isolation", description=__doc__.partition("\n")[0] if __doc__ else None)
    add_common_options(parser)
    parser.add_argument("--phase", choices=PHASES, default="silence", help="where the bad endpoints hang or fail")
    parser.add_argument("--share", choices=tuple(SHARES), default="1/400", help="how many of the endpoints are bad")
    parser.add_argument("--pairs", type=int, help="alternating pairs (default 5; 1 with --quick)")
    parser.add_argument("--seconds", type=float, help="seconds of load (default 60; 8 with --quick)")
    parser.add_argument("--backlog", type=int, help="events waiting for the bad endpoints (default 100,000)")
    parser.add_argument("--rate", type=float, help="events a second (default: half of the capacity measured first)")
    parser.add_argument("--directory", help="where the SQLite files go")
    options = parser.parse_args(argv)
    plan = Plan(
        phase=options.phase,
        bad=SHARES[options.share],
        pairs=options.pairs or (1 if options.quick else 5),
        seconds=options.seconds or (8.0 if options.quick else 60.0),
        backlog=options.backlog or (10_000 if options.quick else 100_000),
        rate=options.rate,
        directory=options.directory,
    )
    result = run(plan)
    if options.json:
        print_json(result)
    else:
        show(result)
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
