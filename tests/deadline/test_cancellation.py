"""Scopes, shields, task groups and `asyncio.timeout` nested at random, and cancelled from outside at any tick, their own included."""

from __future__ import annotations

import asyncio
import random

import pytest

from gatepost.deadline import DeadlineExceeded, deadline, shield
from gatepost.testing.virtual import run_virtual

TICKS = (1.0, 2.0, 3.0, 4.0)


async def nested(limits: list[float], *, shielded: bool, grouped: bool) -> None:
    """Six seconds of waiting inside scopes of these limits."""
    if limits:
        async with deadline(limits[0]):
            await nested(limits[1:], shielded=shielded, grouped=grouped)
        return
    if shielded:
        async with shield(100):
            await asyncio.sleep(3)
    if grouped:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(6))
            await asyncio.sleep(6)
    else:
        await asyncio.sleep(6)


@pytest.mark.parametrize("seed", range(8))
def test_a_cancellation_from_outside_always_comes_out_and_never_comes_from_us(seed: int) -> None:
    """At the very tick at which scopes expire, too: it belongs to who asked for it, and code around relies on seeing it."""
    random_ = random.Random(seed)

    async def once() -> None:
        limits = [random_.choice((*TICKS, 50.0)) for _ in range(random_.randrange(1, 4))]
        shielded, grouped, bounded = (random_.random() < 0.4 for _ in range(3))
        at = random_.choice((*TICKS, 100.0))
        counts: list[int] = []

        async def work() -> None:
            async with asyncio.timeout(3.0 if bounded else None):
                try:
                    await nested(limits, shielded=shielded, grouped=grouped)
                finally:
                    task = asyncio.current_task()
                    assert task is not None
                    counts.append(task.cancelling())

        asked: list[bool] = []
        task = asyncio.get_running_loop().create_task(work())
        timer = asyncio.get_running_loop().call_later(at, lambda: asked.append(task.cancel()))
        await asyncio.wait({task})
        timer.cancel()
        told = (limits, at, shielded, grouped, bounded)
        assert task.cancelled() is (asked == [True]), told
        if not task.cancelled():
            assert isinstance(task.exception(), DeadlineExceeded | TimeoutError | None), told
            if not bounded:
                assert counts == [0], told

    async def main() -> None:
        for _ in range(100):
            await once()

    run_virtual(main)
