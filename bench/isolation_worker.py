"""The measured process of `bench.isolation`: open load on healthy endpoints, with or without a silent one and its backlog.

Reads its task as JSON from standard input and leaves its result as a file. The backlog is published before counting starts, and its
first attempts are already waiting for an answer that never comes.
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
SILENT_TYPE: Final = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationTask:
    """What to measure."""

    directory: str
    urls: Sequence[str]
    """Healthy endpoints."""
    silent_url: str | None
    backlog: int
    cap: int
    """Concurrency of the silent endpoint."""
    slots: int
    rate: float
    """Events a second to the healthy endpoints."""
    seconds: float


async def measure(task: IsolationTask) -> dict[str, Any]:
    """Build the backlog, settle in, count."""
    async with open_rig(Path(task.directory), task.urls, slots=task.slots) as rig:
        backlog_seconds = 0.0
        if task.silent_url is not None:
            await rig.gp.endpoints.create(task.silent_url, event_types=(SILENT_TYPE,), concurrency=task.cap)
            backlog_seconds = await build_backlog(rig, task.backlog)
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
    """Publish `count` events for the silent endpoint; returns the seconds it took."""
    started = time.perf_counter()
    left = count

    async def publisher() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await rig.gp.publish(SILENT_TYPE, PAYLOAD)

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
