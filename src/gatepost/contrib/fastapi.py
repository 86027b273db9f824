"""Gatepost in a FastAPI (or Starlette) application: opened with it, drained with it, handed to routes as a dependency.

    app = FastAPI(lifespan=dispatcher_lifespan("sqlite:///gatepost.db"))

    @app.post("/orders")
    async def create(order: Order, gatepost: DispatcherDep) -> None:
        await gatepost.publish("order.created", order.model_dump())

One process can own an SQLite store: with several workers open a Publisher in each, and run `gatepost serve` beside them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, FastAPI
from starlette.requests import HTTPConnection

from gatepost.dispatch.dispatcher import Dispatcher
from gatepost.dispatch.new_event import MAX_PAYLOAD
from gatepost.dispatch.publisher import Publisher
from gatepost.telemetry import Tracing

Lifespan: TypeAlias = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def dispatcher_lifespan(url: str, *, run: bool = True, **options: Any) -> Lifespan:
    """A lifespan with a `Dispatcher` on the store of `url`, which delivers in the background unless `run` is False.

    `options` are those of `Dispatcher.open`. In a lifespan of your own: `async with dispatcher_lifespan(url)(app): …`.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Dispatcher.open(url, run=run, **options) as dispatcher:
            app.state.gatepost_dispatcher = dispatcher
            yield

    return lifespan


def publisher_lifespan(
    url: str | None = None, *, max_payload: int = MAX_PAYLOAD, tracing: Tracing | None = None
) -> Lifespan:
    """A lifespan with a `Publisher`: into Gatepost's database at `url`; None: only in your own transactions (`connection=`)."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if url is None:
            app.state.gatepost_publisher = Publisher(max_payload=max_payload, tracing=tracing)
            yield
            return
        async with Publisher.open(url, max_payload=max_payload, tracing=tracing) as publisher:
            app.state.gatepost_publisher = publisher
            yield

    return lifespan


def get_dispatcher(connection: HTTPConnection) -> Dispatcher:
    """Dependency: the application's dispatcher."""
    found = getattr(connection.app.state, "gatepost_dispatcher", None)
    if not isinstance(found, Dispatcher):
        raise RuntimeError(
            "no Dispatcher is open: write FastAPI(lifespan=dispatcher_lifespan('sqlite:///gatepost.db'))"
        )
    return found


def get_publisher(connection: HTTPConnection) -> Publisher:
    """Dependency: the application's publisher."""
    found = getattr(connection.app.state, "gatepost_publisher", None)
    if not isinstance(found, Publisher):
        raise RuntimeError("no Publisher is open: write FastAPI(lifespan=publisher_lifespan('postgresql://…'))")
    return found


DispatcherDep = Annotated[Dispatcher, Depends(get_dispatcher)]
PublisherDep = Annotated[Publisher, Depends(get_publisher)]
