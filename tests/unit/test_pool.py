"""The pool around the lease machine: how long a connection is kept, what removes it, and who gets what came free.

Real connected sockets, virtual time; the machine itself is tested in tests/model/test_leases_machine.py.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from gatepost.delivery.policy import ClientPolicy
from gatepost.net.connection import Connection
from gatepost.net.pool import (
    AGE_JITTER,
    HOSTS_MAX,
    KEEP_ALIVE_MARGIN,
    OBSERVED_CLOSES,
    OBSERVED_FOR,
    OBSERVED_SHARE,
    Host,
    Pool,
)
from gatepost.net.tls import TLSProfile
from gatepost.testing.virtual import SeededEntropy, VirtualClock
from gatepost.wire.egress import EgressPolicy, Target, check_url
from gatepost.wire.head import Head, parse_head
from gatepost.wire.leases import OPEN, WAIT


def target(name: str = "a.example.com") -> Target:
    """A host to talk to."""
    checked = check_url(f"https://{name}/", EgressPolicy())
    assert isinstance(checked, Target)
    return checked


def head(*lines: str) -> Head:
    """A response head with these fields."""
    parsed = parse_head("\r\n".join(("HTTP/1.1 200 OK", "Content-Length: 0", *lines, "", "")).encode())
    assert isinstance(parsed, Head)
    return parsed


class Holder:
    """Somebody who asks; does `then` with what it gets."""

    def __init__(self, then: Callable[[Connection | None], None] = lambda _: None) -> None:
        self.got: list[Connection | None] = []
        self._then = then

    def on_grant(self, connection: Connection) -> None:
        """A connection came."""
        self.got.append(connection)
        self._then(connection)

    def on_open(self) -> None:
        """A slot came."""
        self.got.append(None)
        self._then(None)


class Bench:
    """A pool with real sockets whose other ends are at hand."""

    def __init__(self, **limits: Any) -> None:
        self.clock = VirtualClock()
        self.pool = Pool(ClientPolicy(**limits), self.clock, SeededEntropy(1))
        self.peers: dict[Connection, socket.socket] = {}

    @property
    def now(self) -> float:
        """Of the pool's clock."""
        return self.clock.monotonic()

    def host(self, name: str = "a.example.com") -> Host:
        """The record of a host."""
        return self.pool.host(target(name), None)

    def connect(self, host: Host) -> Connection:
        """What a flight does in a slot of its own."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        connection = Connection(asyncio.get_running_loop(), ours, "192.0.2.1", 80, self.pool, self.now)
        connection.start_plain()
        self.pool.adopt(host, connection, self.now)
        self.peers[connection] = theirs
        return connection

    def use(self, host: Host, party: str = "p") -> Connection:
        """A leased connection, idle or new."""
        answer = self.pool.ask(host, party, Holder(), self.now)
        if answer is OPEN:
            return self.connect(host)
        assert isinstance(answer, Connection)
        return answer

    def free(self, host: Host, connection: Connection, *, keep: bool = True, party: str = "p") -> None:
        """What a flight does after a good response."""
        connection.idle_since = self.now
        connection.usable_until = self.pool.keep_until(host, connection, head(), self.now)
        self.pool.give_back(host, party, connection, keep and connection.usable_until > self.now)

    def close(self) -> None:
        """Close the other ends; nothing else may be open then."""
        self.pool.close()
        for connection, peer in self.peers.items():
            assert connection.closed
            peer.close()


# ------------------------------------------------------------------------------------------------ how long


async def test_an_idle_connection_is_kept_for_its_expiry_and_reused_within_it() -> None:
    """The common case, and its end: at the limit it is closed and never handed out."""
    bench = Bench(keepalive_expiry=30.0)
    host = bench.host()
    connection = bench.use(host)
    bench.free(host, connection)
    bench.clock.advance(29.9)
    assert bench.use(host) is connection
    bench.free(host, connection)
    bench.clock.advance(30.0)
    other = bench.use(host)
    assert other is not connection
    assert connection.closed
    bench.free(host, other, keep=False)
    bench.close()


HINTS = [
    ("Keep-Alive: timeout=5", 5 - KEEP_ALIVE_MARGIN),
    ("Keep-Alive: timeout=2, max=100", 2 - KEEP_ALIVE_MARGIN),
    ("Keep-Alive: timeout=1", 0.0),
    ("Keep-Alive: timeout=0", 0.0),
    ("Keep-Alive: timeout=3600", 30.0),
    ("Keep-Alive: timeout=soon", 30.0),
    ("X: y", 30.0),
]


@pytest.mark.parametrize(("line", "kept_for"), HINTS)
async def test_the_peers_hint_is_honoured_less_a_margin(line: str, kept_for: float) -> None:
    """Our request must arrive before its timer fires; a hint that leaves nothing means: do not keep."""
    bench = Bench()
    host = bench.host()
    connection = bench.use(host)
    until = bench.pool.keep_until(host, connection, head(line), bench.now)
    assert max(0.0, until - bench.now) == pytest.approx(kept_for)
    bench.free(host, connection, keep=False)
    bench.close()


async def test_the_number_of_requests_a_peer_allows_is_honoured() -> None:
    """`max=N`: it closes after N, so the N + 1st would be lost."""
    bench = Bench()
    host = bench.host()
    connection = bench.use(host)
    for served in range(1, 5):
        connection.served_count = served
        until = bench.pool.keep_until(host, connection, head("Keep-Alive: max=3"), bench.now)
        assert (until > bench.now) == (served < 3)
    bench.free(host, connection, keep=False)
    bench.close()


async def test_a_zero_expiry_keeps_nothing() -> None:
    """What `keepalive_expiry=0` says."""
    bench = Bench(keepalive_expiry=0.0)
    host = bench.host()
    connection = bench.use(host)
    bench.free(host, connection)
    assert connection.closed
    assert bench.pool.leases.open_count == 0
    bench.close()


async def test_closes_that_were_observed_shorten_the_time_and_are_forgotten() -> None:
    """Most servers do not announce their idle limit; a restart of one must not shorten reuse for ever."""
    bench = Bench()
    host = bench.host()
    for idle_for in (20.0, 10.0, 15.0):
        connection = bench.use(host)
        bench.free(host, connection)
        bench.clock.advance(idle_for)
        bench.peers[connection].close()
        await asyncio.sleep(0.001)
        assert connection.closed
    connection = bench.use(host)
    connection.expires_at = 1e9
    assert bench.pool.keep_until(host, connection, head(), bench.now) - bench.now == pytest.approx(
        OBSERVED_SHARE * 10.0
    )
    bench.clock.advance(OBSERVED_FOR - 15.0 - 0.1)
    assert bench.pool.keep_until(host, connection, None, bench.now) - bench.now == pytest.approx(OBSERVED_SHARE * 10.0)
    bench.clock.advance(0.2)
    assert bench.pool.keep_until(host, connection, None, bench.now) - bench.now == pytest.approx(OBSERVED_SHARE * 15.0)
    bench.clock.advance(OBSERVED_FOR)
    assert bench.pool.keep_until(host, connection, None, bench.now) - bench.now == pytest.approx(30.0)
    bench.free(host, connection, keep=False)
    bench.close()


async def test_only_the_last_closes_count() -> None:
    """A limit that was raised is believed after as many closes at the new one."""
    bench = Bench()
    host = bench.host()
    connection = bench.use(host)
    connection.expires_at = 1e9
    connection.idle_since = bench.now - 1.0
    bench.pool.observe_close(host, connection, bench.now)
    connection.idle_since = bench.now - 20.0
    for _ in range(OBSERVED_CLOSES - 1):
        bench.pool.observe_close(host, connection, bench.now)
    assert bench.pool.keep_until(host, connection, None, bench.now) - bench.now == pytest.approx(OBSERVED_SHARE)
    bench.pool.observe_close(host, connection, bench.now)
    assert bench.pool.keep_until(host, connection, None, bench.now) - bench.now == pytest.approx(20 * OBSERVED_SHARE)
    bench.free(host, connection, keep=False)
    bench.close()


async def test_age_is_bounded_and_jittered() -> None:
    """A busy connection is never idle for long: without an age a DNS change would not be followed for weeks."""
    bench = Bench(max_connection_age=100.0)
    host = bench.host()
    connections = [bench.use(host) for _ in range(8)]
    lifetimes = [connection.expires_at - bench.now for connection in connections]
    assert all(100.0 * (1 - AGE_JITTER) < lifetime <= 100.0 for lifetime in lifetimes)
    assert len(set(lifetimes)) == 8, "opened together, they must not expire together"
    bench.clock.advance(89.0)
    for connection in connections:
        bench.free(host, connection)
        assert connection.usable_until == connection.expires_at
    bench.clock.advance(11.0)
    fresh = bench.use(host)
    assert fresh not in connections
    assert all(connection.closed for connection in connections)
    bench.free(host, fresh, keep=False)
    bench.close()


async def test_expired_connections_are_closed_without_anybody_asking() -> None:
    """Descriptors of endpoints that nobody calls any more go back."""
    bench = Bench(keepalive_expiry=10.0)
    hosts = [bench.host(f"{name}.example.com") for name in "abc"]
    connections = []
    for host in hosts:
        connection = bench.use(host)
        connections.append(connection)
        bench.free(host, connection)
        bench.clock.advance(4.0)
    bench.pool.expire(bench.now)
    assert [connection.closed for connection in connections] == [True, False, False]
    bench.clock.advance(4.0)
    bench.pool.expire(bench.now)
    assert [connection.closed for connection in connections] == [True, True, False]
    assert bench.pool.leases.idle_count == 1
    bench.close()


# ------------------------------------------------------------------------------------------------ what removes one


@pytest.mark.parametrize("event", ["FIN", "bytes", "reset"])
async def test_an_idle_connection_that_moves_is_gone_before_anybody_asks(event: str) -> None:
    """A FIN makes the next request fail; bytes that nobody asked for would be read as its answer."""
    bench = Bench()
    host = bench.host()
    connection = bench.use(host)
    bench.free(host, connection)
    bench.clock.advance(5.0)
    if event == "bytes":
        bench.peers[connection].send(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    elif event == "FIN":
        bench.peers[connection].shutdown(socket.SHUT_WR)
    else:
        bench.peers[connection].close()
    await asyncio.sleep(0.001)
    assert connection.closed
    assert bench.pool.leases.open_count == 0
    assert host.observed is not None
    assert [age for _, age in host.observed] == [5.0]
    bench.close()


async def test_forgetting_a_host_closes_idle_ones_now_and_busy_ones_when_they_come_back() -> None:
    """For a changed certificate or address: what is in flight may finish, nothing old is used again."""
    bench = Bench()
    host, other = bench.host(), bench.host("b.example.com")
    profiled = bench.pool.host(target(), TLSProfile(x509_strict=False))
    idle, busy, elsewhere, same_origin = bench.use(host), bench.use(host), bench.use(other), bench.use(profiled)
    for owner, connection in ((host, idle), (other, elsewhere), (profiled, same_origin)):
        bench.free(owner, connection)
    bench.pool.forget("https://a.example.com:443")
    bench.pool.forget("https://unknown.example.com:443")
    assert (idle.closed, busy.closed, elsewhere.closed, same_origin.closed) == (True, False, False, True)
    bench.free(host, busy)
    assert busy.closed
    fresh = bench.use(host)
    bench.free(host, fresh)
    assert not fresh.closed, "those opened since are kept"
    assert bench.use(host) is fresh
    bench.free(host, fresh)
    bench.close()


async def test_a_busy_connection_of_a_forgotten_host_is_not_granted_to_a_waiter() -> None:
    """Giving back goes to whoever waits first; here the waiter gets the slot and opens a new one."""
    bench = Bench(max_per_host=1, max_connections=1)
    host = bench.host()
    connection = bench.use(host)
    waiter = Holder()
    assert bench.pool.ask(host, "q", waiter, bench.now) is WAIT
    bench.pool.forget("https://a.example.com:443")
    bench.free(host, connection)
    assert connection.closed
    assert waiter.got == [None]
    bench.pool.give_back(host, "q", None, keep=False)
    bench.close()


# ------------------------------------------------------------------------------------------------ who gets it


async def test_a_freed_connection_goes_to_the_waiter_and_belongs_to_nobody_meanwhile() -> None:
    """The one who gave it back must not hear of its bytes any more."""
    bench = Bench(max_per_host=1)
    host = bench.host()
    connection = bench.use(host)
    waiter = Holder()
    assert bench.pool.ask(host, "q", waiter, bench.now) is WAIT
    bench.free(host, connection)
    assert waiter.got == [connection]
    assert connection.user is None
    bench.free(host, connection, party="q")
    bench.close()


async def test_an_idle_connection_of_one_host_makes_room_for_another() -> None:
    """The ceiling counts sockets that are really open: a client that counted only busy ones had 675 instead of 50."""
    bench = Bench(max_connections=2, max_per_host=2)
    first, second, third = (bench.host(f"{name}.example.com") for name in "abc")
    idle = bench.use(first)
    bench.free(first, idle)
    busy = bench.use(second)
    got = bench.use(third)
    assert idle.closed
    assert bench.pool.leases.open_count == 2
    bench.free(second, busy)
    bench.free(third, got)
    bench.close()


async def test_a_slot_is_handed_on_to_a_host_that_waits_for_nothing_else() -> None:
    """Its own connections never come back to it, since it has none: without this it would wait for ever."""
    bench = Bench(max_connections=1, max_per_host=1)
    busy_host, poor_host = bench.host("a.example.com"), bench.host("b.example.com")
    connection = bench.use(busy_host)
    waiter = Holder()
    assert bench.pool.ask(poor_host, "p", waiter, bench.now) is WAIT
    bench.free(busy_host, connection)
    assert connection.closed, "a good connection, but its slot is needed"
    assert waiter.got == [None]
    bench.pool.give_back(poor_host, "p", None, keep=False)
    bench.close()


async def test_who_gives_up_waiting_gets_nothing() -> None:
    """Cancelled or out of time: the next in the queue is served instead."""
    bench = Bench(max_per_host=1)
    host = bench.host()
    connection = bench.use(host)
    gone, stays = Holder(), Holder()
    for holder in (gone, stays):
        assert bench.pool.ask(host, "q", holder, bench.now) is WAIT
    bench.pool.abandon(host, "q", gone)
    bench.pool.abandon(host, "q", gone)
    bench.free(host, connection)
    assert (gone.got, stays.got) == ([], [connection])
    bench.free(host, connection, party="q")
    bench.close()


async def test_a_thousand_waiters_that_fail_at_once_do_not_nest() -> None:
    """Each fails as soon as it gets its slot and so wakes the next: by recursion this would end the interpreter."""
    bench = Bench(max_per_host=1)
    host = bench.host()
    connection = bench.use(host)
    served: list[int] = []

    def fail(number: int) -> Callable[[Connection | None], None]:
        def then(_: Connection | None) -> None:
            served.append(number)
            bench.pool.give_back(host, "q", None, keep=False)

        return then

    for number in range(5_000):
        assert bench.pool.ask(host, "q", Holder(fail(number)), bench.now) is WAIT
    bench.free(host, connection, keep=False)
    assert served == list(range(5_000))
    assert bench.pool.leases.open_count == 0
    bench.close()


async def test_a_holder_that_asks_again_inside_its_callback_waits_its_turn() -> None:
    """An observer may start the next attempt from inside the end of one."""
    bench = Bench(max_per_host=1)
    host = bench.host()
    order: list[str] = []
    last = Holder(lambda connection: order.append("last"))

    def again(connection: Connection | None) -> None:
        order.append("first")
        assert bench.pool.ask(host, "q", last, bench.now) is WAIT
        assert connection is not None
        bench.free(host, connection, party="q")
        order.append("first is done")

    connection = bench.use(host)
    assert bench.pool.ask(host, "q", Holder(again), bench.now) is WAIT
    bench.free(host, connection)
    assert order == ["first", "first is done", "last"], "callbacks run one after the other"
    bench.free(host, connection, party="q")
    bench.close()


# ------------------------------------------------------------------------------------------------ records


async def test_hosts_are_told_apart_by_origin_and_tls_profile() -> None:
    """A connection opened with one customer's client certificate must not serve another."""
    bench = Bench()
    strict, lax = TLSProfile(), TLSProfile(x509_strict=False)
    assert bench.pool.host(target(), strict) is bench.pool.host(target(), TLSProfile())
    assert len({id(bench.pool.host(target(), tls)) for tls in (None, strict, lax)}) == 3
    assert bench.host("a.example.com") is not bench.host("b.example.com")
    bench.close()


async def test_records_are_bounded_and_one_in_use_is_never_dropped() -> None:
    """Names come and go for years; a record holds the counts of its leases, so it must outlive them."""
    bench = Bench()
    kept = bench.host("kept.example.com")
    connection = bench.use(kept)
    dropped = bench.host("dropped.example.com")
    base = target()
    for number in range(HOSTS_MAX):
        bench.pool.host(Target("https", "h", 443, "/", f"https://{number}", None, "h", "h"), None)
    assert len(bench.pool.hosts) <= HOSTS_MAX + 1
    assert bench.pool.host(target("kept.example.com"), None) is kept
    assert dropped.dropped
    assert not kept.dropped
    assert bench.pool.host(base, None) is not dropped
    bench.free(kept, connection)
    bench.close()


async def test_closing_leaves_no_descriptor() -> None:
    """What every test above relied on, counted once."""
    bench = Bench()
    before = len(os.listdir("/proc/self/fd"))
    for name in "abc":
        host = bench.host(f"{name}.example.com")
        for connection in [bench.use(host) for _ in range(4)]:
            bench.free(host, connection)
    bench.close()
    assert len(os.listdir("/proc/self/fd")) == before
