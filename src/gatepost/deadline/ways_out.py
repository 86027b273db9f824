"""The two ways out for work that must not be cut: `no_deadline` and `run_to_completion`. Both are counted, so they are found.

Exports, long polls and writes that cannot be repeated need them; everything else wants `shield`, which stays bounded. Called
by applications only.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Literal, TypeVar, cast

from gatepost.clock import Clock
from gatepost.deadline.context import F, Scope, shield
from gatepost.deadline.metrics import COUNTERS, Metric
from gatepost.deadline.value import Deadline, DeadlineExceeded

R = TypeVar("R")
End = Literal["done", "failed", "cut"]

REASON_MISSING: Final = "write why, for example reason='nightly export': it is counted under that name"


class no_deadline(Scope[None]):  # noqa: N801 - used like a function, as `deadline` is
    """A scope without any deadline: `current()` is None inside, and no scope around it cuts. `with`, `async with`, decorator.

    `reason` is a short fixed text, the label under which `deadline_no_deadline_total` counts each use. Cancellations from
    elsewhere pass. Raises `ValueError` without a reason.
    """

    __slots__ = ("_reason",)
    _shields = True

    def __init__(self, *, reason: str) -> None:
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"reason={reason!r}: {REASON_MISSING}")
        self._reason = reason
        self._name = ""
        self._entered = False
        self._cut = None
        self._held = None

    def _open(self, outer: Deadline | None) -> None:
        COUNTERS.count(Metric.NO_DEADLINE, self._reason)

    def _again(self, name: str) -> no_deadline:
        return no_deadline(reason=self._reason)


class run_to_completion(shield):  # noqa: N801 - as above
    """Work that is finished once it is begun, within `max` seconds of its own: writes that nobody can repeat safely.

    As a decorator of a coroutine function it also holds off cancellations: the work runs in a task of its own, the caller
    waits for its end, and only then the cancellation goes on. As a scope (`with`, `async with`) it holds off deadlines, as
    `shield` does; a task cannot hold off its own cancellation. `max` cuts for good. Counted by how it ended.
    """

    __slots__ = ()

    def __init__(self, max: float, *, name: str = "run_to_completion", clock: Clock | None = None) -> None:  # noqa: A002
        super().__init__(max, name=name, clock=clock)

    def _again(self, name: str) -> run_to_completion:
        return run_to_completion(self._max, name=name, clock=self._clock)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        _count("done" if error[0] is None else "failed")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, traceback)
        except DeadlineExceeded:
            _count("cut")
            raise
        _count("done" if kind is None else "failed")

    def __call__(self, function: F) -> F:
        """Decorate: each call has `max` seconds from its start."""
        if not inspect.iscoroutinefunction(function):
            return super().__call__(function)
        name = self._name

        @functools.wraps(function)
        async def completed(*args: Any, **kwargs: Any) -> Any:
            scope = self._again(name)
            work = _cut_at(scope, function(*args, **kwargs))
            with shield(self._max, name=name, clock=self._clock):  # the scopes around wait, for as long as we do
                return await _finish(work)

        return cast(F, completed)


async def _cut_at(scope: run_to_completion, work: Coroutine[Any, Any, R]) -> R:
    async with scope:
        return await work


async def _finish(work: Coroutine[Any, Any, R]) -> R:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return await _finish_shielded(work)
    task = loop.create_task(work, name="gatepost run_to_completion")  # ended here, whatever happens to the caller
    interruption: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            interruption = error
    if interruption is None:
        return task.result()
    failure = None if task.cancelled() else task.exception()
    raise interruption from failure


async def _finish_shielded(work: Coroutine[Any, Any, R]) -> R:
    import anyio

    with anyio.CancelScope(shield=True):
        result = await work
    return result  # noqa: RET504 - a scope may swallow for all that type checkers know


def _count(end: End) -> None:
    COUNTERS.count(Metric.RUN_TO_COMPLETION, end)


__all__ = ["no_deadline", "run_to_completion"]
