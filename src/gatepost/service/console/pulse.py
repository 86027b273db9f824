"""The last five minutes of this process, in memory: attempts and dead letters by tenant, endpoints that fail, what happened.

`Pulse` is an `Observer`; an attempt costs it two dictionary look-ups and a few additions. Everything is bounded, and what does not
fit is missing from a ranking, never from a sum. Read by the overview, in this process and, as JSON, by its siblings.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from gatepost.clock import Clock
from gatepost.dispatch.dispatcher import Dispatcher
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation

SLOT: Final = 5
"""Seconds of one slot: what a person sees move."""
SLOTS: Final = 60
"""Five minutes: long enough for a rate, short enough for "now"."""
MINUTES: Final = SLOT * SLOTS // 60
TENANTS_MAX: Final = 500
"""Tenants counted apart in one slot; the sum has all."""
ENDPOINTS_MAX: Final = 10_000
"""Endpoints counted in one minute, about 2 MB."""
NEWS_MAX: Final = 100
TEXT_MAX: Final = 500
"""Characters of a message that are kept."""
HELD_MAX: Final = 500
"""Endpoints remembered because their breaker opened."""
WORST: Final = 20
"""Endpoints in a ranking."""

ATTEMPTS, DELIVERED, AMBIGUOUS, OURS, DEAD = range(5)
COUNTS: Final = ("attempts", "delivered", "ambiguous", "ours", "dead")
"""What a slot counts: attempts, those delivered, those after which the receiver may have acted, those that failed by our fault,
and deliveries given up."""

Counts = list[int]


class _Endpoint:
    """One endpoint in one minute."""

    __slots__ = ("ambiguous", "attempts", "delivered", "elapsed", "host", "tenant")

    def __init__(self, tenant: str | None, host: str) -> None:
        self.tenant = tenant
        self.host = host
        self.attempts = 0
        self.delivered = 0
        self.ambiguous = 0
        self.elapsed = 0.0


class Pulse:
    """Counts what one process does. `run` beside a dispatcher counts its sheds too."""

    def __init__(self, clock: Clock) -> None:
        self._wall_us = clock.wall_us
        self._slot = 0
        self._total: Counts = [0] * len(COUNTS)
        self._nobody: Counts = [0] * len(COUNTS)
        self._tenants: dict[str | None, Counts] = {}
        self._slots: deque[tuple[int, Counts, dict[str | None, Counts]]] = deque(maxlen=SLOTS)
        """Number, sum, and by tenant; the newest last, which is counted into."""
        self._endpoints: dict[str, _Endpoint] = {}
        self._minutes: deque[tuple[int, dict[str, _Endpoint]]] = deque(maxlen=MINUTES)
        self._news: deque[dict[str, Any]] = deque(maxlen=NEWS_MAX)
        self._held: OrderedDict[str, str | None] = OrderedDict()
        self._sheds: deque[tuple[int, Mapping[str, int]]] = deque(maxlen=SLOTS)
        self._sheds_seen: Mapping[str, int] = {}

    # ------------------------------------------------------------------------------------------- Observer

    def attempt_finished(self, observation: AttemptObservation) -> None:
        """Count one attempt."""
        total, own = self._counts(observation.tenant)
        total[ATTEMPTS] += 1
        own[ATTEMPTS] += 1
        ambiguous = False
        if observation.delivered:
            total[DELIVERED] += 1
            own[DELIVERED] += 1
        else:
            if observation.retry_safety == "ambiguous":
                ambiguous = True
                total[AMBIGUOUS] += 1
                own[AMBIGUOUS] += 1
            if observation.blame == "us":
                total[OURS] += 1
                own[OURS] += 1
                return  # it says nothing of the endpoint
        name = observation.endpoint_id
        if name is None:
            return
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            if len(self._endpoints) >= ENDPOINTS_MAX:
                return
            endpoint = self._endpoints[name] = _Endpoint(observation.tenant, observation.host)
        endpoint.attempts += 1
        endpoint.elapsed += observation.elapsed
        if observation.delivered:
            endpoint.delivered += 1
        elif ambiguous:
            endpoint.ambiguous += 1

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        """Count one delivery that was given up."""
        if observation.decision == "dead_letter":
            for counts in self._counts(observation.tenant):
                counts[DEAD] += 1

    def operational(self, observation: OperationalObservation) -> None:
        """Keep what happened."""
        self._news.append(
            {
                "at": self._wall_us(),
                "kind": observation.kind,
                "message": observation.message[:TEXT_MAX],
                "tenant": observation.tenant,
                "endpoint_id": observation.endpoint_id,
            }
        )
        if observation.kind == "circuit_opened" and observation.endpoint_id is not None:
            self._held[observation.endpoint_id] = observation.tenant
            self._held.move_to_end(observation.endpoint_id)
            if len(self._held) > HELD_MAX:
                self._held.popitem(last=False)

    # ------------------------------------------------------------------------------------------- over time

    async def run(self, dispatcher: Dispatcher) -> None:
        """Look at the dispatcher's sheds every slot, until cancelled."""
        while True:
            sheds = dict(dispatcher.statistics().scheduler.sheds)
            seen = self._sheds_seen
            more = {host: count - seen.get(host, 0) for host, count in sheds.items() if count > seen.get(host, 0)}
            self._sheds_seen = sheds
            self._sheds.append((self._number(), more))
            await asyncio.sleep(SLOT)

    # --------------------------------------------------------------------------------------------- reading

    def held(self, tenant: str | None = None) -> Collection[str]:
        """Endpoints whose breaker opened since the start, the newest last, and may be open still."""
        return [name for name, of in self._held.items() if tenant is None or of == tenant]

    def closed(self, endpoint_id: str) -> None:
        """Its breaker was found closed."""
        self._held.pop(endpoint_id, None)

    def look(self, tenant: str | None = None) -> dict[str, Any]:
        """All of it as JSON, or what belongs to one tenant. Lists by slot begin five minutes ago."""
        newest = self._number()
        first = newest - SLOTS + 1
        series = {name: [0] * SLOTS for name in COUNTS}
        for number, total, tenants in self._slots:
            counts = total if tenant is None else tenants.get(tenant)
            if number >= first and number <= newest and counts is not None:
                for place, name in enumerate(COUNTS):
                    series[name][number - first] += counts[place]
        return {
            "slot": newest,
            "series": series,
            "sheds": self._sheds_since(first) if tenant is None else {},
            "endpoints": self._worst(first, tenant),
            "held": list(self.held(tenant)),
            "news": [item for item in self._news if tenant is None or item["tenant"] == tenant],
        }

    # --------------------------------------------------------------------------------------------- helpers

    def _number(self) -> int:
        return self._wall_us() // (SLOT * 1_000_000)

    def _counts(self, tenant: str | None) -> tuple[Counts, Counts]:
        number = self._number()
        if number != self._slot:
            self._turn(number)
        own = self._tenants.get(tenant)
        if own is None:
            # Those of no tenant, or of one too many, are counted where nobody looks; the sum has them.
            own = self._nobody if tenant is None or len(self._tenants) >= TENANTS_MAX else [0] * len(COUNTS)
            if own is not self._nobody:
                self._tenants[tenant] = own
        return self._total, own

    def _turn(self, number: int) -> None:
        self._slot = number
        self._total, self._tenants = [0] * len(COUNTS), {}
        self._slots.append((number, self._total, self._tenants))
        minute = number * SLOT // 60
        if not self._minutes or self._minutes[-1][0] != minute:
            self._endpoints = {}
            self._minutes.append((minute, self._endpoints))

    def _sheds_since(self, first: int) -> dict[str, int]:
        summed: dict[str, int] = {}
        for number, more in self._sheds:
            if number >= first:
                for host, count in more.items():
                    summed[host] = summed.get(host, 0) + count
        return dict(sorted(summed.items(), key=lambda pair: -pair[1])[:WORST])

    def _worst(self, first: int, tenant: str | None) -> list[dict[str, Any]]:
        minutes = [endpoints for minute, endpoints in self._minutes if minute >= first * SLOT // 60]
        failed: dict[str, int] = {}
        for endpoints in minutes:
            for name, one in endpoints.items():
                failures = one.attempts - one.delivered
                if failures and (tenant is None or one.tenant == tenant):
                    failed[name] = failed.get(name, 0) + failures
        # Only the few that are shown are summed up whole: in an outage all ten thousand fail.
        summed: dict[str, dict[str, Any]] = {}
        for name in heapq.nlargest(WORST, failed, key=failed.__getitem__):
            for endpoints in minutes:
                if name in endpoints:
                    view = _endpoint_view(name, endpoints[name])
                    summed[name] = _added(summed[name], view) if name in summed else view
        return worst(summed.values())


def worst(endpoints: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that failed, most failures first."""
    failing = [one for one in endpoints if one["attempts"] > one["delivered"]]
    failing.sort(key=lambda one: (one["delivered"] - one["attempts"], one["id"]))
    return failing[:WORST]


def merge(looks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several processes' looks as one."""
    newest = max(look["slot"] for look in looks)
    series = {name: [0] * SLOTS for name in COUNTS}
    sheds: dict[str, int] = {}
    endpoints: dict[str, dict[str, Any]] = {}
    held: dict[str, None] = {}
    news: list[dict[str, Any]] = []
    for look in looks:
        behind = newest - look["slot"]  # their clocks may stand in different slots
        for name in COUNTS:
            for place, count in enumerate(look["series"][name]):
                if place - behind >= 0:
                    series[name][place - behind] += count
        for host, count in look["sheds"].items():
            sheds[host] = sheds.get(host, 0) + count
        for one in look["endpoints"]:
            known = endpoints.get(one["id"])
            endpoints[one["id"]] = one if known is None else _added(known, one)
        held.update(dict.fromkeys(look["held"]))
        news += look["news"]
    news.sort(key=lambda item: item["at"])
    return {
        "slot": newest,
        "series": series,
        "sheds": dict(sorted(sheds.items(), key=lambda pair: -pair[1])[:WORST]),
        "endpoints": worst(endpoints.values()),
        "held": list(held),
        "news": news[-NEWS_MAX:],
    }


def _added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {**other, **{name: one[name] + other[name] for name in ("attempts", "delivered", "ambiguous", "elapsed")}}


def _endpoint_view(name: str, one: _Endpoint) -> dict[str, Any]:
    return {
        "id": name,
        "tenant": one.tenant,
        "host": one.host,
        "attempts": one.attempts,
        "delivered": one.delivered,
        "ambiguous": one.ambiguous,
        "elapsed": one.elapsed,
    }
