"""When PostgreSQL is told about the time left, and what: case 36 and the rules of re-issue, on virtual time."""

from __future__ import annotations

import pytest

from gatepost.deadline import Deadline, DeadlineExceeded
from gatepost.deadline.db.budget import Budget, Restore, Set, ends_settings
from gatepost.testing.virtual import VirtualClock


def told(budget: Budget, deadline: Deadline | None, *, transaction: bool = True) -> int | None:
    """The statement timeout that is set before the next statement, None when nothing is."""
    plan = budget.plan(deadline, transaction=transaction)
    if plan is None:
        return None
    assert isinstance(plan, Set)
    budget.set_done("0", "0")
    assert plan.values[2] > 0
    assert plan.values[3] > 0
    assert plan.values[4] is transaction
    return plan.values[2]


def test_36_the_timeout_is_what_is_left_less_the_reserve_and_never_0() -> None:
    """`statement_timeout = 0` means none: the last thing a spent budget may become."""
    clock = VirtualClock()
    assert told(Budget(), Deadline.after(0.012, clock=clock)) == 2
    assert told(Budget(), Deadline.after(0.010, clock=clock)) == 1
    assert told(Budget(), Deadline.after(0.0011, clock=clock)) == 1
    for spent in (0.0004, 0.0):
        with pytest.raises(DeadlineExceeded, match="db"):
            Budget().plan(Deadline.after(spent, clock=clock), transaction=True)
    assert told(Budget(), Deadline.after(1e8, clock=clock)) == 2_147_483_647


def test_locks_are_waited_for_at_most_a_second() -> None:
    """A long budget is no reason to stand in a queue of writers for all of it."""
    clock = VirtualClock()
    plan = Budget().plan(Deadline.after(30.0, clock=clock), transaction=True)
    assert isinstance(plan, Set)
    assert plan.values == (None, None, 29_990, 1_000, True)


def test_many_quick_statements_cost_one_round_trip_more_not_one_each() -> None:
    """Told again when the remainder fell by a fifth or 50 ms, and always near the end."""
    clock = VirtualClock()
    deadline = Deadline.after(10.0, clock=clock)
    budget = Budget()
    assert told(budget, deadline) == 9_990
    for _ in range(4):
        clock.advance(0.010)
        assert told(budget, deadline) is None
    clock.advance(0.011)
    assert told(budget, deadline) == 9_939
    clock.advance(9.7)
    assert told(budget, deadline) == 239
    clock.advance(0.001)
    assert told(budget, deadline) == 238


def test_a_short_budget_is_told_again_after_a_fifth() -> None:
    """Of 400 ms, 50 would be an eighth; of 260 a fifth is 52: the rule is whichever comes first."""
    clock = VirtualClock()
    deadline = Deadline.after(0.310, clock=clock)
    budget = Budget()
    assert told(budget, deadline) == 300
    clock.advance(0.049)
    assert told(budget, deadline) is None
    clock.advance(0.002)
    assert told(budget, deadline) == 249


def test_a_transaction_that_outlives_its_scope_gets_its_old_limits_back() -> None:
    """The 40 ms that were left of a request must not cut the job that goes on in the same transaction."""
    clock = VirtualClock()
    budget = Budget()
    assert isinstance(budget.plan(Deadline.after(1.0, clock=clock), transaction=True), Set)
    budget.set_done("5s", "0")
    assert budget.plan(None, transaction=True) == Restore("5s", "0", True)
    assert budget.plan(None, transaction=True) is None
    # And a scope after that tells anew, still knowing the operator's own limit.
    plan = budget.plan(Deadline.after(1.0, clock=clock), transaction=True)
    assert isinstance(plan, Set)
    assert plan.values[:2] == ("5s", "0")


def test_after_the_transaction_nothing_is_known() -> None:
    """Limits of a transaction end with it, and a savepoint's with its rollback."""
    clock = VirtualClock()
    deadline = Deadline.after(1.0, clock=clock)
    budget = Budget()
    assert told(budget, deadline) == 990
    budget.forget()
    assert told(budget, deadline) == 990
    assert told(budget, deadline, transaction=False) == 990


def test_in_autocommit_the_session_is_put_back_before_somebody_else_gets_it() -> None:
    """A pooled connection with 3 ms of statement timeout left on it is a random failure for the next request."""
    clock = VirtualClock()
    deadline = Deadline.after(1.0, clock=clock)
    budget = Budget()
    assert told(budget, deadline, transaction=False) == 990
    # A transaction meanwhile has limits of its own, from the operator's, and takes only those along when it ends.
    plan = budget.plan(deadline, transaction=True)
    assert isinstance(plan, Set)
    assert plan.values[:2] == ("0", "0")
    budget.set_done("0", "0")
    budget.forget()
    assert told(budget, deadline, transaction=False) == 990
    assert budget.plan(None, transaction=True) == Restore("0", "0", True)
    assert budget.undo() == Restore("0", "0", False)
    assert budget.undo() is None


def test_a_longest_statement_holds_without_a_deadline() -> None:
    """The data store's own profile: 1 s for any statement."""
    clock = VirtualClock()
    budget = Budget(longest=1.0)
    assert told(budget, None) == 1_000
    assert told(budget, None) is None
    assert told(budget, Deadline.after(0.5, clock=clock)) == 490


@pytest.mark.parametrize(
    ("sql", "ends"),
    [
        ("SELECT 1", False),
        ("SELECT 1;", False),
        ("COMMIT", True),
        ("  rollback to savepoint a", True),
        ("INSERT INTO t VALUES (1); COMMIT", True),
        ("SET statement_timeout = 0", True),
        ("SELECT 'end'", False),
        ("ENDLESS", False),
    ],
)
def test_text_that_may_change_limits_is_recognised(sql: str, ends: bool) -> None:
    """Somebody writes ROLLBACK by hand; then nothing that was told holds for certain."""
    assert ends_settings(sql) is ends
