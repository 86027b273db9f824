"""The parent of `serve --processes` when its children do not do what they should: hang, cannot be started, are told to end too early."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gatepost.service.config import load_settings
from gatepost.service.logs import Logs
from gatepost.service.processes import Parent
from gatepost.testing.postgres_store import KEYS, gatepost_database
from tests.service.served import PATIENCE, environment

PARTS = 8


class Family:
    """A parent that runs in this process, and what it says."""

    def __init__(self, log: Path, parent: Parent) -> None:
        self._log = log
        self.parent = parent
        self.code: int | None = None

    def said(self, event: str) -> list[dict[str, Any]]:
        """Log lines of this kind."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that must happen soon."""
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 - processes tell nobody
                await asyncio.sleep(0.05)


@asynccontextmanager
async def family(directory: Path, count: int, **environ: str) -> AsyncIterator[Family]:
    """Workers on a new database, told to end when the block does."""
    database = await asyncio.to_thread(gatepost_database, PARTS)
    chosen = environment(
        directory,
        GATEPOST_DATABASE=database,
        GATEPOST_SECURITY_KEYS=",".join(KEYS),
        GATEPOST_FLEET_PROCESSES=str(count),
        GATEPOST_DISPATCH_SHUTDOWN_GRACE="1.0",
        **environ,
    )
    log = directory / "parent.log"
    with log.open("w") as stream:
        logs = Logs("json", stream=stream)
        try:
            parent = Parent(load_settings(None, chosen), ["worker"], chosen, logs, public=False, patience=3.0)
            made = Family(log, parent)
            running = asyncio.get_running_loop().create_task(parent.run())
            try:
                yield made
            finally:
                parent.stop()
                async with asyncio.timeout(PATIENCE):
                    made.code = await running
        finally:
            logs.close()


async def test_a_child_that_hangs_while_it_drains_is_killed_and_has_a_successor(tmp_path: Path) -> None:
    """A rolling restart must not stop at a process that does not react, and leave its place empty for ever."""
    async with family(tmp_path, 2) as made:
        await made.until(lambda: len(made.said("child_ready")) >= 2)
        hanging = int(made.said("child_started")[0]["pid"])
        os.kill(hanging, signal.SIGSTOP)
        made.parent.replace()
        await made.until(lambda: bool(made.said("rolling_restart_done")))
        assert [line["process"] for line in made.said("killed")] == [0]
        assert len(made.said("child_started")) == 4
        assert made.said("child_died") == []
    assert made.code == 0


async def test_a_machine_that_cannot_start_a_process_now_is_asked_again(tmp_path: Path) -> None:
    """Too many processes, no memory, a program that is being replaced: all of them pass, and the place must not stay empty."""
    async with family(tmp_path, 1) as made:
        made.parent.environ["TOO_LONG"] = "x" * 1_000_000  # the kernel takes no environment like this
        await made.until(lambda: len(made.said("child_died")) >= 2)
        del made.parent.environ["TOO_LONG"]
        await made.until(lambda: len(made.said("child_ready")) == 1)
    assert made.code == 0


@pytest.mark.parametrize("after", [0.0, 0.2])
async def test_children_that_are_told_to_end_before_they_have_begun_ended_well(tmp_path: Path, after: float) -> None:
    """Stopping a service right after its start is no failure: a child that does not listen to signals yet holds nothing."""
    async with family(tmp_path, 2) as made:
        await made.until(lambda: len(made.said("child_started")) == 2)
        await asyncio.sleep(after)
    assert made.code == 0
