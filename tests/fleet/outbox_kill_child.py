"""A dispatcher that is killed after it has stored what it found in an outbox, and before it has put the rows away."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Collection

from gatepost.dispatch.dispatcher import Dispatcher
from gatepost.net.client import DispatchClient
from gatepost.store.outbox.source import Judge, Look, OutboxSource, Verdict, open_source
from gatepost.store.sqlite.store import SqliteStore


class Killing:
    """The source of a URL, with an accident built in."""

    def __init__(self, source: OutboxSource) -> None:
        self._source = source

    @property
    def place(self) -> str:
        return self._source.place

    async def take(self, body_max: int, without: Collection[str], judge: Judge) -> bool:
        async def judged(look: Look) -> Verdict:
            verdict = await judge(look)
            print(len(verdict.done), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
            return verdict

        return await self._source.take(body_max, without, judged)

    async def erase(self, tenant: str) -> int:
        """As the source does."""
        return await self._source.erase(tenant)

    async def sweep(self, before_us: int) -> bool:
        return await self._source.sweep(before_us)

    async def aclose(self) -> None:
        await self._source.aclose()


async def main(path: str, outbox: str) -> None:
    store = SqliteStore.open(path)
    async with DispatchClient() as client:
        dispatcher = Dispatcher(store, client, outboxes=[Killing(open_source(outbox))])
        await dispatcher.prepare()
        await dispatcher.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
