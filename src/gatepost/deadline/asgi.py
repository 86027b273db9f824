"""ASGI middleware: each request runs under the deadline it brought, is refused when that is hopeless, and cut when it passes.

Plain ASGI 3 for HTTP and WebSocket on any server and loop that scopes work on; it reads no body and changes no answer. Before
the first byte of an answer a passed deadline becomes a 504; after it only a `stream=True` operation is cut, and its connection
closed. What to do is decided by `gate`. Put it outermost, or as the first user middleware of a framework.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.deadline.context import request_scope
from gatepost.deadline.estimate import EstimateStatistics
from gatepost.deadline.gate import Exempted, Gate, GateSettings, Mode, Operation, Refusal, Run, is_ours
from gatepost.deadline.metrics import COUNTERS, Counters, Metric, SpanHook
from gatepost.deadline.policy import DEFAULT_POLICY, DeadlinePolicy
from gatepost.deadline.value import DeadlineExceeded

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

WEBSOCKET_CLOSE: Final = 1001
"""Going away (RFC 6455, 7.4.1): the server ends a session whose time is over. Not 1013, which invites to try again."""
_STARTS: Final = frozenset(
    {"http.response.start", "websocket.accept", "websocket.close", "websocket.http.response.start"}
)
_LASTS: Final = frozenset({"http.response.body", "websocket.close"})
"""What an answer ends with, unless more of the body is announced."""
_ERROR: Final = 500
"""From this status on an answer says nothing about how long the work takes."""


class DeadlineMiddleware:
    """Wraps an ASGI app.

    `operations`: see `gate.Gate`. `mode="dark"` counts what it would refuse and changes nothing. `cancel_on_disconnect` cuts
    the work when the client goes, once its body is read (asyncio only; it costs a task for each request). `spans` puts
    attributes on the current span.
    """

    def __init__(
        self,
        app: App,
        policy: DeadlinePolicy = DEFAULT_POLICY,
        *,
        operations: Mapping[str, Operation] | None = None,
        mode: Mode = "enforce",
        status: int = 504,
        cancel_on_disconnect: bool = False,
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
        self._counters = counters
        self._cancel_on_disconnect = cancel_on_disconnect
        self._wanted = frozenset(name.encode("latin-1") for name in self._gate.header_names)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            method = scope["method"]
        elif kind == "websocket":
            method = "WEBSOCKET"
        else:
            await self._app(scope, receive, send)
            return
        wanted = self._wanted
        gate = self._gate
        run = gate.arrive(method, scope["path"], [pair for pair in scope["headers"] if pair[0] in wanted])
        if not isinstance(run, Run):
            if isinstance(run, Exempted):
                await self._app(scope, receive, send)
            else:
                await _refuse(run, scope, send)
            return
        if gate.dark:
            await self._measure(run, scope, receive, send)
            return
        # Written out here and not in a method of its own: this is most of what a request costs, and each `await` has a price.
        bounded = request_scope(run.deadline, name="handler")
        answer = _Answer(gate, run, scope, send, bounded)
        watch = _Watch(receive, scope, bounded, answer) if self._cancel_on_disconnect else None
        try:
            bounded.enter_cutting()
            try:
                await self._app(scope, receive if watch is None else watch, answer)
            except BaseException as error:
                bounded.leave_cutting(error)
                raise
            bounded.leave_cutting(None)
        except DeadlineExceeded as error:
            await self._cut(error, run, answer, watch)
        else:
            if not answer.started and run.deadline.expired:
                # The app caught the cancellation and answered nothing.
                await answer.refuse()
        finally:
            if watch is not None:
                await watch.stop()
            if gate.looks_back:
                gate.ended(run)

    def statistics(self) -> dict[str, EstimateStatistics]:
        """What is learned, by operation."""
        return self._gate.statistics()

    async def _cut(self, error: DeadlineExceeded, run: Run, answer: _Answer, watch: _Watch | None) -> None:
        """A deadline passed in the app, this request's or one that it set for a call: answers, or raises what is not ours."""
        if watch is not None and watch.gone:
            self._counters.count(Metric.DISCONNECTED)
        elif answer.started and not answer.refused:
            if answer.finished or not (run.operation.stream and is_ours(error, run)):
                raise error
            # Nothing that we could add would make it whole: a server closes a connection whose answer was left short.
            await answer.break_off()
        elif not is_ours(error, run):
            raise error
        elif not answer.refused:
            await answer.refuse()

    async def _measure(self, run: Run, scope: Message, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, _Answer(self._gate, run, scope, send, None))
        finally:
            self._gate.ended(run)


class _Answer:
    """The app's `send`: notices the first byte, and drops what comes after a refusal took the answer's place."""

    __slots__ = ("_bounded", "_gate", "_ok", "_run", "_scope", "_send", "finished", "refused", "started")

    def __init__(self, gate: Gate, run: Run, scope: Message, send: Send, bounded: request_scope | None) -> None:
        self._gate = gate
        self._run = run
        self._scope = scope
        self._send = send
        self._bounded = bounded
        """None in dark mode."""
        self._ok = True
        self.started = False
        """Its first byte has gone out, or a refusal in its place."""
        self.refused = False
        self.finished = False
        """Its last byte has: what the client does now is no concern of ours."""

    def __call__(self, message: Message) -> Awaitable[None]:
        # Not a coroutine function: handing on the server's own awaitable saves one for each message.
        if not self.started:
            if message["type"] in _STARTS:
                if self._bounded is not None and self._run.deadline.expired:
                    # Code that blocks the loop cannot be cut, and comes here late.
                    return self._refuse_late(self._bounded)
                self._start(message)
        elif self.refused:
            return _nothing()
        elif not message.get("more_body", False) and message["type"] in _LASTS:
            self.finished = True
            if self._run.operation.stream:
                return self._finish_stream(message)
        return self._send(message)

    async def refuse(self) -> None:
        """Send the 504 in place of an answer."""
        self.started = self.refused = True
        await _refuse(self._gate.cut(self._run), self._scope, self._send)

    async def break_off(self) -> None:
        """The answer has begun and is not finished: end a WebSocket; for HTTP, just send no more."""
        self.refused = True
        if self._scope["type"] == "websocket":
            await self._send({"type": "websocket.close", "code": WEBSOCKET_CLOSE, "reason": "deadline exceeded"})

    def _start(self, message: Message) -> None:
        """The first byte goes out."""
        self.started = True
        self._ok = message.get("status", 200) < _ERROR
        if not self._run.operation.stream:
            if self._bounded is not None:
                self._bounded.release()
            self._gate.answered(self._run, ok=self._ok)

    async def _refuse_late(self, bounded: request_scope) -> None:
        """The deadline came before the first byte: the refusal goes out in its place."""
        bounded.stop_cutting()
        self._gate.exceeded()
        await self.refuse()
        bounded.cut_now()  # or an endless stream would go on for nobody

    async def _finish_stream(self, message: Message) -> None:
        if self._scope["type"] == "http":
            self._gate.answered(self._run, ok=self._ok)
        await self._send(message)
        if self._bounded is not None:
            self._bounded.release()  # what comes after it, background tasks, is no part of the answer


class _Watch:
    """The app's `receive` when disconnects cut: once the body is read it waits for the disconnect in a task of its own."""

    __slots__ = ("_answer", "_arrived", "_bounded", "_messages", "_receive", "_task", "gone")

    def __init__(self, receive: Receive, scope: Message, bounded: request_scope, answer: _Answer) -> None:
        self._receive = receive
        self._bounded = bounded
        self._answer = answer
        self._messages: deque[Message] = deque()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.gone = False
        names = {name for name, _ in scope["headers"]}
        if scope["type"] == "http" and not names & {b"content-length", b"transfer-encoding"}:
            self._start()  # many handlers never ask for a body that cannot be there

    async def __call__(self) -> Message:
        if self._task is None:
            message = await self._receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                self._start()
            return message
        while not self._messages:
            if self._task.done():
                self._task.result()  # raises what the server raised
            self._arrived.clear()
            await self._arrived.wait()
        # The last message stays: a server, too, says "disconnected" as often as it is asked.
        return self._messages[0] if self._messages[0]["type"] == "http.disconnect" else self._messages.popleft()

    async def stop(self) -> None:
        """The request is over."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._task is not None and not self._task.cancelled():
            self._task.exception()  # an error of the server's that no `receive` asked for: it logged its own

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(
            self._watch(), name="gatepost disconnect"
        )  # ended by `stop`

    async def _watch(self) -> None:
        try:
            while True:
                message = await self._receive()
                self._messages.append(message)
                self._arrived.set()
                if message["type"] == "http.disconnect":
                    if not self._answer.finished:  # servers say so, too, once an answer is complete
                        self.gone = True
                        self._bounded.cut_now()
                    return
        finally:
            self._arrived.set()


async def _nothing() -> None:
    """Instead of sending what comes after a refusal."""


async def _refuse(refusal: Refusal, scope: Message, send: Send) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": refusal.status, "headers": refusal.headers})
        await send({"type": "http.response.body", "body": refusal.body})
    elif "websocket.http.response" in (scope.get("extensions") or {}):
        await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": refusal.headers})
        await send({"type": "websocket.http.response.body", "body": refusal.body})
    else:
        await send({"type": "websocket.close", "code": WEBSOCKET_CLOSE, "reason": "deadline exceeded"})
