"""The table of decisions, in full: every outcome, status class, and the edges of schedule and window."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies

from gatepost.delivery.attempt import Attempt
from gatepost.delivery.decide import (
    BUILT_IN_CLASS,
    BUILT_IN_STATUS,
    DEFER_DELAY,
    OUR_FAULT_DELAY,
    URL_RULE_REASONS,
    Complete,
    DeadLetter,
    Defer,
    DeliveryRules,
    RetryAt,
    StatusAction,
    Why,
    decide,
    parse_status_rules,
    rules_of,
    uses_attempt,
)
from gatepost.delivery.outcome import Blame, Outcome, RetrySafety, status_safety
from gatepost.delivery.records import DEFAULT_SCHEDULE, DEFAULT_WINDOW, SLOW_SCHEDULE, Endpoint
from gatepost.delivery.retry import Backoff
from gatepost.errors import ConfigurationError
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import PERMANENT_TLS_REASONS, US_REASONS, Reason

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
MIDDLE = 0.5
"""The die that leaves a delay as written."""
RULES = DeliveryRules()

AddressReasons = [reason for reason in Reason if reason.startswith("addr_")]


def _attempt(outcome: Outcome, **changes: Any) -> Attempt:
    facts: dict[str, Any] = {
        "outcome": outcome,
        "delivered": False,
        "phase": Phase.WAIT,
        "reason": Reason.OK,
        "retry_safety": RetrySafety.AMBIGUOUS,
        "blame": Blame.ENDPOINT,
        "status": None,
        "host": "https://example.com:443",
        "address": None,
        "elapsed": 0.1,
        "phases": {},
        "reused": False,
        "stale_retry": False,
        "bytes_sent": 0,
        "response_headers": (),
        "body": b"",
        "body_fault": None,
        "started_at": 0.0,
    }
    return Attempt(**{**facts, **changes})


def _response(status: int, retry_after: str | None = None) -> Attempt:
    headers = () if retry_after is None else (("retry-after", retry_after),)
    return _attempt(
        Outcome.RESPONSE,
        status=status,
        delivered=200 <= status < 300,
        retry_safety=status_safety(status),
        response_headers=headers,
        phase=Phase.READ,
    )


def _decide(attempt: Attempt, used: int = 0, rules: DeliveryRules = RULES, **changes: Any) -> Any:
    arguments: dict[str, Any] = {"used": used, "born_at": NOW, "now": NOW, "u": MIDDLE}
    return decide(attempt, rules, **{**arguments, **changes})


# ------------------------------------------------------------------------------------------------ statuses


@pytest.mark.parametrize("status", range(100, 1_000))
def test_every_status_has_the_action_of_the_table(status: int) -> None:
    """The whole status line, so that no number falls between two rules."""
    decision = _decide(_response(status))
    if 200 <= status < 300:
        assert decision == Complete(Why.DELIVERED)
    elif status == 410:
        assert decision == DeadLetter(Why.GONE, disable="status_410", notice="status_410")
    elif status == 413:
        assert decision == DeadLetter(Why.REFUSED)
    elif status in (408, 425, 429) or not 300 <= status < 500:
        assert decision == RetryAt(NOW + 5 * SECOND, True, Why.SCHEDULED)
    else:
        assert decision == RetryAt(NOW + 60 * SECOND, True, Why.OWNER_MUST_ACT, notice=f"status_{status}")


def test_the_endpoints_rules_beat_the_built_in_table_and_exact_beats_class() -> None:
    """An owner who knows better may say so, status by status."""
    exact, classes = parse_status_rules(
        {
            "404": "final",
            "4xx": "retry",
            "409": "delivered",
            "5xx": "slow",
            "503": "retry",
            "202": "retry",
            "410": "slow",
        }
    )
    rules = DeliveryRules(exact=exact, classes=classes)
    assert _decide(_response(404), rules=rules) == DeadLetter(Why.REFUSED)
    assert _decide(_response(400), rules=rules) == RetryAt(NOW + 5 * SECOND, True, Why.SCHEDULED)
    assert _decide(_response(413), rules=rules) == RetryAt(NOW + 5 * SECOND, True, Why.SCHEDULED)
    assert _decide(_response(409), rules=rules) == Complete(Why.STATUS_RULE)
    assert _decide(_response(500), rules=rules).why is Why.OWNER_MUST_ACT
    assert _decide(_response(503), rules=rules).why is Why.SCHEDULED
    assert _decide(_response(202), rules=rules).why is Why.SCHEDULED
    assert _decide(_response(410), rules=rules).why is Why.OWNER_MUST_ACT
    assert _decide(_response(200), rules=rules) == Complete(Why.DELIVERED)


def test_a_rule_may_disable_the_endpoint() -> None:
    """What 410 does, for receivers that say it with another number."""
    rules = DeliveryRules(exact={404: StatusAction.DISABLE})
    assert _decide(_response(404), rules=rules) == DeadLetter(Why.GONE, disable="status_404", notice="status_404")


@pytest.mark.parametrize("word", StatusAction)
@pytest.mark.parametrize("status", ["200", "404", "599", "2xx", "3xx", "4xx", "5xx"])
def test_rules_take_every_action_for_statuses_and_classes(status: str, word: StatusAction) -> None:
    """The words users write are the enum's."""
    exact, classes = parse_status_rules({status: word.value})
    assert [*exact.values(), *classes.values()] == [word]


@pytest.mark.parametrize("status", ["199", "600", "4x", "4XX", "1xx", "6xx", "abc", "", "40", "4040", "٤٠٤"])
def test_a_rule_for_no_status_is_refused(status: str) -> None:
    """A rule that never fires is worse than an error."""
    with pytest.raises(ConfigurationError, match="status from 200 to 599"):
        parse_status_rules({status: "final"})


def test_a_rule_with_an_unknown_action_names_the_known_ones() -> None:
    """The message is what the owner reads in the API's answer."""
    with pytest.raises(ConfigurationError, match="delivered, final, disable, retry, slow"):
        parse_status_rules({"404": "ignore"})


def test_an_endpoints_settings_compile_to_rules() -> None:
    """One place resolves them, once per generation."""
    endpoint = Endpoint(
        id="ep_0000000000001", tenant="t", url="https://e.com/", schedule=(0.0, 9.0), status_rules={"4xx": "final"}
    )
    rules = rules_of(endpoint)
    assert DeliveryRules(Backoff(schedule=(0.0, 9.0)), {}, {4: StatusAction.FINAL}) == rules


def test_the_built_in_tables_cannot_be_changed_by_accident() -> None:
    """They are shared by every endpoint of the process."""
    with pytest.raises(TypeError):
        BUILT_IN_STATUS[404] = StatusAction.FINAL  # type: ignore[index]
    with pytest.raises(TypeError):
        BUILT_IN_CLASS[4] = StatusAction.FINAL  # type: ignore[index]


# ------------------------------------------------------------------------------------------------ outcomes


@pytest.mark.parametrize("outcome", [Outcome.SHED, Outcome.CIRCUIT_OPEN, Outcome.POOL_TIMEOUT])
def test_what_was_not_admitted_is_deferred_and_costs_no_attempt(outcome: Outcome) -> None:
    """Our congestion must never use up somebody's retries."""
    attempt = _attempt(outcome, blame=Blame.US)
    assert _decide(attempt, used=11) == Defer(NOW + round(DEFER_DELAY * SECOND), Why.NOT_ADMITTED)
    assert not uses_attempt(attempt)


def test_a_cancelled_attempt_leaves_the_row_as_it_was() -> None:
    """A drain gives rows back untouched."""
    attempt = _attempt(Outcome.CANCELLED, blame=Blame.US)
    assert _decide(attempt) == Defer(NOW, Why.CANCELLED)
    assert not uses_attempt(attempt)


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome.CONNECT_TIMEOUT,
        Outcome.WRITE_TIMEOUT,
        Outcome.READ_TIMEOUT,
        Outcome.TRANSPORT_ERROR,
        Outcome.DEADLINE_EXCEEDED,
    ],
)
@pytest.mark.parametrize("used", range(12))
def test_failures_follow_the_normal_schedule_to_the_dead_letter(outcome: Outcome, used: int) -> None:
    """Attempt by attempt, for each outcome that uses one up."""
    attempt = _attempt(outcome)
    decision = _decide(attempt, used=used)
    assert uses_attempt(attempt)
    if used == 11:
        assert decision == DeadLetter(Why.ATTEMPTS_EXHAUSTED)
    else:
        assert decision == RetryAt(NOW + round(DEFAULT_SCHEDULE[used + 1] * SECOND), True, Why.SCHEDULED)


@pytest.mark.parametrize("reason", sorted(US_REASONS))
def test_a_fault_of_ours_is_tried_again_without_using_an_attempt(reason: Reason) -> None:
    """No descriptors left, or our proxy down: the endpoint is not charged, however often."""
    attempt = _attempt(Outcome.TRANSPORT_ERROR, reason=reason, blame=Blame.US)
    assert _decide(attempt, used=11) == RetryAt(NOW + round(OUR_FAULT_DELAY * SECOND), False, Why.OUR_FAULT)
    assert not uses_attempt(attempt)
    late = _decide(attempt, born_at=NOW - round(DEFAULT_WINDOW * SECOND))
    assert late == DeadLetter(Why.WINDOW_OVER, counts=False)


@pytest.mark.parametrize("reason", sorted(PERMANENT_TLS_REASONS))
@pytest.mark.parametrize("used", range(7))
def test_a_permanent_tls_fault_goes_slow_and_tells_the_owner(reason: Reason, used: int) -> None:
    """An expired certificate does not mend itself in five seconds."""
    attempt = _attempt(
        Outcome.TRANSPORT_ERROR, reason=reason, phase=Phase.TLS, retry_safety=RetrySafety.SAFE, blame=Blame.PATH
    )
    decision = _decide(attempt, used=used)
    if used == 6:
        assert decision == DeadLetter(Why.ATTEMPTS_EXHAUSTED, notice=reason)
    else:
        assert decision == RetryAt(NOW + round(SLOW_SCHEDULE[used] * SECOND), True, Why.OWNER_MUST_ACT, notice=reason)


@pytest.mark.parametrize("reason", sorted(URL_RULE_REASONS))
def test_a_url_that_breaks_a_rule_is_dead_and_disables_its_endpoint(reason: Reason) -> None:
    """No later attempt can end otherwise; the rules were tightened after registration."""
    attempt = _attempt(Outcome.EGRESS_DENIED, reason=reason, retry_safety=RetrySafety.POINTLESS)
    assert _decide(attempt) == DeadLetter(Why.URL_DENIED, disable=reason, notice=reason)
    assert uses_attempt(attempt)


@pytest.mark.parametrize("reason", [*AddressReasons, Reason.DNS_MIXED_ANSWERS, Reason.DNS_TOO_MANY_ANSWERS])
def test_a_denied_address_goes_slow(reason: Reason) -> None:
    """DNS may point elsewhere tomorrow."""
    attempt = _attempt(Outcome.EGRESS_DENIED, reason=reason, retry_safety=RetrySafety.POINTLESS)
    assert _decide(attempt) == RetryAt(NOW + 60 * SECOND, True, Why.OWNER_MUST_ACT, notice=reason)


def test_a_denied_redirect_target_does_not_disable_the_endpoint() -> None:
    """The registered URL broke no rule: its owner sent us somewhere we may not go."""
    attempt = _attempt(Outcome.EGRESS_DENIED, reason=Reason.HOST_METADATA, status=302)
    assert _decide(attempt) == RetryAt(NOW + 60 * SECOND, True, Why.OWNER_MUST_ACT, notice="status_302")


def test_url_and_address_reasons_do_not_overlap() -> None:
    """One disables an endpoint, the other does not."""
    assert not URL_RULE_REASONS & set(AddressReasons)
    assert {reason for reason in Reason if reason.startswith(("url_", "host_", "idn_", "port_"))} <= (
        URL_RULE_REASONS | {Reason.HOST_UNREACHABLE}
    )


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_a_decision(outcome: Outcome) -> None:
    """The enum may grow; the match then fails type checking, and this test."""
    status = 200 if outcome is Outcome.RESPONSE else None
    assert _decide(_attempt(outcome, status=status)) is not None
    assert uses_attempt(_attempt(outcome)) in (True, False)


# -------------------------------------------------------------------------------------- the quick second try


@pytest.mark.parametrize("phase", [Phase.DNS, Phase.CONNECT, Phase.TLS])
@pytest.mark.parametrize("outcome", [Outcome.CONNECT_TIMEOUT, Outcome.TRANSPORT_ERROR, Outcome.DEADLINE_EXCEEDED])
@pytest.mark.parametrize("u", [0.0, 0.3, 0.999])
def test_a_safe_setup_failure_of_the_first_attempt_is_tried_again_within_a_second(
    phase: Phase, outcome: Outcome, u: float
) -> None:
    """The seed: a connect timeout is clean, retry it at once; and it uses an attempt."""
    attempt = _attempt(outcome, phase=phase, retry_safety=RetrySafety.SAFE, blame=Blame.PATH)
    assert _decide(attempt, u=u) == RetryAt(NOW + round(u * SECOND), True, Why.SETUP_FAILED)
    second = _decide(attempt, used=1)
    assert second == RetryAt(NOW + 30 * SECOND, True, Why.SCHEDULED)


@pytest.mark.parametrize(
    "attempt",
    [
        _attempt(Outcome.READ_TIMEOUT, phase=Phase.WAIT, retry_safety=RetrySafety.AMBIGUOUS),
        _attempt(Outcome.TRANSPORT_ERROR, phase=Phase.WRITE, retry_safety=RetrySafety.SAFE),
        _attempt(Outcome.TRANSPORT_ERROR, phase=Phase.TLS, retry_safety=RetrySafety.AMBIGUOUS),
        _response(503),
    ],
)
def test_what_may_have_been_acted_on_waits_its_turn(attempt: Attempt) -> None:
    """Only a failure before any request byte is free of side effects."""
    assert _decide(attempt) == RetryAt(NOW + 5 * SECOND, True, Why.SCHEDULED)


def test_an_open_breaker_withholds_the_quick_try() -> None:
    """A host known to be down gains nothing from a second knock."""
    attempt = _attempt(Outcome.CONNECT_TIMEOUT, phase=Phase.CONNECT, retry_safety=RetrySafety.SAFE)
    assert _decide(attempt, breaker_closed=False) == RetryAt(NOW + 5 * SECOND, True, Why.SCHEDULED)


def test_the_quick_try_never_waits_longer_than_the_schedule_says() -> None:
    """An endpoint whose own schedule retries at once keeps that."""
    attempt = _attempt(Outcome.CONNECT_TIMEOUT, phase=Phase.CONNECT, retry_safety=RetrySafety.SAFE)
    rules = DeliveryRules(Backoff(schedule=(0.0, 0.1)))
    assert _decide(attempt, rules=rules, u=0.9).due <= NOW + round(0.12 * SECOND)
    assert _decide(attempt, rules=DeliveryRules(Backoff(schedule=(0.0,)))) == DeadLetter(Why.ATTEMPTS_EXHAUSTED)


# --------------------------------------------------------------------------------- Retry-After and the window


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503, 599])
def test_retry_after_raises_the_next_due_time(status: int) -> None:
    """Seconds or a date, whichever status carried it."""
    assert _decide(_response(status, "3600")) == RetryAt(NOW + 3_600 * SECOND, True, Why.RETRY_AFTER)


@pytest.mark.parametrize("value", ["0", "4", "nonsense", "-1"])
def test_retry_after_never_lowers_it(value: str) -> None:
    """A receiver cannot talk us into hammering it, or others."""
    assert _decide(_response(503, value)) == RetryAt(NOW + 5 * SECOND, True, Why.SCHEDULED)


def test_retry_after_is_capped_by_the_window() -> None:
    """Asked to come back next year, we come once more at the end of the window."""
    end = NOW + round(DEFAULT_WINDOW * SECOND)
    assert _decide(_response(503, "99999999")) == RetryAt(end, True, Why.RETRY_AFTER)


def test_retry_after_means_nothing_where_the_owner_must_act() -> None:
    """A 404 with a Retry-After is a proxy's habit, not a promise."""
    assert _decide(_response(404, "3600")).why is Why.OWNER_MUST_ACT


@pytest.mark.parametrize(("late", "alive"), [(0, True), (1, False)])
def test_nothing_is_due_after_the_window(late: int, alive: bool) -> None:
    """The last instant of the window still counts, the next microsecond does not."""
    born_at = NOW + 5 * SECOND - round(DEFAULT_WINDOW * SECOND) - late
    decision = _decide(_response(500), born_at=born_at)
    expected = RetryAt(NOW + 5 * SECOND, True, Why.SCHEDULED) if alive else DeadLetter(Why.WINDOW_OVER)
    assert expected == decision


def test_the_slow_schedule_ends_with_the_window_too() -> None:
    """And its owner still hears why."""
    decision = _decide(_response(404), born_at=NOW - round(DEFAULT_WINDOW * SECOND))
    assert decision == DeadLetter(Why.WINDOW_OVER, notice="status_404")


@given(
    used=strategies.integers(0, 20),
    u=strategies.floats(0, 1, exclude_max=True),
    age=strategies.floats(0, DEFAULT_WINDOW * 1.5),
    outcome=strategies.sampled_from([o for o in Outcome if o is not Outcome.RESPONSE]),
    reason=strategies.sampled_from(Reason),
    phase=strategies.sampled_from(Phase),
    blame=strategies.sampled_from(Blame),
    safety=strategies.sampled_from(RetrySafety),
)
def test_no_decision_is_in_the_past_or_beyond_the_window(
    used: int, u: float, age: float, outcome: Outcome, reason: Reason, phase: Phase, blame: Blame, safety: RetrySafety
) -> None:
    """Whatever the engine reports, the next try lies ahead and inside the promise, and attempts only count when they were made."""
    attempt = _attempt(outcome, reason=reason, phase=phase, blame=blame, retry_safety=safety)
    born_at = NOW - round(age * SECOND)
    decision = _decide(attempt, used=used, u=u, born_at=born_at)
    if isinstance(decision, RetryAt):
        assert NOW <= decision.due <= born_at + round(DEFAULT_WINDOW * SECOND)
        assert uses_attempt(attempt) == decision.counts
    elif isinstance(decision, Defer):
        assert decision.until >= NOW
        assert not uses_attempt(attempt)
    else:
        assert uses_attempt(attempt) == decision.counts
