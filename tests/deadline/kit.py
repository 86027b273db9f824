"""Servers in a thread of their own, for clients that block; and TLS contexts that trust a test authority."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

import trustme

from gatepost.testing.hostile import Behaviour, HostileServer, Peer, answering

LATE: Final = 0.25
"""Seconds by which a limit may fire late on a busy machine; the drips below would last ten times as long."""


@contextmanager
def hostile(behaviour: str | Behaviour, *, seconds: float | None = None, tls: bool = False) -> Iterator[HostileServer]:
    """A hostile server on a loop in its own thread."""
    ready = threading.Event()
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    context = server_context() if tls else None
    server = HostileServer(behaviour, seconds=seconds, tls_context=context)
    failed: list[BaseException] = []

    async def serve() -> None:
        done = asyncio.Event()
        async with server:
            stop.append((asyncio.get_running_loop(), done))
            ready.set()
            await done.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(10)
        if failed:
            raise failed[0]
        yield server
    finally:
        if stop:
            loop, done = stop[0]
            loop.call_soon_threadsafe(done.set)
        thread.join(10)
    if failed:
        raise failed[0]


@cache
def _authority() -> trustme.CA:
    return trustme.CA()


@cache
def server_context() -> ssl.SSLContext:
    """A context with a certificate for 127.0.0.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _authority().issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return context


@cache
def client_context() -> ssl.SSLContext:
    """A context that trusts it."""
    context = ssl.create_default_context()
    _authority().configure_trust(context)
    return context


def authority_pem() -> bytes:
    """The authority's certificate."""
    return _authority().cert_pem.bytes()


@contextmanager
def takes(least: float, most: float) -> Iterator[None]:
    """The block takes this many seconds."""
    started = time.monotonic()
    yield
    elapsed = time.monotonic() - started
    assert least <= elapsed <= most, f"{elapsed:.3f} s is not in {least}..{most}"


async def _refuse(peer: Peer, seconds: float) -> None:
    await peer.read_request()
    await peer.send(b"HTTP/1.1 504 Gateway Timeout\r\nDeadline-Exceeded: admission\r\nContent-Length: 2\r\n\r\n{}")
    await peer.drain()


REFUSING: Final = Behaviour("refusing", "answers 504 as a server whose budget was too small does", "", _refuse)
OK: Final = "ok"
__all__ = [
    "LATE",
    "OK",
    "REFUSING",
    "answering",
    "authority_pem",
    "client_context",
    "hostile",
    "server_context",
    "takes",
]
