"""One attempt on its way: admission, pool, dns, connect, tls, write, wait, read, as a state machine driven by callbacks.

Reads top to bottom like the sequence diagram. It collects evidence and ends exactly once, on whatever comes first: a
response, a fault, a limit (`net.sweeper` calls `on_limit`), or a cancellation. `delivery.outcome` says what it came to.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gatepost.admission.bulkhead import Permit
from gatepost.delivery.attempt import Attempt, attempt_record
from gatepost.delivery.outcome import End, Evidence, Verdict, classify
from gatepost.delivery.policy import ClientPolicy
from gatepost.errors import ResolveError
from gatepost.net.connection import Connection, peer_text
from gatepost.net.dial import Dial, interleave
from gatepost.net.names import Found
from gatepost.net.pool import Host
from gatepost.net.sweeper import CAME_ROUND
from gatepost.net.tls_socket import TlsSocket
from gatepost.net.tunnel import Tunnel
from gatepost.wire.egress import Denied
from gatepost.wire.exchange import ResponseReader
from gatepost.wire.head import Head
from gatepost.wire.leases import OPEN, WAIT
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import US_REASONS, BodyFault, Reason
from gatepost.wire.redirects import REDIRECTS

if TYPE_CHECKING:
    import asyncio
    import ssl

    from gatepost.net.client import DispatchClient

NEVER: Final = float("inf")
AFTER_WRITE_ERROR: Final = 1.0
"""Seconds for an answer that was sent before the peer stopped reading to be read, when it is not here already."""

_LIMIT_REASON: Final = {
    Phase.ADMISSION: Reason.ADMISSION_TIMEOUT,
    Phase.DNS: Reason.DNS_TIMEOUT,
    Phase.CONNECT: Reason.CONNECT_TIMEOUT,
    Phase.TLS: Reason.TLS_TIMEOUT,
    Phase.WRITE: Reason.WRITE_TIMEOUT,
    Phase.WAIT: Reason.WAIT_TIMEOUT,
    Phase.READ: Reason.RESPONSE_TIMEOUT,
}

_OK: Final[dict[int, Verdict]] = {
    status: classify(Evidence(End.RESPONSE, Phase.READ, Reason.OK, status=status, request_started=True))
    for status in range(200, 300)
}
"""Verdicts of the common case, made once."""

# Names of this module: on Python 3.11 a member of an enum is looked up by a function call.
ADMISSION, POOL, DNS, CONNECT, TLS, WRITE, WAIT_, READ = Phase
RESPONSE: Final = End.RESPONSE


class Flight:
    """The machine of one attempt. `start` it once; `done` resolves to the `Attempt`."""

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
        self._permit: Permit[Flight] | None = None
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

    # --------------------------------------------------------------------------------------------- exchange

    def _use(self, connection: Connection, now: float) -> None:
        """A connection that has served before."""
        client = self._client
        if not connection.still_idle(look=now - client.sweeper.swept_at > CAME_ROUND):
            client.pool.observe_close(self._host, connection, now)
            self._resolve(now)  # the slot stays ours
            return
        self.address = connection.address
        if connection.policy_checked is not client.rules:
            checked = connection.address if self._host.via is None else self._host.target.address
            denied = None if checked is None else client.rules.check_address(checked)
            if denied is not None:
                client.pool.give_back(self._host, self._endpoint_id, connection, keep=False)
                self._holds_slot = False
                self._end(End.DENIED, denied.reason)
                return
            connection.policy_checked = client.rules
        self._connection = connection
        self._reused = True
        self._host.reused_count += 1
        connection.user = self
        self._write(connection, now)

    def _write(self, connection: Connection, now: float) -> None:
        policy = self._policy
        self.phase = WRITE
        self._reader = ResponseReader(policy.max_response_head, policy.max_response_body, policy.max_interim_responses)
        self._limit(policy.write_timeout, now)
        connection.write(self._head, self._body)

    def on_written(self) -> None:
        """The last request byte is with the kernel: the receiver's clock starts."""
        self._written = True
        reader = self._reader
        assert reader is not None
        now = self._next(READ if reader.began else WAIT_)
        self._early = self._early and reader.final_began  # a 100 Continue is no answer yet
        self._limit(self._policy.read_timeout, now)

    def on_write_failed(self, reason: Reason) -> None:
        """The peer stopped reading. What it said before that is still in our buffer: an early 413 must not be lost."""
        if self._write_fault is not None:
            return
        self._write_fault = reason
        connection = self._connection
        assert connection is not None
        connection.read_now()
        if not self._ended and self._connection is connection and not self._early:
            self._limit(min(AFTER_WRITE_ERROR, self._policy.read_timeout), self._client.clock.monotonic())

    def on_data(self, data: bytes) -> None:
        """Response bytes."""
        reader = self._reader
        if reader is None:
            return
        if not reader.began:
            if self._written:
                self._next(READ)
            else:
                self._early = True
        reader.feed(data)
        if reader.done:
            self._read_all(reader)
        elif self._early and reader.head is not None and not self._written:
            self._on_early_head(reader)

    def _on_early_head(self, reader: ResponseReader) -> None:
        """The answer begins while we still write."""
        head = reader.head
        assert head is not None
        connection = self._connection
        assert connection is not None
        if 200 <= head.status < 300:
            if self._reused:
                self._end(End.FAULT, Reason.RESPONSE_UNSOLICITED)
            return
        # Refused: nobody wants the rest of the body, and the rest of the answer has the receiver's clock.
        connection.stop_writing()
        self._early = False
        self._limit(self._policy.read_timeout, self._next(READ))

    def on_end(self, reason: Reason | None) -> None:
        """The peer sends no more."""
        reader = self._reader
        if reader is None:  # before the request: connect or handshake
            self._next(self.phase)
            self._end(End.FAULT, reason or Reason.CONNECTION_CLOSED)
            return
        if not reader.began:
            if self._may_retry_stale():
                self._retry_stale()
                return
            self._next(self.phase)
            self._end(End.FAULT, reason or self._write_fault or Reason.CONNECTION_CLOSED)
            return
        if reader.head is None:
            self._next(READ)
            self._end(End.FAULT, reason or Reason.RESPONSE_INCOMPLETE)
            return
        connection = self._connection
        assert connection is not None
        reader.end(orderly=reason is None and not connection.cut)
        self._read_all(reader)

    def _may_retry_stale(self) -> bool:
        return self._reused and not self._stale_retry and (not self._written or self._duplicable)

    def _retry_stale(self) -> None:
        """A reused connection was dead before any answer: the same request once more, on a fresh one, in the same budget."""
        connection = self._connection
        assert connection is not None
        client = self._client
        now = self._next(self.phase)
        client.pool.observe_close(self._host, connection, now)
        connection.close()
        self._connection = None
        self._reader = None
        self._stale_retry = True
        self._reused = False
        self._written = False
        self._early = False
        self._write_fault = None
        client.stale_retry_count += 1
        self._resolve(now)  # the slot stays ours

    def _read_all(self, reader: ResponseReader, lagged: bool = False, cut: bool = False) -> None:
        """The response is over, one way or another; `cut` by us: then nothing new is begun."""
        self._next(READ)
        if reader.fault is not None:
            self._end(End.FAULT, reader.fault)
            return
        head = reader.head
        assert head is not None
        if self._early and self._reused and 200 <= head.status < 300:
            self._end(End.FAULT, Reason.RESPONSE_UNSOLICITED)
            return
        if head.status in REDIRECTS and reader.body_fault is None and not cut:
            self._on_redirect(reader, head, lagged)
        else:
            self._end(RESPONSE, _FAULT_REASON[reader.body_fault], lagged)

    def _on_redirect(self, reader: ResponseReader, head: Head, lagged: bool) -> None:
        """The receiver points elsewhere: a failed delivery. `net.redirects` knows flights that follow."""
        self._end(End.RESPONSE, Reason.REDIRECT_DISABLED, lagged)

    # ------------------------------------------------------------------------------------------------- ends

    def on_limit(self, now: float, lagged: bool) -> None:
        """The limit in force is over."""
        if self._ended:
            return
        self._next(self.phase, now)
        reader = self._reader
        if reader is not None and reader.head is not None:
            # The head is whole: the status stands, whatever limit cut the body.
            reader.time_out()
            self._read_all(reader, lagged, cut=True)
        elif self._write_fault is not None:
            self._end(End.FAULT, self._write_fault, lagged=lagged)
        elif self._deadline_at <= min(self._phase_at, self._total_at):
            self._end(End.DEADLINE, Reason.DEADLINE_EXPIRED, lagged=lagged)
        elif self._host.via is not None and self.phase in (DNS, CONNECT):
            self._end(End.FAULT, Reason.PROXY_TIMEOUT, lagged=lagged)
        elif self.phase is DNS and self._client.names.is_waiting(self._host.target.host):
            self._end(End.FAULT, Reason.DNS_OVERLOAD, lagged=lagged)  # nobody has been asked: our queue is the cause
        elif self._phase_at <= self._total_at:
            self._end(End.LIMIT, self._limit_reason(), lagged=lagged)
        else:
            self._end(End.TOTAL, Reason.TOTAL_TIMEOUT, lagged=lagged)

    def look_again(self) -> None:
        """Read what has arrived: bytes that are here must not lose against a limit."""
        if self._connection is not None and self._reader is not None:
            self._connection.read_now()

    def extend(self, lag: float) -> None:
        """Our loop was late by `lag` seconds: the endpoint is given them back, once over at most, never past a deadline."""
        more = min(lag, self.limit_length - self.extended)
        if more > 0:
            self.extended += more
            self._phase_at += more
            self._total_at += more
            self._connect_at += more
            self.limit_at = min(self._phase_at, self._total_at, self._deadline_at)

    def cancel_by_caller(self) -> None:
        """The awaiting task was cancelled; nothing happens when the attempt ended in the same turn of the loop."""
        self._cancel(Reason.CANCELLED)

    def cancel_by_client(self) -> None:
        """The client closes; whoever awaits gets a `cancelled` attempt, or the response when its head is here."""
        reader = self._reader
        if self._ended or reader is None or reader.head is None or self._policy.require_complete_body:
            self._cancel(Reason.CLIENT_CLOSED)
        else:
            reader.end(orderly=False)
            self._read_all(reader, cut=True)

    def _cancel(self, reason: Reason) -> None:
        if not self._ended:
            self._next(self.phase)
            self._end(End.CANCELLED, reason)

    def _limit_reason(self) -> Reason:
        if self.phase is POOL:
            return Reason.POOL_FULL if self._client.pool.leases.is_starved(self._host) else Reason.POOL_HOST_FULL
        return _LIMIT_REASON[self.phase]

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

    def _end(self, end: End, reason: Reason, lagged: bool = False) -> None:
        """Settle everything this attempt holds, then tell."""
        assert not self._ended, "an attempt ends once"
        self._ended = True
        client = self._client
        client.flights.discard(self)
        now = self._mark
        self._spent.setdefault(self.phase, 0.0)  # an early answer may end in a phase that took no time
        reader = self._reader
        connection = self._connection
        if end is RESPONSE:
            assert reader is not None
            assert reader.head is not None
            if reader.body_fault is None and 200 <= reader.head.status < 300:
                verdict = _OK[reader.head.status]
            else:
                verdict = self._classify(end, reason)
        else:
            verdict = self._classify(end, reason)
        attempt = self._attempt(verdict, now, lagged)
        self._settle(reader, connection, end, now)
        done = self.done
        if not done.done():
            done.set_result(attempt)
        self._tell(attempt)

    def _tell(self, attempt: Attempt) -> None:
        self._client.finished(attempt, self._endpoint_id, self._tenant)

    def _classify(self, end: End, reason: Reason) -> Verdict:
        reader = self._reader
        started = self._stale_retry or (
            self._connection is not None and self._connection.bytes_sent > 0 and reader is not None
        )
        return classify(
            Evidence(
                end,
                self.phase,
                reason,
                status=None if reader is None or reader.head is None else reader.head.status,
                request_started=started,
                body_fault=None if reader is None else reader.body_fault,
                require_complete_body=self._policy.require_complete_body,
            )
        )

    def _attempt(self, verdict: Verdict, now: float, lagged: bool) -> Attempt:
        reader = self._reader
        head = None if reader is None else reader.head
        connection = self._connection
        if connection is not None:
            address: str | None = connection.peer
        else:
            address = self.address if self._dial is None else self._dial.tried
            if address is not None:
                address = peer_text(address, self._port)
        return attempt_record(
            verdict,
            None if head is None else head.status,
            self._host.target.origin,
            address,
            now - self._started,
            self._spent,
            self._reused,
            self._stale_retry,
            0 if connection is None or reader is None else connection.bytes_sent,
            () if head is None else head.fields,
            b"" if reader is None else reader.body or reader.instead,
            None if reader is None else reader.body_fault,
            self._started_wall / 1_000_000,
            lagged,
        )

    def _settle(self, reader: ResponseReader | None, connection: Connection | None, end: End, now: float) -> None:
        """Give back what is held. Nothing here waits, so no cancellation can come between."""
        client = self._client
        pool = client.pool
        if self._dial is not None:
            self._dial.cancel()
            self._dial = None
        elif self._tunnel is not None:
            self._tunnel.cancel()
            self._tunnel = None
        elif self.phase is DNS:
            via = self._host.via
            client.names.forget_listener(self._host.target.host if via is None else via.host, self.on_resolved)
        self._connection = None
        self._reader = None
        if self._holds_slot:
            self._release(reader, connection, end is RESPONSE, now)
        elif self._entered or self._key is None:
            pool.abandon(self._host, self._endpoint_id, self)
        if self._entered:
            self._entered = False
            assert self._key is not None
            heir = client.bulkhead.leave(self._key)
        elif self._permit is not None:
            heir = client.bulkhead.abandon(self._permit)
            self._permit = None
        else:
            heir = None
        if heir is not None:
            pool.later(heir.on_admitted)
            pool.run_todo()

    def _release(
        self, reader: ResponseReader | None, connection: Connection | None, answered: bool, now: float
    ) -> None:
        """End the lease; a connection whose response was whole is kept."""
        pool = self._client.pool
        self._holds_slot = False
        keep = False
        if connection is not None and answered and reader is not None:
            connection.served_count += 1
            if reader.reusable and self._written and not connection.closed:
                connection.idle_since = now
                connection.usable_until = pool.keep_until(self._host, connection, reader.head, now)
                keep = connection.usable_until > now
        pool.give_back(self._host, self._endpoint_id, connection, keep)


_FAULT_REASON: Final[dict[BodyFault | None, Reason]] = {
    None: Reason.OK,
    BodyFault.INCOMPLETE: Reason.RESPONSE_INCOMPLETE,
    BodyFault.TIMEOUT: Reason.RESPONSE_TIMEOUT,
    BodyFault.TOO_LARGE: Reason.RESPONSE_TOO_LARGE,
    BodyFault.PROTOCOL: Reason.RESPONSE_PROTOCOL_ERROR,
}
