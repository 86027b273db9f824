"""What instrumentation costs: CPU time of one delivery by part, and a scrape after 50,000 hosts were seen.

`python -m bench.metrics`. Each part is timed in turns with a loop that does everything else, so that a machine that becomes
slower or faster meanwhile does not count for one of them. It fails when the instrumentation of a delivery costs more than 10 µs, or a
scrape 100 ms or 2 MB.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest

from bench.report import add_common_options, print_json, print_line, print_machine, print_table, steps
from gatepost.admission.breaker import BreakerRules
from gatepost.admission.endpoint_limits import LimitRules
from gatepost.admission.evidence import Facts, Sign
from gatepost.admission.limits import Limits
from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.ids import DELIVERY, encode_id
from gatepost.delivery.outcome import End, Evidence, Outcome, classify
from gatepost.net.observation import observation_of
from gatepost.service.console.pulse import Pulse
from gatepost.service.doctor.recent import RecentHosts
from gatepost.service.logs import LogObserver, Logs
from gatepost.service.metric_rows import exposed, from_json, merged, to_json
from gatepost.service.metrics import DEFAULT_HOSTS, Metrics
from gatepost.service.metrics_exposition import read
from gatepost.service.observers import Observers
from gatepost.telemetry import AttemptObservation, DeliveryObservation, delivery_record
from gatepost.testing.virtual import VirtualClock
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason

HOSTS: Final = 50_000
PROCESSES: Final = 4
DELIVERY_US: Final = 10.0
SCRAPE_MS: Final = 100.0
SCRAPE_BYTES: Final = 2_000_000
ENDPOINTS: Final = 400
ENDPOINT_IDS: Final = tuple(f"ep_{number:013}" for number in range(ENDPOINTS))
LIMITS: Final = {"connect_timeout": (3.0, "built_in"), "read_timeout": (3.2, "learned")}


@dataclass(frozen=True, slots=True)
class Parts:
    """Microseconds of CPU time per delivery."""

    observations: float
    metrics: float
    console_and_doctor: float
    limits: float
    log: float
    instrumentation: float
    """All that tells people, measured at once; what breakers and learned limits need is measured by `bench.limits`, and shown here
    beside it."""


def attempts() -> list[Attempt]:
    """Answers of some hundred endpoints at fifty hosts."""
    verdict = classify(Evidence(End.RESPONSE, Phase.READ, Reason.OK, 200, True))
    phases = {Phase.ADMISSION: 1e-5, Phase.POOL: 2e-5, Phase.WRITE: 6e-5, Phase.WAIT: 0.08, Phase.READ: 4e-5}
    return [
        Attempt(
            verdict.outcome,
            verdict.delivered,
            verdict.phase,
            verdict.reason,
            verdict.retry_safety,
            verdict.blame,
            200,
            f"https://hooks-{number % 50}.example.com:443",
            "203.0.113.7:443",
            0.081,
            phases,
            True,
            False,
            612,
            (("content-length", "0"),),
            b"",
            None,
            0.0,
        )
        for number in range(ENDPOINTS)
    ]


def decided(number: int, observation: AttemptObservation) -> DeliveryObservation:
    """As `dispatch.attempt` makes it."""
    return delivery_record(
        "evt_0d3k9abcdefgh",
        encode_id(DELIVERY, number),
        ENDPOINT_IDS[number % ENDPOINTS],
        "acme",
        "order.paid",
        1,
        "complete",
        "delivered",
        None,
        0.004,
        observation,
        0,
        1,
        2,
        3,
        None,
        17,
        3,
        "web-1.0-5f2c",
        7,
        LIMITS,
        "closed",
        6,
        431,
        None,
        None,
    )


def delivery_cost(rounds: int, count: int) -> Parts:
    """Each part's cost over the loop that does without it; the best of the rounds, since others' load only ever adds."""
    made = attempts()
    observed = [observation_of(one, f"ep_{number:013}", "acme") for number, one in enumerate(made)]
    decisions = [decided(number, one) for number, one in enumerate(observed)]
    clock = SYSTEM_CLOCK
    with open("/dev/null", "w") as sink:
        logs = Logs("json", stream=sink)
        log = Observers(LogObserver(logs))
        metrics, others = Observers(Metrics()), Observers(Pulse(clock), RecentHosts(clock))
        limits, rules, facts = Limits(BreakerRules()), LimitRules(), Facts(Sign.OK, 0.08, True, False)
        instant = 1_800_000_000_000_000

        def nothing(number: int) -> None:
            made[number % ENDPOINTS]

        def observations(number: int) -> None:
            one = made[number % ENDPOINTS]
            observation_of(one, "ep_", "acme")  # the client's
            decided(number, observation_of(one, "ep_", "acme"))

        def heard_by(observers: Observers) -> Callable[[int], None]:
            def hear(number: int) -> None:
                observers.attempt_finished(observed[number % ENDPOINTS])
                observers.delivery_decided(decisions[number % ENDPOINTS])

            return hear

        def feed(number: int) -> None:
            nonlocal instant
            instant += 1_000
            place = number % ENDPOINTS
            tracked = limits.started(place, observed[place].host, rules, instant)
            limits.finished(tracked, facts, instant + 80_000, 0.5)

        heard = Observers(Metrics(), Pulse(clock), RecentHosts(clock), LogObserver(logs))

        def everything(number: int) -> None:
            place = number % ENDPOINTS
            one = made[place]
            heard.attempt_finished(observation_of(one, ENDPOINT_IDS[place], "acme"))
            heard.delivery_decided(decided(number, observation_of(one, ENDPOINT_IDS[place], "acme")))

        parts = (observations, heard_by(metrics), heard_by(others), feed, heard_by(log), everything)
        spent: list[list[float]] = [[] for _ in parts]
        for _ in range(rounds):
            for part, found in zip(parts, spent, strict=True):
                base = _timed(nothing, count)
                found.append((_timed(part, count) - base) / count * 1e6)
        logs.close()
    return Parts(*(min(found) for found in spent))


def _timed(work: Callable[[int], None], count: int) -> float:
    gc.collect()
    began = time.process_time()
    for number in range(count):
        work(number)
    return time.process_time() - began


def scrape_cost(rounds: int) -> dict[str, Any]:
    """Milliseconds of a scrape of one process and of several, and its bytes, after 50,000 hosts within an hour."""
    outcomes = [outcome.value for outcome in Outcome]
    seen = [metrics_that_saw_it(outcomes, process) for process in range(PROCESSES)]
    alone, together, on_loop = [], [], []
    size = size_of_all = 0
    for _ in range(rounds):
        gc.collect()
        began = time.perf_counter()
        snapshot = read(seen[0])
        on_loop.append(time.perf_counter() - began)
        size = len(_text(exposed(snapshot)))
        alone.append(time.perf_counter() - began)
        answers = [to_json(read(one)) for one in seen[1:]]
        began = time.perf_counter()
        own = read(seen[0])
        to_json(own)  # for the file of its place

        whole = merged([own, *(from_json(json.loads(answer)) for answer in answers)])
        size_of_all = len(_text(exposed(whole)))
        together.append(time.perf_counter() - began)
    return {
        "bytes": size,
        "milliseconds": round(statistics.median(alone) * 1e3, 1),
        "on_the_loop_milliseconds": round(statistics.median(on_loop) * 1e3, 2),
        f"bytes_of_{PROCESSES}": size_of_all,
        f"milliseconds_of_{PROCESSES}": round(statistics.median(together) * 1e3, 1),
    }


def metrics_that_saw_it(outcomes: list[str], process: int) -> Metrics:
    """One process after an hour with 50,000 hosts."""
    clock = VirtualClock()
    metrics = Metrics(clock=clock, process=str(process), hosts=DEFAULT_HOSTS)
    one = observation_of(attempts()[0], None, "acme")
    phases = {phase.value: 0.1 for phase in Phase}
    for number in range(HOSTS):
        metrics.attempt_finished(
            replace(
                one,
                outcome=outcomes[number % len(outcomes)],
                host=f"https://customer-{process}-{number}.hooks.some-platform.example:443",
                endpoint_id=f"ep_{number:013}",
                phases=phases,
            )
        )
        if number % 500 == 0:
            clock.advance(36.0)
            metrics.hosts.rebalance(clock.monotonic())
    return metrics


def _text(families: Any) -> bytes:
    class Read(CollectorRegistry):
        def collect(self) -> Any:
            return families

    return generate_latest(Read(auto_describe=False))


def main(arguments: list[str]) -> int:
    """Measure, print, and fail when a bound is broken."""
    parser = argparse.ArgumentParser(prog="python -m bench.metrics", description=__doc__)
    add_common_options(parser)
    options = parser.parse_args(arguments)
    rounds, count = (3, 4_000) if options.quick else (9, 20_000)
    with steps(2) as progress:
        progress.begin("deliveries")
        parts = delivery_cost(rounds, count)
        progress.done()
        progress.begin(f"a scrape after {HOSTS:,} hosts")
        scrape = scrape_cost(rounds)
        progress.done()
    whole = parts.instrumentation
    kept = {
        "delivery": whole <= DELIVERY_US,
        "scrape": max(scrape["milliseconds"], scrape[f"milliseconds_of_{PROCESSES}"]) <= SCRAPE_MS,
        "bytes": max(scrape["bytes"], scrape[f"bytes_of_{PROCESSES}"]) <= SCRAPE_BYTES,
    }
    costs = {
        "observations made": parts.observations,
        "metrics": parts.metrics,
        "console and doctor": parts.console_and_doctor,
        "log line": parts.log,
        "together": whole,
        "beside it: limits fed": parts.limits,
    }
    if options.json:
        print_json({"delivery_us": {k: round(v, 2) for k, v in costs.items()}, "scrape": scrape, "kept": kept})
    else:
        print_table("CPU time of a delivery", ("part", "µs"), [(name, f"{cost:.2f}") for name, cost in costs.items()])
        print_table("A scrape", ("", "figure"), list(scrape.items()))
        print_line("kept: " + ", ".join(f"{name} {'yes' if held else 'NO'}" for name, held in kept.items()))
        print_machine()
    return 0 if all(kept.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
