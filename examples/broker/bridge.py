"""Takes messages from a Redis (or Valkey) stream and publishes them as events, each at least once from the broker and once as an event.

A message is acknowledged after its event is durable, never before. Whatever dies when, it is read again; its idempotency key, which
is its place in the stream, makes the repetition a duplicate. What can never be an event is moved to the stream `NAME:aside`.

    python bridge.py --broker redis://localhost:6379 --stream events --database sqlite:///gatepost.db
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from gatepost import Publisher
from gatepost.errors import GatepostError, IdempotencyConflict, Overloaded

BATCH: Final = 100
"""Messages published together: one commit or two."""
BLOCK_MS: Final = 1_000
"""How long the broker is asked to wait for the next message."""
ABANDONED_MS: Final = 30_000
"""A message that another bridge took and did not acknowledge for so long is taken over."""
RETRY: Final = 1.0
"""Seconds before the broker or the store is asked again after a failure."""

log = logging.getLogger("bridge")

Message = tuple[bytes, Mapping[bytes, bytes]]


class Bridge:
    """One consumer of a group. `gp` is a `Publisher` or a `Dispatcher`: anything that publishes."""

    def __init__(self, broker: redis.asyncio.Redis, stream: str, group: str, consumer: str, gp: Any) -> None:
        self._broker = broker
        self._stream = stream
        self._group = group
        self._consumer = consumer
        self._gp = gp

    async def run(self) -> None:
        """Until cancelled. A broker or a store that fails is asked again; what was read stays pending meanwhile."""
        ready = False
        while True:
            try:
                if not ready:
                    await self._make_group()
                    await self._take_pending()
                    ready = True
                await self._publish(await self._abandoned())
                await self._publish(await self._read(">"))
            except (RedisError, OSError, GatepostError) as error:
                log.warning("trying again in %g s: %s", RETRY, error)
                await asyncio.sleep(error.retry_after if isinstance(error, Overloaded) else RETRY)
                ready = False  # some of the last batch may still be pending

    async def _make_group(self) -> None:
        try:
            await self._broker.xgroup_create(self._stream, self._group, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):  # the protocol's error code: the group is there
                raise

    async def _take_pending(self) -> None:
        """What this consumer read in an earlier life and did not acknowledge."""
        while messages := await self._read("0"):
            await self._publish(messages)

    async def _read(self, after: str) -> Sequence[Message]:
        block = BLOCK_MS if after == ">" else None
        found: Any = await self._broker.xreadgroup(
            self._group, self._consumer, {self._stream: after}, count=BATCH, block=block
        )
        return found[0][1] if found else ()

    async def _abandoned(self) -> Sequence[Message]:
        """What consumers left behind that will not come back."""
        found: Any = await self._broker.xautoclaim(
            self._stream, self._group, self._consumer, min_idle_time=ABANDONED_MS, count=BATCH
        )
        messages: Sequence[Message] = found[1]
        return messages

    async def _publish(self, messages: Sequence[Message]) -> None:
        """All of them together, in order. Acknowledges what is durable; raises the first failure that is nobody's fault."""
        if not messages:
            return
        results = await asyncio.gather(*(self._publish_one(*one) for one in messages), return_exceptions=True)
        done = [number for (number, _), result in zip(messages, results, strict=True) if result is None]
        if done:
            await self._broker.xack(self._stream, self._group, *done)
        for (number, fields), result in zip(messages, results, strict=True):
            if isinstance(result, ValueError | TypeError | KeyError | IdempotencyConflict):
                await self._set_aside(number, fields, result)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(
                result, ValueError | TypeError | KeyError | IdempotencyConflict
            ):
                raise result

    async def _publish_one(self, number: bytes, fields: Mapping[bytes, bytes] | None) -> None:
        if not fields:
            return  # deleted from the stream while it was pending: there is nothing left to publish
        given = {name.decode(): value for name, value in fields.items()}
        payload = given["payload"]
        json.loads(payload)  # a producer that writes no JSON is told by the stream of what was set aside
        await self._gp.publish(
            given["type"].decode(),
            payload,
            idempotency_key=f"{self._stream}:{number.decode()}",
            tenant=given.get("tenant", b"default").decode(),
            ordering_key=given["ordering_key"].decode() if "ordering_key" in given else None,
            traceparent=given["traceparent"].decode() if "traceparent" in given else None,
        )

    async def _set_aside(self, number: bytes, fields: Mapping[bytes, bytes], why: BaseException) -> None:
        """In one transaction of the broker: the message is in one of the two streams, whatever dies when."""
        log.warning("%s of %s is set aside: %r", number.decode(), self._stream, why)
        async with self._broker.pipeline(transaction=True) as both:
            kept: dict[Any, Any] = {**fields, b"from": number, b"why": repr(why).encode()}
            both.xadd(f"{self._stream}:aside", kept)
            both.xack(self._stream, self._group, number)
            await both.execute()


async def main(arguments: Sequence[str] | None = None) -> None:
    """Until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="Publish what comes in a Redis stream.")
    parser.add_argument("--broker", default="redis://localhost:6379")
    parser.add_argument("--stream", default="events")
    parser.add_argument("--group", default="gatepost")
    parser.add_argument(
        "--consumer", default=socket.gethostname(), help="the same after a restart, another for each bridge"
    )
    parser.add_argument("--database", default="sqlite:///gatepost.db", help="Gatepost's own, as of `gatepost serve`")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO)
    async with (
        redis.asyncio.Redis.from_url(options.broker) as broker,
        Publisher.open(options.database) as publisher,
    ):
        bridge = Bridge(broker, options.stream, options.group, options.consumer, publisher)
        running = asyncio.ensure_future(bridge.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        log.info("bridge %d reads %s as %s", os.getpid(), options.stream, options.consumer)
        await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
