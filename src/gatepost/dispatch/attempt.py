"""One delivery, once: body, signature, request, decision, result. Reads from top to bottom, and decides nothing itself.

`delivery.decide` says what follows and `dispatch.settle` stores it; what is not stored is attempted again, because the row
never left the store. Run by the worker as one task per attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol, assert_never

from gatepost.clock import Clock, Entropy
from gatepost.deadline.value import NANOSECONDS, Deadline
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.decide import (
    OUR_FAULT_DELAY,
    Complete,
    DeadLetter,
    Decision,
    Defer,
    RetryAt,
    Why,
    decide,
    uses_attempt,
)
from gatepost.delivery.ids import DELIVERY, EVENT, encode_id
from gatepost.delivery.outcome import Blame
from gatepost.delivery.policy import ClientPolicy
from gatepost.dispatch.attempt_limits import LimitsTold
from gatepost.dispatch.bodies import Bodies
from gatepost.dispatch.catalogue import Catalogue, Listed
from gatepost.dispatch.limits import DispatchLimits, Flying
from gatepost.dispatch.notices import Notices
from gatepost.dispatch.policy_watch import PolicyWatch
from gatepost.dispatch.round import Start
from gatepost.dispatch.settle import Result
from gatepost.dispatch.streaks import Streaks
from gatepost.errors import StoreError
from gatepost.net.observation import observation_of
from gatepost.net.tls import TLSProfile
from gatepost.store.rows import (
    RESPONSE_SNIPPET_MAX,
    AttemptRow,
    DeadRow,
    DoneRow,
    EventBody,
    RetryRow,
    Row,
    RowKey,
    endpoint_of,
)
from gatepost.telemetry import Observer, SpanIds, Tracing, delivery_record
from gatepost.wire.phases import SETUP_PHASES
from gatepost.wire.trace_context import headers_of

BODY_RETRY: Final = 1.0
"""Seconds before a row whose body could not be read is offered again."""

_SECOND_US: Final = 1_000_000
_log = logging.getLogger("gatepost.dispatch")


class Client(Protocol):
    """What an attempt needs of `DispatchClient`."""

    async def deliver_admitted(
        self,
        url: str,
        payload: object,
        headers: Mapping[str, str] | None = None,
        *,
        endpoint_id: str | None = None,
        tenant: str | None = None,
        content_type: str = "application/json",
        policy: ClientPolicy | None = None,
        tls: TLSProfile | None = None,
        deadline: Deadline | None = None,
        deduplicates: bool = True,
    ) -> Attempt:
        """One attempt; never raises for the network."""
        ...


class Desk(Protocol):
    """Where results go: the worker."""

    def right_until(self, start: Start, epoch: int, budget: float) -> float | None:
        """Monotonic seconds until which an attempt of `budget` seconds may start; 0.0: not now, None: nobody could object."""
        ...

    def held_back(self, start: Start) -> None:
        """It had no right to start, and did not. Instead of all others."""
        ...

    def finished(self, start: Start) -> None:
        """The attempt is over; its slots are free. First."""
        ...

    def deferred(self, start: Start, until: int) -> None:
        """Nothing is to be stored; the row waits as it was."""
        ...

    def result(self, result: Result) -> None:
        """To be stored."""
        ...

    def disable(self, listed: Listed, code: str) -> None:
        """The endpoint must be disabled."""
        ...

    def verified(self, listed: Listed) -> None:
        """An unverified endpoint's certificate was right."""
        ...

    def event_missing(self, start: Start) -> None:
        """The store has the row but not its event."""
        ...


class _Made(NamedTuple):
    """What is told of an attempt beside its end."""

    event_id: str
    """As it was sent."""
    started_at: int
    flying: Flying
    span: SpanIds | None


class AttemptRunner:
    """Runs attempts. `store_time` is UTC microseconds by the store's clock; `worker` names this process in the log of attempts."""

    def __init__(
        self,
        client: Client,
        catalogue: Catalogue,
        bodies: Bodies,
        desk: Desk,
        streaks: Streaks,
        limits: DispatchLimits,
        watch: PolicyWatch,
        notices: Notices,
        observer: Observer | None,
        clock: Clock,
        entropy: Entropy,
        store_time: Callable[[], int],
        worker: str,
        policy_version: Callable[[], int] = lambda: 0,
        tracing: Tracing | None = None,
    ) -> None:
        self._client = client
        self._catalogue = catalogue
        self._bodies = bodies
        self._desk = desk
        self._streaks = streaks
        self._limits = limits
        self._watch = watch
        self._notices = notices
        self._observer = observer
        self._clock = clock
        self._entropy = entropy
        self._store_time = store_time
        self._worker = worker
        self._policy_version = policy_version
        self._tracing = tracing
        self._told = LimitsTold()

    async def run(self, start: Start, epoch: int) -> None:
        """One attempt from start to result. `epoch` is that of the row's part now."""
        row = start.row
        listed = self._catalogue.get(endpoint_of(row.lane))
        started_at = self._store_time()
        if listed is None:
            self._defer(start, started_at)  # removed this moment; its rows are about to be cancelled
            return
        if started_at > listed.rules.backoff.window_end(row.born_at):
            self._give_up_unsent(start, epoch, listed, started_at)
            return
        try:
            event = self._bodies.hold_nowait(row.event_id) or await self._bodies.hold(row.event_id)
        except (StoreError, asyncio.CancelledError) as error:
            self._defer(start, self._store_time() + round(BODY_RETRY * _SECOND_US))
            if isinstance(error, asyncio.CancelledError):
                raise
            self._notices.trouble("body_unreadable", error)
            return
        if event is None:
            self._desk.finished(start)
            self._desk.event_missing(start)
            return
        # Asked last, after every await: we may have been stopped for longer than the part was ours.
        until = self._desk.right_until(start, epoch, listed.policy.attempt_budget)
        if until == 0.0:
            self._bodies.release(row.event_id)
            self._desk.held_back(start)
            return
        held_until = self._limits.held_until(listed)
        if held_until:  # its breaker opened since the row was taken
            self._bodies.release(row.event_id)
            self._defer(start, held_until)
            return
        flying, ended = self._limits.begin(listed), False
        try:
            webhook_id = encode_id(EVENT, row.event_id)
            deadline = None
            if until is not None and start.lane.fifo:  # what is ordered must have ended when the next owner may begin
                deadline = Deadline.until(round(until * NANOSECONDS), name="part lease", clock=self._clock)
            span = None
            if self._tracing is not None:
                span = self._tracing.attempt(
                    row.event_id, row.delivery_id, listed.number, row.born_at, started_at, event.trace
                )
            attempt = await self._send(listed, event, webhook_id, flying.policy, deadline, span)
            self._watch.ended(flying, listed, attempt)
            closed, ended = self._limits.end(flying, listed, attempt), True
        except asyncio.CancelledError:
            self._defer(start, self._store_time())  # the client has said what became of it; the row waits as it was
            raise
        except Exception as error:  # noqa: BLE001 - a record we cannot use is our fault: no attempt of the endpoint's
            _log.exception("delivery %s could not be attempted", encode_id(DELIVERY, row.delivery_id))
            self._notices.trouble("attempt_failed", error)
            self._defer(start, self._store_time() + round(OUR_FAULT_DELAY * _SECOND_US))
            return
        finally:
            if not ended:
                self._limits.abandon(flying)
            self._bodies.release(row.event_id)
        ended_at = self._store_time()
        decision = decide(
            attempt,
            listed.rules,
            used=row.attempt,
            born_at=row.born_at,
            now=ended_at,
            u=self._entropy.uniform(),
            breaker_closed=closed,
        )
        self._carry_out(
            start, epoch, listed, event, attempt, decision, _Made(webhook_id, started_at, flying, span), ended_at
        )

    async def _send(
        self,
        listed: Listed,
        event: EventBody,
        webhook_id: str,
        policy: ClientPolicy,
        deadline: Deadline | None,
        span: SpanIds | None,
    ) -> Attempt:
        endpoint = listed.endpoint
        headers = listed.request_headers(webhook_id, self._clock.wall_us(), event.body)
        if endpoint.send_trace:
            headers = _with_trace(headers, event, span)
        return await self._client.deliver_admitted(
            endpoint.url,
            event.body,
            headers,
            endpoint_id=endpoint.id,
            tenant=endpoint.tenant,
            content_type=event.content_type,
            policy=policy,
            tls=listed.tls,
            deadline=deadline,
            deduplicates=endpoint.deduplicates,
        )

    def _carry_out(
        self,
        start: Start,
        epoch: int,
        listed: Listed,
        event: EventBody,
        attempt: Attempt,
        decision: Decision,
        made: _Made,
        ended_at: int,
    ) -> None:
        row = start.row
        key = RowKey(row.lane, row.due_at, row.delivery_id)
        change: DoneRow | RetryRow | DeadRow | None
        match decision:
            case Complete():
                word = "complete"
                change = DoneRow(key, row.event_id)
            case RetryAt():
                word = "retry_at"
                change = RetryRow(
                    key,
                    row.part,
                    row.attempt,
                    row.attempt + decision.counts,
                    # The place of a FIFO row is its due time: it stays, and the lane waits instead.
                    row.due_at if start.lane.fifo else decision.due,
                )
            case DeadLetter():
                word = "dead_letter"
                used = row.attempt + decision.counts
                change = _dead(key, row, used, decision.why, attempt.outcome, attempt.status, ended_at)
            case Defer():
                word = "defer"
                change = None
            case _ as never:
                assert_never(never)
        log = self._log_row(row, listed, attempt, word, made.started_at)
        self._desk.finished(start)
        if isinstance(decision, Defer):
            self._desk.deferred(start, decision.until)
            if decision.why is not Why.NOT_ADMITTED:  # that is counted, and nothing happened that a log could show
                self._desk.result(Result(None, epoch, None, log))
        else:
            due = decision.due if isinstance(decision, RetryAt) else None
            self._desk.result(Result(start, epoch, change, log, due))
        if isinstance(decision, Complete):
            self._streaks.took(listed.number)
        elif uses_attempt(attempt) and attempt.blame is not Blame.US:
            self._streaks.failed(listed, ended_at)
        if isinstance(decision, RetryAt | DeadLetter):
            self._tell_owner(listed, decision)
        # One change of the record at a time: to disable it says more.
        disables = isinstance(decision, DeadLetter) and decision.disable is not None
        if listed.endpoint.unverified is not None and attempt.phase not in SETUP_PHASES and not disables:
            self._desk.verified(listed)
        if self._observer is not None or self._tracing is not None:
            self._observe(row, epoch, listed, event, attempt, decision, word, made, ended_at)

    def _defer(self, start: Start, until: int) -> None:
        self._desk.finished(start)
        self._desk.deferred(start, until)

    def _give_up_unsent(self, start: Start, epoch: int, listed: Listed, now: int) -> None:
        """The window closed while the row waited (its endpoint was paused, or we were away)."""
        row = start.row
        key = RowKey(row.lane, row.due_at, row.delivery_id)
        self._desk.finished(start)
        self._desk.result(Result(start, epoch, _dead(key, row, row.attempt, Why.WINDOW_OVER, None, None, now), None))
        if self._observer is not None or self._tracing is not None:
            decision = DeadLetter(Why.WINDOW_OVER, counts=False)
            self._observe(row, epoch, listed, None, None, decision, "dead_letter", None, now)

    def _tell_owner(self, listed: Listed, decision: RetryAt | DeadLetter) -> None:
        endpoint = listed.endpoint
        if isinstance(decision, DeadLetter) and decision.disable is not None:
            self._desk.disable(listed, decision.disable)
        elif decision.notice is not None:
            self._notices.owner_must_act(endpoint.tenant, endpoint.id, decision.notice)

    def _log_row(self, row: Row, listed: Listed, attempt: Attempt, decision: str, started_at: int) -> AttemptRow:
        return AttemptRow(
            row.delivery_id,
            row.attempt + 1,
            row.event_id,
            listed.number,
            listed.endpoint.tenant,
            started_at,
            attempt.outcome,
            attempt.phase,
            attempt.reason,
            attempt.retry_safety,
            attempt.blame,
            attempt.status,
            round(attempt.elapsed * 1_000_000),
            " ".join([f"{phase}:{seconds * 1e6:.0f}" for phase, seconds in attempt.phases.items()]),
            attempt.address,
            attempt.body[:RESPONSE_SNIPPET_MAX],
            decision,
            self._worker,
        )

    def _observe(
        self,
        row: Row,
        epoch: int,
        listed: Listed,
        event: EventBody | None,
        attempt: Attempt | None,
        decision: Decision,
        word: str,
        made: _Made | None,
        ended_at: int,
    ) -> None:
        """`made` None: nothing was tried."""
        endpoint = listed.endpoint
        due_at = decision.due if isinstance(decision, RetryAt) else None
        started_at = ended_at if made is None else made.started_at
        limits = None if made is None else made.flying.tracked.limits
        try:
            span = None if made is None else made.span
            if span is None and self._tracing is not None:
                trace = None if event is None else event.trace
                span = self._tracing.attempt(
                    row.event_id, row.delivery_id, listed.number, row.born_at, started_at, trace
                )
            # By place: fifteen names cost twice what the record itself does.
            observation = delivery_record(
                encode_id(EVENT, row.event_id) if made is None else made.event_id,
                encode_id(DELIVERY, row.delivery_id),
                endpoint.id,
                endpoint.tenant,
                event.type if event is not None else "",
                row.attempt + 1,
                word,
                decision.why,
                None if due_at is None else (due_at - ended_at) / 1e6,
                max(0, started_at - row.due_at) / 1e6,
                None if attempt is None else observation_of(attempt, endpoint.id, endpoint.tenant),
                row.attempt,
                row.born_at,
                started_at,
                ended_at,
                due_at,
                row.part,
                epoch,
                self._worker,
                self._policy_version(),
                None if made is None else self._told.of(listed, made.flying),
                None if limits is None else limits.breaker_state,
                None if limits is None else limits.cap,
                0 if event is None else len(event.body),
                None if event is None else event.trace,
                span,
            )
            if self._observer is not None:
                self._observer.delivery_decided(observation)
            if self._tracing is not None:
                self._tracing.delivery_decided(observation)
        except Exception:  # noqa: BLE001 - users' code: its bug must not end a delivery
            _log.exception("an observer raised; deliveries go on")


def _with_trace(headers: Mapping[str, str], event: EventBody, span: SpanIds | None) -> dict[str, str]:
    """The attempt's own context, or the publisher's where nobody traces here. What the owner set is left alone."""
    if span is None:
        own = headers_of(event.trace)
    elif span.tracestate:
        own = {"traceparent": span.traceparent, "tracestate": span.tracestate}
    else:
        own = {"traceparent": span.traceparent}
    if any(name.lower() in ("traceparent", "tracestate") for name in headers):
        return dict(headers)
    return {**headers, **own}


def _dead(key: RowKey, row: Row, attempts: int, why: Why, outcome: str | None, status: int | None, now: int) -> DeadRow:
    return DeadRow(key, row.part, row.attempt, attempts, row.event_id, why, outcome, status, now)
