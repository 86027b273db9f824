"""Where a process spends its CPU, by stage: looks at every thread's stack each millisecond of CPU time used.

Each look charges the CPU that a thread has used since the last one to the stage its stack shows, so C code, locks and sleeps
come out right, and threads do not blur into each other. The main thread looks, so other threads are seen where they let go of
the interpreter lock: their totals are exact, their parts a guide. It costs a few per cent; measure totals without it. Used
by `bench.pipeline`.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Final, NamedTuple

INTERVAL: Final = 0.001
"""Seconds of CPU between looks: 1,000 looks a second blur away in a run of some seconds."""


class Rule(NamedTuple):
    """A stack whose innermost matching frame is in `module` (a prefix) and in a function like `function` is in `stage`."""

    stage: str
    """Empty: such a frame says nothing, its caller decides."""
    module: str
    function: str = ""
    """A regular expression for the qualified name; empty takes every function."""


class StageProfiler:
    """Collects CPU seconds by stage. Its signal reaches the main thread only, where it must be started."""

    def __init__(self, rules: Sequence[Rule], rest: str = "rest") -> None:
        self._rules = [(rule.stage, rule.module, re.compile(rule.function)) for rule in rules]
        self._rest = rest
        self._known: dict[CodeType, str | None] = {}
        self._clocks: dict[int, tuple[int, float]] = {}
        """Thread id to its CPU clock and when it was last read."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.unmatched: dict[str, float] = defaultdict(float)
        """CPU seconds of the rest by innermost frame, to see what a rule misses."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Collect while the block runs."""
        self._clocks.clear()
        self._look(None)
        self.seconds.clear()
        self.unmatched.clear()
        previous = signal.signal(signal.SIGPROF, lambda number, frame: self._look(frame))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
        signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})
            signal.signal(signal.SIGPROF, previous)

    def _look(self, here: FrameType | None) -> None:
        main = threading.main_thread().ident
        for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented for debuggers, such as this
            try:
                entry = self._clocks.get(ident)
                clock = entry[0] if entry is not None else time.pthread_getcpuclockid(ident)
                now = time.clock_gettime(clock)
            except OSError:  # the thread has ended
                self._clocks.pop(ident, None)
                continue
            used = now - (entry[1] if entry is not None else now)
            self._clocks[ident] = (clock, now)
            if used > 0:
                self._charge(here if ident == main else frame, used)

    def _charge(self, frame: FrameType | None, used: float) -> None:
        innermost = frame
        while frame is not None:
            code = frame.f_code
            stage = self._known.get(code)
            if stage is None and code not in self._known:
                stage = self._known[code] = self._stage_of(str(frame.f_globals.get("__name__", "")), code)
            if stage is not None:
                self.seconds[stage] += used
                return
            frame = frame.f_back
        self.seconds[self._rest] += used
        if innermost is not None:
            self.unmatched[f"{innermost.f_globals.get('__name__')}.{innermost.f_code.co_qualname}"] += used

    def _stage_of(self, module: str, code: CodeType) -> str | None:
        for stage, prefix, function in self._rules:
            if (module == prefix or module.startswith(f"{prefix}.")) and function.search(code.co_qualname):
                return stage or None
        return None


def block_signal() -> None:
    """Call before any thread starts: threads inherit the mask, so that no system call of theirs is interrupted."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})
