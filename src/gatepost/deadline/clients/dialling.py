"""Connecting a blocking socket within a total: look-up, every address and the handshake share one limit.

`socket.create_connection` gives its timeout to each address anew and looks names up without any; here the look-up runs in a
thread that may be left behind, and the addresses share what is left. Used by the blocking clients beside it.
"""

from __future__ import annotations

import contextvars
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from gatepost.deadline.clients.call import Call

LOOKUPS_MAX: Final = 32
"""Look-ups left behind at the same time, as many as a pool of the loop's size; beyond them a look-up waits its turn."""
CONNECT_MIN: Final = 0.001
"""Seconds below which trying one more address makes no sense."""

Address = tuple[Any, ...]
Info = tuple[socket.AddressFamily, socket.SocketKind, int, str, Address]
Lookup = Callable[[str, int], list[Info]]
_lookups = threading.BoundedSemaphore(LOOKUPS_MAX)


def system_lookup(host: str, port: int) -> list[Info]:
    """The operating system's answer; blocks as long as that likes."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)  # type: ignore[return-value]  # SOCK_STREAM: no raw form


def dial(
    call: Call,
    host: str,
    port: int,
    *,
    seconds: float | None = None,
    source_address: tuple[str, int] | None = None,
    options: Iterable[tuple[Any, ...]] | None = None,
    lookup: Lookup = system_lookup,
) -> socket.socket:
    """A connected socket, in at most `seconds` (default: the tier's connect limit) and what `call` has left.

    Raises `TimeoutError` when `seconds` passed, `CallExceeded` when the call's time did, `OSError` when every address failed.
    """
    limit = call.tier.connect if seconds is None else min(seconds, call.tier.connect)
    clock = call.deadline.clock
    until = clock.monotonic() + call.seconds(limit, "connect")
    last: OSError | None = None
    for family, kind, protocol, _name, address in _look_up(host, port, until - clock.monotonic(), call, lookup):
        left = until - clock.monotonic()
        if left < CONNECT_MIN:
            break
        sock = socket.socket(family, kind, protocol)
        try:
            for option in options or ():
                sock.setsockopt(*option)
            sock.settimeout(left)
            if source_address is not None:
                sock.bind(source_address)
            sock.connect(address)
        except OSError as error:
            sock.close()
            last = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    if call.expired:
        raise call.exceeded("connect") from last
    if last is None or clock.monotonic() >= until - CONNECT_MIN:
        raise TimeoutError(f"no connection to {host}:{port} in {limit:g} s") from last
    raise last


def _look_up(host: str, port: int, seconds: float, call: Call, lookup: Lookup) -> list[Info]:
    try:
        # An address needs no asking, hence no thread.
        return socket.getaddrinfo(  # type: ignore[return-value]  # as above
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        pass
    clock = call.deadline.clock
    until = clock.monotonic() + seconds
    answer: list[list[Info] | BaseException] = []
    done = threading.Event()

    def ask() -> None:
        try:
            answer.append(lookup(host, port))
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that asked
            answer.append(error)
        finally:
            _lookups.release()
            done.set()

    found = _lookups.acquire(timeout=seconds)
    if found:
        # A daemon: a look-up that never ends must not keep the process alive.
        context = contextvars.Context()
        try:
            threading.Thread(target=context.run, args=(ask,), name=f"lookup {host}", daemon=True).start()
        except RuntimeError:  # no thread to be had
            _lookups.release()
            raise
        found = done.wait(max(0.0, until - clock.monotonic()))
    if not found:
        if call.expired:
            raise call.exceeded("name look-up")
        raise TimeoutError(f"{host} was not looked up in {seconds:.3g} s")
    result = answer[0]
    if isinstance(result, BaseException):
        raise result
    return result
