"""The ASGI middleware against small apps: what is refused, what is cut, what a stream keeps, and what a disconnect does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from gatepost.deadline import (
    Counters,
    DeadlineExceeded,
    DeadlinePolicy,
    Metric,
    check,
    current,
    deadline,
    remaining,
    shield,
)
from gatepost.deadline.asgi import WEBSOCKET_CLOSE, DeadlineMiddleware
from gatepost.deadline.estimate import SAMPLES_MIN
from gatepost.deadline.gate import Operation
from gatepost.errors import ConfigurationError
from gatepost.testing.virtual import VirtualClock, run_virtual

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass
class Client:
    """One request and what came back. `leaves_at`: seconds after which the client goes."""

    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    method: str = "GET"
    path: str = "/"
    kind: str = "http"
    extensions: dict[str, Any] = field(default_factory=dict)
    body: list[bytes] = field(default_factory=list)
    leaves_at: float | None = None
    sent: list[Message] = field(default_factory=list)

    async def call(self, app: Any) -> Client:
        """Run the app to its end."""
        scope = {
            "type": self.kind,
            "method": self.method,
            "path": self.path,
            "headers": self.headers,
            "extensions": self.extensions,
        }
        loop = asyncio.get_running_loop()
        gone = None if self.leaves_at is None else loop.time() + self.leaves_at
        pieces = list(self.body) or [b""]

        async def receive() -> Message:
            if pieces:
                return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}
            await asyncio.sleep(10_000 if gone is None else max(0.0, gone - loop.time()))
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            self.sent.append(message)

        await app(scope, receive, send)
        return self

    @property
    def status(self) -> int:
        """Of the answer."""
        return int(self.sent[0]["status"])

    @property
    def where(self) -> str | None:
        """The header `Deadline-Exceeded`."""
        headers = dict(self.sent[0]["headers"])
        assert b"retry-after" not in headers
        found = headers.get(b"deadline-exceeded")
        return None if found is None else found.decode()

    @property
    def problem(self) -> Any:
        """The problem document."""
        assert dict(self.sent[0]["headers"])[b"content-type"] == b"application/problem+json"
        assert dict(self.sent[0]["headers"])[b"content-length"] == b"%d" % len(self.sent[1]["body"])
        return json.loads(self.sent[1]["body"])


def asking(seconds: str, **more: Any) -> Client:
    """A request with `Request-Timeout`."""
    return Client(headers=[(b"request-timeout", seconds.encode())], **more)


async def answer(send: Send, body: bytes = b"ok", status: int = 200) -> None:
    """A whole answer."""
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def quick(_scope: Any, _receive: Receive, send: Send) -> None:
    """Answers at once with what is left."""
    await answer(send, str(remaining()).encode())


def sleeping(seconds: float) -> Any:
    """An app that answers after that long."""

    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        await asyncio.sleep(seconds)
        await answer(send)

    return app


def virtual(app: Any, *args: Any, **kwargs: Any) -> tuple[DeadlineMiddleware, Counters]:
    """The middleware on the running loop's clock, with counters of its own."""
    counters = Counters()
    clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]  # a VirtualLoop
    return DeadlineMiddleware(app, *args, counters=counters, clock=clock, **kwargs), counters


def test_the_handler_runs_under_the_deadline_it_brought_or_the_default() -> None:
    """The ambient deadline is what clients and stores below look at."""

    async def main() -> None:
        app, counters = virtual(quick)
        assert (await asking("2.5").call(app)).sent[1]["body"] == b"2.5"
        assert (await Client().call(app)).sent[1]["body"] == b"10.0"
        assert (await asking("3600").call(app)).sent[1]["body"] == b"60.0"
        assert current() is None
        assert counters.value(Metric.REQUESTS, "header") == 2
        assert counters.value(Metric.REQUESTS, "default") == 1
        assert counters.value(Metric.CLAMPED) == 1

    run_virtual(main)


def test_other_kinds_of_scope_pass_untouched() -> None:
    """Lifespan has no caller who waits."""
    seen = []

    async def app(scope: Any, _receive: Receive, _send: Send) -> None:
        seen.append((scope["type"], current()))

    async def main() -> None:
        await virtual(app)[0]({"type": "lifespan"}, None, None)  # type: ignore[arg-type]  # never called

    run_virtual(main)
    assert seen == [("lifespan", None)]


def test_an_expired_request_is_refused_and_never_reaches_the_app() -> None:
    """Case 12: nobody waits for the answer any more."""

    async def app(_scope: Any, _receive: Receive, _send: Send) -> None:
        raise AssertionError("the handler must not run")

    async def main() -> None:
        middleware, counters = virtual(app)
        for text in ("0", "0.0"):
            client = await asking(text).call(middleware)
            assert (client.status, client.where) == (504, "arrival")
            assert client.problem["code"] == "deadline_exceeded"
        assert counters.value(Metric.REJECTED, "arrival") == 2
        client = await asking("0.004").call(middleware)
        assert (client.status, client.where) == (504, "admission")

    run_virtual(main)


def test_work_is_cut_when_the_deadline_passes_before_the_first_byte() -> None:
    """The seed's dead work: a query for a caller who left 490 ms ago."""
    ended = []

    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        try:
            await asyncio.sleep(5)
            await answer(send)
        finally:
            ended.append(asyncio.get_running_loop().time())

    async def main() -> None:
        middleware, counters = virtual(app)
        client = await asking("0.5").call(middleware)
        assert (client.status, client.where, len(client.sent)) == (504, "handler", 2)
        assert counters.value(Metric.EXCEEDED, "handler") == 0, "scopes count themselves in the process's own set"
        assert ended == [1000.5]

    run_virtual(main)


def test_an_answer_that_comes_late_is_replaced() -> None:
    """Code that blocks the loop cannot be cut; its answer is as useless as one that was."""

    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        asyncio.get_running_loop().clock.advance(5)  # type: ignore[attr-defined]  # a VirtualLoop
        await answer(send)

    async def main() -> None:
        middleware, counters = virtual(app)
        client = await asking("1").call(middleware)
        assert (client.status, client.where, len(client.sent)) == (504, "handler", 2)
        assert counters.value(Metric.EXCEEDED, "handler") == 1

    run_virtual(main)


def test_an_app_that_swallows_its_cancellation_gets_a_refusal_for_an_answer() -> None:
    """Old libraries catch everything."""

    async def app(_scope: Any, _receive: Receive, _send: Send) -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            pass

    async def main() -> None:
        assert (await asking("1").call(virtual(app)[0])).where == "handler"

    run_virtual(main)


def test_a_check_that_fails_in_the_handler_is_a_504_and_an_inner_limit_is_not() -> None:
    """A call that the handler itself limited to 0.1 s may fail long before the caller loses patience."""

    async def needs_more(_scope: Any, _receive: Receive, _send: Send) -> None:
        check(need=3)

    async def inner(_scope: Any, _receive: Receive, _send: Send) -> None:
        async with deadline(0.1, name="call"):
            await asyncio.sleep(1)

    async def main() -> None:
        assert (await asking("1").call(virtual(needs_more)[0])).where == "handler"
        with pytest.raises(DeadlineExceeded, match="at call"):
            await asking("1").call(virtual(inner)[0])

    run_virtual(main)


def test_errors_and_cancellations_of_others_pass_through() -> None:
    """The server's own shutdown must end the request, not become a 504."""

    async def failing(_scope: Any, _receive: Receive, _send: Send) -> None:
        raise KeyError("the app's own")

    async def main() -> None:
        with pytest.raises(KeyError):
            await Client().call(virtual(failing)[0])
        client = asking("5")
        task = asyncio.get_running_loop().create_task(client.call(virtual(sleeping(9))[0]))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client.sent == []

    run_virtual(main)


def streaming(pieces: int, every: float, seen: list[float | None]) -> Any:
    """An app that sends a piece every so often, and notes what is left before each."""

    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for number in range(pieces):
            await asyncio.sleep(every)
            seen.append(remaining())
            await send({"type": "http.response.body", "body": b"x", "more_body": number < pieces - 1})

    return app


def test_a_stream_outlives_the_deadline_of_its_first_byte() -> None:
    """Server-sent events and downloads go on for as long as the client listens, and their queries have no 10 s in all."""

    async def main() -> None:
        seen: list[float | None] = []
        client = await asking("1").call(virtual(streaming(5, 1.0, seen))[0])
        assert len(client.sent) == 6
        assert not client.sent[-1]["more_body"]
        assert seen == [None] * 5

    run_virtual(main)


def test_a_stream_declared_as_one_is_cut_and_its_connection_closed() -> None:
    """The caller counts the whole answer: half of it is an error that it must see."""

    async def main() -> None:
        seen: list[float | None] = []
        middleware, _ = virtual(streaming(5, 1.0, seen), operations={"GET /": Operation(stream=True)})
        client = await asking("2.5").call(middleware)
        assert [message["type"] for message in client.sent] == ["http.response.start"] + ["http.response.body"] * 2
        assert client.sent[-1]["more_body"], "without a last piece a server closes the connection"
        assert seen == [1.5, 0.5]

    run_virtual(main)


def websocket(seconds: float, talks: float) -> Any:
    """Accepts after `seconds`, then talks for a while."""

    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        await asyncio.sleep(seconds)
        await send({"type": "websocket.accept"})
        await asyncio.sleep(talks)
        await send({"type": "websocket.send", "text": str(remaining())})

    return app


def test_a_websocket_has_its_deadline_for_the_handshake_only() -> None:
    """A session of hours has no caller who waits for it."""

    async def main() -> None:
        client = await asking("1", kind="websocket").call(virtual(websocket(0.5, 99))[0])
        assert [message["type"] for message in client.sent] == ["websocket.accept", "websocket.send"]
        assert client.sent[1]["text"] == "None"
        client = await asking("1", kind="websocket").call(virtual(websocket(2, 0))[0])
        assert [(message["type"], message["code"]) for message in client.sent] == [("websocket.close", WEBSOCKET_CLOSE)]
        client = await asking("0", kind="websocket", extensions={"websocket.http.response": {}}).call(
            virtual(websocket(0, 0))[0]
        )
        assert client.sent[0]["type"] == "websocket.http.response.start"
        assert (client.status, client.where) == (504, "arrival")
        middleware, _ = virtual(websocket(0, 9), operations={"WEBSOCKET /": Operation(stream=True)})
        client = await asking("1", kind="websocket").call(middleware)
        assert [message["type"] for message in client.sent] == ["websocket.accept", "websocket.close"]

    run_virtual(main)


def test_a_missing_deadline_is_refused_where_one_is_required() -> None:
    """Internal operations whose callers must say what they can wait for."""

    async def main() -> None:
        middleware, counters = virtual(quick, operations={"POST /charge/{id}": Operation(require_deadline=True)})
        for headers in ([], [(b"request-timeout", b"soon")]):
            client = await Client(headers=headers, method="POST", path="/charge/17").call(middleware)
            assert (client.status, client.where, client.problem["code"]) == (400, None, "deadline_required")
        assert counters.value(Metric.REJECTED, "missing") == 2
        assert counters.value(Metric.INVALID, "request-timeout") == 1
        assert (await asking("1", method="POST", path="/charge/17").call(middleware)).status == 200
        assert (await Client(path="/charge/17").call(middleware)).status == 200, "another method is another operation"

    run_virtual(main)


def test_unreadable_values_are_refused_by_policy() -> None:
    """A service may hold its callers to the grammar."""

    async def main() -> None:
        middleware, counters = virtual(quick, DeadlinePolicy(on_invalid="reject"))
        client = await asking("1e3").call(middleware)
        assert (client.status, client.problem["code"]) == (400, "deadline_invalid")
        assert "'1e3'" in client.problem["detail"]
        assert counters.value(Metric.REJECTED, "invalid") == 1

    run_virtual(main)


def test_an_exempt_operation_has_no_deadline() -> None:
    """A long poll is meant to hang."""

    async def main() -> None:
        middleware, counters = virtual(sleeping(99), operations={"/poll": Operation(exempt=True)})
        assert (await asking("1", path="/poll").call(middleware)).status == 200
        assert counters.snapshot() == {}

    run_virtual(main)


def test_a_learned_median_refuses_work_that_would_be_dead() -> None:
    """Cases 26 and 27 through the middleware; the seconds saved are counted."""

    async def main() -> None:
        middleware, counters = virtual(sleeping(0.12), operations={"POST /render": Operation()})
        for _ in range(200):
            assert (await asking("5", method="POST", path="/render").call(middleware)).status == 200
        assert middleware.statistics()["POST /render"].median == pytest.approx(0.12)
        client = await asking("0.08", method="POST", path="/render").call(middleware)
        assert (client.status, client.where) == (504, "admission")
        assert counters.value(Metric.DEAD_WORK_AVOIDED) == pytest.approx(0.12)
        assert (await asking("0.13", method="POST", path="/render").call(middleware)).status == 200
        refused = 1
        for _ in range(200):
            client = await asking("0.08", method="POST", path="/render").call(middleware)
            assert client.status == 504
            refused += client.where == "admission"
        assert counters.value(Metric.REJECTED, "admission") == refused < 60
        assert counters.value(Metric.LET_THROUGH, "valve") > 100

    run_virtual(main)


def test_errors_teach_nothing_about_the_time_an_answer_takes() -> None:
    """A burst of quick 500s must not make slow work look quick."""

    async def failing(_scope: Any, _receive: Receive, send: Send) -> None:
        await answer(send, status=500)

    async def main() -> None:
        middleware, _ = virtual(failing)
        for _ in range(SAMPLES_MIN + 1):
            await Client().call(middleware)
        assert middleware.statistics()["GET /"].samples == 0

    run_virtual(main)


def test_a_configured_need_is_refused_without_the_valve() -> None:
    """The operator knows, where the estimate only guesses."""

    async def main() -> None:
        middleware, _ = virtual(quick, operations={"GET /": Operation(need=0.12)})
        for _ in range(20):
            assert (await asking("0.08").call(middleware)).where == "admission"
        assert (await asking("0.13").call(middleware)).status == 200

    run_virtual(main)


def test_dark_mode_counts_and_changes_nothing() -> None:
    """How one finds out what would happen before it does."""

    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        await asyncio.sleep(1)
        await answer(send, str(remaining()).encode())

    async def main() -> None:
        middleware, counters = virtual(app, DeadlinePolicy(on_invalid="reject"), mode="dark")
        for text in ("0", "0.5", "5", "soon"):
            assert (await asking(text).call(middleware)).sent[1]["body"] == b"None"
        found = {label: counters.value(Metric.WOULD_REJECT, label) for label in ("arrival", "handler", "invalid")}
        assert found == {"arrival": 1, "handler": 1, "invalid": 1}  # each once, the one that had passed too
        assert counters.value(Metric.REJECTED, "arrival") == 0

    run_virtual(main)


def test_a_client_that_goes_cuts_the_work_when_asked_to() -> None:
    """Without a body at once; with one, once it is read. An answer that is complete is left to end as it likes."""

    async def reads(_scope: Any, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await asyncio.sleep(5)
        await answer(send)

    async def background(_scope: Any, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        await answer(send)
        assert (await receive())["type"] == "http.disconnect"
        assert (await receive())["type"] == "http.disconnect"
        await asyncio.sleep(7)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for app, client in (
            (sleeping(5), Client(leaves_at=1)),
            (reads, Client(headers=[(b"content-length", b"2")], body=[b"a", b"b"], leaves_at=1)),
        ):
            middleware, counters = virtual(app, cancel_on_disconnect=True)
            started = loop.time()
            await client.call(middleware)
            assert (loop.time() - started, client.sent) == (1.0, [])
            assert counters.value(Metric.DISCONNECTED) == 1
        started = loop.time()
        assert (await Client(leaves_at=1).call(virtual(background, cancel_on_disconnect=True)[0])).status == 200
        assert loop.time() - started == 8.0
        assert (await Client(leaves_at=1).call(virtual(sleeping(5))[0])).status == 200

    run_virtual(main)


def test_a_shield_in_a_handler_outlives_the_cut() -> None:
    """The write that must not be half done."""
    done = []

    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        async with shield(max=5):
            await asyncio.sleep(3)
            done.append("written")
        await asyncio.sleep(1)
        await answer(send)

    async def main() -> None:
        assert (await asking("1").call(virtual(app)[0])).where == "handler"

    run_virtual(main)
    assert done == ["written"]


def test_spans_get_the_documented_attributes() -> None:
    """What a trace shows of a deadline."""
    attributes: dict[str, float | bool] = {}

    async def main() -> None:
        await asking("2").call(virtual(sleeping(0.5), spans=attributes.update)[0])

    run_virtual(main)
    assert attributes == {
        "deadline.received_ms": 2000.0,
        "deadline.remaining_ms": 1500.0,
        "deadline.exceeded": False,
    }


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mode": "on"}, "mode="),
        ({"status": 503}, "status="),
        ({"operations": {"render": Operation()}}, "POST /render"),
        ({"operations": {"post /render": Operation()}}, "POST /render"),
        ({"operations": {"POST /render": 1}}, "Operation"),
    ],
)
def test_bad_settings_are_refused_at_the_start(settings: Any, text: str) -> None:
    """Not at the first request."""
    with pytest.raises(ConfigurationError, match=text):
        DeadlineMiddleware(quick, clock=VirtualClock(), **settings)


@pytest.mark.parametrize("settings", [{"need": 0}, {"need": float("nan")}, {"exempt": True, "stream": True}])
def test_bad_operations_are_refused(settings: Any) -> None:
    """A need of 0 would be none."""
    with pytest.raises(ConfigurationError):
        Operation(**settings)
