"""What happens next: one attempt and the delivery it belongs to in, one decision out, by a table.

`decide` is pure: `now` and the die are arguments. It performs nothing: `dispatch.attempt` calls it after every attempt and
carries the decision to the settle buffer; disabling an endpoint and telling its owner are fields of the decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, assert_never

from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.delivery.records import Endpoint
from gatepost.delivery.retry import FAST_RETRY_MAX, Backoff, backoff_of, jittered, parse_retry_after
from gatepost.errors import ConfigurationError
from gatepost.wire.phases import SETUP_PHASES
from gatepost.wire.reasons import PERMANENT_TLS_REASONS, Reason


class Why(StrEnum):
    """Why a decision was taken; stored with retries and dead letters, and shown to people. May grow in minor versions."""

    # complete
    DELIVERED = "delivered"
    STATUS_RULE = "status_rule"
    # retry
    SCHEDULED = "scheduled"
    RETRY_AFTER = "retry_after"
    SETUP_FAILED = "setup_failed"
    OWNER_MUST_ACT = "owner_must_act"
    OUR_FAULT = "our_fault"
    # defer
    NOT_ADMITTED = "not_admitted"
    CANCELLED = "cancelled"
    # dead letter
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    WINDOW_OVER = "window_over"
    GONE = "gone"
    REFUSED = "refused"
    URL_DENIED = "url_denied"
    EVENT_MISSING = "event_missing"


class StatusAction(StrEnum):
    """What a response status means for the delivery."""

    DELIVERED = "delivered"
    FINAL = "final"
    """This event will never be taken: dead letter."""
    DISABLE = "disable"
    """Nothing will ever be taken: dead letter, and the endpoint is disabled."""
    RETRY = "retry"
    SLOW = "slow"
    """The owner must change something first: few, long-spaced attempts and a notice."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Delivered; the row goes."""

    why: Why


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Try again at `due` (UTC microseconds)."""

    due: int
    counts: bool
    """The attempt is used up."""
    why: Why
    notice: str | None = None
    """Code of what the owner should hear, or None."""


@dataclass(frozen=True, slots=True)
class Defer:
    """Nothing was tried that counts and nothing is written: the row stays as it is, not to be started before `until`."""

    until: int
    """UTC microseconds."""
    why: Why


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Give up on this delivery."""

    why: Why
    counts: bool = True
    """The attempt is used up (it is shown in the dead letter)."""
    disable: str | None = None
    """Reason for which the whole endpoint is disabled, or None."""
    notice: str | None = None


Decision = Complete | RetryAt | Defer | DeadLetter

DEFER_DELAY: Final = 1.0
"""Seconds before a row that found no connection lease is offered again: one typical `admission_timeout`."""
OUR_FAULT_DELAY: Final = 30.0
"""Seconds after a fault of ours (no descriptors left, our proxy down): long enough to end, and the endpoint is not charged."""

BUILT_IN_STATUS: Final[Mapping[int, StatusAction]] = MappingProxyType(
    {
        408: StatusAction.RETRY,
        410: StatusAction.DISABLE,
        413: StatusAction.FINAL,
        425: StatusAction.RETRY,
        429: StatusAction.RETRY,
    }
)
"""Exact statuses; the classes below hold for the rest."""
BUILT_IN_CLASS: Final[Mapping[int, StatusAction]] = MappingProxyType(
    {2: StatusAction.DELIVERED, 3: StatusAction.SLOW, 4: StatusAction.SLOW, 5: StatusAction.RETRY}
)
"""By first digit. A status outside them is unknown, and what is unknown is retried."""

URL_RULE_REASONS: Final = frozenset(
    {
        Reason.URL_CONTROL_CHAR,
        Reason.URL_WHITESPACE,
        Reason.URL_BACKSLASH,
        Reason.URL_MALFORMED,
        Reason.URL_NON_ASCII,
        Reason.URL_TOO_LONG,
        Reason.FRAGMENT_PRESENT,
        Reason.SCHEME_NOT_ALLOWED,
        Reason.USERINFO_PRESENT,
        Reason.HOST_EMPTY,
        Reason.HOST_INVALID,
        Reason.HOST_BRACKET_INVALID,
        Reason.HOST_PERCENT_ENCODED,
        Reason.HOST_METADATA,
        Reason.HOST_SINGLE_LABEL,
        Reason.HOST_SPECIAL_USE,
        Reason.IPV4_NONCANONICAL,
        Reason.IPV6_ZONE_ID,
        Reason.IDN_INVALID,
        Reason.IDN_MAPS_TO_ASCII,
        Reason.IP_LITERAL_FORBIDDEN,
        Reason.PORT_INVALID,
        Reason.PORT_NOT_ALLOWED,
    }
)
"""Denials that lie in the registered URL itself: no later attempt can end otherwise. Denied addresses may change with DNS."""


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """What one endpoint wants, resolved once per generation by `rules_of`."""

    backoff: Backoff = field(default_factory=Backoff)
    exact: Mapping[int, StatusAction] = field(default_factory=dict)
    """Status to action; beats everything."""
    classes: Mapping[int, StatusAction] = field(default_factory=dict)
    """First digit to action; beats the built-in table."""

    def action(self, status: int) -> StatusAction:
        """The endpoint's exact rule, its class rule, the built-in status, the built-in class, else retry."""
        found = self.exact.get(status) or self.classes.get(status // 100)
        return found or BUILT_IN_STATUS.get(status) or BUILT_IN_CLASS.get(status // 100) or StatusAction.RETRY


def rules_of(endpoint: Endpoint) -> DeliveryRules:
    """Compile an endpoint's settings. Raises `ConfigurationError` for a status rule it cannot read."""
    exact, classes = parse_status_rules(endpoint.status_rules)
    return DeliveryRules(backoff_of(endpoint), exact, classes)


def parse_status_rules(
    rules: Mapping[str, str],
) -> tuple[Mapping[int, StatusAction], Mapping[int, StatusAction]]:
    """`{"404": "final", "5xx": "slow"}` as exact rules and class rules.

    Raises `ConfigurationError` naming the rule and what may be written.
    """
    exact: dict[int, StatusAction] = {}
    classes: dict[int, StatusAction] = {}
    for status, word in rules.items():
        try:
            action = StatusAction(word)
        except ValueError:
            raise ConfigurationError(
                f"status_rules[{status!r}]={word!r}: write one of {', '.join(StatusAction)}"
            ) from None
        if len(status) == 3 and status[0] in "2345" and status[1:] == "xx":
            classes[int(status[0])] = action
        elif len(status) == 3 and status.isascii() and status.isdigit() and "2" <= status[0] <= "5":
            exact[int(status)] = action
        else:
            raise ConfigurationError(
                f"status_rules has the key {status!r}: write a status from 200 to 599, or a class such as '4xx'"
            )
    return exact, classes


def decide(
    attempt: Attempt, rules: DeliveryRules, *, used: int, born_at: int, now: int, u: float, breaker_closed: bool = True
) -> Decision:
    """What becomes of a delivery after `attempt` (design sections 4 and 6).

    `used` is the attempts used up before this one; `born_at` and `now` are UTC microseconds, `now` the end of the attempt;
    `u` is the die, `0 <= u < 1`; `breaker_closed` False withholds the quick second try after a set-up failure.
    """
    if attempt.delivered and not rules.exact and not rules.classes:
        return _DELIVERED  # nearly every delivery: nothing else to weigh
    case = _Case(attempt, rules, used, born_at, now, u, breaker_closed)
    match attempt.outcome:
        case Outcome.RESPONSE:
            return _decide_response(case)
        case Outcome.SHED | Outcome.CIRCUIT_OPEN | Outcome.POOL_TIMEOUT:
            return Defer(now + _us(jittered(DEFER_DELAY, rules.backoff.jitter, u)), Why.NOT_ADMITTED)
        case Outcome.CANCELLED:
            return Defer(now, Why.CANCELLED)
        case Outcome.EGRESS_DENIED:
            # A redirect's target may break a URL rule too; then the registered URL is not to blame.
            if attempt.reason in URL_RULE_REASONS and attempt.status is None:
                return DeadLetter(Why.URL_DENIED, disable=attempt.reason, notice=attempt.reason)
            return _slow(case)
        case Outcome.TRANSPORT_ERROR:
            if attempt.blame is Blame.US:
                return _our_fault(case)
            if attempt.reason in PERMANENT_TLS_REASONS:
                return _slow(case)
            return _normal(case)
        case Outcome.CONNECT_TIMEOUT | Outcome.WRITE_TIMEOUT | Outcome.READ_TIMEOUT | Outcome.DEADLINE_EXCEEDED:
            return _normal(case)
        case never:
            assert_never(never)


def uses_attempt(attempt: Attempt) -> bool:
    """Whether an attempt that ended so is counted against the schedule (design section 4, last column)."""
    match attempt.outcome:
        case Outcome.SHED | Outcome.CIRCUIT_OPEN | Outcome.POOL_TIMEOUT | Outcome.CANCELLED:
            return False
        case Outcome.TRANSPORT_ERROR:
            return attempt.blame is not Blame.US
        case (
            Outcome.RESPONSE
            | Outcome.CONNECT_TIMEOUT
            | Outcome.WRITE_TIMEOUT
            | Outcome.READ_TIMEOUT
            | Outcome.DEADLINE_EXCEEDED
            | Outcome.EGRESS_DENIED
        ):
            return True
        case never:
            assert_never(never)


@dataclass(frozen=True, slots=True)
class _Case:
    """The arguments of `decide`, to hand down."""

    attempt: Attempt
    rules: DeliveryRules
    used: int
    born_at: int
    now: int
    u: float
    breaker_closed: bool


def _decide_response(case: _Case) -> Decision:
    attempt = case.attempt
    assert attempt.status is not None, "a response has a status"
    action = case.rules.action(attempt.status)
    match action:
        case StatusAction.DELIVERED:
            return _DELIVERED if attempt.delivered else _DELIVERED_BY_RULE
        case StatusAction.FINAL:
            return DeadLetter(Why.REFUSED)
        case StatusAction.DISABLE:
            code = f"status_{attempt.status}"
            return DeadLetter(Why.GONE, disable=code, notice=code)
        case StatusAction.SLOW:
            return _slow(case)
        case StatusAction.RETRY:
            return _normal(case)
        case never:
            assert_never(never)


def _normal(case: _Case) -> Decision:
    used = case.used + 1
    backoff = case.rules.backoff
    delay = backoff.normal_delay(used, case.u)
    if delay is None:
        return DeadLetter(Why.ATTEMPTS_EXHAUSTED)
    why = Why.SCHEDULED
    if used == 1 and case.breaker_closed and _failed_safely_in_setup(case.attempt):
        delay = min(delay, FAST_RETRY_MAX * case.u)
        why = Why.SETUP_FAILED
    due = case.now + _us(delay)
    end = backoff.window_end(case.born_at)
    if due > end:
        return DeadLetter(Why.WINDOW_OVER)
    asked = parse_retry_after(case.attempt.header("retry-after"), case.now, case.attempt.header("date"))
    if asked is not None and case.now + _us(asked) > due:
        return RetryAt(min(case.now + _us(asked), end), True, Why.RETRY_AFTER)
    return RetryAt(due, True, why)


def _slow(case: _Case) -> Decision:
    code = case.attempt.reason if case.attempt.status is None else f"status_{case.attempt.status}"
    delay = case.rules.backoff.slow_delay(case.used + 1, case.u)
    if delay is None:
        return DeadLetter(Why.ATTEMPTS_EXHAUSTED, notice=code)
    due = case.now + _us(delay)
    if due > case.rules.backoff.window_end(case.born_at):
        return DeadLetter(Why.WINDOW_OVER, notice=code)
    return RetryAt(due, True, Why.OWNER_MUST_ACT, notice=code)


def _our_fault(case: _Case) -> Decision:
    due = case.now + _us(jittered(OUR_FAULT_DELAY, case.rules.backoff.jitter, case.u))
    if due > case.rules.backoff.window_end(case.born_at):
        return DeadLetter(Why.WINDOW_OVER, counts=False)
    return RetryAt(due, False, Why.OUR_FAULT)


def _failed_safely_in_setup(attempt: Attempt) -> bool:
    return attempt.phase in SETUP_PHASES and attempt.retry_safety is RetrySafety.SAFE


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)


_DELIVERED: Final = Complete(Why.DELIVERED)
_DELIVERED_BY_RULE: Final = Complete(Why.STATUS_RULE)
