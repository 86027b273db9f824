"""The record of an attempt that ended before anything was asked of the network: a denied URL, or a stop while we prepared.

It makes the value only; `net.client` tells observers. Everything later is `net.flight`'s.
"""

from __future__ import annotations

from gatepost.clock import Clock
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import End, Evidence, classify
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason


def unsent(end: End, reason: Reason, host: str, began: float, clock: Clock) -> Attempt:
    """An attempt of `host` (an origin, or the part of a URL that was refused) that began at `began` and ends now.

    `began` is monotonic seconds of `clock`; a denied one took no time.
    """
    verdict = classify(Evidence(end, Phase.ADMISSION, reason))
    elapsed = 0.0 if end is End.DENIED else clock.monotonic() - began
    return Attempt(
        outcome=verdict.outcome,
        delivered=False,
        phase=verdict.phase,
        reason=verdict.reason,
        retry_safety=verdict.retry_safety,
        blame=verdict.blame,
        status=None,
        host=host,
        address=None,
        elapsed=elapsed,
        phases={} if end is End.DENIED else {verdict.phase: elapsed},
        reused=False,
        stale_retry=False,
        bytes_sent=0,
        response_headers=(),
        body=b"",
        body_fault=None,
        started_at=clock.wall_us() / 1_000_000 - elapsed,
    )
