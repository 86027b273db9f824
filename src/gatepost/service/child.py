"""One process' place in a fleet: which one it is, what it serves, and the line to the parent that started it.

A child tells its parent when it holds its share of the parts, and drains when the parent is gone, however that died. It decides
nothing about others; `service.processes` does. Used by `service.app`.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from gatepost.dispatch.dispatcher import Dispatcher
from gatepost.service.siblings import Seat

BALANCE_POLL: Final = 0.1
"""Seconds between looks whether the share is reached."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which process of a machine this is. The default: the only one."""

    index: int = 0
    """Counts the processes of one parent."""
    public: bool = True
    """It serves the API; False: a worker."""
    listener: int | None = None
    """Descriptor of the API's listening socket, which several processes share; None: it opens its own."""
    parent: int | None = None
    """Descriptor of the line to the parent."""
    seat: Seat | None = None
    """Among the processes of one parent; None: there are no others to ask."""

    @property
    def needs_pages(self) -> bool:
        """It has no address of its own but for its own pages."""
        return not self.public or self.listener is not None

    def name(self, machine: str | None) -> str:
        """What it is called before a random suffix: the machine, and its number where there are several."""
        host = machine or socket.gethostname().partition(".")[0] or "node"
        return host if self.parent is None else f"{host}.{self.index}"


class ParentLine:
    """The line to the parent, if there is one: `async with` it around the time the service runs. `on_gone`: the parent ended."""

    def __init__(self, descriptor: int | None, on_gone: Callable[[], None]) -> None:
        self._socket = None if descriptor is None else socket.socket(fileno=descriptor)
        self._on_gone = on_gone
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._socket is not None:
            self._socket.setblocking(False)
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._read)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()

    def watch(self, dispatcher: Dispatcher) -> None:
        """Tell the parent that requests are accepted, and later that the share is reached."""
        if self._socket is not None:
            self._watching = asyncio.get_running_loop().create_task(self._watch(dispatcher), name="balance")

    async def _watch(self, dispatcher: Dispatcher) -> None:
        statistics = dispatcher.statistics()
        self._say({"event": "listening", "node": statistics.node, "address": dispatcher.settings.address})
        while not statistics.balanced:
            await asyncio.sleep(BALANCE_POLL)
            statistics = dispatcher.statistics()
        self._say({"event": "balanced", "parts": statistics.parts})

    def _say(self, message: dict[str, object]) -> None:
        assert self._socket is not None, "only called with a parent"
        try:
            self._socket.send(json.dumps(message).encode() + b"\n")
        except OSError:
            return  # it is gone, and the reader hears of it

    def _read(self) -> None:
        assert self._socket is not None, "only called with a parent"
        try:
            data = self._socket.recv(4_096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._on_gone()
