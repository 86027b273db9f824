"""One attempt on its way, a state machine driven by callbacks: the second half (`net.set_up` is the first), write, wait and read.

It collects evidence and ends exactly once, on whatever comes first: a response, a fault, a limit (`net.sweeper` calls
`on_limit`), or a cancellation. `delivery.outcome` says what it came to.
"""

from __future__ import annotations

from typing import Final

from gatepost.delivery.attempt import Attempt, attempt_record
from gatepost.delivery.outcome import End, Evidence, Verdict, classify
from gatepost.net.connection import Connection, peer_text
from gatepost.net.set_up import CONNECT, DNS, POOL, READ, WAIT_, WRITE, SetUp
from gatepost.net.sweeper import CAME_ROUND
from gatepost.wire.exchange import ResponseReader
from gatepost.wire.head import Head
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import BodyFault, Reason
from gatepost.wire.redirects import REDIRECTS

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

RESPONSE: Final = End.RESPONSE


class Flight(SetUp):
    """The machine of one attempt. `start` it once; `done` resolves to the `Attempt`."""

    __slots__ = ()

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
