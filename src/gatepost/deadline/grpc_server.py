"""gRPC server interceptors, sync and asyncio: each call runs under its deadline, hopeless calls end before the handler.

What grpcio says is left is asked once and carried over to the monotonic clock, because its sync server computes it from the
wall clock; "none" comes as 9.2e18 or None. `request-timeout` metadata beside it is exact where grpc-timeout was rounded up.
What to do is decided by `gate`. Used through `gatepost.deadline.grpc`.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.deadline.context import deadline, request_scope
from gatepost.deadline.estimate import EstimateStatistics
from gatepost.deadline.gate import (
    GRPC,
    GRPC_METHOD,
    Exempted,
    Gate,
    GateSettings,
    Mode,
    Operation,
    Refusal,
    Run,
    is_ours,
)
from gatepost.deadline.metrics import COUNTERS, Counters, SpanHook
from gatepost.deadline.policy import DEFAULT_POLICY, DeadlinePolicy
from gatepost.deadline.value import NANOSECONDS, DeadlineExceeded
from gatepost.deadline.wire import DEADLINE_EXCEEDED_HEADER, REQUEST_TIMEOUT

Handler = Any
"""`grpc.RpcMethodHandler`; grpcio has no types of its own."""
Context = Any
"""`grpc.ServicerContext`, of either kind."""

NONE_FROM: Final = 365 * 86_400.0
"""Seconds from which a deadline means none: the sync server says 9.2e18, and some clients send a century."""
DEFAULT_ORIGIN: Final = "default"


def given_seconds(seconds: float | None) -> float | None:
    """A deadline as grpcio or its users give it; None for the several ways to say "none"."""
    return None if seconds is None or not seconds < NONE_FROM else seconds


class _Server:
    """What both interceptors share: the gate, and handlers wrapped by their kind."""

    def __init__(
        self,
        policy: DeadlinePolicy = DEFAULT_POLICY,
        *,
        operations: Mapping[str, Operation] | None = None,
        mode: Mode = "enforce",
        counters: Counters = COUNTERS,
        spans: SpanHook | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._gate = Gate(
            GateSettings(policy=policy, operations=operations, mode=mode, counters=counters, spans=spans, clock=clock)
        )
        self._lock = threading.Lock()

    def statistics(self) -> dict[str, EstimateStatistics]:
        """What is learned, by operation."""
        with self._lock:
            return self._gate.statistics()

    def arrive(self, method: str, context: Context) -> Run | Refusal | Exempted:
        """What to do with a call that has just arrived."""
        left = given_seconds(context.time_remaining())
        known = None if left is None else (GRPC, round(left * NANOSECONDS))
        items = [(key, value) for key, value in context.invocation_metadata() or () if key == REQUEST_TIMEOUT]
        with self._lock:
            return self._gate.arrive(GRPC_METHOD, method, items, known)

    def sync_handler(self, handler: Handler, method: str) -> Handler:
        """A handler of plain functions, with the deadline around it."""
        behavior = _behavior_of(handler)
        if handler.response_streaming:

            def stream(request: Any, context: Context) -> Iterator[Any]:
                return self._sync_stream(behavior, method, request, context)

            return _handler_like(handler, stream)

        def call(request: Any, context: Context) -> Any:
            return self._sync_call(behavior, method, request, context)

        return _handler_like(handler, call)

    def aio_handler(self, handler: Handler, method: str) -> Handler:
        """The same of coroutine functions and asynchronous generators; plain functions run in grpcio's threads."""
        behavior = _behavior_of(handler)
        if inspect.isasyncgenfunction(behavior):

            async def generate(request: Any, context: Context) -> AsyncIterator[Any]:
                run = await self._aio_begin(method, context)
                if run is None:
                    async for item in behavior(request, context):
                        yield item
                    return
                items = behavior(request, context)
                first = True
                try:
                    while True:
                        if first or self._covers_all(run):
                            item = await self._aio_bounded(run, context, lambda: _next(items))
                        else:
                            item = await _next(items)
                        if item is _END:
                            break
                        if first:
                            self._answered(run)
                            first = False
                        yield item
                finally:
                    await items.aclose()
                    self._ended(run)

            return _handler_like(handler, generate)
        if not inspect.iscoroutinefunction(behavior):
            return self.sync_handler(handler, method)

        async def call(request: Any, context: Context) -> Any:
            run = await self._aio_begin(method, context)
            if run is None:
                return await behavior(request, context)
            try:
                if handler.response_streaming and not self._covers_all(run):
                    response = await self._aio_writing(run, behavior, request, context)
                else:
                    response = await self._aio_bounded(run, context, lambda: behavior(request, context))
                self._answered(run)
            finally:
                self._ended(run)
            return response

        return _handler_like(handler, call)

    # ------------------------------------------------------------------------------------------------------- sync

    def _sync_call(self, behavior: Callable[..., Any], method: str, request: Any, context: Context) -> Any:
        run = self._sync_begin(method, context)
        if run is None:
            return behavior(request, context)
        try:
            try:
                with deadline(run.deadline):
                    response = behavior(request, context)
            except DeadlineExceeded as error:
                if not is_ours(error, run):
                    raise
                self._sync_cut(run, context)
            if run.deadline.expired:
                self._late()
                self._sync_cut(run, context)
            self._answered(run)
        finally:
            self._ended(run)
        return response

    def _sync_stream(self, behavior: Callable[..., Any], method: str, request: Any, context: Context) -> Iterator[Any]:
        run = self._sync_begin(method, context)
        if run is None:
            yield from behavior(request, context)
            return
        items: Any = None
        first = True
        try:
            while True:
                try:
                    if first or self._covers_all(run):
                        with deadline(run.deadline):
                            run.deadline.check()
                            if items is None:
                                items = iter(behavior(request, context))
                            item = next(items, _END)
                    else:
                        item = next(items, _END)
                except DeadlineExceeded as error:
                    if not is_ours(error, run):
                        raise
                    self._sync_cut(run, context)
                if item is _END:
                    break
                if first:
                    self._answered(run)
                    first = False
                yield item
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()
            self._ended(run)

    def _sync_begin(self, method: str, context: Context) -> Run | None:
        """None: run it as if there were no deadlines. A refusal raises what `abort` raises."""
        verdict = self.arrive(method, context)
        if isinstance(verdict, Refusal):
            if verdict.where is not None:
                context.set_trailing_metadata(((DEADLINE_EXCEEDED_HEADER, verdict.where),))
            context.abort(_code(verdict), verdict.detail)
        return self._enforced(verdict)

    def _sync_cut(self, run: Run, context: Context) -> NoReturn:
        with self._lock:
            refusal = self._gate.cut(run)
        context.set_trailing_metadata(((DEADLINE_EXCEEDED_HEADER, "handler"),))
        context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, refusal.detail)
        raise AssertionError("abort returned")

    # -------------------------------------------------------------------------------------------------------- aio

    async def _aio_begin(self, method: str, context: Context) -> Run | None:
        verdict = self.arrive(method, context)
        if isinstance(verdict, Refusal):
            if verdict.where is not None:
                context.set_trailing_metadata(((DEADLINE_EXCEEDED_HEADER, verdict.where),))
            await context.abort(_code(verdict), verdict.detail)
        return self._enforced(verdict)

    async def _aio_bounded(self, run: Run, context: Context, work: Callable[[], Awaitable[Any]]) -> Any:
        try:
            async with deadline(run.deadline, name="handler"):
                result = await work()
        except DeadlineExceeded as error:
            if not is_ours(error, run):
                raise
        else:
            if not run.deadline.expired:
                return result
            self._late()
        with self._lock:
            refusal = self._gate.cut(run)
        context.set_trailing_metadata(((DEADLINE_EXCEEDED_HEADER, "handler"),))
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, refusal.detail)
        raise AssertionError("abort returned")

    async def _aio_writing(self, run: Run, behavior: Callable[..., Any], request: Any, context: Context) -> Any:
        """A handler that calls `context.write`: its deadline, which nobody asked for, holds until it does."""
        written = False

        async def work() -> Any:
            return await behavior(request, _Writing(context, first_write))

        def first_write() -> None:
            nonlocal written
            if not written:
                written = True
                scope.release()

        scope = request_scope(run.deadline, name="handler")
        try:
            async with scope:
                return await work()
        except DeadlineExceeded as error:
            if written or not is_ours(error, run):
                raise
        with self._lock:
            refusal = self._gate.cut(run)
        context.set_trailing_metadata(((DEADLINE_EXCEEDED_HEADER, "handler"),))
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, refusal.detail)
        raise AssertionError("abort returned")

    # ------------------------------------------------------------------------------------------------------- both

    def _enforced(self, verdict: Run | Refusal | Exempted) -> Run | None:
        if not isinstance(verdict, Run):
            return None
        if self._gate.dark:
            return None
        return verdict

    @staticmethod
    def _covers_all(run: Run) -> bool:
        """gRPC's deadline is for the whole call, streams included; only our default ends with the first message."""
        return run.operation.stream or run.deadline.origin != DEFAULT_ORIGIN

    def _answered(self, run: Run) -> None:
        with self._lock:
            self._gate.answered(run, ok=True)

    def _late(self) -> None:
        with self._lock:
            self._gate.exceeded()

    def _ended(self, run: Run) -> None:
        with self._lock:
            self._gate.ended(run)


class DeadlineServerInterceptor(grpc.ServerInterceptor):  # type: ignore[misc]  # grpcio has no types
    """For `grpc.server(interceptors=[…])`. Cooperative, as threads are; parameters as for the ASGI middleware.

    `operations` is keyed by the full method, `"/package.Service/Method"`.
    """

    def __init__(self, policy: DeadlinePolicy = DEFAULT_POLICY, **settings: Any) -> None:
        self._server = _Server(policy, **settings)

    def intercept_service(self, continuation: Callable[[Any], Handler], handler_call_details: Any) -> Handler:
        """Called by grpcio for each call, before its handler."""
        handler = continuation(handler_call_details)
        return None if handler is None else self._server.sync_handler(handler, handler_call_details.method)

    def statistics(self) -> dict[str, EstimateStatistics]:
        """What is learned, by operation."""
        return self._server.statistics()


class AioDeadlineServerInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio has no types
    """For `grpc.aio.server(interceptors=[…])`: cuts handlers when their time is up. Parameters as above."""

    def __init__(self, policy: DeadlinePolicy = DEFAULT_POLICY, **settings: Any) -> None:
        self._server = _Server(policy, **settings)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Handler]], handler_call_details: Any
    ) -> Handler:
        """Called by grpcio for each call, before its handler."""
        handler = await continuation(handler_call_details)
        return None if handler is None else self._server.aio_handler(handler, handler_call_details.method)

    def statistics(self) -> dict[str, EstimateStatistics]:
        """What is learned, by operation."""
        return self._server.statistics()


class _Writing:
    """A servicer context that tells of its first message."""

    def __init__(self, context: Context, first_write: Callable[[], None]) -> None:
        self._context = context
        self._first_write = first_write

    async def write(self, message: Any) -> None:
        """As the context's own."""
        self._first_write()
        await self._context.write(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


_END: Final = object()


async def _next(items: AsyncIterator[Any]) -> Any:
    return await anext(items, _END)


def _code(refusal: Refusal) -> Any:
    return grpc.StatusCode.INVALID_ARGUMENT if refusal.where is None else grpc.StatusCode.DEADLINE_EXCEEDED


def _behavior_of(handler: Handler) -> Callable[..., Any]:
    behaviors = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    found: Callable[..., Any] = next(behavior for behavior in behaviors if behavior is not None)
    return found


def _handler_like(handler: Handler, behavior: Callable[..., Any]) -> Handler:
    makers = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    make = makers[bool(handler.request_streaming), bool(handler.response_streaming)]
    return make(behavior, handler.request_deserializer, handler.response_serializer)
