"""Reads the gauges that live elsewhere: the client's pool on each scrape, the store's sizes every ten seconds.

Asking the store on each scrape would let a scraper slow the queue down. Set up by `service.app`.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gatepost.clock import Clock
from gatepost.errors import GatepostError
from gatepost.net.client import ClientStatistics, DispatchClient, open_client_count
from gatepost.service.logs import Logs
from gatepost.service.loop_lag import LoopLag
from gatepost.service.metrics import Metrics
from gatepost.store.port import DeliveryStore
from gatepost.store.rows import StoreTotals

STORE_INTERVAL: Final = 10.0
"""Seconds between two looks at the store."""
_FRESH: Final = 0.5
"""Seconds a snapshot of the client serves: all gauges of one scrape, and not the next one."""


class Snapshot:
    """The client's statistics, taken once per scrape: they cost O(hosts)."""

    def __init__(self, client: DispatchClient, clock: Clock) -> None:
        self._client = client
        self._monotonic = clock.monotonic
        self._taken_at = float("-inf")
        self._value: ClientStatistics | None = None

    def read(self) -> ClientStatistics:
        """At most half a second old."""
        now = self._monotonic()
        if self._value is None or now - self._taken_at > _FRESH:
            self._value = self._client.statistics()
            self._taken_at = now
        return self._value


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


def watch_client(metrics: Metrics, client: DispatchClient, slots: int, clock: Clock) -> None:
    """The pool's and the process's gauges."""
    snapshot = Snapshot(client, clock)
    metrics.watch("pool_connections_in_use", lambda: snapshot.read().connections_in_use)
    metrics.watch("pool_connections_idle", lambda: snapshot.read().connections_idle)
    metrics.watch("gatepost_attempts_in_flight", lambda: snapshot.read().in_flight)
    metrics.watch("gatepost_admission_waiting", lambda: snapshot.read().waiting_for_admission)
    metrics.watch("gatepost_pool_waiting", lambda: snapshot.read().waiting_for_connection)
    metrics.watch("gatepost_names_pending", lambda: snapshot.read().names_pending)
    metrics.watch("gatepost_dispatch_clients_open", open_client_count)
    metrics.watch("gatepost_slots", lambda: slots)


def watch_store(metrics: Metrics, sizes: StoreSizes) -> None:
    """The queue's gauges."""

    def read(name: str) -> float | None:
        return None if sizes.totals is None else float(getattr(sizes.totals, name))

    metrics.watch("gatepost_queue_waiting", lambda: read("waiting"))
    metrics.watch("gatepost_queue_dead", lambda: read("dead"))
    metrics.watch("gatepost_queue_outbox", lambda: read("outbox"))
    metrics.watch("gatepost_store_size_bytes", lambda: read("size_bytes"))


def watch_process(metrics: Metrics, lag: LoopLag, logs: Logs | None) -> None:
    """The loop's and the log's gauges."""
    metrics.watch("gatepost_event_loop_lag_seconds", lambda: lag.worst)
    if logs is not None:
        metrics.watch("gatepost_log_lines_dropped", lambda: logs.dropped)
