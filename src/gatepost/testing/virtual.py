"""Virtual time for tests: a clock that only moves when told, seeded randomness, and an event loop that never sleeps.

The loop jumps its clock to the next timer as soon as nothing is ready, so ten hours of retries run in milliseconds and
always in the same order. Real sockets and worker threads still work, at the price of a short real wait before each jump;
a program in which nothing can ever happen again raises `VirtualDeadlock` instead of hanging.
"""

from __future__ import annotations

import asyncio
import math
import random  # noqa: TID251 - this file is where tests get their dice
import selectors
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar, TypeVarTuple

from gatepost.clock import SYSTEM_CLOCK

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START_MONOTONIC_NS: Final = 1_000_000_000_000
"""A thousand seconds. Not 0, so that code which takes 0 for "not set" is found out."""
START_WALL_US: Final = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z."""
SOCKET_GRACE: Final = 0.001
"""Real seconds before each jump while sockets are watched: loopback data sent by this process is there at once, and a
millisecond covers a peer in another thread that answers from memory."""
WORK_PATIENCE: Final = 1.0
"""Real seconds granted to one set of unfinished `run_in_executor` calls. Then they count as stuck and time goes on, which
is what lets a test of a stuck resolver run at all."""
REAL_LIMIT: Final = 10.0
"""Real seconds after which waiting for sockets, threads or a `hold` with no timer left is called a deadlock."""


class VirtualDeadlock(RuntimeError):
    """Nothing is ready, nothing is scheduled and nothing outside can wake the loop; the text lists the waiting tasks."""


class VirtualClock:
    """A `gatepost.clock.Clock` that moves only by `advance`, `advance_ns` and `step_wall`."""

    __slots__ = ("_monotonic_ns", "_wall_offset_ns")

    def __init__(self, start_wall_us: int = START_WALL_US, start_monotonic_ns: int = START_MONOTONIC_NS) -> None:
        self._monotonic_ns = start_monotonic_ns
        self._wall_offset_ns = start_wall_us * 1_000 - start_monotonic_ns

    def monotonic(self) -> float:
        """Seconds; starts at 1000.0."""
        return self._monotonic_ns / 1e9

    def monotonic_ns(self) -> int:
        """The same in integer nanoseconds."""
        return self._monotonic_ns

    def wall_us(self) -> int:
        """UTC microseconds since 1970; starts at 2026-01-01."""
        return (self._monotonic_ns + self._wall_offset_ns) // 1_000

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks. Raises `ValueError` for a negative or non-finite number."""
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(
                f"advance({seconds!r}): time only goes forward; use step_wall to move the wall clock alone"
            )
        self.advance_ns(round(seconds * 1e9))

    def advance_ns(self, nanoseconds: int) -> None:
        """The same in integer nanoseconds."""
        if nanoseconds < 0:
            raise ValueError(f"advance_ns({nanoseconds}): time only goes forward")
        self._monotonic_ns += nanoseconds

    def step_wall(self, seconds: float) -> None:
        """Move the wall clock alone, forwards or back, as NTP or an operator may."""
        self._wall_offset_ns += round(seconds * 1e9)

    def __repr__(self) -> str:
        return f"<VirtualClock monotonic={self.monotonic():.9f} wall_us={self.wall_us()}>"


class SeededEntropy:
    """A `gatepost.clock.Entropy` that repeats itself for the same seed. For tests only: its tokens are no secrets."""

    __slots__ = ("_random",)

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose

    def uniform(self) -> float:
        """A float `u` with `0 <= u < 1`."""
        return self._random.random()

    def token(self, size: int) -> bytes:
        """`size` bytes."""
        return self._random.randbytes(size)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop on virtual time. `loop.clock` is its clock; give the same one to the code under test.

    `patience` is real seconds waited before every jump, for threads the loop cannot see (work it can see, started by
    `run_in_executor` or `asyncio.to_thread`, is waited for without it).
    """

    def __init__(self, clock: VirtualClock | None = None, *, patience: float = 0.0) -> None:
        self.clock = VirtualClock() if clock is None else clock
        self._work_pending = 0
        self._work_patience = 0.0
        self._holds = 0
        self._patience = patience
        super().__init__(_JumpingSelector(self._before_jump))
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """The virtual clock's seconds."""
        return self.clock.monotonic()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Inside, time stands still and the loop really waits: for work done by another thread or process."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """As in asyncio; the loop waits for the thread in real time before it jumps."""
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self._work_pending += 1
        self._work_patience = WORK_PATIENCE
        future.add_done_callback(self._work_finished)
        return future

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        """As in asyncio, in real time: its helper thread and (from 3.12) its own timeout must not meet a jump."""
        with self.hold():
            await super().shutdown_default_executor(*args, **kwargs)

    def _work_finished(self, _future: asyncio.Future[Any]) -> None:
        self._work_pending -= 1
        self._work_patience = WORK_PATIENCE

    def _before_jump(self, selector: selectors.BaseSelector, timeout: float | None) -> _Events:
        """Called when nothing is ready. Returns what became ready in real time, or jumps, or raises."""
        sockets = len(selector.get_map()) - 1  # the loop's own wake-up pipe is always there
        stuck_is_deadlock = timeout is None or self._holds > 0
        wait = self._patience
        if stuck_is_deadlock and (sockets or self._work_pending or self._holds):
            wait = REAL_LIMIT
        elif self._work_pending:
            wait = max(wait, self._work_patience)
        if sockets:
            wait = max(wait, SOCKET_GRACE)
        if wait > 0:
            started = SYSTEM_CLOCK.monotonic()
            events = selector.select(wait)
            if events:
                return events
            self._work_patience = max(0.0, self._work_patience - (SYSTEM_CLOCK.monotonic() - started))
        if timeout is None or self._holds:
            raise VirtualDeadlock(self._describe_deadlock(sockets, waited=wait))
        # To the absolute instant, not by the difference, so that many jumps do not add up rounding errors.
        target_ns = round((self.clock.monotonic() + timeout) * 1e9)
        self.clock.advance_ns(max(1, target_ns - self.clock.monotonic_ns()))
        return []

    def _describe_deadlock(self, sockets: int, waited: float) -> str:
        lines = [
            f"nothing can happen any more at virtual time {self.time():.6f}: no callback is ready, "
            f"{'time is held' if self._holds else 'no timer is scheduled'}, and {sockets} watched sockets, "
            f"{self._work_pending} executor calls and {self._holds} holds stayed silent for {waited:g} real seconds. Waiting:"
        ]
        for task in sorted(asyncio.all_tasks(self), key=lambda task: task.get_name()):
            frames = task.get_stack(limit=1)
            where = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else "not started"
            lines.append(f"  {task.get_name()} at {where}")
        return "\n".join(lines)


def run_virtual(
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    clock: VirtualClock | None = None,
    debug: bool = False,
    patience: float = 0.0,
) -> T:
    """Run `main()` to its end on a `VirtualLoop` and return its result; like `asyncio.run`, but time costs nothing.

    Give `clock` to share it with the code under test (or read `asyncio.get_running_loop().clock`). Raises
    `VirtualDeadlock` when `main` waits for something that cannot come.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock, patience=patience), debug=debug) as runner:
        return runner.run(main())


_Events = list[tuple[selectors.SelectorKey, int]]


class _JumpingSelector(selectors.BaseSelector):
    """The platform's selector, except that it asks `before_jump` instead of blocking."""

    def __init__(self, before_jump: Callable[[selectors.BaseSelector, float | None], _Events]) -> None:
        self._real = selectors.DefaultSelector()
        self._before_jump = before_jump

    def select(self, timeout: float | None = None) -> _Events:
        events = self._real.select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        return self._before_jump(self._real, timeout)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.get_key(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()
