"""Does a dispatcher grow with the number of deliveries it has made? Memory after 100,000 and after 1,000,000 in one process.

The dispatcher is the measured process, on SQLite, with the queue kept full; the receiver keeps no ids and runs beside it.
`python -m bench.memory`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.machine import raise_file_limit, rss_bytes
from bench.report import add_common_options, print_json, print_line, print_machine, print_table, steps
from bench.rig import open_rig
from gatepost.testing.receiver_process import ReceiverProcess

ENDPOINTS: Final = 400
SLOTS: Final = 512
DEPTH: Final = 2_048
PAYLOAD: Final = b'{"type":"bench.event","data":"' + b"x" * 224 + b'"}'
"""256 bytes: the file holds every body for a week, and memory is what is measured."""
MARKS: Final = 10
"""Measurements, evenly spaced; the first is compared with the last."""
TOLERANCE: Final = 0.10


async def measure(directory: Path, urls: Sequence[str], deliveries: int) -> list[dict[str, float]]:
    """Deliver, and note the memory at each mark, with nothing under way and garbage collected."""
    marks: list[dict[str, float]] = []
    async with open_rig(directory, urls, slots=SLOTS) as rig:
        rig.payload = PAYLOAD
        started = time.perf_counter()
        for mark in range(1, MARKS + 1):
            stop = asyncio.Event()
            load = asyncio.create_task(rig.closed_loop(DEPTH, stop))
            while rig.tally.completed < deliveries * mark // MARKS and not load.done():  # noqa: ASYNC110 - a look at a counter
                await asyncio.sleep(0.02)
            stop.set()
            await load
            if not await rig.wait_delivered(60.0):
                raise RuntimeError(f"{rig.tally.outstanding} deliveries did not arrive: {dict(rig.tally.others)}")
            gc.collect()
            marks.append(
                {
                    "deliveries": rig.tally.completed,
                    "rss_mib": round(rss_bytes() / 2**20, 2),
                    "objects": len(gc.get_objects()),
                    "seconds": round(time.perf_counter() - started, 1),
                }
            )
            print(json.dumps(marks[-1]), flush=True)
    return marks


def run(deliveries: int, directory: str | None) -> dict[str, Any]:
    """Start the receiver and the measured process; follow its marks."""
    raise_file_limit()
    marks: list[dict[str, float]] = []
    with (
        tempfile.TemporaryDirectory(prefix="gatepost-bench-", dir=directory) as place,
        ReceiverProcess("--no-ids", "--ports", str(ENDPOINTS)) as receiver,
        steps(MARKS) as progress,
    ):
        progress.begin(f"{deliveries:,} deliveries")
        urls = [f"{url}/hooks" for url in receiver.urls]
        with subprocess.Popen(
            [sys.executable, "-m", "bench.memory", "--worker", place, "--deliveries", str(deliveries)],
            cwd=Path(__file__).resolve().parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            json.dump(urls, worker.stdin)
            worker.stdin.close()
            for line in worker.stdout:
                marks.append(json.loads(line))
                progress.done()
        if worker.returncode != 0:
            raise RuntimeError(f"the measured process ended with {worker.returncode}")
    growth = marks[-1]["rss_mib"] / marks[0]["rss_mib"]
    return {"marks": marks, "growth": round(growth, 4), "tolerance": TOLERANCE, "met": abs(growth - 1) <= TOLERANCE}


def show(result: dict[str, Any]) -> None:
    """Tables for people."""
    print_table(
        "Memory of one dispatcher process",
        ("deliveries", "RSS MiB", "Python objects", "seconds"),
        [(f"{one['deliveries']:,}", one["rss_mib"], one["objects"], one["seconds"]) for one in result["marks"]],
    )
    print_line(
        f"Last against first: {result['growth']:.3f} × (target: within {TOLERANCE:.0%}): "
        f"{'met' if result['met'] else 'NOT MET'}."
    )
    print_machine()


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line. Exit 1 when the target is not met."""
    parser = argparse.ArgumentParser("bench.memory", description=__doc__.partition("\n")[0] if __doc__ else None)
    add_common_options(parser)
    parser.add_argument("--deliveries", type=int, help="in all (default 1,000,000; 100,000 with --quick)")
    parser.add_argument("--directory", help="where the SQLite file goes")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    deliveries = options.deliveries or (100_000 if options.quick else 1_000_000)
    if options.worker is not None:
        raise_file_limit()
        uvloop.run(measure(options.worker, json.load(sys.stdin), deliveries))
        return 0
    result = run(deliveries, options.directory)
    if options.json:
        print_json(result)
    else:
        show(result)
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
