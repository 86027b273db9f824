"""Cancel a delivery at every turn of the loop on its way through all eight phases, on both event loops; nothing may stay behind.

The way is the longest there is: a queue for the endpoint, one for the host, a name that is asked for, TLS, a body that takes
many writes, an answer that comes late and drips. One client lives through all cancellations of a test and has room for one
delivery only, so that the first leaked slot, lease or permit stops it. (tests/hostile cancels at random times instead.)
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
import trustme

from gatepost.delivery.attempt import Attempt
from gatepost.net.client import DispatchClient
from gatepost.net.resolver import Resolution
from gatepost.net.tls import TLSProfile
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation
from gatepost.testing.hostile import HostileServer
from gatepost.wire.phases import Phase
from tests.hostile.engine import IDENTITY, LOOPBACK, limits

AUTHORITY = trustme.CA()
PROFILE = TLSProfile(ca_pem=AUTHORITY.cert_pem.bytes())
NAME = "receiver.test.example.com"
BODY = bytes(6_000_000)
"""More than a loopback connection takes at once (3.9 MB with the receiver below), so that writing takes many turns."""
BUFFER = 65_536
"""Bytes of the receiver's own buffers."""
PIECES = 3
PER_PHASE = 100
"""Cancellations in each phase, at seeded turns."""
LONG = 30.0
"""No limit may fire: what ends a delivery here is its cancellation, or its success."""


def loops() -> list[Callable[[], asyncio.AbstractEventLoop]]:
    """The loops that production may run on."""
    factories: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop]
    with suppress(ImportError):
        import uvloop

        factories.append(uvloop.new_event_loop)
    return factories


on_both_loops = pytest.mark.parametrize(
    "factory", loops(), ids=lambda factory: str(factory.__module__).partition(".")[0]
)


@dataclass
class Recorder:
    """How attempts ended, by phase, and how often each."""

    ended: Counter[tuple[str, str]] = field(default_factory=Counter)

    def attempt_finished(self, observation: AttemptObservation) -> None:
        """Count it."""
        self.ended[observation.outcome, observation.phase] += 1

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        """Not here."""

    def operational(self, observation: OperationalObservation) -> None:
        """Nothing may be worth telling."""
        raise AssertionError(observation)

    def cancelled(self, phase: Phase) -> int:
        """Cancellations that met the attempt in `phase`."""
        return self.ended["cancelled", phase]


class SlowResolver:
    """Answers after some turns of the loop."""

    async def resolve(self, host: str) -> Resolution:
        """Always loopback."""
        for _ in range(4):
            await asyncio.sleep(0)
        return Resolution(("127.0.0.1",))


class SlowReceiver:
    """Reads a request whole, answers after a moment, and drips the answer. Knows when all its connections are gone."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        self._server: asyncio.Server | None = None
        self._busy: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Its address, by name."""
        assert self._server is not None
        scheme = "http" if self._context is None else "https"
        return f"{scheme}://{NAME}:{self._server.sockets[0].getsockname()[1]}/hook"

    async def start(self) -> None:
        """Listen."""
        listener = socket.socket(proto=socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY only where the protocol is named
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        listener.bind(("127.0.0.1", 0))
        self._server = await asyncio.start_server(self._accept, sock=listener, ssl=self._context, limit=BUFFER)

    async def quiet(self) -> None:
        """Wait until every connection has ended: the client must have closed its side."""
        async with asyncio.timeout(10.0):
            while self._busy:
                await asyncio.wait(self._busy)
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Stop listening."""
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()
        await asyncio.sleep(0.02)  # transports close their sockets in a later turn

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        try:
            while await self._serve(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()
            self._busy.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        await asyncio.sleep(0.001)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % PIECES)
        for _ in range(PIECES):
            await asyncio.sleep(0.001)
            writer.write(b"x")
            await writer.drain()
        return True


@dataclass
class Stage:
    """A client with room for one delivery, and the receiver it delivers to."""

    client: DispatchClient
    receiver: SlowReceiver
    recorder: Recorder
    tls: TLSProfile | None

    def deliver(self, body: bytes = b"small", url: str | None = None) -> asyncio.Task[Attempt]:
        """One delivery as a task of its own."""
        return asyncio.get_running_loop().create_task(
            self.client.deliver(url or self.receiver.url, body, IDENTITY, tls=self.tls, endpoint_id="ep_1")
        )

    def forget(self) -> None:
        """Let the next delivery open a connection of its own."""
        self.client.forget(self.receiver.url.removesuffix("/hook"))

    def assert_nothing_held(self) -> None:
        """No delivery, permit, waiter or lease is left; at most one connection is idle."""
        statistics = self.client.statistics()
        assert statistics.in_flight == 0
        assert statistics.admitted == 0
        assert statistics.waiting_for_admission == 0
        assert statistics.waiting_for_connection == 0
        assert statistics.connections_in_use == 0
        assert statistics.connections_open == statistics.connections_idle <= 1

    @property
    def phases(self) -> set[Phase]:
        """Where the deliveries in flight are."""
        return {flight.phase for flight in self.client.flights}


@asynccontextmanager
async def stage(*, tls: bool, endpoint_slots: int = 1) -> AsyncIterator[Stage]:
    """Set up, tear down, and compare the process's descriptors before and after."""
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        AUTHORITY.issue_cert(NAME).configure_cert(context)
    names = ("connect_timeout", "write_timeout", "read_timeout", "pool_timeout", "admission_timeout")
    policy = limits(
        **dict.fromkeys(names, LONG),
        max_connections=1,
        max_per_host=1,
        per_endpoint_concurrency=endpoint_slots,
        dns_ttl=0,
    )
    recorder = Recorder()
    receiver = SlowReceiver(context)
    await receiver.start()
    before = len(os.listdir("/proc/self/fd"))
    client = DispatchClient(policy, egress=LOOPBACK, resolver=SlowResolver(), observer=recorder)
    try:
        # The first one of all builds the TLS context in a thread; how many turns that takes is anybody's guess.
        assert (await client.deliver(receiver.url, b"x", tls=PROFILE if tls else None)).delivered
        yield Stage(client, receiver, recorder, PROFILE if tls else None)
        assert (await client.deliver(receiver.url, b"x", tls=PROFILE if tls else None)).delivered, "the one place works"
        await client.aclose()
        await receiver.quiet()
        await asyncio.sleep(0.02)
        assert client.statistics().connections_open == 0
        assert len(os.listdir("/proc/self/fd")) == before
    finally:  # after a failure too: an open server would hang the loop's own end
        await client.aclose()
        await receiver.quiet()
        await receiver.stop()


def run(factory: Callable[[], asyncio.AbstractEventLoop], main: Callable[[], Awaitable[None]]) -> None:
    """Run `main` on a loop of that kind, within a minute."""

    async def bounded() -> None:
        async with asyncio.timeout(60.0):
            await main()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(bounded())


async def turns(count: int) -> None:
    """Let the loop go round `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def cancelled(task: asyncio.Task[Attempt]) -> bool:
    """Cancel and wait: True when that is how it ended, False when it had ended in time. Nothing else is possible."""
    task.cancel()
    try:
        attempt = await task
    except asyncio.CancelledError:
        return True
    assert attempt.delivered
    return False


class Sweep:
    """Turn counts to cancel after: each of the first forty, where set-up happens, then wider, until deliveries end before."""

    def __init__(self) -> None:
        self.in_time = 0
        """Deliveries that had ended."""

    def __iter__(self) -> Iterator[int]:
        count = 0
        while self.in_time < 3:
            yield count
            count += 1 if count < 40 else count // 10


@on_both_loops
def test_cancelling_a_delivery_at_any_turn_leaves_nothing(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """From the first step of the task to beyond its end: in each case all that it held is free again at once."""

    async def main() -> None:
        async with stage(tls=True) as scene:
            sweep = Sweep()
            for count in sweep:
                scene.forget()
                task = scene.deliver(BODY)
                await turns(count)
                sweep.in_time += not await cancelled(task)
                scene.assert_nothing_held()
            met = {phase for phase in Phase if scene.recorder.cancelled(phase)}
            assert met >= {Phase.DNS, Phase.CONNECT, Phase.TLS, Phase.WRITE, Phase.WAIT, Phase.READ}

    run(factory, main)


@on_both_loops
@pytest.mark.parametrize("slots", [1, 2], ids=["admission", "pool"])
def test_cancelling_one_that_waits_behind_another_leaves_nothing(
    factory: Callable[[], asyncio.AbstractEventLoop], slots: int
) -> None:
    """Also in the very turn in which the place is handed to it; and the one in front never notices."""

    async def main() -> None:
        async with stage(tls=False, endpoint_slots=slots) as scene:
            sweep = Sweep()
            for count in sweep:
                front, behind = scene.deliver(), scene.deliver()
                await turns(count)
                sweep.in_time += not await cancelled(behind)
                assert (await front).delivered
                scene.assert_nothing_held()
            waiting = Phase.ADMISSION if slots == 1 else Phase.POOL
            assert scene.recorder.cancelled(waiting) > 20
            assert scene.recorder.ended["response", Phase.READ] > 20

    run(factory, main)


@on_both_loops
@pytest.mark.parametrize("slots", [1, 2], ids=["admission", "pool"])
def test_cancelling_the_one_in_front_serves_the_one_behind(
    factory: Callable[[], asyncio.AbstractEventLoop], slots: int
) -> None:
    """Whatever it held goes to who waited for it, in order, and is used."""

    async def main() -> None:
        async with stage(tls=False, endpoint_slots=slots) as scene:
            sweep = Sweep()
            for count in sweep:
                front, second, third = scene.deliver(), scene.deliver(), scene.deliver()
                await turns(count)
                sweep.in_time += not await cancelled(front)
                assert (await second).delivered
                assert (await third).delivered
                scene.assert_nothing_held()

    run(factory, main)


SEEDED = [
    (Phase.ADMISSION, False, 1),
    (Phase.POOL, False, 2),
    (Phase.DNS, False, 1),
    (Phase.CONNECT, False, 1),
    (Phase.TLS, True, 1),
    (Phase.WRITE, True, 1),
    (Phase.WAIT, True, 1),
    (Phase.READ, True, 1),
]


@on_both_loops
@pytest.mark.parametrize(("phase", "tls", "slots"), SEEDED, ids=[case[0] for case in SEEDED])
def test_a_hundred_cancellations_in_each_phase_leave_nothing(
    factory: Callable[[], asyncio.AbstractEventLoop], phase: Phase, tls: bool, slots: int
) -> None:
    """A seeded number of turns after the phase was entered; counted by what the observer was told."""

    async def main() -> None:
        rng = random.Random(f"{phase} 20261130")
        # A connect on loopback is over in the turn in which it began; one to a full backlog never is.
        async with HostileServer("black-hole") as hole, stage(tls=tls, endpoint_slots=slots) as scene:
            url = hole.url.replace("127.0.0.1", NAME) if phase is Phase.CONNECT else None
            waits = phase in (Phase.ADMISSION, Phase.POOL)
            for _ in range(10 * PER_PHASE):
                if scene.recorder.cancelled(phase) >= PER_PHASE:
                    break
                if phase in (Phase.DNS, Phase.TLS):
                    scene.forget()
                front = scene.deliver() if waits else None
                task = scene.deliver(BODY if phase is Phase.WRITE else b"small", url)
                while phase not in scene.phases and not task.done():  # noqa: ASYNC110 - turn by turn
                    await asyncio.sleep(0)
                await turns(rng.choice((0, 0, 0, 1, 1, 2, 3, 5, 8)))
                await cancelled(task)
                if front is not None:
                    assert (await front).delivered
                scene.assert_nothing_held()
            assert scene.recorder.cancelled(phase) >= PER_PHASE

    run(factory, main)


@on_both_loops
def test_cancelling_while_the_tls_context_is_built_leaves_nothing(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """The first attempt with a profile waits for a thread; whoever gives up meanwhile only stops waiting."""

    async def main() -> None:
        async with stage(tls=True) as scene:
            for count in range(40):
                profile = TLSProfile(ca_pem=AUTHORITY.cert_pem.bytes() + b"\n" * (count + 1))
                first, second = (
                    asyncio.get_running_loop().create_task(
                        scene.client.deliver(scene.receiver.url, b"small", IDENTITY, tls=profile)
                    )
                    for _ in range(2)
                )
                await turns(count)
                await cancelled(first)
                assert (await second).delivered
                scene.assert_nothing_held()

    run(factory, main)
