"""Hypothesis drives the lease machine with several hosts and parties at once, against the plainest possible model.

The model keeps lists and searches them; the machine must give the same answers in a constant number of steps. Nothing here
waits, so an `abandon` between any two calls is what a cancellation at any moment looks like to the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gatepost.wire import leases as leases_module
from gatepost.wire.leases import OPEN, WAIT, Answer, Close, Grant, HostLeases, Leases, Open

HOSTS = ("a", "b", "c", "d")
PARTIES = ("p", "q", "r")
PICK = strategies.integers(0, 1_000)


@dataclass(eq=False)
class Socket:
    """A connection as the machine sees it, and what the model knows of it."""

    host: str
    usable_until: float
    closed: bool = False


@dataclass(eq=False)
class Asker:
    """Somebody who asked; `order` is when."""

    host: str
    party: str
    order: int
    connection: Socket | None = None
    """What it holds, when it was given one; it has opened none of its own before it is given back."""


Host = HostLeases[Socket, Asker]
Command = Grant[Socket, Asker] | Open[Asker] | Close[Socket]


@dataclass
class HostModel:
    """One host in lists."""

    holding: list[Asker] = field(default_factory=list)
    waiting: list[Asker] = field(default_factory=list)
    """In order of arrival."""
    turns: list[str] = field(default_factory=list)
    """Parties that wait, in order of their turn."""
    idle: list[Socket] = field(default_factory=list)
    """Newest last."""


class LeasesMachine(RuleBasedStateMachine):
    """Every rule predicts the whole answer; the invariants are what a pool must never break."""

    def __init__(self) -> None:
        super().__init__()
        self.connections_max = self.per_host_max = 1
        self.leases: Leases[Socket, Asker] = Leases(1, 1)
        self.hosts: dict[str, Host] = {name: HostLeases() for name in HOSTS}
        self.models = {name: HostModel() for name in HOSTS}
        self.starved: list[str] = []
        """Hosts whose waiters lack only a slot, in the order in which they came to lack it."""
        self.idle: list[Socket] = []
        """Of all hosts, idle for longest first."""
        self.left: list[Asker] = []
        """Askers that gave up or were done."""
        self.now = 0.0
        self.order = 0

    @initialize(slots=strategies.integers(1, 6), per_host=strategies.integers(1, 5))
    def configure(self, slots: int, per_host: int) -> None:
        self.connections_max, self.per_host_max = slots, min(slots, per_host)
        self.leases = Leases(self.connections_max, self.per_host_max)

    # ------------------------------------------------------------------------------------------------ model

    @property
    def open_count(self) -> int:
        return len(self.idle) + sum(len(model.holding) for model in self.models.values())

    def next_of(self, name: str) -> Asker:
        """Who is served next: the first party in turn that holds less than half, else the first; its oldest."""
        model = self.models[name]
        share = [party for party in model.turns if 2 * self.held(name, party) < self.per_host_max]
        party = (share or model.turns)[0]
        return next(asker for asker in model.waiting if asker.party == party)

    def held(self, name: str, party: str) -> int:
        return sum(asker.party == party for asker in self.models[name].holding)

    def serve(self, name: str, connection: Socket | None) -> Asker:
        """The next waiter of a host holds a lease; its party goes to the end of the turns."""
        asker = self.next_of(name)
        model = self.models[name]
        model.waiting.remove(asker)
        model.holding.append(asker)
        self.rotate(name, asker.party)
        asker.connection = connection
        if not model.waiting and name in self.starved:
            self.starved.remove(name)
        return asker

    def rotate(self, name: str, party: str) -> None:
        model = self.models[name]
        model.turns.remove(party)
        if any(asker.party == party for asker in model.waiting):
            model.turns.append(party)

    def hand_on(self, name: str) -> list[Command]:
        """Something came free at `name`: the starved host that came first opens a connection."""
        model = self.models[name]
        if model.waiting and len(model.holding) < self.per_host_max and name not in self.starved:
            self.starved.append(name)
        commands: list[Command] = []
        while self.starved and self.open_count < self.connections_max:
            other = self.starved.pop(0)
            commands.append(Open(self.serve(other, None)))
            if self.models[other].waiting and len(self.models[other].holding) < self.per_host_max:
                self.starved.append(other)
        return commands

    # ------------------------------------------------------------------------------------------------ rules

    @rule(seconds=strategies.sampled_from([0.5, 1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=strategies.sampled_from(HOSTS), party=strategies.sampled_from(PARTIES))
    def ask(self, name: str, party: str) -> None:
        self.order += 1
        asker = Asker(name, party, self.order)
        model = self.models[name]
        expected: Socket | Answer = WAIT
        expired: list[Socket] = []
        if not model.waiting:
            while model.idle and expected is WAIT:
                newest = model.idle.pop()
                self.idle.remove(newest)
                if newest.usable_until > self.now:
                    expected = newest
                    asker.connection = newest
                else:
                    expired.append(newest)
            if expected is WAIT and len(model.holding) < self.per_host_max:
                if self.open_count >= self.connections_max and self.idle:
                    oldest = self.idle.pop(0)
                    self.models[oldest.host].idle.remove(oldest)
                    expired.append(oldest)
                if self.open_count < self.connections_max:
                    expected = OPEN
                else:
                    self.starved.append(name)
        if expected is WAIT:
            model.waiting.append(asker)
            if party not in model.turns:
                model.turns.append(party)
        else:
            model.holding.append(asker)
        answer = self.leases.ask(self.hosts[name], party, asker, self.now)
        assert answer is expected
        assert expired == self.leases.expired, "what was too old or evicted, in that order"
        self.close(self.leases.expired)
        self.leases.expired.clear()

    @precondition(lambda self: any(model.holding for model in self.models.values()))
    @rule(pick=PICK, keep=strategies.booleans(), usable_for=strategies.sampled_from([0.5, 3.0, 100.0]))
    def give_back(self, pick: int, keep: bool, usable_for: float) -> None:
        holding = [asker for model in self.models.values() for asker in model.holding]
        self.give_back_of(holding[pick % len(holding)], keep, usable_for)

    def give_back_of(self, asker: Asker, keep: bool, usable_for: float) -> None:
        name = asker.host
        model = self.models[name]
        model.holding.remove(asker)
        self.left.append(asker)
        connection = asker.connection
        if connection is None and keep:
            connection = Socket(name, 0.0)  # it opened one of its own
        if connection is not None:
            connection.usable_until = self.now + usable_for
        expected: list[Command]
        if not keep or connection is None:
            if connection is not None:
                connection.closed = True
            expected = self.hand_on(name)
        elif model.waiting and not self.a_starved_host_came_first(name):
            expected = [Grant(self.serve(name, connection), connection)]
        elif self.starved:
            expected = [Close(connection), *self.hand_on(name)]
        else:
            model.idle.append(connection)
            self.idle.append(connection)
            expected = []
        commands = self.leases.give_back(self.hosts[name], asker.party, connection, keep)
        assert expected == list(commands)
        self.carry_out(commands)

    def a_starved_host_came_first(self, name: str) -> bool:
        if not self.starved or self.starved[0] == name:
            return False
        return self.next_of(self.starved[0]).order < self.next_of(name).order

    @precondition(lambda self: self.idle)
    @rule(pick=PICK)
    def lose_an_idle_connection(self, pick: int) -> None:
        connection = self.idle.pop(pick % len(self.idle))
        self.models[connection.host].idle.remove(connection)
        connection.closed = True
        commands = self.leases.gone(self.hosts[connection.host], connection)
        assert list(commands) == self.hand_on(connection.host)
        assert not self.leases.gone(self.hosts[connection.host], connection), "reporting it twice is no error"
        self.carry_out(commands)

    @rule(pick=PICK)
    def report_a_leased_connection_as_gone(self, pick: int) -> None:
        leased = [asker.connection for model in self.models.values() for asker in model.holding if asker.connection]
        if leased:
            connection = leased[pick % len(leased)]
            assert self.leases.gone(self.hosts[connection.host], connection) == ()

    @precondition(lambda self: any(model.waiting for model in self.models.values()))
    @rule(pick=PICK)
    def abandon_while_waiting(self, pick: int) -> None:
        waiting = [asker for model in self.models.values() for asker in model.waiting]
        asker = waiting[pick % len(waiting)]
        model = self.models[asker.host]
        model.waiting.remove(asker)
        if not any(other.party == asker.party for other in model.waiting):
            model.turns.remove(asker.party)
        if not model.waiting and asker.host in self.starved:
            self.starved.remove(asker.host)
        self.left.append(asker)
        host = self.hosts[asker.host]
        assert self.leases.abandon(host, asker.party, asker)
        assert not self.leases.abandon(host, asker.party, asker), "leaving twice is no error"

    @rule(pick=PICK)
    def abandon_what_does_not_wait(self, pick: int) -> None:
        others = self.left + [asker for model in self.models.values() for asker in model.holding]
        if others:
            asker = others[pick % len(others)]
            assert not self.leases.abandon(self.hosts[asker.host], asker.party, asker)

    def carry_out(self, commands: Sequence[Command]) -> None:
        assert not self.leases.expired, "only ask evicts"
        for command in commands:
            match command:
                case Grant(waiter, connection):
                    assert not connection.closed
                    assert waiter.host == connection.host
                    assert waiter not in self.left
                case Open(waiter):
                    assert waiter not in self.left
                case Close(connection):
                    self.close([connection])

    def close(self, connections: Sequence[Socket]) -> None:
        for connection in connections:
            assert not connection.closed, "closed twice"
            connection.closed = True

    # ------------------------------------------------------------------------------------------- invariants

    @invariant()
    def limits_hold(self) -> None:
        assert self.open_count == self.leases.open_count <= self.connections_max
        for name, model in self.models.items():
            assert len(model.holding) == self.hosts[name].in_use <= self.per_host_max
            assert len(model.holding) + len(model.idle) <= self.per_host_max, "idle ones were to be used first"

    @invariant()
    def books_agree(self) -> None:
        assert len(self.idle) == self.leases.idle_count
        assert (self.idle[0] if self.idle else None) is self.leases.oldest_idle()
        for name, model in self.models.items():
            host = self.hosts[name]
            assert model.idle == list(host.idle)
            assert len(model.waiting) == host.waiting
            assert model.turns == list(host.queues), "an empty queue is dropped, and the turns are kept"
            assert {asker.party: self.held(name, asker.party) for asker in model.holding} == host.held
            assert host.unused == (not (model.holding or model.idle or model.waiting))
            for connection in model.idle:
                assert self.leases.host_of_idle(connection) is host

    @invariant()
    def nobody_waits_while_something_is_free(self) -> None:
        for name, model in self.models.items():
            lacks_slot = bool(model.waiting) and len(model.holding) < self.per_host_max
            assert lacks_slot == self.leases.is_starved(self.hosts[name]) == (name in self.starved)
            if model.waiting:
                assert not model.idle
            if lacks_slot:
                assert self.leases.open_count == self.connections_max
                assert not self.idle, "an idle connection elsewhere is a slot"

    def teardown(self) -> None:
        """Whoever still waits is served when leases end, whatever happens to their connections; then nothing is left."""
        remaining = 10_000
        while any(model.holding for model in self.models.values()):
            self.give_back(0, remaining % 3 == 0, 100.0)
            self.nobody_waits_while_something_is_free()
            remaining -= 1
        assert not any(model.waiting for model in self.models.values())
        while self.idle:
            self.lose_an_idle_connection(0)
        assert self.leases.open_count == 0
        assert all(host.unused for host in self.hosts.values())


TestLeases = LeasesMachine.TestCase
TestLeases.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


# ------------------------------------------------------------------------------------------------- plain examples


def _socket(name: str = "a") -> Socket:
    return Socket(name, 1e9)


def _asker(name: str, party: str = "p") -> Asker:
    return Asker(name, party, 0)


def test_one_busy_endpoint_gets_half_of_a_host_that_others_wait_for() -> None:
    """Ten thousand tenants share one SaaS name; one with a backlog must not take all of its connections."""
    leases: Leases[Socket, Asker] = Leases(100, 4)
    host: Host = HostLeases()
    for _ in range(4):
        assert leases.ask(host, "greedy", _asker("a", "greedy"), 0.0) is OPEN
    for _ in range(6):
        assert leases.ask(host, "greedy", _asker("a", "greedy"), 0.0) is WAIT
    assert leases.ask(host, "small", _asker("a", "small"), 0.0) is WAIT
    assert leases.ask(host, "other", _asker("a", "other"), 0.0) is WAIT
    served = []
    for _ in range(3):
        (command,) = leases.give_back(host, "greedy", _socket(), keep=True)
        assert isinstance(command, Grant)
        served.append(command.waiter.party)
    # Three of four are held by it after the first, two after the second: at half, it is in turn again only below it.
    assert served == ["small", "other", "greedy"]
    assert host.held == {"greedy": 2, "small": 1, "other": 1}


def test_an_old_waiter_of_a_party_at_its_half_does_not_hold_back_a_starved_host() -> None:
    """Who is compared with the starved host is who would be served, not somebody who has to let others go first anyway."""
    leases: Leases[Socket, Asker] = Leases(4, 4)
    busy: Host = HostLeases()
    poor: Host = HostLeases()
    for party in ("greedy", "greedy", "other", "other"):
        assert leases.ask(busy, party, _asker("busy", party), 0.0) is OPEN
    assert leases.ask(busy, "greedy", _asker("busy", "greedy"), 0.0) is WAIT
    assert leases.ask(poor, "p", _asker("poor"), 0.0) is WAIT
    assert leases.ask(busy, "other", _asker("busy", "other"), 0.0) is WAIT
    commands = leases.give_back(busy, "other", _socket("busy"), keep=True)
    assert [type(command) for command in commands] == [Close, Open]
    opened = commands[1]
    assert isinstance(opened, Open)
    assert opened.waiter.host == "poor"


def test_the_connection_idle_for_longest_makes_room() -> None:
    """Thousands of hosts share one ceiling: the warm connections must be the ones that are used."""
    leases: Leases[Socket, Asker] = Leases(3, 3)
    hosts: list[Host] = [HostLeases() for _ in range(4)]
    sockets = [_socket() for _ in range(3)]
    for host, connection in zip(hosts[:3], sockets, strict=True):
        assert leases.ask(host, "p", _asker("a"), 0.0) is OPEN
        leases.give_back(host, "p", connection, keep=True)
    assert leases.ask(hosts[0], "p", _asker("a"), 0.0) is sockets[0]
    leases.give_back(hosts[0], "p", sockets[0], keep=True)
    assert leases.ask(hosts[3], "p", _asker("a"), 0.0) is OPEN
    assert leases.expired == [sockets[1]], "the first host's was used again since"


def test_the_newest_idle_connection_serves_again() -> None:
    """Last in, first out: few connections stay warm and the rest expire, instead of all being kept alive by turns."""
    leases: Leases[Socket, Asker] = Leases(3, 3)
    host: Host = HostLeases()
    sockets = [_socket() for _ in range(3)]
    for _ in sockets:
        leases.ask(host, "p", _asker("a"), 0.0)
    for connection in sockets:
        leases.give_back(host, "p", connection, keep=True)
    assert leases.ask(host, "p", _asker("a"), 0.0) is sockets[2]


# ------------------------------------------------------------------------------------------------- cost


class StepCounter:
    """Counts executed lines of `wire.leases`: what grows with the number of hosts would show here."""

    def __init__(self) -> None:
        self.most = 0
        self._steps = 0

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code.co_filename != leases_module.__file__:
            return None
        if event == "line":
            self._steps += 1
        return self._trace

    def run(self, action: Callable[[], object]) -> None:
        before, self._steps = sys.gettrace(), 0
        sys.settrace(self._trace)
        try:
            action()
        finally:
            sys.settrace(before)
        self.most = max(self.most, self._steps)


def _most_steps(host_count: int, waiters_each: int) -> int:
    """The dearest single call while `host_count` hosts compete for half as many slots, and while all is taken down again."""
    counter = StepCounter()
    slots = host_count // 2
    leases: Leases[Socket, Asker] = Leases(slots, 2)
    hosts: list[Host] = [HostLeases() for _ in range(host_count)]
    askers: list[tuple[Host, Asker]] = []
    for number in range(host_count * waiters_each):
        host = hosts[number % host_count]
        asker = _asker("a", f"party {number}")
        askers.append((host, asker))
        counter.run(lambda host=host, asker=asker: leases.ask(host, asker.party, asker, 0.0))  # type: ignore[misc]
    holding = askers[:slots]
    for host, asker in askers[-host_count:]:
        counter.run(lambda host=host, asker=asker: leases.abandon(host, asker.party, asker))  # type: ignore[misc]
    served = 0
    while holding:
        host, asker = holding.pop(0)
        commands: list[Command] = []
        keep = served % 2 == 0
        counter.run(lambda: commands.extend(leases.give_back(host, asker.party, _socket(), keep)))  # noqa: B023
        served += 1
        for command in commands:
            if not isinstance(command, Close):
                owner = hosts[int(str(command.waiter.party).split()[1]) % host_count]
                holding.append((owner, command.waiter))
    assert served == host_count * (waiters_each - 1)
    for host in hosts:
        for connection in list(host.idle):
            counter.run(lambda host=host, connection=connection: leases.gone(host, connection))  # type: ignore[misc]
    assert leases.open_count == 0
    return counter.most


def test_no_call_costs_more_with_more_hosts_and_waiters() -> None:
    """The pool of another client walks all its connections per request: 0.5 s of CPU each with 1,000 idle ones."""
    few = _most_steps(10, 4)
    assert _most_steps(1_000, 4) <= few
    assert _most_steps(10, 400) <= few
    assert few < 80
