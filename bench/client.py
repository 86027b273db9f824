"""What one keep-alive POST of 1 KiB costs in CPU: our client and others in turn against the same local receiver.

Each round runs in a process of its own under uvloop; the receiver runs in another, on another core where there is one. The
best round counts, because noise on a shared machine only ever adds. `python -m bench.client` and `gatepost bench client`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.client_worker import RoundResult, RoundTask
from bench.machine import pin, raise_file_limit
from bench.report import Steps, add_common_options, print_json, print_line, print_machine, print_table, steps
from gatepost.testing.receiver_process import ReceiverProcess

HOSTS: Final = 400
IN_FLIGHT: Final = 256
IDLE_FEW: Final = 10
IDLE_MANY: Final = 5_000
IDLE_ACTIVE_HOSTS: Final = 64
"""Hosts under load while the others sit idle."""
ROUND_LIMIT: Final = 240.0
"""Seconds after which a round is given up: httpx2 fills its pool of 400 hosts in a fraction of that."""
PORTS_PER_RECEIVER: Final = 5_500
"""What fits beside as many connections in the usual limit of 20,000 open files."""
TARGET_RATIO: Final = 4.5
"""aiohttp's CPU over ours, at 400 hosts and 256 in flight."""
TARGET_GROWTH: Final = 1.2
"""Our CPU with 5,000 idle hosts over that with 10."""


@dataclass(frozen=True, slots=True)
class Load:
    """How many requests one round of a client warms up with and counts."""

    warm_up: int
    requests: int


LOADS: Final = {
    "gatepost": Load(6_000, 40_000),
    "aiohttp": Load(3_000, 12_000),
    # 13 ms a request: the warm-up only fills the pool.
    "httpx2": Load(400, 300),
    # Its pool walks all connections for each request, 65 ms at 400 hosts; to fill it takes longer than to count.
    "httpx": Load(300, 100),
    "httpx-limited": Load(300, 100),
}
QUICK_LOADS: Final = {
    "gatepost": Load(2_000, 12_000),
    "aiohttp": Load(1_000, 4_000),
    "httpx2": Load(300, 100),
    "httpx": Load(100, 50),
    "httpx-limited": Load(100, 50),
}
NO_IDLE: Final = ("httpx2", "httpx", "httpx-limited")
"""Clients that are not measured with 5,000 idle hosts: their cost grows with every connection in the pool."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run measures."""

    clients: Sequence[str]
    loads: dict[str, Load]
    rounds: int
    idle_rounds: int


@dataclass(slots=True)
class Series:
    """The rounds of one client in one scenario."""

    name: str
    rounds: list[RoundResult]

    def costs(self) -> list[float]:
        """CPU milliseconds per request, by round."""
        return [(one.cpu_user + one.cpu_system) * 1_000 / one.requests for one in self.rounds]

    def best(self) -> RoundResult:
        """The round that cost least."""
        return min(self.rounds, key=lambda one: (one.cpu_user + one.cpu_system) / one.requests)

    def summary(self) -> dict[str, Any]:
        """Figures for the report."""
        best, costs = self.best(), self.costs()
        return {
            "cpu_ms_per_request": round(min(costs), 5),
            "cpu_ms_median": round(statistics.median(costs), 5),
            "cpu_user_ms": round(best.cpu_user * 1_000 / best.requests, 5),
            "cpu_system_ms": round(best.cpu_system * 1_000 / best.requests, 5),
            "requests_per_second": round(max(one.requests / one.seconds for one in self.rounds)),
            "failed": sum(one.failed for one in self.rounds),
            "rss_idle_mib": round(max(one.rss_idle for one in self.rounds) / 2**20, 1),
            "rss_growth_mib": round(max(one.rss_idle - one.rss_before for one in self.rounds) / 2**20, 1),
            "rounds": [asdict(one) for one in self.rounds],
        }


def run_worker(task: RoundTask) -> RoundResult:
    """One round in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.client_worker"],
        input=json.dumps(asdict(task)),
        cwd=Path(__file__).resolve().parents[1],
        stdout=subprocess.PIPE,
        text=True,
        timeout=ROUND_LIMIT,
        check=True,
    )
    return RoundResult(**json.loads(done.stdout))


def measure_fan_out(plan: Plan, urls: Sequence[str], progress: Steps) -> dict[str, Series]:
    """400 hosts, 256 in flight, the clients in turn within each round."""
    series = {name: Series(name, []) for name in plan.clients}
    for number in range(plan.rounds):
        for name in plan.clients:
            progress.begin(f"{name}, {HOSTS} hosts, round {number + 1} of {plan.rounds}")
            load = plan.loads[name]
            task = RoundTask(
                client=name, urls=urls[:HOSTS], in_flight=IN_FLIGHT, warm_up=load.warm_up, requests=load.requests
            )
            series[name].rounds.append(run_worker(task))
            progress.done()
    return series


def measure_idle(plan: Plan, urls: Sequence[str], progress: Steps) -> dict[tuple[str, int], Series]:
    """64 hosts under load while 10 or 5,000 others sit idle, in turn; aiohttp for comparison of memory."""
    wanted = [(name, count) for name in plan.clients if name not in NO_IDLE for count in (IDLE_FEW, IDLE_MANY)]
    series = {key: Series(key[0], []) for key in wanted}
    for number in range(plan.idle_rounds):
        for name, count in wanted:
            progress.begin(f"{name}, {count:,} idle hosts, round {number + 1} of {plan.idle_rounds}")
            load = plan.loads[name]
            task = RoundTask(
                client=name,
                urls=urls[:IDLE_ACTIVE_HOSTS],
                idle_urls=urls[IDLE_ACTIVE_HOSTS : IDLE_ACTIVE_HOSTS + count],
                in_flight=IN_FLIGHT,
                warm_up=load.warm_up,
                requests=load.requests,
            )
            series[name, count].rounds.append(run_worker(task))
            progress.done()
    return series


def run(plan: Plan) -> dict[str, Any]:
    """Everything, as one JSON-able result."""
    raise_file_limit()
    with_idle = plan.idle_rounds > 0 and any(name not in NO_IDLE for name in plan.clients)
    idle_steps = plan.idle_rounds * 2 * sum(name not in NO_IDLE for name in plan.clients)
    with (
        ReceiverProcess("--no-ids", "--ports", str(PORTS_PER_RECEIVER if with_idle else HOSTS)) as receiver,
        steps(plan.rounds * len(plan.clients) + idle_steps) as progress,
    ):
        pin(receiver.pid, 1)
        urls = [f"{url}/ok" for url in receiver.urls]
        fan_out = measure_fan_out(plan, urls, progress)
        idle = measure_idle(plan, urls, progress) if with_idle else {}
    result: dict[str, Any] = {
        "hosts": HOSTS,
        "in_flight": IN_FLIGHT,
        "payload_bytes": 1_024,
        "cores": os.cpu_count(),
        "clients": {name: one.summary() for name, one in fan_out.items()},
        "idle": [{"client": name, "idle_hosts": count, **one.summary()} for (name, count), one in idle.items()],
    }
    if "gatepost" in fan_out:
        ours = min(fan_out["gatepost"].costs())
        result["times_less_cpu_than"] = {
            name: round(min(one.costs()) / ours, 2) for name, one in fan_out.items() if name != "gatepost"
        }
        result["target_times_less_than_aiohttp"] = TARGET_RATIO
        if idle:
            few, many = (min(idle["gatepost", count].costs()) for count in (IDLE_FEW, IDLE_MANY))
            result["idle_growth"] = round(many / few, 3)
            result["target_idle_growth"] = TARGET_GROWTH
    return result


def show(result: dict[str, Any]) -> None:
    """Tables for people."""
    ratios = {"gatepost": 1.0, **result.get("times_less_cpu_than", {})}
    print_table(
        f"CPU per keep-alive POST of 1 KiB, {HOSTS} hosts, {IN_FLIGHT} in flight, best round",
        ("client", "CPU ms", "user", "system", "median", "requests/s", "× ours"),
        [
            (
                name,
                f"{one['cpu_ms_per_request']:.4f}",
                f"{one['cpu_user_ms']:.4f}",
                f"{one['cpu_system_ms']:.4f}",
                f"{one['cpu_ms_median']:.4f}",
                one["requests_per_second"],
                f"{ratios[name]:.2f}" if name in ratios else "",
            )
            for name, one in result["clients"].items()
        ],
    )
    if result["idle"]:
        print_table(
            f"The same on {IDLE_ACTIVE_HOSTS} hosts while others sit idle in the pool",
            ("client", "idle hosts", "CPU ms", "memory MiB", "of it connections"),
            [
                (
                    one["client"],
                    one["idle_hosts"],
                    f"{one['cpu_ms_per_request']:.4f}",
                    one["rss_idle_mib"],
                    one["rss_growth_mib"],
                )
                for one in result["idle"]
            ],
        )
    if "aiohttp" in ratios:
        print_line(f"aiohttp uses {ratios['aiohttp']:.2f} × our CPU (target: at least {TARGET_RATIO} ×).")
    if "idle_growth" in result:
        print_line(f"5,000 idle hosts against 10: {result['idle_growth']:.2f} × (target: below {TARGET_GROWTH} ×).")
    failed = sum(one["failed"] for one in [*result["clients"].values(), *result["idle"]])
    if failed:
        print_line(f"[red]{failed} requests failed: the figures do not count.[/red]")
    print_machine()


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line. Exit 1 when requests failed, since their figures mean nothing."""
    parser = argparse.ArgumentParser("bench.client", description=__doc__.partition("\n")[0] if __doc__ else None)
    add_common_options(parser)
    parser.add_argument(
        "--clients",
        "--engines",
        default="gatepost,aiohttp,httpx2",
        help=f"which, comma-separated, of {', '.join(LOADS)}",
    )
    parser.add_argument("--rounds", type=int, help="alternating rounds (default 5; 2 with --quick)")
    options = parser.parse_args(argv)
    clients = options.clients.split(",")
    unknown = set(clients) - set(LOADS)
    if unknown:
        parser.error(f"unknown client {', '.join(sorted(unknown))}: choose from {', '.join(LOADS)}")
    rounds = options.rounds or (2 if options.quick else 5)
    plan = Plan(clients, QUICK_LOADS if options.quick else LOADS, rounds, 1 if options.quick else 3)
    result = run(plan)
    if options.json:
        print_json(result)
    else:
        show(result)
    failed = sum(one["failed"] for one in [*result["clients"].values(), *result["idle"]])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
