"""gRPC client interceptors, sync and asyncio: no call without a timeout, none longer than what is left, none begun too late.

The timeout given by the caller is kept when it is the shorter one. `request-timeout` metadata goes along, exact and floored,
since grpcio rounds grpc-timeout up to three digits, one percent a hop. Used through `gatepost.deadline.grpc`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from gatepost.deadline.context import current
from gatepost.deadline.grpc_server import given_seconds
from gatepost.deadline.metrics import COUNTERS, Counters, Metric
from gatepost.deadline.policy import DEFAULT_POLICY, DeadlinePolicy
from gatepost.deadline.value import MILLISECOND_NS, NANOSECONDS, SECONDS_MAX, DeadlineExceeded
from gatepost.deadline.wire import REQUEST_TIMEOUT, format_seconds

CLIENT: Final = "grpc"
"""Its label in metrics."""


class _Timeouts:
    """The decision for each call."""

    def __init__(
        self, policy: DeadlinePolicy = DEFAULT_POLICY, *, reserve: float = 0.0, counters: Counters = COUNTERS
    ) -> None:
        self._policy = policy
        self._reserve = reserve
        self._counters = counters

    def timeout(self, given: float | None, *, streaming: bool) -> float | None:
        """Seconds for a call. None for a stream that neither its caller nor a deadline limits.

        Raises `DeadlineExceeded` when too little is left, `ValueError` for a timeout that is none.
        """
        if given is not None and not given > 0:
            raise ValueError(f"timeout={given!r}: write seconds above 0, for example 0.5, or none at all")
        given = given_seconds(given)
        in_force = current()
        if in_force is None:
            return self._policy.default if given is None and not streaming else given
        cap = SECONDS_MAX if given is None else given
        try:
            timeout = in_force.timeout_for(cap, self._reserve, where="call", policy=self._policy)
        except DeadlineExceeded:
            self._counters.count(Metric.EXCEEDED, "call")
            raise
        self._counters.remaining("call", timeout)
        if given is not None and timeout < given:
            self._counters.count(Metric.SHORTENED, CLIENT)
        return timeout

    def metadata(self, given: Any, timeout: float) -> list[tuple[str, Any]]:
        """The caller's metadata and what is left, exact."""
        pairs = [(key, value) for key, value in given or () if key != REQUEST_TIMEOUT]
        ms = round(timeout * NANOSECONDS) // MILLISECOND_NS
        return [*pairs, (REQUEST_TIMEOUT, format_seconds(ms))] if ms else pairs


class _SyncDetails(grpc.ClientCallDetails):  # type: ignore[misc]  # grpcio has no types
    """Another call's details with its own timeout and metadata."""

    def __init__(self, details: Any, timeout: float, metadata: list[tuple[str, Any]]) -> None:
        self.method = details.method
        self.timeout = timeout
        self.metadata = metadata
        self.credentials = details.credentials
        self.wait_for_ready = getattr(details, "wait_for_ready", None)
        self.compression = getattr(details, "compression", None)


class DeadlineClientInterceptor(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]  # grpcio has no types
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    """For `grpc.intercept_channel(channel, DeadlineClientInterceptor())`.

    A call without a deadline and without a timeout gets `policy.default`, a stream none. `reserve` seconds of what is left
    stay here, for what follows the call. Raises `DeadlineExceeded` in place of a call that has no time.
    """

    def __init__(
        self, policy: DeadlinePolicy = DEFAULT_POLICY, *, reserve: float = 0.0, counters: Counters = COUNTERS
    ) -> None:
        self._timeouts = _Timeouts(policy, reserve=reserve, counters=counters)

    def intercept_unary_unary(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        """One request, one answer."""
        return continuation(self._bounded(client_call_details, streaming=False), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        """One request, many answers."""
        return continuation(self._bounded(client_call_details, streaming=True), request)

    def intercept_stream_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        """Many requests, one answer."""
        return continuation(self._bounded(client_call_details, streaming=False), request_iterator)

    def intercept_stream_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        """Many requests, many answers."""
        return continuation(self._bounded(client_call_details, streaming=True), request_iterator)

    def _bounded(self, details: Any, *, streaming: bool) -> Any:
        timeout = self._timeouts.timeout(details.timeout, streaming=streaming)
        if timeout is None:
            return details
        return _SyncDetails(details, timeout, self._timeouts.metadata(details.metadata, timeout))


def aio_client_interceptors(
    policy: DeadlinePolicy = DEFAULT_POLICY, *, reserve: float = 0.0, counters: Counters = COUNTERS
) -> list[Any]:
    """For `grpc.aio.insecure_channel(target, interceptors=aio_client_interceptors())`: one for each kind of call.

    grpcio takes an asyncio interceptor for the first kind it implements only, so one object cannot be all four.
    Parameters as for `DeadlineClientInterceptor`.
    """
    timeouts = _Timeouts(policy, reserve=reserve, counters=counters)
    return [_AioUnaryUnary(timeouts), _AioUnaryStream(timeouts), _AioStreamUnary(timeouts), _AioStreamStream(timeouts)]


class _Aio:
    def __init__(self, timeouts: _Timeouts) -> None:
        self._timeouts = timeouts

    def _bounded(self, details: Any, *, streaming: bool) -> Any:
        timeout = self._timeouts.timeout(details.timeout, streaming=streaming)
        if timeout is None:
            return details
        metadata = grpc.aio.Metadata(*self._timeouts.metadata(details.metadata, timeout))
        return grpc.aio.ClientCallDetails(
            details.method, timeout, metadata, details.credentials, details.wait_for_ready
        )


class _AioUnaryUnary(_Aio, grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]  # grpcio has no types
    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        return await continuation(self._bounded(client_call_details, streaming=False), request)


class _AioUnaryStream(_Aio, grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[misc]  # grpcio has no types
    async def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        return await continuation(self._bounded(client_call_details, streaming=True), request)


class _AioStreamUnary(_Aio, grpc.aio.StreamUnaryClientInterceptor):  # type: ignore[misc]  # grpcio has no types
    async def intercept_stream_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        return await continuation(self._bounded(client_call_details, streaming=False), request_iterator)


class _AioStreamStream(_Aio, grpc.aio.StreamStreamClientInterceptor):  # type: ignore[misc]  # grpcio has no types
    async def intercept_stream_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        return await continuation(self._bounded(client_call_details, streaming=True), request_iterator)
