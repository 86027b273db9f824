"""A hostile server on a loop and thread of its own: for races that two sides on one loop can never have."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gatepost.testing.hostile import Behaviour, HostileServer


@contextmanager
def elsewhere(behaviour: str | Behaviour, *, seconds: float | None = None) -> Iterator[HostileServer]:
    """Serve from another thread. Read the server's counters only; its methods belong to the other loop."""
    ready: list[HostileServer] = []
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with HostileServer(behaviour, seconds=seconds) as server:
            ready.append(server)
            started.set()
            await stop.wait()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            loop.close()
            started.set()

    thread = threading.Thread(target=run, name=f"hostile-{behaviour}")
    thread.start()
    started.wait()
    try:
        yield ready[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
