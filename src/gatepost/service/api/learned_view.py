"""What was learned about an endpoint, as JSON: for its record and for `policy explain`. A pure function."""

from __future__ import annotations

from typing import Any

from gatepost.dispatch.learned import KnownLimits
from gatepost.service.api.views import time_text


def learned_view(known: KnownLimits) -> dict[str, Any]:
    """Read timeout, breaker and cap, with where they come from. Times are RFC 3339, durations seconds."""
    statistics = known.statistics
    learned = statistics.learned
    return {
        "live": known.live,
        "state": learned.state.value,
        "read_timeout": learned.read_timeout,
        "in_force": learned.in_force,
        "read_timeout_in_force": statistics.read_timeout,
        "p50": learned.p50,
        "p99": learned.p99,
        "samples": learned.samples,
        "learned_at": time_text(learned.learned_at),
        "mode": learned.mode.value,
        "text": learned.text,
        "breaker": {
            "state": statistics.state.value,
            "cause": None if statistics.cause is None else statistics.cause.value,
            "level": statistics.level,
            "open_until": time_text(statistics.open_until or None),
            "recovered_at": time_text(statistics.recovered_at or None),
        },
        "cap": statistics.cap,
        "learned_cap": statistics.learned_cap,
        "in_flight": statistics.in_flight if known.live else None,
        "alarm": None if statistics.alarm is None else statistics.alarm.name.lower(),
    }
