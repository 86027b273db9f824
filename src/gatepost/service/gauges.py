"""Reads what is counted elsewhere: pool and scheduler on each scrape, the store's sizes every ten seconds.

Asking the store on each scrape would let a scraper slow the queue down. What costs O(lanes) is looked at as seldom. Set up by
`service.app`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from gatepost.admission.breaker import BreakerState
from gatepost.admission.limits import LimitsStatistics
from gatepost.clock import Clock
from gatepost.delivery.ids import ENDPOINT, decode_id
from gatepost.dispatch.dispatcher import Dispatcher, DispatcherStatistics
from gatepost.dispatch.limits import BreakersNow
from gatepost.errors import GatepostError
from gatepost.net.client import ClientStatistics, open_client_count
from gatepost.service.metrics import Metrics
from gatepost.store.port import DeliveryStore
from gatepost.store.rows import StoreTotals

STORE_INTERVAL: Final = 10.0
"""Seconds between two looks at the store."""
LAG_INTERVAL: Final = 5.0
"""Seconds between two looks for the delivery that waits longest."""
TROUBLED_MAX: Final = 50
"""Endpoints, and hosts, whose breaker is not closed that are named: those longest in trouble. More is an outage of everybody,
which the counts by state say better."""
_FRESH: Final = 0.5
"""Seconds a snapshot serves: all gauges of one scrape, and not the next one."""
SHOWN: Final[Mapping[BreakerState, str]] = {
    BreakerState.CLOSED: "closed",
    BreakerState.OPEN: "open",
    BreakerState.PROBING: "half_open",
    BreakerState.RAMPING: "half_open",
}
"""As operators know breakers."""


class Snapshot:
    """The dispatcher's and the client's statistics, taken once per scrape: they cost O(hosts)."""

    def __init__(self, dispatcher: Dispatcher, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._monotonic = clock.monotonic
        self._taken_at = float("-inf")
        self._client: ClientStatistics | None = None
        self._queue: DispatcherStatistics | None = None
        self._limits: LimitsStatistics | None = None
        self._breakers: BreakersNow | None = None
        self._lagged_at = float("-inf")
        self._lag = (0.0, 0.0)

    @property
    def limits(self) -> LimitsStatistics:
        """At most half a second old."""
        self._refresh()
        assert self._limits is not None
        return self._limits

    @property
    def breakers(self) -> BreakersNow:
        """At most half a second old."""
        self._refresh()
        assert self._breakers is not None
        return self._breakers

    @property
    def lag(self) -> tuple[float, float]:
        """How long the oldest delivery has waited, and the oldest that could start; a few seconds old."""
        now = self._monotonic()
        if now - self._lagged_at > LAG_INTERVAL:
            self._lag = (self._dispatcher.lag_seconds(), self._dispatcher.startable_lag_seconds())
            self._lagged_at = now
        return self._lag

    @property
    def client(self) -> ClientStatistics:
        """At most half a second old."""
        self._refresh()
        assert self._client is not None
        return self._client

    @property
    def queue(self) -> DispatcherStatistics:
        """At most half a second old."""
        self._refresh()
        assert self._queue is not None
        return self._queue

    def _refresh(self) -> None:
        now = self._monotonic()
        if self._client is None or now - self._taken_at > _FRESH:
            self._client = self._dispatcher.client.statistics()
            self._queue = self._dispatcher.statistics()
            self._limits = self._dispatcher.limits.statistics()
            self._breakers = self._dispatcher.limits.breakers(TROUBLED_MAX)
            self._taken_at = now


class StoreSizes:
    """What the store said last."""

    def __init__(self, store: DeliveryStore) -> None:
        self._store = store
        self.totals: StoreTotals | None = None

    async def run(self) -> None:
        """Ask until cancelled. A store that fails leaves the gauges out instead of old."""
        while True:
            try:
                self.totals = await self._store.totals()
            except GatepostError:
                self.totals = None
            await asyncio.sleep(STORE_INTERVAL)


def watch_dispatcher(metrics: Metrics, dispatcher: Dispatcher, clock: Clock) -> None:
    """The gauges of pool, scheduler and loop; and the scheduler's sheds, which are no attempts."""
    snapshot = Snapshot(dispatcher, clock)
    seen: dict[str, int] = {}

    def count_sheds() -> None:
        for host, count in snapshot.queue.scheduler.sheds.items():
            more = count - seen.get(host, 0)
            if more > 0:
                seen[host] = count
                metrics.count_shed(host, more)

    def read_policy() -> None:
        metrics.limits = {row.name: float(row.value) for row in dispatcher.policies.of_process().values}

    tripped: dict[tuple[str, str], int] = {}

    def count_trips() -> None:
        for key, count in list(dispatcher.policy_trips.items()):
            more = count - tripped.get(key, 0)
            if more > 0:
                tripped[key] = count
                metrics.count_trips(*key, more)

    metrics.before_reading.append(count_sheds)
    metrics.before_reading.append(count_trips)
    metrics.before_reading.append(read_policy)
    metrics.watch("gatepost_policy_version", lambda: dispatcher.policies.version)
    metrics.watch("gatepost_queue_oldest_due_seconds", lambda: snapshot.lag[0])
    metrics.watch("gatepost_queue_oldest_startable_seconds", lambda: snapshot.lag[1])
    metrics.watch("pool_connections_in_use", lambda: snapshot.client.connections_in_use)
    metrics.watch("pool_connections_idle", lambda: snapshot.client.connections_idle)
    metrics.watch("gatepost_dispatch_clients_open", open_client_count)
    metrics.watch("gatepost_names_pending", lambda: snapshot.client.names_pending)
    metrics.watch("gatepost_pool_waiting", lambda: snapshot.client.waiting_for_connection)
    metrics.watch("gatepost_attempts_in_flight", lambda: snapshot.client.in_flight)
    metrics.watch("gatepost_slots", lambda: dispatcher.settings.slots)
    metrics.watch("gatepost_oldest_attempt_seconds", lambda: snapshot.queue.oldest_attempt)
    metrics.watch("gatepost_parts_held", lambda: snapshot.queue.parts)
    metrics.watch("gatepost_parts_share", lambda: snapshot.queue.share)
    metrics.watch("gatepost_lease_seconds_left", lambda: snapshot.queue.lease_seconds_left)
    metrics.watch("gatepost_clock_skew_seconds", lambda: snapshot.queue.clock_skew)
    metrics.watch("gatepost_results_waiting", lambda: snapshot.queue.results_waiting)
    metrics.watch("gatepost_queue_buffered", lambda: snapshot.queue.scheduler.buffered)
    metrics.watch("gatepost_tasks", lambda: len(asyncio.all_tasks()))
    metrics.watch("gatepost_event_loop_lag_seconds", lambda: dispatcher.lag.window.worst)
    metrics.watch("gatepost_event_loop_late", lambda: dispatcher.lag.late)
    _watch_limits(metrics, dispatcher, snapshot)


def _watch_limits(metrics: Metrics, dispatcher: Dispatcher, snapshot: Snapshot) -> None:
    def states() -> dict[tuple[str, ...], float]:
        found: dict[tuple[str, ...], float] = {}
        for kind, counts in (("endpoint", snapshot.breakers.endpoints), ("host", snapshot.breakers.hosts)):
            found |= {(kind, shown): 0.0 for shown in ("closed", "half_open", "open")}
            for state, count in counts.items():
                found[kind, SHOWN[state]] += count
        return found

    def opened() -> dict[tuple[str, ...], float]:
        limits = snapshot.limits
        found: dict[tuple[str, ...], float] = {("host", "setup"): float(limits.host_opened)}
        for cause, count in limits.opened.items():
            found["endpoint", cause.value] = float(count)
        return found

    def named(found: Sequence[tuple[str, BreakerState]]) -> dict[tuple[str, ...], float]:
        return {(name,): 2.0 if state is BreakerState.OPEN else 1.0 for name, state in found}

    def in_force(place: int) -> dict[tuple[str, ...], float]:
        found: dict[tuple[str, ...], float] = {}
        for series in metrics.endpoints.all()[:-1]:
            try:
                known = dispatcher.limits.in_force(decode_id(ENDPOINT, series.name))
            except ValueError:
                continue  # somebody's who uses the client without a dispatcher
            if known is not None:
                found[(series.name,)] = float(known[place])
        return found

    metrics.watch("gatepost_breakers", states)
    metrics.watch("gatepost_endpoint_breaker", lambda: named(snapshot.breakers.endpoint_states))
    metrics.watch("gatepost_host_breaker", lambda: named(snapshot.breakers.host_states))
    metrics.watch("gatepost_breakers_opened_total", opened)
    metrics.watch("gatepost_breakers_would_open_total", lambda: snapshot.limits.would_open)
    metrics.watch("gatepost_breakers_would_refuse_total", lambda: snapshot.limits.would_refuse)
    metrics.watch("gatepost_endpoints_tracked", lambda: snapshot.limits.active + snapshot.limits.idle)
    metrics.watch("gatepost_hosts_in_trouble", lambda: snapshot.limits.hosts_in_trouble)
    metrics.watch("gatepost_fleet_trouble", lambda: snapshot.limits.fleet_suspected)
    metrics.watch("gatepost_endpoint_read_timeout_seconds", lambda: in_force(0))
    metrics.watch("gatepost_endpoint_cap", lambda: in_force(1))


def watch_store(metrics: Metrics, sizes: StoreSizes) -> None:
    """The store's sizes."""

    def read(name: str) -> float | None:
        return None if sizes.totals is None else float(getattr(sizes.totals, name))

    metrics.watch("gatepost_queue_waiting", lambda: read("waiting"))
    metrics.watch("gatepost_queue_dead", lambda: read("dead"))
    metrics.watch("gatepost_queue_outbox", lambda: read("outbox"))
    metrics.watch("gatepost_store_size_bytes", lambda: read("size_bytes"))
