"""The measuring itself is right: percentiles, stage attribution, and one small round of the client benchmark."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import pytest

from bench.client_worker import PAYLOAD, RoundResult, RoundTask
from bench.figures import arrivals_after, latency_of, percentile
from bench.stages import Rule, StageProfiler, block_signal
from gatepost.testing.receiver_process import ReceiverProcess

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("values", "share", "expected"), [([1, 2, 3, 4], 0.5, 2), ([1, 2, 3, 4], 0.99, 4), ([7], 0.01, 7), ([1, 2], 0.5, 1)]
)
def test_a_percentile_is_a_value_that_occurred(values: list[float], share: float, expected: float) -> None:
    """Nearest rank: an interpolated p99 is a latency that nobody had."""
    assert percentile(values, share) == expected


def test_nothing_measured_is_not_a_good_figure() -> None:
    """An empty distribution must fail every comparison."""
    assert math.isnan(latency_of([]).p95)


def test_latency_counts_from_due_and_leaves_out_what_never_arrived() -> None:
    """What is lost is counted apart; it has no latency."""
    found = arrivals_after({"a": 1_000_000, "b": 2_000_000, "lost": 3}, {"a": 3_000_000, "b": 3_000_000})
    assert (found.count, found.p50, found.longest) == (2, 1.0, 2.0)


def burn_here(turns: int) -> int:
    """Some CPU in a function of its own."""
    return sum(number * number for number in range(turns))


def burn_in_a_thread(turns: int) -> int:
    """The same under another name, for another stage."""
    return burn_unnamed(turns)


def burn_unnamed(turns: int) -> int:
    """Says nothing about its stage; its caller does."""
    return sum(number * number for number in range(turns))


def test_cpu_is_charged_to_the_stage_of_the_thread_that_used_it() -> None:
    """A writer thread's work must not be charged to whatever the event loop does at the same time."""
    block_signal()
    rules = [
        Rule("here", __name__, "burn_here"),
        Rule("", __name__, "burn_unnamed"),
        Rule("thread", __name__, "thread"),
    ]
    profiler = StageProfiler(rules)
    other = threading.Thread(target=lambda: [burn_in_a_thread(100_000) for _ in range(20)])
    with profiler.running():
        other.start()
        for _ in range(60):
            burn_here(100_000)
        other.join()
    # The work is three to one; where a thread is seen when it lets go of the interpreter lock leaves some room.
    here, thread = profiler.seconds["here"], profiler.seconds["thread"]
    assert here > thread > 0
    assert (here + thread) / sum(profiler.seconds.values()) > 0.8


def test_a_round_of_the_client_benchmark_counts_every_request() -> None:
    """A request that failed would make its client look cheap."""
    assert len(PAYLOAD) == 1_024
    with ReceiverProcess("--ports", "4") as receiver:
        urls = [f"{url}/ok" for url in receiver.urls]
        task = RoundTask(client="gatepost", urls=urls[:2], idle_urls=urls[2:], in_flight=8, warm_up=20, requests=100)
        done = subprocess.run(
            [sys.executable, "-m", "bench.client_worker"],
            input=json.dumps(asdict(task)),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        result = RoundResult(**json.loads(done.stdout))
        assert (result.requests, result.failed) == (100, 0)
        assert result.cpu_user + result.cpu_system > 0
        assert receiver.stats()["requests"] == 2 + 20 + 100
