"""Look-ups of many tenants: what hangs for one of them is its own trouble, and what nobody waits for is not asked."""

from __future__ import annotations

import asyncio
import threading
import warnings

import pytest

from gatepost.delivery.outcome import Blame, Outcome, RetrySafety
from gatepost.delivery.policy import ClientPolicy
from gatepost.errors import ResolveError
from gatepost.net.client import DispatchClient
from gatepost.net.name_queue import RUNNING_MAX, TENANT_RUNNING_MAX, NameQueue
from gatepost.net.names import Found, NameCache
from gatepost.net.resolver import Resolution, ThreadResolver
from gatepost.testing.receiver import Receiver
from gatepost.testing.virtual import VirtualLoop, run_virtual
from gatepost.wire.phases import Phase
from gatepost.wire.reasons import Reason
from tests.hostile.engine import LOOPBACK, assert_nothing_held


def take_all(queue: NameQueue) -> list[str]:
    """Everything that may start now."""
    taken = []
    while (host := queue.take()) is not None:
        taken.append(host)
    return taken


# ------------------------------------------------------------------------------------------------ the queue


def test_a_tenant_has_a_share_and_no_more() -> None:
    """A customer with hundreds of dead names must not hold every thread."""
    queue = NameQueue()
    for number in range(100):
        queue.put(f"{number}.a", "a")
    assert take_all(queue) == [f"{number}.a" for number in range(TENANT_RUNNING_MAX)]
    queue.put("0.b", "b")
    assert take_all(queue) == ["0.b"]
    queue.ended("5.a")
    assert take_all(queue) == [f"{TENANT_RUNNING_MAX}.a"]


def test_without_a_tenant_only_the_whole_is_bounded() -> None:
    """A library without tenants has one user."""
    queue = NameQueue()
    for number in range(RUNNING_MAX + 10):
        queue.put(str(number), None)
    assert len(take_all(queue)) == queue.running_count == RUNNING_MAX
    queue.ended("0")
    assert len(take_all(queue)) == 1


def test_tenants_take_turns_when_places_are_short() -> None:
    """A tenant with a thousand names must not make one with a single name wait for all of them."""
    queue = NameQueue()
    for number in range(RUNNING_MAX):
        queue.put(f"busy {number}", None)
    take_all(queue)
    for name in ("a1", "a2", "a3"):
        queue.put(name, "a")
    for name in ("b1", "c1"):
        queue.put(name, name[0])
    order = []
    for number in range(5):
        queue.ended(f"busy {number}")
        order += take_all(queue)
    assert order == ["a1", "b1", "c1", "a2", "a3"]


def test_who_leaves_is_not_served() -> None:
    """A look-up that nobody waits for would take the place of one that somebody does."""
    queue = NameQueue()
    queue.put("x", "a")
    queue.put("y", "a")
    queue.put("z", "b")
    queue.leave("x", "a")
    queue.leave("z", "b")
    queue.leave("z", "b")
    queue.leave("x", "nobody")
    assert take_all(queue) == ["y"]
    queue.ended("y")
    assert queue.running_count == 0
    assert (queue._queues, dict(queue._ready), queue._running) == ({}, {}, {})


# ------------------------------------------------------------------------------------------------- the cache


class Hanging:
    """Names that begin with `hang` are never answered; counts what is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def resolve(self, host: str) -> Resolution:
        """127.0.0.1, or nothing."""
        self.asked.append(host)
        if host.startswith("hang"):
            await asyncio.sleep(1e9)
        return Resolution(("127.0.0.1",))


def cache(resolver: Hanging) -> NameCache:
    """A cache on the virtual clock."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return NameCache(resolver, 30.0, loop.clock)


def test_a_queued_look_up_that_nobody_listens_to_is_dropped() -> None:
    """Attempts give up after seconds; their names must not be asked for half a minute later."""

    async def main() -> None:
        resolver = Hanging()
        names = cache(resolver)
        heard: list[Found] = []
        for number in range(TENANT_RUNNING_MAX + 1):
            names.ask(f"hang{number}.example", heard.append, "a")
        await asyncio.sleep(0)
        last = f"hang{TENANT_RUNNING_MAX}.example"
        assert names.is_waiting(last)
        assert not names.is_waiting("hang0.example")
        assert not names.is_waiting("other.example")
        names.forget_listener(last, heard.append)
        names.forget_listener("hang0.example", heard.append)
        assert not names.is_waiting(last)
        assert names.pending_count == TENANT_RUNNING_MAX, "what runs goes on"
        await asyncio.sleep(31.0)
        assert last not in resolver.asked
        assert all(isinstance(found, ResolveError) for found in heard)
        assert len(heard) == TENANT_RUNNING_MAX - 1
        await names.aclose()

    run_virtual(main)


def test_a_name_starts_at_the_turn_of_whoever_has_one_first() -> None:
    """A tenant that asks for a name another one's queue holds up must not wait in that queue."""

    async def main() -> None:
        resolver = Hanging()
        names = cache(resolver)
        heard: list[Found] = []
        for number in range(TENANT_RUNNING_MAX):
            names.ask(f"hang{number}.example", heard.append, "a")
        names.ask("shared.example", heard.append, "a")
        await asyncio.sleep(0.1)
        assert not heard
        names.ask("shared.example", heard.append, "b")
        await asyncio.sleep(0.1)
        assert heard == [Resolution(("127.0.0.1",))], "one listener is called once"
        assert resolver.asked.count("shared.example") == 1
        assert not names._queue._queues
        await names.aclose()

    run_virtual(main)


# ------------------------------------------------------------------------------------------------ the client


@pytest.mark.parametrize("tenant", ["noisy", None])
async def test_200_hanging_names_leave_the_others_unaffected(tenant: str | None) -> None:
    """In threads that really block, as those of `getaddrinfo` do: each is held until the system gives up."""
    release = threading.Event()

    def look_up(host: str) -> tuple[str, ...]:
        if host.startswith("hang"):
            release.wait(30.0)
        return ("127.0.0.1",)

    resolver = ThreadResolver(look_up=look_up)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy = ClientPolicy(connect_timeout=1.0, read_timeout=10.0, max_connections=1_000, pool_timeout=10.0)
    try:
        async with Receiver() as receiver, DispatchClient(policy, egress=LOOPBACK, resolver=resolver) as client:
            port = receiver.url.rstrip("/").rpartition(":")[2]
            hanging = [
                asyncio.ensure_future(client.deliver(f"http://hang{n}.example.com:{port}/", b"", tenant=tenant))
                for n in range(200)
            ]
            await asyncio.sleep(0.1)
            for number in range(10):
                attempt = await client.deliver(f"http://good{number}.example.com:{port}/", b"", tenant="quiet")
                assert attempt.delivered, attempt
                assert attempt.phases[Phase.DNS] < 0.5, attempt
            ended = await asyncio.gather(*hanging)
            if tenant is None:
                assert {attempt.reason for attempt in ended} == {Reason.DNS_TIMEOUT}
            else:
                asked = [attempt for attempt in ended if attempt.reason is Reason.DNS_TIMEOUT]
                waited = [attempt for attempt in ended if attempt.reason is Reason.DNS_OVERLOAD]
                assert (len(asked), len(waited)) == (TENANT_RUNNING_MAX, 200 - TENANT_RUNNING_MAX)
                assert {
                    (attempt.outcome, attempt.phase, attempt.blame, attempt.retry_safety) for attempt in waited
                } == {(Outcome.TRANSPORT_ERROR, Phase.DNS, Blame.US, RetrySafety.SAFE)}
            release.set()
            async with asyncio.timeout(5.0):
                while client.names.pending_count:  # noqa: ASYNC110  # a counter of another part
                    await asyncio.sleep(0.01)
            assert_nothing_held(client, idle=client.statistics().connections_idle)
    finally:
        release.set()
        resolver.close()
