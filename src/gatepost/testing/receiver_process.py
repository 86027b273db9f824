"""Runs the test receiver as a process of its own, so that its CPU time and its garbage are not the sender's.

It starts the process, reads its ready line and asks for its reports over HTTP with blocking calls; it serves nothing
itself. Used by benchmarks, crash tests and the demo.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

REPORT_TIMEOUT: Final = 30.0
"""Seconds for one report: a ledger of a million ids takes the receiver a second or two to print."""
STOP_TIMEOUT: Final = 10.0
"""Seconds a receiver may take to close its connections before it is killed."""


class ReceiverProcess:
    """`with ReceiverProcess("--ports", "400") as receiver:`; the arguments are those of `python -m gatepost.testing.receiver`.

    The process ends with the block, or when this process dies.
    """

    def __init__(self, *arguments: str, command: Sequence[str] | None = None) -> None:
        module = [sys.executable, "-m", "gatepost.testing.receiver"]
        self._command = [*(command or module), "--until-eof", *arguments]
        self._tls = "--tls" in arguments
        self._process: subprocess.Popen[str] | None = None
        self.ports: tuple[int, ...] = ()
        self.url = ""
        """`scheme://host:port` of the first port."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and module
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.stop()
            raise RuntimeError(f"the receiver did not start: {' '.join(self._command)}")
        ready = json.loads(line)
        self.ports = tuple(ready["ports"])
        self.url = str(ready["url"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def urls(self) -> tuple[str, ...]:
        """`scheme://host:port` of every port."""
        base = self.url.rpartition(":")[0]
        return tuple(f"{base}:{port}" for port in self.ports)

    @property
    def pid(self) -> int:
        """Process id, for reading its CPU time."""
        assert self._process is not None, "the receiver is not running"
        return self._process.pid

    def stats(self) -> dict[str, int]:
        """The totals: requests, unique_ids, duplicates, connections, bad_signatures and so on. Plain HTTP only."""
        report: dict[str, int] = self._report("/__stats")
        return report

    def ledger(self) -> dict[str, int]:
        """How often each `webhook-id` arrived."""
        report: dict[str, int] = self._report("/__ledger")
        return report

    def stamps(self) -> dict[str, int]:
        """First arrival of each `webhook-id`, monotonic ns (needs `--stamps`)."""
        report: dict[str, int] = self._report("/__stamps")
        return report

    def paths(self) -> dict[str, int]:
        """How many requests each path got."""
        report: dict[str, int] = self._report("/__paths")
        return report

    def stop(self) -> None:
        """End the process; twice is once."""
        process = self._process
        if process is None:
            return
        self._process = None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _report(self, path: str) -> Any:
        if self._tls:
            raise RuntimeError(
                "reports are asked over plain HTTP: start a receiver without --tls, or read its --stats line"
            )
        host = self.url.partition("://")[2].rpartition(":")[0].strip("[]")
        connection = http.client.HTTPConnection(host, self.ports[0], timeout=REPORT_TIMEOUT)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()
