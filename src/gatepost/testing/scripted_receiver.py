"""A webhook receiver in a thread for tests of code that sends: records each request, verifies it, answers by script.

It works in synchronous tests and in asynchronous ones of any runner, since it shares no event loop with them. For load use
`receiver.Receiver`, for misbehaviour `hostile.HostileServer`. The fixture `gatepost_receiver` is one of these.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from gatepost.clock import SYSTEM_CLOCK
from gatepost.errors import ConfigurationError, SignatureError
from gatepost.wire.signing import SECRET_BYTES_MIN, Message, Signer, new_secret, verify

BODY_MAX: Final = 64 * 1_048_576
WAIT: Final = 10.0
"""Seconds `wait_for` waits: generous, since a test that passes never waits so long."""
REQUEST_PATIENCE: Final = 10.0
"""Seconds a connection may be idle before its thread ends."""
TEST_SECRET: Final = new_secret(bytes(range(SECRET_BYTES_MIN)))
"""The secret of a receiver that is given none. Fixed, so that a failing test reads the same twice; known to everybody."""


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """How one request is answered, `delay` seconds after it came."""

    status: int = 204
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class ReceivedWebhook:
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    """Names in lower case; of a repeated name the last one counts."""
    body: bytes
    message: Message | None
    """The verified message; None when the signature does not hold."""
    fault: str | None
    """The code of `SignatureError`, or None."""
    status: int
    """What it was answered."""

    @property
    def id(self) -> str:
        """The `webhook-id`, verified or not; empty without one."""
        return self.headers.get("webhook-id", "")

    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


class ScriptedReceiver:
    """Listens on loopback while the `with` block runs. Requests without a good signature are recorded and answered 401.

    `secrets` are those of the endpoint under test; give an endpoint `secret` and it fits. `signed=False` takes anything.
    """

    def __init__(self, secrets: Sequence[str] = (TEST_SECRET,), *, signed: bool = True) -> None:
        Signer(secrets)  # raises for what is no secret
        self.secrets = tuple(secrets)
        self._signed = signed
        self._script: deque[ScriptedAnswer] = deque()
        self._default = ScriptedAnswer()
        self._received: list[ReceivedWebhook] = []
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="gatepost-receiver", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.end_connections()
        self._server.server_close()
        self._thread.join(REQUEST_PATIENCE)

    def __repr__(self) -> str:
        return f"<ScriptedReceiver {self.url} received={len(self.received)}>"

    @property
    def url(self) -> str:
        """`http://127.0.0.1:port/webhooks`. Senders must be allowed to call it: `EgressPolicy(schemes=("http",), …)`."""
        return f"http://127.0.0.1:{self._server.server_port}/webhooks"

    @property
    def secret(self) -> str:
        """The first secret."""
        return self.secrets[0]

    @property
    def received(self) -> list[ReceivedWebhook]:
        """Every request so far, in the order in which they were answered."""
        with self._changed:
            return list(self._received)

    @property
    def messages(self) -> list[Message]:
        """The verified ones that were answered 2xx, repetitions included."""
        return [one.message for one in self.received if one.message is not None and 200 <= one.status < 300]

    def script(self, *answers: int | ScriptedAnswer) -> None:
        """Answer the next requests so, one each, in order: `script(503, 503, 204)`. A number is a status."""
        with self._changed:
            self._script.extend(_answer(one) for one in answers)

    def always(self, answer: int | ScriptedAnswer) -> None:
        """Answer so whenever the script is at its end; 204 unless said otherwise."""
        with self._changed:
            self._default = _answer(answer)

    def wait_for(self, count: int = 1, *, timeout: float = WAIT) -> list[ReceivedWebhook]:
        """Wait until `count` requests were answered and return all. Raises `AssertionError` that tells what came instead.

        It blocks: on an event loop that also sends, write `await asyncio.to_thread(receiver.wait_for, 2)`.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._received) >= count, timeout)
            if len(self._received) < count:
                seen = [(one.status, one.fault or "verified", one.id) for one in self._received]
                raise AssertionError(f"{len(seen)} of {count} webhooks came within {timeout:g} s: {seen}")
            return list(self._received)

    def _take(self, path: str, headers: Mapping[str, str], body: bytes) -> ScriptedAnswer:
        message, fault = None, None
        try:
            message = verify(body, headers, self.secrets, now=SYSTEM_CLOCK.wall_us() / 1e6)
        except SignatureError as error:
            fault = error.code
        with self._changed:
            if fault is not None and self._signed:
                answer = ScriptedAnswer(401, fault.encode())
            else:
                answer = self._script.popleft() if self._script else self._default
        self._closing.wait(answer.delay)
        with self._changed:
            self._received.append(ReceivedWebhook(path, headers, body, message, fault, answer.status))
            self._changed.notify_all()
        return answer


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: set[Any] = set()
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection, so that one kept open by a client's pool does not outlive the test."""
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Its end."""
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def end_connections(self) -> None:
        """End what is open; the threads see the end of their connection."""
        with self._lock:
            for request in self._open:
                try:
                    request.shutdown(2)
                except OSError:
                    pass  # gone already

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no error of the test's receiver."""


def _handler_of(receiver: ScriptedReceiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = REQUEST_PATIENCE

        def do_POST(self) -> None:
            length = self.headers.get("content-length", "")
            if not length.isdigit() or int(length) > BODY_MAX:
                self.close_connection = True
                self.send_error(411)
                return
            body = self.rfile.read(int(length))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = receiver._take(self.path, headers, body)  # noqa: SLF001 - two halves of one object
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.status not in (204, 304):
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if answer.status not in (204, 304):
                self.wfile.write(answer.body)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
            """Say nothing: what came is in `received`."""

    return Handler


def _answer(answer: int | ScriptedAnswer) -> ScriptedAnswer:
    found = ScriptedAnswer(answer) if isinstance(answer, int) else answer
    if not 200 <= found.status <= 599:
        raise ConfigurationError(f"status {found.status}: write 200 to 599")
    return found
