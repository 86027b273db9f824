"""`gatepost demo` is the first thing anyone runs: it must end by itself, and tell the truth."""

from __future__ import annotations

import os
import subprocess
import sys

from gatepost.service.demo_board import Lane, latency
from tests.service.served import PATIENCE


def test_the_demo_ends_by_itself_with_a_summary_and_exit_0() -> None:
    """Without a terminal too: this is what a CI log shows."""
    environ = {name: value for name, value in os.environ.items() if name != "DEMO_KEEP"}
    ended = subprocess.run(
        [sys.executable, "-m", "gatepost.service.cli", "demo", "--events", "40"],
        env={**environ, "GATEPOST_NONSENSE": "an operator's own settings must not break it", "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "40 of 40 good deliveries arrived" in ended.stdout
    assert "0 bad signatures" in ended.stdout
    assert "NOT kept" not in ended.stdout
    for name in ("good", "silent", "slow", "dripping", "dead"):
        assert name in ended.stdout
    assert "beside the hostile ones" in ended.stdout
    assert "read_timeout in wait" in ended.stdout
    assert "connection_refused, safe" in ended.stdout


def test_a_lane_counts_what_the_log_says() -> None:
    """The table must not claim more than the service said."""
    lane = Lane("silent", "never answers", "http://127.0.0.1:1")
    lane.published = 3
    line = {"delivered": False, "outcome": "read_timeout", "phase": "wait", "reason": "wait_timeout"}
    lane.take({**line, "retry_safety": "ambiguous", "decision": "retry_at"})
    lane.take({**line, "retry_safety": "ambiguous", "decision": "dead_letter"})
    lane.take({"delivered": True, "outcome": "response", "status": 200, "decision": "complete"})
    assert (lane.attempts, lane.delivered, lane.retries, lane.dead, lane.waiting) == (3, 1, 1, 1, 1)
    assert lane.classified == "read_timeout in wait (wait_timeout, ambiguous) x2, status 200 x1"
    assert lane.commonest == "read_timeout/wait"


def test_percentiles_of_delays() -> None:
    """Nearest rank, in milliseconds."""
    assert latency([]) is None
    found = latency([number / 1_000 for number in range(1, 101)])
    assert found is not None
    assert (found.count, found.p50, found.p99) == (100, 50.0, 99.0)
