"""Reads the counters of `service.metrics` into the plain figures of `metric_rows` when a scrape asks.

Runs on the event loop, where the counters change, so it only copies: about a millisecond for a hundred hosts. Per-host families
have a sum without a host beside them, since membership of the host labels changes. It asks nothing of the network or the store.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gatepost.deadline.metrics import COUNTERS, FAMILIES
from gatepost.deadline.metrics import Metric as Deadline
from gatepost.service.histogram import Histogram
from gatepost.service.metric_rows import Key, Rows, Snapshot, exposed
from gatepost.service.metric_table import DEADLINE_PREFIX, METRICS, Merge

if TYPE_CHECKING:
    from gatepost.service.metrics import Metrics


class MetricsCollector(Collector):
    """Reads one `Metrics`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Nothing up front: the families are known, and registering must not read gauges."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families, read at one moment."""
        yield from exposed(read(self._metrics))


def read(metrics: Metrics) -> Snapshot:
    """All figures of this process, in the table's order; a family without a row is there too."""
    for refresh in metrics.before_reading:
        refresh()
    now = metrics.now()
    metrics.hosts.rebalance(now)
    metrics.endpoints.rebalance(now)
    rows: Snapshot = {
        **_attempts(metrics),
        **_by_label(metrics, now),
        **_service(metrics),
        **_deadlines(),
    }
    for name, source in metrics.watched.items():
        value = source()
        if value is None:
            continue
        found: Rows = {(): value} if isinstance(value, int | float) else dict(value)
        each = METRICS[name].merge is Merge.EACH
        rows[name] = {(*key, metrics.process): row for key, row in found.items()} if each else found
    return {name: rows[name] for name in METRICS if name in rows}


def _attempts(metrics: Metrics) -> Snapshot:
    attempts: Counter[Key] = Counter()
    ends: Counter[Key] = Counter()
    ambiguous: Counter[Key] = Counter()
    responses: Counter[Key] = Counter()
    delivered = 0
    for (outcome, safety, blame, phase, reason, status, ok), count in metrics.ends.items():
        attempts[outcome, safety, blame] += count
        ends[phase, reason] += count
        if safety == "ambiguous":
            ambiguous[(outcome,)] += count
        if status is not None:
            responses[(str(status),)] += count
        if ok:
            delivered += count
    return {
        "delivery_phase_duration_seconds": {
            (phase, outcome): list(histogram)
            for outcome, histograms in metrics.phases.items()
            for phase, histogram in histograms.items()
        },
        "gatepost_attempt_duration_seconds": _copied(metrics.durations),
        "gatepost_delivery_wait_seconds": {(): list(metrics.waits)},
        "gatepost_attempts_total": dict(attempts),
        "gatepost_attempt_ends_total": dict(ends),
        "gatepost_attempts_ambiguous_total": dict(ambiguous),
        "gatepost_responses_total": dict(responses),
        "gatepost_body_faults_total": _labelled(metrics.body_faults),
        "gatepost_attempts_delivered_total": {(): delivered},
        "gatepost_stale_retries_total": {(): metrics.stale_retries},
        "gatepost_attempts_lagged_total": {(): metrics.lagged},
    }


def _by_label(metrics: Metrics, now: float) -> Snapshot:
    hosts, endpoints = metrics.hosts.all(), metrics.endpoints.all()
    used = {one.name: one.window.counts(now) for one in hosts}
    # A host that lost its label to a busier one took its last minutes with it: it was quiet, or it would have it still.
    in_all = (sum(reused for reused, _ in used.values()), sum(opened for _, opened in used.values()))
    return {
        "gatepost_host_attempts_total": {
            (one.name, outcome): count for one in hosts for outcome, count in one.attempts.items()
        },
        "deliveries_shed_total": {(one.name,): one.shed for one in hosts},
        "gatepost_deliveries_shed_total": {(): metrics.shed},
        "connection_reuse_ratio": _ratios({(name,): counts for name, counts in used.items()}),
        "gatepost_connection_reuse_ratio": _ratios({(): in_all}),
        "gatepost_host_connections_opened_total": {(one.name,): one.opened for one in hosts},
        "gatepost_host_connections_reused_total": {(one.name,): one.reused for one in hosts},
        "gatepost_connections_opened_total": {(): metrics.opened},
        "gatepost_connections_reused_total": {(): metrics.reused},
        "gatepost_shadow_would_trip_total": {
            (one.name, limit): count for one in hosts for limit, count in one.would_trip.items()
        },
        "gatepost_endpoint_attempts_total": {
            (one.name, outcome): count for one in endpoints for outcome, count in one.attempts.items()
        },
    }


def _service(metrics: Metrics) -> Snapshot:
    return {
        "gatepost_policy_limit": {(name, metrics.process): float(limit) for name, limit in metrics.limits.items()},
        "gatepost_decisions_total": {(decision, why): count for (decision, why), count in metrics.decisions.items()},
        "gatepost_dead_letters_total": {
            (why,): count for (decision, why), count in metrics.decisions.items() if decision == "dead_letter"
        },
        "gatepost_events_ingested_total": _labelled(metrics.ingest),
        "gatepost_process_up": {(metrics.process,): 1.0},
        "gatepost_process_start_time_seconds": {(metrics.process,): metrics.started_at},
        "gatepost_operational_events_total": _labelled(metrics.operational_events),
        "gatepost_build_info": {(version("gatepost"), platform.python_version()): 1.0},
    }


def _deadlines() -> Snapshot:
    found: Snapshot = {DEADLINE_PREFIX + metric.value: {} for metric in FAMILIES}
    for (metric, label), value in COUNTERS.snapshot().items():
        found[DEADLINE_PREFIX + metric.value][(label,) if label else ()] = value
    for at, histogram in COUNTERS.histograms().items():
        found[DEADLINE_PREFIX + Deadline.REMAINING.value][(at,)] = list(histogram)
    return found


def own_registry() -> CollectorRegistry:
    """A registry of our own, so that embedding Gatepost adds nothing to the process's default one."""
    return CollectorRegistry(auto_describe=False)


def _copied(histograms: dict[str, Histogram]) -> Rows:
    return {(label,): list(histogram) for label, histogram in histograms.items()}


def _labelled(counts: dict[str, int]) -> Rows:
    return {(label,): count for label, count in counts.items()}


def _ratios(counts: Mapping[Key, tuple[int, int]]) -> Rows:
    """Shares in two numbers, from reused and opened; none of what had no connection."""
    return {key: [float(reused), float(reused + opened)] for key, (reused, opened) in counts.items() if reused + opened}
