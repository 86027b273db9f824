"""The measured process of `bench.isolation`: open load on healthy endpoints, with or without bad ones and their backlog.

Reads its task as JSON from standard input and leaves its result as a file. The backlog is published before counting starts, and its
first attempts are already under way.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.machine import cpu_time, raise_file_limit
from bench.report import write_result
from bench.rig import PAYLOAD, Rig, open_rig

BACKLOG_BATCH: Final = 64
"""Concurrent publishes while the backlog is built."""
SETTLE_IN: Final = 10.0
"""Seconds of load before counting starts: building the backlog leaves the store work that is over by then."""
BAD_TYPE: Final = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationTask:
    """What to measure."""

    directory: str
    urls: Sequence[str]
    """Healthy endpoints."""
    bad_urls: Sequence[str]
    """Endpoints that hang or fail; they share the backlog."""
    backlog: int
    cap: int
    """Concurrency of each bad endpoint."""
    slots: int
    rate: float
    """Events a second to the healthy endpoints."""
    seconds: float


async def measure(task: IsolationTask) -> dict[str, Any]:
    """Build the backlog, settle in, count."""
    async with open_rig(Path(task.directory), task.urls, slots=task.slots) as rig:
        rig.tally.apart = BAD_TYPE
        backlog_seconds = 0.0
        if task.bad_urls:
            # At once: each is probed as it is stored, and a hung one takes the probe's whole patience.
            async with asyncio.TaskGroup() as group:
                for url in task.bad_urls:
                    group.create_task(rig.gp.endpoints.create(url, event_types=(BAD_TYPE,), concurrency=task.cap))
            # Each event goes to all of them.
            backlog_seconds = await build_backlog(rig, task.backlog // len(task.bad_urls))
        await rig.open_loop(task.rate, SETTLE_IN)
        await rig.wait_delivered(10.0)
        rig.due_ns.clear()
        before, used = rig.tally.completed, cpu_time()
        started_ns = time.monotonic_ns()
        published = await rig.open_loop(task.rate, task.seconds)
        stopped_ns = time.monotonic_ns()
        used = cpu_time().since(used)
        await rig.wait_delivered(30.0)
        return {
            "published": published,
            "completed": rig.tally.completed - before,
            "started_ns": started_ns,
            "stopped_ns": stopped_ns,
            "due_ns": rig.due_ns,
            "cores_used": round(used.total / ((stopped_ns - started_ns) / 1e9), 3),
            "backlog_seconds": round(backlog_seconds, 1),
            "others": dict(rig.tally.others),
        }


async def build_backlog(rig: Rig, count: int) -> float:
    """Publish `count` events for the bad endpoints; returns the seconds it took."""
    started = time.perf_counter()
    left = count

    async def publisher() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await rig.gp.publish(BAD_TYPE, PAYLOAD)

    async with asyncio.TaskGroup() as group:
        for _ in range(BACKLOG_BATCH):
            group.create_task(publisher())
    return time.perf_counter() - started


def main() -> int:
    """Read the task, measure, print."""
    task = IsolationTask(**json.load(sys.stdin))
    raise_file_limit()
    write_result(task.directory, uvloop.run(measure(task)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
