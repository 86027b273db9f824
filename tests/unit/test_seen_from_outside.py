"""What metrics ask of scheduler and limits: which breakers are not closed, and what waits for nobody but us."""

from __future__ import annotations

from gatepost.admission.breaker import BreakerMode, BreakerRules, BreakerState
from gatepost.admission.endpoint_limits import LimitRules
from gatepost.admission.evidence import Facts, Sign
from gatepost.admission.limits import Limits
from gatepost.store.rows import SUB_FIFO_FIRST
from tests.unit.test_limits import NOW, SECOND
from tests.unit.test_scheduler import Bench

RULES = LimitRules()
OK = Facts(Sign.OK, 0.2, True, False)
TIMEOUT = Facts(Sign.TIMEOUT, 3.0, False, True)


def end(
    limits: Limits, number: int, facts: Facts, now: int = NOW, rules: LimitRules = RULES, *, times: int = 1
) -> None:
    """So many attempts of an endpoint, one after the other; each endpoint has a host of its own."""
    for _ in range(times):
        limits.finished(limits.started(number, f"https://h{number}", rules, now), facts, now, 0.5)


def test_endpoints_in_trouble_are_known_until_they_are_well_or_gone() -> None:
    """The list is read at every scrape, so nobody may have to search for them, and none may be left in it."""
    limits = Limits(BreakerRules())
    end(limits, 1, OK)
    assert limits.troubled() == {}
    for number in (3, 2):
        end(limits, number, TIMEOUT, times=5)
    assert list(limits.troubled().items()) == [(3, BreakerState.OPEN), (2, BreakerState.OPEN)], "the longest first"

    later = NOW + 40 * SECOND
    probing = limits.started(3, "https://h3", RULES, later)
    assert limits.troubled()[3] is BreakerState.PROBING
    limits.finished(probing, TIMEOUT, later, 0.5)
    assert limits.troubled()[3] is BreakerState.OPEN

    states = {number: limits.state_of(number) for number in (2, 3)}
    later += 100 * SECOND
    end(limits, 2, OK, later, times=3)
    assert limits.troubled()[2] is BreakerState.RAMPING
    end(limits, 2, OK, later, times=40)
    assert 2 not in limits.troubled()
    limits.forget([3])
    assert limits.troubled() == {}

    restarted = Limits(BreakerRules())
    restarted.load({number: state for number, state in states.items() if state is not None})
    restarted.endpoint(3, "https://h3", RULES)
    assert restarted.troubled() == {3: BreakerState.OPEN}, "a restart forgets nobody"
    restarted.reset(3)
    assert restarted.troubled() == {}


def test_a_dry_run_holds_nobody_and_shows_nobody_held() -> None:
    """An alert on an endpoint that gets all of its deliveries would be wrong."""
    rules = LimitRules(breaker=BreakerRules(mode=BreakerMode.DRY_RUN))
    limits = Limits(rules.breaker)
    end(limits, 1, TIMEOUT, rules=rules, times=5)
    assert limits.statistics().would_open == 1
    assert limits.troubled() == {}


def test_what_something_else_holds_does_not_wait_for_us() -> None:
    """An alert on the queue's age means too little of ours; a dead receiver's backlog must not set it off."""
    bench = Bench(slots=2)
    waits = bench.scheduler.oldest_startable
    assert waits(NOW) is None
    bench.endpoint(1, cap=1)
    bench.scheduler.hand_over(bench.rows(1, due=NOW - 90 * SECOND), NOW)
    bench.settings[1] = bench.settings[1]._replace(hold_until=NOW + SECOND)
    bench.scheduler.endpoint_changed(1, NOW)
    assert bench.scheduler.oldest_due() == NOW - 90 * SECOND
    assert waits(NOW) is None, "its breaker is open"
    assert waits(NOW + SECOND) == NOW - 90 * SECOND
    bench.endpoint(2, cap=1)
    bench.scheduler.hand_over(bench.rows(2, due=NOW - 60 * SECOND) + bench.rows(2, due=NOW - 50 * SECOND), NOW)
    assert waits(NOW) == NOW - 60 * SECOND
    [first] = bench.take_all()
    assert waits(NOW) is None, "it is full: its own slowness keeps the second"
    bench.deliver([first])
    assert waits(NOW) == NOW - 50 * SECOND
    bench.endpoint(3, cap=4)
    bench.scheduler.hand_over(bench.rows(3, 2, sub=SUB_FIFO_FIRST, due=NOW - 80 * SECOND), NOW)
    assert waits(NOW) == NOW - 80 * SECOND
    taken = bench.take_all()
    assert len(taken) == 2
    assert waits(NOW) is None, "what is ordered waits for the one before it"
