"""Receiving: good signatures only, each id handled once, and a failure that is handled again; in both frameworks too."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import pytest
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from fastapi import APIRouter, Depends, FastAPI, HTTPException
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient

from gatepost.clock import SYSTEM_CLOCK
from gatepost.errors import ConfigurationError, SignatureError
from gatepost.receive import (
    AsyncRedisSeenIds,
    AsyncSeenIds,
    Inbox,
    MemorySeenIds,
    Message,
    Received,
    RedisSeenIds,
    Seen,
    SeenIds,
    SqliteSeenIds,
)
from gatepost.receive import django as for_django
from gatepost.receive import fastapi as for_fastapi
from gatepost.testing.virtual import VirtualClock
from gatepost.wire.signing import new_secret, sign

SECRET, OLD, STRANGER = (new_secret(bytes([value]) * 32) for value in (1, 2, 3))
BODY = b'{"number":  1001}'


def signed(webhook_id: str = "evt_1", secret: str = SECRET, age: int = 0, body: bytes = BODY) -> dict[str, str]:
    """The headers of a good request, made now."""
    return sign(webhook_id, SYSTEM_CLOCK.wall_us() // 1_000_000 - age, body, [secret])


class FakeRedis:
    """The three commands, in this process."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._values: dict[str, tuple[str, float]] = {}

    def set(self, name: str, value: str, *, px: int, nx: bool = False) -> bool | None:
        """SET PX [NX]."""
        if nx and self.get(name) is not None:
            return None
        self._values[name] = (value, self._clock.monotonic() + px / 1e3)
        return True

    def get(self, name: str) -> bytes | None:
        """GET, as bytes like redis-py."""
        value, until = self._values.get(name, ("", 0.0))
        return value.encode() if until > self._clock.monotonic() else None

    def delete(self, name: str, /) -> None:
        """DEL."""
        self._values.pop(name, None)


class FakeAsyncRedis:
    """The same for asyncio."""

    def __init__(self, clock: VirtualClock) -> None:
        self._inner = FakeRedis(clock)

    async def set(self, name: str, value: str, *, px: int, nx: bool = False) -> bool | None:
        """SET PX [NX]."""
        return self._inner.set(name, value, px=px, nx=nx)

    async def get(self, name: str) -> str | None:
        """GET, as text like redis-py with decode_responses."""
        found = self._inner.get(name)
        return None if found is None else found.decode()

    async def delete(self, name: str, /) -> None:
        """DEL."""
        self._inner.delete(name)


class Waiting:
    """An `AsyncSeenIds` over a synchronous one, for the suite that both share."""

    def __init__(self, seen: AsyncSeenIds) -> None:
        self._seen = seen

    def claim(self, id: str, lease: float) -> Seen:  # noqa: A002
        """Wait for it."""
        return asyncio.run(self._seen.claim(id, lease))

    def finish(self, id: str, keep: float) -> None:  # noqa: A002
        """Wait for it."""
        asyncio.run(self._seen.finish(id, keep))

    def release(self, id: str) -> None:  # noqa: A002
        """Wait for it."""
        asyncio.run(self._seen.release(id))


MEMORIES: dict[str, Callable[[VirtualClock, Path], SeenIds]] = {
    "memory": lambda clock, _: MemorySeenIds(clock=clock),
    "sqlite": lambda clock, path: SqliteSeenIds(path / "seen.db", clock=clock),
    "redis": lambda clock, _: RedisSeenIds(FakeRedis(clock)),
    "async redis": lambda clock, _: Waiting(AsyncRedisSeenIds(FakeAsyncRedis(clock))),
}


@pytest.mark.parametrize("name", MEMORIES)
def test_every_memory_of_ids_keeps_the_protocol(name: str, tmp_path: Path) -> None:
    """New once, busy until finished or released, done for as long as it is kept, and free when its process died."""
    clock = VirtualClock()
    seen = MEMORIES[name](clock, tmp_path)
    assert [seen.claim("a", 60.0), seen.claim("a", 60.0), seen.claim("b", 60.0)] == [Seen.NEW, Seen.BUSY, Seen.NEW]
    seen.finish("a", 600.0)
    seen.release("b")
    assert [seen.claim("a", 60.0), seen.claim("b", 60.0)] == [Seen.DONE, Seen.NEW]
    clock.advance(61.0)
    assert [seen.claim("a", 60.0), seen.claim("b", 60.0)] == [Seen.DONE, Seen.NEW]
    seen.release("a")  # by a handler that outlived its claim
    assert seen.claim("a", 60.0) is Seen.DONE
    clock.advance(600.0)
    assert seen.claim("a", 60.0) is Seen.NEW
    seen.release("never claimed")
    with pytest.raises(ConfigurationError, match="lease"):
        seen.claim("c", 0.0)
    with pytest.raises(ConfigurationError, match="keep"):
        seen.finish("c", -1.0)
    if isinstance(seen, SqliteSeenIds):
        seen.close()


def test_memory_is_bounded() -> None:
    """The oldest id goes first."""
    seen = MemorySeenIds(ids_max=2)
    for webhook_id in ("a", "b", "c"):
        seen.claim(webhook_id, 60.0)
    assert (len(seen), seen.claim("c", 60.0), seen.claim("a", 60.0)) == (2, Seen.BUSY, Seen.NEW)
    with pytest.raises(ConfigurationError, match="ids_max"):
        MemorySeenIds(ids_max=0)


def test_a_file_is_shared_kept_and_swept(tmp_path: Path) -> None:
    """Two processes see one truth, a restart forgets nothing, and what ran out goes."""
    clock = VirtualClock()
    one, other = (SqliteSeenIds(tmp_path / "seen.db", clock=clock) for _ in range(2))
    assert (one.claim("a", 60.0), other.claim("a", 60.0)) == (Seen.NEW, Seen.BUSY)
    one.finish("a", 600.0)
    one.close()
    again = SqliteSeenIds(tmp_path / "seen.db", clock=clock)
    assert (other.claim("a", 60.0), again.claim("a", 60.0)) == (Seen.DONE, Seen.DONE)
    for number in range(30):
        again.claim(str(number), 1.0)
    clock.advance(700.0)
    for webhook_id in ("x", "y"):
        again.claim(webhook_id, 60.0)
    rows = again._connection.execute("SELECT count(*) FROM gatepost_seen").fetchone()
    assert rows == (2,)
    again.close()
    other.close()


def test_a_webhook_is_handled_once() -> None:
    """Its repetition is answered 204 too: the sender has done its part."""
    inbox = Inbox([SECRET, OLD], seen=MemorySeenIds())
    handled = []
    answers = []
    for headers in (signed(), signed(), signed("evt_2", OLD)):
        with inbox.receive(BODY, headers) as received:
            if received.message is not None:
                handled.append(received.message.id)
        answers.append((received.status, received.code))
    assert handled == ["evt_1", "evt_2"]
    assert answers == [(204, "accepted"), (204, "duplicate"), (204, "accepted")]


def test_what_failed_is_handled_again() -> None:
    """An id that were only marked on arrival would lose the event."""
    inbox = Inbox([SECRET], seen=MemorySeenIds())
    with pytest.raises(KeyError), inbox.receive(BODY, signed()):
        raise KeyError
    with inbox.receive(BODY, signed()) as received:
        assert received.message is not None
        with inbox.receive(BODY, signed()) as meanwhile:
            assert (meanwhile.message, meanwhile.status, meanwhile.headers) == (None, 503, {"Retry-After": "5"})


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (dict, "missing_header"),
        (partial(signed, secret=STRANGER), "no_match"),
        (partial(signed, age=3_600), "timestamp_too_old"),
        (partial(signed, body=b"other"), "no_match"),
    ],
)
def test_what_nobody_signed_is_refused_and_claims_nothing(headers: Callable[[], dict[str, str]], code: str) -> None:
    """A forged id must not make the real one look like a repetition."""
    seen = MemorySeenIds()
    with Inbox([SECRET], seen=seen).receive(BODY, headers()) as received:
        assert (received.message, received.status, received.code) == (None, 401, code)
    assert len(seen) == 0


def test_without_a_memory_repetitions_are_handled_again() -> None:
    """The handler's own unique column is then what tells."""
    inbox = Inbox([SECRET])
    for _ in range(2):
        with inbox.receive(BODY, signed()) as received:
            assert received.message == Message("evt_1", received.message.timestamp, BODY) if received.message else False


async def test_on_an_event_loop_both_kinds_of_memory_serve() -> None:
    """The synchronous one is asked in a thread, so that a disk does not stop the loop."""
    for seen in (MemorySeenIds(), AsyncRedisSeenIds(FakeAsyncRedis(VirtualClock())), None):
        inbox = Inbox([SECRET], seen=seen)
        with pytest.raises(KeyError):
            async with inbox.areceive(BODY, signed()):
                raise KeyError
        codes = []
        for headers in (signed(), signed(), {}):
            async with inbox.areceive(BODY, headers) as received:
                codes.append(received.code)
        assert codes == ["accepted", "accepted" if seen is None else "duplicate", "missing_header"]
    with (
        pytest.raises(ConfigurationError, match="areceive"),
        Inbox([SECRET], seen=AsyncRedisSeenIds(FakeAsyncRedis(VirtualClock()))).receive(BODY, signed()),
    ):
        pass


def test_mistakes_of_the_receiver_are_not_blamed_on_the_sender() -> None:
    """They are said when the inbox is made, and a bad secret of a function is no 401."""
    with pytest.raises(SignatureError, match="whsec_"):
        Inbox(["secret"])
    for options in (
        {"keep": 0.0},
        {"lease": -1.0},
        {"tolerance": 0.0},
        {"max_body": 0},
        {"keep": 100.0},
        {"keep": 600.0},
    ):
        with pytest.raises(ConfigurationError, match="write"):
            Inbox([SECRET], **options)
    inbox = Inbox(lambda: ["secret"])
    with pytest.raises(SignatureError), inbox.receive(BODY, signed()):
        pass
    assert Inbox(lambda: [SECRET]).check(BODY, signed()).code == "accepted"
    assert Inbox([SECRET], max_body=4).check(BODY, signed()).status == 413
    assert SECRET not in repr(inbox) + repr(Received(None, 401, "no_match"))


def test_it_needs_no_dependency() -> None:
    """A receiver installs no parser, no framework and nothing of the sender."""
    source = str(Path(__file__).resolve().parents[2] / "src")
    program = f"import sys; sys.path.insert(0, {source!r}); import gatepost.receive; gatepost.receive.Inbox; "
    program += "assert not any(m.startswith(('gatepost.net', 'gatepost.dispatch', 'fastapi')) for m in sys.modules)"
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, timeout=60)


# ----------------------------------------------------------------------------------------------------- FastAPI


received_once = for_fastapi.webhook([SECRET], seen=MemorySeenIds(), max_body=1_000)
received_by_route = for_fastapi.webhook([SECRET], seen=MemorySeenIds())


def test_fastapi_runs_the_route_once_for_what_is_signed() -> None:
    """And an error in it frees the id."""
    handled: list[str] = []
    app = FastAPI()

    @app.post("/webhooks", status_code=204)
    async def orders(message: Annotated[Message, Depends(received_once)]) -> None:
        handled.append(message.id)
        if message.id == "evt_bad" and len(handled) < 3:
            raise HTTPException(503, "later")

    with TestClient(app) as client:

        def post(headers: dict[str, str], body: bytes = BODY) -> tuple[int, str]:
            answer = client.post("/webhooks", content=body, headers=headers)
            return answer.status_code, answer.text

        assert post(signed()) == (204, "")
        assert post(signed()) == (204, "")
        assert post(signed("evt_bad"))[0] == 503
        assert post(signed("evt_bad"))[0] == 204
        assert handled == ["evt_1", "evt_bad", "evt_bad"]
        assert post({}) == (401, '{"detail":"missing_header"}')
        assert post(signed(), b"x" * 2_000)[0] == 413


def test_fastapi_s_webhook_route_handles_again_what_was_answered_with_an_error() -> None:
    """Returned, not raised: without the route class a dependency takes it for success, and the event would be gone."""
    handled: list[str] = []
    app = FastAPI()
    router = APIRouter(route_class=for_fastapi.WebhookRoute)

    @router.post("/webhooks")
    async def orders(message: Annotated[Message, Depends(received_by_route)]) -> JSONResponse:
        handled.append(message.id)
        return JSONResponse({}, 500 if len(handled) == 1 else 200)

    app.include_router(router)
    with TestClient(app) as client:
        codes = [client.post("/webhooks", content=BODY, headers=signed()).status_code for _ in range(3)]
    assert codes == [500, 200, 204]
    assert handled == ["evt_1", "evt_1"]


def test_fastapi_takes_an_inbox_of_your_own() -> None:
    """For what the helper does not do."""
    assert for_fastapi.webhook(Inbox([SECRET])) is not None
    with pytest.raises(TypeError, match="Inbox"):
        for_fastapi.webhook(Inbox([SECRET]), keep=1.0)


# ------------------------------------------------------------------------------------------------------ Django


@pytest.fixture(autouse=True, scope="module")
def django_settings() -> None:
    """The least that Django wants."""
    if not settings.configured:
        settings.configure(DATA_UPLOAD_MAX_MEMORY_SIZE=5_000, ALLOWED_HOSTS=["*"], USE_TZ=True)


def meta(headers: dict[str, str]) -> dict[str, str]:
    """Headers as a WSGI server passes them."""
    return {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}


def test_django_runs_the_view_once_for_what_is_signed() -> None:
    """An error in it, or an answer that says so, frees the id; no CSRF token is asked for."""
    handled: list[str] = []

    @for_django.webhook([SECRET], seen=MemorySeenIds(), max_body=1_000)
    def orders(request: HttpRequest, message: Message, *, shop: str = "") -> HttpResponse | None:
        handled.append(shop + message.id)
        if message.id == "evt_raises" and len(handled) < 3:
            raise KeyError
        return HttpResponse(status=503) if message.id == "evt_says" and len(handled) < 5 else None

    def post(headers: dict[str, str], body: bytes = BODY) -> tuple[int, bytes]:
        request = RequestFactory().post("/", body, content_type="application/json", **meta(headers))
        response = orders(request, shop="a-")
        return response.status_code, response.content

    assert orders.csrf_exempt  # type: ignore[attr-defined]  # what the middleware looks at
    assert post(signed()) == (204, b"")
    assert post(signed()) == (204, b"")
    with pytest.raises(KeyError):
        post(signed("evt_raises"))
    assert post(signed("evt_raises"))[0] == 204
    assert post(signed("evt_says"))[0] == 503
    assert post(signed("evt_says"))[0] == 204
    assert handled == ["a-evt_1", "a-evt_raises", "a-evt_raises", "a-evt_says", "a-evt_says"]
    assert post({}) == (401, b"missing_header")
    assert post(signed(), b"x" * 2_000)[0] == 413
    assert post(signed(), b"x" * 9_000)[0] == 413
    assert orders(RequestFactory().get("/")).status_code == 405


async def test_django_runs_asynchronous_views_too() -> None:
    """Under ASGI, with either kind of memory."""
    handled: list[str] = []

    @for_django.webhook(Inbox([SECRET], seen=AsyncRedisSeenIds(FakeAsyncRedis(VirtualClock()))))
    async def orders(request: HttpRequest, message: Message) -> HttpResponse:
        handled.append(message.id)
        return HttpResponse(status=503 if len(handled) < 2 else 204)

    async def post(headers: dict[str, str]) -> int:
        request = AsyncRequestFactory().post("/", BODY, content_type="application/json", headers=headers)
        return int((await orders(request)).status_code)

    assert [await post(headers) for headers in (signed(), signed(), signed(), {})] == [503, 204, 204, 401]
    assert handled == ["evt_1", "evt_1"]
    assert (await orders(AsyncRequestFactory().get("/"))).status_code == 405
    with pytest.raises(TypeError, match="Inbox"):
        for_django.webhook(Inbox([SECRET]), keep=1.0)
