"""What is loaded: lanes, and the endpoints, hosts and tenants they belong to. An idle endpoint is not here and costs nothing.

Loads on first use, unloads with the last lane, and keeps the counts (`endpoints`, `cap_sum`) by which hosts and tenants go too.
Pure bookkeeping for `dispatch.scheduler`; a `directory` function gives the settings of an endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gatepost.admission.rate import TokenBucket
from gatepost.dispatch.hosts import HostState
from gatepost.dispatch.lanes import Lane
from gatepost.dispatch.round import Round, SchedulerLimits
from gatepost.dispatch.seats import EndpointSettings, EndpointState, TenantState
from gatepost.dispatch.timers import Timers
from gatepost.store.rows import endpoint_of

Directory = Callable[[int], EndpointSettings | None]
"""Endpoint number to its settings; None for an unknown one."""
HostLimit = Callable[[str], int | None]
"""Host to the attempts in flight that its breaker allows now; None: it has no say."""


class Roster:
    """Loaded lanes and endpoints by number."""

    __slots__ = (
        "_directory",
        "_ghosts",
        "_held_back",
        "_host_limit",
        "_hosts",
        "_limits",
        "_round",
        "_tenants",
        "_timers",
        "endpoints",
        "lanes",
    )

    def __init__(
        self,
        limits: SchedulerLimits,
        directory: Directory,
        host_limit: HostLimit,
        turns: Round,
        timers: Timers[Lane | EndpointState],
    ) -> None:
        self._limits = limits
        self._host_limit = host_limit
        self._directory = directory
        self._round = turns
        self._timers = timers
        self.lanes: dict[int, Lane] = {}
        self.endpoints: dict[int, EndpointState] = {}
        self._hosts: dict[str, HostState] = {}
        self._tenants: dict[str, TenantState] = {}
        self._held_back: dict[int, int] = {}
        self._ghosts: dict[int, Lane] = {}
        """Lanes of parts that were lost while attempts of theirs were under way, until the last of those is over."""

    @property
    def host_count(self) -> int:
        """Hosts loaded."""
        return len(self._hosts)

    @property
    def tenant_count(self) -> int:
        """Tenants loaded."""
        return len(self._tenants)

    # ------------------------------------------------------------------------------------- loading, unloading

    def load_lane(self, number: int, part: int, now: int, *, unread: bool) -> Lane:
        """A lane that is not loaded yet."""
        owner = endpoint_of(number)
        endpoint = self.endpoints.get(owner) or self._load_endpoint(owner, now)
        ghost = self._ghosts.pop(number, None)
        if ghost is None:
            lane = Lane(number, part, endpoint, unread=unread)
        else:
            lane = ghost
            lane.revive(endpoint)
        self.lanes[number] = endpoint.lanes[number] = lane
        return lane

    def unload_lane(self, lane: Lane, now: int) -> None:
        """Forget a lane; its endpoint goes with the last one."""
        lane.dropped = True
        self._timers.disarm(lane)
        endpoint = lane.endpoint
        del self.lanes[lane.id]
        del endpoint.lanes[lane.id]
        if lane.outstanding:
            self._ghosts[lane.id] = lane
        if endpoint.thirsty is not None:
            endpoint.thirsty.pop(lane.id, None)
        self.unload_if_idle(endpoint, now)

    def lay_ghost(self, lane: Lane) -> None:
        """A dropped lane has nothing under way any more: nobody needs to know of it."""
        if not lane.outstanding and self._ghosts.get(lane.id) is lane:
            del self._ghosts[lane.id]

    def unload_if_idle(self, endpoint: EndpointState, now: int) -> None:
        """Let an endpoint go that has no lane, nothing in flight and no tokens to win back."""
        if endpoint.lanes or endpoint.in_flight or self.endpoints.get(endpoint.number) is not endpoint:
            return
        if endpoint.bucket is not None:
            full_at = endpoint.bucket.full_at(now)
            if full_at > now:
                self._timers.arm(endpoint, full_at)
                return
        self._timers.disarm(endpoint)
        endpoint.open = False  # a seat still in a ring is dropped when it comes up
        self._leave_host_queue(endpoint)
        del self.endpoints[endpoint.number]
        self._leave_host(endpoint.host, endpoint.full_cap)
        self._leave_tenant(endpoint.tenant)

    def host_changed(self, key: str) -> None:
        """What a host's breaker allows has changed."""
        host = self._hosts.get(key)
        if host is not None:
            host.limit = self._host_limit(key)
            self._round.serve(host)

    def set_host_cap(self, cap: int | None) -> None:
        """Attempts in flight per host from now on; None: automatic. O(hosts)."""
        self._limits = replace(self._limits, host_cap=cap)
        for host in list(self._hosts.values()):
            host.set_cap(cap)
            self._round.serve(host)

    def release_host(self, host: HostState) -> None:
        """Forget a host that no endpoint points to any more and to which nothing is under way."""
        if not host.endpoints and not host.in_flight and self._hosts.get(host.key) is host:
            del self._hosts[host.key]

    def _load_endpoint(self, number: int, now: int) -> EndpointState:
        settings = self._directory(number)
        tenant, host = (settings.tenant, settings.host) if settings else ("", "")
        endpoint = EndpointState(number, self._join_tenant(tenant), self._join_host(host))
        self.endpoints[number] = endpoint
        self._configure(endpoint, settings, now)
        return endpoint

    # --------------------------------------------------------------------------------------------- settings

    def refresh(self, endpoint: EndpointState, now: int) -> None:
        """Put the directory's current settings in force."""
        self._configure(endpoint, self._directory(endpoint.number), now)

    def hold_back(self, number: int, by: int) -> None:
        """Count (+1, -1) of those who want an endpoint closed for a moment; `refresh` makes it felt."""
        left = self._held_back.get(number, 0) + by
        if left:
            self._held_back[number] = left
        else:
            self._held_back.pop(number, None)

    def _configure(self, endpoint: EndpointState, settings: EndpointSettings | None, now: int) -> None:
        if settings is None:
            endpoint.open = False
            return
        endpoint.open = settings.open and endpoint.number not in self._held_back
        self._set_host(endpoint, settings.host)
        self._set_tenant(endpoint, settings.tenant)
        endpoint.host.cap_sum += settings.cap - endpoint.full_cap
        endpoint.set_cap(settings.cap)
        if endpoint.resting and settings.open:
            endpoint.begin_ramp(now)
        endpoint.resting = not settings.open
        if settings.hold_until != endpoint.held_until:
            if endpoint.hold_until == endpoint.held_until or settings.hold_until > endpoint.hold_until:
                endpoint.hold_until = settings.hold_until
            endpoint.held_until = settings.hold_until
            if endpoint.hold_until > now:
                self._timers.arm(endpoint, endpoint.hold_until)
        if settings.rate is None:
            endpoint.bucket = None
        elif endpoint.bucket is None or endpoint.bucket.rate != settings.rate:
            endpoint.bucket = TokenBucket(settings.rate, now)
        if endpoint.open:
            self._round.serve(endpoint.host)  # an automatic host cap may have grown

    def _set_host(self, endpoint: EndpointState, key: str) -> None:
        old = endpoint.host
        if old.key != key:
            self._leave_host_queue(endpoint)
            endpoint.host = self._join_host(key)
            endpoint.host.cap_sum += endpoint.full_cap
            self._leave_host(old, endpoint.full_cap)

    def _set_tenant(self, endpoint: EndpointState, name: str) -> None:
        """Only an endpoint that was unknown when it was loaded changes hands; it has never started anything."""
        old = endpoint.tenant
        if old.name != name:
            endpoint.tenant = self._join_tenant(name)
            self._leave_tenant(old)

    def _leave_host_queue(self, endpoint: EndpointState) -> None:
        for seat in endpoint.seats:
            if seat.at_host:
                endpoint.host.remove(seat)
            self._round.withdraw(seat)

    def _join_host(self, key: str) -> HostState:
        host = self._hosts.get(key)
        if host is None:
            host = self._hosts[key] = HostState(key, self._limits.host_cap, self._limits.slots)
            host.limit = self._host_limit(key)
        host.endpoints += 1
        return host

    def _leave_host(self, host: HostState, cap: int) -> None:
        host.endpoints -= 1
        host.cap_sum -= cap
        self.release_host(host)

    def host_in_flight(self, key: str) -> int:
        """Attempts under way to a host; 0 for one to which no loaded endpoint points."""
        host = self._hosts.get(key)
        return 0 if host is None else host.in_flight

    def _join_tenant(self, name: str) -> TenantState:
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = TenantState(name)
        tenant.endpoints += 1
        return tenant

    def _leave_tenant(self, tenant: TenantState) -> None:
        tenant.endpoints -= 1
        if not tenant.endpoints:
            del self._tenants[tenant.name]
