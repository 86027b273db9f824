"""Turns the counters of `service.metrics` into Prometheus families when a scrape asks, and lists every metric there is.

The seed's four names stand as given; all others begin with `gatepost_`. Per-host families have a sum without a host beside
them, since membership of the host labels changes. Called by prometheus-client on the event loop; it blocks on nothing.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gatepost.service.histogram import cumulative

if TYPE_CHECKING:
    from gatepost.service.metrics import Metrics

GAUGES: Final[Mapping[str, str]] = {
    "pool_connections_in_use": "Connections that carry an attempt now.",
    "pool_connections_idle": "Open connections waiting for the next attempt.",
    "gatepost_dispatch_clients_open": "Clients of this process that are not closed; more than one is a mistake.",
    "gatepost_names_pending": "Names being looked up.",
    "gatepost_pool_waiting": "Attempts waiting for a connection.",
    "gatepost_attempts_in_flight": "Attempts that have started and not ended.",
    "gatepost_policy_version": "Stored version of the policy that this process goes by; 0: nobody has changed it yet.",
    "gatepost_slots": "Attempts that may be in flight at once.",
    "gatepost_oldest_attempt_seconds": "How long the oldest attempt in flight has lasted.",
    "gatepost_parts_held": "Parts of the queue that this process holds.",
    "gatepost_parts_share": "Parts that it should hold at least, by its weight among the processes alive.",
    "gatepost_lease_seconds_left": "Seconds until this process stops starting attempts unless it hears from the store.",
    "gatepost_clock_skew_seconds": "Seconds that the store's clock is ahead of this machine's.",
    "gatepost_results_waiting": "Results of attempts that are not stored yet.",
    "gatepost_event_loop_lag_seconds": "How late the event loop ran at worst in the last second.",
    "gatepost_event_loop_late": "1 while the loop is late and new attempts are held back.",
    "gatepost_endpoints_tracked": "Endpoints whose response times, caps and breakers are in memory.",
    "gatepost_hosts_in_trouble": "Hosts with a breaker: connections to them failed lately.",
    "gatepost_breakers_opened": "Times that breakers of endpoints and hosts have opened since the start.",
    "gatepost_breakers_would_open": "In dry run: times that breakers of endpoints would have opened since the start.",
    "gatepost_breakers_would_refuse": "In dry run: attempts that breakers would have held back since the start.",
    "gatepost_fleet_trouble": "1 while many unrelated hosts fail at once, which is our fault and opens no breaker.",
    "gatepost_queue_waiting": "Deliveries waiting, due or not.",
    "gatepost_queue_buffered": "Waiting deliveries that are in memory.",
    "gatepost_queue_dead": "Dead letters kept.",
    "gatepost_queue_outbox": "Published events not yet fanned out.",
    "gatepost_store_size_bytes": "Size of the store.",
    "gatepost_log_lines_dropped": "Log lines dropped because the output was too slow.",
}
"""Every gauge read from elsewhere, and what it says."""


class MetricsCollector(Collector):
    """Reads one `Metrics`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Nothing up front: the families are known, and registering must not read gauges."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families, read at one moment."""
        metrics = self._metrics
        for refresh in metrics.before_reading:
            refresh()
        now = metrics.now()
        metrics.hosts.rebalance(now)
        yield from self._attempts()
        yield from self._hosts(now)
        yield from self._service()

    def _attempts(self) -> Iterator[Metric]:
        metrics = self._metrics
        by_phase = HistogramMetricFamily(
            "delivery_phase_duration_seconds", "Time an attempt spent in each phase.", labels=("phase", "outcome")
        )
        for outcome, histograms in metrics.phases.items():
            for phase, histogram in histograms.items():
                by_phase.add_metric((phase, outcome), *cumulative(histogram))
        yield by_phase
        whole = HistogramMetricFamily("gatepost_attempt_duration_seconds", "Length of attempts.", labels=("outcome",))
        for outcome, histogram in metrics.durations.items():
            whole.add_metric((outcome,), *cumulative(histogram))
        yield whole
        waits = HistogramMetricFamily("gatepost_delivery_wait_seconds", "From due to started.", labels=())
        waits.add_metric((), *cumulative(metrics.waits))
        yield waits
        yield _counter(
            "gatepost_attempts",
            "Attempts by how they ended, whether trying again is safe, and whose fault it was.",
            ("outcome", "retry_safety", "blame"),
            metrics.attempts.items(),
        )
        yield _counter(
            "gatepost_attempt_ends",
            "Attempts by the phase they ended in and the reason code.",
            ("phase", "reason"),
            metrics.ends.items(),
        )
        yield _counter(
            "gatepost_attempts_ambiguous",
            "Attempts after which the receiver may have acted.",
            ("outcome",),
            (((outcome,), count) for outcome, count in metrics.ambiguous.items()),
        )
        yield _counter(
            "gatepost_responses",
            "Complete response heads by status.",
            ("status",),
            (((str(status),), count) for status, count in metrics.statuses.items()),
        )
        yield _counter(
            "gatepost_body_faults",
            "Responses whose body was cut, dripped, too large or malformed.",
            ("fault",),
            (((fault,), count) for fault, count in metrics.body_faults.items()),
        )
        yield _total("gatepost_attempts_delivered", "Attempts with a complete 2xx head.", metrics.delivered)
        yield _total(
            "gatepost_stale_retries", "Requests sent again on a fresh connection; ambiguous.", metrics.stale_retries
        )
        yield _total("gatepost_attempts_lagged", "Attempts that ended while the event loop ran late.", metrics.lagged)

    def _hosts(self, now: float) -> Iterator[Metric]:
        metrics = self._metrics
        series = metrics.hosts.all()
        label = ("host",)
        yield _counter(
            "deliveries_shed",
            "Deliveries put off because their endpoint was full.",
            label,
            (((one.host,), one.shed) for one in series),
        )
        yield _total("gatepost_deliveries_shed", "deliveries_shed_total over all hosts.", metrics.shed)
        ratio = GaugeMetricFamily(
            "connection_reuse_ratio", "Share of attempts on a reused connection, over 5 minutes.", labels=label
        )
        for one in series:
            value = one.window.ratio(now)
            if value is not None:
                ratio.add_metric((one.host,), value)
        yield ratio
        value = metrics.window.ratio(now)
        overall = GaugeMetricFamily("gatepost_connection_reuse_ratio", "connection_reuse_ratio over all hosts.")
        if value is not None:
            overall.add_metric((), value)
        yield overall
        yield _counter(
            "gatepost_host_connections_opened",
            "Connections opened.",
            label,
            (((one.host,), one.opened) for one in series),
        )
        yield _counter(
            "gatepost_host_connections_reused",
            "Attempts on a reused connection.",
            label,
            (((one.host,), one.reused) for one in series),
        )
        yield _counter(
            "gatepost_shadow_would_trip",
            "Attempts that a limit tried in shadow would have met.",
            ("host", "limit"),
            (((one.host, limit), count) for one in series for limit, count in one.would_trip.items()),
        )
        yield _total("gatepost_connections_opened", "Connections opened, over all hosts.", metrics.opened)
        yield _total("gatepost_connections_reused", "Attempts on a reused connection, over all hosts.", metrics.reused)
        yield _counter(
            "gatepost_host_attempts",
            "Attempts by outcome; a host's share of timeouts is what to alert on.",
            ("host", "outcome"),
            (((one.host, outcome), count) for one in series for outcome, count in one.attempts.items()),
        )

    def _service(self) -> Iterator[Metric]:
        metrics = self._metrics
        yield _counter(
            "gatepost_decisions",
            "What was decided after attempts, and why.",
            ("decision", "why"),
            metrics.decisions.items(),
        )
        yield _counter(
            "gatepost_dead_letters",
            "Deliveries given up.",
            ("why",),
            (((why,), count) for (decision, why), count in metrics.decisions.items() if decision == "dead_letter"),
        )
        yield _counter(
            "gatepost_operational_events",
            "Things an operator should know, by kind.",
            ("kind",),
            (((kind,), count) for kind, count in metrics.operational_events.items()),
        )
        yield _counter(
            "gatepost_events_ingested",
            "Events by what the API answered.",
            ("answer",),
            (((answer,), count) for answer, count in metrics.ingest.items()),
        )
        for name, read in metrics.gauges.items():
            value = read()
            if value is not None:
                yield GaugeMetricFamily(name, GAUGES[name], value)
        limits = GaugeMetricFamily("gatepost_policy_limit", "The policy in force in this process.", labels=("limit",))
        for name, limit in metrics.limits.items():
            limits.add_metric((name,), float(limit))
        yield limits
        yield InfoMetricFamily(
            "gatepost_build", "Version.", {"version": version("gatepost"), "python": platform.python_version()}
        )


def own_registry() -> CollectorRegistry:
    """A registry of our own, so that embedding Gatepost adds nothing to the process's default one."""
    return CollectorRegistry(auto_describe=False)


def _counter(
    name: str, help_text: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], int]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, help_text, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def _total(name: str, help_text: str, value: int) -> CounterMetricFamily:
    return CounterMetricFamily(name, help_text, value)
