"""Slots per key: how many attempts one endpoint may have in flight, and who waits for the next free one.

A synchronous machine: it counts, queues and hands a freed slot to the longest waiting; it neither waits nor knows the time
(whoever calls `wait` brings something to wake, and gives up by `abandon`). `net.client` calls it around each `deliver()`.

Theory of operation. A key is in `_busy` while at least one of its slots is taken, and in `_queues` while somebody waits for
it; both entries go when they are empty, so that idle keys cost nothing. The invariant that keeps every operation O(1): while
anybody waits for a key, all of its slots are taken. So a freed slot passes straight to the first in the queue and the count
never moves; nobody can overtake. Envoy calls this circuit breaking.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

Waiter = TypeVar("Waiter")


class PermitState(StrEnum):
    """Where a permit is in its life."""

    WAITING = "waiting"
    HELD = "held"
    GONE = "gone"


class PermitInput(StrEnum):
    """What can happen to a permit."""

    GRANT = "grant"
    GIVE_BACK = "give_back"
    ABANDON = "abandon"


TRANSITIONS: Final[dict[tuple[PermitState, PermitInput], PermitState]] = {
    (PermitState.WAITING, PermitInput.GRANT): PermitState.HELD,
    (PermitState.WAITING, PermitInput.ABANDON): PermitState.GONE,
    (PermitState.HELD, PermitInput.GIVE_BACK): PermitState.GONE,
    (PermitState.HELD, PermitInput.ABANDON): PermitState.GONE,
    (PermitState.GONE, PermitInput.ABANDON): PermitState.GONE,
}
"""Every legal step; what is absent raises `IllegalPermit` and changes nothing. Abandoning is legal at any moment."""


class IllegalPermit(RuntimeError):
    """A permit was given back twice, or before it was granted: the caller's bookkeeping is wrong."""


class Permit(Generic[Waiter]):
    """One asked-for slot. `waiter` is what the caller wants to wake when the slot comes."""

    __slots__ = ("key", "state", "waiter")

    def __init__(self, key: str, waiter: Waiter, state: PermitState) -> None:
        self.key = key
        self.waiter = waiter
        self.state = state

    def __repr__(self) -> str:
        return f"<Permit {self.state} {self.key}>"


@dataclass(frozen=True, slots=True)
class Admit(Generic[Waiter]):
    """The slot is yours: settle `permit` by exactly one `give_back` or `abandon`."""

    permit: Permit[Waiter]


@dataclass(frozen=True, slots=True)
class Wait(Generic[Waiter]):
    """All slots are taken; `permit.waiter` will be returned by the call that frees one. Until then `abandon` leaves the queue."""

    permit: Permit[Waiter]


@dataclass(frozen=True, slots=True)
class BulkheadStatistics:
    """A snapshot of all keys."""

    limit: int
    keys: int
    """Keys with at least one slot taken."""
    in_use: int
    waiting: int


class Bulkhead(Generic[Waiter]):
    """At most `limit` slots per key.

    Two ways in. `ask` / `give_back` / `abandon` deal in permits. `try_enter` / `leave` are the same thing without one, for the
    path on which nobody waits: a dict lookup and an addition. They may be mixed, a slot is a slot.
    """

    __slots__ = ("_busy", "_limit", "_queues")

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"limit={limit}: write 1 or more")
        self._limit = limit
        self._busy: dict[str, int] = {}
        self._queues: dict[str, OrderedDict[Permit[Waiter], None]] = {}

    def __repr__(self) -> str:
        now = self.statistics()
        return f"<Bulkhead limit={now.limit} keys={now.keys} in_use={now.in_use} waiting={now.waiting}>"

    # ------------------------------------------------------------------------------------- without a permit

    def try_enter(self, key: str) -> bool:
        """Take a slot if one is free. True must be followed by exactly one `leave`."""
        busy = self._busy
        taken = busy.get(key, 0)
        if taken >= self._limit:
            return False
        busy[key] = taken + 1
        return True

    def leave(self, key: str) -> Waiter | None:
        """Give a slot back. Returns the waiter that holds it from now on, whom the caller must wake, or None."""
        if self._queues:
            heir = self._pass_on(key)
            if heir is not None:
                return heir.waiter
        busy = self._busy
        taken = busy.get(key, 0)
        if taken > 1:
            busy[key] = taken - 1
        elif taken == 1:
            del busy[key]
        else:
            raise IllegalPermit(f"no slot of {key!r} is taken: leave() was called twice, or without try_enter()")
        return None

    def wait(self, key: str, waiter: Waiter) -> Permit[Waiter]:
        """Queue for the next slot of `key`; only after `try_enter` said False, without an await between."""
        if self._busy.get(key, 0) < self._limit:
            raise IllegalPermit(f"a slot of {key!r} is free: call try_enter() first")
        permit = Permit(key, waiter, PermitState.WAITING)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = OrderedDict()
        queue[permit] = None
        return permit

    # ---------------------------------------------------------------------------------------- with a permit

    def ask(self, key: str, waiter: Waiter) -> Admit[Waiter] | Wait[Waiter]:
        """A slot at once, or a place in the queue."""
        if self.try_enter(key):
            return Admit(Permit(key, waiter, PermitState.HELD))
        return Wait(self.wait(key, waiter))

    def give_back(self, permit: Permit[Waiter]) -> Waiter | None:
        """Settle a held permit. Returns the waiter that holds the slot from now on, whom the caller must wake, or None.

        Raises `IllegalPermit`, leaving everything as it was, when the permit is not held.
        """
        permit.state = _step(permit, PermitInput.GIVE_BACK)
        return self.leave(permit.key)

    def abandon(self, permit: Permit[Waiter]) -> Waiter | None:
        """Leave, whatever the state: out of the queue, or back with a slot that was granted meanwhile. Repeating it does nothing.

        Returns the waiter that got the slot, whom the caller must wake, or None.
        """
        was = permit.state
        permit.state = _step(permit, PermitInput.ABANDON)
        if was is PermitState.HELD:
            return self.leave(permit.key)
        if was is PermitState.WAITING:
            queue = self._queues[permit.key]
            del queue[permit]
            if not queue:
                del self._queues[permit.key]
        return None

    # -------------------------------------------------------------------------------------------- looking in

    def in_use(self, key: str) -> int:
        """Slots of `key` that are taken."""
        return self._busy.get(key, 0)

    def waiting(self, key: str) -> int:
        """How many wait for a slot of `key`."""
        queue = self._queues.get(key)
        return 0 if queue is None else len(queue)

    def statistics(self) -> BulkheadStatistics:
        """A snapshot; O(keys in use)."""
        return BulkheadStatistics(
            limit=self._limit,
            keys=len(self._busy),
            in_use=sum(self._busy.values()),
            waiting=sum(len(queue) for queue in self._queues.values()),
        )

    # ---------------------------------------------------------------------------------------------- helpers

    def _pass_on(self, key: str) -> Permit[Waiter] | None:
        """Hand a slot of `key` to the first in its queue, if there is one; the count stays."""
        queue = self._queues.get(key)
        if queue is None:
            return None
        heir, _ = queue.popitem(last=False)
        if not queue:
            del self._queues[key]
        heir.state = _step(heir, PermitInput.GRANT)
        return heir


def _step(permit: Permit[Waiter], given: PermitInput) -> PermitState:
    after = TRANSITIONS.get((permit.state, given))
    if after is None:
        raise IllegalPermit(f"{permit!r} cannot take {given}: a permit is granted once and given back once")
    return after
