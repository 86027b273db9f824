"""Several dispatchers on one store in memory and one virtual clock, with one receiver that sees what all of them send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from gatepost.deadline import Deadline
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.records import Endpoint
from gatepost.dispatch.dispatcher import Dispatcher, DispatcherSettings
from gatepost.net.tls import TLSProfile
from gatepost.store.memory import MemoryStore
from gatepost.testing.fake_client import Answer, FakeClient, Sent
from gatepost.testing.virtual import SeededEntropy, VirtualClock, run_virtual
from tests.simulation.harness import EGRESS, Heard, Line

PARTS = 16


class SkewedClock:
    """Another machine's clocks: the same monotonic time, and a wall clock that is off by so many seconds and may be moved."""

    def __init__(self, clock: VirtualClock, seconds: float = 0.0) -> None:
        self._clock = clock
        self.seconds = seconds

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def monotonic_ns(self) -> int:
        return self._clock.monotonic_ns()

    def wall_us(self) -> int:
        return self._clock.wall_us() + round(self.seconds * 1e6)


class Receiver:
    """What endpoints saw, whoever sent it."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        """In order of start."""
        self.by: list[str] = []
        """Who sent each."""
        self.answered: list[tuple[str, bytes]] = []
        """URL and body of each success, in order of its end."""
        self.in_flight: dict[str, int] = {}
        self.most_in_flight: dict[str, int] = {}


class MemberClient(FakeClient):
    """Sends to the common receiver; after `dead` nothing leaves any more."""

    def __init__(self, name: str, receiver: Receiver, policy: ClientPolicy | None, clock: VirtualClock) -> None:
        super().__init__(policy, egress=EGRESS, clock=clock, entropy=SeededEntropy(len(name)))
        self._name = name
        self._receiver = receiver
        self.in_flight = receiver.in_flight
        self.most_in_flight = receiver.most_in_flight
        self.sent = receiver.sent
        self.dead = False

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
        """Keep who sent it and what became of it."""
        if self.dead:
            await asyncio.get_running_loop().create_future()
        self._receiver.by.append(self._name)
        attempt = await super().deliver_admitted(
            url, payload, headers, endpoint_id=endpoint_id, tenant=tenant, content_type=content_type, deadline=deadline
        )
        if attempt.delivered:
            assert isinstance(payload, bytes)
            self._receiver.answered.append((url, payload))
        return attempt


class Frozen(Line):
    """A line that may also hang: calls wait until `thaw`, as over a network that swallows everything."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._flows = asyncio.Event()
        self._flows.set()

    def freeze(self) -> None:
        """From now on no call returns."""
        self._flows.clear()

    def thaw(self) -> None:
        """Let them through again."""
        self._flows.set()

    def __getattr__(self, name: str) -> Any:
        target = super().__getattr__(name)
        if not callable(target):
            return target

        async def call(*arguments: Any) -> Any:
            await self._flows.wait()
            result = await target(*arguments)
            await self._flows.wait()
            return result

        return call


class Member:
    """One process of the fleet."""

    def __init__(self, fleet: Fleet, name: str, wall_off: float, settings: DispatcherSettings | None) -> None:
        self.name = name
        self.view = fleet.store.peer()
        self.line = Frozen(self.view)
        self.clock = SkewedClock(fleet.clock, wall_off)
        self.client = MemberClient(name, fleet.receiver, fleet.policy, fleet.clock)
        for url, answers in fleet.answers.items():
            self.client.on(url, *answers)
        self.gp = Dispatcher(
            self.line.as_store,
            self.client,
            settings=settings,
            observer=fleet.heard,
            clock=self.clock,
            entropy=SeededEntropy(1 + len(fleet.members)),
            node=name,
        )
        self.killed = False

    @property
    def parts(self) -> int:
        """Parts it believes to hold."""
        return self.gp.statistics().parts

    def kill(self) -> None:
        """As SIGKILL: from now on nothing is sent, settled or given back, and the server notices the lost connection."""
        self.killed = True
        self.client.dead = True
        self.line.cut = True
        self.view.lose_session()

    async def stop(self) -> None:
        """As SIGTERM: drain, then disconnect."""
        await self.gp.aclose()
        await self.view.aclose()


class Fleet:
    """One store, one receiver, any number of members."""

    def __init__(self, *, policy: ClientPolicy | None = None, parts: int = PARTS) -> None:
        self.clock = VirtualClock()
        self.store_clock = SkewedClock(self.clock)
        self.store = MemoryStore(self.store_clock, parts=parts)
        self.policy = policy
        self.heard = Heard()
        self.receiver = Receiver()
        self.answers: dict[str, tuple[Answer, ...]] = {}
        self.members: list[Member] = []

    def run(self, main: Callable[[Fleet], Awaitable[None]]) -> None:
        """Run `main` to its end on virtual time."""

        async def whole() -> None:
            try:
                await main(self)
            finally:
                for member in self.members:
                    if member.killed:
                        await member.gp.drain(0.0)
                    member.line.thaw()
                    await member.stop()
                    await member.client.aclose()

        run_virtual(whole, clock=self.clock)

    async def add(
        self, name: str, *, wall_off: float = 0.0, settings: DispatcherSettings | None = None, run: bool = True
    ) -> Member:
        """Start a process."""
        member = Member(self, name, wall_off, settings)
        self.members.append(member)
        await member.gp.prepare()
        if run:
            member.gp.run_in_background()
        return member

    @asynccontextmanager
    async def started(self, *names: str) -> AsyncIterator[list[Member]]:
        """Processes that have found their balance."""
        members = [await self.add(name) for name in names]
        await self.balanced()
        yield members

    async def balanced(self, within: float = 20.0) -> None:
        """Until every living, running member holds its share and nothing is free."""
        async with asyncio.timeout(within):
            while True:
                alive = [member for member in self.members if not member.killed and member.gp.statistics().running]
                owned = sum(info.owner is not None for info in await self.store.parts())
                if owned == PARTS and all(member.gp.statistics().balanced for member in alive):
                    return
                await asyncio.sleep(0.05)

    async def endpoints(self, gp: Dispatcher, count: int, **settings: Any) -> list[Endpoint]:
        """Registered by one process, and known to all."""
        made = [await gp.endpoints.create(f"https://e{number}.receivers.net/", **settings) for number in range(count)]
        await asyncio.sleep(2.0)
        return made

    async def settled(self, within: float = 120.0) -> None:
        """Until nothing waits in the store."""
        async with asyncio.timeout(within):
            while (await self.store.totals()).waiting:  # noqa: ASYNC110 - the store tells nobody
                await asyncio.sleep(0.1)

    def delivered(self, endpoint: Endpoint) -> list[bytes]:
        """Bodies that the endpoint took, each at its first success, in order."""
        bodies = [body for url, body in self.receiver.answered if url == endpoint.url]
        return list(dict.fromkeys(bodies))

    def doubled(self) -> int:
        """Successes beyond the first of each event at each endpoint."""
        return len(self.receiver.answered) - len(set(self.receiver.answered))
