"""The deadline in force for the running code: scopes that set it, and functions that ask it.

One context variable holds it, so tasks inherit it, and threads do through `propagate`. Scopes nest to the minimum; `shield`
alone replaces it. A synchronous scope only sets the value; an `async with` scope also cuts its body when time is up, and
never swallows or renames a cancellation that came from elsewhere. Called by applications and by `DispatchClient.deliver`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import ContextVar, Token, copy_context
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar, cast

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.deadline.policy import DEFAULT_POLICY, DeadlinePolicy
from gatepost.deadline.value import Deadline, check_cap, check_seconds

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True, eq=False)
class _Cutter:
    """An async scope that will cancel `task`: kept where `shield` finds it.

    Emptied when the scope ends, because contexts of tasks and timers that outlive it keep a copy of the frame.
    """

    task: asyncio.Task[Any] | None
    timeout: asyncio.Timeout | None


@dataclass(frozen=True, slots=True)
class _Frame:
    """What a context inherits."""

    deadline: Deadline | None
    cutters: tuple[_Cutter, ...]


_OUTSIDE: Final = _Frame(None, ())
_frame: ContextVar[_Frame] = ContextVar("gatepost_deadline", default=_OUTSIDE)


def current() -> Deadline | None:
    """The deadline in force, None when there is none."""
    return _frame.get().deadline


def remaining() -> float | None:
    """Seconds left, at least 0.0; None when there is no deadline. Ask `current().remaining()` for how far it is past."""
    in_force = current()
    return None if in_force is None else max(0.0, in_force.remaining())


def timeout_for(
    cap: float, reserve: float = 0.0, *, where: str = "call", policy: DeadlinePolicy = DEFAULT_POLICY
) -> float:
    """Seconds to give a call that may take `cap` by itself: the least of `cap` and what is left less `reserve`.

    Always above 0: raises `DeadlineExceeded` when less than `policy.min_useful` would be left. `cap` without a deadline.
    """
    in_force = current()
    if in_force is None:
        check_cap(cap, reserve)
        return cap
    return in_force.timeout_for(cap, reserve, where=where, policy=policy)


def check(need: float = 0.0, *, where: str = "handler") -> None:
    """Raise `DeadlineExceeded` when fewer than `need` seconds are left: put it before work whose result nobody would see."""
    in_force = current()
    if in_force is not None:
        in_force.check(need, where=where)


def propagate(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, to be called in a thread or executor with the context of this moment, the deadline included.

    May be called any number of times, also at once. Tasks need no help: they inherit the context.
    """
    if inspect.iscoroutinefunction(function):
        raise TypeError(
            "propagate is for threads and executors; a coroutine inherits the deadline of the task that runs it"
        )
    context = copy_context()

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # A context can be entered once at a time; copying one is cheap and does not depend on its size.
        return context.copy().run(function, *args, **kwargs)

    return call


class _Scope(ABC):
    """What `deadline` and `shield` have in common: entering, leaving, cutting, and use as a decorator."""

    __slots__ = ("_cutter", "_deadline", "_name", "_paused", "_token")

    def __init__(self, name: str) -> None:
        self._name = name
        self._deadline: Deadline | None = None
        self._token: Token[_Frame] | None = None
        self._cutter: _Cutter | None = None
        self._paused: list[tuple[_Cutter, float]] = []

    @abstractmethod
    def _open(self, outer: _Frame) -> Deadline:
        """The deadline inside; says in subclasses what `outer` means for it."""

    @abstractmethod
    def _again(self, name: str) -> _Scope:
        """A fresh scope of the same kind, for each call of a decorated function."""

    def __enter__(self) -> Deadline:
        self._refuse_second_use()
        outer = _frame.get()
        self._deadline = self._open(outer)
        self._token = _frame.set(_Frame(self._deadline, outer.cutters))
        return self._deadline

    def __exit__(self, *_error: object) -> None:
        self._close()

    async def __aenter__(self) -> Deadline:
        self._refuse_second_use()
        outer = _frame.get()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an async deadline scope needs a running task; use `with` in plain functions")
        inside = self._open(outer)
        self._deadline = inside
        timeout = asyncio.timeout_at(asyncio.get_running_loop().time() + inside.remaining())
        await timeout.__aenter__()
        self._cutter = _Cutter(task, timeout)
        self._token = _frame.set(_Frame(inside, (*outer.cutters, self._cutter)))
        return inside

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._cutter is not None
        assert self._deadline is not None
        timeout = self._cutter.timeout
        assert timeout is not None
        self._close()
        try:
            # Raises only when the cancellation it sees is its own and no other is pending.
            await timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise self._deadline.exceeded(self._name or "scope") from error

    def _close(self) -> None:
        if self._cutter is not None:
            self._cutter.task = self._cutter.timeout = None
        assert self._token is not None
        try:
            _frame.reset(self._token)
        except ValueError:
            # Left in another context than it was entered in, as generators do that a framework finishes elsewhere:
            # this context never saw the scope, so there is nothing to put back.
            pass
        paused, self._paused = self._paused, []
        for cutter, when in paused:
            if cutter.timeout is not None:  # else it ended before its shield did, in a generator left half way
                cutter.timeout.reschedule(when)  # one whose time has come meanwhile cuts at the next await

    def _refuse_second_use(self) -> None:
        if self._deadline is not None:
            raise RuntimeError("a deadline scope is entered once; write deadline(…) anew, or use it as a decorator")

    def __call__(self, function: F) -> F:
        """Decorate a function or coroutine function: each call gets a scope of its own."""
        name = self._name or getattr(function, "__qualname__", "")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("a generator is left and entered between its items; open the scope inside or around it")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def bounded_coroutine(*args: Any, **kwargs: Any) -> Any:
                async with self._again(name):
                    return await function(*args, **kwargs)

            return cast(F, bounded_coroutine)

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            with self._again(name):
                return function(*args, **kwargs)

        return cast(F, bounded)


class deadline(_Scope):  # noqa: N801 - used like a function, as `contextlib` and `asyncio.timeout` are
    """A scope that must be done in `limit` seconds, or by a `Deadline`: `with`, `async with`, or a decorator.

    ```
    with deadline(2.0, name="render") as d: ...       # sets the value; leaving never raises
    async with deadline(2.0): ...                     # also cuts: DeadlineExceeded at the end of the block
    @deadline(2.0)                                    # each call has 2 s; works for both kinds of function
    ```
    Time counts from entering. Inside another scope the earlier limit holds. `clock` is for tests; without it the
    surrounding scope's clock is used, else the system's. Raises `ValueError` for negative, NaN and infinite numbers.
    """

    __slots__ = ("_clock", "_limit")

    def __init__(self, limit: float | Deadline, *, name: str = "", clock: Clock | None = None) -> None:
        super().__init__(name)
        if not isinstance(limit, Deadline):
            check_seconds(limit)  # here, where the bad number stands, not where the scope is entered
        self._limit = limit
        self._clock = clock

    def _open(self, outer: _Frame) -> Deadline:
        limit = self._limit
        if not isinstance(limit, Deadline):
            limit = Deadline.after(limit, name=self._name, clock=_clock_for(self._clock, outer))
        return limit.within(outer.deadline)

    def _again(self, name: str) -> deadline:
        return deadline(self._limit, name=name, clock=self._clock)


class shield(_Scope):  # noqa: N801 - as above
    """A scope with its own budget of `max` seconds whatever surrounds it: for cleaning up, audits and background work.

    Never unlimited. Enclosing async scopes of the same task do not cut it; one that ran out meanwhile does so when the
    shield ends. Cancellations from elsewhere pass as ever. Used like `deadline`.
    """

    __slots__ = ("_clock", "_max")

    def __init__(self, max: float, *, name: str = "shield", clock: Clock | None = None) -> None:  # noqa: A002
        super().__init__(name)
        check_seconds(max)
        self._max = max
        self._clock = clock

    def _open(self, outer: _Frame) -> Deadline:
        if outer.cutters:
            task = _current_task()
            for cutter in outer.cutters:
                timeout = cutter.timeout
                # An expired one has done its cutting; one without time is held by another shield already.
                if timeout is not None and cutter.task is task and not timeout.expired():
                    when = timeout.when()
                    if when is not None:
                        timeout.reschedule(None)
                        self._paused.append((cutter, when))
        return Deadline.after(self._max, name=self._name, clock=_clock_for(self._clock, outer))

    def _again(self, name: str) -> shield:
        return shield(self._max, name=name, clock=self._clock)


def _clock_for(given: Clock | None, outer: _Frame) -> Clock:
    if given is not None:
        return given
    return SYSTEM_CLOCK if outer.deadline is None else outer.deadline.clock


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None
