"""`Dispatcher`: publish events, register endpoints, and run deliveries. Wires the parts of `dispatch` and holds their lifetimes.

`async with Dispatcher.open(url) as gp:` owns the store, the client and the queue until the block ends; `gp.run()` delivers until
cancelled or drained. It decides nothing itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from logging import getLogger
from threading import get_ident
from typing import Any, Final

from gatepost.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.ids import EVENT, IdSource, encode_id
from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.records import Endpoint, Receipt
from gatepost.dispatch import head_holds
from gatepost.dispatch.attempt import AttemptRunner
from gatepost.dispatch.bodies import Bodies
from gatepost.dispatch.catalogue import Catalogue, Listed
from gatepost.dispatch.endpoint_looks import EndpointLooks
from gatepost.dispatch.endpoint_memory import EndpointMemory
from gatepost.dispatch.endpoint_search import EndpointSearch
from gatepost.dispatch.endpoints import Endpoints
from gatepost.dispatch.event_types import EventTypes
from gatepost.dispatch.fan_out import FanOuts
from gatepost.dispatch.intake import Intake
from gatepost.dispatch.learned import LearnedLimits
from gatepost.dispatch.leases import LeaseKeeper
from gatepost.dispatch.limits import DispatchLimits
from gatepost.dispatch.loop_lag import LoopLag
from gatepost.dispatch.maintenance import Maintenance
from gatepost.dispatch.moves import Moves
from gatepost.dispatch.new_event import EventDraft, draft_event
from gatepost.dispatch.notices import Notices
from gatepost.dispatch.operational import operational_event
from gatepost.dispatch.operations import DeadLetters, Deliveries
from gatepost.dispatch.outboxes import OutboxFollower
from gatepost.dispatch.own_outbox import OwnOutbox
from gatepost.dispatch.policies import Policies
from gatepost.dispatch.policy_reports import PolicyReports
from gatepost.dispatch.policy_view import NOBODY, PolicyView
from gatepost.dispatch.policy_watch import PolicyWatch
from gatepost.dispatch.publisher import outbox_event, outbox_receipt
from gatepost.dispatch.rollout import RolloutLoop
from gatepost.dispatch.round import SchedulerLimits
from gatepost.dispatch.scheduler import LaneScheduler
from gatepost.dispatch.settings import DispatcherSettings as DispatcherSettings
from gatepost.dispatch.settings import DispatcherStatistics as DispatcherStatistics
from gatepost.dispatch.settle import Result, SettleBuffer
from gatepost.dispatch.store_time import StoreTime
from gatepost.dispatch.streaks import Streaks
from gatepost.dispatch.strict import check_ordered, doubt_of
from gatepost.dispatch.supervisor import Supervisor
from gatepost.dispatch.tasks import TaskSet
from gatepost.dispatch.tenant_limits import TenantLimiter
from gatepost.dispatch.tenants import Tenants
from gatepost.dispatch.worker import Worker
from gatepost.errors import Overloaded, StoreError
from gatepost.net.client import DispatchClient
from gatepost.net.proxy import ProxyConfig
from gatepost.net.resolver import Resolver
from gatepost.store.open import open_store
from gatepost.store.outbox.source import OutboxSource, open_sources
from gatepost.store.outbox.transactional import TransactionalOutbox
from gatepost.store.port import Store
from gatepost.store.rows import SUB_FIFO_FIRST, EnqueueResult, Node, OutboxEvent, Row
from gatepost.telemetry import Observer, OperationalObservation, PublishSpan, Tracing
from gatepost.wire.egress import EgressPolicy
from gatepost.wire.payload import payload_bytes

TOLD_AT_ONCE: Final = 1_000
"""Endpoints whose caps are looked at before others may run."""
TEST_TYPE: Final = "gatepost.test"
"""Event type of `endpoints.test`."""

_log = getLogger("gatepost.dispatch")


class Dispatcher:
    """Made by `open`. Construct it directly only with a store and a client of your own (tests do), then `prepare` and `aclose`."""

    def __init__(
        self,
        store: Store,
        client: DispatchClient,
        *,
        settings: DispatcherSettings | None = None,
        observer: Observer | None = None,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
        node: str | None = None,
        outboxes: Sequence[OutboxSource] = (),
        tracing: Tracing | None = None,
    ) -> None:
        self.settings: Final = settings or DispatcherSettings()
        self.store: Final = store
        self.client: Final = client
        if self.settings.slots > client.policy.max_connections:
            _log.warning(
                "slots=%d is more than max_connections=%d: attempts will wait for connections; write slots=%d, or raise max_connections",
                self.settings.slots,
                client.policy.max_connections,
                client.policy.max_connections,
            )
        if store.capabilities.shared and (doubt := doubt_of(client.policy.attempt_budget)) is not None:
            _log.warning("%s", doubt)
        self._clock = clock
        self._store_time = StoreTime(clock)
        node = node or f"{self.settings.name or os.getpid()}-{entropy.token(4).hex()}"
        self._notices = Notices(observer, self._store_time)
        self.lag: Final = LoopLag(clock)
        self._tasks = TaskSet(self._notices.trouble)
        self._view = PolicyView(client.policy, node, self.settings.limits.adapt, self.settings.limits.breaker)
        self._catalogue = Catalogue(
            store, self._view, client.check_url, clock, self._endpoint_changed, Moves(clock, client.forget).left
        )
        self._memory = EndpointMemory(store, self._notices, self._is_registered)
        self._notices.tell_tenant = self._tell_tenant
        self._bodies = Bodies(store, self.settings.body_bytes_max)
        host_cap = None if self.settings.auto_host_cap else client.policy.max_per_host
        self.limits: Final = DispatchLimits(
            self.settings.limits,
            self._catalogue,
            self._memory,
            self._notices,
            self._store_time,
            entropy,
            self.settings.slots,
        )
        self._scheduler = LaneScheduler(
            SchedulerLimits(self.settings.slots, host_cap), self.limits.settings, self.limits.host_limit
        )
        self._leases = LeaseKeeper(
            store,
            Node(node, self.settings.address, self.settings.weight),
            clock,
            self._store_time,
            self._parts_won,
            self._parts_lost,
            self._renewed,
        )
        self._settle = SettleBuffer(store, self._stored, self._leases.fenced, self._notices.trouble)
        self._worker = Worker(
            store,
            self._scheduler,
            self._leases,
            self._settle,
            self._tasks,
            self._bodies,
            self.lag,
            self._notices,
            self._store_time,
            clock,
            self.settings.slots,
            self._disable,
            self._mark_verified,
        )
        self._leases.load = self._worker
        self.limits.steered = self._worker
        self._watch = PolicyWatch(
            self._view,
            self._memory,
            self.limits.p99,
            self._store_time,
            self._scheduler.host_in_flight,
        )
        self.limits.turned = self._watch.turned
        self._streaks = Streaks(self._memory, self._catalogue, self._worker.disable, self.settings.disable_after)
        self._worker.runner = AttemptRunner(
            client,
            self._catalogue,
            self._bodies,
            self._worker,
            self._streaks,
            self.limits,
            self._watch,
            self._notices,
            observer,
            clock,
            entropy,
            self._store_time,
            node,
            self._policy_version,
            tracing,
        )
        maintenance = Maintenance(
            store,
            self._catalogue,
            self._scheduler,
            self._worker,
            self._leases,
            self._notices,
            self._store_time,
            clock,
            self.settings.retention,
            client.policy.attempt_budget,
        )
        self.event_types: Final = EventTypes(store, self._store_time)
        self._catalogue.on_event_type = self.event_types.refresh
        self._outboxes = [
            OutboxFollower(
                source,
                self._take_outbox,
                self._admit,
                self.event_types.check,
                self._owns_part_0,
                self._notices,
                self._store_time,
                clock,
                entropy,
                max_payload=self.settings.max_payload,
            )
            for source in outboxes
        ]
        self._supervisor = Supervisor(
            store,
            self._catalogue,
            self._worker,
            self._leases,
            self._settle,
            maintenance,
            self.lag,
            self._notices,
            self._followers(clock, entropy),
            self._expand,
            self._memory,
            self.limits,
            grace=self.settings.grace,
            attempt_budget=client.policy.attempt_budget,
        )
        self._limiter = TenantLimiter(store, self._catalogue, clock)
        self._transactional = TransactionalOutbox()
        self._tracing = tracing
        self._fan_outs: FanOuts | None = None
        self._intake: Intake | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self.learned: Final = LearnedLimits(store, self._catalogue, self.limits)
        self.endpoints: Final = Endpoints(
            store,
            self._catalogue,
            self._view,
            client,
            self._store_time,  # what was there before an event is told by its id
            entropy,
            self._try_out,
            self._withdraw,
        )
        self.policies: Final = Policies(
            store,
            self._catalogue,
            self._view,
            self.endpoints,
            self.limits.endpoint,
            self.settings.limits.adapt.mode,
            self._notices,
            self._store_time,
            self._policy_in_force,
        )
        self._catalogue.on_policy = self.policies.refresh
        self.policy_reports: Final = PolicyReports(
            store, self._catalogue, self._view, self._watch, self._memory, self._owns, self._store_time
        )
        self.search: Final = EndpointSearch(self._catalogue)
        self.looks: Final = EndpointLooks(store, self.learned, self._watch, self._owns)
        self.rollout: Final = RolloutLoop(
            store,
            self.policies,
            self.policy_reports,
            self._watch,
            self._notices,
            self._store_time,
            self._owns_part_0,
            lambda: self._numbers_of(self._owned_parts()),
        )
        self.deliveries: Final = Deliveries(store, self._worker, self._store_time, self._is_registered)
        self.dead_letters: Final = DeadLetters(store, self._worker, self._store_time, self._is_registered)
        self.tenants: Final = Tenants(
            store, self._catalogue, self._worker, self._store_time, client.policy.attempt_budget, outboxes
        )

    @classmethod
    def open(
        cls,
        url: str,
        *,
        policy: ClientPolicy | None = None,
        egress: EgressPolicy | None = None,
        resolver: Resolver | None = None,
        proxy: ProxyConfig | None = None,
        observer: Observer | None = None,
        keys: Sequence[str] | None = None,
        run: bool = False,
        settings: DispatcherSettings | None = None,
        outboxes: Sequence[str] = (),
        tracing: Tracing | None = None,
    ) -> AbstractAsyncContextManager[Dispatcher]:
        """A dispatcher on the store of `url` (`sqlite:///gatepost.db`, `postgresql://user@host/name`, `memory://`), drained at the end.

        `policy`, `egress`, `resolver`, `proxy` and `observer` are those of `DispatchClient`; `keys` seal endpoint secrets in the
        store. `outboxes` are the URLs of producers' databases to follow (`postgresql://…`, `sqlite:///app.db`), where `publish`
        with a connection writes. `tracing` makes spans (`gatepost.contrib.opentelemetry.Tracing`). `run=True` delivers in the
        background; otherwise `await gp.run()`. Raises `ConfigurationError` for impossible settings, `StoreLocked` when another
        dispatcher owns the file, `SchemaMismatch` and `StoreError`.
        """
        chosen = settings or DispatcherSettings()
        limits = policy or ClientPolicy()
        sources = open_sources(outboxes, url)
        if chosen.auto_host_cap:
            limits = limits.evolve(max_per_host=min(limits.max_connections, max(8, chosen.slots // 4)))

        @asynccontextmanager
        async def opened() -> AsyncIterator[Dispatcher]:
            client = DispatchClient(limits, egress=egress, resolver=resolver, proxy=proxy, observer=observer)
            try:
                store = await open_store(url, keys=keys)
                try:
                    dispatcher = cls(
                        store, client, settings=chosen, observer=observer, outboxes=sources, tracing=tracing
                    )
                    try:
                        await dispatcher.prepare()
                        if run:
                            dispatcher.run_in_background()
                        yield dispatcher
                    finally:
                        await dispatcher.aclose()
                finally:
                    await store.aclose()
            finally:
                await client.aclose()

        return opened()

    async def prepare(self) -> None:
        """Load the registry. Once, before anything else."""
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        await self._leases.ask_time()  # before anything is due, expires, or gets an id that says when it was made
        await self._catalogue.load()
        await self.event_types.load()
        ids = IdSource(await self.store.new_node(), self._store_time)
        self._fan_outs = FanOuts(
            self.store,
            self._catalogue,
            ids,
            self._owned_parts,
            self._hand_over,
            self._notices,
            self._store_time,
        )
        if not self.store.capabilities.shared:  # else the clock is a server's, and the lanes are too many to look at
            await self._fan_outs.look_ahead()
        self._intake = Intake(
            self.store,
            self._fan_outs,
            self._bodies,
            ids,
            self._limiter,
            self._notices,
            self._store_time,
            self._hand_over,
            publish_timeout=self.settings.publish_timeout,
        )
        self._supervisor.prepare()

    # -------------------------------------------------------------------------------------------- publishing

    async def publish(
        self,
        type: str,  # noqa: A002 - the field's own name
        payload: object,
        *,
        tenant: str = "default",
        idempotency_key: str | None = None,
        ordering_key: str | None = None,
        priority: str = "normal",
        not_before: datetime | float | None = None,
        content_type: str = "application/json",
        connection: object = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> Receipt:
        """Store an event and one delivery for each of the tenant's endpoints that take its type; durable when this returns.

        `payload` is bytes, sent as they are, or what JSON can hold. `ordering_key` keeps events of one key in order, `priority`
        is high, normal or bulk, `not_before` a time with its zone or seconds since 1970. Raises `TypeError` or `ValueError` for
        what cannot be published (`PayloadTooLarge`, `PayloadInvalid`), `IdempotencyConflict`, `LimitExceeded` for a tenant over its limits,
        `Overloaded` when the store does not take it within `publish_timeout`, `StoreFull` and `StoreError`.

        `connection` is yours and in a transaction (asyncpg, psycopg, SQLAlchemy): the event is written to the outbox of *your*
        database, exists once you commit, and is delivered by the dispatcher that has this database among its `outboxes`;
        duplicates and limits are then found there, so `Receipt.duplicate` and `deliveries` are None.

        `traceparent` and `tracestate` (W3C) link the deliveries to the trace of whoever publishes; None: to the span that is
        current, when this dispatcher traces. A malformed one is left out.
        """
        draft = self._draft(
            type,
            payload,
            tenant=tenant,
            idempotency_key=idempotency_key,
            ordering_key=ordering_key,
            priority=priority,
            not_before=not_before,
            content_type=content_type,
            traceparent=traceparent,
            tracestate=tracestate,
        )
        span = None
        if self._tracing is not None:
            draft, span = _begun(self._tracing, draft)
        try:
            if self.event_types.any:
                await self.event_types.check(draft.tenant, draft.type, draft.content_type, draft.body)
            if connection is not None:
                row = outbox_event(draft, self._store_time())
                receipt = outbox_receipt(await self._transactional.put_async(connection, row))
            else:
                receipt = await self._ready_intake().publish(draft)
        except BaseException as error:
            if span is not None:
                span.failed(error)
            raise
        if span is not None:
            span.stored(receipt.event_id, receipt.duplicate, receipt.deliveries)
        return receipt

    def publish_sync(
        self,
        type: str,  # noqa: A002 - the field's own name
        payload: object,
        *,
        tenant: str = "default",
        idempotency_key: str | None = None,
        ordering_key: str | None = None,
        priority: str = "normal",
        not_before: datetime | float | None = None,
        content_type: str = "application/json",
        connection: object = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> Receipt:
        """`publish` for synchronous code in another thread than the dispatcher's loop (a threadpool handler, for example).

        Raises as `publish`, and `RuntimeError` in the loop's own thread, which it would block for ever. Code without any loop
        uses `Publisher.open_sync`. With `connection` (sqlite3, psycopg, SQLAlchemy, Django) it is one INSERT in the calling
        thread, whichever that is.
        """
        if connection is not None:
            draft = self._draft(
                type,
                payload,
                tenant=tenant,
                idempotency_key=idempotency_key,
                ordering_key=ordering_key,
                priority=priority,
                not_before=not_before,
                content_type=content_type,
                traceparent=traceparent,
                tracestate=tracestate,
            )
            span = None
            if self._tracing is not None:
                draft, span = _begun(self._tracing, draft)
            try:
                self.event_types.check_now(draft.tenant, draft.type, draft.content_type, draft.body)
                stored = self._transactional.put(connection, outbox_event(draft, self._store_time()))
            except BaseException as error:
                if span is not None:
                    span.failed(error)
                raise
            receipt = outbox_receipt(stored)
            if span is not None:
                span.stored(receipt.event_id, None, None)
            return receipt
        loop = self._loop
        if loop is None:
            self._ready_intake()  # says how to open one
            raise RuntimeError("this Dispatcher is closed")
        if get_ident() == self._thread:
            raise RuntimeError("publish_sync would block the event loop it needs: write `await gp.publish(...)` here")
        publishing = self.publish(
            type,
            payload,
            tenant=tenant,
            idempotency_key=idempotency_key,
            ordering_key=ordering_key,
            priority=priority,
            not_before=not_before,
            content_type=content_type,
            traceparent=traceparent,
            tracestate=tracestate,
        )
        return asyncio.run_coroutine_threadsafe(publishing, loop).result()

    async def publish_batch(self, events: Sequence[Mapping[str, Any]]) -> Sequence[Receipt | Exception]:
        """Publish several: mappings with the arguments of `publish`. An event that cannot be taken yields its exception."""
        outcomes: list[Receipt | Exception | None] = []
        drafts: list[EventDraft] = []
        for event in events:
            try:
                draft = self._draft(**dict(event))
                if self.event_types.any:
                    await self.event_types.check(draft.tenant, draft.type, draft.content_type, draft.body)
                drafts.append(draft)
                outcomes.append(None)
            except (TypeError, ValueError) as error:
                outcomes.append(error)
        spans: list[PublishSpan] = []
        if self._tracing is not None:
            for at, draft in enumerate(drafts):
                drafts[at], span = _begun(self._tracing, draft)
                spans.append(span)
        try:
            results = await self._ready_intake().publish_many(drafts)
        except BaseException as error:
            for span in spans:
                span.failed(error)
            raise
        for span, result in zip(spans, results, strict=bool(spans)):
            _end(span, result)
        stored = iter(results)
        return [next(stored) if outcome is None else outcome for outcome in outcomes]

    def _draft(
        self,
        type: str,  # noqa: A002
        payload: object,
        *,
        tenant: str = "default",
        idempotency_key: str | None = None,
        ordering_key: str | None = None,
        priority: str = "normal",
        not_before: datetime | float | None = None,
        content_type: str = "application/json",
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> EventDraft:
        draft = draft_event(
            type,
            payload,
            tenant=tenant,
            idempotency_key=idempotency_key,
            ordering_key=ordering_key,
            priority=priority,
            not_before=not_before,
            content_type=content_type,
            max_payload=self.settings.max_payload,
            now_us=self._store_time(),
            traceparent=traceparent,
            tracestate=tracestate,
        )
        if draft.sub >= SUB_FIFO_FIRST and self.store.capabilities.shared:
            check_ordered(self._catalogue.takers(draft.tenant, draft.type))
        return draft

    def _ready_intake(self) -> Intake:
        if self._intake is None:
            raise RuntimeError("this Dispatcher is not open: use `async with Dispatcher.open(...)`")
        return self._intake

    # ----------------------------------------------------------------------------------------------- running

    async def run(self) -> None:
        """Deliver until cancelled or drained; drains on the way out. Raises `RuntimeError` when it is running already."""
        await self._supervisor.run()

    def run_in_background(self) -> None:
        """`run` as a task of the dispatcher, ended by `drain` or `aclose`."""
        self._supervisor.run_in_background()

    async def drain(self, grace: float | None = None) -> None:
        """Stop starting, wait up to `grace` seconds for attempts in flight (None: as set, else the attempt budget), settle, give
        the parts back. `run` then returns. Publishing goes on being durable."""
        await self._supervisor.drain(grace)

    def statistics(self) -> DispatcherStatistics:
        """A snapshot."""
        return DispatcherStatistics(
            running=self._supervisor.running,
            scheduler=self._scheduler.statistics(),
            attempts=replace(self._worker.counts),
            intake=replace(self._ready_intake().statistics),
            results_waiting=len(self._settle),
            store_failing=self._settle.failing,
            body_bytes=self._bodies.bytes,
            parts=len(self._leases.epochs),
            lease_seconds_left=self._leases.seconds_left,
            loop_lag_p99=self.lag.window.p99,
            loop_late=self.lag.late,
            oldest_attempt=self._worker.oldest_seconds,
            node=self._leases.node.name,
            draining=self._leases.node.draining,
            balanced=self._leases.balanced,
            share=self._leases.share.share.floor if self.store.capabilities.shared else self.store.capabilities.parts,
            clock_skew=self._store_time.skew_us / 1e6,
            clock_trusted=self._store_time.trusted,
            outboxes=tuple(follower.status for follower in self._outboxes),
        )

    def store_time(self) -> int:
        """UTC microseconds by the store's clock."""
        return self._store_time()

    @property
    def policy_trips(self) -> Mapping[tuple[str, str], int]:
        """Attempts that a limit tried in shadow would have met, by host and limit, since the start."""
        return self._watch.trips

    def lag_seconds(self) -> float:
        """How long the row that waits longest in this process' memory has been due. O(lanes): for status, not for metrics."""
        oldest = self._scheduler.oldest_due()
        return 0.0 if oldest is None else max(0.0, (self._store_time() - oldest) / 1e6)

    def startable_lag_seconds(self) -> float:
        """The same of rows that wait for this process alone: nothing holds their endpoint or its host, and both have room."""
        now = self._store_time()
        oldest = self._scheduler.oldest_startable(now)
        return 0.0 if oldest is None else max(0.0, (now - oldest) / 1e6)

    async def aclose(self) -> None:
        """Drain, and store what was accepted. The store and the client are closed by whoever opened them."""
        self._loop = None
        await self.tenants.aclose()
        await self._supervisor.aclose()
        if self._intake is not None:
            await self._intake.aclose()
        await self._bodies.aclose()

    # ---------------------------------------------------------------------------------------- between parts

    def _endpoint_changed(self, number: int) -> None:
        self._streaks.changed(number)
        self.limits.endpoint_changed(number)
        if not self._is_registered(number):
            self._watch.drop([number])
        if not self._is_registered(number) and number % self.store.capabilities.parts in self._leases.epochs:
            self._memory.forget(number)
        self._worker.endpoint_changed(number)

    def _policy_in_force(self, caps: bool) -> None:
        """Limits changed that are not asked for anew by each attempt: those of the client, and (`caps`) of endpoints."""
        policy = self._view.client_policy
        if policy is not self.client.policy:
            host_cap = policy.max_per_host
            if self.settings.auto_host_cap and host_cap == self._view.configured.max_per_host:
                self._scheduler.set_host_cap(None)
            elif host_cap != self.client.policy.max_per_host:
                self._scheduler.set_host_cap(host_cap)
            self.client.adopt(policy)
            self._worker.poke()
        self.limits.use_host_rules(self._view.shared(None, NOBODY).breaker)
        if caps:
            self._tasks.start(self._tell_caps())

    async def _tell_caps(self) -> None:
        for seen, number in enumerate(list(self._catalogue.numbers), 1):
            self._worker.endpoint_changed(number)
            if seen % TOLD_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _parts_won(self, parts: Collection[int]) -> None:
        numbers = self._numbers_of(parts)
        await self._memory.load(numbers)
        head_holds.restore(self._memory, numbers, self._scheduler.hold_head, self._store_time())
        await self._worker.adopt(parts)
        if self._fan_outs is not None:
            self._fan_outs.look()

    def _parts_lost(self, parts: Collection[int]) -> None:
        numbers = self._numbers_of(parts)
        for number in numbers:
            self._memory.drop(number)
        self.limits.drop(numbers)
        self._watch.drop(numbers)
        self._worker.drop(parts)

    def _renewed(self) -> None:
        self._worker.poke()

    def _stored(self, results: Sequence[Result]) -> None:
        self._worker.stored(results)
        head_holds.remember(self._memory, results, self._store_time())

    def _numbers_of(self, parts: Collection[int]) -> Sequence[int]:
        """Endpoints whose deliveries wait in these parts."""
        of, wanted = self.store.capabilities.parts, frozenset(parts)
        return [number for number in self._catalogue.numbers if number % of in wanted]

    def _tell_tenant(self, notice: OperationalObservation) -> None:
        timestamp = datetime.fromtimestamp(self._clock.wall_us() / 1e6, UTC).isoformat(timespec="milliseconds")
        draft = operational_event(notice, timestamp.replace("+00:00", "Z"))
        if draft is not None and self._intake is not None and self._catalogue.takers(draft.tenant, draft.type):
            self._tasks.start(self._publish_own(self._intake, draft))

    async def _publish_own(self, intake: Intake, draft: EventDraft) -> None:
        try:
            await intake.publish_own(draft)
        except (StoreError, Overloaded) as error:
            _log.warning("%s of tenant %s was not published: %s", draft.type, draft.tenant, error)

    def _hand_over(self, rows: Sequence[Row]) -> None:
        if self._supervisor.running:
            self._worker.hand_over(rows)
        else:
            self._worker.tell_owners(rows)
            self._supervisor.watch_idleness()

    async def _disable(self, endpoint_id: str, code: str, seen: int) -> bool:
        return await self.endpoints.disable(endpoint_id, code, seen)

    async def _mark_verified(self, endpoint_id: str, seen: int) -> bool:
        return await self.endpoints.mark_verified(endpoint_id, seen)

    def _is_registered(self, endpoint: int) -> bool:
        return self._catalogue.get(endpoint) is not None

    async def _withdraw(self, endpoint: int) -> int:
        return await self.deliveries.withdraw(endpoint)

    def _followers(self, clock: Clock, entropy: Entropy) -> Mapping[str, Callable[[], Awaitable[None]]]:
        own = OwnOutbox(
            self.store, self._take_outbox, self.event_types.check, self._owns_part_0, self._notices, clock, entropy
        )
        return {
            "outbox": own.run,
            "rollout": self._move_rollout,
            **{f"outbox {number}": follower.run for number, follower in enumerate(self._outboxes, 1)},
        }

    async def _move_rollout(self) -> None:
        await self.rollout.run()  # made after the loops were listed

    def _policy_version(self) -> int:
        return self.policies.version

    def _owns(self, number: int) -> bool:
        return number % self.store.capabilities.parts in self._leases.epochs

    def _owns_part_0(self) -> bool:
        return 0 in self._leases.epochs

    async def _admit(self, tenant: str, size: int) -> None:
        await self._limiter.check(tenant, size)

    async def _take_outbox(
        self, events: Sequence[OutboxEvent], nobodys: Collection[int] = ()
    ) -> Sequence[tuple[OutboxEvent, EnqueueResult]]:
        return await self._ready_intake().take_outbox(events, nobodys)

    def _owned_parts(self) -> Collection[int]:
        return list(self._leases.epochs)

    async def _expand(self) -> None:
        self._ready_intake()  # says how to open one
        assert self._fan_outs is not None
        await self._fan_outs.run()

    async def _try_out(self, endpoint: Endpoint) -> Attempt:
        """One signed attempt outside the queue. Raises `Overloaded` while this machine's clock is not fit to sign with."""
        if not self._store_time.trusted:
            raise Overloaded(
                f"this machine's clock is {self._store_time.skew_us / 1e6:.0f} s from the store's: it signs nothing",
                retry_after=30.0,
            )
        listed = Listed(endpoint, self._view, self.client.check_url)
        now_us = self._clock.wall_us()
        body = payload_bytes({"type": TEST_TYPE, "data": {"endpoint": endpoint.id}})
        webhook_id = encode_id(EVENT, now_us)
        return await self.client.deliver(
            endpoint.url,
            body,
            listed.request_headers(webhook_id, now_us, body),
            endpoint_id=endpoint.id,
            tenant=endpoint.tenant,
            policy=listed.policy,
            tls=listed.tls,
        )


def _begun(tracing: Tracing, draft: EventDraft) -> tuple[EventDraft, PublishSpan]:
    span = tracing.publishing(draft.type, draft.tenant, len(draft.body), draft.trace)
    return replace(draft, trace=span.trace), span


def _end(span: PublishSpan, result: Receipt | Exception) -> None:
    if isinstance(result, Receipt):
        span.stored(result.event_id, result.duplicate, result.deliveries)
    else:
        span.failed(result)
