"""Limits that learn, on virtual time: two hours of each misfortune, against naive learners, and the cost in time and memory.

`python -m bench.limits`. It reproduces the tables from which the rules were chosen, over many seeds with their spread, and
fails when a promise is not kept.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.limits_cost import MEASURED, measure_tracked, observation_cost, tracked_cost
from bench.report import add_common_options, print_json, print_line, print_machine, print_table, steps
from gatepost.admission.concurrency import concurrency_rules
from gatepost.admission.endpoint_limits import Admit, EndpointLimits, Flight, LimitChange, LimitRules, TimeoutChange
from gatepost.admission.evidence import Facts, Sign
from gatepost.admission.latency import LatencyRing
from gatepost.testing.endpoint_model import SCENARIOS, START_US, EndpointModel, Outcome, constant

SEEDS: Final = 20
"""Of ours, in the short form too; the naive learners, which are there to compare with, get fewer in it."""
QUICK_SEEDS: Final = 3
TRACKED: Final = 100_000
SECONDS: Final = 7_200.0
WARM_UP: Final = 900.0
CALLS: Final = 12_000
NO_CAP: Final = 1 << 30
IDLE_BYTES: Final = 1_024
ACTIVE_BYTES: Final = 2_560
OBSERVATION_US: Final = 5.0


# ------------------------------------------------------------------------------------------- learners to beat


class SimpleLearner:
    """p99 times a factor, within a clamp, and no breaker: what one writes first. `timeouts` is what becomes of them:
    `drop`, `at_t` (as if they were answers) or `km` (censored)."""

    def __init__(self, timeouts: str, factor: float = 2.5, floor: float = 3.0, ceiling: float = 15.0) -> None:
        self._timeouts = timeouts
        self._factor, self._floor, self._ceiling = factor, floor, ceiling
        self._ring = LatencyRing()
        self._since = 0
        self.read_timeout = ceiling if ceiling < 1e9 else 10.0

    def verdict(self, now: int) -> Admit:
        """Always."""
        return Admit(NO_CAP, self.read_timeout, False)

    def started(self, now: int) -> Flight:
        """Nothing to note."""
        return Flight(now, False, 0, False)

    def attempt_timeout(self, flight: Flight) -> float:
        """The value."""
        return self.read_timeout

    def age(self, now: int, u: float) -> tuple[LimitChange, ...]:
        """Nothing ages."""
        return ()

    def next_age_at(self) -> int | None:
        """Never."""
        return None

    def finished(self, flight: Flight, facts: Facts, now: int, u: float) -> tuple[LimitChange, ...]:
        """Learn from it."""
        timed_out = facts.sign is Sign.TIMEOUT
        if timed_out and self._timeouts == "drop":
            return ()
        self._ring.add(facts.seconds, now, censored=timed_out and self._timeouts == "km")
        self._since += 1
        if self._since < 20 or self._ring.count < 50:
            return ()
        self._since = 0
        before, summary = self.read_timeout, self._ring.summary(now)
        wanted = max(before, 1.5 * summary.largest) if summary.p99 is None else self._factor * summary.p99
        self.read_timeout = min(self._ceiling, max(self._floor, wanted))
        return (TimeoutChange(before, self.read_timeout),)


def _latencies() -> dict[str, tuple[float, float, float, Callable[[random.Random, int], float]]]:
    """Factor, floor, ceiling and latencies of the first table."""

    def lognormal(dice: random.Random, _: int) -> float:
        return math.exp(dice.gauss(math.log(1.27), 0.9))

    def pareto(dice: random.Random, _: int) -> float:
        return float(0.05 * dice.paretovariate(1.5))

    def bimodal(dice: random.Random, _: int) -> float:
        return dice.uniform(4.0, 6.0) if dice.random() < 0.03 else 0.2 * math.exp(dice.gauss(0.0, 0.3))

    def step(dice: random.Random, number: int) -> float:
        return (0.25 if number < CALLS // 4 else 4.0) * math.exp(dice.gauss(0.0, 0.3))

    free = (0.05, 1e9)
    return {
        "k=1.5, heavy lognormal": (1.5, *free, lognormal),
        "k=1.5, Pareto 1.5": (1.5, *free, pareto),
        "k=1.5, 3 % at 4-6 s": (1.5, *free, bimodal),
        "k=1.5, step .25 to 4 s": (1.5, *free, step),
        "k=1.0, Pareto 1.5": (1.0, *free, pareto),
        "k=2.5 clamp 3-15, 3 % at 4-6 s": (2.5, 3.0, 15.0, bimodal),
    }


def learner_table(seeds: int) -> list[dict[str, Any]]:
    """Final value and share of timeouts over the last third of 12,000 calls, by what becomes of timeouts."""
    rows = []
    for name, (factor, floor, ceiling, latency) in _latencies().items():
        row: dict[str, Any] = {"scenario": name}
        for kind in ("drop", "at_t", "km"):
            values, shares = [], []
            for seed in range(seeds):
                dice = random.Random(seed)
                learner = SimpleLearner(kind, factor, floor, ceiling)
                late = 0
                for number in range(CALLS):
                    seconds, limit = latency(dice, number), learner.read_timeout
                    timed_out = seconds > limit
                    late += timed_out and number >= 2 * CALLS // 3
                    facts = Facts(Sign.TIMEOUT if timed_out else Sign.OK, min(seconds, limit), not timed_out, timed_out)
                    learner.finished(Flight(0, False, 0, False), facts, START_US + number * 1_000_000, 0.5)
                values.append(learner.read_timeout)
                shares.append(late / (CALLS / 3))
            row[kind] = {"read_timeout": statistics.median(values), "timeouts": statistics.median(shares)}
        rows.append(row)
    return rows


# ----------------------------------------------------------------------------------------------- two hours


@dataclass(frozen=True, slots=True)
class Promise:
    """What must hold in every seed of a scenario."""

    scenario: str
    what: str
    bound: float
    value: Callable[[Outcome], float]


PROMISES: Final = (
    Promise("latency steps to 4-5 s", "failed", 10, lambda result: result.failed),
    Promise("dead for ever", "slot-seconds", 170, lambda result: result.slot_seconds),
    Promise("3 % of calls at 4-6 s", "failed", 10, lambda result: result.failed),
    Promise("always 200 after 25 s", "slot-seconds", 170, lambda result: result.slot_seconds),
    Promise("5 % hang for ever", "read timeout at the end", 3.0, lambda result: result.read_timeout),
)


def scenario_runs(seeds: int, others: int, tick: Callable[[str], None]) -> dict[str, dict[str, list[Outcome]]]:
    """Every scenario under ours, and with fewer seeds under two simple learners."""
    runs: dict[str, dict[str, list[Outcome]]] = {}
    for name, law in SCENARIOS.items():
        runs[name] = {"ours": [], "drop": [], "km": []}
        for kind, results in runs[name].items():
            tick(f"{name}, {kind}")
            for seed in range(seeds if kind == "ours" else others):
                limits = None if kind == "ours" else SimpleLearner(kind)
                results.append(EndpointModel(law, rate=1.0, seed=seed, limits=limits).run(SECONDS, warm_up=WARM_UP))
    return runs


def flood_runs(seeds: int) -> list[Outcome]:
    """20/s to an endpoint that answers after 25 s, cold: a timeout of 10 s, a cap of 6."""
    rules = LimitRules(concurrency=concurrency_rules(6, 200, 6))
    return [
        EndpointModel(constant(25.0), rate=20.0, seed=seed, limits=EndpointLimits(rules), poisson=True).run(120.0)
        for seed in range(seeds)
    ]


# ---------------------------------------------------------------------------------------------------- report


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Least, median and most."""
    low, mid, high = min(values), statistics.median(values), max(values)
    return f"{mid:,.{digits}f}" if low == high else f"{low:,.{digits}f} / {mid:,.{digits}f} / {high:,.{digits}f}"


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All of it."""
    others = QUICK_SEEDS if arguments.quick else SEEDS
    with steps(3 * len(SCENARIOS) + 3) as progress:

        def tick(what: str) -> None:
            progress.done()
            progress.begin(what)

        learners = learner_table(max(1, others // 5))
        runs = scenario_runs(SEEDS, others, tick)
        tick("a flood")
        floods = flood_runs(SEEDS)
        tick("cost")
        cost = observation_cost(3 if arguments.quick else 15)
        memory = tracked_cost(TRACKED)
    kept: list[dict[str, Any]] = []
    for promise in PROMISES:
        worst = max(promise.value(result) for result in runs[promise.scenario]["ours"])
        kept.append({"scenario": promise.scenario, "what": promise.what, "bound": promise.bound, "worst": worst})
    kept.append(
        {
            "scenario": "25 s flood at 20/s",
            "what": "opens after s",
            "bound": 12.0,
            "worst": max(f.opened_at[0] for f in floods),
        }
    )
    kept.append(
        {
            "scenario": "25 s flood at 20/s",
            "what": "in flight",
            "bound": 6,
            "worst": max(f.in_flight_max for f in floods),
        }
    )
    kept.append(
        {"scenario": "memory", "what": f"idle bytes of {TRACKED:,}", "bound": IDLE_BYTES, "worst": memory["idle_bytes"]}
    )
    kept.append(
        {
            "scenario": "memory",
            "what": f"active bytes of {TRACKED:,}",
            "bound": ACTIVE_BYTES,
            "worst": memory["active_bytes"],
        }
    )
    kept.append(
        {
            "scenario": "cost",
            "what": "us per observation (limits alone)",
            "bound": OBSERVATION_US,
            "worst": cost["finished_us"],
        }
    )
    for row in kept:
        row["holds"] = row["worst"] <= row["bound"]
    return {
        "seeds": SEEDS,
        "learner_seeds": others,
        "learners": learners,
        "runs": runs,
        "cost": cost,
        "memory": memory,
        "promises": kept,
    }


def show(result: dict[str, Any]) -> None:
    """Tables for people."""
    print_table(
        "12,000 calls: read timeout at the end, and share of timeouts in the last third "
        f"(median of {max(1, result['learner_seeds'] // 5)})",
        ("scenario", "timeouts dropped", "recorded at T", "Kaplan-Meier"),
        [
            (
                row["scenario"],
                *(f"{row[kind]['read_timeout']:.2f} s, {row[kind]['timeouts']:.2%}" for kind in ("drop", "at_t", "km")),
            )
            for row in result["learners"]
        ],
    )
    for title, what in (
        ("failed of 7,200", "failed"),
        ("slot-seconds", "slot_seconds"),
        ("read timeout at the end", "read_timeout"),
    ):
        digits = 1 if "timeout" in title else 0
        print_table(
            f"Two hours after the change, one a second: {title} "
            f"(least / median / most of {result['learner_seeds']} seeds; ours {result['seeds']})",
            ("scenario", "timeouts dropped", "Kaplan-Meier always", "ours"),
            [
                (
                    name,
                    *(spread([getattr(one, what) for one in kinds[kind]], digits) for kind in ("drop", "km", "ours")),
                )
                for name, kinds in result["runs"].items()
            ],
        )
    print_table(
        "What must hold",
        ("scenario", "what", "bound", "worst seed", ""),
        [
            (
                row["scenario"],
                row["what"],
                f"{row['bound']:g}",
                f"{row['worst']:.2f}",
                "holds" if row["holds"] else "FAILS",
            )
            for row in result["promises"]
        ],
    )
    cost, memory = result["cost"], result["memory"]
    print_line(
        f"per attempt: started {cost['started_us']:.2f} us, finished {cost['finished_us']:.2f} us; with host and fleet "
        f"{cost['whole_attempt_with_host_us']:.2f} us for both; all that a dispatcher does around it {cost['whole_us']:.2f} us, of which "
        f"{cost['observation_us']:.2f} when it has ended ({cost['watched_us']:.2f} and {cost['watched_observation_us']:.2f} while a shadow "
        f"and a rollout run). Per endpoint, everything included: idle {memory['idle_bytes']:.0f} bytes, "
        f"active {memory['active_bytes']:.0f} "
        f"({memory['watched_bytes']:.0f} while a shadow and a rollout run), of {memory['endpoints']:,.0f} of which any one's attempt takes "
        f"{memory['any_attempt_us']:.2f} us"
    )
    print_machine()


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 0 when every promise holds."""
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__)
    add_common_options(parser)
    parser.add_argument("--tracked", type=int, metavar="ENDPOINTS", help="only what so many endpoints cost, as JSON")
    parser.add_argument("--what", choices=MEASURED, help="of that, only this, in this process")
    chosen = parser.parse_args(arguments)
    if chosen.tracked and chosen.what:
        print_line(json.dumps(measure_tracked(chosen.tracked, chosen.what)))
        return 0
    if chosen.tracked:
        print_json(tracked_cost(chosen.tracked))
        return 0
    result = measure(chosen)
    if chosen.json:
        runs = {
            name: {kind: [vars_of(one) for one in results] for kind, results in kinds.items()}
            for name, kinds in result["runs"].items()
        }
        print_json({**result, "runs": runs})
    else:
        show(result)
    return 0 if all(row["holds"] for row in result["promises"]) else 1


def vars_of(outcome: Outcome) -> dict[str, Any]:
    """The figures of one run."""
    return {
        "ok": outcome.ok,
        "failed": outcome.failed,
        "probes": outcome.probes,
        "slot_seconds": outcome.slot_seconds,
        "in_flight_max": outcome.in_flight_max,
        "read_timeout": outcome.read_timeout,
        "read_timeout_max": outcome.read_timeout_max,
        "opened": len(outcome.opened_at),
        "waiting": outcome.waiting,
    }


if __name__ == "__main__":
    sys.exit(main())
