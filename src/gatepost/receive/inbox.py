"""Decides what becomes of one received webhook: handle it, or answer without handling, and with which status.

2xx means "mine now"; everything else makes a sender come again with the same `webhook-id`. It reads no socket and knows no
framework: `receive.fastapi`, `receive.django` and your own code bring raw body and headers, and send the answer.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final, cast

from gatepost.errors import ConfigurationError, SignatureError
from gatepost.receive.seen import AsyncSeenIds, Seen, SeenIds, check_seconds
from gatepost.wire.signing import TOLERANCE, Headers, Message, Signer, verify

KEEP: Final = 7 * 86_400.0
"""Seconds a handled id is remembered: a sender's window of 4 days for one event, and room for a replay by hand."""
LEASE: Final = 60.0
"""Seconds after which a claimed id is free again: its process is gone. Longer than any handler should take."""
RETRY_AFTER: Final = 5
"""Seconds to come again while another request with the same id is being handled."""
MAX_BODY: Final = 1_048_576
"""Bytes of a body that the frameworks' helpers read: the largest payload that Gatepost sends by default."""

Secrets = Sequence[str] | Callable[[], Sequence[str]]


class Received:
    """One webhook and the answer to it. Handle `message` unless it is None, then send `status`."""

    __slots__ = ("code", "headers", "message", "status")

    def __init__(self, message: Message | None, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self.message = message
        """None: it was refused, is a repetition, or is being handled elsewhere."""
        self.status = status
        """204 handled, or a repetition of what was; 401 no good signature; 413 too large; 503 being handled: come again."""
        self.code = code
        """`accepted`, `duplicate`, `busy`, `too_large`, or a code of `SignatureError`."""
        self.headers = headers or {}
        """Headers of the answer."""

    def __repr__(self) -> str:
        return f"<Received {self.code} {self.status}>"


class Inbox:
    """What every request goes through; one for each set of secrets, shared between threads and tasks.

    `secrets`: the current one first, the old one behind it while the sender rotates; or a function that returns them, asked for
    each request. `seen` lets each id through once; without it repetitions are handled again. `tolerance`, `keep` and `lease` are
    seconds. Raises `SignatureError` ("malformed_secret") and `ConfigurationError` at once, not on the first request.
    """

    def __init__(
        self,
        secrets: Secrets,
        *,
        seen: SeenIds | AsyncSeenIds | None = None,
        tolerance: float = TOLERANCE,
        keep: float = KEEP,
        lease: float = LEASE,
        max_body: int = MAX_BODY,
    ) -> None:
        check_seconds("keep", keep)
        check_seconds("lease", lease)
        check_seconds("tolerance", tolerance)
        if max_body < 1:
            raise ConfigurationError(f"max_body={max_body}: write bytes, 1 or more")
        # A signature made `tolerance` ahead of our clock holds from now until `tolerance` after its time: twice as long.
        if keep <= 2 * tolerance:
            raise ConfigurationError(
                f"keep={keep:g} is not longer than twice tolerance={tolerance:g}: an id forgotten while its signature still holds "
                f"could be sent once more; write keep={tolerance * 3:g} or more"
            )
        if not callable(secrets):
            Signer(secrets)  # raises for what is none
        self._secrets = secrets
        self._seen = seen
        self._async = seen is not None and inspect.iscoroutinefunction(seen.claim)
        self._tolerance = tolerance
        self._keep = keep
        self._lease = lease
        self.max_body = max_body
        """Bytes of a body; a longer one is answered 413."""

    def __repr__(self) -> str:
        return f"<Inbox seen={self._seen!r}>"

    @contextmanager
    def receive(self, body: bytes, headers: Headers, *, now: float | None = None) -> Iterator[Received]:
        """Around the work on one request: an exception in the block frees the id, leaving it finishes it.

        `now` is seconds since 1970; not given: the system clock.
        """
        if self._async:
            raise ConfigurationError("the memory of ids is asynchronous: write async with inbox.areceive(…)")
        seen = cast("SeenIds | None", self._seen)
        received = self.check(body, headers, now=now)
        if received.message is None or seen is None:
            yield received
            return
        webhook_id = received.message.id
        received = _answer(received, seen.claim(webhook_id, self._lease))
        if received.message is None:
            yield received
            return
        try:
            yield received
        except BaseException:
            seen.release(webhook_id)
            raise
        seen.finish(webhook_id, self._keep)

    @asynccontextmanager
    async def areceive(self, body: bytes, headers: Headers, *, now: float | None = None) -> AsyncIterator[Received]:
        """`receive` on an event loop, which a synchronous memory does not block: it is asked in a thread."""
        received = self.check(body, headers, now=now)
        seen = self._seen
        if received.message is None or seen is None:
            yield received
            return
        webhook_id = received.message.id
        # A claim that is cut short may have been made; it runs out by itself.
        state = await _call(seen.claim, webhook_id, self._lease)
        assert isinstance(state, Seen)
        received = _answer(received, state)
        if received.message is None:
            yield received
            return
        try:
            yield received
        except BaseException:
            await _call(seen.release, webhook_id)
            raise
        await _call(seen.finish, webhook_id, self._keep)

    def check(self, body: bytes, headers: Headers, *, now: float | None = None) -> Received:
        """The signature alone. A bad secret of a `secrets` function raises: it is the receiver's fault, not the sender's."""
        if len(body) > self.max_body:
            return self.too_large()
        secrets = self._secrets() if callable(self._secrets) else self._secrets
        try:
            message = verify(body, headers, secrets, tolerance=self._tolerance, now=now)
        except SignatureError as error:
            if error.code == "malformed_secret":
                raise
            return Received(None, 401, error.code)
        return Received(message, 204, "accepted")

    def too_large(self) -> Received:
        """The answer to a body that is not read to its end."""
        return Received(None, 413, "too_large")


def _answer(received: Received, state: Seen) -> Received:
    match state:
        case Seen.NEW:
            return received
        case Seen.DONE:
            return Received(None, 204, "duplicate")
        case Seen.BUSY:
            return Received(None, 503, "busy", {"Retry-After": str(RETRY_AFTER)})


async def _call(function: Callable[..., object], *arguments: object) -> object:
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    return await asyncio.to_thread(function, *arguments)
