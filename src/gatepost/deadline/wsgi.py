"""WSGI middleware: each request runs under the deadline it brought, less the time it waited for a worker.

A thread cannot be cut, so it is cooperative: calls ask `timeout_for`, heavy work asks `check`, and an answer that is ready too
late is replaced by a 504 as long as nothing of it was sent. What to do is decided by `gate`. Wrap the app with it last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.deadline.context import deadline
from gatepost.deadline.estimate import EstimateStatistics
from gatepost.deadline.gate import Exempted, Gate, GateSettings, Mode, Operation, Refusal, Run, is_ours
from gatepost.deadline.metrics import COUNTERS, Counters, SpanHook
from gatepost.deadline.policy import DEFAULT_POLICY, DeadlinePolicy
from gatepost.deadline.value import DeadlineExceeded

ErrorInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None
Write = Callable[[bytes], object]
StartResponse = Callable[..., Write]
App = Callable[[dict[str, Any], Any], Iterable[bytes]]

_REASONS: Final = {400: "Bad Request", 504: "Gateway Timeout"}
_ERROR: Final = 500


class DeadlineMiddleware:
    """Wraps a WSGI app (PEP 3333). Parameters as for `asgi.DeadlineMiddleware`.

    The deadline is in force until the first piece of the body is made. `stream=True` keeps it for all pieces, and ends an
    answer whose deadline has passed by raising `DeadlineExceeded` between two of them, which closes the connection.
    """

    def __init__(
        self,
        app: App,
        policy: DeadlinePolicy = DEFAULT_POLICY,
        *,
        operations: Mapping[str, Operation] | None = None,
        mode: Mode = "enforce",
        status: int = 504,
        counters: Counters = COUNTERS,
        spans: SpanHook | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._app = app
        self._gate = Gate(
            GateSettings(
                policy=policy,
                operations=operations,
                mode=mode,
                status=status,
                counters=counters,
                spans=spans,
                clock=clock,
            )
        )
        self._lock = threading.Lock()
        self._keys = [(f"HTTP_{name.upper().replace('-', '_')}", name) for name in self._gate.header_names]

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        items = [(name, environ[key]) for key, name in self._keys if key in environ]
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        with self._lock:
            verdict = self._gate.arrive(environ["REQUEST_METHOD"], path, items)
        if isinstance(verdict, Refusal):
            return _refuse(verdict, start_response)
        if isinstance(verdict, Exempted):
            return self._app(environ, start_response)
        if self._gate.dark:
            return self._measure(verdict, environ, start_response)
        return self._run(verdict, environ, start_response)

    def statistics(self) -> dict[str, EstimateStatistics]:
        """What is learned, by operation."""
        with self._lock:
            return self._gate.statistics()

    def _run(self, run: Run, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        answer = _Answer(start_response)
        result: Iterable[bytes] = ()
        try:
            with deadline(run.deadline):
                result = self._app(environ, answer)
                file_wrapper = environ.get("wsgi.file_wrapper")
                if isinstance(file_wrapper, type) and isinstance(result, file_wrapper):
                    # The server sends it by its own means, which a wrapper would take from it.
                    answer.flush()
                    self._answered(run, answer)
                    self._ended(run)
                    return result
                pieces = iter(result)
                # Nothing is sent before the first piece, so until then the answer can still be another one.
                first = next(pieces, None)
        except DeadlineExceeded as error:
            _close(result)
            if answer.sent or not is_ours(error, run):
                self._ended(run)
                raise
            return self._late(run, start_response)
        except BaseException:
            _close(result)
            self._ended(run)
            raise
        if run.deadline.expired and not answer.sent:
            _close(result)
            with self._lock:
                self._gate.exceeded()
            return self._late(run, start_response)
        answer.flush()
        if not run.operation.stream:
            self._answered(run, answer)
        if first is None or (isinstance(result, list | tuple) and len(result) == 1):
            if run.operation.stream:
                self._answered(run, answer)
            self._ended(run)
            return result if first is not None else _Empty(result)
        return _Pieces(
            run,
            result,
            first,
            pieces,
            answered=lambda: self._answered(run, answer),
            ended=lambda: self._ended(run),
        )

    def _measure(self, run: Run, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        try:
            result = self._app(environ, start_response)
            with self._lock:
                self._gate.answered(run, ok=True)
        finally:
            self._ended(run)
        return result

    def _late(self, run: Run, start_response: StartResponse) -> Iterable[bytes]:
        with self._lock:
            refusal = self._gate.cut(run)
        self._ended(run)
        return _refuse(refusal, start_response)

    def _answered(self, run: Run, answer: _Answer) -> None:
        with self._lock:
            self._gate.answered(run, ok=answer.ok)

    def _ended(self, run: Run) -> None:
        with self._lock:
            self._gate.ended(run)


class _Answer:
    """The app's `start_response`: keeps what it says until the first piece of the body."""

    __slots__ = ("_start", "_start_response", "_write", "sent")

    def __init__(self, start_response: StartResponse) -> None:
        self._start_response = start_response
        self._start: tuple[str, list[tuple[str, str]]] | None = None
        self._write: Write | None = None
        self.sent = False

    def __call__(self, status: str, headers: list[tuple[str, str]], exc_info: ErrorInfo = None) -> Write:
        if exc_info is None:
            if self._start is not None:
                raise AssertionError("start_response was called a second time without exc_info")
        elif self.sent and exc_info[1] is not None:
            try:
                raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None  # or its traceback would hold this frame
        self._start = (status, headers)
        return self.write

    def write(self, data: bytes) -> object:
        """PEP 3333's old way to send; it goes out at once."""
        self.flush()
        assert self._write is not None
        return self._write(data)

    def flush(self) -> None:
        """Hand the status and headers on, once. An app that never gave any is the server's to complain about."""
        if not self.sent and self._start is not None:
            self.sent = True
            self._write = self._start_response(*self._start)

    @property
    def ok(self) -> bool:
        """Whether the status is no error of the server."""
        return self._start is not None and self._start[0][:3].isdecimal() and int(self._start[0][:3]) < _ERROR


class _Pieces:
    """An answer in several pieces: those of a declared stream are made under the deadline."""

    def __init__(
        self,
        run: Run,
        result: Iterable[bytes],
        first: bytes,
        pieces: Iterator[bytes],
        *,
        answered: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self._run = run
        self._answered = answered
        self._ended = ended
        self._result = result
        self._first: bytes | None = first
        self._pieces = pieces
        self._open = True

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if not self._run.operation.stream:
            return next(self._pieces)
        with deadline(self._run.deadline):
            self._run.deadline.check(where="handler")
            try:
                return next(self._pieces)
            except StopIteration:
                self._answered()
                raise

    def close(self) -> None:
        """Called by the server at the end, also of an answer it could not finish."""
        if self._open:
            self._open = False
            try:
                _close(self._result)
            finally:
                self._ended()


class _Empty:
    """An answer without a body, whose iterable has been asked already."""

    def __init__(self, result: Iterable[bytes]) -> None:
        self._result = result

    def __iter__(self) -> Iterator[bytes]:
        return iter(())

    def close(self) -> None:
        _close(self._result)


def _close(result: Iterable[bytes]) -> None:
    close = getattr(result, "close", None)
    if close is not None:
        close()


def _refuse(refusal: Refusal, start_response: StartResponse) -> Iterable[bytes]:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in refusal.headers]
    start_response(f"{refusal.status} {_REASONS.get(refusal.status, 'Deadline Exceeded')}", headers)
    return [refusal.body]
