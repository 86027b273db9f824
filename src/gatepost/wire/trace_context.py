"""The W3C trace context (traceparent, tracestate): read from callers, kept with an event, and made anew for each attempt.

Ids of deliveries and attempts are derived from what they are, so that every process, at any hour, names the same spans without
storing a word about them. It samples nothing and exports nothing; what is malformed counts as absent, as the standard asks.
Called by the API, `dispatch.new_event`, `dispatch.attempt` and whoever makes spans.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

SAMPLED: Final = 0x01
TRACESTATE_MAX: Final = 512
"""Characters of a tracestate that must be passed on (section 3.3.1.5); a longer one is left out, never refused."""

# Version 00 has exactly this; later versions begin so and may go on after a hyphen (section 3.2.4). "ff" is no version.
_TRACEPARENT: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_SPAN_MASK: Final = (1 << 64) - 1
_SPREAD: Final = 0x9E3779B97F4A7C15
"""Odd, so that multiplying by it maps no two instants to one number; a hash would cost twice as much with every attempt."""
_TRACESTATE: Final = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of somebody's trace."""

    trace_id: int
    span_id: int
    sampled: bool
    state: str = ""
    """`tracestate` as it came; empty: none."""


def kept_context(traceparent: str | None, tracestate: str | None = None) -> str | None:
    """The text that is stored with an event: both headers, one blank between them. None for a malformed or missing traceparent."""
    if traceparent is None:
        return None
    match = _TRACEPARENT.fullmatch(traceparent.strip())
    if match is None or (match[1] == "00" and match[5] is not None):
        return None
    kept = f"00-{match[2]}-{match[3]}-{int(match[4], 16) & SAMPLED:02x}"
    state = (tracestate or "").strip()
    if not state or len(state) > TRACESTATE_MAX or _TRACESTATE.fullmatch(state) is None:
        return kept
    return f"{kept} {state}"


def recheck_context(kept: object) -> str | None:
    """A kept text that anybody may have written, if it is one."""
    if not isinstance(kept, str):
        return None
    traceparent, _, tracestate = kept.partition(" ")
    return kept_context(traceparent, tracestate)


def read_context(kept: str | None) -> TraceContext | None:
    """What `kept_context` wrote; None for nothing, or for a text that somebody wrote by hand."""
    headers = headers_of(kept)
    if not headers:
        return None
    _, trace_id, span_id, flags = headers["traceparent"].split("-")
    return TraceContext(int(trace_id, 16), int(span_id, 16), flags == "01", headers.get("tracestate", ""))


def headers_of(kept: str | None) -> dict[str, str]:
    """The headers as they came, for a receiver whose span follows the publisher's directly; empty for nothing."""
    checked = recheck_context(kept)
    if checked is None:
        return {}
    traceparent, _, tracestate = checked.partition(" ")
    return {"traceparent": traceparent, "tracestate": tracestate} if tracestate else {"traceparent": traceparent}


def delivery_ids(event_id: int, delivery_id: int, endpoint: int, born_at: int) -> tuple[int, int]:
    """Trace id and span id of a delivery's own trace. A replay begins a new window (`born_at`), and with it a new trace."""
    digest = blake2b(b"delivery %d %d %d %d" % (event_id, delivery_id, endpoint, born_at), digest_size=24).digest()
    return int.from_bytes(digest[:16], "big") or 1, int.from_bytes(digest[16:], "big") or 1


def attempt_span_id(delivery_span: int, started_at: int) -> int:
    """Span id of the attempt of a delivery that began at this instant (UTC microseconds): another one for each instant."""
    return (delivery_span ^ (started_at * _SPREAD & _SPAN_MASK)) or 1


def ratio_samples(trace_id: int, ratio: float) -> bool:
    """Whether a trace is among the share `ratio` of all; every process answers alike (by the lower 64 bits, as OpenTelemetry's
    `TraceIdRatioBased` does)."""
    return (trace_id & _SPAN_MASK) < ratio * (1 << 64)
