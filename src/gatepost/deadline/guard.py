"""Finds calls without a timeout while tests or a canary run: `with guard() as found: …`. Opt-in, and gone when the block ends.

It stands before connects and reads of blocking sockets, and before httpx's async requests; what requests, urllib3,
http.client or httpx do there with no timeout, or with one that outlives the ambient deadline, is reported with the line that
called the library. It cannot see calls in C, nor sockets of event loops; ruff's S113 and ASYNC rules find others without
running anything. Never import it in a library.
"""

from __future__ import annotations

import inspect
import socket
import ssl
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import FrameType, TracebackType
from typing import Any, Final, Literal, Self

from gatepost.deadline.context import current
from gatepost.errors import ConfigurationError, GatepostError

LIBRARIES: Final = ("requests", "httpx", "httpx2", "urllib3", "urllib.request", "http.client")
"""Whose calls are reported; a call through several is named by the first of these."""
PASSED_OVER: Final = frozenset(
    {"requests", "httpx", "httpx2", "httpcore", "httpcore2", "urllib3", "urllib", "http", "socket", "ssl", "anyio", "h11",
     "contextlib", "asyncio"}
)  # fmt: skip
"""Packages between a caller's line and the socket."""
SLACK: Final = 0.05
"""Seconds by which a timeout may be over what is left: both were taken at different moments."""
FINDINGS_MAX: Final = 1_000
"""Places remembered; a program with more has seen the point."""

Action = Literal["warn", "raise", "collect"]


class Kind(StrEnum):
    """What is wrong with a call."""

    NO_TIMEOUT = "no_timeout"
    DROPS_DEADLINE = "drops_deadline"


@dataclass(frozen=True, slots=True)
class Finding:
    """One place that calls without bounds; each is reported once."""

    kind: Kind
    library: str
    operation: str
    """`connect`, `handshake`, `read` or `request`."""
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line} in {self.function}: {self.library} {self.operation}"
        match self.kind:
            case Kind.NO_TIMEOUT:
                return f"{where} without a timeout; write timeouts_for(tier), or use gatepost.deadline.clients"
            case Kind.DROPS_DEADLINE:
                return f"{where} may take longer than the deadline in force; use gatepost.deadline.clients"


class MissingTimeoutWarning(UserWarning):
    """A call without a timeout, or one that drops the ambient deadline."""


class MissingTimeout(GatepostError):
    """The same, raised where the call was made, before it waits for anything."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding

    def __reduce__(self) -> tuple[type[MissingTimeout], tuple[Finding]]:
        return type(self), (self.finding,)


class guard:  # noqa: N801 - used like a function, as `deadline` is
    """Watch the whole process while the block runs; may be nested. `findings` keeps each place once.

    `action`: "warn" (a `MissingTimeoutWarning` at the caller's line), "raise" (`MissingTimeout` instead of the call) or
    "collect". `ignore` names packages or modules whose own calls are not reported.
    """

    def __init__(self, action: Action = "warn", *, ignore: tuple[str, ...] = ()) -> None:
        if action not in ("warn", "raise", "collect"):
            raise ConfigurationError(f"action={action!r}: write 'warn', 'raise' or 'collect'")
        self._action = action
        self._ignore = ignore
        self.findings: list[Finding] = []
        self._seen: set[tuple[Kind, str, str, int]] = set()

    def __enter__(self) -> Self:
        with _lock:
            if not _active:
                _install()
            _active.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            _active.remove(self)
            if not _active:
                _remove()

    def report(self, finding: Finding) -> None:
        """Take a finding; called by what watches."""
        if any(finding.function == name or _within(finding, name) for name in self._ignore):
            return
        place = (finding.kind, finding.library, finding.file, finding.line)
        with _lock:
            new = place not in self._seen and len(self._seen) < FINDINGS_MAX
            if new:
                self._seen.add(place)
                self.findings.append(finding)
        if self._action == "raise":
            raise MissingTimeout(finding)
        if new and self._action == "warn":
            warnings.warn_explicit(str(finding), MissingTimeoutWarning, finding.file, finding.line)


_lock = threading.RLock()
_active: list[guard] = []
_undo: list[Callable[[], None]] = []
_busy = threading.local()


def _within(finding: Finding, name: str) -> bool:
    return finding.function.startswith(f"{name}.")


def _install() -> None:
    for owner, method, operation in (
        (socket.socket, "connect", "connect"),
        (socket.socket, "recv", "read"),
        (socket.socket, "recv_into", "read"),
        (ssl.SSLSocket, "read", "read"),
        (ssl.SSLSocket, "do_handshake", "handshake"),
    ):
        _wrap(owner, method, _watched_socket(getattr(owner, method), operation))
    for library in ("httpx", "httpx2"):
        module = sys.modules.get(library)
        if module is not None:
            transport = module.AsyncHTTPTransport
            _wrap(transport, "handle_async_request", _watched_request(transport.handle_async_request))


def _wrap(owner: type, method: str, watched: Callable[..., Any]) -> None:
    own = owner.__dict__.get(method)  # None: inherited, as socket.socket's are
    setattr(owner, method, watched)

    def undo() -> None:
        if owner.__dict__.get(method) is not watched:
            return  # somebody wrapped it after us; ours reports nothing any more
        if own is None:
            delattr(owner, method)
        else:
            setattr(owner, method, own)

    _undo.append(undo)


def _remove() -> None:
    while _undo:
        _undo.pop()()


def _watched_socket(original: Callable[..., Any], operation: str) -> Callable[..., Any]:
    def watched(sock: Any, *args: Any, **options: Any) -> Any:
        if _active:
            try:
                _look(sock.gettimeout(), operation)
            except MissingTimeout:
                if operation == "connect":
                    sock.close()  # libraries close it for an OSError only, which this must not be taken for
                raise
        return original(sock, *args, **options)

    watched.__name__ = original.__name__
    watched.__doc__ = original.__doc__
    return watched


def _watched_request(original: Callable[..., Any]) -> Callable[..., Any]:
    def watched(transport: Any, request: Any) -> Any:
        if _active:
            limits = request.extensions.get("timeout", {})
            longest = [limits.get("connect"), limits.get("read")]
            _look(None if None in longest else max(longest), "request", network=False)
        return original(transport, request)

    return watched


def _look(seconds: float | None, operation: str, *, network: bool = True) -> None:
    """Report a step that may wait `seconds` (None: for ever; 0: an event loop's, which waits elsewhere)."""
    if seconds is None:
        kind = Kind.NO_TIMEOUT
    else:
        deadline = current()
        if (network and seconds == 0) or deadline is None or seconds <= max(0.0, deadline.remaining()) + SLACK:
            return
        kind = Kind.DROPS_DEADLINE
    if getattr(_busy, "on", False):
        return  # a warning's own handler writes to a socket
    _busy.on = True
    try:
        frame = inspect.currentframe()
        finding = None if frame is None else _finding(frame, kind, operation)
        if finding is not None:
            for one in tuple(_active):
                one.report(finding)
    finally:
        _busy.on = False


def _finding(frame: FrameType | None, kind: Kind, operation: str) -> Finding | None:
    seen: set[str] = set()
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if package not in PASSED_OVER and module != __name__ and not module.startswith("gatepost.deadline."):
            break
        seen.update(library for library in LIBRARIES if module == library or module.startswith(f"{library}."))
        frame = frame.f_back
    library = next((name for name in LIBRARIES if name in seen), None)
    if library is None or frame is None:
        return None
    module = str(frame.f_globals.get("__name__", ""))
    return Finding(
        kind, library, operation, frame.f_code.co_filename, frame.f_lineno, f"{module}.{frame.f_code.co_qualname}"
    )
