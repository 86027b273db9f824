"""`gatepost serve` as a process of its own, as operators run it: started, asked over HTTP, ended by signals."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

PATIENCE = 30.0
"""Seconds a step may take on a busy machine."""


class Served:
    """A running process and what it logged."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.url = ""
        self.database = ""
        self.lines: list[dict[str, Any]] = []
        self.other: list[str] = []
        self._arrivals: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        assert process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(process.stderr,), daemon=True)
        self._reader.start()

    def wait_for(self, event: str) -> dict[str, Any]:
        """The next log line of this kind."""
        while True:
            line = self._arrivals.get(timeout=PATIENCE)
            assert line is not None, f"the process ended before {event!r}: {self.lines[-3:]} {self.other}"
            if line["event"] == event:
                return line

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code; everything logged is in `lines` then."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for raw in stream:
                try:
                    line = json.loads(raw)
                except ValueError:
                    self.other.append(raw.decode("utf-8", "replace").rstrip())
                    continue
                self.lines.append(line)
                self._arrivals.put(line)
        self._arrivals.put(None)


def environment(directory: Path, **settings: str) -> dict[str, str]:
    """The environment of a test service: nothing of the machine's own settings."""
    ours = {name: value for name, value in os.environ.items() if not name.upper().startswith("GATEPOST_")}
    return {
        **ours,
        "GATEPOST_DATABASE": f"sqlite:///{directory / 'gatepost.db'}",
        "GATEPOST_LISTEN_PORT": "0",
        "GATEPOST_EGRESS_SCHEMES": "https,http",
        "GATEPOST_EGRESS_ALLOW_CIDRS": "127.0.0.0/8",
        "GATEPOST_POLICY_CONNECT_TIMEOUT": "0.6",
        "GATEPOST_POLICY_READ_TIMEOUT": "2.0",
        # The machine is shared: a late loop is no reason to refuse what a test publishes.
        "GATEPOST_INGEST_MAX_LOOP_LAG": "60.0",
        **settings,
    }


@contextmanager
def served(directory: Path, **settings: str) -> Iterator[Served]:
    """The process, accepting requests; killed at the end if it still runs."""
    environ = environment(directory, **settings)
    process = subprocess.Popen(
        [sys.executable, "-m", "gatepost.service.cli", "serve"],
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    service = Served(process)
    service.database = environ["GATEPOST_DATABASE"]
    try:
        service.url = str(service.wait_for("listening")["url"])
        yield service
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        service.wait()
