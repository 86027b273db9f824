"""The frozen record of one attempt, as `DispatchClient.deliver` returns it; it holds facts and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from gatepost.delivery.outcome import Blame, Outcome, RetrySafety, Verdict
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import BodyFault, Reason


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try that touched the network, or was refused before it. `delivered` is what to ask; `outcome` says how it ended."""

    outcome: Outcome
    delivered: bool
    """A complete 2xx response head arrived."""
    phase: Phase
    """The phase in which it ended."""
    reason: Reason
    retry_safety: RetrySafety
    blame: Blame
    status: int | None
    host: str
    """`scheme://host:port`; for a URL that was refused, the part that was."""
    address: str | None
    """The peer's address, `ip:port`; None when none was dialled."""
    elapsed: float
    """Seconds from the call to its end."""
    phases: Mapping[Phase, float]
    """Seconds spent in each phase that was entered."""
    reused: bool
    """The connection had served an earlier request."""
    stale_retry: bool
    """A reused connection had died unnoticed and the request was sent once more on a fresh one."""
    bytes_sent: int
    """Request bytes handed to the kernel, on the last connection used."""
    response_headers: tuple[tuple[str, str], ...] = field(repr=False)
    """Pairs as received, names in lower case."""
    body: bytes = field(repr=False)
    """The first bytes of the response body, bounded by `max_response_body`; after `response_protocol_error` without a status,
    the first 64 bytes of what came instead of a response."""
    body_fault: BodyFault | None
    started_at: float
    """Wall clock, seconds since 1970."""
    lagged: bool = False
    """Our event loop ran late when this ended: for learners and breakers the blame is ours."""

    def header(self, name: str) -> str | None:
        """The first response header of that name, whatever its case, or None."""
        wanted = name.lower()
        for key, value in self.response_headers:
            if key == wanted:
                return value
        return None


class _Unfrozen:
    """An `Attempt` while it is filled: the same slots, without the `object.__setattr__` per field of a frozen class."""

    __slots__ = Attempt.__slots__


def attempt_record(
    verdict: Verdict,
    status: int | None,
    host: str,
    address: str | None,
    elapsed: float,
    phases: Mapping[Phase, float],
    reused: bool,
    stale_retry: bool,
    bytes_sent: int,
    response_headers: tuple[tuple[str, str], ...],
    body: bytes,
    body_fault: BodyFault | None,
    started_at: float,
    lagged: bool,
) -> Attempt:
    """The `Attempt` of these facts, for whoever makes thousands a second: 0.6 µs instead of 2 µs."""
    record: Any = _Unfrozen()
    record.outcome = verdict.outcome
    record.delivered = verdict.delivered
    record.phase = verdict.phase
    record.reason = verdict.reason
    record.retry_safety = verdict.retry_safety
    record.blame = verdict.blame
    record.status = status
    record.host = host
    record.address = address
    record.elapsed = elapsed
    record.phases = phases
    record.reused = reused
    record.stale_retry = stale_retry
    record.bytes_sent = bytes_sent
    record.response_headers = response_headers
    record.body = body
    record.body_fault = body_fault
    record.started_at = started_at
    record.lagged = lagged
    record.__class__ = Attempt
    return cast(Attempt, record)
