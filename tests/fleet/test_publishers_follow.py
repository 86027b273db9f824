"""A dispatcher that only publishes knows the endpoints that others register, and does not complain while somebody delivers."""

from __future__ import annotations

import asyncio

from gatepost.clock import SYSTEM_CLOCK
from gatepost.dispatch.dispatcher import Dispatcher
from gatepost.net.client import DispatchClient
from gatepost.store.memory import MemoryStore
from gatepost.wire.egress import EgressPolicy

EGRESS = EgressPolicy(schemes=("http",), allow_cidrs=("127.0.0.0/8",))


async def test_a_publisher_reaches_an_endpoint_that_another_process_registered() -> None:
    """It would store an event without deliveries otherwise, and whoever published would never know."""
    store = MemoryStore(SYSTEM_CLOCK, parts=8)
    async with DispatchClient(egress=EGRESS) as client:
        publishing, registering = Dispatcher(store, client), Dispatcher(store, client)
        for one in (publishing, registering):
            await one.prepare()
        try:
            await registering.endpoints.create("http://127.0.0.1:8009/hook", event_types=("a",))
            async with asyncio.timeout(10):
                while (await publishing.publish("a", {})).deliveries != 1:  # noqa: ASYNC110 - it is asked each time
                    await asyncio.sleep(0.1)
        finally:
            for one in (publishing, registering):
                await one.aclose()
