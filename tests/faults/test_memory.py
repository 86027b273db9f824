"""Fault cases of class memory: records are kept while they are used and not for ever, and labels are not chosen by customers."""

from __future__ import annotations

import asyncio

from prometheus_client import generate_latest

from gatepost.clock import SYSTEM_CLOCK
from gatepost.net.names import NAMES_MAX, NameCache
from gatepost.net.resolver import Resolution
from gatepost.service.metrics import Metrics
from tests.faults.kit import PATIENT, delivering
from tests.hostile.engine import IDENTITY, SMALL, assert_nothing_held, limits
from tests.service.test_metrics import attempt


async def test_memory_02_a_host_that_is_waited_for_keeps_its_one_record() -> None:
    """Ten deliveries queue behind a receiver that resets: each moves on, and there are never two records with two caps."""
    policy = limits(**{**PATIENT, "max_per_host": 1, "per_endpoint_concurrency": 20})
    async with delivering("reset-before-response", policy) as (server, client):
        tasks = [asyncio.create_task(client.deliver(server.url, SMALL, IDENTITY)) for _ in range(10)]
        most = 0
        while not all(task.done() for task in tasks):
            most = max(most, client.statistics().connections_open)
            assert len(client.statistics().hosts) <= 1
            await asyncio.sleep(0)
        assert most == 1
        assert server.connections == 10
        assert {task.result().delivered for task in tasks} == {False}
        assert_nothing_held(client)


def test_memory_03_the_number_of_series_does_not_follow_the_number_of_endpoints() -> None:
    """Ten thousand hosts, three sizes of the scrape: it stops growing, and stays quick."""
    metrics = Metrics(hosts=20)
    sizes = []
    for start in (0, 100, 10_000):
        for number in range(start, 100 if start == 0 else start * (10 if start == 100 else 2)):
            for _ in range(2):
                metrics.attempt_finished(attempt(f"https://host-{number}.example:443"))
        began = SYSTEM_CLOCK.monotonic()
        sizes.append(generate_latest(metrics.registry).count(b"\n"))
        assert SYSTEM_CLOCK.monotonic() - began < 1.0
    assert sizes[0] == sizes[1] == sizes[2]


async def test_memory_04_the_cache_of_names_is_bounded() -> None:
    """More names than it holds, once each: the oldest make room."""

    class Anything:
        async def resolve(self, host: str) -> Resolution:
            return Resolution(("192.0.2.1",))

    cache = NameCache(Anything(), 30.0, SYSTEM_CLOCK)
    left = 0

    def answered(_found: object) -> None:
        nonlocal left
        left -= 1

    count = NAMES_MAX + 500
    for start in range(0, count, 500):
        for number in range(start, min(start + 500, count)):
            left += 1
            cache.ask(f"n{number}.example.com", answered)
        while left:  # noqa: ASYNC110 - the cache answers by callback
            await asyncio.sleep(0)
    assert cache.known("n0.example.com") is None
    assert cache.known(f"n{count - 1}.example.com") is not None
    assert sum(cache.known(f"n{number}.example.com") is not None for number in range(count)) <= NAMES_MAX
    await cache.aclose()
