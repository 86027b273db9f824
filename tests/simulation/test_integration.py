"""The whole path without a fake: SQLite file, signing, sockets, a receiver that checks signatures."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from gatepost import Dispatcher, EgressPolicy, Publisher
from gatepost.delivery.policy import ClientPolicy
from gatepost.dispatch.dispatcher import DispatcherSettings
from gatepost.errors import StoreLocked
from gatepost.store.rows import DeadFilter, DeliveryFilter
from gatepost.testing.receiver import Receiver
from tests.simulation.harness import UNGUARDED

LOOPBACK = EgressPolicy(schemes=("http",), allow_cidrs=("127.0.0.0/8",))
SECRET = "whsec_" + "A" * 32
PATIENCE = 30.0
"""Seconds for what takes milliseconds: the machine is shared."""


async def _until(done: Callable[[], int], expected: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while done() < expected:  # noqa: ASYNC110 - there is nothing to wait on but the numbers
            await asyncio.sleep(0.01)


async def test_events_reach_a_checking_receiver_and_survive_a_restart(tmp_path: Path) -> None:
    """Published before the restart or after, each event arrives once, with a good signature, over few connections."""
    url = f"sqlite:///{tmp_path / 'gatepost.db'}"
    async with Receiver(secrets=[SECRET]) as receiver:
        base = f"http://127.0.0.1:{receiver.ports[0]}"
        async with Dispatcher.open(url, egress=LOOPBACK) as gp:
            good = await gp.endpoints.create(f"{base}/ok", secret=SECRET, event_types=("good.*",))
            flaky = await gp.endpoints.create(
                f"{base}/flaky/1/503", secret=SECRET, event_types=("flaky",), schedule=(0.0, 0.2, 0.2), window=60.0
            )
            dead = await gp.endpoints.create(
                f"{base}/status/500", secret=SECRET, event_types=("dead",), schedule=(0.0, 0.1), window=60.0
            )
            await asyncio.gather(*(gp.publish("good.one", {"n": n}, idempotency_key=f"k{n}") for n in range(100)))
            assert receiver.statistics().requests == 0
        # Ten failures at once on purpose: a breaker would hold their second attempts for half a minute.
        settings = DispatcherSettings(limits=UNGUARDED)
        async with Dispatcher.open(url, egress=LOOPBACK, run=True, settings=settings) as gp:
            again = await gp.publish("good.one", {"n": 0}, idempotency_key="k0")
            assert again.duplicate
            await asyncio.gather(
                *(gp.publish("good.two", {"n": n}) for n in range(100)),
                *(gp.publish("flaky", {"n": n}) for n in range(10)),
                *(gp.publish("dead", {"n": n}) for n in range(5)),
            )
            await _until(lambda: gp.statistics().attempts.delivered, 210)
            await _until(lambda: gp.statistics().attempts.dead, 5)
            states = Counter[str]()
            for endpoint in (good, flaky, dead):
                page = await gp.deliveries.list(DeliveryFilter(endpoint=endpoint.number), limit=500)
                states.update(info.state for info in page.items)
            assert states == {"delivered": 210, "dead": 5}
            assert len((await gp.dead_letters.list(DeadFilter())).items) == 5
        statistics = receiver.statistics()
        assert (statistics.requests, statistics.unique_ids) == (200 + 20 + 10, 215)
        assert statistics.bad_signatures == 0
        assert statistics.connections <= 8


async def test_publishers_beside_the_dispatcher_are_heard_at_once(tmp_path: Path) -> None:
    """Web workers publish into the same file without owning it; a second dispatcher is refused."""
    url = f"sqlite:///{tmp_path / 'gatepost.db'}"
    async with Receiver() as receiver, Dispatcher.open(url, egress=LOOPBACK, run=True) as gp:
        await gp.endpoints.create(f"http://127.0.0.1:{receiver.ports[0]}/ok")
        with Publisher.open_sync(url) as publisher:
            receipts = [publisher.publish_sync("a.b", {"n": n}) for n in range(20)]
        async with Publisher.open(url) as publisher:
            receipts += await asyncio.gather(*(publisher.publish("a.b", {"n": n}) for n in range(20)))
        assert {(receipt.duplicate, receipt.deliveries) for receipt in receipts} == {(None, None)}
        await _until(lambda: receiver.statistics().unique_ids, 40)
        with pytest.raises(StoreLocked):
            async with Dispatcher.open(url, egress=LOOPBACK):
                pass


async def test_a_silent_endpoint_is_classified_and_leaves_the_good_one_alone(tmp_path: Path) -> None:
    """One receiver takes a second to answer with a limit of 0.3; the other never notices."""
    url = f"sqlite:///{tmp_path / 'gatepost.db'}"
    policy = ClientPolicy(connect_timeout=0.1, read_timeout=0.3)
    async with (
        Receiver(ports=2) as receiver,
        Dispatcher.open(url, policy=policy, egress=LOOPBACK, run=True) as gp,
    ):
        slow_port, good_port = receiver.ports
        slow = await gp.endpoints.create(f"http://127.0.0.1:{slow_port}/slow/1.0", event_types=("slow",))
        good = await gp.endpoints.create(f"http://127.0.0.1:{good_port}/ok", event_types=("good",))
        await asyncio.gather(*(gp.publish("slow", {"n": n}) for n in range(100)))
        await asyncio.gather(*(gp.publish("good", {"n": n}) for n in range(300)))
        await _until(lambda: gp.statistics().attempts.delivered, 300)
        page = await gp.deliveries.list(DeliveryFilter(endpoint=good.number), limit=500)
        assert {(info.state, info.attempts) for info in page.items} == {("delivered", 1)}
        await _until(lambda: gp.statistics().attempts.retried, 6)
        page = await gp.deliveries.list(DeliveryFilter(endpoint=slow.number), limit=500)
        assert {info.last_outcome for info in page.items if info.attempts} == {"read_timeout"}
        assert {info.state for info in page.items} == {"waiting"}


async def test_synchronous_code_in_a_thread_publishes_through_the_dispatcher(tmp_path: Path) -> None:
    """A threadpool handler of a web framework, for example; in the loop's own thread it is refused instead of hanging."""
    async with (
        Receiver() as receiver,
        Dispatcher.open(f"sqlite:///{tmp_path / 'gatepost.db'}", egress=LOOPBACK, run=True) as gp,
    ):
        await gp.endpoints.create(f"http://127.0.0.1:{receiver.ports[0]}/ok")
        receipt = await asyncio.to_thread(gp.publish_sync, "a.b", {"n": 1})
        assert (receipt.duplicate, receipt.deliveries) == (False, 1)
        with pytest.raises(RuntimeError, match=r"await gp\.publish"):
            gp.publish_sync("a.b", {"n": 1})
        await _until(lambda: receiver.statistics().unique_ids, 1)
    with pytest.raises(RuntimeError, match="closed"):
        gp.publish_sync("a.b", {"n": 1})
