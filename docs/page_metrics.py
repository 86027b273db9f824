"""The page of metrics: every name, its labels and what it says, read from a scrape. Used by `docs.build_reference`."""

from __future__ import annotations

from docs.tables import generated_note, table
from gatepost.service.metrics import DEFAULT_HOSTS, Metrics
from gatepost.service.metrics_exposition import GAUGES
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation


def render_metrics() -> str:
    """`metrics.md`."""
    parts = [
        "# Metrics",
        generated_note(),
        f"`GET /metrics`, in Prometheus or OpenMetrics text. Names of the field stand as they are known; all others begin with "
        f"`gatepost_`. At most {DEFAULT_HOSTS} hosts (setting `metrics.hosts`) have a `host` label of their own, for at least "
        f"an hour at a time; the rest is `other`, which never falls. Beside every family by host there is one without.",
        table(("metric", "type", "labels", "what it says"), _rows()),
    ]
    return "\n\n".join(parts) + "\n"


def _rows() -> list[tuple[str, str, str, str]]:
    metrics = Metrics()
    for name in GAUGES:
        metrics.watch(name, lambda: 0)
    metrics.limits = {"read_timeout": 10.0}
    attempt = AttemptObservation(
        "response", True, "read", "ok", "ambiguous", "endpoint", 200, "https://example.com:443", None, None, None, 0.1,
        {"connect": 0.1}, False, False, 1, "timeout", False,
    )  # fmt: skip
    metrics.attempt_finished(attempt)
    metrics.delivery_decided(DeliveryObservation("", "", "", "", "", 1, "dead_letter", "gone", None, 0.0, attempt))
    metrics.operational(OperationalObservation("kind", "text"))
    metrics.count_ingest("accepted")
    metrics.count_trips("https://example.com:443", "read_timeout", 1)
    rows = []
    for family in metrics.registry.collect():
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        name = family.name + ("_total" if family.type == "counter" else "_info" if family.type == "info" else "")
        rows.append((f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels), family.documentation))
    return rows
