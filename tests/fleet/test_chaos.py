"""The short form of `python -m bench.chaos`: workers are killed, the database crashes, answers to commits are lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from bench.chaos import chaos
from bench.chaos_fleet import DOOMED_EVENTS, Plan
from bench.chaos_report import report
from bench.postgres import measured_server
from bench.report import steps

SHORT = Plan(
    workers=3,
    events=1_000,
    rate=300.0,
    # Kills come first: FIFO lanes of who was killed wait for the end of its lease, and that is most of this test's time.
    order=("kill", "cut", "kill", "restart", "cut"),
    gap=0.5,
)


def test_a_fleet_that_is_killed_cut_off_and_crashed_loses_nothing_and_keeps_order_and_caps(tmp_path: Path) -> None:
    """The promise of the fleet, in half a minute: two kills, one crash of the database, two commits nobody knows of."""
    plan = replace(SHORT, logs=tmp_path)
    with measured_server(durable=False) as server, steps(len(plan.order) + 1) as progress:
        result = asyncio.run(chaos(plan, server, progress))
    explained = report(result, tmp_path)
    assert [one["fault"] for one in result["faults"]] == list(plan.order), explained
    assert result["accepted"] == plan.events + DOOMED_EVENTS, explained
    assert result["published_twice"] > 0, explained
    assert result["keys_with_two_ids"] == 0, explained
    assert result["drained"], explained
    assert (result["lost"], result["unknown"]) == (0, 0), explained
    assert result["over_cap"] == 0, explained
    assert result["out_of_order"] == 0, explained
    assert [one["invariant"] for one in result["invariants"] if not one["held"]] == [], explained
