"""The adaptive read timeout: the six rules of "commit on recovery", sample minimums, hysteresis and what it says of itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.admission.adapt import TIERS, AdaptiveTimeout, AdaptMode, AdaptRules, LearningState
from gatepost.admission.latency import LatencyRing
from gatepost.errors import ConfigurationError

NOW = 1_800_000_000_000_000
HOUR = 3_600_000_000
THIRD_PARTY = AdaptRules(force_from=50)
SAME_DC = TIERS["same_dc"]


def taught(seconds: float, samples: int, rules: AdaptRules = THIRD_PARTY) -> AdaptiveTimeout:
    """An endpoint that always answered after `seconds`."""
    timeout = AdaptiveTimeout()
    for _ in range(samples):
        timeout.succeeded(seconds, NOW, rules)
    return timeout


@pytest.mark.parametrize(
    ("p99", "expected"), [(0.2, 3.0), (1.0, 3.0), (1.3, 3.25), (2.4, 6.0), (6.0, 15.0), (7.0, 15.0)]
)
def test_a_third_party_gets_two_and_a_half_times_its_p99(p99: float, expected: float) -> None:
    """Case 45: within 3 to 15 seconds."""
    assert taught(p99, 300).in_force(10.0, THIRD_PARTY) == pytest.approx(expected)


@pytest.mark.parametrize(("p99", "expected"), [(0.01, 0.05), (0.04, 0.06), (0.1, 0.15), (0.8, 1.2), (4.0, 5.0)])
def test_an_internal_service_gets_half_as_much_again(p99: float, expected: float) -> None:
    """p99 plus 50 %, within 50 ms to 5 s."""
    assert taught(p99, 300, SAME_DC).in_force(1.0, SAME_DC) == pytest.approx(expected)


def test_learning_takes_nothing_from_who_needs_more_than_it_may_give() -> None:
    """A policy of 30 s is there for somebody who takes 20: after two hundred answers, 15 s would fail all the others."""
    timeout = taught(20.0, 300)
    assert timeout.in_force(30.0, THIRD_PARTY) == 30.0
    assert "more than may be learned" in timeout.learned(30.0, THIRD_PARTY).text
    assert timeout.in_force(10.0, THIRD_PARTY) == 15.0
    assert taught(4.0, 300).in_force(30.0, THIRD_PARTY) == pytest.approx(10.0)


def test_too_few_samples_leave_the_default() -> None:
    """Case 49: 49 for third parties, 199 within the data centre."""
    assert taught(0.2, 49).in_force(10.0, THIRD_PARTY) == 10.0
    assert taught(0.2, 50).in_force(10.0, THIRD_PARTY) == 3.0
    assert taught(0.2, 199, SAME_DC).in_force(1.0, SAME_DC) == 1.0
    assert taught(0.2, 200, SAME_DC).in_force(1.0, SAME_DC) == pytest.approx(0.3)


def test_by_default_it_is_recorded_before_it_is_in_force() -> None:
    """Fifty samples are enough to show a value, two hundred to act on it."""
    rules = AdaptRules()
    timeout = taught(0.2, 50, rules)
    learned = timeout.learned(10.0, rules)
    assert (learned.read_timeout, learned.in_force, learned.samples) == (3.0, False, 50)
    assert timeout.in_force(10.0, rules) == 10.0
    assert "in force from 200" in learned.text
    assert taught(0.2, 200, rules).in_force(10.0, rules) == 3.0


@pytest.mark.parametrize(("mode", "value"), [(AdaptMode.OFF, None), (AdaptMode.SHADOW, 3.0)])
def test_modes_that_do_not_act(mode: AdaptMode, value: float | None) -> None:
    """Shadow computes and shows, off does not even compute."""
    rules = AdaptRules(mode=mode, force_from=50)
    timeout = taught(0.2, 100, rules)
    assert timeout.in_force(10.0, rules) == 10.0
    learned = timeout.learned(10.0, rules)
    assert (learned.read_timeout, learned.in_force) == (value, False)
    assert mode in learned.text


def test_timeouts_wait_until_the_endpoint_answers_again() -> None:
    """Rules 1 and 2: they enter the ring as censored samples with the next success of a healthy endpoint."""
    timeout = taught(0.2, 60)
    timeout.timed_out(3.0, NOW)
    assert timeout.ring.count == 60
    timeout.succeeded(0.2, NOW, THIRD_PARTY)
    assert timeout.ring.samples()[-2:] == [(3.0, True), (0.2, False)]


def test_nothing_is_learned_while_the_endpoint_fails() -> None:
    """A degraded consumer must not teach the dispatcher to be infinitely patient with it."""
    timeout = taught(0.2, 60)
    for _ in range(5):
        timeout.failed()
    timeout.succeeded(9.0, NOW, THIRD_PARTY)
    assert timeout.ring.count == 60
    assert timeout.learned(10.0, THIRD_PARTY).state is LearningState.FROZEN
    for _ in range(20):
        timeout.succeeded(0.2, NOW, THIRD_PARTY)
    assert not timeout.frozen
    assert timeout.ring.count > 60


def test_an_opened_breaker_discards_what_timed_out() -> None:
    """Case 46, rule 3: five timeouts and then an outage say nothing about patience."""
    timeout = taught(0.2, 300)
    for _ in range(5):
        timeout.timed_out(3.0, NOW)
    timeout.breaker_opened()
    timeout.recovered(0.2, NOW, THIRD_PARTY)
    for _ in range(300):
        timeout.succeeded(0.2, NOW, THIRD_PARTY)
    assert timeout.value == 3.0
    assert not any(censored for _, censored in timeout.ring.samples())


def test_only_the_last_five_timeouts_wait() -> None:
    """The list is bounded, whatever the breaker is set to."""
    timeout = taught(0.2, 300)
    for number in range(9):
        timeout.timed_out(3.0 + number, NOW)
    for _ in range(16):
        timeout.succeeded(0.2, NOW, THIRD_PARTY)
    assert [seconds for seconds, censored in timeout.ring.samples() if censored] == [7.0, 8.0, 9.0, 10.0, 11.0]


def test_probes_that_pass_raise_the_value_at_once() -> None:
    """Case 47, rule 4: three passes at 4.5 s make it 11.25 s, even before there are samples enough."""
    timeout = taught(0.2, 300)
    timeout.recovered(4.5, NOW, THIRD_PARTY)
    assert timeout.value == pytest.approx(11.25)
    cold = AdaptiveTimeout()
    cold.recovered(5.5, NOW, THIRD_PARTY)
    assert cold.in_force(10.0, THIRD_PARTY) == pytest.approx(13.75)
    assert "probes" in cold.learned(10.0, THIRD_PARTY).text
    cold = AdaptiveTimeout()
    cold.recovered(1.5, NOW, THIRD_PARTY)
    assert cold.in_force(10.0, THIRD_PARTY) == 10.0


def test_fast_probes_lower_nothing() -> None:
    """Three quick answers are no p99."""
    timeout = taught(4.0, 300)
    timeout.recovered(0.1, NOW, THIRD_PARTY)
    assert timeout.value == pytest.approx(10.0)


def hang(timeout: AdaptiveTimeout, now: int) -> None:
    """Nineteen answers and one call that never ends, cut off at the value in force."""
    for _ in range(19):
        timeout.succeeded(0.2, now, THIRD_PARTY)
    timeout.timed_out(timeout.value, now)


def test_growth_that_buys_nothing_is_taken_back_for_an_hour() -> None:
    """Case 47b, rules 5 and 6: when 5 % of calls hang for ever, waiting longer costs slots and delivers nothing."""
    timeout = taught(0.2, 300)
    highest = 0.0
    for _ in range(40):
        hang(timeout, NOW)
        highest = max(highest, timeout.value)
    assert highest > 3.0
    assert timeout.value == 3.0
    for _ in range(40):
        hang(timeout, NOW + HOUR - 1)
    assert timeout.value == 3.0
    hang(timeout, NOW + HOUR)
    hang(timeout, NOW + HOUR)
    assert timeout.value > 3.0


def test_growth_that_pays_stays() -> None:
    """A share of slow but honest answers is worth waiting for."""
    timeout = taught(0.2, 300)
    for number in range(1_200):
        seconds = 5.0 if number % 30 == 0 else 0.2
        if seconds > timeout.value:
            timeout.timed_out(timeout.value, NOW)
        else:
            timeout.succeeded(seconds, NOW, THIRD_PARTY)
    assert timeout.value == pytest.approx(12.5)


def test_it_falls_in_steps_and_rises_at_once() -> None:
    """Too long costs slots, too short costs deliveries."""
    timeout = taught(4.0, 300)
    assert timeout.value == pytest.approx(10.0)
    for _ in range(297):
        timeout.succeeded(0.2, NOW, THIRD_PARTY)
    assert timeout.value == pytest.approx(10.0)
    values = []
    for _ in range(160):
        if timeout.succeeded(0.2, NOW, THIRD_PARTY):
            values.append(timeout.value)
    assert values[:3] == pytest.approx([8.0, 6.4, 5.12])
    assert values[-1] == 3.0
    for _ in range(20):
        timeout.succeeded(5.0, NOW, THIRD_PARTY)
    assert timeout.value == pytest.approx(12.5)


def test_it_does_not_fall_below_what_was_answered_lately() -> None:
    """A window that happens to hold two slow calls instead of nine must not cut off the next one."""
    timeout = taught(0.2, 300)
    for number in range(300):
        timeout.succeeded(5.0 if number % 30 == 0 else 0.2, NOW, THIRD_PARTY)
    assert timeout.value == pytest.approx(12.5)
    for _ in range(265):
        timeout.succeeded(0.2, NOW, THIRD_PARTY)
    assert 7.5 <= timeout.value <= 8.0
    for _ in range(200):
        timeout.succeeded(0.2, NOW, THIRD_PARTY)
    assert timeout.value == 3.0


def test_trifles_are_not_applied() -> None:
    """A value that flutters would recycle decisions for nothing."""
    timeout = taught(2.0, 300)
    for _ in range(300):
        timeout.succeeded(2.1, NOW, THIRD_PARTY)
    assert timeout.value == pytest.approx(5.0)


def test_an_inherited_ring_needs_samples_of_ones_own() -> None:
    """A sibling on the same host is a guess, not evidence: it must not cut off a slower endpoint from its first attempt on."""
    timeout = AdaptiveTimeout(taught(0.2, 300).ring.copy())
    for _ in range(49):
        timeout.succeeded(0.2, NOW, THIRD_PARTY)
    assert timeout.in_force(10.0, THIRD_PARTY) == 10.0
    timeout.succeeded(0.2, NOW, THIRD_PARTY)
    assert timeout.in_force(10.0, THIRD_PARTY) == 3.0


def test_it_says_that_the_p99_cannot_be_read() -> None:
    """An operator must see why a limit is what it is."""
    timeout = taught(0.2, 60)
    for _ in range(3):
        timeout.timed_out(3.0, NOW)
    for _ in range(40):
        timeout.succeeded(0.2, NOW, THIRD_PARTY)
    learned = timeout.learned(10.0, THIRD_PARTY)
    assert learned.p99 is None
    assert "cannot be read" in learned.text
    assert learned.p50 == 0.2
    assert AdaptiveTimeout().learned(10.0, THIRD_PARTY).text == "10 s as configured; 0 of 50 samples"
    assert AdaptiveTimeout().learned(10.0, THIRD_PARTY).state is LearningState.COLD


@given(
    st.lists(st.tuples(st.sampled_from(["ok", "timeout", "fail", "probes"]), st.floats(0, 20)), max_size=400),
    st.sampled_from(list(TIERS.values())),
)
def test_the_value_stays_within_its_clamp_and_survives_storing(
    events: list[tuple[str, float]], rules: AdaptRules
) -> None:
    """Whatever an endpoint does, it cannot move its limit out of what the operator allows, and a restart changes nothing."""
    timeout = AdaptiveTimeout()
    for kind, seconds in events:
        match kind:
            case "ok":
                timeout.succeeded(seconds, NOW, rules)
            case "timeout":
                timeout.timed_out(seconds, NOW)
            case "fail":
                timeout.failed()
            case _:
                timeout.breaker_opened()
                timeout.recovered(seconds, NOW, rules)
        assert timeout.value == 0 or rules.floor <= timeout.value <= rules.ceiling
    stored = timeout.to_bytes()
    again = AdaptiveTimeout.from_bytes(stored)
    assert again.to_bytes() == stored
    assert again.in_force(10.0, rules) == pytest.approx(timeout.in_force(10.0, rules), abs=0.001)
    assert again.frozen == timeout.frozen


def test_foreign_bytes_are_refused() -> None:
    """Better cold than wrong."""
    for stored in (b"", bytes(10), AdaptiveTimeout().to_bytes() + b"x"):
        with pytest.raises(ValueError, match="no stored"):
            AdaptiveTimeout.from_bytes(stored)


@pytest.mark.parametrize(
    "settings",
    [{"floor": 5.0, "ceiling": 3.0}, {"factor": 0.5}, {"floor": 0.0}, {"record_from": 100, "force_from": 50}],
)
def test_impossible_rules_are_refused(settings: dict[str, float]) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigurationError, match="write"):
        AdaptRules(**settings)  # type: ignore[arg-type]  # wrong on purpose


def test_a_ring_may_be_given() -> None:
    """The host's, for a new endpoint."""
    ring = LatencyRing()
    assert AdaptiveTimeout(ring).ring is ring
