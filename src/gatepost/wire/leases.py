"""Who may use which connection: the pool's bookkeeping as a synchronous machine, so that no cancellation can fall inside it.

`ask` answers at once with a connection, `OPEN` or `WAIT`; `give_back`, `gone` and `abandon` return commands for others
(`Grant`, `Open`, `Close`), which the shell (`net.pool`) carries out before it does anything else. It knows neither sockets
nor time: a connection is anything with a `usable_until`.

Theory of operation
-------------------
* A *slot* is one of `connections_max` sockets, idle ones included. Every lease and every idle connection holds one.
* A host has at most `per_host_max` leases. Idle connections of a host are reused last in, first out, so that few stay warm
  and the rest expire.
* Nobody waits while something is free: a host has waiters only when it has no idle connection, and when either its own
  limit or the slots are used up. In the second case it is *starved* and stands in one queue with other such hosts.
* A freed connection goes to its own host's waiters, unless a starved host's waiter came earlier: then it is closed and its
  slot is handed on. When slots run out, the connection idle for longest is closed, whichever host it belongs to.
* Waiters of one host are served round by party (endpoint), each party's in order. A party that holds half of the host's
  limit lets others go first.

Every operation is O(1) in the number of hosts, connections and waiters (two parties at most can hold half a host).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar


class Pooled(Protocol):
    """What the machine needs to know of a connection."""

    usable_until: float
    """Monotonic seconds after which an idle connection is closed instead of reused."""


C = TypeVar("C", bound=Pooled)
W = TypeVar("W")


class Answer:
    """What an asker gets when it is no connection."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


OPEN: Final = Answer("OPEN")
"""The asker holds a slot and opens a connection of its own."""
WAIT: Final = Answer("WAIT")
"""The asker stands in the queue; a later `Grant` or `Open` names it."""


@dataclass(frozen=True, slots=True)
class Grant(Generic[C, W]):
    """`waiter` now holds `connection`."""

    waiter: W
    connection: C


@dataclass(frozen=True, slots=True)
class Open(Generic[W]):
    """`waiter` now holds a slot and opens a connection of its own."""

    waiter: W


@dataclass(frozen=True, slots=True)
class Close(Generic[C]):
    """`connection` has left the pool and must be closed."""

    connection: C


class HostLeases(Generic[C, W]):
    """The machine's state for one host; change it only through `Leases`."""

    __slots__ = ("held", "idle", "in_use", "open_peak", "queues", "waiting")

    def __init__(self) -> None:
        self.in_use = 0
        self.open_peak = 0
        """Most connections that were open at once: so many may be opened without any being opened twice."""
        self.idle: dict[C, None] = {}
        self.held: dict[Hashable, int] = {}
        self.queues: OrderedDict[Hashable, OrderedDict[W, int]] = OrderedDict()
        self.waiting = 0

    @property
    def unused(self) -> bool:
        """Nothing is leased, idle or waited for: the record may be dropped."""
        return not (self.in_use or self.idle or self.waiting)


class Leases(Generic[C, W]):
    """The pool's machine. `connections_max` sockets in all, `per_host_max` leases a host."""

    __slots__ = ("_idle", "_order", "_starved", "connections_max", "expired", "open_count", "per_host_max")

    def __init__(self, connections_max: int, per_host_max: int) -> None:
        self.connections_max = connections_max
        self.per_host_max = per_host_max
        self.open_count = 0
        self.expired: list[C] = []
        """Connections that `ask` took out of the pool; the shell closes and clears them."""
        self._idle: OrderedDict[C, HostLeases[C, W]] = OrderedDict()
        self._starved: OrderedDict[HostLeases[C, W], None] = OrderedDict()
        self._order = 0

    @property
    def idle_count(self) -> int:
        """Idle connections over all hosts."""
        return len(self._idle)

    def ask(self, host: HostLeases[C, W], party: Hashable, waiter: W, now: float) -> C | Answer:
        """A connection, `OPEN` or `WAIT`. Connections found too old are put into `expired`."""
        if not host.waiting:
            idle = host.idle
            while idle:
                connection, _ = idle.popitem()
                del self._idle[connection]
                if connection.usable_until > now:
                    host.in_use += 1  # as `_hold`
                    held = host.held
                    held[party] = held.get(party, 0) + 1
                    return connection
                self.open_count -= 1
                self.expired.append(connection)
            if host.in_use < self.per_host_max:
                if self.open_count < self.connections_max or self._evict():
                    self.open_count += 1
                    self._hold(host, party)
                    host.open_peak = max(host.open_peak, host.in_use)  # none is idle, else it was reused
                    return OPEN
                self._starved[host] = None
        self._order += 1
        queue = host.queues.get(party)
        if queue is None:
            queue = host.queues[party] = OrderedDict()
        queue[waiter] = self._order
        host.waiting += 1
        return WAIT

    def give_back(
        self, host: HostLeases[C, W], party: Hashable, connection: C | None, keep: bool
    ) -> Sequence[Grant[C, W] | Open[W] | Close[C]]:
        """End a lease. `keep` says the connection can serve again; otherwise the shell has closed it (or it never opened)."""
        host.in_use -= 1
        held = host.held[party] - 1
        if held:
            host.held[party] = held
        else:
            del host.held[party]
        if not keep or connection is None:
            self.open_count -= 1
            return self._hand_on(host)
        if host.waiting and not self._starved_came_first(host):
            waiter, of = self._next_waiter(host)
            self._hold(host, of)
            return (Grant(waiter, connection),)
        if self._starved:
            self.open_count -= 1
            return (Close(connection), *self._hand_on(host))
        host.idle[connection] = None
        self._idle[connection] = host
        return ()

    def gone(self, host: HostLeases[C, W], connection: C) -> Sequence[Grant[C, W] | Open[W] | Close[C]]:
        """An idle connection was closed (by its peer, by expiry, by `forget`). Not an error when it is no longer idle."""
        if connection not in host.idle:
            return ()
        del host.idle[connection]
        del self._idle[connection]
        self.open_count -= 1
        return self._hand_on(host)

    def abandon(self, host: HostLeases[C, W], party: Hashable, waiter: W) -> bool:
        """Leave the queue. False when the waiter does not stand in it (it was granted, or left before)."""
        queue = host.queues.get(party)
        if queue is None or queue.pop(waiter, None) is None:
            return False
        host.waiting -= 1
        if not queue:
            del host.queues[party]
        if not host.waiting:
            self._starved.pop(host, None)
        return True

    def is_starved(self, host: HostLeases[C, W]) -> bool:
        """The host's waiters lack a slot rather than the host's own limit."""
        return host in self._starved

    def oldest_idle(self) -> C | None:
        """The connection idle for longest."""
        return next(iter(self._idle), None)

    def host_of_idle(self, connection: C) -> HostLeases[C, W] | None:
        """The host of an idle connection."""
        return self._idle.get(connection)

    def _hold(self, host: HostLeases[C, W], party: Hashable) -> None:
        host.in_use += 1
        held = host.held
        held[party] = held.get(party, 0) + 1

    def _evict(self) -> bool:
        if not self._idle:
            return False
        connection, host = self._idle.popitem(last=False)
        del host.idle[connection]
        self.open_count -= 1
        self.expired.append(connection)
        return True

    def _starved_came_first(self, host: HostLeases[C, W]) -> bool:
        for other in self._starved:
            return other is not host and self._next_order(other) < self._next_order(host)
        return False

    def _next_order(self, host: HostLeases[C, W]) -> int:
        """When the waiter came that would be served next: it alone is comparable, others may have to let it go first."""
        return next(iter(host.queues[self._next_party(host)].values()))

    def _hand_on(self, host: HostLeases[C, W]) -> Sequence[Grant[C, W] | Open[W] | Close[C]]:
        """Slots or a place at `host` came free: open for whoever waited longest for that."""
        starved = self._starved
        if host.waiting and host.in_use < self.per_host_max:
            starved[host] = None
        if not starved:
            return ()
        commands: list[Grant[C, W] | Open[W] | Close[C]] = []
        while starved and (self.open_count < self.connections_max or self._evict()):
            other, _ = starved.popitem(last=False)
            waiter, party = self._next_waiter(other)
            self.open_count += 1
            self._hold(other, party)
            other.open_peak = max(other.open_peak, other.in_use)
            commands.append(Open(waiter))
            if other.waiting and other.in_use < self.per_host_max:
                starved[other] = None
        return commands

    def _next_party(self, host: HostLeases[C, W]) -> Hashable:
        fair = self.per_host_max / 2
        for party in host.queues:  # at most two parties can hold half
            if host.held.get(party, 0) < fair:
                return party
        return next(iter(host.queues))

    def _next_waiter(self, host: HostLeases[C, W]) -> tuple[W, Hashable]:
        queues = host.queues
        party = self._next_party(host)
        queue = queues[party]
        waiter, _ = queue.popitem(last=False)
        host.waiting -= 1
        if queue:
            queues.move_to_end(party)
        else:
            del queues[party]
        if not host.waiting:
            self._starved.pop(host, None)
        return waiter, party
