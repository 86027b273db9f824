"""Layers of limits, what they come to, what a change is checked for, and what attempts say of limits that are only tried."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import replace

import pytest

from gatepost.admission.attempt_counts import (
    EVERY_ONE,
    ONE_IN,
    TOTAL_MAX,
    checked,
    count,
    hours_of,
    new_counts,
    times_of,
)
from gatepost.admission.breaker import BreakerRules
from gatepost.admission.outcome_hours import Ended, ended_as
from gatepost.admission.phase_times import BOUNDS, SAMPLES_MIN, Budgeted, PhaseTimes
from gatepost.admission.policy_book import DOCUMENT_MAX, PolicyBook
from gatepost.admission.review import Fit, review
from gatepost.admission.shadow import ShadowBreaker, would_end
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.budget import longest_attempt, strict_fault, window_fault
from gatepost.delivery.ids import ENDPOINT, encode_id
from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.policy_layers import (
    TIER_NAMES,
    TIERS,
    EffectivePolicy,
    LayerName,
    LayerValue,
    LearnedLimit,
    PolicyLayer,
    check_change,
    compose,
    for_endpoint,
)
from gatepost.delivery.records import Endpoint
from gatepost.errors import ConfigurationError
from gatepost.testing.virtual import SeededEntropy
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import BodyFault, Reason

BASE = ClientPolicy()
HOUR_US = 3_600_000_000
WHY = "w"


def layer(name: LayerName, detail: str = "", **values: LayerValue) -> PolicyLayer:
    """One layer."""
    return PolicyLayer(name, values, detail)


def said(value: float | bool | None = None, floor: float | None = None, ceiling: float | None = None) -> LayerValue:
    """What it says."""
    return LayerValue(value, floor, ceiling, by="alice", at=7, why=WHY)


FLEET = layer(LayerName.FLEET, read_timeout=said(8.0), write_timeout=said(4.0))
COHORT = layer(LayerName.COHORT, "5%", read_timeout=said(6.0))
CANARY = layer(LayerName.CANARY, "a", read_timeout=said(5.0))


def test_layers_beat_each_other_in_one_order_and_say_so() -> None:
    """Built-in < process < tier < fleet < cohort < canary < learned < endpoint."""
    tier = PolicyLayer(LayerName.TIER, TIERS["third_party"], "third_party")
    effective = compose(BASE.evolve(read_timeout=12.0), [tier, FLEET, COHORT, CANARY])
    row = effective.of("read_timeout")
    assert (row.value, row.layer, row.by, row.at, row.why) == (5.0, "canary a", "alice", 7, WHY)
    beaten = [(one.layer, one.value) for one in row.beat]
    assert beaten == [
        ("cohort 5%", 6.0),
        ("fleet", 8.0),
        ("tier third_party", 10.0),
        ("process", 12.0),
        ("built_in", 10.0),
    ]
    learned = for_endpoint(effective, {}, LearnedLimit(4.5, 9, "p99"))
    assert (learned.policy.read_timeout, learned.of("read_timeout").layer) == (4.5, "learned")
    own = for_endpoint(effective, {"read_timeout": 20.0}, LearnedLimit(4.5, 9, "p99"), at=11)
    row = own.of("read_timeout")
    assert (own.policy.read_timeout, row.layer, row.at) == (20.0, "endpoint", 11)
    assert [one.layer for one in row.beat[:2]] == ["learned", "canary a"]
    assert for_endpoint(effective, {}, LearnedLimit(None, None, "cold")).of("read_timeout").layer == "canary a"
    with pytest.raises(KeyError):
        effective.of("nothing")


@pytest.mark.parametrize(
    ("layers", "bounds"),
    [
        ([], (3.0, 15.0)),
        ([FLEET], (3.0, 8.0)),  # a value is a ceiling too
        ([layer(LayerName.FLEET, read_timeout=said(8.0, ceiling=12.0))], (3.0, 12.0)),
        ([layer(LayerName.FLEET, read_timeout=said(20.0))], (3.0, 15.0)),  # nobody loosens what is below
        ([layer(LayerName.FLEET, read_timeout=said(floor=5.0)), COHORT], (5.0, 6.0)),
        ([layer(LayerName.FLEET, read_timeout=said(2.0))], (2.0, 2.0)),  # no longer than means it
        ([PolicyLayer(LayerName.TIER, TIERS["same_dc"], "same_dc")], (0.05, 5.0)),
    ],
)
def test_learning_stays_inside_the_tightest_bounds(layers: list[PolicyLayer], bounds: tuple[float, float]) -> None:
    """A default that is rolled out changes what learning may do; otherwise it would be learned away."""
    assert compose(BASE, layers).learning == bounds


def test_limits_of_set_up_are_cut_to_what_covers_them() -> None:
    """A tighter connect timeout from above does not make a looser name timeout from below impossible."""
    effective = compose(BASE.evolve(dns_timeout=2.0), [layer(LayerName.FLEET, connect_timeout=said(1.0))])
    assert effective.policy.dns_timeout == 1.0
    assert "cut to connect_timeout" in effective.of("dns_timeout").why
    assert effective.of("tls_timeout").why == "derived: connect_timeout"
    assert effective.of("total_timeout").value == 1.0 + 5.0 + 10.0
    cut = compose(BASE, [layer(LayerName.FLEET, tls_timeout=said(9.0))])
    assert cut.of("tls_timeout").why == f"cut to connect_timeout; {WHY}"
    with pytest.raises(ConfigurationError, match="max_per_host=300 is more"):
        compose(BASE, [layer(LayerName.FLEET, max_per_host=said(300))])
    with pytest.raises(AssertionError):
        EffectivePolicy(BASE, tuple(replace(row, floor=None) for row in effective.values)).learning  # noqa: B018


def test_every_tier_is_a_profile_that_can_be_in_force() -> None:
    """And the only ones there are."""
    assert set(TIERS) == set(TIER_NAMES)
    for name, values in TIERS.items():
        effective = compose(BASE, [PolicyLayer(LayerName.TIER, values, name)])
        floor, ceiling = effective.learning
        assert floor <= effective.policy.read_timeout <= ceiling
    with pytest.raises(ConfigurationError, match="tier='moon'"):
        PolicyBook().layers("moon", 0.0, "p")


@pytest.mark.parametrize(
    ("target", "name", "value", "match"),
    [
        (LayerName.PROCESS, "read_timeout", said(1.0), "write tier, fleet, cohort or canary"),
        (LayerName.FLEET, "admission_timeout", said(1.0), "belongs to each process"),
        (LayerName.FLEET, "read_timeout", said(), "write a value, a floor or a ceiling"),
        (LayerName.FLEET, "require_complete_body", said(1.0), "write true or false"),
        (LayerName.FLEET, "read_timeout", said(9.0, ceiling=8.0), "above its own ceiling"),
        (LayerName.FLEET, "read_timeout", said(9.0, floor=float("inf")), "a bound of inf"),
        (LayerName.FLEET, "read_timeout", replace(said(9.0), why="x" * 501), "1 to 500 characters"),
        (LayerName.FLEET, "max_interim_responses", said(-1), "positive whole number"),
    ],
)
def test_what_a_layer_cannot_say_is_refused(target: LayerName, name: str, value: LayerValue, match: str) -> None:
    """Beside what the dispatcher's tests refuse."""
    with pytest.raises(ConfigurationError, match=match):
        check_change(target, name, value)


def test_a_policy_of_endless_reasons_is_refused() -> None:
    """Every process reads it whole."""
    many = {f"limit_{number}": LayerValue(1.0, why="x" * 500) for number in range(DOCUMENT_MAX // 500)}
    with pytest.raises(ConfigurationError, match="shorten the reasons"):
        PolicyBook(fleet=many).to_text()


def test_a_composed_policy_is_checked_and_warns_nobody() -> None:
    """Warnings are for people who write a policy, checks for everybody."""
    assert BASE.with_values({"connect_timeout": 9.0}).connect_timeout == 9.0
    with pytest.raises(ConfigurationError, match="is no limit"):
        BASE.with_values({"nothing": 1})
    with pytest.raises(ConfigurationError, match="is longer than connect_timeout"):
        BASE.with_values({"dns_timeout": 9.0})
    assert BASE.with_values({"dns_timeout": 9.0}, alone=True).dns_timeout == 9.0


def test_budgets_are_sums_that_the_message_shows() -> None:
    """Where it does not fit, one sees which number to change."""
    assert longest_attempt(BASE, None) == 18.0
    assert longest_attempt(BASE, 15.0) == 23.0
    assert longest_attempt(BASE.with_values({"total_timeout": 5.0}), 15.0) == 5.0
    assert strict_fault(BASE, 15.0, 28.0, "lease") is None
    fault = strict_fault(BASE, 25.0, 28.0, "lease")
    assert fault is not None
    assert "connect 3 + write 5 + read_timeout at its ceiling 25 = 33 s" in fault
    total = strict_fault(BASE.with_values({"total_timeout": 40.0}), None, 28.0, "lease")
    assert total is not None
    assert "total_timeout = 40 s" in total
    assert window_fault(BASE, 15.0, None) is None
    short = Endpoint(encode_id(ENDPOINT, 1), "t", "https://a/", schedule=(0.0, 10.0), window=50.0)
    assert window_fault(BASE, None, short) is None
    unfit = window_fault(BASE, 15.0, short)
    assert unfit is not None
    assert "does not fit the delivery window of 50 s" in unfit


# ---------------------------------------------------------------------------------------------------- attempts


def attempt(
    status: int | None = 200, ended: Phase = Phase.READ, blame: Blame = Blame.ENDPOINT, **phases: float
) -> Attempt:
    """One that took so long in these phases."""
    return Attempt(
        outcome=Outcome.RESPONSE if status else Outcome.READ_TIMEOUT,
        delivered=status == 200,
        phase=ended,
        reason=Reason.OK if status else Reason.WAIT_TIMEOUT,
        retry_safety=RetrySafety.AMBIGUOUS,
        blame=blame,
        status=status,
        host="https://a:443",
        address=None,
        elapsed=sum(phases.values()),
        phases={Phase(name): seconds for name, seconds in phases.items()},
        reused=False,
        stale_retry=False,
        bytes_sent=1,
        response_headers=(),
        body=b"",
        body_fault=None,
        started_at=0.0,
    )


SLOW = attempt(pool=0.5, dns=0.4, connect=0.5, tls=0.6, write=0.7, wait=3.0, read=1.0)


@pytest.mark.parametrize(
    ("limit", "tight", "loose"),
    [
        ("pool_timeout", 0.4, 0.6),
        ("dns_timeout", 0.3, 0.5),
        ("connect_timeout", 1.4, 1.6),
        ("tls_timeout", 0.5, 0.7),
        ("write_timeout", 0.6, 0.8),
        ("read_timeout", 3.9, 4.1),
        ("total_timeout", 6.1, 6.3),
    ],
)
def test_an_attempt_says_which_tried_limit_it_would_have_met(limit: str, tight: float, loose: float) -> None:
    """From what it took in each phase, and only where the tried limit is tighter than the one in force."""
    assert limit in would_end(SLOW, BASE, BASE.with_values({limit: tight}, alone=True))
    assert limit not in would_end(SLOW, BASE, BASE.with_values({limit: loose}, alone=True))
    assert limit not in would_end(SLOW, BASE.with_values({limit: tight}, alone=True), BASE)


def test_the_breaker_is_tried_too() -> None:
    """Five ends in a row by a tried limit would have opened it, and it is counted each time."""
    breaker, rules = ShadowBreaker(), BreakerRules()
    opened = [breaker.saw(SLOW, True, BASE, now, 6, 1, rules) for now in range(10)]
    assert opened.count(True) == 2
    fine = attempt(wait=0.1, read=0.0)
    assert not any(breaker.saw(fine, False, BASE, now, 6, 1, rules) for now in range(20))
    ours = attempt(None, Phase.POOL, Blame.US, pool=1.0)
    assert not any(breaker.saw(ours, False, BASE, now, 6, 1, rules) for now in range(20))
    refused = attempt(500, wait=0.1, read=0.0)
    assert any(breaker.saw(refused, False, BASE, now, 6, 1, rules) for now in range(100))


def test_a_shadow_sees_a_delivery_whose_body_broke_off() -> None:
    """Counted as delivered today, and a failure where complete bodies are required."""
    strict = BASE.evolve(require_complete_body=True)
    broken = replace(attempt(wait=0.1, read=0.1), delivered=True, body_fault=BodyFault.TIMEOUT)
    assert would_end(broken, BASE, strict) == ("require_complete_body",)
    assert would_end(replace(broken, body_fault=None), BASE, strict) == ()
    assert would_end(replace(broken, delivered=False), BASE, strict) == ()


def test_phase_times_keep_quantiles_within_a_fifth_and_survive_storing() -> None:
    """A hundred bytes or two, in use and at rest; nothing of what was cut off or never reached."""
    record, now = new_counts(), 0

    def add(made: Attempt) -> None:
        nonlocal now
        now += HOUR_US // 20  # not so many in an hour that a sample would do
        count(record, made, now)

    for number in range(100):
        seconds = 0.1 if number < 98 else 2.0
        add(attempt(pool=0.0001, dns=0.01, connect=0.02, tls=0.04, write=0.001, wait=seconds, read=0.001))
    times = times_of(record)
    for kind, median in (
        (Budgeted.POOL, 0.0005),
        (Budgeted.CONNECT, 0.02),
        (Budgeted.SETUP, 0.07),
        (Budgeted.ANSWER, 0.1),
    ):
        assert times.quantile(kind, 0.5) == pytest.approx(median, rel=0.2)
    assert times.quantile(Budgeted.ANSWER, 0.99) == pytest.approx(2.0, rel=0.2)
    assert checked(bytes(record)) == record
    assert len(record) < 100
    before = times.count(Budgeted.WRITE)
    add(attempt(None, Phase.WRITE, connect=0.02, write=5.0))
    add(attempt(None, Phase.CONNECT, connect=3.0))
    add(attempt(None, Phase.POOL, Blame.US, pool=3.0))
    times = times_of(record)
    assert times.count(Budgeted.WRITE) == before
    assert times.count(Budgeted.CONNECT) == 101
    assert times.count(Budgeted.POOL) == 100
    assert PhaseTimes().quantile(Budgeted.ANSWER, 0.5) is None
    for _ in range(TOTAL_MAX):
        add(attempt(wait=100.0, read=0.0))
    assert times_of(record).count(Budgeted.ANSWER) < TOTAL_MAX
    assert times_of(record).quantile(Budgeted.ANSWER, 0.5) == pytest.approx(55.0, rel=0.2)
    record[:] = new_counts()
    for number in range(3 * TOTAL_MAX):
        add(attempt(wait=0.001 * 2 ** (number % 16), read=0.0))
    assert times_of(record).count(Budgeted.ANSWER) <= TOTAL_MAX + 64
    record[:] = new_counts()
    for _ in range(1_000):
        count(record, attempt(wait=0.1, read=0.0), now)
    assert times_of(record).count(Budgeted.ANSWER) == pytest.approx(
        1_000 * (EVERY_ONE + (256 - EVERY_ONE) / ONE_IN) / 256, rel=0.1
    )
    assert hours_of(record).hours(now)[0].counts[Ended.DELIVERED] == 1_000


@pytest.mark.parametrize("seed", range(5))
def test_counts_in_a_packed_record_are_those_of_plain_counters(seed: int) -> None:
    """Bytes that are changed in place, against a dictionary; whatever comes, for days, with clocks that go back."""
    dice = SeededEntropy(seed)
    record, now = new_counts(), 500_000 * HOUR_US
    expected: dict[int, list[int]] = {}
    buckets: Counter[tuple[Budgeted, int]] = Counter()
    hour = 0
    for _ in range(600):
        now += round(dice.uniform() ** 6 * 5 * HOUR_US) - HOUR_US // 100
        made = attempt(200 if dice.uniform() < 0.7 else 500, wait=0.001 * 300 ** dice.uniform(), read=0.0)
        for _ in range(1 + round(300 * dice.uniform() ** 8)):
            count(record, made, now)
            hour = max(hour, now // HOUR_US)
            ends = expected.setdefault(hour, [0] * len(Ended))
            low = ends[ended_as(made)] & 0xFF
            ends[ended_as(made)] += 1
            if low < EVERY_ONE or not low % ONE_IN:
                buckets[Budgeted.ANSWER, bisect_right(BOUNDS, made.phases[Phase.WAIT])] += 1
        stored = checked(bytes(record))
        shown = {one.began_at // HOUR_US: list(one.counts) for one in hours_of(stored).hours(now)}
        assert shown == {when: ends for when, ends in expected.items() if when > max(hour, now // HOUR_US) - 24}
        total = times_of(stored).count(Budgeted.ANSWER)
        assert total <= 1.3 * TOTAL_MAX
        if sum(buckets.values()) < TOTAL_MAX:
            assert total == sum(buckets.values())
    assert len(record) < 400


@pytest.mark.parametrize("damage", [b"x", bytes(32) + b"\xff", bytes(32) + b"\1\xfa\1\0", bytes(33) + b"\1\1\x80"])
def test_counts_that_another_version_stored_are_refused(damage: bytes) -> None:
    """They start anew then, instead of showing nonsense."""
    with pytest.raises(ValueError, match="no stored counts"):
        checked(damage)
    with pytest.raises(ValueError, match="no stored counts"):
        checked(bytes(32) + b"\2" + b"\5\1\0" * 2)
    with pytest.raises(ValueError, match="no stored counts"):
        checked(bytes(33) + b"\1\1\1" * 25)


def test_a_review_tells_tight_from_loose_and_suggests() -> None:
    """Two to three times the p99 is a fit; below it good answers are cut off, far above slots wait for nothing."""
    record = new_counts()
    for _ in range(SAMPLES_MIN):
        count(record, attempt(connect=0.06, write=0.3, wait=6.0, read=0.0), 0)
    times = times_of(record)
    found = review(times, BASE, lambda _name, _fit: None, 5)
    by_name = {phase.limit: phase for phase in found.phases}
    assert found.worth_a_look
    assert found.round_trip == pytest.approx(0.06, rel=0.2)
    assert (by_name["read_timeout"].fit, by_name["read_timeout"].since) == (Fit.TIGHT, 5)
    assert by_name["read_timeout"].suggested == pytest.approx(18.0, rel=0.2)
    assert by_name["connect_timeout"].fit is Fit.FITS  # 3 s is little enough, however short the way
    assert by_name["write_timeout"].fit is Fit.FITS
    generous = review(times, BASE.with_values({"write_timeout": 30.0}), lambda _name, _fit: 3, 5, p99=4.0)
    by_name = {phase.limit: phase for phase in generous.phases}
    assert (by_name["write_timeout"].fit, by_name["write_timeout"].suggested) == (Fit.LOOSE, 3.0)
    assert (by_name["read_timeout"].fit, by_name["read_timeout"].p99, by_name["read_timeout"].since) == (
        Fit.FITS,
        4.0,
        3,
    )
    assert not review(PhaseTimes(), BASE, lambda _name, _fit: None, 5).worth_a_look
