"""Cuts the running task when its time is up, on asyncio by itself and on other loops (trio) through anyio.

A cut is one cancellation that this module asked for and takes back on the way out, so it can always tell its own from one
that came from elsewhere: those pass unchanged. It knows seconds and tasks, not deadlines; `context` opens and closes it.
"""

from __future__ import annotations

import asyncio
import math
import sys
from typing import Any, Final, Protocol

NEEDS_TASK: Final = "an async deadline scope needs a running task; use `with` in plain functions"


class Cut(Protocol):
    """An armed cut of one task."""

    @property
    def owner(self) -> object:
        """The task, None once it is closed: contexts that outlive the scope keep a reference to the cut."""
        ...

    @property
    def fired(self) -> bool:
        """Whether it has asked for the cancellation."""
        ...

    @property
    def asked(self) -> bool:
        """Whether it fired because `now` said so, before its time."""
        ...

    def hold(self) -> bool:
        """Do not fire until `resume`; False when it has fired, is held already, or is closed."""
        ...

    def resume(self) -> None:
        """Fire at its old time again, or at the next await when that has passed."""
        ...

    def stop(self) -> None:
        """Do not fire at its time any more, whoever holds and resumes it; `now` still works."""
        ...

    def now(self) -> None:
        """Fire at the next turn of the loop, or when who holds it resumes it."""
        ...

    def close(self, error: BaseException | None) -> bool:
        """The body ended in `error`. True when that is this cut's own cancellation and no other is pending."""
        ...


def new_cut(seconds: float, *, shielded: bool = False) -> Cut:
    """A cut of the current task in `seconds`. Raises `RuntimeError` outside a task.

    `shielded` is for loops where a cancelled scope cancels every further await (trio): cancellations from around then wait
    until this one closes. asyncio cancels once, and ignores it.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _anyio_cut(seconds, shielded)
    task = asyncio.current_task(loop)
    if task is None:
        raise RuntimeError(NEEDS_TASK)
    return _AsyncioCut(loop, task, seconds)


def current_owner() -> object:
    """What `Cut.owner` is for the running task; None outside one."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # no asyncio loop in this thread
        return _anyio_task() if "trio" in sys.modules else None


class _AsyncioCut:
    """As `asyncio.Timeout`, whose rules for telling cancellations apart it follows, without its own error and states."""

    __slots__ = ("_cancelling", "_handle", "_held", "_loop", "_when", "asked", "fired", "owner")

    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], seconds: float) -> None:
        self._loop = loop
        self.owner: asyncio.Task[Any] | None = task
        self.fired = False
        self.asked = False
        self._cancelling = task.cancelling()
        self._held = False
        self._when: float | None = loop.time() + seconds  # None: stopped
        self._handle: asyncio.Handle | None = loop.call_at(self._when, self._fire)

    def _fire(self) -> None:
        self._handle = None
        if self.owner is not None:
            self.fired = True
            self.owner.cancel()

    def hold(self) -> bool:
        if self._handle is None:
            return False
        self._handle.cancel()
        self._handle = None
        self._held = True
        return True

    def resume(self) -> None:
        self._held = False
        if self.owner is None:  # its scope ended before the hold did, in a generator left half way
            return
        if self.asked:
            self._handle = self._loop.call_soon(self._fire)
        elif self._when is not None:
            self._handle = self._loop.call_at(self._when, self._fire)

    def stop(self) -> None:
        self._when = None
        if self._handle is not None and not self.asked:
            self._handle.cancel()
            self._handle = None

    def now(self) -> None:
        if self.owner is None or self.fired or self.asked:
            return
        self.asked = True
        if not self._held:
            if self._handle is not None:
                self._handle.cancel()
            # Not at once: a task that is running would keep the request for its next await, after the scope.
            self._handle = self._loop.call_soon(self._fire)

    def close(self, error: BaseException | None) -> bool:
        task, self.owner = self.owner, None
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.cancel()
        if not self.fired or task is None:
            return False
        # As many requests as on the way in: nobody else asked. `uncancel` alone decides, on 3.11 and 3.13 alike.
        return task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)


class _AnyioCut:
    """A cancel scope of anyio. Its loop keeps cancelling until the scope is left, so `close` must run in the same task."""

    __slots__ = ("_held", "_scope", "_when", "asked", "owner")

    def __init__(self, scope: Any, owner: object) -> None:
        self._scope = scope
        self._when = float(scope.deadline)
        self.owner: object = owner
        self.asked = False
        self._held = False
        scope.__enter__()

    @property
    def fired(self) -> bool:
        return bool(self._scope.cancel_called)

    def hold(self) -> bool:
        if self.owner is None or self._scope.cancel_called or self._scope.deadline == math.inf:
            return False
        self._scope.deadline = math.inf
        self._held = True
        return True

    def resume(self) -> None:
        self._held = False
        if self.owner is not None:
            if self.asked:
                self._scope.cancel()
            else:
                self._scope.deadline = self._when

    def stop(self) -> None:
        self._when = math.inf
        if self.owner is not None:
            self._scope.deadline = math.inf

    def now(self) -> None:
        if self.owner is not None:
            self.asked = True
            if not self._held:
                self._scope.cancel()

    def close(self, error: BaseException | None) -> bool:
        self.owner = None
        if error is None:
            self._scope.__exit__(None, None, None)  # trio also "swallows" a body that ended by itself
            return False
        return bool(self._scope.__exit__(type(error), error, error.__traceback__))


def _anyio_cut(seconds: float, shielded: bool) -> Cut:
    if "trio" not in sys.modules:  # no loop at all
        raise RuntimeError(NEEDS_TASK)
    try:
        import anyio
    except ImportError as error:
        raise RuntimeError("async deadline scopes on trio need anyio: pip install anyio") from error
    owner = _anyio_task()
    if owner is None:
        raise RuntimeError(NEEDS_TASK)
    return _AnyioCut(anyio.CancelScope(deadline=anyio.current_time() + seconds, shield=shielded), owner)


def _anyio_task() -> object:
    try:
        import anyio
    except ImportError:
        return None
    try:
        return anyio.get_current_task().id
    except Exception:  # noqa: BLE001 - anyio names "outside a loop" differently from version to version
        return None
