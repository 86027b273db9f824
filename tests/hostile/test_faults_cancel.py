"""Cancellation of the engine, at random seeded moments in every phase and at every turn of the loop.

A cancelled caller must get his CancelledError, the attempt must be observed once, and nothing may stay behind: no slot,
lease, waiter, connection or descriptor. Most pools of the field have leaked here at some time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from gatepost.delivery.outcome import Outcome
from gatepost.net.client import DispatchClient
from gatepost.net.resolver import Resolution
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation
from gatepost.testing.hostile import HostileServer
from gatepost.wire.phases import Phase
from tests.hostile.engine import BIG, IDENTITY, LOOPBACK, SMALL, assert_nothing_held, limits, same_descriptors

TIMES = 120
"""Cancellations per phase, at least."""
ENOUGH = 100
"""Of them in the phase itself, and not before it."""
AT_ONCE = 40
"""Attempts in flight together, so that cancellations also meet hand-overs between waiters."""
LONG = 30.0
"""No limit may fire here: what ends an attempt is the cancellation."""
LATEST = 0.04
"""Seconds within which a cancellation comes, at first."""


@dataclass
class Recorder:
    """Keeps what the engine tells its observer."""

    attempts: list[AttemptObservation] = field(default_factory=list)

    def attempt_finished(self, observation: AttemptObservation) -> None:
        """One finished attempt."""
        self.attempts.append(observation)

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        """Not of interest here."""

    def operational(self, observation: OperationalObservation) -> None:
        """Nothing may go wrong."""
        raise AssertionError(observation)


class Never:
    """A resolver that hangs."""

    async def resolve(self, host: str) -> Resolution:
        """Wait for ever."""
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


@dataclass(frozen=True)
class Scene:
    """A phase, and how to be in it: a server, a payload, and limits."""

    phase: Phase
    behaviour: str
    payload: bytes = SMALL
    seconds: float | None = None
    name: str | None = None
    held: int = 0
    """Attempts that hold every place, so that the others wait."""
    limits: dict[str, float] = field(default_factory=dict)
    at_once: int = AT_ONCE


WIDE: dict[str, float] = {"max_connections": 200, "max_per_host": 200, "per_endpoint_concurrency": 200}
SCENES = [
    Scene(Phase.ADMISSION, "silence", held=2, limits={"per_endpoint_concurrency": 2}),
    Scene(Phase.POOL, "silence", held=2, limits={"max_per_host": 2}),
    Scene(Phase.POOL, "silence", held=2, limits={"max_per_host": 2, "max_connections": 2}),
    Scene(Phase.DNS, "ok", name="never.example.com"),
    Scene(Phase.CONNECT, "black-hole"),
    Scene(Phase.TLS, "tls-stall"),
    Scene(Phase.WRITE, "never-reads", payload=BIG[:4_000_000], at_once=10),
    Scene(Phase.WAIT, "silence"),
    Scene(Phase.READ, "drip-head", seconds=0.005),
    Scene(Phase.READ, "drip-body", seconds=0.005),
]


@asynccontextmanager
async def staged(scene: Scene, recorder: Recorder) -> AsyncIterator[tuple[DispatchClient, HostileServer, str]]:
    """Server and client of a scene; everything is closed, and counted, at the end."""
    long = dict.fromkeys(
        ("connect_timeout", "write_timeout", "read_timeout", "pool_timeout", "admission_timeout"), LONG
    )
    policy = limits(**{**long, **WIDE, **scene.limits})
    with same_descriptors():
        async with HostileServer(scene.behaviour, seconds=scene.seconds) as server:
            url = server.url if scene.name is None else server.url.replace("127.0.0.1", scene.name)
            async with DispatchClient(policy, egress=LOOPBACK, resolver=Never(), observer=recorder) as client:
                yield client, server, url
            await server.wait_disconnected()


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: f"{scene.phase}-{scene.behaviour}-{len(scene.limits)}")
async def test_a_cancellation_at_any_moment_of_a_phase_leaves_nothing(scene: Scene) -> None:
    """A hundred and twenty seeded moments per phase; the caller's CancelledError is never swallowed."""
    recorder = Recorder()
    rng = random.Random(f"{scene.phase} {scene.behaviour} 20261130")
    async with staged(scene, recorder) as (client, _, url):
        held = [asyncio.create_task(client.deliver(url, SMALL, IDENTITY, endpoint_id="e")) for _ in range(scene.held)]
        await asyncio.sleep(0.02 if held else 0)
        count = 0
        latest = LATEST
        # On a busy machine many are cancelled before they reach the phase: take longer, until enough were in it.
        while count < TIMES or (in_phase(recorder, scene.phase) < ENOUGH and count < 10 * TIMES):
            tasks = [
                asyncio.create_task(client.deliver(url, scene.payload, IDENTITY, endpoint_id="e"))
                for _ in range(scene.at_once)
            ]
            count += len(tasks)
            before = in_phase(recorder, scene.phase)
            await asyncio.sleep(0)  # a task cancelled before its first step never called the engine
            loop = asyncio.get_running_loop()
            for task in tasks:
                loop.call_later(rng.random() * latest, task.cancel)
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
            if in_phase(recorder, scene.phase) - before < len(tasks) / 2:
                latest *= 2
        assert all(not task.done() for task in held), "who holds a place keeps it"
        statistics = client.statistics()
        assert statistics.in_flight == scene.held
        assert statistics.connections_in_use == scene.held
        assert (statistics.waiting_for_admission, statistics.waiting_for_connection) == (0, 0)
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        assert_cancelled_clean(client, recorder, count + scene.held)
    assert in_phase(recorder, scene.phase) >= ENOUGH


def in_phase(recorder: Recorder, phase: Phase) -> int:
    """Attempts that ended in `phase`."""
    return sum(observation.phase == phase for observation in recorder.attempts)


def assert_cancelled_clean(client: DispatchClient, recorder: Recorder, count: int) -> None:
    """Each attempt was observed once, as cancelled by us, and holds nothing."""
    statistics = client.statistics()
    assert statistics.in_flight == 0
    assert statistics.connections_open == 0
    assert statistics.admitted == 0
    assert (statistics.waiting_for_admission, statistics.waiting_for_connection) == (0, 0)
    for host in statistics.hosts.values():
        assert (host.in_use, host.idle, host.waiting) == (0, 0, 0)
    assert len(recorder.attempts) == count
    for observation in recorder.attempts:
        assert (observation.outcome, observation.blame) == (Outcome.CANCELLED, "us")
        early = observation.phase in (Phase.ADMISSION, Phase.POOL, Phase.DNS, Phase.CONNECT, Phase.TLS)
        assert observation.retry_safety == ("safe" if early or not observation.bytes_sent else "ambiguous")


TURNS = 40
"""Turns of the loop after which a delivery to a good receiver is over in any case (about a dozen suffice)."""


async def turns(count: int) -> None:
    """Let the loop go round `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("behaviour", ["ok", "chunked", "close-delimited"])
@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "reused"])
async def test_a_cancellation_at_every_turn_of_the_loop_leaves_nothing(behaviour: str, warm: bool) -> None:
    """Whatever the engine is doing at that turn, also when the answer arrives in the very same one."""
    recorder = Recorder()
    delivered = 0
    with same_descriptors():
        async with HostileServer(behaviour) as server:
            async with DispatchClient(limits(), egress=LOOPBACK, observer=recorder) as client:
                for count in range(TURNS):
                    if warm:
                        assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
                    before = len(recorder.attempts)
                    task = asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY))
                    await turns(count)
                    task.cancel()
                    try:
                        delivered += (await task).delivered
                    except asyncio.CancelledError:
                        pass
                    # A task cancelled before its first step never called the engine.
                    assert len(recorder.attempts) - before == (0 if count == 0 else 1)
                    statistics = client.statistics()
                    assert (statistics.in_flight, statistics.connections_in_use, statistics.admitted) == (0, 0, 0)
                    assert statistics.connections_open == statistics.connections_idle <= 1
                assert (await client.deliver(server.url, SMALL, IDENTITY)).delivered
            await server.wait_disconnected()
    assert 0 < delivered < TURNS, "the sweep crosses the end of the delivery"


async def test_a_place_granted_in_the_turn_of_the_cancellation_is_handed_on() -> None:
    """The waiter that is cancelled as its place comes must not take the place with it: the host would never be served again."""
    for count in range(12):
        async with HostileServer("slow-ok", seconds=0.005) as server:
            policy = limits(
                max_per_host=1, pool_timeout=5.0, read_timeout=5.0, connect_timeout=5.0, per_endpoint_concurrency=9
            )
            async with DispatchClient(policy, egress=LOOPBACK) as client:
                first, second, third = (
                    asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY)) for _ in range(3)
                )
                await asyncio.wait([first])
                await turns(count)
                second.cancel()
                assert (await third).delivered
                await asyncio.gather(second, return_exceptions=True)
                assert_nothing_held(client, idle=1 if not second.cancelled() else client.statistics().connections_idle)


@pytest.mark.parametrize("after", [0.05, 0.1])
async def test_a_cancellation_in_the_turn_of_a_limit_ends_as_one_of_the_two_and_once(after: float) -> None:
    """The caller is cancelled, or he gets the timeout: never neither, never a swallowed cancellation, and one observation."""
    recorder = Recorder()
    ended: Counter[str] = Counter()
    with same_descriptors():
        async with HostileServer("silence") as server:
            policy = limits(read_timeout=after, **WIDE)
            async with DispatchClient(policy, egress=LOOPBACK, observer=recorder) as client:
                loop = asyncio.get_running_loop()
                tasks = [asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY)) for _ in range(60)]
                for number, task in enumerate(tasks):
                    loop.call_later(after + (number - 20) * 0.00025, task.cancel)
                for task in tasks:
                    try:
                        attempt = await task
                    except asyncio.CancelledError:
                        ended["cancelled"] += 1
                    else:
                        assert attempt.outcome is Outcome.READ_TIMEOUT
                        ended["read_timeout"] += 1
                assert_nothing_held(client)
    assert ended.total() == len(recorder.attempts) == 60
    assert min(ended.values()) > 0, "the sweep has met the limit"
    observed = Counter(observation.outcome for observation in recorder.attempts)
    # A caller cancelled in the very turn of the limit: the attempt had ended by then, and is told as it ended.
    assert observed["cancelled"] <= ended["cancelled"]
    assert observed["cancelled"] + observed["read_timeout"] == 60
    assert {observation.retry_safety for observation in recorder.attempts} == {"ambiguous"}


async def test_one_cancelled_delivery_does_not_end_the_look_up_of_the_others() -> None:
    """The look-up belongs to the cache and not to whoever asked first."""
    release = asyncio.Event()

    class Waiting:
        async def resolve(self, host: str) -> Resolution:
            await release.wait()
            return Resolution(("127.0.0.1",))

    async with (
        HostileServer("ok") as server,
        DispatchClient(limits(connect_timeout=5.0), egress=LOOPBACK, resolver=Waiting()) as client,
    ):
        url = server.url.replace("127.0.0.1", "shared.example.com")
        first, second = (asyncio.create_task(client.deliver(url, SMALL, IDENTITY)) for _ in range(2))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.sleep(0.01)
        release.set()
        assert (await second).delivered
        assert first.cancelled()
        assert_nothing_held(client, idle=1)


@pytest.mark.parametrize("behaviour", ["black-hole", "tls-stall", "silence", "never-reads", "drip-head"])
async def test_a_cancelled_delivery_returns_at_once(behaviour: str) -> None:
    """A shutdown must not wait for the connect limit of a black hole, nor for a closing handshake."""
    recorder = Recorder()
    scene = Scene(Phase.CONNECT, behaviour, seconds=0.01)
    async with staged(scene, recorder) as (client, _, url):
        loop = asyncio.get_running_loop()
        for _ in range(5):
            task = asyncio.create_task(
                client.deliver(url, BIG[:4_000_000] if behaviour == "never-reads" else SMALL, IDENTITY)
            )
            await asyncio.sleep(0.02)
            began = loop.time()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert loop.time() - began < 0.25
        assert client.statistics().connections_open == 0
