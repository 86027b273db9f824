"""A shop: `POST /orders` writes an order and publishes `order.created` in one transaction of its own database."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from gatepost.contrib.fastapi import PublisherDep, publisher_lifespan


class Order(BaseModel):
    """What is ordered."""

    number: int


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The application's own pool, and a publisher that writes on its connections."""
    async with (
        asyncpg.create_pool(os.environ["SHOP_DATABASE"], min_size=1, max_size=4) as pool,
        publisher_lifespan()(app),
    ):
        app.state.pool = pool
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def create(order: Order, request: Request, publisher: PublisherDep) -> dict[str, str]:
    """The event exists exactly if the order does."""
    async with request.app.state.pool.acquire() as connection:
        try:
            async with connection.transaction():
                receipt = await publisher.publish("order.created", {"number": order.number}, connection=connection)
                await connection.execute("INSERT INTO orders (number) VALUES ($1)", order.number)
        except asyncpg.UniqueViolationError:
            raise HTTPException(409, "this number is taken") from None
    return {"event_id": receipt.event_id}
