"""Writes log lines to a descriptor from a thread of its own, so that a slow terminal or pipe never stops the event loop.

Callers hand over finished lines and never wait. The buffer is bounded: when the output cannot keep up, lines are dropped,
counted, and the count is written as soon as there is room. Used by `service.logs`.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Final

BUFFER_LINES_MAX: Final = 20_000
"""About 20 MiB of attempt lines: some seconds of a dispatcher at full speed."""
LINGER: Final = 0.05
"""Seconds the thread waits after a first line, so that it writes many at once and wakes at most 20 times a second."""
WRITE_LINES: Final = 100
"""Lines joined into one write, about 100 KiB: they stay in the processor's cache until the kernel has them, which costs half of what
writes of five times as many do; one by one, each would have to wait for its turn beside the event loop."""
CLOSE_TIMEOUT: Final = 2.0
"""Seconds `close` waits for an output that has stopped reading."""


class LineWriter:
    """Lines in, one thread out. `write` may be called from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: deque[str] = deque()
        self._ready = threading.Event()
        self._closing = threading.Event()
        self._awake = False
        self._dropped = 0
        self._reported = 0
        self._thread = threading.Thread(target=self._run, name="gatepost-log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines lost since the start; only rises."""
        return self._dropped

    def write(self, line: str) -> None:
        """Take one line, without its newline. Never blocks."""
        if len(self._lines) >= BUFFER_LINES_MAX:
            self._dropped += 1
            return
        self._lines.append(line)
        # The flag saves the lock of an Event per line. The thread clears it before it drains, so a line appended while it
        # was set is always drained.
        if not self._awake:
            self._awake = True
            self._ready.set()

    def close(self) -> None:
        """Write what is left and end the thread; waits a bounded time."""
        self._closing.set()
        self._ready.set()
        self._thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        while True:
            self._ready.wait()
            self._ready.clear()
            closing = self._closing.wait(LINGER)
            self._awake = False
            self._drain()
            if closing:
                return

    def _drain(self) -> None:
        lines = self._lines
        while lines:
            batch = [lines.popleft() for _ in range(min(WRITE_LINES, len(lines)))]
            if self._dropped != self._reported:
                lost = self._dropped - self._reported
                self._reported += lost
                batch.append(f'{{"level":"warning","event":"log_lines_dropped","count":{lost}}}')
            batch.append("")
            if not self._write("\n".join(batch).encode("utf-8", "backslashreplace")):
                return

    def _write(self, data: bytes) -> bool:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except OSError:  # the reader of the pipe is gone, or the disk is full: nobody to tell
                self._dropped += 1
                return False
        return True
