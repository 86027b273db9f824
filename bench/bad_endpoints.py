"""Endpoints that hang or fail in one phase, for `bench.isolation`: which behaviour stands for a phase, and their URLs.

Silent and refusing ones need no process; the others run in one of their own (`python -m bench.bad_endpoints NAME COUNT`), so
that their work is not measured.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.machine import raise_file_limit
from gatepost.testing.hostile import HostileServer

SILENT_BACKLOG: Final = 1_024
"""Connections the kernel takes for a listener that never accepts: more than 60 s of capped attempts make."""
BEHAVIOURS: Final = {
    "connect": "black-hole",
    "tls": "tls-stall",
    "head": "drip-head",
    "body": "drip-body",
    "slow": "slow-ok",
    "reset": "reset-at-accept",
    "error": "error",
}
"""The behaviour of `gatepost.testing.hostile` that stands for a phase."""
PHASES: Final = ("silence", "refused", *BEHAVIOURS)
STOP_PATIENCE: Final = 10.0


@contextmanager
def bad_endpoints(phase: str, count: int) -> Iterator[list[str]]:
    """URLs of `count` endpoints that are bad in `phase`, one of `PHASES`, while the block runs."""
    if phase in BEHAVIOURS:
        with _served(BEHAVIOURS[phase], count) as urls:
            yield urls
        return
    with ExitStack() as stack:
        ports = []
        for _ in range(count):
            if phase == "silence":  # the kernel accepts, nobody answers
                listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=SILENT_BACKLOG))
            else:  # bound and not listening: refused, and nobody else can take the port
                listener = stack.enter_context(socket.socket())
                listener.bind(("127.0.0.1", 0))
            ports.append(listener.getsockname()[1])
        yield [f"http://127.0.0.1:{port}/hooks" for port in ports]


@contextmanager
def silent_endpoint() -> Iterator[str]:
    """A URL whose connections succeed and whose requests are never read."""
    with bad_endpoints("silence", 1) as urls:
        yield urls[0]


@contextmanager
def _served(behaviour: str, count: int) -> Iterator[list[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.bad_endpoints", behaviour, str(count)],
        cwd=Path(__file__).resolve().parents[1],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.kill()
            process.wait(STOP_PATIENCE)


async def _serve(behaviour: str, count: int) -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(HostileServer(behaviour)) for _ in range(count)]
        print(json.dumps([server.url for server in servers]), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    raise_file_limit()
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
