"""A real `gatepost serve` as a process that can be killed and started again on the same file and port.

Used by `bench.crash` and `bench.soak`.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

START_LIMIT: Final = 30.0
"""Seconds until `/readyz` must answer 200."""
STOP_LIMIT: Final = 60.0
"""Seconds a drain may take."""


class ServeProcess:
    """`with ServeProcess(database, directory) as service: service.start()`; its log goes to a file in `directory`."""

    def __init__(self, database: Path, directory: Path, **settings: str) -> None:
        """`settings`: more of the environment, `GATEPOST_…`."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self._log = directory / "serve.log"
        self._directory = directory
        self._environment = {
            **os.environ,
            "GATEPOST_DATABASE": f"sqlite:///{database}",
            "GATEPOST_LISTEN_PORT": str(self.port),
            "GATEPOST_EGRESS_SCHEMES": "https,http",
            "GATEPOST_EGRESS_ALLOW_CIDRS": "127.0.0.0/8",
            "GATEPOST_LOG_ATTEMPTS": "failures",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()

    @property
    def url(self) -> str:
        """Where the API listens, the same after each start."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Start, wait until ready, and return the seconds it took."""
        began = time.perf_counter()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(Path(sys.executable).with_name("gatepost")), "serve"],
                cwd=self._directory,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        while not self._is_ready():
            if self._process.poll() is not None or time.perf_counter() - began > START_LIMIT:
                raise RuntimeError(f"gatepost serve did not start: {self._log.read_text()[-2_000:]}")
            time.sleep(0.05)
        return time.perf_counter() - began

    def kill(self) -> None:
        """SIGKILL: no drain, no last commit."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def stop(self) -> int:
        """SIGTERM: drain. Returns the exit code."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(STOP_LIMIT)
        self._process = None
        return code

    def create_endpoints(self, urls: Sequence[str]) -> None:
        """One endpoint per URL, each with an event type of its own: `crash.0`, `crash.1` and so on."""
        for number, url in enumerate(urls):
            self.ask("POST", "/v1/endpoints", {"url": url, "event_types": [f"crash.{number}"]})

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One call of the API; raises when it is not answered 2xx."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"content-type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
            if not 200 <= response.status < 300:
                raise RuntimeError(f"{method} {path}: {response.status} {answer!r}")
            return json.loads(answer) if answer else None
        finally:
            connection.close()

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()
