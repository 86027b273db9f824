"""FastAPI: the example on a real PostgreSQL, and the lifespans and dependencies by themselves."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from gatepost.contrib.fastapi import DispatcherDep, PublisherDep, dispatcher_lifespan, publisher_lifespan
from gatepost.testing.receiver import Receiver
from tests.fleet.outbox_drivers import database, run_sql
from tests.fleet.test_outbox_sqlite import LOOPBACK, PATIENCE, following, until

APP = Path(__file__).resolve().parents[2] / "examples" / "fastapi_app"


@asynccontextmanager
async def shop(url: str) -> AsyncIterator[str]:
    """The example as its page starts it; yields where it listens."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "uvicorn", "app:app", "--port", "0"),
        cwd=APP,
        env={**os.environ, "SHOP_DATABASE": url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    printed = b""
    try:
        async with asyncio.timeout(PATIENCE):
            while (found := re.search(rb"http://127\.0\.0\.1:\d+", printed)) is None:
                printed += (line := await process.stdout.readline())
                assert line, printed.decode()
        yield found.group().decode()
    finally:
        process.terminate()
        await process.communicate()


async def test_the_example_tells_of_orders_that_exist_and_of_no_others(tmp_path: Path) -> None:
    """HTTP in, PostgreSQL, HTTP out."""
    url = await database("postgres", tmp_path)
    async with following(url) as (_, receiver), shop(url) as base, httpx.AsyncClient(timeout=PATIENCE) as client:
        answers = await asyncio.gather(*(client.post(f"{base}/orders", json={"number": n % 10}) for n in range(20)))
        assert sorted(answer.status_code for answer in answers) == [201] * 10 + [409] * 10
        told = {answer.json()["event_id"] for answer in answers if answer.status_code == 201}
        await until(lambda: len(receiver.ledger) >= 10)
        await asyncio.sleep(0.5)
        assert dict(receiver.ledger) == dict.fromkeys(told, 1)
        assert await run_sql(url, "SELECT count(*) FROM orders") == [(10,)]


async def test_a_dispatcher_lives_as_long_as_the_application() -> None:
    """Opened before the first request, delivering in the background, drained at the end."""
    app = FastAPI(lifespan=dispatcher_lifespan("memory://", egress=LOOPBACK))

    @app.post("/events")
    async def publish(gatepost: DispatcherDep) -> str:
        return (await gatepost.publish("a.b", {})).event_id

    async with Receiver() as receiver, app.router.lifespan_context(app):
        await app.state.gatepost_dispatcher.endpoints.create(f"{receiver.url}/ok")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
            event_id = (await client.post("/events")).json()
        await until(lambda: event_id in receiver.ledger)
    assert not app.state.gatepost_dispatcher.statistics().running


async def test_a_publisher_writes_beside_a_dispatcher_elsewhere(tmp_path: Path) -> None:
    """For applications with several workers; without a URL it is for connections only."""
    app = FastAPI(lifespan=publisher_lifespan(f"sqlite:///{tmp_path / 'gatepost.db'}"))

    @app.post("/events")
    async def publish(publisher: PublisherDep) -> None:
        await publisher.publish("a.b", {})

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        with pytest.raises(RuntimeError, match="no Publisher is open: write FastAPI"):
            await client.post("/events")
        async with app.router.lifespan_context(app):
            assert (await client.post("/events")).status_code == 200
    assert await run_sql(f"sqlite:///{tmp_path / 'gatepost.db'}", "SELECT type FROM outbox") == [("a.b",)]
