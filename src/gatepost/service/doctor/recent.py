"""Counts what attempts of the last five minutes did with connections, by host, for the doctor: a few additions per attempt.

An `Observer` beside the metrics, because metrics have labels for the busiest hosts only and count from the start of the process:
what was mended an hour ago must not be found any more. It judges nothing; not safe for threads, like everything on the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.service.doctor.facts import HostFacts
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation

SLOT: Final = 60.0
"""Seconds of one count."""
SLOTS: Final = 6
"""Five whole ones and the one that is being filled."""
HOSTS_MAX: Final = 4_096
"""Hosts counted in one slot, some 200 bytes each: 5 MB at most. The busiest are among the first of each minute."""

_ATTEMPTS, _OPENED, _REUSED, _POOL_TIMEOUTS, _STALE = range(5)


class RecentHosts:
    """The counts. `second_client` is what was said of a second client, None while there was none."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._monotonic = clock.monotonic
        self._current: dict[str, list[int]] = {}
        self._slots: deque[tuple[float, dict[str, list[int]]]] = deque(maxlen=SLOTS)
        self._ends = float("-inf")
        self.second_client: str | None = None

    def attempt_finished(self, observation: AttemptObservation) -> None:
        """Count one attempt."""
        now = self._monotonic()
        if now >= self._ends:
            self._turn(now)
        outcome = observation.outcome
        if outcome == "egress_denied":
            return  # its host is whatever a user wrote
        counts = self._current.get(observation.host)
        if counts is None:
            if len(self._current) >= HOSTS_MAX:
                return
            counts = self._current[observation.host] = [0, 0, 0, 0, 0]
        counts[_ATTEMPTS] += 1
        if observation.stale_retry:
            counts[_STALE] += 1
            counts[_OPENED] += 1
        elif observation.reused:
            counts[_REUSED] += 1
        elif "write" in observation.phases:  # a connection that never came to be was not wasted
            counts[_OPENED] += 1
        if outcome == "pool_timeout":
            counts[_POOL_TIMEOUTS] += 1

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        """Nothing to count."""

    def operational(self, observation: OperationalObservation) -> None:
        """Remember where two clients were made."""
        if observation.kind == "second_client":
            self.second_client = observation.message

    def hosts(self) -> Mapping[str, HostFacts]:
        """The counts of the last five minutes; O(hosts)."""
        horizon = self._monotonic() - SLOT * SLOTS
        sums: dict[str, list[int]] = {}
        for began, counted in self._slots:
            if began < horizon:
                continue
            for host, counts in counted.items():
                known = sums.get(host)
                sums[host] = list(counts) if known is None else [a + b for a, b in zip(known, counts, strict=True)]
        return {
            host: HostFacts(
                host=host,
                attempts=counts[_ATTEMPTS],
                opened=counts[_OPENED],
                reused=counts[_REUSED],
                pool_timeouts=counts[_POOL_TIMEOUTS],
                stale_retries=counts[_STALE],
            )
            for host, counts in sums.items()
        }

    def _turn(self, now: float) -> None:
        self._current = {}
        self._slots.append((now, self._current))
        self._ends = now + SLOT
