"""`gatepost serve --processes N`: a parent that owns the listening socket, and N children that accept from it and deliver.

The parent starts children, starts one anew that died (after a while, and saying so), drains all on SIGTERM, and on SIGHUP
replaces them one after the other: the next only when the new one is ready and holds its share. It opens no store and answers no
request, so nothing that ends a child can end it; when it is killed itself, its children drain.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.errors import ConfigurationError, GatepostError
from gatepost.service.app import (
    BACKLOG,
    EXIT_CLEAN,
    EXIT_CONFIGURATION,
    EXIT_FAILED,
    REQUESTS_GRACE,
    log_limits,
    loop_factory,
    open_listener,
)
from gatepost.service.config import Settings
from gatepost.service.logs import Logs
from gatepost.service.notify import READY, STOPPING, notify
from gatepost.service.siblings import make_directory, remove_directory

RESTART_FIRST: Final = 0.5
RESTART_MAX: Final = 30.0
"""Seconds before a child that died is started again, doubling: what kills it at once must not become a busy loop."""
HEALTHY_AFTER: Final = 60.0
"""Seconds a child must have lived for its next death to count as the first."""
READY_LIMIT: Final = 60.0
"""Seconds in which a new child must hold its share; then a rolling restart stops where it is."""
DRAIN_SLACK: Final = 20.0
"""Seconds beyond the grace that a child may take to store its last results and close; then it is killed."""


@dataclass(slots=True)
class _Slot:
    """One of the N places, whoever fills it now."""

    index: int
    process: asyncio.subprocess.Process | None = None
    node: str | None = None
    balanced: asyncio.Event = field(default_factory=asyncio.Event)
    ending: bool = False
    """It was told to end; saying so twice would mean to leave at once."""
    replacing: bool = False
    """Its end is wanted, and its successor comes at once."""
    failures: int = 0
    ever_ready: bool = False


def restart_delay(failures: int) -> float:
    """Seconds before the next start after so many deaths in a row."""
    return min(RESTART_MAX, RESTART_FIRST * 2.0 ** max(0, failures - 1))


def run_processes(settings: Settings, arguments: Sequence[str], environ: Mapping[str, str], *, public: bool) -> int:
    """Run until SIGTERM or SIGINT and return the exit code: 0 drained, 1 a child failed to drain, 2 configuration.

    `arguments` make a child read the same configuration as we did; it is read anew for each, so that a rolling restart takes
    over what changed. A second signal ends everything at once.
    """
    logs = Logs(settings.log.format, level=settings.log.level)
    logs.take_over()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(Parent(settings, arguments, environ, logs, public=public).run())
    except ConfigurationError as error:
        logs.entry("error", "configuration", str(error))
        return EXIT_CONFIGURATION
    except (GatepostError, OSError) as error:
        logs.entry("error", "failed", str(error))
        return EXIT_FAILED
    finally:
        logs.close()


class Parent:
    """Runs the children of one `serve` or `worker`. `run` once."""

    def __init__(
        self,
        settings: Settings,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        logs: Logs,
        *,
        public: bool,
        patience: float = REQUESTS_GRACE + DRAIN_SLACK,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._settings = settings
        self._arguments = arguments
        self.environ = dict(environ)
        """What children are started with."""
        self._patience = settings.grace + patience
        """Seconds until a child that was told to end is killed."""
        self._logs = logs
        self._public = public
        self._clock = clock
        self._listener: socket.socket | None = None
        self._siblings: Path | None = None
        """Where children find each other, while we run."""
        self._slots = [_Slot(index) for index in range(settings.fleet.processes)]
        self._stop = asyncio.Event()
        self._replace = asyncio.Event()
        self._code = EXIT_CLEAN

    async def run(self) -> int:
        """Start, keep, drain."""
        log_limits(self._settings, self._logs)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self.replace)
        if self._public:
            self._listener = open_listener(self._settings.listen.host, self._settings.listen.port)
            # Ours for as long as we live: a connection waits in it while no child happens to accept.
            self._listener.listen(BACKLOG)
        self._siblings = make_directory()
        try:
            keepers = [loop.create_task(self._keep(slot), name=f"child {slot.index}") for slot in self._slots]
            replacing = loop.create_task(self._replace_on_demand(), name="rolling restart")
            await self._stop.wait()
            replacing.cancel()
            notify(STOPPING, self.environ)
            self._logs.entry("info", "draining", "all processes drain", processes=len(self._slots))
            self._signal_all(signal.SIGTERM)
            done, late = await asyncio.wait(keepers, timeout=self._patience)
            if late:
                self._logs.entry("error", "killed", f"{len(late)} processes did not drain in time and are killed")
                self._code = EXIT_FAILED
                self._signal_all(signal.SIGKILL)
                await asyncio.wait(late)
            await asyncio.gather(replacing, return_exceptions=True)
            for keeper in done:
                keeper.result()  # a bug of ours must not end as a clean exit
        finally:
            remove_directory(self._siblings)
            if self._listener is not None:
                self._listener.close()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)
        self._logs.entry("info", "stopped", "all processes have ended")
        return self._code

    def stop(self) -> None:
        """Drain all, and let `run` return."""
        self._stop.set()

    def replace(self) -> None:
        """Replace all children, one after the other."""
        self._replace.set()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            self._logs.entry("warning", "stopped", f"second {number.name}: leaving without settling")
            self._signal_all(signal.SIGKILL)
            if self._siblings is not None:
                remove_directory(self._siblings)
            self._logs.close()
            os._exit(128 + number)
        self._stop.set()

    def _signal_all(self, number: signal.Signals) -> None:
        for slot in self._slots:
            self._signal(slot, number)

    @staticmethod
    def _signal(slot: _Slot, number: signal.Signals) -> None:
        if slot.process is None or slot.process.returncode is not None or (slot.ending and number == signal.SIGTERM):
            return
        slot.ending = True
        slot.process.send_signal(number)

    # ------------------------------------------------------------------------------------------------ children

    async def _keep(self, slot: _Slot) -> None:
        """Keep one place filled until the end."""
        while not self._stop.is_set():
            began = self._clock.monotonic()
            slot.replacing = False
            try:
                code = await self._live(slot)
            except OSError as error:  # no memory, too many processes or files: all of them pass
                self._logs.entry("error", "not_started", f"process {slot.index} cannot be started: {error}")
                code = EXIT_FAILED
            if self._stop.is_set():
                # A child that a SIGTERM can kill does not listen to signals yet, and holds nothing.
                if code not in (EXIT_CLEAN, -signal.SIGTERM):
                    self._code = EXIT_FAILED
                return
            if slot.replacing:
                slot.failures = 0
                continue
            if code == EXIT_CONFIGURATION and not any(other.ever_ready for other in self._slots):
                # What is refused at the very start stays refused.
                self._code = EXIT_CONFIGURATION
                self._stop.set()
                return
            slot.failures = 1 if self._clock.monotonic() - began >= HEALTHY_AFTER else slot.failures + 1
            delay = restart_delay(slot.failures)
            self._logs.entry(
                "error",
                "child_died",
                f"process {slot.index} ended by {_cause(code)}; it is started again in {delay:g} s",
                process=slot.index,
                code=code,
                failures=slot.failures,
            )
            try:
                async with asyncio.timeout(delay):
                    await self._stop.wait()
            except TimeoutError:
                continue

    async def _live(self, slot: _Slot) -> int:
        """One child from start to end; its exit code, negative for a signal."""
        slot.balanced.clear()
        slot.ending = False
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                passed = [theirs.fileno()]
                command = [*self._arguments, "--child", str(slot.index), "--parent-fd", str(theirs.fileno())]
                if self._listener is not None:
                    passed.append(self._listener.fileno())
                    command += ["--listener-fd", str(self._listener.fileno())]
                if self._siblings is not None:
                    command += ["--siblings", str(self._siblings), "--sibling-count", str(len(self._slots))]
                slot.process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "gatepost.service.cli",
                    *command,
                    env=self.environ,
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=passed,
                    # Ctrl-C at the terminal is for us to pass on: a child that heard it twice would leave at once.
                    start_new_session=True,
                )
            self._logs.entry("info", "child_started", f"process {slot.index}", process=slot.index, pid=slot.process.pid)
            if self._stop.is_set():
                self._signal(slot, signal.SIGTERM)
            listening = asyncio.get_running_loop().create_task(self._listen(slot, ours), name=f"line {slot.index}")
            try:
                return await slot.process.wait()
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, slot: _Slot, line: socket.socket) -> None:
        """Hear what the child says of itself."""
        line.setblocking(False)
        buffer = b""
        while data := await asyncio.get_running_loop().sock_recv(line, 4_096):
            *messages, buffer = (buffer + data).split(b"\n")
            for message in messages:
                self._hear(slot, json.loads(message))

    def _hear(self, slot: _Slot, message: Mapping[str, Any]) -> None:
        match message["event"]:
            case "listening":
                slot.node = message["node"]
                if not any(other.ever_ready for other in self._slots):
                    notify(READY, self.environ)
                slot.ever_ready = True
            case "balanced":
                slot.balanced.set()
                self._logs.entry(
                    "info",
                    "child_ready",
                    f"process {slot.index} holds its share of {message['parts']} parts",
                    process=slot.index,
                    node=slot.node,
                    parts=message["parts"],
                )

    # ---------------------------------------------------------------------------------------- rolling restart

    async def _replace_on_demand(self) -> None:
        while True:
            await self._replace.wait()
            self._replace.clear()
            await self._replace_all()

    async def _replace_all(self) -> None:
        """One after the other: drain, start its successor, wait until that holds its share."""
        self._logs.entry(
            "info", "rolling_restart", "processes are replaced one after the other", processes=len(self._slots)
        )
        for slot in self._slots:
            if slot.process is None or slot.process.returncode is not None:
                continue  # it died, and its successor is on its way
            slot.balanced.clear()
            slot.replacing = True
            await self._end(slot, slot.process)
            try:
                async with asyncio.timeout(READY_LIMIT):
                    await slot.balanced.wait()
            except TimeoutError:
                self._logs.entry(
                    "error",
                    "rolling_restart_stopped",
                    f"process {slot.index} was not ready within {READY_LIMIT:g} s; the others are left as they are",
                    process=slot.index,
                )
                return
        self._logs.entry("info", "rolling_restart_done", "all processes were replaced")

    async def _end(self, slot: _Slot, process: asyncio.subprocess.Process) -> None:
        """Let a child drain; kill one that does not, since nobody could take its place."""
        self._signal(slot, signal.SIGTERM)
        try:
            async with asyncio.timeout(self._patience):
                await process.wait()
        except TimeoutError:
            self._logs.entry(
                "error",
                "killed",
                f"process {slot.index} did not drain in {self._patience:g} s and is killed",
                process=slot.index,
            )
            if process.returncode is None:
                process.kill()


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
