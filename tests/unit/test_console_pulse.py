"""The console's last five minutes in memory: what is counted, for whom, and what stays bounded."""

from __future__ import annotations

import dataclasses
import json

from gatepost.service.console.pulse import ENDPOINTS_MAX, NEWS_MAX, SLOT, SLOTS, TENANTS_MAX, WORST, Pulse, merge
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation
from gatepost.testing.virtual import VirtualClock

ATTEMPT = AttemptObservation(
    outcome="response", delivered=True, phase="read", reason="ok", retry_safety="safe", blame="endpoint", status=200,
    host="https://a.example", endpoint_id="ep_a", tenant="acme", address=None, elapsed=0.5, phases={}, reused=True,
    stale_retry=False, bytes_sent=1, body_fault=None, lagged=False,
)  # fmt: skip
FAILED = dataclasses.replace(ATTEMPT, delivered=False, status=500, retry_safety="ambiguous")
GIVEN_UP = DeliveryObservation("evt_1", "dlv_1", "ep_a", "acme", "a.b", 3, "dead_letter", "gone", None, 0.0, None)


def test_attempts_are_counted_by_slot_for_everybody_and_for_their_tenant() -> None:
    """A tenant's overview is its own; the operator's has all of it."""
    clock = VirtualClock()
    pulse = Pulse(clock)
    pulse.attempt_finished(ATTEMPT)
    pulse.attempt_finished(dataclasses.replace(FAILED, tenant="other", endpoint_id="ep_b"))
    clock.advance(SLOT)
    pulse.attempt_finished(dataclasses.replace(FAILED, blame="us"))
    pulse.delivery_decided(GIVEN_UP)
    pulse.delivery_decided(dataclasses.replace(GIVEN_UP, decision="retry_at"))
    series = pulse.look()["series"]
    assert series["attempts"][-2:] == [2, 1]
    assert series["delivered"][-2:] == [1, 0]
    assert series["ambiguous"][-2:] == [1, 1]
    assert series["ours"][-2:] == [0, 1]
    assert series["dead"][-2:] == [0, 1]
    acme = pulse.look("acme")
    assert acme["series"]["attempts"][-2:] == [1, 1]
    assert acme["endpoints"] == [], "a fault of ours is no endpoint's"
    assert [one["id"] for one in pulse.look()["endpoints"]] == ["ep_b"]
    assert pulse.look("nobody")["series"]["attempts"] == [0] * SLOTS
    clock.advance(SLOT * SLOTS + 60)  # endpoints are counted by the minute
    assert sum(pulse.look()["series"]["attempts"]) == 0
    assert pulse.look()["endpoints"] == []


def test_the_worst_endpoints_come_first_with_all_their_attempts() -> None:
    """Failures over all minutes, and what of them was good beside."""
    clock = VirtualClock()
    pulse = Pulse(clock)
    for number in range(WORST + 5):
        for _ in range(number + 1):
            pulse.attempt_finished(dataclasses.replace(FAILED, endpoint_id=f"ep_{number}"))
    clock.advance(61)
    pulse.attempt_finished(dataclasses.replace(ATTEMPT, endpoint_id=f"ep_{WORST + 4}", elapsed=2.0))
    worst = pulse.look()["endpoints"]
    assert [one["id"] for one in worst] == [f"ep_{number}" for number in range(WORST + 4, 4, -1)]
    first = worst[0]
    assert (first["attempts"], first["delivered"], first["ambiguous"]) == (WORST + 6, 1, WORST + 5)
    assert first["elapsed"] == 0.5 * (WORST + 5) + 2.0


def test_nothing_grows_without_bound_and_sums_miss_nothing() -> None:
    """A hundred thousand endpoints and tenants must cost no more than the bounds say."""
    pulse = Pulse(VirtualClock())
    for number in range(ENDPOINTS_MAX + 10):
        pulse.attempt_finished(dataclasses.replace(FAILED, tenant=f"t{number}", endpoint_id=f"ep_{number}"))
    for number in range(NEWS_MAX + 10):
        pulse.operational(
            OperationalObservation("circuit_opened", "x" * 10_000, "acme", f"ep_{number}", {"code": "failures"})
        )
    look = pulse.look()
    assert sum(look["series"]["attempts"]) == ENDPOINTS_MAX + 10
    assert len(look["endpoints"]) == WORST
    assert len(look["news"]) == NEWS_MAX
    assert sum(bool(sum(pulse.look(f"t{number}")["series"]["attempts"])) for number in range(TENANTS_MAX + 10)) == (
        TENANTS_MAX
    )
    assert len(json.dumps(look)) < 200_000


def test_a_breaker_that_opened_is_remembered_until_it_is_found_closed() -> None:
    """A held endpoint fails no more attempts, and is the one to show."""
    pulse = Pulse(VirtualClock())
    pulse.operational(OperationalObservation("circuit_opened", "m", "acme", "ep_a"))
    pulse.operational(OperationalObservation("circuit_opened", "m", "other", "ep_b"))
    pulse.operational(OperationalObservation("host_held", "m"))
    assert pulse.look()["held"] == ["ep_a", "ep_b"]
    assert pulse.look("acme")["held"] == ["ep_a"]
    assert [item["endpoint_id"] for item in pulse.look("acme")["news"]] == ["ep_a"]
    pulse.closed("ep_a")
    assert pulse.look()["held"] == ["ep_b"]


def test_several_processes_become_one_picture() -> None:
    """Their slots are those of the clock, so that a process a slot ahead does not shift the others."""
    clock = VirtualClock()
    ours, theirs = Pulse(clock), Pulse(clock)
    ours.attempt_finished(ATTEMPT)
    ours.attempt_finished(FAILED)
    theirs.attempt_finished(FAILED)
    theirs.operational(OperationalObservation("host_held", "later"))
    early = theirs.look()
    clock.advance(SLOT)
    ours.attempt_finished(ATTEMPT)
    both = merge([json.loads(json.dumps(look)) for look in (ours.look(), early)])
    assert both["series"]["attempts"][-2:] == [3, 1]
    assert [(one["attempts"], one["delivered"]) for one in both["endpoints"]] == [(4, 2)]
    assert [item["message"] for item in both["news"]] == ["later"]
