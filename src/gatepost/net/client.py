"""`DispatchClient`: one attempt per call, every phase bounded, the end classified. One instance per process and event loop.

It checks what callers give it (misuse raises before anything is sent), and hands the attempt to `net.flight`; it never raises
for what the network does, never retries on its own but for a stale connection, and reads neither environment nor files.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import sys
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import replace
from threading import get_ident
from types import TracebackType
from typing import Final, Self

from gatepost import deadline as ambient
from gatepost.admission.bulkhead import Bulkhead
from gatepost.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from gatepost.deadline import Deadline
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import End, Outcome
from gatepost.delivery.policy import ClientPolicy
from gatepost.errors import ConfigurationError
from gatepost.net import one_per_loop
from gatepost.net.destinations import Destinations
from gatepost.net.flight import Flight
from gatepost.net.inquiry import Inquiry, inquiry_head
from gatepost.net.names import NameCache
from gatepost.net.nat64 import Nat64Finder
from gatepost.net.observation import observation_of
from gatepost.net.one_per_loop import open_client_count as open_client_count
from gatepost.net.own_addresses import own_addresses as interface_addresses
from gatepost.net.pool import Pool
from gatepost.net.probe import Probe
from gatepost.net.proxy import ProxyConfig
from gatepost.net.redirects import FollowingFlight, Redirects, elsewhere_profile
from gatepost.net.resolver import Resolver, ThreadResolver
from gatepost.net.set_up import NEVER, SetUp
from gatepost.net.statistics import ClientStatistics as ClientStatistics
from gatepost.net.statistics import HostStatistics as HostStatistics
from gatepost.net.statistics import KeepAliveHistory, by_origin, keep_alive_by_origin
from gatepost.net.sweeper import Sweeper
from gatepost.net.tls import TLSContexts, TLSProfile, check_profile
from gatepost.net.unsent import unsent
from gatepost.telemetry import Observer, OperationalObservation
from gatepost.wire.egress import Denied, EgressPolicy, Target
from gatepost.wire.egress_rules import EgressRules
from gatepost.wire.payload import payload_bytes
from gatepost.wire.phases import PHASES
from gatepost.wire.reasons import Reason
from gatepost.wire.request import names_itself, request_head

USER_AGENT: Final = "gatepost/0.1"
_log = logging.getLogger("gatepost.client")
_SHED: Final = Outcome.SHED
_ORIGIN: Final = re.compile(r"https?://[^/?#@\s]+:[0-9]+")


class DispatchClient:
    """Sends one attempt per `deliver` call over pooled connections. Construct it once per process, never per request.

    `policy` holds the limits (default `ClientPolicy()`), `egress` the destinations allowed (default: public https only),
    `resolver` answers names (default: the system's, in threads of its own), `observer` hears of every attempt.
    Usable as an async context manager; `aclose` ends what is in flight.
    """

    def __init__(
        self,
        policy: ClientPolicy | None = None,
        *,
        egress: EgressPolicy | None = None,
        resolver: Resolver | None = None,
        proxy: ProxyConfig | None = None,
        observer: Observer | None = None,
        own_addresses: frozenset[str] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
    ) -> None:
        """`own_addresses` are this machine's in canonical text, which webhooks must not reach; None: read from the system."""
        if proxy is not None and not isinstance(proxy, ProxyConfig):
            raise ConfigurationError(f"proxy is a {type(proxy).__name__}: write ProxyConfig('http://proxy:3128')")
        self.proxy: Final = proxy
        self.proxy_context: ssl.SSLContext | None = None
        """For TLS to an https proxy; built before the first attempt."""
        self._proxy_unprepared = proxy is not None and proxy.scheme == "https"
        self.policy = ClientPolicy() if policy is None else policy
        own = interface_addresses() if own_addresses is None else own_addresses
        self.rules = EgressRules(EgressPolicy() if egress is None else egress, own)
        """What holds for every destination now; replaced as a whole, by `egress` and when NAT64 was found."""
        self.clock = clock
        self.observer = observer
        self.flights: set[Flight] = set()
        self.bulkhead: Bulkhead[SetUp] = Bulkhead(self.policy.per_endpoint_concurrency)
        self.pool = Pool(self.policy, clock, entropy, proxy)
        self.contexts = TLSContexts()
        self.sweeper = Sweeper(self)
        self.stale_retry_count = 0
        self._own_resolver = ThreadResolver() if resolver is None else None
        self._resolver: Resolver = self._own_resolver or _given(resolver)
        self._nat64 = Nat64Finder(self._resolver, clock, self._nat64_found)
        self.names = NameCache(self._resolver, self.policy.dns_ttl, clock)
        self._destinations = Destinations(self.check_url, self.pool)
        self._policies: dict[int, ClientPolicy] = {id(self.policy): self.policy}
        self._shed: dict[str, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._closed = False
        self._forks = one_per_loop.forks
        self.made_at: Final = traceback.extract_stack(limit=8)[:-1]

    def __repr__(self) -> str:
        leases = self.pool.leases
        state = "closed" if self._closed else "open"
        return (
            f"<DispatchClient {state} [in flight: {len(self.flights)} | connections: {leases.open_count} open, "
            f"{leases.idle_count} idle, of {leases.connections_max}]>"
        )

    @property
    def egress(self) -> EgressPolicy:
        """The destinations allowed. A new policy closes nothing: it is checked at every borrow, and for each new connection."""
        return self.rules.policy

    @egress.setter
    def egress(self, policy: EgressPolicy) -> None:
        if not isinstance(policy, EgressPolicy):
            raise TypeError(f"egress is a {type(policy).__name__}: write an EgressPolicy")
        self._use_rules(replace(self.rules, policy=policy))

    @property
    def is_used(self) -> bool:
        """It belongs to a loop: something was asked of it."""
        return self._loop is not None

    @property
    def resolver(self) -> Resolver:
        """Who answers names; asked directly, neither cache nor queue stand in between."""
        return self._resolver

    def check_url(self, url: str) -> Target | Denied:
        """Whether `url` may be called, by the rules that hold for each attempt; registration asks the same."""
        return self.rules.check_url(url)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop this client belongs to, from its first use on."""
        assert self._loop is not None
        return self._loop

    async def deliver(
        self,
        url: str,
        payload: object,
        headers: Mapping[str, str] | None = None,
        *,
        endpoint_id: str | None = None,
        tenant: str | None = None,
        content_type: str = "application/json",
        policy: ClientPolicy | None = None,
        tls: TLSProfile | None = None,
        deadline: Deadline | None = None,
    ) -> Attempt:
        """POST `payload` to `url` once and say what it came to.

        `payload` is `bytes`, sent as they are, or something JSON can hold, serialised once. `endpoint_id` is the admission
        key, else the host. `policy` may differ from the client's in per-attempt limits. `deadline` bounds everything, the
        ambient one (`gatepost.deadline`) too.

        Raises `TypeError` or `ValueError` for misuse before anything is sent, `RuntimeError` when closed or used from another
        loop or a forked child. Never raises for the network. A cancellation is passed on after the attempt was observed.
        """
        surrounding = ambient.current()
        if deadline is None:
            deadline = surrounding
        elif surrounding is not None and isinstance(deadline, Deadline):
            deadline = deadline.within(surrounding)
        return await self._fly(
            url, payload, headers, endpoint_id, tenant, content_type, policy, tls, deadline, True, True
        )

    async def deliver_admitted(
        self,
        url: str,
        payload: object,
        headers: Mapping[str, str] | None = None,
        *,
        endpoint_id: str | None = None,
        tenant: str | None = None,
        content_type: str = "application/json",
        policy: ClientPolicy | None = None,
        tls: TLSProfile | None = None,
        deadline: Deadline | None = None,
        deduplicates: bool = True,
    ) -> Attempt:
        """`deliver` for a caller that holds the endpoint's slot itself (the dispatcher): no admission gate, no ambient deadline.

        `deduplicates=False` forbids the stale retry of a request that was fully written.
        """
        return await self._fly(
            url, payload, headers, endpoint_id, tenant, content_type, policy, tls, deadline, False, deduplicates
        )

    async def _fly(
        self,
        url: str,
        payload: object,
        headers: Mapping[str, str] | None,
        endpoint_id: str | None,
        tenant: str | None,
        content_type: str,
        policy: ClientPolicy | None,
        tls: TLSProfile | None,
        deadline: Deadline | None,
        gated: bool,
        deduplicates: bool,
    ) -> Attempt:
        # One loop runs per thread, so these two say what get_running_loop() would, without its system call (Python 3.11).
        if (
            get_ident() != self._thread
            or not self.loop.is_running()
            or self._closed
            or self._forks != one_per_loop.forks
        ):
            self._check_usable()
        body = payload if type(payload) is bytes else payload_bytes(payload)
        if policy is None:
            policy = self.policy
        elif id(policy) not in self._policies:
            self._check_policy(policy)
        destination = self._destinations.known.get(url)
        if destination is None:
            destination = self._destinations.check(url)
        now = self.clock.monotonic()
        if isinstance(destination, Denied):
            return self._denied(destination, endpoint_id, tenant)
        if headers is not None and type(headers) is not dict and not isinstance(headers, Mapping):
            raise TypeError(f"headers is a {type(headers).__name__}: write a mapping of names to values")
        if deadline is not None and not isinstance(deadline, Deadline):
            raise TypeError(f"deadline={deadline!r}: write gatepost.deadline.Deadline.after(seconds)")
        head = request_head(destination.static, USER_AGENT, content_type, len(body), headers)
        target = destination.target
        host = destination.host
        if tls is not None:
            if not isinstance(tls, TLSProfile):
                raise TypeError(f"tls is a {type(tls).__name__}: write a TLSProfile")
            check_profile(target, tls)
        began = now
        secure = tls is not None or target.scheme == "https"
        context = self.contexts.cached(tls) if secure else None
        redirects = None
        if (secure and context is None) or policy.follow_redirects or self._proxy_unprepared:
            try:
                context = await self.prepare_tls(target, tls)  # refuses what cannot be read before anything is sent
                if policy.follow_redirects:
                    redirects = await self._redirects(target, content_type, len(body), headers, tls, context)
            except asyncio.CancelledError:
                self._given_up(Reason.CANCELLED, target, began, endpoint_id, tenant)
                raise
            if self._closed:
                return self._given_up(Reason.CLIENT_CLOSED, target, began, endpoint_id, tenant)
            now = self.clock.monotonic()
        if tls is not None:
            host = self.pool.host(target, tls)
        elif host.dropped:
            host = destination.host = self.pool.host(target, None)
        flight = (Flight if redirects is None else FollowingFlight)(
            self,
            host,
            head,
            body,
            policy=policy,
            key=(endpoint_id or target.origin) if gated else None,
            endpoint_id=endpoint_id,
            tenant=tenant,
            context=context,
            deadline_at=NEVER if deadline is None else now + deadline.remaining(),
            duplicable=deduplicates and names_itself(headers),
            done=self.loop.create_future(),
            now=began,
        )
        if redirects is not None:
            assert isinstance(flight, FollowingFlight)
            flight.redirects = redirects
        self.flights.add(flight)
        self.sweeper.watch(now)
        flight.start(now)
        try:
            return await flight.done
        except asyncio.CancelledError:
            flight.cancel_by_caller()
            raise

    async def probe(
        self, url: str, *, endpoint_id: str | None = None, tenant: str | None = None, tls: TLSProfile | None = None
    ) -> Attempt | None:
        """Connect and make the TLS handshake, without a request: None when the certificate was right, else how it ended.

        Bounded by the client's own limits; counts as no attempt and is not observed. Raises as `deliver`.
        """
        self._check_usable()
        destination = self._destinations.known.get(url) or self._destinations.check(url)
        if isinstance(destination, Denied):
            return self._refusal(destination)
        now = self.clock.monotonic()
        context = await self.prepare_tls(destination.target, tls)
        self._check_usable()  # much may have happened meanwhile
        probe = Probe(
            self,
            self.pool.host(destination.target, tls),
            b"",
            b"",
            policy=self.policy,
            key=None,
            endpoint_id=endpoint_id,
            tenant=tenant,
            context=context,
            deadline_at=NEVER,
            duplicable=False,
            done=self.loop.create_future(),
            now=now,
        )
        now = self.clock.monotonic()
        self.flights.add(probe)
        self.sweeper.watch(now)
        probe.start(now)
        try:
            attempt = await probe.done
        except asyncio.CancelledError:
            probe.cancel_by_caller()
            raise
        return None if attempt.reason is Reason.OK else attempt

    async def inquire(self, url: str, *, tls: TLSProfile | None = None) -> Attempt:
        """Send `OPTIONS` without a body and say how it ended: what a delivery would meet, without delivering anything.

        Same pool, rules and limits as an attempt; not observed, and no redirect is followed. Raises as `deliver`.
        """
        self._check_usable()
        destination = self._destinations.known.get(url) or self._destinations.check(url)
        if isinstance(destination, Denied):
            return self._refusal(destination)
        began = self.clock.monotonic()
        context = await self.prepare_tls(destination.target, tls)
        self._check_usable()
        now = self.clock.monotonic()
        inquiry = Inquiry(
            self,
            self.pool.host(destination.target, tls),
            inquiry_head(destination.target, USER_AGENT),
            b"",
            policy=self.policy,
            key=None,
            endpoint_id=None,
            tenant=None,
            context=context,
            deadline_at=NEVER,
            duplicable=True,
            done=self.loop.create_future(),
            now=began,
        )
        self.flights.add(inquiry)
        self.sweeper.watch(now)
        inquiry.start(now)
        try:
            return await inquiry.done
        except asyncio.CancelledError:
            inquiry.cancel_by_caller()
            raise

    async def prepare_tls(self, target: Target, tls: TLSProfile | None) -> ssl.SSLContext | None:
        """Build the contexts that attempts at `target` need, and return that of the receiver; None for plain http.

        Raises `ConfigurationError` for what can never work.
        """
        if tls is not None:
            check_profile(target, tls)
        if self._proxy_unprepared:
            assert self.proxy is not None
            self.proxy_context = await self.contexts.build(self.proxy.tls)
            self._proxy_unprepared = False
        if tls is None and target.scheme == "http":
            return None
        return await self.contexts.build(tls)

    async def _redirects(
        self,
        target: Target,
        content_type: str,
        length: int,
        headers: Mapping[str, str] | None,
        tls: TLSProfile | None,
        context: ssl.SSLContext | None,
    ) -> Redirects:
        elsewhere = elsewhere_profile(tls)
        other = await self.contexts.build(elsewhere)
        return Redirects(target, USER_AGENT, content_type, length, headers, tls, context, elsewhere, other)

    # ----------------------------------------------------------------------------------------------- checks

    def _check_usable(self) -> None:
        if self._closed:
            raise RuntimeError("this DispatchClient is closed: construct one per process and close it at the end")
        if self._forks != one_per_loop.forks:
            raise RuntimeError("this DispatchClient was made before a fork: construct one in each process")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            if sys.platform == "win32" and isinstance(loop, asyncio.ProactorEventLoop):
                raise RuntimeError("a Proactor event loop has no readers: run on asyncio.SelectorEventLoop")
            self._loop = loop
            self._thread = get_ident()
            one_per_loop.register(self)
        elif self._loop is not loop:
            raise RuntimeError("this DispatchClient belongs to another event loop: construct one per loop")

    def _check_policy(self, policy: ClientPolicy) -> None:
        self.policy.check_call(policy)
        if len(self._policies) >= 4_096:  # remembered by identity, so that the check is made once
            self._policies = {id(self.policy): self.policy}
        self._policies[id(policy)] = policy

    def adopt(self, policy: ClientPolicy) -> None:
        """Other limits from now on, without new connections: what is open keeps its age, and follows after its next use.

        For whoever admits attempts itself (`deliver_admitted`): the slots of `deliver` stay as they were made. Raises
        `ConfigurationError` for another `max_connections`, which is fixed with the client.
        """
        if policy.max_connections != self.policy.max_connections:
            raise ConfigurationError(
                f"max_connections={policy.max_connections}: the client was made for {self.policy.max_connections}; make another one"
            )
        self.policy = policy
        self.pool.adopt_policy(policy)
        self.names.keep_for(policy.dns_ttl)
        self._policies = {id(policy): policy}

    def _use_rules(self, rules: EgressRules) -> None:
        self.rules = rules
        self._destinations.clear()  # verdicts of the old rules

    def look_for_nat64(self) -> None:
        """Find out about NAT64 unless that was done. Called before names are asked for."""
        self._nat64.look(self.loop)

    def _nat64_found(self, prefixes: tuple[str, ...]) -> None:
        self._use_rules(replace(self.rules, nat64_seen=prefixes))
        for prefix in self.rules.nat64_undeclared:
            message = (
                f"this network reaches IPv4 through NAT64 with the prefix {prefix}, which is not declared: destinations behind "
                f"it are refused. Add '{prefix}' to nat64_prefixes if your platform translates with it"
            )
            _log.warning(message)
            self._observe("nat64_undeclared", message)

    def _denied(self, denied: Denied, endpoint_id: str | None, tenant: str | None) -> Attempt:
        attempt = self._refusal(denied)
        self.finished(attempt, endpoint_id, tenant)
        return attempt

    def _refusal(self, denied: Denied) -> Attempt:
        return unsent(End.DENIED, denied.reason, denied.subject, self.clock.monotonic(), self.clock)

    def _given_up(
        self, reason: Reason, target: Target, began: float, endpoint_id: str | None, tenant: str | None
    ) -> Attempt:
        """The attempt was stopped while we prepared for it."""
        attempt = unsent(End.CANCELLED, reason, target.origin, began, self.clock)
        self.finished(attempt, endpoint_id, tenant)
        return attempt

    # -------------------------------------------------------------------------------------------- telemetry

    def finished(self, attempt: Attempt, endpoint_id: str | None, tenant: str | None) -> None:
        """An attempt ended: count and tell. Called by flights, once each."""
        if attempt.outcome is _SHED:
            self._shed[attempt.host] = self._shed.get(attempt.host, 0) + 1
        observer = self.observer
        if observer is None:
            return
        try:
            observer.attempt_finished(observation_of(attempt, endpoint_id, tenant))
        except Exception:  # noqa: BLE001 - users' code: its bug must not end an attempt
            _log.exception("an observer raised; attempts go on")

    def warn_of_second(self, message: str) -> None:
        """Another client is in use on this client's loop: told once, as a warning and to the observer."""
        warnings.warn(message, RuntimeWarning, stacklevel=6)
        self._observe("second_client", message)

    def _observe(self, kind: str, message: str) -> None:
        try:
            if self.observer is not None:
                self.observer.operational(OperationalObservation(kind, message))
        except Exception:  # noqa: BLE001 - as above
            _log.exception("an observer raised; attempts go on")

    def statistics(self) -> ClientStatistics:
        """A snapshot; O(hosts known)."""
        leases = self.pool.leases
        admission = self.bulkhead.statistics()
        hosts = self.pool.hosts
        return ClientStatistics(
            in_flight=len(self.flights),
            connections_open=leases.open_count,
            connections_in_use=sum(host.in_use for host in hosts),
            connections_idle=leases.idle_count,
            admitted=admission.in_use,
            waiting_for_admission=admission.waiting,
            waiting_for_connection=sum(host.waiting for host in hosts),
            names_pending=self.names.pending_count,
            stale_retries=self.stale_retry_count,
            late_sweeps=self.sweeper.late_count,
            shed=dict(self._shed),
            hosts=by_origin(hosts),
        )

    def keep_alive_histories(self) -> dict[str, KeepAliveHistory]:
        """What is known of how each host keeps its connections; O(hosts known)."""
        return keep_alive_by_origin(self.pool.hosts, self.clock.monotonic())

    # -------------------------------------------------------------------------------------------------- end

    def forget(self, host: str) -> None:
        """Close a host's idle connections at once and those in use when they come back. `host` is `scheme://host:port`.

        Raises `ValueError` for any other spelling: a slip would leave the connections open in silence.
        """
        if _ORIGIN.fullmatch(host) is None:
            raise ValueError(f"host={host!r}: write scheme://host:port, for example https://hooks.example.com:443")
        self.pool.forget(host)

    async def aclose(self) -> None:
        """End what is in flight (those callers get `cancelled`, blame us) and close every connection. Idempotent."""
        if self._closed:
            return
        if self._forks != one_per_loop.forks:  # the parent's sockets and selector are not ours to touch
            raise RuntimeError("this DispatchClient was made before a fork: close it in the process that made it")
        self._closed = True
        # Those that wait go first: a slot that comes free must not start, let alone send, anything.
        for flight in sorted(self.flights, key=lambda flight: PHASES.index(flight.phase)):
            flight.cancel_by_client()
        self.pool.close()
        self.contexts.close()
        self.sweeper.stop()
        one_per_loop.discard(self)
        if self._own_resolver is not None:
            self._own_resolver.close()
        # Last, because whoever closes may be cancelled here.
        await self._nat64.aclose()
        await self.names.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _given(resolver: Resolver | None) -> Resolver:
    assert resolver is not None
    return resolver
