"""Every metric there is: name, kind, labels, what it says, and how the processes of one machine become one figure.

The seed's four names stand as given; all others begin with `gatepost_`. `metrics_exposition` reads by this table, `metric_rows`
merges by it, the reference page is made from it, and tests hold alert rules and dashboard against it. It counts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gatepost.deadline import metrics as deadline
from gatepost.service.histogram import BOUNDS

DEADLINE_PREFIX: Final = "gatepost_"
"""Before the names of deadlines, which any service may expose without it."""
PROCESS: Final = "process"
"""Label of what may not be added up: the number of the process among those of its parent."""


class Kind(StrEnum):
    """What Prometheus calls it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class Merge(StrEnum):
    """How the values of several processes become one."""

    SUM = "sum"
    """They count different things."""
    MAX = "max"
    """The worst one matters; or all say the same of one store, each at its own time."""
    RATIO = "ratio"
    """Share of a sum in a sum: an average of shares would lie."""
    EACH = "each"
    """A label `process` tells them apart: neither sum nor extreme says what one must know."""


@dataclass(frozen=True, slots=True)
class Described:
    """One metric."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    """Without `process` and `le`."""
    merge: Merge
    help: str
    bounds: tuple[float, ...] = BOUNDS
    """Of a histogram."""

    @property
    def all_labels(self) -> tuple[str, ...]:
        """As exposed, without `le`."""
        return (*self.labels, PROCESS) if self.merge is Merge.EACH else self.labels

    @property
    def lasting(self) -> bool:
        """It only rises, so a process that ended leaves its value to its successor."""
        return self.kind in (Kind.COUNTER, Kind.HISTOGRAM)


def _counter(name: str, help_text: str, *labels: str) -> Described:
    return Described(name, Kind.COUNTER, labels, Merge.SUM, help_text)


def _histogram(name: str, help_text: str, *labels: str) -> Described:
    return Described(name, Kind.HISTOGRAM, labels, Merge.SUM, help_text)


def _gauge(name: str, merge: Merge, help_text: str, *labels: str) -> Described:
    return Described(name, Kind.GAUGE, labels, merge, help_text)


_ATTEMPTS: Final = (
    _histogram("delivery_phase_duration_seconds", "Time an attempt spent in each phase.", "phase", "outcome"),
    _histogram("gatepost_attempt_duration_seconds", "Length of attempts.", "outcome"),
    _histogram("gatepost_delivery_wait_seconds", "From due to started."),
    _counter(
        "gatepost_attempts_total",
        "Attempts by how they ended, whether trying again is safe, and whose fault it was.",
        "outcome",
        "retry_safety",
        "blame",
    ),
    _counter(
        "gatepost_attempt_ends_total", "Attempts by the phase they ended in and the reason code.", "phase", "reason"
    ),
    _counter("gatepost_attempts_ambiguous_total", "Attempts after which the receiver may have acted.", "outcome"),
    _counter("gatepost_responses_total", "Complete response heads by status.", "status"),
    _counter("gatepost_body_faults_total", "Responses whose body was cut, dripped, too large or malformed.", "fault"),
    _counter("gatepost_attempts_delivered_total", "Attempts with a complete 2xx head."),
    _counter("gatepost_stale_retries_total", "Requests sent again on a fresh connection; ambiguous."),
    _counter("gatepost_attempts_lagged_total", "Attempts that ended while the event loop ran late."),
)
_HOSTS: Final = (
    _counter(
        "gatepost_host_attempts_total",
        "Attempts by outcome; a host's share of timeouts is what to alert on.",
        "host",
        "outcome",
    ),
    _counter("deliveries_shed_total", "Deliveries put off because their endpoint was full.", "host"),
    _counter("gatepost_deliveries_shed_total", "deliveries_shed_total over all hosts."),
    _gauge("connection_reuse_ratio", Merge.RATIO, "Share of attempts on a reused connection, over 5 minutes.", "host"),
    _gauge("gatepost_connection_reuse_ratio", Merge.RATIO, "connection_reuse_ratio over all hosts."),
    _counter("gatepost_host_connections_opened_total", "Connections opened.", "host"),
    _counter("gatepost_host_connections_reused_total", "Attempts on a reused connection.", "host"),
    _counter("gatepost_connections_opened_total", "Connections opened, over all hosts."),
    _counter("gatepost_connections_reused_total", "Attempts on a reused connection, over all hosts."),
    _counter(
        "gatepost_shadow_would_trip_total", "Attempts that a limit tried in shadow would have met.", "host", "limit"
    ),
)
_ENDPOINTS: Final = (
    _counter("gatepost_endpoint_attempts_total", "Attempts by outcome.", "endpoint", "outcome"),
    _gauge(
        "gatepost_endpoint_read_timeout_seconds", Merge.MAX, "Read timeout in force, as learned so far.", "endpoint"
    ),
    _gauge("gatepost_endpoint_cap", Merge.MAX, "Attempts in flight that the endpoint may have now.", "endpoint"),
)
_LIMITS: Final = (
    _gauge(
        "gatepost_breakers",
        Merge.SUM,
        "Breakers by state, of endpoints in memory (kind=endpoint) and of hosts that had trouble (kind=host).",
        "kind",
        "state",
    ),
    _gauge(
        "gatepost_endpoint_breaker",
        Merge.MAX,
        "Endpoints whose breaker is not closed: 1 half open, 2 open; those longest in trouble.",
        "endpoint",
    ),
    _gauge(
        "gatepost_host_breaker",
        Merge.MAX,
        "Hosts whose breaker is not closed: 1 half open, 2 open; those longest in trouble.",
        "host",
    ),
    _counter("gatepost_breakers_opened_total", "Times that breakers opened, by whose and why.", "kind", "cause"),
    _counter("gatepost_breakers_would_open_total", "In dry run: times that breakers of endpoints would have opened."),
    _counter("gatepost_breakers_would_refuse_total", "In dry run: attempts that breakers would have held back."),
    _gauge("gatepost_endpoints_tracked", Merge.SUM, "Endpoints whose response times, caps and breakers are in memory."),
    _gauge("gatepost_hosts_in_trouble", Merge.MAX, "Hosts with a breaker: connections to them failed lately."),
    _gauge(
        "gatepost_fleet_trouble",
        Merge.MAX,
        "1 while many unrelated hosts fail at once, which is our fault and opens no breaker.",
    ),
    _gauge("gatepost_policy_version", Merge.EACH, "Stored version of the policy gone by; 0: nobody has changed it."),
    _gauge("gatepost_policy_limit", Merge.EACH, "The policy in force.", "limit"),
)
_QUEUE: Final = (
    _counter("gatepost_decisions_total", "What was decided after attempts, and why.", "decision", "why"),
    _counter("gatepost_dead_letters_total", "Deliveries given up.", "why"),
    _counter("gatepost_events_ingested_total", "Events by what the API answered.", "answer"),
    _gauge("gatepost_queue_waiting", Merge.MAX, "Deliveries waiting in the store, due or not."),
    _gauge("gatepost_queue_buffered", Merge.SUM, "Waiting deliveries that are in memory."),
    _gauge(
        "gatepost_queue_oldest_due_seconds",
        Merge.MAX,
        "How long the delivery in memory that waits longest has been due, whatever holds it.",
    ),
    _gauge(
        "gatepost_queue_oldest_startable_seconds",
        Merge.MAX,
        "The same of deliveries that wait for us alone: their endpoint and its host are open, not held and have room.",
    ),
    _gauge("gatepost_queue_dead", Merge.MAX, "Dead letters kept in the store."),
    _gauge("gatepost_queue_outbox", Merge.MAX, "Published events not yet fanned out."),
    _gauge("gatepost_store_size_bytes", Merge.MAX, "Size of the store."),
    _gauge("gatepost_results_waiting", Merge.SUM, "Results of attempts that are not stored yet."),
    _gauge("gatepost_parts_held", Merge.EACH, "Parts of the queue held."),
    _gauge("gatepost_parts_share", Merge.EACH, "Parts that should be held at least, by weight among those alive."),
    _gauge(
        "gatepost_lease_seconds_left",
        Merge.EACH,
        "Seconds until no attempt is started any more unless the store is heard of.",
    ),
    _gauge("gatepost_clock_skew_seconds", Merge.EACH, "Seconds that the store's clock is ahead of this machine's."),
)
_PROCESS: Final = (
    _gauge("pool_connections_in_use", Merge.SUM, "Connections that carry an attempt now."),
    _gauge("pool_connections_idle", Merge.SUM, "Open connections waiting for the next attempt."),
    _gauge("gatepost_pool_waiting", Merge.SUM, "Attempts waiting for a connection."),
    _gauge("gatepost_names_pending", Merge.SUM, "Names being looked up."),
    _gauge("gatepost_attempts_in_flight", Merge.SUM, "Attempts that have started and not ended."),
    _gauge("gatepost_slots", Merge.SUM, "Attempts that may be in flight at once."),
    _gauge("gatepost_oldest_attempt_seconds", Merge.EACH, "How long the oldest attempt in flight has lasted."),
    _gauge(
        "gatepost_dispatch_clients_open",
        Merge.EACH,
        "Clients of a process that are not closed; more than one is a mistake.",
    ),
    _gauge("gatepost_event_loop_lag_seconds", Merge.EACH, "How late the event loop ran at worst in the last second."),
    _gauge("gatepost_event_loop_late", Merge.EACH, "1 while the loop is late and new attempts are held back."),
    _gauge("gatepost_tasks", Merge.SUM, "Tasks of the event loop; they follow the load, and never just grow."),
    _gauge("gatepost_process_up", Merge.EACH, "1: it answered this scrape within 250 ms; 0: it hangs or is gone."),
    _gauge("gatepost_process_start_time_seconds", Merge.EACH, "When it started, in seconds since 1970."),
    _counter("gatepost_operational_events_total", "Things an operator should know, by kind.", "kind"),
    _counter("gatepost_log_lines_dropped_total", "Log lines dropped because the output was too slow."),
    Described("gatepost_build_info", Kind.INFO, ("version", "python"), Merge.MAX, "Version; always 1."),
)
_DEADLINES: Final = tuple(
    Described(
        DEADLINE_PREFIX + metric.value,
        Kind.HISTOGRAM if family.histogram else Kind.COUNTER,
        () if family.label is None else (family.label,),
        Merge.SUM,
        family.help,
        deadline.BOUNDS if family.histogram else BOUNDS,
    )
    for metric, family in deadline.FAMILIES.items()
)

GROUPS: Final[Mapping[str, tuple[Described, ...]]] = {
    "Attempts": _ATTEMPTS,
    "By host": _HOSTS,
    "By endpoint": _ENDPOINTS,
    "Breakers and policy": _LIMITS,
    "Queue and store": _QUEUE,
    "Processes": _PROCESS,
    "Deadlines": _DEADLINES,
}
"""As the reference page shows them."""

METRICS: Final[Mapping[str, Described]] = {one.name: one for group in GROUPS.values() for one in group}
"""By name."""
