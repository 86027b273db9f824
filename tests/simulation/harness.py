"""A dispatcher on virtual time with a store in memory and a scripted client: hours of schedule in milliseconds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast

from gatepost.admission.breaker import BreakerMode, BreakerRules
from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.records import Endpoint
from gatepost.dispatch.dispatcher import Dispatcher, DispatcherSettings
from gatepost.dispatch.limits import LimitSettings
from gatepost.errors import StoreError
from gatepost.store.memory import MemoryStore
from gatepost.store.port import Store
from gatepost.store.rows import DeadFilter, DeadLetter, DeliveryFilter, DeliveryInfo
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation
from gatepost.testing.fake_client import FakeClient, Sent
from gatepost.testing.virtual import SeededEntropy, VirtualClock, run_virtual
from gatepost.wire.egress import EgressPolicy

EGRESS = EgressPolicy()
UNGUARDED = LimitSettings(breaker=BreakerRules(mode=BreakerMode.OFF), adaptive_concurrency=False)
"""For tests of schedules that fail on purpose: an open breaker would hold most of their attempts."""


class Heard:
    """An observer that keeps everything."""

    def __init__(self) -> None:
        self.decisions: list[DeliveryObservation] = []
        self.operational_: list[OperationalObservation] = []
        self.attempts = 0

    def attempt_finished(self, observation: AttemptObservation) -> None:
        self.attempts += 1

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        self.decisions.append(observation)

    def operational(self, observation: OperationalObservation) -> None:
        self.operational_.append(observation)

    def kinds(self) -> list[str]:
        return [observation.kind for observation in self.operational_]


class Line:
    """A process' connection to a store: cut it, or parts of it, and every call over it raises `StoreError`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.cut = False
        self.cut_calls: set[str] = set()
        """Names of calls that fail."""
        self.calls: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._store, name)
        if not callable(target):
            return target

        async def call(*arguments: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            if self.cut or name in self.cut_calls:
                raise StoreError(f"{name}: the line is cut")
            return await target(*arguments)

        return call

    @property
    def as_store(self) -> Store:
        """The same, for the type checker."""
        return cast(Store, self)


class Simulation:
    """One store, one client, one clock; as many dispatchers after one another as a test likes."""

    def __init__(self, *, policy: ClientPolicy | None = None, store: Store | None = None) -> None:
        self.clock = VirtualClock()
        self.entropy = SeededEntropy(7)
        self.store: Store = store or MemoryStore(self.clock)
        self.client = FakeClient(policy, egress=EGRESS, clock=self.clock, entropy=self.entropy)
        self.heard = Heard()
        self.nodes = 0

    def run(self, main: Callable[[Simulation], Awaitable[None]]) -> None:
        """Run `main` to its end on virtual time."""

        async def whole() -> None:
            await main(self)

        run_virtual(whole, clock=self.clock)

    def make(self, *, settings: DispatcherSettings | None = None, store: Store | None = None) -> Dispatcher:
        """A dispatcher that is neither prepared nor running."""
        self.nodes += 1
        return Dispatcher(
            store or self.store,
            self.client,
            settings=settings,
            observer=self.heard,
            clock=self.clock,
            entropy=self.entropy,
            node=f"node-{self.nodes}",
        )

    @asynccontextmanager
    async def dispatcher(
        self, *, settings: DispatcherSettings | None = None, run: bool = True, store: Store | None = None
    ) -> AsyncIterator[Dispatcher]:
        """A prepared dispatcher, running unless told otherwise."""
        gp = self.make(settings=settings, store=store)
        try:
            await gp.prepare()
            if run:
                gp.run_in_background()
            yield gp
        finally:
            await gp.aclose()

    def sent_to(self, endpoint: Endpoint) -> list[Sent]:
        """Requests to an endpoint's URL, in order."""
        return [sent for sent in self.client.sent if sent.url == endpoint.url]

    async def deliveries(self, endpoint: Endpoint) -> list[DeliveryInfo]:
        """All of an endpoint's deliveries, newest first."""
        return list((await self.store.deliveries(DeliveryFilter(endpoint=endpoint.number), None, 1_000)).items)

    async def dead(self, endpoint: Endpoint) -> list[DeadLetter]:
        """All of an endpoint's dead letters."""
        return list((await self.store.dead_letters(DeadFilter(endpoint=endpoint.number), None, 1_000)).items)


def simulate(main: Callable[[Simulation], Awaitable[None]], *, policy: ClientPolicy | None = None) -> None:
    """Run a test on virtual time."""
    Simulation(policy=policy).run(main)


def gaps(sent: list[Sent]) -> list[float]:
    """Seconds between the starts of successive requests."""
    return [later.at - earlier.at for earlier, later in pairwise(sent)]
