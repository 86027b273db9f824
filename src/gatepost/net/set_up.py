"""The first half of an attempt: admission, pool, dns, connect and tls, until there is a connection to write to.

Reads top to bottom like the sequence diagram, and keeps the time of every phase and the limit in force for both halves;
`net.flight` is the second one. It decides nothing but the order: each step waits for one callback, and any may be the last.
"""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gatepost.admission.bulkhead import Permit
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import End
from gatepost.delivery.policy import ClientPolicy
from gatepost.errors import ResolveError
from gatepost.net.connection import Connection
from gatepost.net.dial import Dial, interleave
from gatepost.net.names import Found
from gatepost.net.pool import Host
from gatepost.net.tls_socket import TlsSocket
from gatepost.net.tunnel import Tunnel
from gatepost.wire.egress import Denied
from gatepost.wire.exchange import ResponseReader
from gatepost.wire.leases import OPEN, WAIT
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import US_REASONS, Reason

if TYPE_CHECKING:
    import asyncio
    import ssl

    from gatepost.net.client import DispatchClient

NEVER: Final = float("inf")

# Names of this module: on Python 3.11 a member of an enum is looked up by a function call.
ADMISSION, POOL, DNS, CONNECT, TLS, WRITE, WAIT_, READ = Phase


class SetUp:
    """An attempt before its request; `start` it once."""

    __slots__ = (
        "_body",
        "_client",
        "_connect_at",
        "_connection",
        "_context",
        "_deadline_at",
        "_dial",
        "_duplicable",
        "_early",
        "_ended",
        "_endpoint_id",
        "_entered",
        "_head",
        "_holds_slot",
        "_host",
        "_key",
        "_mark",
        "_permit",
        "_phase_at",
        "_policy",
        "_reader",
        "_reused",
        "_spent",
        "_stale_retry",
        "_started",
        "_started_wall",
        "_tenant",
        "_total_at",
        "_tunnel",
        "_write_fault",
        "_written",
        "address",
        "done",
        "extended",
        "limit_at",
        "limit_length",
        "phase",
    )

    def __init__(
        self,
        client: DispatchClient,
        host: Host,
        head: bytes,
        body: bytes,
        *,
        policy: ClientPolicy,
        key: str | None,
        endpoint_id: str | None,
        tenant: str | None,
        context: ssl.SSLContext | None,
        deadline_at: float,
        duplicable: bool,
        done: asyncio.Future[Attempt],
        now: float,
    ) -> None:
        self._client = client
        self._host = host
        self._head = head
        self._body = body
        self._policy = policy
        self._key = key
        self._endpoint_id = endpoint_id
        self._tenant = tenant
        self._context = context
        self._deadline_at = deadline_at
        self._duplicable = duplicable
        self.done = done
        self._started = now
        self._started_wall = client.clock.wall_us()
        self._mark = now
        self._spent: dict[Phase, float] = {}
        self.phase = ADMISSION
        self.limit_at = NEVER
        """Monotonic seconds at which the sweeper calls `on_limit`."""
        self.limit_length = NEVER
        """Seconds of the limit in force: how far a late loop may extend it, and how often the sweeper must look."""
        self.extended = 0.0
        """Seconds by which the limit in force was extended for a late loop."""
        self._phase_at = NEVER
        self._total_at = NEVER
        self._connect_at = NEVER
        self._ended = False
        self._entered = False
        self._permit: Permit[SetUp] | None = None
        self._connection: Connection | None = None
        self._dial: Dial | None = None
        self._tunnel: Tunnel | None = None
        self._holds_slot = False
        self._reader: ResponseReader | None = None
        self._reused = False
        self._written = False
        self._early = False
        self._write_fault: Reason | None = None
        self._stale_retry = False
        self.address: str | None = None

    # -------------------------------------------------------------------------------- admission and pool

    def start(self, now: float) -> None:
        """Begin; everything else follows from callbacks."""
        if now != self._mark:
            self._next(ADMISSION, now)  # our own preparations (a TLS context) came first
        if self._deadline_at <= now:
            self._end(End.DEADLINE, Reason.DEADLINE_EXPIRED)
            return
        key = self._key
        if key is not None:
            bulkhead = self._client.bulkhead
            if not bulkhead.try_enter(key):
                self._permit = bulkhead.wait(key, self)
                self._limit(self._policy.admission_timeout, now)
                return
            self._entered = True
        self._lease(now)

    def on_admitted(self) -> None:
        """A slot of the endpoint was handed to us. When we had ended meanwhile, `_settle` passed it on."""
        if self._ended:
            return
        self._permit = None
        self._entered = True
        self._lease(self._next(POOL))

    def _lease(self, now: float) -> None:
        self.phase = POOL
        answer = self._client.pool.ask(self._host, self._endpoint_id, self, now)
        if answer is WAIT:
            self._limit(self._policy.pool_timeout, now)
        elif answer is OPEN:
            self._leased(now)
            self._resolve(now)
        else:
            assert isinstance(answer, Connection)
            self._leased(now)
            self._use(answer, now)

    def on_grant(self, connection: Connection) -> None:
        """The pool has a connection for us."""
        if self._ended:
            self._client.pool.give_back(self._host, self._endpoint_id, connection, keep=not connection.closed)
            return
        now = self._next(POOL)
        self._leased(now)
        self._use(connection, now)

    def on_open(self) -> None:
        """The pool has a slot for us."""
        if self._ended:
            self._client.pool.give_back(self._host, self._endpoint_id, None, keep=False)
            return
        now = self._next(POOL)
        self._leased(now)
        self._resolve(now)

    def _leased(self, now: float) -> None:
        """The total runs from here; waiting for admission and pool has limits of its own."""
        self._total_at = now + self._policy.attempt_budget
        self._holds_slot = True

    # ----------------------------------------------------------------------------------------------- set-up

    def _resolve(self, now: float) -> None:
        policy = self._policy
        self._connect_at = now + policy.connect_timeout
        target = self._host.target
        self.phase = DNS
        via = self._host.via
        if target.address is not None:
            denied = self._client.rules.check_address(target.address)  # the rules may have changed while we waited
            if denied is not None:
                self._end(End.DENIED, denied.reason)
                return
        address = target.address if via is None else via.address
        if address is not None:
            self._connect((address,), now)
            return
        name = target.host if via is None else via.host
        found = self._client.names.known(name)
        if found is not None:
            self._resolved(found, now)
            return
        self._client.look_for_nat64()
        self._limit(policy.dns_timeout or policy.connect_timeout, now)
        self._client.names.ask(name, self.on_resolved, self._tenant if via is None else None)

    def on_resolved(self, found: Found) -> None:
        """The resolver answered."""
        if self._ended:
            return
        self._resolved(found, self._next(DNS))

    def _resolved(self, found: Found, now: float) -> None:
        if isinstance(found, ResolveError):
            self._end(End.FAULT, self._proxied(Reason(found.code), Reason.PROXY_DNS_FAILED))
            return
        if self._host.via is not None:  # the operator's own, wherever it is
            self._connect(found.addresses, now)
            return
        checked = self._client.rules.check_addresses(found.addresses, found.chain)
        if isinstance(checked, Denied):
            # An empty answer denies nothing: the name has no address, today.
            self._end(End.FAULT if checked.reason is Reason.DNS_NO_ADDRESS else End.DENIED, checked.reason)
            return
        self._connect(checked, now)

    def _connect(self, addresses: Sequence[str], now: float) -> None:
        self.phase = CONNECT
        self._limit(self._connect_at - now, now)
        preferred = self._host.preferred_family
        ordered = interleave(addresses, None if preferred is None else socket.AddressFamily(preferred))
        self._dial = Dial(self._client.loop, ordered, self._port, self.on_connected, self.on_connect_failed)
        self._dial.start()

    def on_connect_failed(self, reason: Reason) -> None:
        """No address could be connected to."""
        assert self._dial is not None
        self.address = self._dial.tried
        self._dial = None
        self._next(CONNECT)
        self._end(End.FAULT, self._proxied(reason, Reason.PROXY_CONNECT_FAILED))

    def on_connected(self, sock: socket.socket, address: str) -> None:
        """A checked address is connected; the kernel's view of it has been compared."""
        self._dial = None
        host = self._host
        self.address = address
        host.preferred_family = sock.family
        if host.via is None:
            self._secure(sock, address)
            return
        client = self._client
        self._tunnel = Tunnel(
            client.loop,
            sock,
            host.via,
            host.target,
            client.proxy_context if host.via.scheme == "https" else None,
            self._on_tunnel,
            self._on_tunnel_failed,
        )
        self._tunnel.start()

    def _on_tunnel(self, sock: socket.socket | TlsSocket) -> None:
        self._tunnel = None
        assert self.address is not None
        self._secure(sock, self.address)

    def _on_tunnel_failed(self, reason: Reason) -> None:
        self._tunnel = None
        self._next(CONNECT)
        self._end(End.FAULT, reason)

    @property
    def _port(self) -> int:
        """That we connect to: the receiver's or the proxy's."""
        via = self._host.via
        return self._host.target.port if via is None else via.port

    def _proxied(self, reason: Reason, as_proxy: Reason) -> Reason:
        """What went wrong on the way to our own proxy is said of the proxy, unless it is ours anyway."""
        return reason if self._host.via is None or reason in US_REASONS else as_proxy

    def _secure(self, sock: socket.socket | TlsSocket, address: str) -> None:
        """There is a byte stream to the receiver."""
        now = self._next(TLS)
        client = self._client
        host = self._host
        connection = Connection(client.loop, sock, address, self._port, client.pool, now)
        connection.policy_checked = client.rules
        connection.user = self
        self._connection = connection
        client.pool.adopt(host, connection, now)
        if host.target.scheme == "https":
            context = self._context
            assert context is not None, "made before the attempt began"
            self._limit(min(self._policy.tls_timeout or NEVER, self._connect_at - now), now)
            connection.start_tls(context, host.target.sni)
        else:
            connection.start_plain()
            self._write(connection, now)

    def on_secure(self) -> None:
        """The handshake is done and the certificate was right."""
        now = self._next(WRITE)
        connection = self._connection
        assert connection is not None
        if connection.alpn not in (None, "http/1.1"):
            self.phase = TLS
            self._end(End.FAULT, Reason.TLS_NO_HTTP1)
            return
        self._write(connection, now)

    # ------------------------------------------------------------------------------------------ time and limits

    def extend(self, lag: float) -> None:
        """Our loop was late by `lag` seconds: the endpoint is given them back, once over at most, never past a deadline."""
        more = min(lag, self.limit_length - self.extended)
        if more > 0:
            self.extended += more
            self._phase_at += more
            self._total_at += more
            self._connect_at += more
            self.limit_at = min(self._phase_at, self._total_at, self._deadline_at)

    def _limit(self, seconds: float, now: float) -> None:
        """Put a limit in force; the total and the deadline hold beside it."""
        at = now + seconds
        self._phase_at = at
        if self._total_at < at:
            at = self._total_at
        if self._deadline_at < at:
            at = self._deadline_at
        self.limit_at = at
        self.limit_length = at - now
        self.extended = 0.0
        if self.limit_length < self._client.sweeper.shortest:
            self._client.sweeper.tighten(self.limit_length)

    def _next(self, phase: Phase, now: float = 0.0) -> float:
        """Close the current phase's time and go to `phase`; returns now."""
        if now == 0.0:
            now = self._client.clock.monotonic()
        spent = self._spent
        current = self.phase
        spent[current] = spent.get(current, 0.0) + now - self._mark
        self._mark = now
        self.phase = phase
        return now

    # --------------------------------------------------------------------------------------- the second half

    @abstractmethod
    def _use(self, connection: Connection, now: float) -> None:
        """A connection that has served before."""

    @abstractmethod
    def _write(self, connection: Connection, now: float) -> None:
        """Send the request."""

    @abstractmethod
    def on_written(self) -> None:
        """See `ConnectionUser`, as the next three."""

    @abstractmethod
    def on_write_failed(self, reason: Reason) -> None: ...

    @abstractmethod
    def on_data(self, data: bytes) -> None: ...

    @abstractmethod
    def on_end(self, reason: Reason | None) -> None: ...

    @abstractmethod
    def _end(self, end: End, reason: Reason, lagged: bool = False) -> None:
        """Settle everything and tell."""
