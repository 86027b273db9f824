"""The WSGI middleware: cooperative, so what counts is what is asked in time, and what is sent when it is too late."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.handlers import SimpleHandler
from wsgiref.util import FileWrapper, setup_testing_defaults
from wsgiref.validate import validator

import pytest

from gatepost.deadline import Counters, DeadlineExceeded, DeadlinePolicy, Metric, check, current, deadline, remaining
from gatepost.deadline.gate import Operation
from gatepost.deadline.wsgi import DeadlineMiddleware
from gatepost.testing.virtual import VirtualClock

App = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Server:
    """A real WSGI server's handler on memory, with a clock of its own."""

    def __init__(self, app: App, policy: DeadlinePolicy | None = None, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.counters = Counters()
        self.middleware = DeadlineMiddleware(
            app, policy or DeadlinePolicy(), clock=self.clock, counters=self.counters, **settings
        )

    def call(self, method: str = "GET", path: str = "/", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body. Both sides of the middleware are checked against PEP 3333."""
        environ: dict[str, Any] = {"REQUEST_METHOD": method, "SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": ""}
        setup_testing_defaults(environ)
        environ |= {f"HTTP_{name.upper()}": value for name, value in headers.items()}
        out, errors = io.BytesIO(), io.StringIO()
        handler = SimpleHandler(io.BytesIO(), out, errors, environ, multithread=False)
        handler.http_version = "1.0"
        handler.run(validator(self.middleware))
        if "Traceback" in errors.getvalue():
            raise RuntimeError(errors.getvalue())
        head, _, body = out.getvalue().partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        found = dict(line.lower().split(": ", 1) for line in lines[1:])
        assert "retry-after" not in found
        return int(lines[0].split()[1]), found, body


def app_of(work: Callable[[], bytes]) -> App:
    """An app that answers with one piece."""

    def app(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = work()
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [body]

    return validator(app)


def left() -> bytes:
    """What is left, as text."""
    return f"{remaining()}".encode()


def test_the_handler_sees_its_deadline_less_the_time_in_the_queue() -> None:
    """Case 29: a worker that took the request late has less time for it, whoever's fault that is."""
    server = Server(app_of(left))
    now = server.clock.wall_us() / 1e6
    assert server.call(request_timeout="1.0")[2] == b"1.0"
    assert server.call(request_timeout="1.0", x_request_start=f"t={now - 0.4:.3f}")[2] == b"0.6"
    assert server.call(request_timeout="1.0", x_request_start=f"t={now + 5:.3f}")[2] == b"1.0"
    assert server.call(request_timeout="1.0", x_request_start=f"{(now - 7200) * 1000:.0f}")[2] == b"1.0"
    assert server.counters.value(Metric.SKEW, "x-request-start") == 2
    assert server.call()[2] == b"10.0"
    assert server.call(request_timeout="2", grpc_timeout="140m")[2] == b"0.14"
    assert current() is None


def test_what_waited_too_long_for_a_worker_is_dropped() -> None:
    """gunicorn otherwise works through requests whose clients have left."""

    def app(_environ: dict[str, Any], _start_response: Any) -> Iterable[bytes]:
        raise AssertionError("the handler must not run")

    server = Server(app)
    started = f"t={server.clock.wall_us() / 1e6 - 3:.3f}"
    status, headers, body = server.call(request_timeout="2", x_request_start=started)
    assert (status, headers["deadline-exceeded"]) == (504, "arrival")
    assert headers["content-type"] == "application/problem+json"
    assert json.loads(body)["code"] == "deadline_exceeded"


def test_a_check_in_the_handler_and_an_answer_that_comes_late_are_504s() -> None:
    """As long as nothing was sent, the answer can still be the true one."""
    server = Server(app_of(lambda: check(need=5) or b""))  # type: ignore[func-returns-value]  # it raises
    assert server.call(request_timeout="2")[1]["deadline-exceeded"] == "handler"
    late = Server(app_of(lambda: late.clock.advance(3) or b"late"))  # type: ignore[func-returns-value]  # moves the clock
    status, headers, _ = late.call(request_timeout="2")
    assert (status, headers["deadline-exceeded"]) == (504, "handler")
    assert late.counters.value(Metric.EXCEEDED, "handler") == 1


def test_an_inner_limit_stays_an_error_of_the_handler() -> None:
    """It says nothing about the caller's patience."""

    def work() -> bytes:
        with deadline(0.1):
            check(need=1)
        return b""

    with pytest.raises(RuntimeError, match="DeadlineExceeded"):
        Server(app_of(work)).call(request_timeout="2")


def pieces(server: list[Server], seen: list[float | None]) -> App:
    """Three pieces, a second apart."""

    def app(_environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        for _ in range(3):
            seen.append(remaining())
            yield b"x"
            server[0].clock.advance(1)

    return validator(app)


def test_only_a_declared_stream_has_a_deadline_after_its_first_piece() -> None:
    """A generator runs after the app has returned, between the server's writes; a download may take its time, as on ASGI."""
    servers: list[Server] = []
    seen: list[float | None] = []
    servers.append(Server(pieces(servers, seen)))
    assert servers[0].call(request_timeout="1.5")[2] == b"xxx"
    assert seen == [1.5, None, None]
    seen.clear()
    servers[0] = Server(pieces(servers, seen), operations={"/": Operation(stream=True)})
    with pytest.raises(RuntimeError, match="DeadlineExceeded"):
        servers[0].call(request_timeout="1.5")
    assert seen == [1.5, 0.5, 0.0]


def test_write_empty_answers_and_errors_work_as_before() -> None:
    """PEP 3333 has corners that real apps use."""

    def writes(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        write(b"a")
        return [b"b", b"c"]

    def empty(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("204 No Content", [])
        return []

    def mends(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        try:
            raise KeyError
        except KeyError:
            import sys

            start_response("500 Oh", [("Content-Type", "text/plain")], sys.exc_info())
        return [b"mended"]

    def twice(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        start_response("200 OK", [])
        return []

    assert Server(writes).call()[2] == b"abc"
    assert Server(empty).call()[0] == 204
    assert Server(mends).call()[::2] == (500, b"mended")
    with pytest.raises(RuntimeError, match="second time"):
        Server(twice).call()


def test_a_file_is_sent_by_the_servers_own_means() -> None:
    """Iterating over it would take sendfile from the server."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return environ["wsgi.file_wrapper"](io.BytesIO(b"file"), 4096)  # type: ignore[no-any-return]  # PEP 3333

    middleware = DeadlineMiddleware(app)
    environ: dict[str, Any] = {"wsgi.file_wrapper": FileWrapper}
    setup_testing_defaults(environ)
    started: list[str] = []

    def start_response(status: str, _headers: object) -> Callable[[bytes], object]:
        started.append(status)
        return len

    result = middleware(environ, start_response)
    assert isinstance(result, FileWrapper)
    assert started == ["200 OK"]


def test_the_iterable_is_closed_once_whatever_happens() -> None:
    """Its `close` gives a database connection back."""
    closed: list[str] = []

    class Body:
        """Two pieces; the clock moves before the first."""

        def __init__(self, clock: VirtualClock | None) -> None:
            self._clock = clock

        def __iter__(self) -> Iterator[bytes]:
            if self._clock is not None:
                self._clock.advance(9)
            yield b"a"
            yield b"b"

        def close(self) -> None:
            """Noted."""
            closed.append("closed")

    def app(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return Body(None if remaining() == 2.0 else server.clock)

    server = Server(app)
    assert server.call(request_timeout="2")[2] == b"ab"
    assert server.call(request_timeout="1")[0] == 504
    assert closed == ["closed", "closed"]


def test_required_exempt_dark_and_learned_operations() -> None:
    """The same gate as on ASGI."""
    server = Server(
        app_of(left), operations={"POST /charge": Operation(require_deadline=True), "/poll": Operation(exempt=True)}
    )
    assert server.call("POST", "/charge")[0] == 400
    assert server.call("GET", "/poll", request_timeout="1")[2] == b"None"
    dark = Server(app_of(left), mode="dark")
    assert dark.call(request_timeout="0")[2] == b"None"
    assert dark.counters.value(Metric.WOULD_REJECT, "arrival") == 1
    slow = Server(app_of(lambda: slow.clock.advance(0.12) or b""))  # type: ignore[func-returns-value]  # moves the clock
    for _ in range(60):
        slow.call(request_timeout="5")
    assert slow.middleware.statistics()["GET /"].median == pytest.approx(0.12)
    status, headers, _ = slow.call(request_timeout="0.08")
    assert (status, headers["deadline-exceeded"]) == (504, "admission")


def test_threads_of_one_server_count_right() -> None:
    """A lost count would let the valve drift."""
    server = Server(app_of(left))

    def many() -> None:
        for _ in range(100):
            server.call(request_timeout="1")

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert server.counters.value(Metric.REQUESTS, "header") == 400


def test_the_error_that_leaves_a_begun_answer_is_the_apps_own() -> None:
    """After the first byte nothing can be replaced."""

    def app(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])(b"begun")
        server.clock.advance(3)
        check()
        return []

    server = Server(app)
    environ: dict[str, Any] = {"HTTP_REQUEST_TIMEOUT": "2"}
    setup_testing_defaults(environ)
    with pytest.raises(DeadlineExceeded):
        server.middleware(environ, lambda _status, _headers: lambda _data: None)
