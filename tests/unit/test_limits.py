"""An endpoint's limits as one, a host's breaker, and all of a process together."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatepost.admission.adapt import AdaptRules
from gatepost.admission.breaker import BreakerMode, BreakerRules, BreakerState, TripCause
from gatepost.admission.concurrency import ConcurrencyRules
from gatepost.admission.endpoint_limits import (
    Admit,
    BreakerChange,
    EndpointLimits,
    Flight,
    Hold,
    LimitRules,
    TimeoutChange,
)
from gatepost.admission.evidence import Facts, Sign
from gatepost.admission.host_breaker import UNPROVEN
from gatepost.admission.limits import Change, EndpointChange, FleetChange, HostChange, HostGate, Limits

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
RULES = LimitRules()
OK = Facts(Sign.OK, 0.2, True, False)
TIMEOUT = Facts(Sign.TIMEOUT, 3.0, False, True)
SETUP = Facts(Sign.SETUP, 0.0, False, False)
NOTHING = Facts(Sign.NOTHING, 0.0, False, False)


def attempt(limits: EndpointLimits, facts: Facts, now: int = NOW, **options: Any) -> tuple[object, ...]:
    """One attempt, begun and ended."""
    return limits.finished(limits.started(now), facts, now, 0.5, **options)


def silenced(rules: LimitRules = RULES) -> EndpointLimits:
    """An endpoint whose breaker has just opened."""
    limits = EndpointLimits(rules)
    for _ in range(5):
        attempt(limits, TIMEOUT)
    return limits


# ------------------------------------------------------------------------------------------------ one endpoint


def test_a_fresh_endpoint_is_admitted_as_configured() -> None:
    """Cold: the policy's timeout, six in flight."""
    assert EndpointLimits(RULES).verdict(NOW) == Admit(6, 10.0, False)


def test_the_life_of_an_outage() -> None:
    """Open, one probe at the ceiling, three passes, a raised timeout, the ramp, closed."""
    limits = EndpointLimits(RULES)
    for _ in range(300):
        attempt(limits, OK)
    assert limits.read_timeout == 3.0
    changes = [change for _ in range(5) for change in attempt(limits, TIMEOUT)]
    assert changes == [BreakerChange(BreakerState.OPEN, TripCause.TIMEOUTS, 0, NOW + 30 * SECOND, False)]
    assert limits.verdict(NOW) == Hold(NOW + 30 * SECOND, TripCause.TIMEOUTS)
    assert limits.statistics().cap == 0
    now = limits.hold_until
    for number in range(3):
        assert limits.verdict(now) == Admit(1, 15.0, True)
        probe = limits.started(now)
        assert (probe.probe, limits.attempt_timeout(probe)) == (True, 15.0)
        changes = list(limits.finished(probe, Facts(Sign.OK, 4.5, True, False), now, 0.5))
        assert bool(changes) is (number == 2)
    assert changes[1] == TimeoutChange(3.0, 11.25)
    seen = []
    while not limits.closed:
        seen.append(limits.cap)
        changes = list(attempt(limits, OK, now))
    assert seen == [1, 2, 2]
    assert BreakerChange(BreakerState.CLOSED, None, 0, 0, False) in changes
    statistics = limits.statistics()
    assert (statistics.state, statistics.in_flight, statistics.cap) == (BreakerState.CLOSED, 0, statistics.learned_cap)


def test_only_one_probe_flies_at_a_time() -> None:
    """Half-open is not "nearly closed"."""
    limits = silenced()
    now = limits.hold_until
    first, second = limits.started(now), limits.started(now)
    assert (first.probe, second.probe) == (True, False)
    limits.finished(second, OK, now, 0.5)
    limits.finished(first, NOTHING, now, 0.5)  # ours: neither passed nor failed
    assert limits.started(now).probe


def test_a_failed_probe_opens_again() -> None:
    """And a slow success within its limit passes."""
    limits = silenced()
    now = limits.hold_until
    [change] = limits.finished(limits.started(now), TIMEOUT, now, 0.5)
    assert change == BreakerChange(BreakerState.OPEN, TripCause.PROBE, 1, now + 60 * SECOND, False)


def test_attempts_begun_before_it_opened_are_no_evidence_after() -> None:
    """They belong to the outage that opened it."""
    limits = EndpointLimits(RULES)
    early = [limits.started(NOW) for _ in range(8)]
    for flight in early[:5]:
        limits.finished(flight, TIMEOUT, NOW, 0.5)
    now = limits.hold_until
    for _ in range(3):
        attempt(limits, OK, now)
    assert limits.statistics().state is BreakerState.RAMPING
    for flight in early[5:]:
        assert limits.finished(flight, TIMEOUT, now, 0.5) == ()
    assert limits.statistics().state is BreakerState.RAMPING


@pytest.mark.parametrize("facts", [NOTHING, SETUP])
def test_what_is_not_its_fault_is_not_counted(facts: Facts) -> None:
    """Ours, or the host's."""
    limits = EndpointLimits(RULES)
    for _ in range(50):
        attempt(limits, facts)
    assert limits.closed


def test_suspected_trouble_of_ours_holds_the_breaker_back() -> None:
    """An outage of our network must not close everybody's doors."""
    limits = EndpointLimits(RULES)
    for _ in range(50):
        attempt(limits, TIMEOUT, ours=True)
    assert limits.closed
    assert limits.statistics().learned.samples == 0


def test_attempts_in_flight_open_it_by_their_age() -> None:
    """Nothing has ended, and it is plain all the same."""
    limits = EndpointLimits(RULES)
    for second in range(6):
        limits.started(NOW + second * SECOND)
    assert limits.next_age_at() == NOW + 5 * SECOND
    assert limits.age(NOW + 9 * SECOND, 0.5) == ()
    assert limits.next_age_at() == NOW + 10 * SECOND
    [change] = limits.age(NOW + 10 * SECOND, 0.5)
    assert isinstance(change, BreakerChange)
    assert change.cause is TripCause.SLOW
    assert limits.next_age_at() is None


def test_a_dry_run_says_what_it_would_do_and_does_nothing() -> None:
    """To be watched before it is trusted."""
    rules = LimitRules(breaker=BreakerRules(mode=BreakerMode.DRY_RUN))
    limits = silenced(rules)
    verdict = limits.verdict(NOW)
    assert isinstance(verdict, Admit)
    assert (verdict.probe, verdict.read_timeout) == (False, 10.0)
    assert limits.started(NOW).refused
    assert limits.statistics().state is BreakerState.OPEN
    assert limits.hold_until == 0
    now = NOW + 31 * SECOND
    probe = limits.started(now)
    assert (probe.probe, probe.refused, limits.attempt_timeout(probe)) == (True, False, 10.0)


def test_a_breaker_that_is_off_counts_nothing() -> None:
    """And one that is switched off closes."""
    off = LimitRules(breaker=BreakerRules(mode=BreakerMode.OFF))
    assert silenced(off).closed
    limits = silenced()
    [change] = limits.configure(off)
    assert isinstance(change, BreakerChange)
    assert limits.closed


def test_an_endpoints_own_timeout_beats_what_is_learned() -> None:
    """It is learned and shown all the same, and a probe is never shorter."""
    rules = LimitRules(read_timeout=25.0, pinned=True)
    limits = EndpointLimits(rules)
    for _ in range(300):
        attempt(limits, OK)
    assert limits.read_timeout == 25.0
    assert limits.learned().read_timeout == 3.0
    assert rules.probe_limit == 25.0
    assert LimitRules(read_timeout=5.0, pinned=True).probe_limit == 15.0


def test_a_probe_asks_no_more_than_an_ordinary_attempt() -> None:
    """Under a policy of 30 s, who takes 20 would be well until its breaker opens, and dead ever after."""
    assert LimitRules(read_timeout=30.0).probe_limit == 30.0
    assert LimitRules(adapt=AdaptRules(ceiling=25.0)).probe_limit == 25.0
    assert LimitRules(adapt=AdaptRules(ceiling=25.0), pinned=True).probe_limit == 15.0
    limits = silenced(LimitRules(read_timeout=30.0))
    assert limits.attempt_timeout(limits.started(NOW + 30 * SECOND)) == 30.0


def test_the_endpoint_may_ask_for_a_pause() -> None:
    """Retry-After of a 429, bounded: it is said by somebody we do not know."""
    limits = EndpointLimits(RULES)
    limits.hold(5.0, NOW)
    assert limits.verdict(NOW) == Hold(NOW + 5 * SECOND, None)
    assert isinstance(limits.verdict(NOW + 5 * SECOND), Admit)
    limits.hold(1e9, NOW)
    assert limits.hold_until == NOW + 600 * SECOND


def test_throttling_lowers_the_cap_and_opens_nothing() -> None:
    """429 says: alive, less please."""
    limits = EndpointLimits(RULES)
    for _ in range(100):
        attempt(limits, Facts(Sign.BUSY, 0.1, False, False))
    assert (limits.closed, limits.cap) == (True, 1)


def test_a_reset_opens_the_door() -> None:
    """Enabled again: closed, with a clean slate."""
    limits = silenced()
    [change] = limits.reset()
    assert change == BreakerChange(BreakerState.CLOSED, None, 0, 0, False)
    assert limits.reset() == ()
    for _ in range(4):
        attempt(limits, TIMEOUT)
    assert limits.closed


def test_what_is_in_flight_at_a_reset_is_no_evidence_after() -> None:
    """Six that hang when their endpoint is paused must not open the breaker that its owner finds closed."""
    limits = EndpointLimits(RULES)
    flights = [limits.started(NOW) for _ in range(6)]
    limits.reset()
    assert limits.age(NOW + 6 * SECOND, 0.5) == ()
    for flight in flights:
        assert limits.finished(flight, TIMEOUT, NOW + 10 * SECOND, 0.5) == ()
    assert limits.closed


def test_nobody_is_slow_while_we_do_not_look() -> None:
    """A process that stood still for a while finds everything in flight old."""
    limits = Limits(BreakerRules())
    flights = [limits.started(1, "https://h.example", RULES, NOW) for _ in range(6)]
    limits.excuse([1, 2])
    assert limits.age(1, NOW + 6 * SECOND, 0.5) == []
    for flight in flights:
        limits.finished(flight, OK, NOW + 6 * SECOND, 0.5)
    flights = [limits.started(1, "https://h.example", RULES, NOW) for _ in range(6)]
    assert limits.age(1, NOW + 6 * SECOND, 0.5), "but then they are looked at again"


def test_a_hold_made_by_a_clock_that_was_ahead_is_cut_short() -> None:
    """Saved by a machine that lived a day in the future; the longest that begins now is the longest there is."""
    limits = EndpointLimits(RULES)
    for _ in range(5):
        attempt(limits, TIMEOUT, NOW + 86_400 * SECOND)
    again = EndpointLimits.from_bytes(limits.to_bytes(), RULES)
    again.bound_hold(NOW)
    assert again.hold_until == NOW
    assert again.started(NOW).probe
    limits.hold(600.0, NOW + 86_400 * SECOND)
    limits.bound_hold(NOW)
    assert limits.hold_until == NOW
    limits.hold(600.0, NOW)
    limits.bound_hold(NOW)
    assert limits.hold_until == NOW + 600 * SECOND


def test_an_endpoint_that_was_forgotten_in_flight_is_not_spoken_of() -> None:
    """Its part has another owner, whose state ours would replace."""
    limits = Limits(BreakerRules())
    flights = [limits.started(1, "https://h.example", RULES, NOW) for _ in range(6)]
    limits.forget([1])
    changes = [change for flight in flights for change in limits.finished(flight, TIMEOUT, NOW, 0.5)]
    assert not [change for change in changes if isinstance(change, EndpointChange)]
    assert limits.statistics().unsaved == 0


def test_a_restart_changes_nothing() -> None:
    """Timeout, cap, breaker and samples are what they were."""
    limits = EndpointLimits(RULES)
    for _ in range(300):
        attempt(limits, OK)
    for _ in range(5):
        attempt(limits, TIMEOUT)
    stored = limits.to_bytes()
    again = EndpointLimits.from_bytes(stored, RULES)
    assert again.to_bytes() == stored
    assert again.verdict(NOW) == limits.verdict(NOW)
    assert again.learned() == limits.learned()
    for damaged in (b"", b"\x02" + stored[1:], stored[:40], stored + b"x"):
        with pytest.raises(ValueError, match="stored"):
            EndpointLimits.from_bytes(damaged, RULES)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["start", "end", "age", "store", "rules", "reset"]),
        st.sampled_from(list(Sign)),
        st.floats(0, 20),
        st.integers(0, 40 * SECOND),
        st.floats(0, 1, exclude_max=True),
    ),
    max_size=200,
)


@settings(max_examples=200)
@given(EVENTS, st.sampled_from(list(BreakerMode)))
def test_no_history_breaks_an_invariant(events: list[tuple[str, Sign, float, int, float]], mode: BreakerMode) -> None:
    """Whatever attempts do: limits stay in their bounds, a hold ends, one probe flies, and a restart sees the same."""
    rules = LimitRules(breaker=BreakerRules(mode=mode), adapt=AdaptRules(record_from=5, force_from=5))
    other = LimitRules(breaker=BreakerRules(mode=mode), concurrency=ConcurrencyRules(2, 1, 4), read_timeout=7.0)
    limits, now = EndpointLimits(rules), NOW
    flights: list[Flight] = []
    for kind, sign, seconds, gap, u in events:
        now += gap
        verdict = limits.verdict(now)
        if isinstance(verdict, Admit):
            assert 1 <= verdict.cap <= 64
            assert 3.0 <= verdict.read_timeout <= 15.0
        else:
            assert now < verdict.until <= now + 2_160 * SECOND
        if kind == "start" and isinstance(verdict, Admit) and len(flights) < verdict.cap:
            flights.append(limits.started(now))
        elif kind == "end" and flights:
            success = sign is Sign.OK
            waited = sign is Sign.TIMEOUT
            limits.finished(flights.pop(len(flights) // 2), Facts(sign, seconds, success, waited), now, u)
        elif kind == "age":
            limits.age(now, u)
            due = limits.next_age_at()
            assert due is None or due > now
        elif kind == "rules":
            limits.configure(other if limits.rules is rules else rules)
        elif kind == "reset":
            limits.reset()
        elif kind == "store":
            again = EndpointLimits.from_bytes(limits.to_bytes(), limits.rules)
            assert again.to_bytes() == limits.to_bytes()
            if isinstance(verdict, Hold) and verdict.cause is not None:
                assert again.verdict(now) == Hold(verdict.until, verdict.cause) or limits.hold_until > verdict.until
        assert limits.in_flight == len(flights)
        assert sum(flight.probe for flight in flights) <= 1 or kind == "reset" or any(e[0] == "reset" for e in events)


def test_an_idle_endpoint_takes_less_than_a_kibibyte() -> None:
    """A hundred thousand of them are tracked in one process."""
    limits = EndpointLimits(RULES)
    for number in range(400):
        attempt(limits, OK, NOW + number * SECOND)
    assert sys.getsizeof(limits.to_bytes()) <= 740


# ------------------------------------------------------------------------------------------------- all together


def run(limits: Limits, number: int, host: str, facts: Facts, now: int = NOW) -> list[Change]:
    """One attempt of an endpoint."""
    return limits.finished(limits.started(number, host, RULES, now), facts, now, 0.5)


def test_a_dead_host_is_seen_once_for_all_of_its_endpoints() -> None:
    """Five failed connections of any endpoints hold all of them, and one probe is sent for all."""
    limits = Limits(BreakerRules())
    changes = [change for number in range(5) for change in run(limits, number, "https://dead.example", SETUP)]
    assert changes == [HostChange("https://dead.example", BreakerState.OPEN, 0, NOW + 30 * SECOND)]
    assert limits.host_gate("https://dead.example") == HostGate(1, NOW + 30 * SECOND)
    assert limits.statistics().host_opened == 1
    now = NOW + 30 * SECOND
    probe, other = (limits.started(number, "https://dead.example", RULES, now) for number in (1_000, 1_001))
    assert probe.host_flight is not None
    assert other.host_flight is not None
    assert (probe.host_flight.probe, other.host_flight.probe) == (True, False)
    assert limits.finished(other, SETUP, now, 0.5) == []
    [change] = limits.finished(probe, SETUP, now, 0.5)
    assert change == HostChange("https://dead.example", BreakerState.OPEN, 1, now + 60 * SECOND)
    assert limits.peek(1_000) is not None


def test_a_host_that_comes_back_is_ramped_and_then_forgotten() -> None:
    """A healthy host has no state."""
    limits = Limits(BreakerRules())
    for number in range(5):
        run(limits, number, "https://h.example", SETUP)
    now = NOW + 30 * SECOND
    caps = []
    for number in range(60):
        caps.append(limits.host_gate("https://h.example").cap)
        run(limits, number, "https://h.example", OK, now)
    assert caps[:6] == [1, 1, 1, 1, 2, 2]
    assert caps[-1] is None
    assert limits.statistics().hosts_in_trouble == 0


def test_a_host_nobody_has_reached_gets_few_attempts_at_first() -> None:
    """A thousand endpoints of a dead host would else hang together before the first of them reports."""
    limits = Limits(BreakerRules())
    assert limits.host_gate("https://new.example") == HostGate(UNPROVEN, 0)
    run(limits, 1, "https://new.example", OK)
    assert limits.host_gate("https://new.example") == HostGate(None, 0)
    run(limits, 1, "https://new.example", SETUP)
    assert limits.host_gate("https://new.example") == HostGate(UNPROVEN, 0)
    limits.reset_host("https://new.example")


def test_a_probe_ends_at_the_host_it_was_sent_to() -> None:
    """Its endpoint was given another URL meanwhile: the old host waits for the answer, the new one never asked."""
    limits = Limits(BreakerRules())
    for number in range(5):
        run(limits, number, "https://old.example", SETUP)
    now = NOW + 30 * SECOND
    probe = limits.started(1_000, "https://old.example", RULES, now)
    limits.endpoint(1_000, "https://new.example", RULES)
    [change] = limits.finished(probe, SETUP, now, 0.5)
    assert change == HostChange("https://old.example", BreakerState.OPEN, 1, now + 60 * SECOND)
    assert limits.statistics().hosts_in_trouble == 1
    now += 60 * SECOND
    probe = limits.started(1_000, "https://old.example", RULES, now)
    limits.endpoint(1_000, "https://new.example", RULES)
    limits.finished(probe, NOTHING, now, 0.5)
    again = limits.started(1_001, "https://old.example", RULES, now).host_flight
    assert again is not None
    assert again.probe


def test_a_host_that_nobody_tries_any_more_is_forgotten() -> None:
    """Its endpoints are gone, or gave up: after a day, neither memory nor the count of hosts in trouble keeps it."""
    limits = Limits(BreakerRules())
    for host in ("https://gone.example", "https://dead.example"):
        for number in range(5):
            run(limits, number, host, SETUP)
    for _ in range(200):
        limits.rest()
    run(limits, 1, "https://dead.example", SETUP, NOW + 60_000 * SECOND)
    for _ in range(101):
        limits.rest()
    assert limits.host_gate("https://gone.example") == HostGate(UNPROVEN, 0)
    assert limits.host_gate("https://dead.example").held_until > NOW + 60_000 * SECOND
    assert limits.statistics().hosts_in_trouble == 1


def test_an_outage_of_ours_makes_nobody_slow() -> None:
    """What hangs in flight while all hosts fail hangs by our network: it is counted when that is over, if it hangs still."""
    limits = Limits(BreakerRules())
    for number in range(40):
        run(limits, number, f"https://host{number}.example{number}.com", OK)
    for _ in range(6):
        limits.started(99, "https://host99.example99.com", RULES, NOW)
    for number in range(40):
        run(limits, number, f"https://host{number}.example{number}.com", SETUP, NOW + SECOND)
    assert limits.statistics().fleet_suspected
    assert limits.age(99, NOW + 6 * SECOND, 0.5) == []
    assert limits.age(99, NOW + 200 * SECOND, 0.5), "then nobody fails any more"


def test_the_host_breaker_obeys_its_mode() -> None:
    """In dry run it holds nobody."""
    limits = Limits(BreakerRules(mode=BreakerMode.DRY_RUN))
    for number in range(5):
        run(limits, number, "https://h.example", SETUP)
    assert limits.host_gate("https://h.example") == HostGate(None, 0)
    assert limits.statistics().host_opened == 1
    limits = Limits(BreakerRules(mode=BreakerMode.OFF))
    for number in range(50):
        assert run(limits, number, "https://h.example", SETUP) == []


def test_an_outage_of_ours_opens_no_breaker() -> None:
    """All hosts at once: it is our network, and everybody hears of it once."""
    limits = Limits(BreakerRules())
    for number in range(40):
        run(limits, number, f"https://host{number}.example{number}.com", OK)
    changes: list[Change] = []
    for second in range(60):
        for number in range(40):
            changes += run(limits, number, f"https://host{number}.example{number}.com", SETUP, NOW + second * SECOND)
    assert [change for change in changes if isinstance(change, FleetChange)] == [FleetChange(True)]
    assert not [change for change in changes if isinstance(change, HostChange)]
    assert limits.statistics().fleet_suspected
    later = [
        change
        for number in range(40)
        for change in run(limits, number, f"https://host{number}.example{number}.com", OK, NOW + 61 * SECOND)
    ]
    assert [change for change in later if isinstance(change, FleetChange)] == [FleetChange(False)]


def test_a_new_endpoint_starts_from_a_sibling_of_its_host() -> None:
    """Response times of a host's endpoints are alike; its own samples take over."""
    limits = Limits(BreakerRules())
    for _ in range(300):
        run(limits, 1, "https://saas.example", OK)
    limits.rest()
    assert limits.endpoint(2, "https://saas.example", RULES).learned().samples == 300
    assert limits.endpoint(2, "https://saas.example", RULES).read_timeout == 10.0
    assert limits.endpoint(3, "https://other.example", RULES).learned().samples == 0


def test_idle_endpoints_are_packed_and_wake_as_they_were() -> None:
    """Memory follows what is active, not what is registered."""
    limits = Limits(BreakerRules())
    for _ in range(300):
        run(limits, 1, "https://a.example", OK)
    busy = limits.started(2, "https://b.example", RULES, NOW)
    assert (limits.rest(), limits.rest()) == (0, 1)
    statistics = limits.statistics()
    assert (statistics.active, statistics.idle) == (1, 1)
    assert limits.peek(1) is None
    assert limits.knows(1)
    assert limits.endpoint(1, "https://a.example", RULES).read_timeout == 3.0
    limits.finished(busy, OK, NOW, 0.5)
    assert "active=2" in repr(limits)


def test_states_to_store_are_taken_once_and_breakers_first() -> None:
    """A crash may lose minutes of samples, but not that an endpoint is held."""
    limits = Limits(BreakerRules())
    for number in range(1, 10):
        run(limits, number, f"https://{number}.example", OK)
    for _ in range(5):
        changes = run(limits, 99, "https://99.example", TIMEOUT)
    [change] = changes
    assert isinstance(change, EndpointChange)
    assert change.number == 99
    assert set(limits.take_unsaved(100, urgent_only=True)) == {99}
    taken = limits.take_unsaved(4)
    assert len(taken) == 4
    limits.unsaved(taken)
    everything = limits.take_unsaved(100)
    assert set(everything) == set(range(1, 10))
    assert limits.take_unsaved(100) == {}
    heir = Limits(BreakerRules())
    heir.load({99: EndpointLimits.from_bytes(silenced().to_bytes(), RULES).to_bytes(), 100: b"\xff"})
    assert isinstance(heir.endpoint(99, "https://99.example", RULES).verdict(NOW), Hold)
    assert isinstance(heir.endpoint(100, "https://100.example", RULES).verdict(NOW), Admit)
    assert limits.statistics().opened[TripCause.TIMEOUTS] == 1


def test_what_is_known_here_is_younger_than_what_is_loaded() -> None:
    """A late answer of the store must not undo what was learned since."""
    limits = Limits(BreakerRules())
    run(limits, 1, "https://a.example", OK)
    limits.load({1: silenced().to_bytes()})
    assert isinstance(limits.endpoint(1, "https://a.example", RULES).verdict(NOW), Admit)


def test_endpoints_can_be_forgotten_and_reset() -> None:
    """Deleted, lost to another owner, or enabled again; even while something is in flight."""
    limits = Limits(BreakerRules())
    flight = limits.started(1, "https://a.example", RULES, NOW)
    limits.forget([1, 2])
    assert not limits.knows(1)
    limits.finished(flight, OK, NOW, 0.5)
    for _ in range(5):
        run(limits, 3, "https://a.example", TIMEOUT)
    [change] = limits.reset(3)
    assert isinstance(change, EndpointChange)
    for _ in range(5):
        run(limits, 3, "https://a.example", TIMEOUT)
    limits.rest()
    limits.rest()
    assert limits.reset(3) == []
    assert isinstance(limits.endpoint(3, "https://a.example", RULES).verdict(NOW), Admit)
    assert limits.age(3, NOW, 0.5) == limits.age(77, NOW, 0.5) == []


def test_a_dry_run_is_counted() -> None:
    """The metric of what it would have done."""
    rules = LimitRules(breaker=BreakerRules(mode=BreakerMode.DRY_RUN))
    limits = Limits(BreakerRules())
    for _ in range(8):
        limits.finished(limits.started(1, "https://a.example", rules, NOW), TIMEOUT, NOW, 0.5)
    statistics = limits.statistics()
    assert (statistics.would_open, statistics.would_refuse, statistics.opened[TripCause.TIMEOUTS]) == (1, 3, 0)
