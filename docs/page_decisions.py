"""The page of decisions: statuses, schedules and their reasons, from the table that decides. Used by `docs.build_reference`."""

from __future__ import annotations

from collections.abc import Iterable

from docs.tables import generated_note, table
from gatepost.delivery.decide import DeliveryRules, StatusAction, Why
from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.records import DEFAULT_JITTER, DEFAULT_SCHEDULE, DEFAULT_WINDOW, SLOW_SCHEDULE
from gatepost.delivery.retry import FAST_RETRY_MAX, check_schedule, describe_seconds

ACTION_HELP = {
    StatusAction.DELIVERED: "Delivered.",
    StatusAction.FINAL: "This event will never be taken: dead letter.",
    StatusAction.DISABLE: "Nothing will be taken any more: dead letter, and the endpoint is disabled.",
    StatusAction.RETRY: "Tried again on the normal schedule.",
    StatusAction.SLOW: "Tried again on the slow schedule, with a notice: the owner must change something first.",
}
WHY_HELP = {
    Why.DELIVERED: "A complete 2xx head arrived.",
    Why.STATUS_RULE: "The endpoint's `status_rules` count this status as delivered.",
    Why.SCHEDULED: "The next place of the normal schedule.",
    Why.RETRY_AFTER: "The receiver asked for a later time.",
    Why.SETUP_FAILED: "The first attempt failed before a request byte was sent: tried again at once.",
    Why.OWNER_MUST_ACT: "The next place of the slow schedule.",
    Why.OUR_FAULT: "The fault was ours; no attempt is used up.",
    Why.NOT_ADMITTED: "No slot or connection was free; no attempt is used up.",
    Why.CANCELLED: "A drain stopped the attempt; no attempt is used up.",
    Why.ATTEMPTS_EXHAUSTED: "The schedule has no further place.",
    Why.WINDOW_OVER: "The next attempt would start after the delivery window.",
    Why.GONE: "The receiver wants nothing any more (410).",
    Why.REFUSED: "The receiver will never take this event (413, or a `final` rule).",
    Why.URL_DENIED: "The endpoint's URL breaks an egress rule.",
    Why.EVENT_MISSING: "The event's body is gone from the store.",
}


def render_decisions() -> str:
    """`decisions.md`."""
    assert ACTION_HELP.keys() == set(StatusAction)
    assert WHY_HELP.keys() == set(Why)
    check = check_schedule(DEFAULT_SCHEDULE, DEFAULT_WINDOW, ClientPolicy().attempt_budget)
    parts = [
        "# Decisions: what happens after an attempt",
        generated_note(),
        "A decision is `complete`, `retry_at`, `defer` (nothing was tried that counts; the row waits) or `dead_letter`. It "
        "follows the outcome, for a response its status, and what the endpoint says in `status_rules`, `schedule` and "
        "`window`. These lists may grow in minor versions.",
        "## By status",
        table(
            ("status", "action", "what it does"),
            [(name, f"`{action}`", ACTION_HELP[action]) for name, action in _action_rows()],
        ),
        "An endpoint may say otherwise, for one status or a class: "
        '`status_rules={"404": "final", "5xx": "slow"}`. `Retry-After` may make the next attempt later, never sooner.',
        "Without a response: a denied URL is a dead letter at once and disables the endpoint; a denied address, and TLS "
        "faults that the owner must mend, follow the slow schedule; all else the normal one. A first attempt that failed "
        f"safely in set-up is tried again once within {FAST_RETRY_MAX:g} s.",
        "## Schedules",
        table(
            ("attempt", "normal: after the previous one", "slow: after the previous one"),
            [
                (
                    str(number + 1),
                    describe_seconds(delay) if number else "at once",
                    describe_seconds(SLOW_SCHEDULE[number - 1]) if 0 < number <= len(SLOW_SCHEDULE) else "",
                )
                for number, delay in enumerate(DEFAULT_SCHEDULE)
            ],
        ),
        f"Every delay is drawn from ±{DEFAULT_JITTER:.0%}. {check}; then the delivery is a dead letter.",
        "## Why",
        table(("`why`", "meaning"), [(f"`{why}`", WHY_HELP[why]) for why in Why]),
    ]
    return "\n\n".join(parts) + "\n"


def _action_rows() -> Iterable[tuple[str, StatusAction]]:
    rules = DeliveryRules()
    for first in (2, 3, 4, 5):
        statuses = range(first * 100, first * 100 + 100)
        usual = rules.action(statuses[-1])
        yield f"{first}xx", usual
        for status in statuses:
            if rules.action(status) is not usual:
                yield str(status), rules.action(status)
