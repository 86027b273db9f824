"""The figures of a scrape as plain values: merged over processes by the rules of `metric_table`, sent as JSON, and exposed.

A snapshot is by metric, then by label values in the table's order. Counters and gauges are numbers; a histogram is the list of
`service.histogram`; a ratio is the pair of part and whole, divided only when exposed. Pure but for prometheus-client's classes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, assert_never

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from gatepost.service.histogram import cumulative
from gatepost.service.metric_table import METRICS, Described, Kind, Merge

Key = tuple[str, ...]
Value = float | list[float]
Rows = dict[Key, Value]
Snapshot = dict[str, Rows]

_TOTAL: Final = "_total"
_INFO: Final = "_info"


def merged(snapshots: Iterable[Mapping[str, Mapping[Key, Value]]]) -> Snapshot:
    """One snapshot for all, in the table's order. Metrics that this version does not know are left out."""
    whole: Snapshot = {}
    for snapshot in snapshots:
        for name, rows in snapshot.items():
            described = METRICS.get(name)
            if described is not None:
                _add(whole.setdefault(name, {}), rows, described)
    return {name: whole[name] for name in METRICS if name in whole}


def lasting(snapshot: Mapping[str, Rows]) -> Snapshot:
    """What stays of a process that ended: its counters and histograms."""
    return {name: rows for name, rows in snapshot.items() if METRICS[name].lasting}


def to_json(snapshot: Mapping[str, Rows]) -> bytes:
    """As another process reads it."""
    document = {name: [[*key, value] for key, value in rows.items()] for name, rows in snapshot.items()}
    return json.dumps(document, separators=(",", ":")).encode()


def from_json(document: Any) -> Snapshot:
    """What `to_json` wrote, as `json.loads` read it. Raises `ValueError` for anything else."""
    try:
        return {
            name: {tuple(row[:-1]): row[-1] for row in rows if _fits(METRICS[name], row)}
            for name, rows in document.items()
            if name in METRICS
        }
    except (AttributeError, TypeError, KeyError, IndexError):
        raise ValueError("these are no figures of a process of ours") from None


def exposed(snapshot: Mapping[str, Rows]) -> Iterator[Metric]:
    """Prometheus' families."""
    for name, rows in snapshot.items():
        described = METRICS[name]
        labels = described.all_labels
        family: Any
        match described.kind:
            case Kind.COUNTER:
                family = CounterMetricFamily(name.removesuffix(_TOTAL), described.help, labels=labels)
                for key, value in rows.items():
                    family.add_metric(key, value)
            case Kind.GAUGE:
                family = GaugeMetricFamily(name, described.help, labels=labels)
                for key, value in rows.items():
                    if isinstance(value, list):
                        part, whole = value
                        value = part / whole
                    family.add_metric(key, value)
            case Kind.HISTOGRAM:
                family = HistogramMetricFamily(name, described.help, labels=labels)
                for key, value in rows.items():
                    assert isinstance(value, list), "a histogram's rows are lists"
                    family.add_metric(key, *cumulative(value, described.bounds))
            case Kind.INFO:
                family = InfoMetricFamily(name.removesuffix(_INFO), described.help, labels=())
                family.labels = ()
                for key in rows:
                    family.add_metric((), dict(zip(labels, key, strict=True)))
            case _ as never:
                assert_never(never)
        yield family


def _add(whole: Rows, rows: Mapping[Key, Value], described: Described) -> None:
    largest = described.merge in (Merge.MAX, Merge.EACH)
    for key, value in rows.items():
        known = whole.get(key)
        if known is None:
            whole[key] = list(value) if isinstance(value, list) else value
        elif isinstance(value, list):
            assert isinstance(known, list), "rows of one metric are alike"
            whole[key] = [one + other for one, other in zip(known, value, strict=True)]
        else:
            assert not isinstance(known, list), "rows of one metric are alike"
            whole[key] = max(known, value) if largest else known + value


def _fits(described: Described, row: list[Any]) -> bool:
    """Another version may have given it other labels or buckets: such rows cannot be added to ours."""
    value = row[-1]
    if len(row) != len(described.all_labels) + 1:
        return False
    if described.kind is Kind.HISTOGRAM:
        return isinstance(value, list) and len(value) == len(described.bounds) + 2
    if described.merge is Merge.RATIO:
        return isinstance(value, list) and len(value) == 2
    return isinstance(value, int | float)
