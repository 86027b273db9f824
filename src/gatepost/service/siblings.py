"""The channel between the processes of one `serve --processes N` or `worker --processes N`: each may ask all others a question.

A question is a name and a JSON argument, an answer is JSON: figures for `/metrics`, looks for the console and the doctor. A
sibling that hangs, was killed or does not know the question is named as missing after 250 ms, and never holds up who asks.
Set up by `service.app` in a directory that `service.processes` makes; it decides nothing and keeps nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

ASK_TIMEOUT: Final = 0.25
"""Seconds for all answers together: a scrape or a page waits no longer for a process that hangs."""
QUESTION_BYTES_MAX: Final = 65_536
"""A name and an argument."""
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Eight times the largest `/metrics`; more is a mistake of ours and counts as no answer."""
PATH_BYTES_MAX: Final = 100
"""Of the directory with a socket's name: the kernel takes 107 (unix(7))."""
PREFIX: Final = "gatepost-"
LINGER: Final = 1.0
"""Seconds that an answer in progress gets when the process ends."""

Handler = Callable[[Any], Awaitable[Any]]
"""Takes the argument and returns what can be written as JSON, or `bytes` that are JSON already. Runs on the event loop."""

_log = logging.getLogger("gatepost.siblings")


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one process sits among its siblings."""

    directory: Path
    """Private to this user; the parent makes it and removes it."""
    index: int
    count: int
    """Processes that the parent keeps running, this one included."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What the others said."""

    answers: Mapping[int, Any] = field(default_factory=dict)
    """By process; without the one that asked."""
    missing: tuple[int, ...] = ()
    """Those that did not answer in time: they hang, are being replaced, were killed, or do not know the question."""


class Siblings:
    """One process' end of the channel: `async with` it while the service runs. Without a seat there is nobody to ask.

    `timeout`: seconds for all answers of one question together.
    """

    def __init__(self, seat: Seat | None = None, *, timeout: float = ASK_TIMEOUT) -> None:
        self.seat: Final = seat
        self._timeout = timeout
        self._handlers: dict[str, Handler] = {}
        self._answering: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None
        self._parent = 0

    @property
    def index(self) -> int:
        """Which process this is; 0: the only one."""
        return 0 if self.seat is None else self.seat.index

    @property
    def count(self) -> int:
        """Processes that share the channel."""
        return 1 if self.seat is None else self.seat.count

    def answer(self, name: str, handler: Handler) -> None:
        """Answer questions of this name by `handler`; what it raises is logged, and the asker finds us missing."""
        self._handlers[name] = handler

    async def ask(self, name: str, argument: Any = None, *, timeout: float | None = None) -> Heard:
        """Ask all siblings at once. Returns within the timeout (`timeout` seconds for a question that takes longer to answer) and
        raises nothing that a sibling causes."""
        if self.seat is None or self.seat.count == 1:
            return Heard()
        others = [index for index in range(self.seat.count) if index != self.seat.index]
        patience = self._timeout if timeout is None else timeout
        question = json.dumps([name, argument, patience]).encode() + b"\n"
        loop = asyncio.get_running_loop()
        asking = [loop.create_task(self._ask(index, question), name=f"ask {index}") for index in others]
        try:
            await asyncio.wait(asking, timeout=patience)
        finally:
            for one in asking:
                one.cancel()
            said = await asyncio.gather(*asking, return_exceptions=True)
        answers = {index: answer for index, answer in zip(others, said, strict=True) if not _failed(answer)}
        return Heard(answers, tuple(index for index in others if index not in answers))

    async def __aenter__(self) -> Self:
        if self.seat is not None:
            self._parent = os.getppid()
            path = _socket_of(self.seat, self.seat.index)
            path.unlink(missing_ok=True)  # our predecessor's, who was killed
            self._server = await asyncio.start_unix_server(self._serve, path, limit=QUESTION_BYTES_MAX)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.seat is None or self._server is None:
            return
        self._server.close()
        _socket_of(self.seat, self.seat.index).unlink(missing_ok=True)
        if self._answering:
            _, late = await asyncio.wait(self._answering, timeout=LINGER)
            for one in late:
                one.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if os.getppid() != self._parent and not any(self.seat.directory.glob("*.sock")):
            remove_directory(self.seat.directory)  # the parent was killed, and we are the last

    async def _ask(self, index: int, question: bytes) -> Any:
        assert self.seat is not None, "only called with siblings"
        reader, writer = await asyncio.open_unix_connection(_socket_of(self.seat, index))
        try:
            writer.write(question)
            answer = bytearray()
            while piece := await reader.read(262_144):
                answer += piece
                if len(answer) > ANSWER_BYTES_MAX:
                    raise ValueError(f"more than {ANSWER_BYTES_MAX} bytes")
        finally:
            writer.close()
        return await asyncio.to_thread(_read, bytes(answer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "streams run their handler in a task"
        self._answering.add(task)
        try:
            async with asyncio.timeout(LINGER) as limit:  # who asks is gone by then
                name, argument, patience = json.loads(await reader.readline())
                limit.reschedule(asyncio.get_running_loop().time() + LINGER + patience)
                handler = self._handlers.get(name)
                if handler is not None:
                    answer = await handler(argument)
                    writer.write(answer if isinstance(answer, bytes) else await asyncio.to_thread(_written, answer))
                    await writer.drain()
        except (OSError, TimeoutError):
            pass  # it waits no longer
        except Exception:  # noqa: BLE001 - a question that fails must not end the process it is asked of
            _log.exception("a question of another process could not be answered")
        finally:
            self._answering.discard(task)
            writer.close()


def make_directory() -> Path:
    """A new private directory (0700) for the sockets of one parent's children. Remove it with `remove_directory`."""
    made = Path(tempfile.mkdtemp(prefix=PREFIX))
    if len(bytes(made)) > PATH_BYTES_MAX - len(b"/0000.sock"):
        made.rmdir()
        made = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
    return made


def remove_directory(directory: Path) -> None:
    """Remove it with whatever killed children left in it."""
    shutil.rmtree(directory, ignore_errors=True)


def _socket_of(seat: Seat, index: int) -> Path:
    return seat.directory / f"{index}.sock"


def _written(answer: Any) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()


def _read(answer: bytes) -> Any:
    return json.loads(answer)  # nothing at all is no JSON: it did not know the question, or was killed


def _failed(answer: object) -> bool:
    if isinstance(answer, Exception | asyncio.CancelledError):
        if not isinstance(answer, OSError | ValueError | asyncio.CancelledError):
            raise answer
        return True
    return False
