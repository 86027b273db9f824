"""A worker of the chaos runs: a dispatcher on a shared store, until SIGTERM drains it or something worse happens.

Reads its task as JSON from standard input and writes `ready` when it holds a lease. Started by `bench.chaos`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

from bench.rig import LOOPBACK
from gatepost import ClientPolicy, Dispatcher
from gatepost.admission.breaker import BreakerMode, BreakerRules
from gatepost.dispatch.dispatcher import DispatcherSettings
from gatepost.dispatch.limits import LimitSettings


async def work(url: str, keys: list[str], cap: int, breakers: bool) -> None:
    """Deliver until SIGTERM, then drain."""
    policy = ClientPolicy(
        per_endpoint_concurrency=cap, connect_timeout=2.0, write_timeout=2.0, read_timeout=8.0, max_per_host=200
    )
    # Off by default. Failures are drawn by lot here: they hardly open a breaker, but a receiver that stands still for three seconds
    # while the database starts again opens dozens, as it should, and then one probe in ten fails by lot: minutes, not a fault's.
    mode = BreakerMode.ON if breakers else BreakerMode.OFF
    limits = LimitSettings(breaker=BreakerRules(mode=mode))
    settings = DispatcherSettings(slots=200, limits=limits)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Dispatcher.open(url, keys=keys, policy=policy, egress=LOOPBACK, run=True, settings=settings) as gp:
        while not gp.statistics().parts and not stop.is_set():  # noqa: ASYNC110 - there is nothing to wait for
            await asyncio.sleep(0.02)
        print("ready", flush=True)
        await stop.wait()


def main() -> int:
    """Read the task and work."""
    asyncio.run(work(**json.loads(sys.stdin.readline())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
