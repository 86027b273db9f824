"""The pool: carries out what the lease machine (`wire.leases`) decides, keeps idle connections honest, and counts by host.

It closes what expired, was closed by its peer or may no longer be used; it never dials (flights do) and never waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Protocol

from gatepost.clock import Clock, Entropy
from gatepost.delivery.policy import ClientPolicy
from gatepost.net.connection import Connection
from gatepost.net.proxy import ProxyConfig
from gatepost.net.tls import TLSProfile
from gatepost.wire.egress import Target
from gatepost.wire.head import Head
from gatepost.wire.leases import Answer, Close, Grant, HostLeases, Leases, Open

HOSTS_MAX: Final = 16_384
"""Host records kept without a connection (for counters and what was learned of keep-alive); about 1 KiB each."""
KEEP_ALIVE_MARGIN: Final = 1.0
"""Seconds taken off an announced keep-alive: our request must arrive before the peer's timer fires."""
OBSERVED_CLOSES: Final = 20
OBSERVED_SHARE: Final = 0.8
"""Idle connections are kept for 0.8 of the shortest idle age at which the peer closed, of the last 20 closes."""
OBSERVED_FOR: Final = 600.0
"""Seconds after which an observed close is forgotten: a restart of the peer must not shorten reuse for ever."""
AGE_JITTER: Final = 0.1
"""`max_connection_age` is shortened by up to a tenth, so that connections opened together do not expire together."""


class LeaseHolder(Protocol):
    """Who asks the pool for a connection."""

    def on_grant(self, connection: Connection) -> None:
        """The connection is yours."""
        ...

    def on_open(self) -> None:
        """The slot is yours: open a connection."""
        ...


class Host(HostLeases[Connection, LeaseHolder]):
    """What is known of `scheme://host:port` under one TLS profile and by one way there."""

    __slots__ = (
        "announced",
        "created_count",
        "dropped",
        "generation",
        "key",
        "observed",
        "preferred_family",
        "reused_count",
        "target",
        "tls",
        "via",
    )

    def __init__(self, key: Hashable, target: Target, tls: TLSProfile | None, via: ProxyConfig | None = None) -> None:
        super().__init__()
        self.key = key
        self.target = target
        self.tls = tls
        self.via = via
        """The proxy its connections go through."""
        self.announced: int | None = None
        """Seconds of its last `Keep-Alive: timeout=N`."""
        self.created_count = 0
        self.reused_count = 0
        self.observed: deque[tuple[float, float]] | None = None
        """(when, idle age) of the peer's closes."""
        self.preferred_family: int | None = None
        """The address family that worked last, when both were offered."""
        self.dropped = False
        """No longer the pool's record of this host: ask the pool for it again."""
        self.generation = 0
        """Raised by `forget`: connections of an earlier one are closed when they come back."""


class Pool:
    """All connections of a client."""

    def __init__(self, policy: ClientPolicy, clock: Clock, entropy: Entropy, proxy: ProxyConfig | None = None) -> None:
        self.leases: Leases[Connection, LeaseHolder] = Leases(policy.max_connections, policy.max_per_host)
        self._policy = policy
        self._proxy = proxy
        self._clock = clock
        self._entropy = entropy
        self._hosts: dict[Hashable, Host] = {}
        self._todo: deque[Callable[[], None]] = deque()
        self._running = False

    @property
    def hosts(self) -> Sequence[Host]:
        """Every host known."""
        return list(self._hosts.values())

    def host(self, target: Target, tls: TLSProfile | None) -> Host:
        """The record of a host, made on first use."""
        via = None if self._proxy is None else self._proxy.route(target)
        key = (target.origin, tls, via)
        host = self._hosts.get(key)
        if host is None:
            if len(self._hosts) >= HOSTS_MAX:
                self._drop_unused()
            host = self._hosts[key] = Host(key, target, tls, via)
        return host

    # ----------------------------------------------------------------------------------------------- leases

    def ask(self, host: Host, party: Hashable, holder: LeaseHolder, now: float) -> Connection | Answer:
        """A connection, `OPEN` or `WAIT`; what the machine found too old is closed."""
        answer = self.leases.ask(host, party, holder, now)
        if self.leases.expired:
            self._close_expired()
        return answer

    def give_back(self, host: Host, party: Hashable, connection: Connection | None, keep: bool) -> None:
        """End a lease; the connection goes to the next waiter, becomes idle, or is closed."""
        if connection is not None:
            connection.user = None
            if not keep or connection.generation != host.generation:
                keep = False
                connection.close()
        commands = self.leases.give_back(host, party, connection, keep)
        if commands or self.leases.expired:
            self._carry_out(commands)

    def abandon(self, host: Host, party: Hashable, holder: LeaseHolder) -> None:
        """Stop waiting."""
        self.leases.abandon(host, party, holder)

    def _carry_out(
        self, commands: Sequence[Grant[Connection, LeaseHolder] | Open[LeaseHolder] | Close[Connection]]
    ) -> None:
        self._close_expired()
        for command in commands:
            if isinstance(command, Grant):
                self.later(_granting(command.waiter, command.connection))
            elif isinstance(command, Open):
                self.later(command.waiter.on_open)
            else:
                command.connection.close()
        self.run_todo()

    def _close_expired(self) -> None:
        expired = self.leases.expired
        while expired:
            expired.pop().close()

    def later(self, action: Callable[[], None]) -> None:
        """Queue an action that may end other leases in its turn; see `run_todo`."""
        self._todo.append(action)

    def run_todo(self) -> None:
        """Run queued actions one after the other: a thousand waiters that fail at once must not nest a thousand calls."""
        if self._running:
            return
        self._running = True
        try:
            while self._todo:
                self._todo.popleft()()
        finally:
            self._running = False

    def adopt_policy(self, policy: ClientPolicy) -> None:
        """Other limits for what is opened, and for what comes back from use, from now on."""
        self._policy = policy
        self.leases.per_host_max = policy.max_per_host

    # ------------------------------------------------------------------------------------- idle connections

    def keep_until(self, host: Host, connection: Connection, head: Head | None, now: float) -> float:
        """Until when a connection may stay idle; not later than `now` means that it is not kept."""
        idle_for = self._policy.keepalive_expiry
        if head is not None:
            if head.keep_alive_timeout is not None:
                host.announced = head.keep_alive_timeout
                idle_for = min(idle_for, head.keep_alive_timeout - KEEP_ALIVE_MARGIN)
            if head.keep_alive_max is not None and head.keep_alive_max <= connection.served_count:
                return now
        if host.observed:
            horizon = now - OBSERVED_FOR
            while host.observed and host.observed[0][0] < horizon:
                host.observed.popleft()
            if host.observed:
                idle_for = min(idle_for, OBSERVED_SHARE * min(age for _, age in host.observed))
        return min(now + idle_for, connection.expires_at)

    def adopt(self, host: Host, connection: Connection, now: float) -> None:
        """A flight opened a connection in its slot."""
        host.created_count += 1
        connection.generation = host.generation
        connection.expires_at = now + self._policy.max_connection_age * (1.0 - AGE_JITTER * self._entropy.uniform())

    def observe_close(self, host: Host, connection: Connection, now: float) -> None:
        """The peer closed a connection while we thought it idle."""
        if host.observed is None:
            host.observed = deque(maxlen=OBSERVED_CLOSES)
        host.observed.append((now, now - connection.idle_since))

    def on_idle_event(self, connection: Connection) -> None:
        """FIN, reset or stray bytes on an idle connection: it leaves the pool before anybody can ask for it."""
        host = self.leases.host_of_idle(connection)
        connection.close()
        if isinstance(host, Host):
            self.observe_close(host, connection, self._clock.monotonic())
            self._carry_out(self.leases.gone(host, connection))

    def expire(self, now: float) -> None:
        """Close idle connections that are past their time, oldest first.

        One with a shorter keep-alive behind an older one waits for its turn; `ask` never hands it out.
        """
        while True:
            connection = self.leases.oldest_idle()
            if connection is None or connection.usable_until > now:
                return
            self._discard_idle(connection)

    def forget(self, origin: str) -> None:
        """Close the idle connections of a host at once; those in use are closed when they come back."""
        for host in list(self._hosts.values()):
            if host.target.origin == origin:
                for connection in list(host.idle):
                    self._discard_idle(connection)
                host.generation += 1

    def close(self) -> None:
        """Close every idle connection."""
        while True:
            connection = self.leases.oldest_idle()
            if connection is None:
                return
            self._discard_idle(connection)

    def _discard_idle(self, connection: Connection) -> None:
        host = self.leases.host_of_idle(connection)
        assert host is not None
        connection.close()
        self._carry_out(self.leases.gone(host, connection))

    def _drop_unused(self) -> None:
        for key, host in list(self._hosts.items()):
            if host.unused:
                host.dropped = True
                del self._hosts[key]


def _granting(holder: LeaseHolder, connection: Connection) -> Callable[[], None]:
    return lambda: holder.on_grant(connection)
