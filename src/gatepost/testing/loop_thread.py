"""An event loop in a thread of its own, so that servers written for asyncio can serve synchronous tests and any test runner.

Used by the pytest fixtures; it runs what it is given and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")

CALL_TIMEOUT: Final = 30.0
"""Seconds until a call that hangs fails the test."""


class LoopThread:
    """Runs coroutines for other threads while the `with` block lasts."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gatepost-testing-loop", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT)
