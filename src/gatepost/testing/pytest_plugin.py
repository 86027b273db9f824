"""pytest fixtures for users' own tests: `gatepost_receiver`, `published` and `hostile`. The only file that imports pytest.

    # conftest.py
    pytest_plugins = ["gatepost.testing.pytest_plugin"]

It is not loaded by itself: the names are short, and a suite that does not ask for them must not find them taken.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from gatepost.testing.hostile import Behaviour, HostileServer
from gatepost.testing.loop_thread import LoopThread
from gatepost.testing.published import RecordingPublisher
from gatepost.testing.scripted_receiver import ScriptedReceiver

__all__ = ["HostileFactory", "gatepost_receiver", "hostile", "published"]


class HostileFactory(Protocol):
    """What the fixture `hostile` is: call it with the name of a behaviour, as in `gatepost hostile`."""

    def __call__(
        self, behaviour: str | Behaviour, *, seconds: float | None = None, tls_context: ssl.SSLContext | None = None
    ) -> HostileServer:
        """A listening server: `.url`, `.requests`, `.connections`. It ends with the test."""
        ...


@pytest.fixture
def gatepost_receiver() -> Iterator[ScriptedReceiver]:
    """A receiver on loopback that records, verifies and answers by script: `.url`, `.secret`, `.script(503, 204)`, `.wait_for(2)`."""
    with ScriptedReceiver() as receiver:
        yield receiver


@pytest.fixture
def published() -> RecordingPublisher:
    """A `Publisher` that remembers instead of storing: pass it to your code, then look at `.events`."""
    return RecordingPublisher()


@pytest.fixture
def hostile() -> Iterator[HostileFactory]:
    """Endpoints that misbehave by name: `hostile("silence").url`."""
    with LoopThread() as thread, ExitStack() as stack:

        def start(
            behaviour: str | Behaviour, *, seconds: float | None = None, tls_context: ssl.SSLContext | None = None
        ) -> HostileServer:
            server = HostileServer(behaviour, seconds=seconds, tls_context=tls_context)
            thread.call(server.__aenter__())
            stack.callback(_end, thread.call, server)
            return server

        yield start


def _end(call: Callable[..., object], server: HostileServer) -> None:
    call(server.__aexit__(None, None, None))
