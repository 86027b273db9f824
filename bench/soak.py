"""Hours of ordinary trouble: does a service grow, leak or lose? `python -m bench.soak --hours 1`.

A real `gatepost serve` on SQLite gets a steady load for good and hostile endpoints, is drained and killed and started again in
the first third, and has its policy, its endpoints and their secrets changed all the time. Memory, descriptors, threads and
tasks are read every few seconds; what counts is the last process, which runs undisturbed until the end.
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.crash_service import ServeProcess
from bench.machine import raise_file_limit
from bench.report import add_common_options, print_json, print_line, print_machine, print_table, steps
from bench.soak_load import HostilePeers, SteadyProducer
from gatepost.testing.receiver_process import ReceiverProcess

GOOD_ENDPOINTS: Final = 40
RATE: Final = 200.0
"""Events a second: what two small cores carry beside other work."""
SAMPLE_EVERY: Final = 5.0
CHANGE_EVERY: Final = 20.0
"""Seconds between two changes by an operator."""
DRAINED_AT: Final = 0.12
KILLED_AT: Final = 0.24
"""Parts of the whole time after which the service is stopped, and after which it is killed."""
WARM_UP: Final = 0.35
"""Part of the last process' life that is not judged: pools, rings and caches fill, each to a bound of its own."""
GROWTH_MAX: Final = 0.10
"""Of the median of the last third of what is judged over that of the first third."""
DRIFT_SLACK: Final[dict[str, float]] = {"rss_mib": 8.0, "descriptors": 24.0, "threads": 4.0, "tasks": 24.0}
"""Differences that are no drift whatever their share: a few connections or retries more at the moment of looking."""
HOSTILE_WINDOW: Final = 300.0
"""Seconds after which a delivery to a hostile endpoint is given up. With the four days of the default their backlog grows for the
whole soak, and what is kept of it in memory with it, up to bounds that no soak of hours reaches."""
DRAIN_LIMIT: Final = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The service at one moment."""

    seconds: float
    """Since the start of the soak."""
    life: int
    """Which process: 0 is the first."""
    rss_mib: float
    descriptors: int
    threads: int
    tasks: int | None
    """Of its event loop; None when `/metrics` did not answer."""
    waiting: int | None
    """Deliveries in the queue."""


def look(service: ServeProcess, seconds: float, life: int) -> Sample:
    """Read `/proc` and `/metrics`."""
    status = Path(f"/proc/{service.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    gauges = read_gauges(service.port)
    return Sample(
        round(seconds, 1),
        life,
        round(int(fields["VmRSS"].split()[0]) / 1024, 2),
        len(os.listdir(f"/proc/{service.pid}/fd")),
        int(fields["Threads"]),
        _whole(gauges.get("gatepost_tasks")),
        _whole(gauges.get("gatepost_queue_waiting")),
    )


def read_gauges(port: int) -> dict[str, float]:
    """The samples without labels; empty when there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    except (OSError, http.client.HTTPException):
        return {}
    finally:
        connection.close()
    pairs = (line.split() for line in lines if not line.startswith("#") and "{" not in line)
    return {pair[0]: float(pair[1]) for pair in pairs if len(pair) >= 2}


class Operator:
    """Changes policies, endpoints and secrets in turn, as people and their scripts do."""

    def __init__(self, service: ServeProcess, endpoints: Sequence[str]) -> None:
        self._service = service
        self._endpoints = endpoints
        self._turn = 0
        self.done: dict[str, int] = {}
        self.failed: list[str] = []

    def act(self) -> None:
        """One change; an answer that refuses it is kept."""
        self._turn += 1
        endpoint = self._endpoints[self._turn % len(self._endpoints)]
        changes: Sequence[tuple[str, str, str, Any]] = (
            ("override", "PATCH", f"/v1/endpoints/{endpoint}", {"limits": {"read_timeout": 5 + self._turn % 5}}),
            ("limit", "POST", "/v1/policies/set", self._limit()),
            ("pause", "POST", f"/v1/endpoints/{endpoint}/pause", None),
            (
                "resume",
                "POST",
                f"/v1/endpoints/{self._endpoints[(self._turn - 1) % len(self._endpoints)]}/resume",
                None,
            ),
            ("rotate", "POST", f"/v1/endpoints/{endpoint}/rotate-secret", None),
            ("rollback", "POST", "/v1/policies/rollback", {"why": "soak"}),
        )
        name, method, path, body = changes[self._turn % len(changes)]
        try:
            self._service.ask(method, path, body)
        except (OSError, http.client.HTTPException, RuntimeError) as error:
            self.failed.append(f"{name}: {error}")
        self.done[name] = self.done.get(name, 0) + 1

    def resume_all(self) -> None:
        """Leave nothing paused."""
        for endpoint in self._endpoints:
            self._service.ask("POST", f"/v1/endpoints/{endpoint}/resume")

    def _limit(self) -> dict[str, Any]:
        return {"limits": {"read_timeout": {"value": 8 + self._turn % 4}}, "why": f"soak, turn {self._turn}"}


def drift(samples: Sequence[Sample], name: str) -> dict[str, Any]:
    """How a figure moved in the judged part of the last process' life: medians of its first and last third."""
    last = samples[-1].life
    life = [sample for sample in samples if sample.life == last]
    judged = life[round(len(life) * WARM_UP) :]
    values = [float(value) for sample in judged if (value := getattr(sample, name)) is not None]
    third = len(values) // 3
    if third == 0:
        return {"samples": len(values), "first": None, "last": None, "flat": False}
    first, final = statistics.median(values[:third]), statistics.median(values[-third:])
    flat = final - first <= max(GROWTH_MAX * first, DRIFT_SLACK[name])
    return {"samples": len(values), "first": first, "last": final, "highest": max(values), "flat": flat}


def run(hours: float, rate: float, directory: Path, say: Callable[[Sample], None]) -> dict[str, Any]:
    """The whole soak."""
    raise_file_limit()
    whole = hours * 3_600
    samples: list[Sample] = []
    exits: list[int] = []
    with (
        ReceiverProcess("--ports", str(GOOD_ENDPOINTS)) as receiver,
        HostilePeers() as hostile,
        steps(whole) as progress,
        ServeProcess(directory / "soak.db", directory, GATEPOST_POLICY_CONNECT_TIMEOUT="1.0") as service,
    ):
        service.start()
        endpoints = _create(service, {f"good.{n}": f"{url}/hooks" for n, url in enumerate(receiver.urls)})
        _create(service, {f"hostile.{name}": url for name, url in hostile.urls.items()}, window=HOSTILE_WINDOW)
        operator = Operator(service, endpoints)
        good = [f"good.{number}" for number in range(GOOD_ENDPOINTS)]
        with SteadyProducer(service.url, good, [f"hostile.{name}" for name in hostile.urls], rate) as producer:
            began = time.monotonic()
            restarts: list[tuple[float, str]] = [(whole * DRAINED_AT, "drained"), (whole * KILLED_AT, "killed")]
            life, changed_at = 0, 0.0
            while (now := time.monotonic() - began) < whole:
                progress.begin(f"life {life + 1}, {len(producer.accepted_good):,} events")
                if restarts and now >= restarts[0][0]:
                    if restarts.pop(0)[1] == "drained":
                        exits.append(service.stop())
                    else:
                        service.kill()
                    service.start()
                    life += 1
                if now - changed_at >= CHANGE_EVERY:
                    changed_at = now
                    operator.act()
                samples.append(look(service, now, life))
                say(samples[-1])
                time.sleep(SAMPLE_EVERY)
                progress.done(time.monotonic() - began - now)
            producer.stop()
            operator.resume_all()
            lost = _wait_arrived(receiver, producer.accepted_good)
            ledger = receiver.ledger()
        exits.append(service.stop())
    figures = {name: drift(samples, name) for name in DRIFT_SLACK}
    return {
        "hours": hours,
        "rate": rate,
        "accepted_good": len(producer.accepted_good),
        "accepted_hostile": producer.accepted_hostile,
        "lost": lost,
        "doubled": sum(count > 1 for count in ledger.values()),
        "batches_repeated": producer.repeats,
        "refused": producer.refused[:3],
        "changes": operator.done,
        "changes_failed": operator.failed[:5],
        "exit_codes": exits,
        "figures": figures,
        "samples": [asdict(sample) for sample in samples],
        "met": not lost
        and not producer.refused
        and not operator.failed
        and not any(exits)
        and all(one["flat"] for one in figures.values()),
    }


def _create(service: ServeProcess, urls: dict[str, str], **fields: Any) -> list[str]:
    return [
        service.ask("POST", "/v1/endpoints", {"url": url, "event_types": [event_type], **fields})["id"]
        for event_type, url in urls.items()
    ]


def _wait_arrived(receiver: ReceiverProcess, accepted: set[str]) -> int:
    limit = time.monotonic() + DRAIN_LIMIT
    while True:
        missing = len(accepted - receiver.ledger().keys())
        if missing == 0 or time.monotonic() > limit:
            return missing
        time.sleep(1.0)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def show(result: dict[str, Any]) -> None:
    """Tables for people."""
    print_table(
        f"{result['hours']:g} hours at {result['rate']:g} events/s",
        ("figure", "first third", "last third", "highest", "flat"),
        [
            (name, one["first"] or 0, one["last"] or 0, one.get("highest", 0), "yes" if one["flat"] else "NO")
            for name, one in result["figures"].items()
        ],
    )
    print_line(
        f"{result['accepted_good']:,} events for good endpoints, {result['lost']} lost, {result['doubled']:,} doubled; "
        f"{result['accepted_hostile']:,} for hostile ones; {sum(result['changes'].values())} changes, "
        f"{len(result['changes_failed'])} failed; exit codes {result['exit_codes']}: "
        f"{'good' if result['met'] else 'NOT GOOD'}."
    )
    print_machine()


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line. Exit 1 when something grew, leaked or was lost."""
    parser = argparse.ArgumentParser("bench.soak", description=__doc__.partition("\n")[0] if __doc__ else None)
    add_common_options(parser)
    parser.add_argument("--hours", type=float, help="how long (default 1; 0.05 with --quick)")
    parser.add_argument("--rate", type=float, default=RATE, help=f"events a second (default {RATE:g})")
    parser.add_argument("--directory", type=Path, help="where the SQLite file goes")
    parser.add_argument("--samples", type=Path, help="append each sample to this file, a line each, as it is taken")
    options = parser.parse_args(argv)

    def say(sample: Sample) -> None:
        if options.samples is not None:
            with options.samples.open("a") as file:
                file.write(f"{asdict(sample)}\n")

    with tempfile.TemporaryDirectory(prefix="gatepost-soak-", dir=options.directory) as place:
        result = run(options.hours or (0.05 if options.quick else 1.0), options.rate, Path(place), say)
    if options.json:
        print_json(result)
    else:
        show(result)
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
