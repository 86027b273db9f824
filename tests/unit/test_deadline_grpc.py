"""gRPC interceptors against grpcio's own servers and channels on loopback: what travels, what is refused, and the library's traps.

Messages are plain bytes, so no generated code is needed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from gatepost.deadline import Counters, DeadlineExceeded, DeadlinePolicy, Metric, check, current, deadline, remaining
from gatepost.deadline.gate import Operation

grpc = pytest.importorskip("grpc")
aio = pytest.importorskip("grpc.aio")

from gatepost.deadline.grpc import (  # noqa: E402 - only where grpcio is
    AioDeadlineServerInterceptor,
    DeadlineClientInterceptor,
    DeadlineServerInterceptor,
    aio_client_interceptors,
)
from gatepost.deadline.grpc_server import NONE_FROM  # noqa: E402

CODES = grpc.StatusCode
CODE = CODES.DEADLINE_EXCEEDED


def service(**behaviors: Callable[..., Any]) -> Any:
    """A generic handler; the name of a behavior says its kind: `call…`, `stream…`, `upload…`, `chat…`."""
    makers = {
        "call": grpc.unary_unary_rpc_method_handler,
        "stream": grpc.unary_stream_rpc_method_handler,
        "upload": grpc.stream_unary_rpc_method_handler,
        "chat": grpc.stream_stream_rpc_method_handler,
    }
    handlers = {name: makers[name.partition("_")[0]](behavior) for name, behavior in behaviors.items()}
    return grpc.method_handlers_generic_handler("test.v1.Service", handlers)


@contextmanager
def served(*interceptors: Any, **behaviors: Callable[..., Any]) -> Iterator[str]:
    """The address of a real sync server."""
    server = grpc.server(ThreadPoolExecutor(4), interceptors=interceptors)
    server.add_generic_rpc_handlers((service(**behaviors),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait(10)


@contextmanager
def channel(address: str, *interceptors: Any) -> Iterator[Any]:
    """A real sync channel."""
    with grpc.insecure_channel(address) as plain:
        yield grpc.intercept_channel(plain, *interceptors) if interceptors else plain


@asynccontextmanager
async def aio_served(*interceptors: Any, **behaviors: Callable[..., Any]) -> AsyncIterator[str]:
    """The address of a real asyncio server."""
    server = aio.server(interceptors=interceptors, migration_thread_pool=ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((service(**behaviors),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def describe(_request: bytes, context: Any) -> bytes:
    """What the handler sees: grpcio's own deadline, the metadata, the ambient deadline and its origin."""
    metadata = dict(context.invocation_metadata())
    ambient = current()
    origin = "-" if ambient is None else ambient.origin
    return f"{context.time_remaining()} {metadata.get('request-timeout', '-')} {remaining()} {origin}".encode()


async def describe_aio(request: bytes, context: Any) -> bytes:
    """The same from a coroutine."""
    return describe(request, context)


def seen(answer: bytes) -> tuple[float | None, str, float | None, str]:
    """What `describe` said."""
    theirs, metadata, ours, origin = answer.decode().split()
    return (
        None if theirs == "None" else float(theirs),
        metadata,
        None if ours == "None" else float(ours),
        origin,
    )


def trailing(error: Any) -> dict[str, str]:
    """Trailing metadata of a failed call."""
    found: dict[str, str] = dict(error.trailing_metadata() or ())
    return found


# ------------------------------------------------------------------------------------- the library itself: the traps


def test_case_30_the_library_says_none_in_two_ways_and_dies_of_its_own_answer() -> None:
    """Finding 4, against the real library: 9.2e18 from a sync server, None from an asyncio one; as a timeout it is no time."""

    async def ask(address: str) -> float | None:
        async with aio.insecure_channel(address) as plain:
            return seen(await plain.unary_unary("/test.v1.Service/call")(b""))[0]

    async def main() -> float | None:
        async with aio_served(call=describe_aio) as address:
            return await ask(address)

    with served(call=describe) as address, channel(address) as plain:
        call = plain.unary_unary("/test.v1.Service/call")
        left = seen(call(b""))[0]
        assert left is not None
        assert left > 9e18 > NONE_FROM
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=left)
        assert caught.value.code() is CODE
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=float("inf"))
        assert caught.value.code() is CODE
    assert asyncio.run(main()) is None


class Wire:
    """A client interceptor's opposite: what a raw HTTP/2 peer would see, read from the server's own rounding."""

    def __init__(self) -> None:
        self.left: list[float] = []

    def __call__(self, _request: bytes, context: Any) -> bytes:
        self.left.append(context.time_remaining())
        return b""


@pytest.mark.parametrize(("seconds", "rounded"), [(1.2345, 1.24), (3605.0, 3610.0), (100_000.0, 100_200.0)])
def test_the_library_rounds_a_timeout_up_to_three_digits(seconds: float, rounded: float) -> None:
    """Finding 5: budgets grow by up to one percent a hop, so an exact one must go along."""
    wire = Wire()
    with served(call=wire) as address, channel(address) as plain:
        plain.unary_unary("/test.v1.Service/call")(b"", timeout=seconds)
    assert seconds * 0.999 < wire.left[0] <= rounded
    if seconds > 60:
        assert wire.left[0] > seconds, "more than was given"


# ------------------------------------------------------------------------------------------------------ our own


def test_case_30_without_a_deadline_the_default_holds_and_is_handed_on() -> None:
    """9.2e18 is "none", so the handler has 10 s; what it calls gets those, not 9.2e18."""
    counters = Counters()
    interceptor = DeadlineServerInterceptor(counters=counters)

    with served(call=describe) as second, channel(second, DeadlineClientInterceptor()) as onwards:

        def forward(_request: bytes, _context: Any) -> bytes:
            result: bytes = onwards.unary_unary("/test.v1.Service/call")(b"", timeout=9.2e18)
            return f"{remaining()} ".encode() + result

        with served(interceptor, call=forward) as first, channel(first) as plain:
            ours, _, rest = plain.unary_unary("/test.v1.Service/call")(b"").partition(b" ")
    theirs, metadata, _, _ = seen(rest)
    assert 5 < float(ours) <= 10
    assert theirs is not None
    assert 5 < theirs <= 10.1
    assert 5 < float(metadata) <= 10
    assert counters.value(Metric.REQUESTS, "default") == 1


def test_case_31_the_exact_budget_goes_along_and_wins() -> None:
    """1.2345 s become 1240 ms on grpcio's wire; the metadata says 1.234, and the server takes the less."""
    with (
        served(DeadlineServerInterceptor(), call=describe) as address,
        channel(address, DeadlineClientInterceptor()) as calls,
    ):
        call = calls.unary_unary("/test.v1.Service/call")
        theirs, metadata, ours, origin = seen(call(b"", timeout=1.2345))
        assert metadata == "1.234"
        assert theirs is not None
        assert ours is not None
        assert ours <= 1.234
        assert origin in ("request-timeout", "grpc")
        with deadline(5):
            assert seen(call(b"", timeout=1.2345))[1] == "1.234"
        with deadline(1.0):
            _, metadata, ours, _ = seen(call(b"", metadata=[("request-timeout", "50"), ("other", "x")]))
        assert 0.5 < float(metadata) < 1.0
        assert ours is not None
        assert ours <= float(metadata)


def test_case_32_an_hour_stays_an_hour() -> None:
    """grpcio may send 3610 s; the server's own maximum must be wide enough to see the difference."""
    wide = DeadlineServerInterceptor(DeadlinePolicy(max=10_000))
    with served(wide, call=describe) as address, channel(address, DeadlineClientInterceptor()) as calls:
        theirs, metadata, ours, _ = seen(calls.unary_unary("/test.v1.Service/call")(b"", timeout=3600.0))
    assert theirs is not None
    assert 3590 < theirs <= 3610, "3600S or 3610S, by the milliseconds that the call took to start"
    assert metadata == "3600"
    assert ours is not None
    assert 3590 < ours <= 3600


def never(_request: bytes, _context: Any) -> bytes:
    """A handler that must not be reached."""
    raise AssertionError("the handler must not run")


@pytest.mark.parametrize(
    ("metadata", "where"), [([("request-timeout", "0")], "arrival"), ([("request-timeout", "0.003")], "admission")]
)
def test_a_hopeless_call_never_reaches_its_handler(metadata: Any, where: str) -> None:
    """DEADLINE_EXCEEDED, never UNAVAILABLE, which clients retry."""
    counters = Counters()
    with (
        served(DeadlineServerInterceptor(counters=counters), call=never, stream=never) as address,
        channel(address) as plain,
    ):
        with pytest.raises(grpc.RpcError) as caught:
            plain.unary_unary("/test.v1.Service/call")(b"", metadata=metadata)
        assert caught.value.code() is CODE
        assert trailing(caught.value)["deadline-exceeded"] == where
        with pytest.raises(grpc.RpcError) as caught:
            list(plain.unary_stream("/test.v1.Service/stream")(b"", metadata=metadata))
        assert caught.value.code() is CODE
    assert counters.value(Metric.REJECTED, where) == 2


def test_a_required_deadline_and_the_learned_median_hold_on_grpc_too() -> None:
    """The same gate; a version in the service's name does not make its methods one operation."""
    interceptor = DeadlineServerInterceptor(
        operations={"/test.v1.Service/call_charge": Operation(require_deadline=True)}
    )

    def slow(_request: bytes, _context: Any) -> bytes:
        time.sleep(0.02)
        return b""

    with served(interceptor, call_charge=describe, call_slow=slow) as address, channel(address) as plain:
        charge = plain.unary_unary("/test.v1.Service/call_charge")
        with pytest.raises(grpc.RpcError) as caught:
            charge(b"")
        assert caught.value.code() is CODES.INVALID_ARGUMENT
        assert seen(charge(b"", timeout=5))[3] == "grpc"
        call = plain.unary_unary("/test.v1.Service/call_slow")
        for _ in range(50):
            call(b"", timeout=5)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=5, metadata=[("request-timeout", "0.01")])
        assert trailing(caught.value)["deadline-exceeded"] == "admission"
    assert "GRPC /test.v1.Service/call_slow" in interceptor.statistics()


def test_a_check_in_a_sync_handler_ends_the_call() -> None:
    """Cooperative: what asks in time stops in time; what comes late is not sent."""

    def checks(_request: bytes, _context: Any) -> bytes:
        check(need=30)
        return b""

    def late(_request: bytes, _context: Any) -> bytes:
        time.sleep(0.06)
        return b"late"

    def inner(_request: bytes, _context: Any) -> bytes:
        with deadline(0.01):
            check(need=1)
        return b""

    def aborts(_request: bytes, context: Any) -> bytes:
        context.abort(CODES.NOT_FOUND, "no such thing")
        return b""

    with (
        served(
            DeadlineServerInterceptor(), call_checks=checks, call_late=late, call_inner=inner, call_aborts=aborts
        ) as address,
        channel(address) as plain,
    ):
        for name, code in (("checks", CODE), ("late", CODE), ("inner", CODES.UNKNOWN), ("aborts", CODES.NOT_FOUND)):
            with pytest.raises(grpc.RpcError) as caught:
                plain.unary_unary(f"/test.v1.Service/call_{name}")(b"", metadata=[("request-timeout", "0.05")])
            assert caught.value.code() is code, name


def ticks(_request: bytes, _context: Any) -> Iterator[bytes]:
    """Four messages, 30 ms apart."""
    for _ in range(4):
        time.sleep(0.03)
        yield f"{remaining() is not None}".encode()


def test_a_sync_stream_ends_by_a_deadline_it_was_given_and_outlives_the_default() -> None:
    """gRPC's deadline is for the whole call; ours by default is for the first message."""
    with (
        served(DeadlineServerInterceptor(DeadlinePolicy(default=0.08)), stream=ticks) as address,
        channel(address) as plain,
    ):
        stream = plain.unary_stream("/test.v1.Service/stream")
        assert list(stream(b"")) == [b"True", b"False", b"False", b"False"]
        with pytest.raises(grpc.RpcError) as caught:
            list(stream(b"", metadata=[("request-timeout", "0.08")]))
        assert caught.value.code() is CODE


def test_uploads_and_chats_run_under_the_deadline() -> None:
    """All four kinds of call."""

    def upload(requests: Iterator[bytes], _context: Any) -> bytes:
        return b"".join(requests) + f" {remaining() is not None}".encode()

    def chat(requests: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        for request in requests:
            yield request + f" {remaining() is not None}".encode()

    with (
        served(DeadlineServerInterceptor(), upload=upload, chat=chat) as address,
        channel(address, DeadlineClientInterceptor()) as calls,
    ):
        assert calls.stream_unary("/test.v1.Service/upload")(iter([b"a", b"b"])) == b"ab True"
        assert list(calls.stream_stream("/test.v1.Service/chat")(iter([b"a"]), timeout=5)) == [b"a True"]
        with deadline(0.0005), pytest.raises(DeadlineExceeded):
            list(calls.stream_stream("/test.v1.Service/chat")(iter([b"a"])))


def test_a_client_without_time_sends_nothing() -> None:
    """The call would die on the way, after work on both sides."""
    counters = Counters()
    client = DeadlineClientInterceptor(reserve=0.01, counters=counters)
    with served(call=never) as address, channel(address, client) as calls:
        call = calls.unary_unary("/test.v1.Service/call")
        with deadline(0.0105), pytest.raises(DeadlineExceeded, match="at call"):
            call(b"")
        for bad in (0, -1.0, float("nan")):
            with pytest.raises(ValueError, match="timeout="):
                call(b"", timeout=bad)
    assert counters.value(Metric.EXCEEDED, "call") == 1


def test_dark_mode_and_exemption_leave_calls_alone() -> None:
    """Counting must not change anything."""
    counters = Counters()
    dark = DeadlineServerInterceptor(mode="dark", counters=counters)
    exempt = DeadlineServerInterceptor(operations={"/test.v1.Service/stream": Operation(exempt=True)})
    with served(dark, call=describe) as address, channel(address) as plain:
        answer = plain.unary_unary("/test.v1.Service/call")(b"", metadata=[("request-timeout", "0")])
        assert seen(answer)[2] is None
    assert counters.value(Metric.WOULD_REJECT, "arrival") == 1
    with served(exempt, stream=ticks) as address, channel(address) as plain:
        assert list(plain.unary_stream("/test.v1.Service/stream")(b"")) == [b"False"] * 4


# --------------------------------------------------------------------------------------------------------- asyncio


async def test_an_asyncio_handler_is_cut_and_its_budget_handed_on() -> None:
    """Cases 30 to 32 on the other half of the library."""
    ended = threading.Event()

    async def hangs(_request: bytes, _context: Any) -> bytes:
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()
        return b""

    async with (
        aio_served(AioDeadlineServerInterceptor(), call=describe_aio, call_hangs=hangs) as address,
        aio.insecure_channel(address, interceptors=aio_client_interceptors()) as calls,
    ):
        call = calls.unary_unary("/test.v1.Service/call")
        theirs, metadata, ours, _ = seen(await call(b"", timeout=1.2345))
        assert metadata == "1.234"
        assert theirs is not None
        assert ours is not None
        assert ours <= 1.234
        _, metadata, ours, _ = seen(await call(b""))
        assert metadata == "10"
        async with deadline(2):
            assert 1 < float(seen(await call(b""))[1]) < 2
        with deadline(0.0005), pytest.raises(DeadlineExceeded):
            await call(b"")
        async with aio.insecure_channel(address) as plain:
            assert seen(await plain.unary_unary("/test.v1.Service/call")(b""))[3] == "default"
            with pytest.raises(aio.AioRpcError) as caught:
                await plain.unary_unary("/test.v1.Service/call_hangs")(b"", metadata=(("request-timeout", "0.05"),))
            assert caught.value.code() is CODE
            assert trailing(caught.value)["deadline-exceeded"] == "handler"
            assert ended.is_set()
            with pytest.raises(aio.AioRpcError) as caught:
                await plain.unary_unary("/test.v1.Service/call_hangs")(b"", metadata=(("request-timeout", "0"),))
            assert trailing(caught.value)["deadline-exceeded"] == "arrival"


async def test_asyncio_streams_of_both_styles_and_plain_functions() -> None:
    """Generators, handlers that write, and functions that grpcio runs in threads."""

    async def generates(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        for _ in range(4):
            await asyncio.sleep(0.03)
            yield f"{remaining() is not None}".encode()

    async def writes(_request: bytes, context: Any) -> None:
        for _ in range(4):
            await asyncio.sleep(0.03)
            await context.write(f"{remaining() is not None}".encode())

    async def upload(requests: AsyncIterator[bytes], _context: Any) -> bytes:
        return b"".join([item async for item in requests]) + f" {remaining() is not None}".encode()

    async def chat(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        async for item in requests:
            yield item

    async with (
        aio_served(
            AioDeadlineServerInterceptor(DeadlinePolicy(default=0.08)),
            stream_generates=generates,
            stream_writes=writes,
            upload=upload,
            chat=chat,
            call_sync=describe,
        ) as address,
        aio.insecure_channel(address) as plain,
        aio.insecure_channel(address, interceptors=aio_client_interceptors()) as calls,
    ):
        for name, expected in (
            ("generates", [b"True", b"False", b"False", b"False"]),
            ("writes", [b"True", b"False", b"False", b"False"]),
        ):
            stream = plain.unary_stream(f"/test.v1.Service/stream_{name}")
            assert [item async for item in stream(b"")] == expected, name
            with pytest.raises(aio.AioRpcError) as caught:
                [item async for item in stream(b"", metadata=(("request-timeout", "0.08"),))]
            assert caught.value.code() is CODE
        assert await calls.stream_unary("/test.v1.Service/upload")(iter([b"a", b"b"])) == b"ab True"
        async with deadline(5):
            assert [item async for item in calls.stream_stream("/test.v1.Service/chat")(iter([b"a"]))] == [b"a"]
            assert [item async for item in calls.unary_stream("/test.v1.Service/stream_writes")(b"")] == [b"True"] * 4
        assert seen(await plain.unary_unary("/test.v1.Service/call_sync")(b"", timeout=5))[3] == "grpc"
