"""Refuses the body of a request that is larger than any route takes, while it comes in.

The framework reads a body whole before it asks who sends it, so without this a stranger could fill our memory. ASGI middleware of
`api.app`; events have larger bounds of their own (`ingest`), forms of the console smaller ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

BODY_BYTES_MAX: Final = 1_048_576
"""The largest is an event type's schema, 64 KiB written with escapes."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class BoundedBody:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._behind = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        read = 0

        async def receive_bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > BODY_BYTES_MAX:
                raise HTTPException(413)
            return message

        await self._behind(scope, receive_bounded, send)
