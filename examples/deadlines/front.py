"""The first service: FastAPI, called by the user. Run by run.py; by itself: uvicorn front:app, with STOCK set to host:port.

It does some work of its own, then asks the stock service over gRPC. Nobody passes a timeout: the request's own budget, from
its Request-Timeout header, bounds everything below.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from fastapi import FastAPI

from gatepost.deadline import DeadlinePolicy, current, remaining
from gatepost.deadline.asgi import DeadlineMiddleware
from gatepost.deadline.grpc import aio_client_interceptors

OWN_WORK = 0.03


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One channel for the life of the process; its calls inherit the deadline and keep 10 ms of it for our answer."""
    channel = grpc.aio.insecure_channel(os.environ["STOCK"], interceptors=aio_client_interceptors(reserve=0.010))
    app.state.count = channel.unary_unary("/shop.Stock/Count")
    yield
    await channel.close()


app = FastAPI(lifespan=lifespan)
app.add_middleware(DeadlineMiddleware, policy=DeadlinePolicy(default=2.0, max=10.0))


@app.get("/stock")
async def stock(query_seconds: float = 0.02) -> dict[str, Any]:
    """What is in stock, by a query that takes `query_seconds`; shows what each hop had left when it began."""
    left = remaining()
    await asyncio.sleep(OWN_WORK)  # authorising, rendering …
    try:
        answer = await app.state.count(json.dumps({"query_seconds": query_seconds}).encode())
    except grpc.aio.AioRpcError as error:
        in_force = current()
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and in_force is not None:
            raise in_force.exceeded("stock") from error  # the middleware answers 504
        raise
    return {"front_had_ms": _ms(left), **json.loads(answer)}


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
