"""Gathers the facts of a running process and of its fleet for the doctor: what is in force now, not what a file says.

It asks the store for a few small writes and lists, looks a few names up, and reads the kernel's tables in a thread; it changes
nothing and judges nothing. One `Doctor` per process, made by `service.app`; asked by `GET /v1/doctor`, for admins.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.delivery.policy import ClientPolicy
from gatepost.dispatch.dispatcher import Dispatcher, DispatcherStatistics
from gatepost.dispatch.leases import STRICT_BUDGET_MAX
from gatepost.errors import ConfigurationError, GatepostError, ResolveError
from gatepost.net.one_per_loop import newest_client_made_at, open_client_count, used_client_count
from gatepost.net.resolver import Resolver
from gatepost.service.doctor.checks_fleet import SILENT_AFTER
from gatepost.service.doctor.checks_machine import NO_ANSWER
from gatepost.service.doctor.facts import (
    ClientFacts,
    FleetFacts,
    HostFacts,
    LimitFacts,
    NameFacts,
    NodeFacts,
    PartFacts,
    ProcessFacts,
    StoreFacts,
)
from gatepost.service.doctor.machine import disk_facts, file_facts
from gatepost.service.doctor.recent import RecentHosts
from gatepost.service.doctor.sockets import read_sockets
from gatepost.service.effective import PHASE_LIMITS
from gatepost.store.port import Store
from gatepost.store.rows import PartInfo

PATIENCE: Final = 2.0
"""Seconds for the store, and for each name: whoever asks is waiting, and what takes longer is found all the same."""
STORE_WRITES: Final = 3
"""The best of them counts: a single one may have waited behind a commit of many rows."""
NAMES_MAX: Final = 3
"""Names looked up: one alone may be a customer's whose zone is broken."""
HOSTS_TOLD: Final = 1_000
SUSPECTS_MAX: Final = 64
"""Parts without an owner at work that are looked into."""
LANES_MAX: Final = 500
ENDPOINTS_PAGE: Final = 1_000
ENDPOINTS_MAX: Final = 100_000
"""Endpoints looked through for what is unusual about them."""
TOLD_MAX: Final = 1_000


class Doctor:
    """The facts of one process. `machine` is what its machine is called; `directory` is the store's, None: not on a disk of ours."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        store: Store,
        recent: RecentHosts,
        *,
        machine: str,
        directory: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._dispatcher = dispatcher
        self.store = store
        self._recent = recent
        self._machine = machine
        self._directory = directory
        # Others may have been made before: in a program around us that is no service.
        own_to_come = 0 if dispatcher.client.is_used else 1
        self._clients_before = used_client_count() - 1 + own_to_come
        self._monotonic = clock.monotonic

    async def process(self) -> ProcessFacts:
        """Of this process; takes as long as the slowest of store and names, at most `PATIENCE` each."""
        dispatcher = self._dispatcher
        client = dispatcher.client
        statistics = dispatcher.statistics()
        limits = self.limits()
        ports = {host.target.port if host.via is None else host.via.port for host in client.pool.hosts}
        names, store, sockets = await asyncio.gather(
            self._look_up(client.resolver, self._names()),
            self._ask_store(statistics),
            asyncio.to_thread(read_sockets, ports),
        )
        return ProcessFacts(
            node=statistics.node,
            machine=self._machine,
            running=statistics.running,
            draining=statistics.draining,
            lease_seconds_left=round(statistics.lease_seconds_left, 3),
            parts=statistics.parts,
            clock_skew=round(statistics.clock_skew, 3),
            limits=limits,
            client=ClientFacts(
                open_client_count(),
                made := used_client_count() - self._clients_before,
                self._recent.second_client or (newest_client_made_at() if made > 1 else None),
                client.contexts.unverifying(),
                client.rules.nat64_undeclared,
            ),
            hosts=self._hosts(limits.keepalive_expiry),
            names=names,
            names_pending=client.names.pending_count,
            store=store,
            files=file_facts(limits.max_connections, limits.slots),
            disk=None if self._directory is None else disk_facts(self._directory),
            sockets=None if sockets is None else replace(sockets, proxied=client.proxy is not None),
        )

    def limits(self) -> LimitFacts:
        """What is in force: of the client's policy and the one composed for attempts, a phase has the limit that both give."""
        dispatcher = self._dispatcher
        client = dispatcher.client.policy
        try:
            composed = dispatcher.policies.of_process().policy
        except ConfigurationError:  # nobody can compose what somebody broke: it is shown as it is
            composed = client
        return limit_facts(
            composed,
            slots=dispatcher.settings.slots,
            shared=dispatcher.store.capabilities.shared,
            others=(client,),
        )

    def _hosts(self, keepalive_expiry: float) -> tuple[HostFacts, ...]:
        """Hosts with traffic in the last minutes, or that keep connections for a shorter time than we."""
        counted = self._recent.hosts()
        histories = self._dispatcher.client.keep_alive_histories()
        found = [facts for origin, facts in counted.items() if origin not in histories]
        for origin, history in histories.items():
            facts = counted.get(origin)
            if facts is None:
                announced = math.inf if history.announced is None else history.announced
                if not history.closed_after and announced >= keepalive_expiry:
                    continue
                facts = HostFacts(origin, 0, 0, 0, 0, 0)
            found.append(
                replace(
                    facts,
                    open_peak=history.open_peak,
                    announced=history.announced,
                    closed_after=tuple(round(age, 3) for age in history.closed_after),
                )
            )
        found.sort(key=lambda facts: (-facts.pool_timeouts, -facts.attempts, facts.host))
        return tuple(found[:HOSTS_TOLD])

    # -------------------------------------------------------------------------------------------------- names

    def _names(self) -> list[str]:
        """Names that are in use: of hosts known, else of endpoints."""
        counted = self._recent.hosts()
        known = sorted(
            self._dispatcher.client.pool.hosts,
            key=lambda host: -counted[host.target.origin].attempts if host.target.origin in counted else 0,
        )
        names = [host.target.host if host.via is None else host.via.host for host in known]
        if not names:
            listed = self._dispatcher.search.page(None, limit=ENDPOINTS_PAGE).items
            names = [urlsplit(one.origin).hostname or "" for one in listed if one.origin is not None]
        return list(dict.fromkeys(name for name in names if name and not _is_address(name)))[:NAMES_MAX]

    async def _look_up(self, resolver: Resolver, names: Sequence[str]) -> tuple[NameFacts, ...]:
        return tuple(await asyncio.gather(*(self._look_up_one(resolver, name) for name in names)))

    async def _look_up_one(self, resolver: Resolver, name: str) -> NameFacts:
        began = self._monotonic()
        reason: str | None = None
        try:
            async with asyncio.timeout(PATIENCE):
                await resolver.resolve(name)
        except TimeoutError:
            reason = NO_ANSWER
        except ResolveError as error:
            reason = error.code
        except Exception as error:  # noqa: BLE001 - a resolver is users' code
            reason = type(error).__name__
        return NameFacts(name, round(self._monotonic() - began, 6), reason)

    # -------------------------------------------------------------------------------------------------- store

    async def _ask_store(self, statistics: DispatcherStatistics) -> StoreFacts:
        seconds: list[float] = []
        error: str | None = None
        began = self._monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                for _ in range(STORE_WRITES):
                    began = self._monotonic()
                    await self.store.ping()
                    seconds.append(round(self._monotonic() - began, 6))
        except TimeoutError:
            if not seconds:
                error = f"no answer within {PATIENCE:g} s"
            seconds.append(round(self._monotonic() - began, 6))  # of the one that was given up
        except GatepostError as failed:
            error = str(failed)
        return StoreFacts(tuple(seconds), error, statistics.store_failing, statistics.results_waiting)

    async def fleet(self) -> FleetFacts:
        """Of the fleet; without what the store does not tell within `PATIENCE`."""
        found = await self._endpoints()
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._with_parts(found)
        except (TimeoutError, GatepostError):
            return found  # that the store is slow or failing is found of the process

    async def _with_parts(self, found: FleetFacts) -> FleetFacts:
        dispatcher = self._dispatcher
        now = dispatcher.store_time()
        nodes = [
            NodeFacts(
                info.node.name,
                info.node.address,
                info.node.draining,
                round(max(0.0, (now - info.seen_at) / 1e6), 3),
                info.parts,
            )
            for info in await self.store.nodes()
        ]
        parts = await self.store.parts()
        alive = {node.name for node in nodes}
        gone: dict[str, int] = {}
        for info in parts:
            if info.owner is not None and info.owner not in alive:
                gone[info.owner] = gone.get(info.owner, 0) + 1
        idle = {node.name for node in nodes if node.seen_ago > SILENT_AFTER} | gone.keys()
        statistics = dispatcher.statistics()
        if not statistics.running:
            idle.add(statistics.node)
        suspects = [info for info in parts if info.owner is None or info.owner in idle]
        return replace(
            found,
            nodes=tuple(nodes),
            parts_free=sum(info.owner is None for info in parts),
            owners_gone=gone,
            stuck=await self._stuck(suspects[:SUSPECTS_MAX], now),
        )

    async def _stuck(self, suspects: Sequence[PartInfo], now: int) -> tuple[PartFacts, ...]:
        """Which of these parts hold due work."""
        if not suspects:
            return ()
        lanes: dict[int, int] = {}
        for part, lane in await self.store.discover([info.part for info in suspects]):
            lanes[lane] = part
            if len(lanes) == LANES_MAX:
                break
        due: dict[int, tuple[int, int]] = {}
        for stat in await self.store.lane_stats(list(lanes)):
            if stat.oldest_due is not None and stat.oldest_due <= now:
                oldest, waiting = due.get(lanes[stat.lane], (now, 0))
                due[lanes[stat.lane]] = min(oldest, stat.oldest_due), waiting + stat.depth
        return tuple(
            PartFacts(
                info.part,
                info.owner,
                round((now - due[info.part][0]) / 1e6, 3),
                due[info.part][1],
                round(info.lease_left, 3),
            )
            for info in suspects
            if info.part in due
        )

    async def _endpoints(self) -> FleetFacts:
        unverified: list[tuple[str, str]] = []
        over_lease: list[tuple[str, float]] = []
        redirecting: list[str] = []
        after: str | None = None
        for _ in range(ENDPOINTS_MAX // ENDPOINTS_PAGE):
            page = self._dispatcher.search.page(None, after=after, limit=ENDPOINTS_PAGE)
            for listed in page.items:
                endpoint = listed.endpoint
                if endpoint.unverified is not None:
                    unverified.append((endpoint.id, endpoint.unverified))
                if endpoint.limits:
                    if listed.policy.attempt_budget >= STRICT_BUDGET_MAX:
                        over_lease.append((endpoint.id, listed.policy.attempt_budget))
                    if endpoint.limits.get("follow_redirects"):
                        redirecting.append(endpoint.id)
            after = page.next
            if after is None:
                break
            await asyncio.sleep(0)
        return FleetFacts(
            unverified=tuple(unverified[:TOLD_MAX]),
            over_lease=tuple(over_lease[:TOLD_MAX]),
            redirecting=tuple(redirecting[:TOLD_MAX]),
        )


def limit_facts(policy: ClientPolicy, *, slots: int, shared: bool, others: Collection[ClientPolicy] = ()) -> LimitFacts:
    """The limits of a policy; where `others` hold beside it, what any of them lacks is missing. Believes no field to be a number."""
    policies = (policy, *others)
    phases: dict[str, float | None] = {}
    for phase, fields in PHASE_LIMITS.items():
        given = [_first(one, fields) for one in policies]
        phases[phase.value] = None if None in given else given[0]
    try:
        budget: float | None = policy.attempt_budget
    except TypeError:
        budget = None
    return LimitFacts(
        phases=phases,
        attempt_budget=budget,
        keepalive_expiry=policies[-1].keepalive_expiry,
        max_connections=policies[-1].max_connections,
        slots=slots,
        follow_redirects=any(one.follow_redirects for one in policies),
        redirect_cross_origin=any(one.follow_redirects and one.redirect_cross_origin for one in policies),
        shared_store=shared,
    )


def _first(policy: ClientPolicy, fields: Sequence[str]) -> float | None:
    """The first of the fields that is given, if it is a limit at all."""
    for name in fields:
        value = getattr(policy, name)
        if value is not None:
            is_limit = isinstance(value, int | float) and 0 < value < math.inf
            return value if is_limit else None
    return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def facts_json(value: object) -> object:
    """Facts as JSON can hold them."""
    if isinstance(value, Mapping):
        return {str(key): facts_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [facts_json(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: facts_json(getattr(value, name)) for name in value.__dataclass_fields__}
    return value
