"""Hypothesis drives the bulkhead with many keys and waiters at once, against the plainest possible model."""

from __future__ import annotations

from hypothesis import settings, strategies
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from gatepost.admission.bulkhead import Admit, Bulkhead, Permit, PermitState, Wait

KEYS = strategies.sampled_from(["a", "b", "c"])


class BulkheadMachine(RuleBasedStateMachine):
    """Permits and bare slots mixed; the model is a set of held permits and a list of waiters per key."""

    permits = Bundle("permits")

    def __init__(self) -> None:
        super().__init__()
        self.limit = 2
        self.bulkhead: Bulkhead[int] = Bulkhead(self.limit)
        self.bare: dict[str, int] = {"a": 0, "b": 0, "c": 0}
        self.held: dict[str, set[int]] = {"a": set(), "b": set(), "c": set()}
        self.queue: dict[str, list[int]] = {"a": [], "b": [], "c": []}
        self.names = 0

    def _taken(self, key: str) -> int:
        return self.bare[key] + len(self.held[key])

    def _freed(self, key: str, woken: int | None) -> None:
        expected = self.queue[key].pop(0) if self.queue[key] else None
        assert expected == woken
        if woken is not None:
            self.held[key].add(woken)

    @rule(target=permits, key=KEYS)
    def ask(self, key: str) -> Permit[int]:
        self.names += 1
        full = self._taken(key) >= self.limit
        verdict = self.bulkhead.ask(key, self.names)
        if full:
            assert isinstance(verdict, Wait)
            self.queue[key].append(self.names)
        else:
            assert isinstance(verdict, Admit)
            self.held[key].add(self.names)
        return verdict.permit

    @rule(key=KEYS)
    def enter(self, key: str) -> None:
        entered = self.bulkhead.try_enter(key)
        assert entered == (self._taken(key) < self.limit)
        self.bare[key] += entered

    @rule(key=KEYS)
    def leave(self, key: str) -> None:
        if self.bare[key]:
            self.bare[key] -= 1
            self._freed(key, self.bulkhead.leave(key))

    @rule(permit=permits)
    def give_back(self, permit: Permit[int]) -> None:
        if permit.state is PermitState.HELD:
            self.held[permit.key].discard(permit.waiter)
            self._freed(permit.key, self.bulkhead.give_back(permit))

    @rule(permit=permits)
    def abandon(self, permit: Permit[int]) -> None:
        was = permit.state
        woken = self.bulkhead.abandon(permit)
        if was is PermitState.HELD:
            self.held[permit.key].discard(permit.waiter)
            self._freed(permit.key, woken)
        else:
            assert woken is None
            if was is PermitState.WAITING:
                self.queue[permit.key].remove(permit.waiter)
        assert permit.state is PermitState.GONE

    @invariant()
    def counts_agree_and_nobody_starves(self) -> None:
        for key in self.bare:
            taken = self.bulkhead.in_use(key)
            assert self._taken(key) == taken
            assert taken <= self.limit
            assert len(self.queue[key]) == self.bulkhead.waiting(key)
            if self.queue[key]:
                assert taken == self.limit, "somebody waits while a slot is free"
            assert (key in self.bulkhead._busy) == (taken > 0), "an idle key keeps state"


TestBulkhead = BulkheadMachine.TestCase
TestBulkhead.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
