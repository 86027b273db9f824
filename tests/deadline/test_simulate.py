"""The simulation says the same each time, keeps its sums, and shows what it is meant to show."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from gatepost.deadline.simulate import Chain, simulate
from gatepost.deadline.simulate_svg import draw
from gatepost.errors import ConfigurationError


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    """A picture in a document must be drawn again by whoever doubts it."""
    chain = Chain(requests=300)
    assert simulate(chain) == simulate(chain)
    assert simulate(chain) != simulate(Chain(requests=300, seed=2))


def test_a_degraded_last_hop_costs_dead_work_only_where_nobody_knows_the_deadline() -> None:
    """With a budget handed down no work is done after the user has gone, and nothing is held longer."""
    for retries in (0, 1):
        both = simulate(Chain(requests=500, retries=retries))
        assert both.propagated.dead_share == 0.0
        assert both.propagated.held_p99 <= both.chain.budget
        assert both.static.dead_share > 0.1
        assert both.static.held_p99 > 2 * both.chain.budget
        assert both.propagated.last_load < both.static.last_load


def test_five_timeouts_of_five_seconds_add_up() -> None:
    """The seed's arithmetic: stacked static limits, whatever the user waits."""
    both = simulate(Chain(hops=5, timeout=5.0, work=0.02, requests=10))
    assert both.static.worst_case == pytest.approx(20.1)
    assert both.propagated.worst_case == 0.5
    assert simulate(Chain(hops=5, retries=1, requests=10)).static.worst_case == pytest.approx(40.1)


def test_retries_multiply_by_hop() -> None:
    """One retry at each of four hops makes up to 2^3 calls to the last when every call times out."""
    both = simulate(Chain(hops=4, retries=1, timeout=0.05, slow=1000.0, spread=0.0, requests=20))
    assert [hop.calls for hop in both.static.hops] == [1.0, 2.0, 4.0, 8.0]
    # The first hop's cap is not all that is left, so it may try again; below it each call has the whole remainder.
    assert [hop.calls for hop in both.propagated.hops] == [1.0, 2.0, 2.0, 0.0]
    assert both.propagated.hops[3].refused == 2.0


def test_a_healthy_chain_is_the_same_in_both_modes() -> None:
    """Deadlines cost nothing while everything is well."""
    both = simulate(Chain(slow=1.0, spread=0.2, requests=300))
    assert both.static.answered == both.propagated.answered == 1.0
    assert both.static.held_p99 == both.propagated.held_p99
    assert both.static.dead_share == 0.0


@pytest.mark.parametrize(
    ("field", "value"),
    [("budget", 0.0), ("hops", 0), ("hops", 51), ("spread", -1.0), ("retries", -1), ("requests", 0), ("rate", -1.0)],
)
def test_impossible_chains_are_refused(field: str, value: float) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigurationError, match="write"):
        Chain(**{field: value})  # type: ignore[arg-type]  # whole numbers among them


def test_a_simulation_that_would_not_end_is_refused() -> None:
    """Ten hops with three retries are a quarter of a million calls for each request."""
    with pytest.raises(ConfigurationError, match="fewer"):
        Chain(hops=10, retries=3)


def test_the_command_prints_a_table_json_and_a_picture(tmp_path: Path) -> None:
    """As somebody would call it."""
    picture = tmp_path / "chain.svg"
    command = [sys.executable, "-m", "gatepost.service.cli", "deadline", "simulate", "--requests", "200"]
    table = subprocess.run([*command, "--svg", str(picture)], capture_output=True, text=True, check=True, timeout=60)
    assert "work done for nobody" in table.stdout
    root = ElementTree.fromstring(picture.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    printed = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=60)
    numbers = json.loads(printed.stdout)
    assert numbers["static"]["dead_share"] > 0.0
    assert numbers["propagated"]["dead_share"] == 0.0
    assert len(numbers["static"]["hops"]) == 5
    refused = subprocess.run([*command, "--budget", "0"], capture_output=True, text=True, check=False, timeout=60)
    assert refused.returncode == 2
    assert "budget" in refused.stderr


def test_the_picture_says_what_was_simulated() -> None:
    """A picture without its assumptions is an advertisement."""
    text = draw(simulate(Chain(requests=50)))
    assert "5 services, budget 0.5 s, static timeout 5 s" in text
