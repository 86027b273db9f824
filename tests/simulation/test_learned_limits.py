"""Two hours of an endpoint that changes for the worse, in a second: what limits that learn make of it.

The short form of `python -m bench.limits`, with fewer seeds; the bounds are those the project promises.
"""

from __future__ import annotations

import pytest

from gatepost.admission.concurrency import concurrency_rules
from gatepost.admission.endpoint_limits import EndpointLimits, LimitRules
from gatepost.testing.endpoint_model import SCENARIOS, EndpointModel, Outcome, constant, switched

SEEDS = range(3)
HOURS = 7_200.0


def two_hours(scenario: str, seed: int) -> Outcome:
    """One delivery a second, a quarter of an hour of health before."""
    return EndpointModel(SCENARIOS[scenario], rate=1.0, seed=seed).run(HOURS, warm_up=900.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_endpoint_that_became_slow_is_believed(seed: int) -> None:
    """From 0.25 s to 4-5 s: dropping timeouts would fail all 7,200 of them."""
    result = two_hours("latency steps to 4-5 s", seed)
    assert result.failed <= 10
    assert result.ok >= 7_180
    assert 11.0 <= result.read_timeout <= 13.0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scenario", ["dead for ever", "always 200 after 25 s"])
def test_an_endpoint_that_is_of_no_use_costs_little(scenario: str, seed: int) -> None:
    """Slot-seconds in two hours; without a breaker 21,600, with endless patience 107,942."""
    result = two_hours(scenario, seed)
    assert result.slot_seconds <= 170
    assert result.read_timeout == 3.0
    assert result.in_flight_max <= 6


@pytest.mark.parametrize("seed", SEEDS)
def test_a_few_slow_calls_are_waited_for(seed: int) -> None:
    """3 % at 4-6 s: learning from successes alone fails all of them for ever."""
    assert two_hours("3 % of calls at 4-6 s", seed).failed <= 10


@pytest.mark.parametrize("seed", SEEDS)
def test_calls_that_hang_for_ever_are_not_waited_for(seed: int) -> None:
    """5 %: the pay-off test takes the growth back, twice in two hours at most."""
    result = two_hours("5 % hang for ever", seed)
    assert result.read_timeout == 3.0
    assert result.slot_seconds <= 3_250


@pytest.mark.parametrize("seed", SEEDS)
def test_an_outage_of_ten_minutes_leaves_no_trace(seed: int) -> None:
    """The backlog is worked off, and the limit is what it was."""
    result = two_hours("dead for 10 min", seed)
    assert result.failed <= 14
    assert result.waiting == 0
    assert result.read_timeout == 3.0


@pytest.mark.parametrize("seed", SEEDS)
def test_slow_drift_is_followed(seed: int) -> None:
    """Twenty times as slow within an hour, as under a consumer's own peak."""
    assert two_hours("drifts to 20 x in 1 h", seed).failed <= 73


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("well_before", [False, True])
def test_a_flood_to_an_endpoint_that_answers_after_25_seconds(seed: int, well_before: bool) -> None:
    """20/s from a timeout of 10 s and a cap of 6: 500 slots without limits, never more than six here, and soon none."""
    law = switched(constant(0.05), constant(25.0)) if well_before else constant(25.0)
    rules = LimitRules(concurrency=concurrency_rules(6, 200, 6))  # fixed: in good times it would grow
    model = EndpointModel(law, rate=20.0, seed=seed, limits=EndpointLimits(rules), poisson=True)
    result = model.run(60.0, warm_up=5.0 if well_before else 0.0)
    assert result.in_flight_max <= 6
    assert result.opened_at[0] <= 12.0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_an_endpoint_that_always_takes_eight_seconds_is_probed_once_and_then_served(seed: int, rate: float) -> None:
    """Slow and well: it is believed after its probes, gets the attempts in flight it needs, and is not slower than itself."""
    result = EndpointModel(constant(8.0), rate=rate, seed=seed, poisson=True).run(3_600.0)
    assert len(result.opened_at) == 1
    assert (result.failed, result.waiting) == (0, 0)
