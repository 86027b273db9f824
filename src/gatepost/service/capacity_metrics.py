"""Reads a load and a configuration from the text of `/metrics`: what really arrives, how long it holds its slots, what hangs.

An attempt that ran into a limit counts as bad, any other that touched the network as healthy; what never held a slot is left
out. It fetches nothing and computes no plan: `gatepost capacity --from-metrics` brings the text and takes the figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from gatepost.delivery.outcome import Outcome
from gatepost.errors import ConfigurationError

BAD: Final = frozenset(
    {Outcome.CONNECT_TIMEOUT, Outcome.WRITE_TIMEOUT, Outcome.READ_TIMEOUT, Outcome.DEADLINE_EXCEEDED}
)
HEALTHY: Final = frozenset({Outcome.RESPONSE, Outcome.TRANSPORT_ERROR})


@dataclass(frozen=True, slots=True)
class Reading:
    """One scrape, or the difference of two. Processes whose series stand side by side are added up."""

    healthy_count: float = 0.0
    healthy_seconds: float = 0.0
    bad_count: float = 0.0
    bad_seconds: float = 0.0
    slots: int | None = None
    """Attempts that may be in flight at once."""
    cap: int | None = None
    """`per_endpoint_concurrency` of the effective policy."""
    read_timeout: float | None = None
    waiting: int | None = None
    """Deliveries in the queue, due or not."""

    @property
    def attempts(self) -> float:
        """Attempts that held a slot."""
        return self.healthy_count + self.bad_count

    @property
    def mean(self) -> float | None:
        """Seconds of a healthy attempt; None without one."""
        return self.healthy_seconds / self.healthy_count if self.healthy_count else None

    @property
    def bad_share(self) -> float:
        """Share of attempts that ran into a limit."""
        return self.bad_count / self.attempts if self.attempts else 0.0

    @property
    def bad_timeout(self) -> float:
        """Seconds of such an attempt."""
        return self.bad_seconds / self.bad_count if self.bad_count else 0.0

    def since(self, earlier: Reading) -> Reading:
        """What happened between two readings, with the configuration of this one.

        Raises `ConfigurationError` when a counter fell: a process was restarted in between.
        """
        later = replace(
            self,
            healthy_count=self.healthy_count - earlier.healthy_count,
            healthy_seconds=self.healthy_seconds - earlier.healthy_seconds,
            bad_count=self.bad_count - earlier.bad_count,
            bad_seconds=self.bad_seconds - earlier.bad_seconds,
        )
        if min(later.healthy_count, later.healthy_seconds, later.bad_count, later.bad_seconds) < 0.0:
            raise ConfigurationError(
                "counters fell between the two readings: a process was restarted, or their order is wrong; read again"
            )
        return later


def read_metrics(text: str) -> Reading:
    """The figures in an exposition. Raises `ConfigurationError` for a text that is none, or is not Gatepost's."""
    counts: dict[str, float] = {}
    seconds: dict[str, float] = {}
    gauges: dict[str, float] = {}
    limits: dict[str, float] = {}
    known = False
    try:
        for family in text_string_to_metric_families(text):
            known = known or family.name.startswith("gatepost_")
            for sample in family.samples:
                match sample.name:
                    case "gatepost_attempt_duration_seconds_count":
                        _add(counts, sample.labels.get("outcome", ""), sample.value)
                    case "gatepost_attempt_duration_seconds_sum":
                        _add(seconds, sample.labels.get("outcome", ""), sample.value)
                    case "gatepost_slots" | "gatepost_queue_waiting":
                        _add(gauges, sample.name, sample.value)
                    case "gatepost_policy_limit":
                        limits[sample.labels.get("limit", "")] = sample.value
                    case _:
                        pass
    except (ValueError, KeyError, IndexError):
        raise ConfigurationError(
            "this is no text of Prometheus: write the address or a saved page of /metrics"
        ) from None
    if not known:
        raise ConfigurationError(
            "no metric of Gatepost is in it: write the address or a saved page of its own /metrics"
        )
    return Reading(
        _sum(counts, HEALTHY),
        _sum(seconds, HEALTHY),
        _sum(counts, BAD),
        _sum(seconds, BAD),
        slots=_whole(gauges.get("gatepost_slots")),
        cap=_whole(limits.get("per_endpoint_concurrency")),
        read_timeout=limits.get("read_timeout"),
        waiting=_whole(gauges.get("gatepost_queue_waiting")),
    )


def _add(into: dict[str, float], key: str, value: float) -> None:
    into[key] = into.get(key, 0.0) + value


def _sum(by_outcome: Mapping[str, float], outcomes: frozenset[Outcome]) -> float:
    return sum(value for outcome, value in by_outcome.items() if outcome in outcomes)


def _whole(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) else int(value)
