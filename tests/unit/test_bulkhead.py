"""The permit machine of the bulkhead: its table, and the primitives on the path without waiting."""

from __future__ import annotations

import itertools

import pytest

from gatepost.admission.bulkhead import (
    TRANSITIONS,
    Admit,
    Bulkhead,
    BulkheadStatistics,
    IllegalPermit,
    Permit,
    PermitInput,
    PermitState,
    Wait,
)


def _permit_in(state: PermitState) -> tuple[Bulkhead[str], Permit[str]]:
    bulkhead: Bulkhead[str] = Bulkhead(1)
    if state is PermitState.WAITING:
        assert bulkhead.try_enter("k")
        return bulkhead, bulkhead.wait("k", "me")
    verdict = bulkhead.ask("k", "me")
    assert isinstance(verdict, Admit)
    if state is PermitState.GONE:
        bulkhead.give_back(verdict.permit)
    return bulkhead, verdict.permit


@pytest.mark.parametrize(
    ("state", "given"), list(itertools.product(PermitState, (PermitInput.GIVE_BACK, PermitInput.ABANDON)))
)
def test_every_state_and_input_follows_the_table(state: PermitState, given: PermitInput) -> None:
    """An illegal step must raise and leave every count as it was: a slot given back twice is a cap that silently grows."""
    bulkhead, permit = _permit_in(state)
    before = bulkhead.statistics()
    act = bulkhead.give_back if given is PermitInput.GIVE_BACK else bulkhead.abandon
    expected = TRANSITIONS.get((state, given))
    if expected is None:
        with pytest.raises(IllegalPermit, match="granted once"):
            act(permit)
        assert state == permit.state
        assert before == bulkhead.statistics()
    else:
        assert act(permit) is None
        assert expected == permit.state


def test_slots_are_counted_per_key() -> None:
    """One endpoint at its cap must not keep another out."""
    bulkhead: Bulkhead[str] = Bulkhead(2)
    assert [bulkhead.try_enter("slow") for _ in range(3)] == [True, True, False]
    assert bulkhead.try_enter("other")
    assert bulkhead.in_use("slow") == 2
    assert BulkheadStatistics(limit=2, keys=2, in_use=3, waiting=0) == bulkhead.statistics()
    assert repr(bulkhead) == "<Bulkhead limit=2 keys=2 in_use=3 waiting=0>"


def test_a_freed_slot_goes_to_the_longest_waiting() -> None:
    """Waiters are served in order, and a newcomer cannot slip in between the release and the wake-up."""
    bulkhead: Bulkhead[str] = Bulkhead(1)
    assert bulkhead.try_enter("k")
    first = bulkhead.ask("k", "first")
    assert isinstance(first, Wait)
    bulkhead.ask("k", "second")
    assert bulkhead.waiting("k") == 2
    assert bulkhead.leave("k") == "first"
    assert not bulkhead.try_enter("k")
    assert bulkhead.give_back(first.permit) == "second"
    assert bulkhead.leave("k") is None
    assert bulkhead.in_use("k") == 0
    assert bulkhead.waiting("k") == 0


def test_abandoning_in_the_queue_leaves_no_trace() -> None:
    """A caller whose admission_timeout ran out must not be handed a slot that nobody will give back."""
    bulkhead: Bulkhead[str] = Bulkhead(1)
    assert bulkhead.try_enter("k")
    gone, stays = bulkhead.wait("k", "gone"), bulkhead.wait("k", "stays")
    assert bulkhead.abandon(gone) is None
    assert bulkhead.leave("k") == "stays"
    assert stays.state is PermitState.HELD
    assert bulkhead.abandon(gone) is None


def test_abandoning_a_slot_granted_meanwhile_passes_it_on() -> None:
    """Cancelled between the grant and the wake-up: the slot must reach the next waiter, not leak."""
    bulkhead: Bulkhead[str] = Bulkhead(1)
    assert bulkhead.try_enter("k")
    cancelled, _ = bulkhead.wait("k", "cancelled"), bulkhead.wait("k", "next")
    assert bulkhead.leave("k") == "cancelled"
    assert bulkhead.abandon(cancelled) == "next"


def test_idle_keys_cost_nothing() -> None:
    """Thousands of endpoints come and go: state of an idle one must be gone."""
    bulkhead: Bulkhead[str] = Bulkhead(2)
    for number in range(1_000):
        bulkhead.try_enter(f"k{number}")
    for number in range(1_000):
        bulkhead.leave(f"k{number}")
    assert not bulkhead._busy
    assert not bulkhead._queues


def test_misuse_raises_and_says_why() -> None:
    """Silent over-release would raise the cap for ever."""
    with pytest.raises(ValueError, match="write 1 or more"):
        Bulkhead(0)
    bulkhead: Bulkhead[str] = Bulkhead(1)
    with pytest.raises(IllegalPermit, match="called twice"):
        bulkhead.leave("k")
    with pytest.raises(IllegalPermit, match="call try_enter"):
        bulkhead.wait("k", "me")
