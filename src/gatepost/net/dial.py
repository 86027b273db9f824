"""Connecting to one of several checked addresses: Happy Eyeballs (RFC 8305) with numeric addresses only.

It opens sockets and reports one of them, or why none came; limits are its caller's (`net.flight`), which calls `cancel`.
Addresses were checked before they came here, and what is connected is compared with what was asked for.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Final

from gatepost.net.faults import connect_reason
from gatepost.wire.reasons import Reason

STAGGER: Final = 0.25
"""Seconds before the next address is tried beside the one still pending (RFC 8305 section 5)."""
ADDRESSES_MAX: Final = 4
"""Addresses tried in one dial; more could not be told apart within a connect limit of seconds."""
USER_TIMEOUT_MS: Final = 30_000
"""TCP_USER_TIMEOUT: sent data unacknowledged for that long ends the connection, so that a vanished peer is noticed."""

_IN_PROGRESS: Final = frozenset({errno.EINPROGRESS, errno.EINTR, errno.EALREADY})

Connected = Callable[[socket.socket, str], None]
Failed = Callable[[Reason], None]


def interleave(addresses: Sequence[str], first: socket.AddressFamily | None) -> list[str]:
    """Families in turn, in the resolver's order within each (RFC 8305 section 4); `first` names the family to begin with."""
    v6 = [address for address in addresses if ":" in address]
    v4 = [address for address in addresses if ":" not in address]
    if not v6 or not v4:
        return list(addresses)
    leads = v6 if ":" in addresses[0] else v4
    if first is not None:
        leads = v6 if first == socket.AF_INET6 else v4
    follows = v4 if leads is v6 else v6
    ordered: list[str] = []
    for place in range(max(len(leads), len(follows))):
        ordered += leads[place : place + 1] + follows[place : place + 1]
    return ordered


class Dial:
    """One dial: calls `connected(socket, address)` or `failed(reason)` once, never from inside `__init__`.

    After `cancel` neither is called and no socket is left open.
    """

    __slots__ = ("_connected", "_failed", "_left", "_loop", "_pending", "_port", "_reason", "_timer", "tried")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        addresses: Sequence[str],
        port: int,
        connected: Connected,
        failed: Failed,
    ) -> None:
        self._loop = loop
        self._port = port
        self._connected: Connected | None = connected
        self._failed = failed
        self._left = list(addresses[:ADDRESSES_MAX])
        self._pending: dict[socket.socket, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._reason = Reason.CONNECT_FAILED
        self.tried: str | None = None
        """The address tried last."""

    def start(self) -> None:
        """Try the first address; more follow by the stagger, or at once when one fails."""
        self._timer = None
        while self._connected is not None:
            if not self._left:
                if not self._pending:
                    self._fail()
                return
            if self._try(self._left.pop(0)):
                if self._left and self._connected is not None:
                    self._timer = self._loop.call_later(STAGGER, self.start)
                return

    def cancel(self) -> None:
        """Close everything; repeating it does nothing."""
        self._connected = None
        self._left.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for sock in self._pending:
            self._loop.remove_writer(sock.fileno())
            sock.close()
        self._pending.clear()

    def _try(self, address: str) -> bool:
        """Begin to connect; False when that failed at once."""
        self.tried = address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._reason = connect_reason(error.errno)
            return False
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
            number = sock.connect_ex((address, self._port))
        except OSError as error:
            number = error.errno or 0
            if number == 0:  # an address the system cannot read at all
                number = -1
        if number == 0:
            return self._win(sock, address)
        if number not in _IN_PROGRESS:
            self._reason = connect_reason(number)
            sock.close()
            return False
        self._pending[sock] = address
        self._loop.add_writer(sock.fileno(), self._on_writable, sock)
        return True

    def _on_writable(self, sock: socket.socket) -> None:
        address = self._pending.pop(sock)
        self._loop.remove_writer(sock.fileno())
        try:
            number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        except OSError as error:
            number = error.errno or -1
        if number == 0:
            if self._win(sock, address):
                return
        else:
            self._reason = connect_reason(number)
            sock.close()
        if self._timer is not None:
            self._timer.cancel()
        self.start()

    def _win(self, sock: socket.socket, address: str) -> bool:
        """Report the connection; False when it turned out to be none, so that another address is tried."""
        try:
            peer = sock.getpeername()
        except OSError as error:  # reset between connect and now
            self._reason = connect_reason(error.errno)
            sock.close()
            return False
        if not _same_address(str(peer[0]), address) or peer[1] != self._port:
            self._reason = Reason.PEER_MISMATCH
            sock.close()
            return False
        connected = self._connected
        assert connected is not None
        self.cancel()
        connected(sock, address)
        return True

    def _fail(self) -> None:
        self.cancel()
        self._failed(self._reason)


def _same_address(peer: str, asked: str) -> bool:
    if peer == asked:
        return True
    family = socket.AF_INET6 if ":" in asked else socket.AF_INET
    if (":" in peer) != (family == socket.AF_INET6):
        return False
    return socket.inet_pton(family, peer.partition("%")[0]) == socket.inet_pton(family, asked)
