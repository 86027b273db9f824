"""The tasks of a dispatcher: kept until they end, and ended with it.

`TaskSet` holds those that end by themselves (attempts, small errands); `keep_running` restarts a loop that must not end. Both
say what went wrong instead of losing it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from gatepost.deadline import context as deadline

RESTART_DELAY: Final = 1.0
"""Seconds before a loop that failed unexpectedly starts again: a bug must not become a busy loop."""

_log = logging.getLogger("gatepost.dispatch")


class TaskSet:
    """Tasks that end by themselves. `on_failure` hears of one that ended in an exception, which it never should."""

    def __init__(self, on_failure: Callable[[str, BaseException], None]) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_failure = on_failure
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start and keep a task."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        # An errand may be started by whoever happens to publish: their deadline is not the delivery's.
        context = None if deadline.current() is None else deadline.detached_context()
        task = self._loop.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Ask all of them to end now."""
        for task in self._tasks:
            task.cancel()

    async def wait_empty(self) -> None:
        """Until none is left, also of those started meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task of the dispatcher failed", exc_info=error)
            self._on_failure(task.get_name(), error)


async def keep_running(
    name: str, loop: Callable[[], Awaitable[None]], on_failure: Callable[[str, BaseException], None]
) -> None:
    """Run `loop()` until cancelled; when it ends or fails all the same, say so and start it again."""
    while True:
        try:
            await loop()
        except Exception as error:  # noqa: BLE001 - whatever it was, deliveries must go on
            _log.exception("%s failed and is started again in %g s", name, RESTART_DELAY)
            on_failure(name, error)
        await asyncio.sleep(RESTART_DELAY)
