"""A memory of webhook ids in Redis, Valkey or anything with their `SET … NX PX`: for receivers on many machines.

It is written against the four calls it makes, not against a library: redis-py, valkey-py and their asyncio clients fit as they
are. One key an id, which expires by itself. It opens no connection and handles none of their errors: they become a 5xx.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, Protocol

from gatepost.receive.seen import Seen, check_seconds

PREFIX: Final = "gatepost:seen:"


class RedisLike(Protocol):
    """What is used of a Redis client. `px` is milliseconds; `nx` sets only what is not there, and answers None otherwise."""

    def set(self, name: str, value: str, *, px: int, nx: bool = False) -> Any:
        """SET name value PX px [NX]."""
        ...

    def get(self, name: str) -> Any:
        """GET name: bytes or text, or None."""
        ...

    def delete(self, name: str, /) -> Any:
        """DEL name."""
        ...


class AsyncRedisLike(Protocol):
    """The same of an asyncio client."""

    def set(self, name: str, value: str, *, px: int, nx: bool = False) -> Awaitable[Any]:
        """SET name value PX px [NX]."""
        ...

    def get(self, name: str) -> Awaitable[Any]:
        """GET name."""
        ...

    def delete(self, name: str, /) -> Awaitable[Any]:
        """DEL name."""
        ...


class RedisSeenIds:
    """`SeenIds` over a synchronous client: `RedisSeenIds(redis.Redis(…))`."""

    def __init__(self, client: RedisLike, *, prefix: str = PREFIX) -> None:
        self._client = client
        self._prefix = prefix

    def claim(self, id: str, lease: float) -> Seen:  # noqa: A002
        """As in `SeenIds`."""
        if self._client.set(self._prefix + id, Seen.BUSY.value, px=_milliseconds("lease", lease), nx=True):
            return Seen.NEW
        return _state(self._client.get(self._prefix + id))

    def finish(self, id: str, keep: float) -> None:  # noqa: A002
        """As in `SeenIds`."""
        self._client.set(self._prefix + id, Seen.DONE.value, px=_milliseconds("keep", keep))

    def release(self, id: str) -> None:  # noqa: A002
        """As in `SeenIds`; asks first, so that an id that another has finished meanwhile stays."""
        if _state(self._client.get(self._prefix + id)) is not Seen.DONE:
            self._client.delete(self._prefix + id)


class AsyncRedisSeenIds:
    """`AsyncSeenIds` over an asyncio client: `AsyncRedisSeenIds(redis.asyncio.Redis(…))`."""

    def __init__(self, client: AsyncRedisLike, *, prefix: str = PREFIX) -> None:
        self._client = client
        self._prefix = prefix

    async def claim(self, id: str, lease: float) -> Seen:  # noqa: A002
        """As in `SeenIds`."""
        if await self._client.set(self._prefix + id, Seen.BUSY.value, px=_milliseconds("lease", lease), nx=True):
            return Seen.NEW
        return _state(await self._client.get(self._prefix + id))

    async def finish(self, id: str, keep: float) -> None:  # noqa: A002
        """As in `SeenIds`."""
        await self._client.set(self._prefix + id, Seen.DONE.value, px=_milliseconds("keep", keep))

    async def release(self, id: str) -> None:  # noqa: A002
        """As in `SeenIds`; asks first, so that an id that another has finished meanwhile stays."""
        if _state(await self._client.get(self._prefix + id)) is not Seen.DONE:
            await self._client.delete(self._prefix + id)


def _state(value: object) -> Seen:
    text = value.decode() if isinstance(value, bytes) else value
    # Gone between the two calls: it ran out or was released just now. Busy makes the sender ask once more, and that is safe.
    return Seen.DONE if text == Seen.DONE.value else Seen.BUSY


def _milliseconds(name: str, seconds: float) -> int:
    check_seconds(name, seconds)
    return max(1, round(seconds * 1_000))
