"""Metrics: the fixed names, bounded labels, sums that agree, and a text that Prometheus can read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gatepost.delivery.outcome import Outcome
from gatepost.service.histogram import BOUNDS
from gatepost.service.host_labels import (
    ALWAYS,
    MEMBERSHIP_MIN,
    OTHER,
    REBALANCE_INTERVAL,
    HostSeries,
    Labels,
    ReuseWindow,
)
from gatepost.service.metric_table import METRICS, Kind
from gatepost.service.metrics import DEFAULT_HOSTS, Metrics
from gatepost.service.shared_metrics import SharedMetrics
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation
from gatepost.testing.virtual import VirtualClock
from gatepost.wire.phases import Phase
from tests.service.running import api, until

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def attempt(
    host: str = "https://a.example:443",
    outcome: str = "response",
    *,
    reused: bool = True,
    stale_retry: bool = False,
    phases: Mapping[str, float] | None = None,
    safety: str = "pointless",
    status: int | None = 200,
    body_fault: str | None = None,
) -> AttemptObservation:
    """One observation."""
    return AttemptObservation(
        outcome=outcome,
        delivered=outcome == "response",
        phase="read",
        reason="ok",
        retry_safety=safety,
        blame="endpoint",
        status=status,
        host=host,
        endpoint_id=None,
        tenant=None,
        address=None,
        elapsed=0.03,
        phases=phases or {"pool": 0.0, "write": 0.0001, "wait": 0.02, "read": 0.0004},
        reused=reused,
        stale_retry=stale_retry,
        bytes_sent=100,
        body_fault=body_fault,
        lagged=False,
    )


def read(metrics: Metrics) -> Samples:
    """What a scrape says, by sample name and labels."""
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    """One sample."""
    return samples[name, frozenset(labels.items())]


def test_the_seeds_names_stand_as_given() -> None:
    """Dashboards and alerts of the field use them; a prefix would break each of them."""
    metrics = Metrics(clock=VirtualClock())
    metrics.watch("pool_connections_in_use", lambda: 3)
    metrics.watch("pool_connections_idle", lambda: 5)
    metrics.attempt_finished(attempt())
    metrics.attempt_finished(attempt(reused=False, phases={"connect": 0.01, "wait": 0.02}))
    metrics.attempt_finished(
        attempt(outcome="shed", reused=False, phases={"admission": 1.0}, status=None, safety="safe")
    )
    samples = read(metrics)
    host = "https://a.example:443"
    assert value(samples, "delivery_phase_duration_seconds_count", phase="wait", outcome="response") == 2
    assert value(samples, "delivery_phase_duration_seconds_sum", phase="admission", outcome="shed") == 1.0
    assert value(samples, "pool_connections_in_use") == 3
    assert value(samples, "pool_connections_idle") == 5
    assert value(samples, "connection_reuse_ratio", host=host) == 0.5
    assert value(samples, "deliveries_shed_total", host=host) == 1


def test_all_other_names_begin_with_ours() -> None:
    """A process that embeds Gatepost has metrics of its own."""
    metrics = Metrics(clock=VirtualClock())
    for described in METRICS.values():
        if described.kind is Kind.GAUGE and not described.labels:
            metrics.watch(described.name, lambda: 1)
    metrics.attempt_finished(attempt(body_fault="timeout", stale_retry=True, safety="ambiguous"))
    fixed = {
        "delivery_phase_duration_seconds",
        "pool_connections_in_use",
        "pool_connections_idle",
        "connection_reuse_ratio",
        "deliveries_shed",
    }
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        assert family.name in fixed or family.name.startswith("gatepost_"), family.name
        assert family.documentation, family.name


@pytest.mark.parametrize("seconds", [0.0, 0.0004, 0.0005, 0.3, 2.0, 30.0, 31.0])
def test_buckets_are_cumulative_and_include_their_bound(seconds: float) -> None:
    """An off-by-one in a bucket is a wrong percentile for ever."""
    metrics = Metrics(clock=VirtualClock())
    metrics.attempt_finished(attempt(phases={"wait": seconds}))
    samples = read(metrics)
    for bound in BOUNDS:
        count = value(
            samples, "delivery_phase_duration_seconds_bucket", phase="wait", outcome="response", le=str(bound)
        )
        assert count == (seconds <= bound), bound
    infinite = value(samples, "delivery_phase_duration_seconds_bucket", phase="wait", outcome="response", le="+Inf")
    assert infinite == 1


def test_ambiguous_outcomes_are_counted_apart() -> None:
    """After a read timeout the receiver may have acted: a different question than "did it fail"."""
    metrics = Metrics(clock=VirtualClock())
    metrics.attempt_finished(attempt(outcome="read_timeout", safety="ambiguous", status=None))
    metrics.attempt_finished(attempt(outcome="connect_timeout", safety="safe", status=None))
    samples = read(metrics)
    assert value(samples, "gatepost_attempts_ambiguous_total", outcome="read_timeout") == 1
    assert ("gatepost_attempts_ambiguous_total", frozenset({("outcome", "connect_timeout")})) not in samples
    assert (
        value(samples, "gatepost_attempts_total", outcome="read_timeout", retry_safety="ambiguous", blame="endpoint")
        == 1
    )


def test_decisions_dead_letters_and_events_are_counted() -> None:
    """What the dispatcher did with outcomes matters more to owners than the outcomes."""
    metrics = Metrics(clock=VirtualClock())
    for decision, why in (("retry_at", "timeout"), ("dead_letter", "attempts_exhausted"), ("complete", "delivered")):
        metrics.delivery_decided(DeliveryObservation("e", "d", "p", "t", "x", 1, decision, why, None, 0.01, attempt()))
    metrics.operational(OperationalObservation("endpoint_disabled", "410"))
    metrics.count_ingest("accepted", 3)
    samples = read(metrics)
    assert value(samples, "gatepost_decisions_total", decision="retry_at", why="timeout") == 1
    assert value(samples, "gatepost_dead_letters_total", why="attempts_exhausted") == 1
    assert value(samples, "gatepost_operational_events_total", kind="endpoint_disabled") == 1
    assert value(samples, "gatepost_events_ingested_total", answer="accepted") == 3
    assert value(samples, "gatepost_delivery_wait_seconds_count") == 3


def test_a_stale_retry_counts_as_an_opened_connection() -> None:
    """The answer came over a fresh one; counting it as reused would hide a peer with a short idle limit."""
    metrics = Metrics(clock=VirtualClock())
    metrics.attempt_finished(attempt(stale_retry=True))
    samples = read(metrics)
    assert value(samples, "gatepost_stale_retries_total") == 1
    assert value(samples, "gatepost_connections_opened_total") == 1
    assert value(samples, "gatepost_connections_reused_total") == 0


def test_a_refused_destination_gets_no_host_label() -> None:
    """Its "host" is whatever someone typed."""
    metrics = Metrics(clock=VirtualClock())
    metrics.attempt_finished(attempt(host="address 10.0.0.7", outcome="egress_denied", reused=False, phases={}))
    assert not metrics.hosts.is_member("address 10.0.0.7")
    assert value(read(metrics), "gatepost_host_attempts_total", host=OTHER, outcome="egress_denied") == 1


def test_hosts_beyond_the_bound_are_other_and_the_sums_hold() -> None:
    """Ten thousand customers must not become ten thousand series, and nothing may get lost."""
    metrics = Metrics(hosts=3, clock=VirtualClock())
    for number in range(10):
        for _ in range(number + 1):
            metrics.attempt_finished(attempt(f"https://h{number}.example:443", reused=False, phases={"connect": 0.1}))
    samples = read(metrics)
    hosts = {dict(labels)["host"] for name, labels in samples if name == "gatepost_host_connections_opened_total"}
    assert hosts == {"https://h0.example:443", "https://h1.example:443", "https://h2.example:443", OTHER}
    total = sum(v for (name, _), v in samples.items() if name == "gatepost_host_connections_opened_total")
    assert total == value(samples, "gatepost_connections_opened_total") == 55


def test_membership_is_sticky_for_an_hour_and_other_never_falls() -> None:
    """A series that comes and goes breaks every rate over it; a counter that falls looks like a restart."""
    labels = Labels(2, 0.0, HostSeries)
    for host in ("a", "b"):
        labels.of(host, 0.0).opened += 1
    for _ in range(50):
        labels.of("busy", 1.0).opened += 1
    labels.rebalance(REBALANCE_INTERVAL)
    assert labels.is_member("a")
    assert labels.is_member("b")
    before = labels.other.opened
    assert before == 50
    for _ in range(50):
        labels.of("busy", MEMBERSHIP_MIN).opened += 1
    labels.of("a", MEMBERSHIP_MIN)
    labels.rebalance(MEMBERSHIP_MIN + REBALANCE_INTERVAL)
    assert labels.is_member("busy")
    assert labels.is_member("a")
    assert not labels.is_member("b")
    labels.of("busy", MEMBERSHIP_MIN + 61).opened += 1
    assert labels.other.opened == before + 50
    assert len(labels.all()) == 3


def test_a_quieter_outsider_does_not_replace_a_member() -> None:
    """Otherwise labels would rotate among equals each minute."""
    labels = Labels(1, 0.0, HostSeries)
    for _ in range(10):
        labels.of("steady", 0.0)
    for _ in range(10):
        labels.of("other", MEMBERSHIP_MIN)
    labels.rebalance(MEMBERSHIP_MIN + 1)
    assert labels.is_member("steady")


def test_candidates_are_bounded_and_a_busy_one_survives_the_crowd() -> None:
    """The memory for hosts without a label must not grow with the number of customers."""
    labels = Labels(2, 0.0, HostSeries)
    for host in ("a", "b"):
        labels.of(host, 0.0)
    for number in range(2_000):
        labels.of(f"crowd{number}", 1.0)
        labels.of("busy", 1.0)
    labels.rebalance(MEMBERSHIP_MIN)
    assert labels.is_member("busy")


def test_the_reuse_ratio_forgets_after_five_minutes() -> None:
    """It is an early warning: last week's handshakes must not hide today's."""
    window = ReuseWindow()
    assert window.ratio(0.0) is None
    for _ in range(3):
        window.add(0.0, False)
    window.add(10.0, True)
    assert window.ratio(20.0) == 0.25
    window.add(299.0, True)
    assert window.ratio(299.0) == 0.4
    assert window.ratio(400.0) == 1.0
    assert window.ratio(1_000.0) is None
    window.add(3_600.0, False)
    assert window.ratio(3_600.0) == 0.0


def test_a_registry_of_the_callers_is_used_and_the_default_one_left_alone() -> None:
    """Embedding applications expose one registry, theirs."""
    registry = CollectorRegistry()
    metrics = Metrics(registry=registry, clock=VirtualClock())
    assert metrics.registry is registry
    assert b"gatepost_build_info" in generate_latest(registry)
    from prometheus_client import REGISTRY

    names: Iterable[str] = (family.name for family in REGISTRY.collect())
    assert not any(name.startswith("gatepost") for name in names)


def test_a_host_has_counters_of_its_failures_before_the_first() -> None:
    """Five timeouts within one scrape and then an open breaker: without a zero before them Prometheus sees no rise at all."""
    metrics = Metrics(clock=VirtualClock())
    metrics.attempt_finished(attempt())
    samples = read(metrics)
    for outcome in ALWAYS[1:]:
        assert value(samples, "gatepost_host_attempts_total", host="https://a.example:443", outcome=outcome) == 0
    assert {Outcome(outcome) for outcome in ALWAYS}  # each is one


def test_an_idle_host_loses_its_series_and_a_free_label_goes_to_the_busiest_first() -> None:
    """What nobody sends to any more is not exposed for ever; and the label is not lost to whoever comes by next."""
    labels = Labels(2, 0.0, HostSeries)
    for now in range(0, 2 * int(MEMBERSHIP_MIN), int(REBALANCE_INTERVAL)):
        labels.of("steady", now)
        if not now:
            labels.of("idle", now)
        for name in ("busy", "busy", "rare"):
            labels.of(name, now)
        labels.rebalance(now)
        if now < MEMBERSHIP_MIN:
            assert labels.is_member("idle")
    assert [series.name for series in labels.all()] == ["busy", "steady", OTHER]


def test_fifty_thousand_hosts_in_an_hour_fit_into_one_scrape() -> None:
    """2 MB and bounded memory, whatever fails in whatever way and at whatever endpoint; `bench.metrics` says how long it takes."""
    clock = VirtualClock()
    metrics = Metrics(clock=clock)
    outcomes = [outcome.value for outcome in Outcome]
    phases = {phase.value: 0.1 for phase in Phase}
    for number in range(50_000):
        observation = attempt(
            f"https://customer-{number}.hooks.some-platform.example:443",
            outcomes[number % len(outcomes)],
            phases=phases,
            status=100 + number % 500,
        )
        metrics.attempt_finished(replace(observation, endpoint_id=f"ep_{number:013}"))
        if number % 500 == 0:
            clock.advance(36.0)
            metrics.hosts.rebalance(clock.monotonic())
    text = generate_latest(metrics.registry)
    assert len(text) < 1_000_000
    samples = read(metrics)
    hosts = {dict(labels)["host"] for name, labels in samples if name == "gatepost_host_attempts_total"}
    endpoints = {dict(labels)["endpoint"] for name, labels in samples if name == "gatepost_endpoint_attempts_total"}
    assert len(hosts) <= DEFAULT_HOSTS + 1
    assert len(endpoints) <= DEFAULT_HOSTS + 1
    counted = sum(count for (name, _), count in samples.items() if name == "gatepost_host_attempts_total")
    assert counted <= 50_000
    assert value(samples, "gatepost_attempt_duration_seconds_count", outcome="response") == 4_546


def test_the_page_of_telemetry_and_what_a_service_exposes_are_the_same() -> None:
    """A name on the page that is not exposed is a promise broken; one that is exposed and not there is a secret."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "telemetry.md").read_text()
    rows = {
        match[1]: (match[2], frozenset(re.findall(r"`(\w+)`", match[3])))
        for match in re.finditer(r"^\| `(\w+)` \| (counter|gauge|histogram|info) \| ([^|]*) \|", page, re.MULTILINE)
    }
    assert rows == {one.name: (one.kind.value, frozenset(one.all_labels)) for one in METRICS.values()}
    for kind in (AttemptObservation, DeliveryObservation, OperationalObservation):
        part = page.partition(f"### {kind.__name__}\n")[2].partition("\n### ")[0]
        assert {field.name for field in fields(kind)} == set(re.findall(r"^\| `(\w+)` ", part, re.MULTILINE))


async def test_a_service_exposes_every_metric_that_the_table_has(tmp_path: Path) -> None:
    """The table is a promise; a gauge that nobody reads would be one that is missing."""
    async with api(tmp_path) as one:
        shared = one.running.service.shared_metrics
        assert shared is not None
        await until(lambda: _has(shared, "gatepost_queue_waiting"))
        told = await shared.everywhere()
        text = (await one.client.get("/metrics")).text
    assert set(METRICS) - set(told) == {"gatepost_log_lines_dropped_total"}, "only with a log"
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {METRICS[name].name.removesuffix("_total") for name in told} == names


async def _has(shared: SharedMetrics, name: str) -> bool:
    return name in await shared.here()
