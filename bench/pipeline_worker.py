"""The measured process of `bench.pipeline`: a dispatcher under closed load, then open load, then with stacks looked at.

Reads its task as JSON from standard input and leaves its result as a file. Throughput and CPU come from the first part, latency from
the second at a share of that throughput, stages from the third.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from bench.machine import cpu_time, raise_file_limit, rss_bytes
from bench.report import write_result
from bench.rig import Rig, open_rig
from bench.stages import Rule, StageProfiler, block_signal

STAGES = (
    Rule("", "gatepost.store.sqlite.bulk"),
    Rule("enqueue: rows (writer thread)", "gatepost.store.sqlite.intake"),
    Rule("settle: rows (writer thread)", "gatepost.store.sqlite.settle"),
    Rule("store: commit (writer thread)", "gatepost.store.sqlite.writer", "_transact|_commit"),
    Rule("store: threads and queues", "gatepost.store.sqlite.writer"),
    Rule("peek: rows and bodies", "gatepost.store.sqlite.reads"),
    Rule("peek: rows and bodies", "gatepost.store.sqlite.reader"),
    Rule("enqueue (client side)", "gatepost.store.postgres.enqueue"),
    Rule("settle (client side)", "gatepost.store.postgres.settle"),
    Rule("peek: rows and bodies", "gatepost.store.postgres.reads"),
    Rule("store: protocol and pool", "gatepost.store.postgres"),
    Rule("store: protocol and pool", "asyncpg"),
    Rule("store: other", "gatepost.store"),
    Rule("sign", "gatepost.wire.signing"),
    Rule("observe", "gatepost.telemetry"),
    Rule("observe", "gatepost.service"),
    Rule("observe", "gatepost.dispatch.attempt", "_observe|_observation"),
    Rule("http", "gatepost.net"),
    Rule("http", "gatepost.wire"),
    Rule("http", "gatepost.admission.bulkhead"),
    Rule("schedule", "gatepost.admission.rate"),
    Rule("limits", "gatepost.admission"),
    Rule("limits", "gatepost.dispatch.limits"),
    Rule("limits", "gatepost.dispatch.endpoint_memory"),
    Rule("limits", "gatepost.dispatch.policy_watch"),
    Rule("decide", "gatepost.delivery.decide"),
    Rule("decide", "gatepost.delivery.retry"),
    Rule("publish and fan out", "gatepost.dispatch.dispatcher"),
    Rule("publish and fan out", "gatepost.dispatch.intake"),
    Rule("publish and fan out", "gatepost.dispatch.new_event"),
    Rule("publish and fan out", "gatepost.dispatch.tenant_limits"),
    Rule("attempt", "gatepost.dispatch.attempt"),
    Rule("attempt", "gatepost.dispatch.catalogue"),
    Rule("peek: rows and bodies", "gatepost.dispatch.reads"),
    Rule("peek: rows and bodies", "gatepost.dispatch.bodies"),
    Rule("settle: buffer", "gatepost.dispatch.settle"),
    Rule("schedule", "gatepost.dispatch"),
    Rule("the benchmark itself", "bench"),
)
"""First match from the innermost frame outwards."""


SHARE_LIMIT = 30.0
"""Seconds in which processes that start together must have shared the parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTask:
    """What to measure."""

    directory: str
    urls: Sequence[str]
    slots: int
    depth: int
    """Deliveries outstanding in the closed loop."""
    warm_up: float
    seconds: float
    """Of each part."""
    latency_share: float
    """Open-loop rate as a share of the throughput just measured."""
    profile: bool
    database: str | None = None
    """None: a SQLite file in `directory`."""
    keys: Sequence[str] | None = None
    processes: int = 1
    """That share the store; with several, each delivers what others publish."""


async def measure(task: PipelineTask) -> dict[str, Any]:
    """All parts in turn, in one process."""
    name = Path(task.directory).name
    async with open_rig(
        Path(task.directory), task.urls, slots=task.slots, database=task.database, keys=task.keys, name=name
    ) as rig:
        if task.processes > 1 and not await rig.wait_share(task.processes, SHARE_LIMIT):
            raise RuntimeError(
                f"this process owns {rig.gp.statistics().parts} parts, {task.processes} processes did not share them"
            )
        result: dict[str, Any] = {"throughput": await measure_throughput(rig, task)}
        rate = result["throughput"]["deliveries_per_second"] * task.latency_share
        rig.due_ns.clear()
        published = await rig.open_loop(rate, task.seconds)
        delivered = await settled(rig, task)
        result["latency"] = {"rate": round(rate, 1), "published": published, "all_delivered": delivered}
        result["due_ns"] = rig.due_ns
        if task.profile:
            result["stages"] = await measure_stages(rig, task)
        result["decisions_other_than_complete"] = dict(rig.tally.others)
        result["published"] = rig.tally.published
        result["rss_mib"] = round(rss_bytes() / 2**20, 1)
    return result


async def measure_throughput(rig: Rig, task: PipelineTask) -> dict[str, float]:
    """Deliveries per second and CPU per delivery with `depth` outstanding."""
    async with loaded(rig, task):
        await asyncio.sleep(task.warm_up)
        completed, used, started = rig.tally.completed, cpu_time(), time.perf_counter()
        await asyncio.sleep(task.seconds)
        count = rig.tally.completed - completed
        used = cpu_time().since(used)
        seconds = time.perf_counter() - started
    return {
        "deliveries": count,
        "seconds": round(seconds, 3),
        "deliveries_per_second": round(count / seconds, 1),
        "cpu_ms_per_delivery": round(used.total * 1_000 / max(count, 1), 5),
        "cpu_user_ms": round(used.user * 1_000 / max(count, 1), 5),
        "cpu_system_ms": round(used.system * 1_000 / max(count, 1), 5),
        "cores_used": round(used.total / seconds, 3),
    }


async def measure_stages(rig: Rig, task: PipelineTask) -> dict[str, Any]:
    """CPU microseconds per delivery by stage, under the same closed load."""
    profiler = StageProfiler(STAGES, rest="event loop and threads")
    async with loaded(rig, task):
        await asyncio.sleep(task.warm_up / 2)
        completed = rig.tally.completed
        with profiler.running():
            await asyncio.sleep(task.seconds)
        count = max(rig.tally.completed - completed, 1)
    by_stage = {name: round(seconds * 1e6 / count, 2) for name, seconds in profiler.seconds.items()}
    rest = sorted(profiler.unmatched.items(), key=lambda item: -item[1])[:8]
    return {
        "us_per_delivery": dict(sorted(by_stage.items(), key=lambda item: -item[1])),
        "rest_us_per_delivery": {name: round(seconds * 1e6 / count, 2) for name, seconds in rest},
    }


@asynccontextmanager
async def loaded(rig: Rig, task: PipelineTask) -> AsyncIterator[None]:
    """Run the closed loop beside the block, and let everything arrive afterwards."""
    stop = asyncio.Event()
    load = asyncio.create_task(rig.closed_loop(task.depth, stop))
    try:
        yield
    finally:
        stop.set()
        await load
    if not await settled(rig, task):
        raise RuntimeError(f"{rig.tally.outstanding} deliveries did not arrive: {dict(rig.tally.others)}")


async def settled(rig: Rig, task: PipelineTask) -> bool:
    """Wait until what was published is delivered; with several processes, until nothing comes any more."""
    if task.processes == 1:
        return await rig.wait_delivered(30.0)
    await rig.wait_still(1.0)
    return True


def main() -> int:
    """Read the task, measure, print."""
    block_signal()
    task = PipelineTask(**json.load(sys.stdin))
    raise_file_limit()
    write_result(task.directory, uvloop.run(measure(task)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
