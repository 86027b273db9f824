"""Counts every attempt and decision into plain lists on the hot path; the Prometheus collector reads them when scraped.

`Metrics` is an `Observer`. One observation costs a few microseconds, where prometheus-client's own `observe` takes 1.5 to 4
for each of eight phases. Host labels are bounded (`service.host_labels`); it asks nothing of the network or the store.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.service.histogram import BOUNDS, SUM, Histogram, new_histogram
from gatepost.service.host_labels import HostSeries, Labels, Series
from gatepost.service.metric_table import METRICS
from gatepost.service.metrics_exposition import MetricsCollector, own_registry
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation

DEFAULT_HOSTS: Final = 100
"""Hosts, and as many endpoints, with labels of their own: about 2,000 series, which one scrape carries easily."""

Watched = float | Mapping[tuple[str, ...], float] | None


def labels_of(hosts: int, processes: int) -> int:
    """Labels for each of several processes, so that together they show at most twice `hosts`: a busy host is seen by all of them,
    one with a single endpoint by its owner alone."""
    return max(1, min(hosts, -(-2 * hosts // processes)))


class Metrics:
    """The counters of one process, exposed through `registry` (its own when none is passed).

    `hosts`: how many hosts, and endpoints, get labels. `process`: what the label of that name says. What is counted elsewhere is
    given as functions to `watch`.
    """

    def __init__(
        self,
        *,
        hosts: int = DEFAULT_HOSTS,
        registry: CollectorRegistry | None = None,
        clock: Clock = SYSTEM_CLOCK,
        process: str = "0",
    ) -> None:
        self._monotonic = clock.monotonic
        self.process = process
        self.started_at = clock.wall_us() / 1e6
        self.hosts = Labels(hosts, clock.monotonic(), HostSeries)
        self.endpoints = Labels(hosts, clock.monotonic(), Series)
        self.phases: dict[str, dict[str, Histogram]] = {}
        """By outcome, then phase."""
        self.durations: dict[str, Histogram] = {}
        """Whole attempts, by outcome."""
        self.waits: Histogram = new_histogram()
        """From due to started."""
        self.ends: dict[tuple[str, str, str, str, str, int | None, bool], int] = {}
        """Attempts by outcome, retry safety, blame, phase, reason, status and whether it was delivered: one count from which a scrape
        makes several. A few hundred in practice, since one outcome has few reasons, and statuses come with one."""
        self.body_faults: dict[str, int] = {}
        self.decisions: dict[tuple[str, str], int] = {}
        """By decision and its reason."""
        self.operational_events: dict[str, int] = {}
        """By kind."""
        self.ingest: dict[str, int] = {}
        """Events by what the API answered: `accepted`, `duplicate`, or a problem's code."""
        self.opened = 0
        self.reused = 0
        self.shed = 0
        self.stale_retries = 0
        self.lagged = 0
        self.watched: dict[str, Callable[[], Watched]] = {}
        self.before_reading: list[Callable[[], None]] = []
        """Called before each scrape, to take over what is counted elsewhere."""
        self.limits: Mapping[str, float] = {}
        """The effective policy, by limit."""
        self.registry = registry if registry is not None else own_registry()
        self.registry.register(MetricsCollector(self))

    def now(self) -> float:
        """Monotonic seconds, the time of the windows."""
        return self._monotonic()

    def watch(self, name: str, read: Callable[[], Watched]) -> None:
        """Expose `read()` as `name` (a gauge or counter of `metric_table.METRICS`): a number, numbers by label values (without
        `process`), or None to leave it out of a scrape."""
        if name not in METRICS:
            raise ValueError(f"{name} is no metric of metric_table.METRICS: write it there first")
        self.watched[name] = read

    # ------------------------------------------------------------------------------------------- Observer

    def attempt_finished(self, observation: AttemptObservation) -> None:
        """Count one attempt: a few dictionary and list operations, whatever the number of hosts."""
        now = self._monotonic()
        outcome = observation.outcome
        phases = observation.phases
        histograms = self.phases.get(outcome)
        if histograms is None:
            histograms = self.phases[outcome] = {}
            self.durations[outcome] = new_histogram()
        for phase, seconds in phases.items():
            histogram = histograms.get(phase)
            if histogram is None:
                histogram = histograms[phase] = new_histogram()
            histogram[bisect_left(BOUNDS, seconds)] += 1.0
            histogram[SUM] += seconds
        elapsed = observation.elapsed
        histogram = self.durations[outcome]
        histogram[bisect_left(BOUNDS, elapsed)] += 1.0
        histogram[SUM] += elapsed

        end = (
            outcome,
            observation.retry_safety,
            observation.blame,
            observation.phase,
            observation.reason,
            observation.status,
            observation.delivered,
        )
        # Counters are there already but for the first time, and `try` costs nothing then.
        try:
            self.ends[end] += 1
        except KeyError:
            self.ends[end] = 1
        if observation.body_fault is not None:
            self.body_faults[observation.body_fault] = self.body_faults.get(observation.body_fault, 0) + 1
        if observation.lagged:
            self.lagged += 1

        # A refused destination has no host to speak of: its subject may be anything a user wrote.
        host = self.hosts.of(observation.host, now) if outcome != "egress_denied" else self.hosts.other
        counts = host.attempts
        try:
            counts[outcome] += 1
        except KeyError:
            counts[outcome] = 1
        if observation.endpoint_id is not None:
            counts = self.endpoints.of(observation.endpoint_id, now).attempts
            try:
                counts[outcome] += 1
            except KeyError:
                counts[outcome] = 1
        stale = observation.stale_retry
        if stale:
            self.stale_retries += 1
        if observation.reused and not stale:
            self.reused += 1
            host.reused += 1
            host.window.add(now, True)
        elif stale or "connect" in phases:
            self.opened += 1
            host.opened += 1
            host.window.add(now, False)
        if outcome == "shed":
            self.shed += 1
            host.shed += 1

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        """Count one decision."""
        key = (observation.decision, observation.why)
        try:
            self.decisions[key] += 1
        except KeyError:
            self.decisions[key] = 1
        waits, waited = self.waits, observation.waited
        waits[bisect_left(BOUNDS, waited)] += 1.0
        waits[SUM] += waited

    def operational(self, observation: OperationalObservation) -> None:
        """Count one operational event by kind."""
        kind = observation.kind
        self.operational_events[kind] = self.operational_events.get(kind, 0) + 1

    # ------------------------------------------------------------------------------------------- the service

    def count_shed(self, host: str, count: int) -> None:
        """Lanes passed over by the scheduler while their endpoint was full."""
        self.shed += count
        self.hosts.of(host, self._monotonic()).shed += count

    def count_trips(self, host: str, limit: str, count: int) -> None:
        """Attempts that a limit in shadow would have met."""
        trips = self.hosts.of(host, self._monotonic()).would_trip
        trips[limit] = trips.get(limit, 0) + count

    def count_ingest(self, answer: str, count: int = 1) -> None:
        """Events the API answered for."""
        self.ingest[answer] = self.ingest.get(answer, 0) + count
