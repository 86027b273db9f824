"""The deadline in force for the running code: scopes that set it, and functions that ask it.

One context variable holds it, so tasks inherit it, and threads do through `propagate`. Scopes nest to the minimum; `shield`
alone replaces it. A synchronous scope only sets the value; an `async with` scope also cuts its body when time is up, and
never swallows or renames a cancellation that came from elsewhere. Called by applications and by `DispatchClient.deliver`.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import Context, ContextVar, Token, copy_context
from types import TracebackType
from typing import Any, ClassVar, Final, Generic, ParamSpec, TypeAlias, TypeVar, cast

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.deadline.cut import Cut, current_owner, new_cut
from gatepost.deadline.metrics import COUNTERS, Metric
from gatepost.deadline.policy import DEFAULT_POLICY, DeadlinePolicy
from gatepost.deadline.value import (
    NANOSECONDS,
    SECONDS_MAX,
    Deadline,
    DeadlineExceeded,
    Limit,
    check_cap,
    check_seconds,
)

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
D = TypeVar("D", Deadline, None)


class _Release:
    """Whether a request's scope has let go of its body: one object for all tasks that inherited the scope."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False


_Frame: TypeAlias = tuple[Deadline | None, tuple[Cut, ...], _Release | None]
"""What a context inherits: the deadline, the cuts of the scopes around, which `shield` must find, and what takes the deadline
away again (None: nothing does). A plain tuple, since one is made for every scope."""
INSTANT_MAX: Final = 2 * SECONDS_MAX
"""Latest instant of `until`: a machine that has been up for 31 years, and the longest deadline."""
ENTERED_ONCE: Final = "a deadline scope is entered once; write deadline(…) anew, or use it as a decorator"

_OUTSIDE: Final[_Frame] = (None, (), None)
_frame: ContextVar[_Frame] = ContextVar("gatepost_deadline", default=_OUTSIDE)


def current() -> Deadline | None:
    """The deadline in force, None when there is none."""
    in_force, _cuts, release = _frame.get()
    return in_force if release is None or not release.done else None


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
    in_force, _cuts, release = _frame.get()
    if in_force is None or (release is not None and release.done):
        check_cap(cap, reserve)
        return cap
    try:
        return in_force.timeout_for(cap, reserve, where=where, policy=policy)
    except DeadlineExceeded as error:
        COUNTERS.count(Metric.EXCEEDED, error.where)
        raise


def check(need: float = 0.0, *, where: str = "handler") -> None:
    """Raise `DeadlineExceeded` when fewer than `need` seconds are left: put it before work whose result nobody would see."""
    in_force = current()
    if in_force is not None:
        try:
            in_force.check(need, where=where)
        except DeadlineExceeded as error:
            COUNTERS.count(Metric.EXCEEDED, error.where)
            raise


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


def detached_context() -> Context:
    """A copy of the current context without a deadline: for a task that outlives the request that happens to start it."""
    context = copy_context()
    context.run(_frame.set, _OUTSIDE)
    return context


class Scope(ABC, Generic[D]):
    """What `deadline`, `shield` and the ways out have in common: entering, leaving, cutting, and use as a decorator."""

    __slots__ = ("_cut", "_entered", "_held", "_inside", "_name", "_token")

    _shields: ClassVar[bool] = False
    """Whether the scopes around may not cut the body."""
    _release: _Release | None = None
    """What `request_scope` lets go by."""
    _name: str
    _entered: bool
    _inside: D
    _token: Token[_Frame]
    _cut: Cut | None
    _held: list[Cut] | None

    @abstractmethod
    def _open(self, outer: Deadline | None) -> D:
        """The deadline inside; says in subclasses what `outer` means for it."""

    @abstractmethod
    def _again(self, name: str) -> Scope[D]:
        """A fresh scope of the same kind, for each call of a decorated function."""

    def __enter__(self) -> D:
        if self._entered:
            raise RuntimeError(ENTERED_ONCE)
        self._entered = True
        outer, cuts, release = _frame.get()
        if release is not None and release.done:
            outer = None
        inside = self._inside = self._open(outer)
        if self._shields and cuts:
            self._hold(cuts)
        self._token = _frame.set((inside, cuts, self._release))
        return inside

    def __exit__(self, *_error: object) -> None:
        self._restore()

    async def __aenter__(self) -> D:
        return self.enter_cutting()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave_cutting(error)

    def enter_cutting(self) -> D:
        """`async with` without its coroutines, for servers, which do this for every request; `leave_cutting` must follow."""
        if self._entered:
            raise RuntimeError(ENTERED_ONCE)
        self._entered = True
        outer: Deadline | None
        cuts: tuple[Cut, ...]
        outer, cuts, release = _frame.get()
        if release is not None and release.done:
            outer = None
        inside = self._inside = self._open(outer)
        if inside is not None:
            self._cut = new_cut(inside.remaining(), shielded=self._shields and _being_cancelled(cuts))
        if self._shields and cuts:
            self._hold(cuts)
        self._token = _frame.set((inside, cuts if self._cut is None else (*cuts, self._cut), self._release))
        return inside

    def leave_cutting(self, error: BaseException | None) -> None:
        """The body ended in `error`: raises `DeadlineExceeded` from it when that is this scope's own cut."""
        self._restore()
        if self._cut is not None and self._cut.close(error):
            assert self._inside is not None
            where = self._name or "scope"
            if not self._cut.asked:
                COUNTERS.count(Metric.EXCEEDED, where)
            raise self._inside.exceeded(where) from error

    def stop_cutting(self) -> None:
        """Let the body of an `async with` scope go on past its time; `remaining()` stays as it is."""
        if self._cut is not None:
            self._cut.stop()

    def cut_now(self) -> None:
        """Cut the body of an `async with` scope at the next turn of the loop: not for time, and not counted as that."""
        if self._cut is not None:
            self._cut.now()

    def _restore(self) -> None:
        try:
            _frame.reset(self._token)
        except ValueError:
            # Left in another context than it was entered in, as generators do that a framework finishes elsewhere:
            # this context never saw the scope, so there is nothing to put back.
            pass
        if self._held is not None:
            held, self._held = self._held, None
            for cut in held:
                cut.resume()  # one whose time has come meanwhile cuts at the next await

    def _hold(self, cuts: tuple[Cut, ...]) -> None:
        owner = current_owner()
        # Other tasks' scopes keep their promise; one that has fired has done its cutting.
        self._held = [cut for cut in cuts if cut.owner is not None and cut.owner == owner and cut.hold()]

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


class deadline(Scope[Deadline]):  # noqa: N801 - used like a function, as `contextlib` and `asyncio.timeout` are
    """A scope that must be done in `limit` seconds, or by a `Deadline`: `with`, `async with`, or a decorator.

    ```
    with deadline(2.0, name="render") as d: ...       # sets the value; leaving never raises
    async with deadline(2.0): ...                     # also cuts: DeadlineExceeded at the end of the block
    with deadline(until=clock.monotonic() + 2): ...   # an instant of the monotonic clock in seconds
    @deadline(2.0)                                    # each call has 2 s; works for both kinds of function
    ```
    Time counts from entering. Inside another scope the earlier limit holds. `clock` is for tests; without it the
    surrounding scope's clock is used, else the system's. Raises `ValueError` for negative, NaN and infinite numbers.
    """

    __slots__ = ("_clock", "_limit", "_until")

    def __init__(
        self,
        limit: float | Deadline | None = None,
        *,
        until: float | None = None,
        name: str = "",
        clock: Clock | None = None,
    ) -> None:
        # Here, where the bad number stands, not where the scope is entered.
        if limit is None:
            if until is None:
                raise TypeError("deadline() needs seconds, a Deadline, or until=")
            _check_instant(until)
        elif until is not None:
            raise TypeError("deadline() takes seconds or until=, not both")
        elif not isinstance(limit, Deadline):
            check_seconds(limit)
        self._limit = limit
        self._until = until
        self._clock = clock
        self._name = name
        self._entered = False
        self._cut = None
        self._held = None

    def _open(self, outer: Deadline | None) -> Deadline:
        limit = self._limit
        if isinstance(limit, Deadline):
            return limit if outer is None else limit.within(outer)
        clock = self._clock
        if clock is None:
            clock = SYSTEM_CLOCK if outer is None else outer.clock
        if limit is None:
            assert self._until is not None
            return Deadline.until(round(self._until * NANOSECONDS), name=self._name, clock=clock).within(outer)
        expires_ns = clock.monotonic_ns() + round(limit * NANOSECONDS)  # `Deadline.after`, without checking again
        inside = Deadline(expires_ns, (Limit(self._name, limit, expires_ns),), clock)
        return inside if outer is None else inside.within(outer)

    def _again(self, name: str) -> deadline:
        return deadline(self._limit, until=self._until, name=name, clock=self._clock)


class request_scope(deadline):  # noqa: N801 - as above
    """The scope that a server runs a request in: it can let go of its body, for answers that have begun and may be streams."""

    __slots__ = ("_release",)

    def __init__(self, limit: Deadline, *, name: str) -> None:
        # Not by way of `deadline.__init__`, whose checks a server's own Deadline needs no more.
        self._limit = limit
        self._until = self._clock = self._cut = self._held = None
        self._name = name
        self._entered = False
        self._release = _Release()

    def release(self) -> None:
        """Stop cutting, and take the deadline away from all that inherited it: frameworks make the rest of an answer, and
        what they run after it, in several tasks. Scopes that were opened inside keep what they were given."""
        if self._cut is not None:
            self._cut.stop()
        assert self._release is not None
        self._release.done = True


class shield(Scope[Deadline]):  # noqa: N801 - as above
    """A scope with its own budget of `max` seconds whatever surrounds it: for cleaning up, audits and background work.

    Never unlimited. Enclosing async scopes of the same task do not cut it; one that ran out meanwhile does so when the
    shield ends. Cancellations from elsewhere pass as ever, except on trio in an `async with shield` that is opened after
    the cut: there they wait for its end, since trio would cancel its every await otherwise. Used like `deadline`.
    """

    __slots__ = ("_clock", "_max")
    _shields = True

    def __init__(self, max: float, *, name: str = "shield", clock: Clock | None = None) -> None:  # noqa: A002
        check_seconds(max)
        self._max = max
        self._clock = clock
        self._name = name
        self._entered = False
        self._cut = None
        self._held = None

    def _open(self, outer: Deadline | None) -> Deadline:
        clock = self._clock
        if clock is None:
            clock = SYSTEM_CLOCK if outer is None else outer.clock
        return Deadline.after(self._max, name=self._name, clock=clock)

    def _again(self, name: str) -> shield:
        return shield(self._max, name=name, clock=self._clock)


def _being_cancelled(cuts: tuple[Cut, ...]) -> bool:
    return any(cut.fired and cut.owner is not None for cut in cuts)


def _check_instant(until: float) -> None:
    if isinstance(until, bool) or not isinstance(until, int | float):
        raise TypeError(f"until={until!r}: write an instant of the monotonic clock in seconds")
    if not abs(until) <= INSTANT_MAX:  # false for NaN too
        raise ValueError(f"until={until!r}: write an instant of the monotonic clock; for no deadline, open no scope")
