"""Hosts with a limited number of connections, and the endpoints that wait for one of them in turn.

A host full of attempts is a state of the scheduler like an endpoint at its cap: its endpoints wait here, counted, instead of
holding slots until a `pool_timeout`. Pure bookkeeping for `dispatch.scheduler`.

Theory of operation. Two queues per host, first attempts before retries. A freed slot *calls* the next waiter. For a first
attempt the call reserves the slot (`promised`), so nobody can overtake; for a retry it does not, because the global share of
retries may keep it from starting, and a reserved slot would stand empty. A newcomer queues whenever anybody waits. Called
seats that turn out to have nothing to start give the reservation back, which calls the next.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from gatepost.dispatch.lanes import Kind

if TYPE_CHECKING:
    from gatepost.dispatch.seats import Seat

AUTO_CAP_MIN: Final = 8
"""The least that an automatic host cap gives: the library's default for a host."""


class HostState:
    """One `scheme://host:port` and what is under way to it. Dropped when no loaded endpoint points to it."""

    __slots__ = (
        "_fixed",
        "_slots",
        "called_retries",
        "cap_sum",
        "endpoints",
        "in_flight",
        "key",
        "limit",
        "promised",
        "waiting",
    )

    def __init__(self, key: str, fixed: int | None, slots: int) -> None:
        self.key = key
        self._fixed = fixed
        """Set by the caller, or None for automatic."""
        self._slots = slots
        self.limit: int | None = None
        """Set from outside, over the cap: its breaker is open (0), probing or ramping, or it was not reached yet."""
        self.endpoints = 0
        self.cap_sum = 0
        self.in_flight = 0
        self.promised = 0
        self.called_retries = 0
        self.waiting: tuple[deque[Seat], deque[Seat]] = (deque(), deque())

    def __repr__(self) -> str:
        first, retries = self.waiting
        return f"<HostState {self.key} {self.in_flight}/{self.cap} promised={self.promised} waiting={len(first)}+{len(retries)}>"

    @property
    def cap(self) -> int:
        """Attempts in flight at once: as set, or the sum of its endpoints' caps between 8 and a quarter of the slots; never over
        `limit`."""
        cap = self._fixed if self._fixed is not None else max(AUTO_CAP_MIN, min(self.cap_sum, self._slots // 4))
        return cap if self.limit is None else min(cap, self.limit)

    def set_cap(self, fixed: int | None) -> None:
        """Another cap, None for automatic; what is over a lower one ends by itself."""
        self._fixed = fixed

    @property
    def free(self) -> int:
        """Slots that are neither taken nor promised; negative after a cap was lowered."""
        return self.cap - self.in_flight - self.promised

    def admit(self, seat: Seat) -> bool:
        """Whether a seat may start now; else it waits here."""
        called, seat.called = seat.called, False
        if seat.kind is Kind.FIRST:
            if called:
                self.promised -= 1
                return True
            if self.free > 0 and not self.waiting[Kind.FIRST]:
                return True
            self._wait(seat)
            return False
        if called:
            self.called_retries -= 1
            if self.free > 0:
                return True
            self._wait(seat, front=True)  # a first attempt took the slot: it keeps its turn
            return False
        if self.free > 0 and not self.waiting[Kind.FIRST] and not self.waiting[Kind.RETRY]:
            return True
        self._wait(seat)
        return False

    def withdraw(self, seat: Seat) -> bool:
        """A called seat does not start after all; True: a slot became free, call the next."""
        if not seat.called:
            return False
        seat.called = False
        if seat.kind is Kind.FIRST:
            self.promised -= 1
        else:
            self.called_retries -= 1
        return True

    def call(self) -> Seat | None:
        """The next seat to be queued for a start, or None. Call until None whenever a slot may have become free."""
        free = self.free
        if free <= 0:
            return None
        if self.waiting[Kind.FIRST]:
            seat = self._next(Kind.FIRST)
            self.promised += 1
        elif self.waiting[Kind.RETRY] and self.called_retries < free:
            seat = self._next(Kind.RETRY)
            self.called_retries += 1
        else:
            return None
        seat.called = True
        return seat

    def remove(self, seat: Seat) -> None:
        """Take a waiting seat out; O(waiters), only when its endpoint moves to another host or goes."""
        self.waiting[seat.kind].remove(seat)
        seat.at_host = False

    def _wait(self, seat: Seat, *, front: bool = False) -> None:
        queue = self.waiting[seat.kind]
        if front:
            queue.appendleft(seat)
        else:
            queue.append(seat)
        seat.at_host = True

    def _next(self, kind: Kind) -> Seat:
        """In turn; but while others wait, an endpoint with half of the host's slots lets them pass."""
        queue = self.waiting[kind]
        half = max(1, self.cap // 2)
        for _ in range(min(3, len(queue) - 1)):  # only two endpoints can hold a half
            if queue[0].endpoint.in_flight < half:
                break
            queue.rotate(-1)
        seat = queue.popleft()
        seat.at_host = False
        return seat
