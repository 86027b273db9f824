"""The round: who starts next, and who is put back when room appears.

It counts what is in flight and keeps the rings; it knows no store and asks no time. Called by `dispatch.scheduler`, whose
docstring has the order of the checks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from gatepost.dispatch.hosts import HostState
from gatepost.dispatch.lanes import Kind, Lane
from gatepost.dispatch.reads import ReadQueue
from gatepost.dispatch.seats import EndpointState, Seat, TenantState
from gatepost.dispatch.timers import Timers
from gatepost.store.rows import Row

UNSETTLED_MAX: Final = 10_000
"""Attempts whose results the store has not taken yet. A store that fails must stop new attempts before memory does."""
RETRY_SHARE: Final = 0.2
RETRY_FLOOR: Final = 3
"""Retries take at most this share of the busy slots (in flight or ready to be, Envoy's form of a retry budget), but three."""
FIRST_STREAK: Final = 4
"""First attempts in a row before a waiting retry within its share goes first: without it, endless fresh work would starve them."""
SHED_HOSTS_MAX: Final = 10_000
"""Hosts counted by name; later ones are counted together, since a counter must never be forgotten."""
OTHER_HOSTS: Final = "other"


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """How much may be under way."""

    slots: int = 200
    """Attempts in flight in this process."""
    host_cap: int | None = 8
    """Attempts in flight per host; None: automatic, from the caps of its endpoints."""

    def __post_init__(self) -> None:
        if self.slots < 1 or (self.host_cap is not None and self.host_cap < 1):
            raise ValueError(f"slots={self.slots}, host_cap={self.host_cap}: write 1 or more")


class Start:
    """A row taken for an attempt. Known to the scheduler until it is settled."""

    __slots__ = ("endpoint", "host", "kind", "lane", "row")

    def __init__(self, row: Row, lane: Lane, endpoint: EndpointState, kind: Kind) -> None:
        self.row = row
        self.lane = lane
        self.endpoint = endpoint
        self.host = endpoint.host
        self.kind = kind


class Round:
    """Rings of tenants and seats, and the counts of what is under way."""

    __slots__ = (
        "_limits",
        "_reads",
        "_streak",
        "_tenant_share",
        "_timers",
        "_top",
        "host_waits",
        "in_flight",
        "limit",
        "retries_in_flight",
        "sheds",
        "unsettled",
    )

    def __init__(self, limits: SchedulerLimits, reads: ReadQueue, timers: Timers[Lane | EndpointState]) -> None:
        self._limits = limits
        self._reads = reads
        self._timers = timers
        self._top: tuple[deque[TenantState], deque[TenantState]] = (deque(), deque())
        self._streak = 0
        self._tenant_share = (limits.slots + 1) // 2
        """Attempts one tenant may have in flight while another has work to start."""
        self.limit = limits.slots
        """Attempts in flight allowed now; the loop-lag guard lowers it."""
        self.in_flight = 0
        self.retries_in_flight = 0
        self.unsettled = 0
        self.host_waits = 0
        self.sheds: dict[str, int] = {}

    # ----------------------------------------------------------------------------------------------- taking

    def take(self, now: int) -> Start | None:
        """The next delivery to attempt, counted as in flight; None when nothing may start. O(1) amortised."""
        if self.in_flight >= self.limit or self.unsettled >= UNSETTLED_MAX:
            return None
        retry_allowed = bool(self._top[Kind.RETRY]) and self.retries_in_flight < self._retry_allowance()
        if retry_allowed and self._streak >= FIRST_STREAK:
            start = self._take(Kind.RETRY, now) or self._take(Kind.FIRST, now)
        else:
            start = self._take(Kind.FIRST, now)
            if start is None and retry_allowed:
                start = self._take(Kind.RETRY, now)
        if start is not None:
            self._streak = self._streak + 1 if start.kind is Kind.FIRST else 0
        return start

    def finish(self, start: Start, now: int) -> None:
        """The attempt is over: its slots are free."""
        endpoint, host = start.endpoint, start.host
        self.in_flight -= 1
        self.unsettled += 1
        if start.kind is Kind.RETRY:
            self.retries_in_flight -= 1
        endpoint.tenant.in_flight -= 1
        host.in_flight -= 1
        endpoint.in_flight -= 1
        if host.free > 0:
            self.serve(host)
        self.activate(endpoint, now)

    def _retry_allowance(self) -> int:
        busy = min(self._limits.slots, self.in_flight + self._reads.buffered)
        return max(RETRY_FLOOR, int(RETRY_SHARE * busy))

    def _take(self, kind: Kind, now: int) -> Start | None:
        top = self._top[kind]
        passed = 0
        while passed < len(top):
            tenant = top[0]
            if tenant.in_flight >= self._tenant_share and len(top) > 1:
                # Only two tenants can hold a half each, so this passes over two at most.
                top.rotate(-1)
                passed += 1
                continue
            start = self._take_of(tenant, kind, now)
            if start is None or not tenant.rings[kind]:
                top.popleft()
                tenant.in_top[kind] = False
            else:
                top.rotate(-1)
            if start is not None:
                return start
        return None

    def _take_of(self, tenant: TenantState, kind: Kind, now: int) -> Start | None:
        ring = tenant.rings[kind]
        while ring:
            seat = ring.popleft()
            seat.queued = False
            endpoint = seat.endpoint
            if not seat.has_lanes or not self._may_start(endpoint, now):
                self.withdraw(seat)
                continue
            if not endpoint.host.admit(seat):
                self.host_waits += 1
                continue
            lane = seat.pick(now)
            if lane is None:
                self.serve(endpoint.host)
                continue
            if endpoint.bucket is not None and not endpoint.bucket.try_take(now):
                seat.push_front(lane)
                endpoint.hold_until = max(endpoint.hold_until, endpoint.bucket.ready_at(now))
                self._timers.arm(endpoint, endpoint.hold_until)
                self.serve(endpoint.host)
                continue
            return self._start(seat, lane, now)
        return None

    def _may_start(self, endpoint: EndpointState, now: int) -> bool:
        if not endpoint.open:
            return False
        if endpoint.in_flight >= endpoint.cap:
            self._count_shed(endpoint)
            return False
        if endpoint.hold_until > now:
            self._timers.arm(endpoint, endpoint.hold_until)
            return False
        return True

    def _start(self, seat: Seat, lane: Lane, now: int) -> Start:
        endpoint, kind = seat.endpoint, seat.kind
        row = lane.pop(kind)
        self._reads.buffered -= 1
        self.in_flight += 1
        endpoint.in_flight += 1
        endpoint.host.in_flight += 1
        endpoint.tenant.in_flight += 1
        if kind is Kind.RETRY:
            self.retries_in_flight += 1
        if lane.ready(kind, now):
            seat.push(lane)
        if seat.has_lanes:
            if endpoint.in_flight < endpoint.cap:
                self._queue(seat)
            else:
                self._count_shed(endpoint)
        if lane.unread:
            self._reads.consider(lane)
        return Start(row, lane, endpoint, kind)

    def _count_shed(self, endpoint: EndpointState) -> None:
        """Once for each time a due endpoint leaves the round because it is full, not for each row."""
        key = endpoint.host.key
        if key not in self.sheds and len(self.sheds) >= SHED_HOSTS_MAX:
            key = OTHER_HOSTS
        self.sheds[key] = self.sheds.get(key, 0) + 1

    # ----------------------------------------------------------------------------------------- putting back

    def offer(self, lane: Lane, now: int) -> None:
        """The lane may have something to start."""
        endpoint = lane.endpoint
        if lane.fifo:
            kind = lane.ready_kind(now)
            if kind is not None:
                endpoint.seats[kind].push(lane)
            elif lane.first and (opens_at := lane.opens_at) > now:
                self._timers.arm(lane, opens_at)
        else:
            if lane.first:
                endpoint.seats[0].push(lane)
            if lane.retries:
                endpoint.seats[1].push(lane)
        self.activate(endpoint, now)

    def activate(self, endpoint: EndpointState, now: int) -> None:
        """Put an endpoint with room back into the round, and its thirsty lanes into the read queue."""
        if not endpoint.open or endpoint.in_flight >= endpoint.cap:
            return
        if endpoint.hold_until:
            if endpoint.hold_until > now:
                self._timers.arm(endpoint, endpoint.hold_until)
                return
            endpoint.hold_until = 0
        for seat in endpoint.seats:
            if not seat.queued and not seat.at_host and seat.has_lanes:
                self._queue(seat)
        if endpoint.thirsty:
            thirsty, endpoint.thirsty = endpoint.thirsty, None
            for lane in thirsty.values():
                self._reads.consider(lane)

    def withdraw(self, seat: Seat) -> None:
        """A seat found unable to start gives back what its host had reserved."""
        if seat.endpoint.host.withdraw(seat):
            self.serve(seat.endpoint.host)

    def serve(self, host: HostState) -> None:
        """A slot of the host may have become free: call who waits for one."""
        while (seat := host.call()) is not None:
            endpoint = seat.endpoint
            if endpoint.open and endpoint.in_flight < endpoint.cap and seat.has_lanes:
                self._queue(seat)
            else:
                host.withdraw(seat)  # and on to the next

    def _queue(self, seat: Seat) -> None:
        tenant, kind = seat.endpoint.tenant, seat.kind
        seat.queued = True
        tenant.rings[kind].append(seat)
        if not tenant.in_top[kind]:
            tenant.in_top[kind] = True
            self._top[kind].append(tenant)
