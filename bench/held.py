"""What a transaction that somebody holds open costs: rows that were settled stay in the index until it ends.

A dispatcher on PostgreSQL delivers with its queue kept full; for a minute another session of the same database holds a
transaction with an id and a snapshot open. Reports deliveries per second before, during (whole, and its last third, where most
has piled up) and after. `python -m bench.held`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
import uvloop

from bench.machine import cpu_time, raise_file_limit
from bench.pipeline import DEPTH, ENDPOINTS, SLOTS
from bench.postgres import MeasuredServer, measured_server
from bench.report import Steps, add_common_options, print_json, print_line, print_machine, print_table, steps
from bench.rig import Rig, open_rig
from gatepost.testing.receiver_process import ReceiverProcess

WARM_UP: Final = 3.0
SETTLE_DOWN: Final = 3.0
"""Seconds between the end of the transaction and the last part: vacuum may take away what piled up."""
TARGET_RATIO: Final = 0.8
_DEAD: Final = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'gp_delivery'"


@asynccontextmanager
async def held_transaction(url: str) -> AsyncIterator[None]:
    """Another session with a transaction that has an id and a snapshot, as a report or a forgotten psql has."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetchval("SELECT pg_current_xact_id()")
            await connection.fetchval("SELECT count(*) FROM gp_part")
            yield
    finally:
        await connection.close()


async def sample(rig: Rig, server: MeasuredServer, seconds: float) -> dict[str, Any]:
    """Throughput, and its last third, over so many seconds."""
    clock = asyncio.get_running_loop().time
    marks = [(clock(), rig.tally.completed)]
    used, database = cpu_time(), server.cpu_seconds()
    for part in (2 / 3, 1 / 3):
        await asyncio.sleep(seconds * part)
        marks.append((clock(), rig.tally.completed))
    (began, first), (late, second), (ended, last) = marks
    count = max(last - first, 1)
    return {
        "deliveries_per_second": round(count / (ended - began), 1),
        "last_third_per_second": round((last - second) / (ended - late), 1),
        "cpu_ms_per_delivery": round(cpu_time().since(used).total * 1_000 / count, 5),
        "server_cpu_ms_per_delivery": round((server.cpu_seconds() - database) * 1_000 / count, 5),
    }


async def measure(urls: Sequence[str], server: MeasuredServer, seconds: float, progress: Steps) -> dict[str, Any]:
    """Before, during and after, under one closed load."""
    with tempfile.TemporaryDirectory() as place:
        async with open_rig(Path(place), urls, slots=SLOTS, database=server.url, keys=server.keys) as rig:
            stop = asyncio.Event()
            load = asyncio.create_task(rig.closed_loop(DEPTH, stop))
            try:
                await asyncio.sleep(WARM_UP)
                result = {}
                progress.begin("without")
                result["before"] = await sample(rig, server, seconds)
                progress.done()
                progress.begin(f"a transaction open for {seconds:g} s")
                async with held_transaction(server.url):
                    result["held"] = await sample(rig, server, seconds)
                    result["held"]["dead_rows"] = await _dead_rows(server.url)
                progress.done()
                progress.begin("without again")
                await asyncio.sleep(SETTLE_DOWN)
                result["after"] = await sample(rig, server, seconds)
                progress.done()
            finally:
                stop.set()
                await load
            delivered = await rig.wait_delivered(60.0)
            without = (result["before"]["deliveries_per_second"] + result["after"]["deliveries_per_second"]) / 2
            ratio = result["held"]["deliveries_per_second"] / without
            cpu = (result["before"]["cpu_ms_per_delivery"] + result["after"]["cpu_ms_per_delivery"]) / 2
            return {
                "seconds": seconds,
                "parts": result,
                "throughput_ratio": round(ratio, 4),
                "last_third_ratio": round(result["held"]["last_third_per_second"] / without, 4),
                # On a machine that others use too, the steadier figure.
                "cpu_ratio": round(result["held"]["cpu_ms_per_delivery"] / cpu, 4),
                "target_ratio": TARGET_RATIO,
                "all_delivered": delivered,
                "ok": delivered and ratio >= TARGET_RATIO,
            }


async def _dead_rows(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(_DEAD))
    finally:
        await connection.close()


def run(seconds: float, directory: str | None) -> dict[str, Any]:
    """On a fresh server."""
    with (
        ReceiverProcess("--ports", str(ENDPOINTS)) as receiver,
        measured_server(directory) as server,
        steps(3) as progress,
    ):
        urls = [f"{url}/hooks" for url in receiver.urls]
        return uvloop.run(measure(urls, server, seconds, progress))


def show(result: dict[str, Any]) -> None:
    """A table for people."""
    parts = result["parts"]
    print_table(
        f"A transaction held open for {result['seconds']:g} s on the same database",
        ("", *parts),
        [
            (name.replace("_", " "), *(part[name] for part in parts.values()))
            for name in (
                "deliveries_per_second",
                "last_third_per_second",
                "cpu_ms_per_delivery",
                "server_cpu_ms_per_delivery",
            )
        ],
    )
    print_line(
        f"Throughput while it was open: {result['throughput_ratio']:.1%}, in its last third "
        f"{result['last_third_ratio']:.1%} (target {TARGET_RATIO:.0%}), CPU per delivery {result['cpu_ratio']:.1%}; "
        f"rows kept for it: {parts['held']['dead_rows']:,}."
    )
    print_machine()


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line. Exit 1 when the target was missed or something was not delivered."""
    parser = argparse.ArgumentParser("bench.held", description=__doc__.partition("\n")[0] if __doc__ else None)
    add_common_options(parser)
    parser.add_argument("--seconds", type=float, help="that the transaction is open (default 60; 10 with --quick)")
    parser.add_argument("--directory", help="where the database goes; its disk is what is measured")
    options = parser.parse_args(argv)
    raise_file_limit()
    result = run(options.seconds or (10.0 if options.quick else 60.0), options.directory)
    if options.json:
        print_json(result)
    else:
        show(result)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
