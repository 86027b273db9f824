"""Who takes part in the round: tenants, their endpoints, and each endpoint's two seats (first attempts, retries).

Rings of those that may have something to start, so that a turn costs the same with ten or a million endpoints registered.
Entries are dropped lazily: who is found unable to start leaves its ring and is put back by whatever makes it able. Pure
bookkeeping for `dispatch.scheduler`.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from gatepost.admission.rate import TokenBucket
from gatepost.dispatch.hosts import HostState
from gatepost.dispatch.lanes import RANK_WEIGHTS, RANKS, Kind, Lane, window_of


class EndpointSettings(NamedTuple):
    """What the scheduler needs to know of an endpoint; a new one for each generation."""

    number: int
    tenant: str
    host: str
    """`scheme://host:port`."""
    cap: int
    """Attempts in flight at once."""
    rate: float | None
    """Attempts started per second."""
    open: bool
    """Neither paused nor disabled."""
    hold_until: int = 0
    """Nothing starts before this instant (UTC microseconds): its breaker is open, or it asked for a pause."""


RAMP_FIRST: Final = 1
"""Attempts in flight at an endpoint that was just resumed: what has waited for days must not fall on it at once."""
RAMP_STEP: Final = 1_000_000
"""Microseconds after which its cap doubles, if it took a delivery meanwhile: 1, 2, 4 … until its own cap."""


class TenantState:
    """One tenant with loaded endpoints."""

    __slots__ = ("endpoints", "in_flight", "in_top", "name", "rings")

    def __init__(self, name: str) -> None:
        self.name = name
        self.endpoints = 0
        self.in_flight = 0
        self.rings: tuple[deque[Seat], deque[Seat]] = (deque(), deque())
        """Seats that may have something to start, by kind."""
        self.in_top = [False, False]


class Seat:
    """An endpoint's place in the round for one kind of attempt."""

    __slots__ = ("_credits", "_rings", "at_host", "called", "endpoint", "kind", "queued")

    def __init__(self, endpoint: EndpointState, kind: Kind) -> None:
        self.endpoint = endpoint
        self.kind = kind
        self.queued = False
        """In the tenant's ring."""
        self.at_host = False
        """Waiting for a slot of the host. Never `queued` at the same time."""
        self.called = False
        """Called by the host after waiting; see `dispatch.hosts`."""
        self._rings: list[deque[Lane] | None] = [None, None, None]
        self._credits = list(RANK_WEIGHTS)

    @property
    def has_lanes(self) -> bool:
        """Some lane may have a row of this kind to start."""
        high, normal, bulk = self._rings
        return bool(normal) or bool(high) or bool(bulk)

    def push(self, lane: Lane) -> None:
        """Put a lane with a startable row at the end of its rank's ring; twice is once."""
        kind = self.kind
        if lane.in_ring[kind]:
            return
        lane.in_ring[kind] = True
        ring = self._rings[lane.rank]
        if ring is None:
            ring = self._rings[lane.rank] = deque()
        ring.append(lane)

    def push_front(self, lane: Lane) -> None:
        """Undo a `pick`."""
        lane.in_ring[self.kind] = True
        ring = self._rings[lane.rank]
        assert ring is not None, "it was picked from there"
        ring.appendleft(lane)
        self._credits[lane.rank] += 1

    def pick(self, now: int) -> Lane | None:
        """The lane whose turn it is, out of the ring; high, normal and bulk lanes by 8 : 4 : 1, in turn within a rank."""
        credit = self._credits
        for _ in range(2):
            for rank in RANKS:
                ring = self._rings[rank]
                while ring and credit[rank] > 0:
                    lane = ring.popleft()
                    lane.in_ring[self.kind] = False
                    if lane.ready(self.kind, now):
                        credit[rank] -= 1
                        return lane
            if not self.has_lanes:
                return None
            credit[:] = RANK_WEIGHTS
        return None


class EndpointState:
    """One endpoint with rows in memory, in flight, or expected. An idle one is not here."""

    __slots__ = (
        "bucket",
        "cap",
        "full_cap",
        "held_until",
        "hold_until",
        "host",
        "in_flight",
        "lanes",
        "number",
        "open",
        "ramp",
        "ramped_at",
        "resting",
        "seats",
        "tenant",
        "thirsty",
        "timer_at",
        "window",
    )

    def __init__(self, number: int, tenant: TenantState, host: HostState) -> None:
        self.number = number
        self.tenant = tenant
        self.host = host
        self.cap = 0
        """Attempts in flight allowed now."""
        self.full_cap = 0
        """The same without a ramp."""
        self.ramp = 0
        """Attempts allowed since it was resumed; 0: no ramp."""
        self.ramped_at = 0
        self.resting = False
        """Paused or disabled when it was looked at last."""
        self.window = 0
        self.open = False
        self.bucket: TokenBucket | None = None
        self.in_flight = 0
        self.hold_until = 0
        """No start before this instant: the rate is used up, something of ours had no room, or `held_until`."""
        self.held_until = 0
        """The hold of its settings, as far as it is known here."""
        self.timer_at = 0
        self.lanes: dict[int, Lane] = {}
        self.seats = (Seat(self, Kind.FIRST), Seat(self, Kind.RETRY))
        self.thirsty: dict[int, Lane] | None = None
        """Lanes to be read as soon as there is room again; kept apart so that becoming free costs no search."""

    def __repr__(self) -> str:
        return f"<EndpointState {self.number:#x} {self.in_flight}/{self.cap} open={self.open} lanes={len(self.lanes)}>"

    def set_cap(self, cap: int) -> None:
        """Put `cap` in force, as far as a ramp allows."""
        self.full_cap = cap
        if self.ramp >= cap:
            self.ramp = 0
        self.cap = self.ramp or cap
        self.window = window_of(self.cap)

    def begin_ramp(self, now: int) -> None:
        """It is to be loaded slowly from now on."""
        self.ramp, self.ramped_at = RAMP_FIRST, now
        self.set_cap(self.full_cap)

    def took(self, now: int) -> bool:
        """It took a delivery; True when its cap grew by that."""
        if not self.ramp or now - self.ramped_at < RAMP_STEP:
            return False
        self.ramp, self.ramped_at = 2 * self.ramp, now
        self.set_cap(self.full_cap)
        return True

    @property
    def has_lanes(self) -> bool:
        """Some lane may have a row to start."""
        return self.seats[0].has_lanes or self.seats[1].has_lanes
