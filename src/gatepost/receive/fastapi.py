"""Webhooks in a FastAPI (or Starlette) application: a dependency that yields a checked message, once for each id.

    received = webhook(["whsec_…"], seen=SqliteSeenIds("seen.db"))
    router = APIRouter(route_class=WebhookRoute)

    @router.post("/webhooks", status_code=204)
    async def orders(message: Annotated[Message, Depends(received)]) -> None: ...

The route runs only for what is to be handled; everything else is answered before it. An exception in the route frees the id, so
that the repetition is handled; so does an answer from 400 on, which only `WebhookRoute` can see. Needs fastapi.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, TypeAlias

from gatepost.receive.inbox import Inbox, Secrets
from gatepost.wire.signing import Message

try:
    from fastapi import HTTPException, Request, Response
    from fastapi.routing import APIRoute
except ImportError as error:
    raise ImportError("gatepost.receive.fastapi needs FastAPI: pip install fastapi") from error

Dependency: TypeAlias = Callable[[Request], AsyncIterator[Message]]
_REFUSED: Final = "gatepost.receive.refused"
"""In a request's scope: the route answered with an error."""


class _Refused(Exception):
    """Leaves the inbox as a failure would; never seen outside."""


class WebhookRoute(APIRoute):
    """A route that also counts an error it *returns* as a failure: `APIRouter(route_class=WebhookRoute)`, or for a whole
    application `app.router.route_class = WebhookRoute` before its routes are written.

    A dependency sees exceptions only. On an ordinary route `return JSONResponse(…, 500)` would mark the webhook as handled, and its
    repetition would be answered 204 without the route being asked: raise `HTTPException` there.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As `APIRoute`, looking at the answer."""
        handle = super().get_route_handler()

        async def look(request: Request) -> Response:
            response = await handle(request)
            if response.status_code >= 400:
                request.scope[_REFUSED] = True
            return response

        return look


def webhook(secrets: Secrets | Inbox, **options: Any) -> Dependency:
    """A dependency for `Depends`. `secrets` and `options` are those of `Inbox`, or give an `Inbox` itself.

    Answers 401 with the code of the fault, 413, 503 with `Retry-After` while another request has the same id, and 204 for a
    repetition. Body parameters beside it are parsed as always, but read before the check: take the bytes from `message.body`.
    """
    if isinstance(secrets, Inbox) and options:
        raise TypeError("options are those of the Inbox: give them where it is made")
    inbox = secrets if isinstance(secrets, Inbox) else Inbox(secrets, **options)

    async def receive(request: Request) -> AsyncIterator[Message]:
        body = await _body(request, inbox.max_body)
        try:
            async with inbox.areceive(body, request.headers) as received:
                if received.message is None:
                    raise HTTPException(received.status, received.code, received.headers)
                yield received.message
                if _REFUSED in request.scope:
                    raise _Refused
        except _Refused:
            pass

    return receive


async def _body(request: Request, most: int) -> bytes:
    """The raw body, given up as soon as it is over `most`: `Inbox` then answers 413 without a signature being computed."""
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > most:
            break
    return bytes(parts)
