"""What deadlines did, counted in plain dictionaries; exporters read them, and a hook hears each count as it happens.

`COUNTERS` is the process's own set; servers and adapters take another for tests. It decides nothing, and imports no metrics
library: `prometheus_collector` does, when it is called. Written to by scopes, middleware, clients and queues.
"""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

LABELS_MAX: Final = 64
"""Label values of one metric. Names of scopes are label values, and a program may make them up: the rest is `other`."""
OTHER: Final = "other"
BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds in seconds of what is left, from the smallest timeout to the longest budget of the default policy."""

_log = logging.getLogger("gatepost.deadline")


class Metric(StrEnum):
    """Every metric; may grow in minor versions."""

    REQUESTS = "deadline_requests_total"
    INVALID = "deadline_invalid_total"
    CLAMPED = "deadline_clamped_total"
    SKEW = "deadline_skew_total"
    REJECTED = "deadline_rejected_total"
    WOULD_REJECT = "deadline_would_reject_total"
    LET_THROUGH = "deadline_let_through_total"
    REMAINING = "deadline_remaining_seconds"
    EXCEEDED = "deadline_exceeded_total"
    SHORTENED = "deadline_timeout_shortened_total"
    DEAD_WORK_AVOIDED = "dead_work_avoided_seconds_total"
    DISCONNECTED = "deadline_disconnected_total"
    NO_DEADLINE = "deadline_no_deadline_total"
    RUN_TO_COMPLETION = "deadline_run_to_completion_total"


@dataclass(frozen=True, slots=True)
class Family:
    """A metric's label and meaning."""

    label: str | None
    help: str
    histogram: bool = False


FAMILIES: Final[Mapping[Metric, Family]] = {
    Metric.REQUESTS: Family("source", "Requests by where their deadline came from: header, grpc, message or default."),
    Metric.INVALID: Family("header", "Values that were not of their header's form and were left out."),
    Metric.CLAMPED: Family(None, "Budgets cut to the policy's max."),
    Metric.SKEW: Family("header", "Times that cannot be by this host's clock; no age was taken off."),
    Metric.REJECTED: Family(
        "where", "Requests refused at once: arrival (expired), admission (too little left), missing or invalid."
    ),
    Metric.WOULD_REJECT: Family("where", "What dark mode would have refused or cut."),
    Metric.LET_THROUGH: Family(
        "why",
        "Requests begun with less than their operation's median left: valve (enough refused) or probe (one a second).",
    ),
    Metric.REMAINING: Family("at", "Seconds left on arrival and when a call was made.", histogram=True),
    Metric.EXCEEDED: Family("where", "Deadlines found to have passed, by the step that found out."),
    Metric.SHORTENED: Family("client", "Calls whose own timeout was shortened to what was left."),
    Metric.DEAD_WORK_AVOIDED: Family(None, "Sum of the medians of refused operations: seconds of work for nobody."),
    Metric.DISCONNECTED: Family(None, "Requests whose work was cut because the client had gone."),
    Metric.NO_DEADLINE: Family("reason", "Uses of no_deadline."),
    Metric.RUN_TO_COMPLETION: Family(
        "end", "Uses of run_to_completion by how they ended: done, failed or cut (at max)."
    ),
}
"""All metrics; the reference page is made from this table."""

Observer = Callable[[Metric, str, float], None]
"""Hears each count: metric, label value (empty without label), amount or seconds."""


class Counters:
    """One set of counters. `observer` is called for each count, after it; what it raises is logged and ignored."""

    def __init__(self, observer: Observer | None = None) -> None:
        self.observer = observer
        self._counts: dict[Metric, dict[str, float]] = {}
        self._histograms: dict[str, list[float]] = {}

    def count(self, metric: Metric, label: str = "", amount: float = 1.0) -> None:
        """Add to a counter."""
        with _lock:
            counts = self._counts.get(metric)
            if counts is None:
                counts = self._counts[metric] = {}
            if label in counts:
                counts[label] += amount
            elif len(counts) < LABELS_MAX:
                counts[label] = amount
            else:
                counts[OTHER] = counts.get(OTHER, 0.0) + amount
        if self.observer is not None:
            self._tell(metric, label, amount)

    def arrived(self, source: str, seconds: float) -> None:
        """A request with `seconds` left: both counts of it at once, since every request makes them."""
        if self.observer is not None:
            self.count(Metric.REQUESTS, source)
            self.remaining("arrival", seconds)
            return
        with _lock:
            counts = self._counts.get(Metric.REQUESTS)
            if counts is None:
                counts = self._counts[Metric.REQUESTS] = {}
            counts[source] = counts.get(source, 0.0) + 1.0
            histogram = self._histograms.get("arrival")
            if histogram is None:
                histogram = self._histograms["arrival"] = _new_histogram()
            histogram[bisect_left(BOUNDS, seconds)] += 1
            histogram[-1] += seconds if seconds > 0 else 0.0

    def remaining(self, at: str, seconds: float) -> None:
        """Add to the histogram of what is left; `at` is `arrival` or `call`."""
        with _lock:
            self._observe(at, seconds)
        if self.observer is not None:
            self._tell(Metric.REMAINING, at, seconds)

    def value(self, metric: Metric, label: str = "") -> float:
        """A counter's value, 0 when it never counted."""
        return self._counts.get(metric, {}).get(label, 0.0)

    def snapshot(self) -> dict[tuple[Metric, str], float]:
        """All counters by metric and label value."""
        with _lock:
            return {
                (metric, label): value for metric, counts in self._counts.items() for label, value in counts.items()
            }

    def buckets(self) -> dict[str, tuple[list[tuple[float, float]], float]]:
        """For each `at`: cumulative counts by upper bound, the last one infinite, and the sum of seconds."""
        with _lock:
            copies = {at: list(histogram) for at, histogram in self._histograms.items()}
        found = {}
        for at, histogram in copies.items():
            rising, total = [], 0.0
            for bound, count in zip((*BOUNDS, float("inf")), histogram, strict=False):
                total += count
                rising.append((bound, total))
            found[at] = (rising, histogram[-1])
        return found

    def histograms(self) -> dict[str, list[float]]:
        """For each `at`: counts by upper bound (not cumulative), those over all bounds, and the sum of seconds. A copy."""
        with _lock:
            return {at: list(histogram) for at, histogram in self._histograms.items()}

    def _observe(self, at: str, seconds: float) -> None:
        histogram = self._histograms.get(at)
        if histogram is None:
            histogram = self._histograms[at] = _new_histogram()
        histogram[bisect_left(BOUNDS, seconds)] += 1
        histogram[-1] += max(0.0, seconds)

    def _tell(self, metric: Metric, label: str, amount: float) -> None:
        assert self.observer is not None
        try:
            self.observer(metric, label, amount)
        except Exception:  # noqa: BLE001 - users' code: its bug must not end a request
            _log.exception("an observer of deadlines raised; counting goes on")


def _new_histogram() -> list[float]:
    return [0.0] * (len(BOUNDS) + 2)  # the last two: over all bounds, sum


# One that a thread may take twice: the garbage collector may run somebody's `finally` in the middle of a count.
_lock = threading.RLock()
COUNTERS: Final = Counters()
"""The process's own."""


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()


# A fork in one thread while another counts would leave the child with a lock that nobody gives back.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


def prometheus_collector(counters: Counters = COUNTERS, *, prefix: str = "") -> Any:
    """A collector to register with a `prometheus_client` registry; `prefix` goes before each name.

    Raises `ImportError` when that library is not installed.
    """
    try:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
    except ImportError as error:
        raise ImportError("prometheus_collector needs prometheus-client: pip install prometheus-client") from error

    class Collector:
        """Reads `counters` at each scrape."""

        def collect(self) -> Iterable[Any]:
            snapshot = counters.snapshot()
            for metric, family in FAMILIES.items():
                labels = () if family.label is None else (family.label,)
                if family.histogram:
                    histogram = HistogramMetricFamily(prefix + metric, family.help, labels=labels)
                    for at, (buckets, total) in counters.buckets().items():
                        texts = [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in buckets]
                        histogram.add_metric([at], texts, total)
                    yield histogram
                    continue
                counter = CounterMetricFamily(prefix + metric.removesuffix("_total"), family.help, labels=labels)
                for (counted, label), value in snapshot.items():
                    if counted is metric:
                        counter.add_metric([label] if labels else [], value)
                yield counter

    return Collector()


SpanHook = Callable[[Mapping[str, float | bool]], None]
"""Puts attributes on the current span."""


def opentelemetry_span() -> SpanHook:
    """A hook that sets attributes on OpenTelemetry's current span. Raises `ImportError` when that is not installed."""
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ImportError("opentelemetry_span needs opentelemetry-api: pip install 'gatepost[otel]'") from error

    def set_attributes(attributes: Mapping[str, float | bool]) -> None:
        trace.get_current_span().set_attributes(dict(attributes))

    return set_attributes
