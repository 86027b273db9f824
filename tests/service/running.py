"""A real service for tests: its own loop, real sockets, real SQLite, httpx as the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.records import Secret
from gatepost.service.app import Running, open_service
from gatepost.service.config import ListenSettings, Settings
from gatepost.wire.egress import EgressPolicy

ADMIN_KEY = "admin-key-for-tests-0123456789"
POLICY = ClientPolicy(connect_timeout=0.6, write_timeout=1.0, read_timeout=2.0)
EGRESS = EgressPolicy(schemes=("https", "http"), allow_cidrs=("127.0.0.0/8",))
PATIENCE = 20.0
"""Seconds a condition may take on a busy machine."""


@dataclass(slots=True)
class Api:
    """A running service and a client for it."""

    running: Running
    client: httpx.AsyncClient

    def as_key(self, key: str) -> httpx.AsyncClient:
        """A client with this API key; close it."""
        return httpx.AsyncClient(base_url=self.running.url, headers={"authorization": f"Bearer {key}"})


def settings_for(tmp_path: Path, **changes: Any) -> Settings:
    """Settings for a test: loopback, a free port, short limits, a fresh file."""
    base = Settings(
        database=f"sqlite:///{tmp_path / 'gatepost.db'}",
        listen=ListenSettings("127.0.0.1", 0),
        policy=POLICY,
        egress=EGRESS,
        slots=64,
        shutdown_grace=3.6,
        max_loop_lag=60.0,
    )
    return replace(base, **changes)


@asynccontextmanager
async def api(tmp_path: Path, **changes: Any) -> AsyncIterator[Api]:
    """A service without keys, or with `ADMIN_KEY` when `keyed=True`."""
    keyed = changes.pop("keyed", False)
    if keyed:
        changes["admin_key"] = Secret(ADMIN_KEY)
    headers = {"authorization": f"Bearer {ADMIN_KEY}"} if keyed else {}
    logs, tracing = changes.pop("logs", None), changes.pop("tracing", None)
    if "tracing_settings" in changes:
        changes["tracing"] = changes.pop("tracing_settings")
    async with (
        open_service(settings_for(tmp_path, **changes), logs=logs, tracing=tracing) as running,
        httpx.AsyncClient(base_url=running.url, headers=headers, timeout=PATIENCE) as client,
    ):
        yield Api(running, client)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that must happen soon."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - the other side is a process or a socket, which sets no event of ours
            await asyncio.sleep(0.02)


async def ok(response: Awaitable[httpx.Response], status: int = 200) -> Any:
    """The document of an answer that must have this status."""
    answer = await response
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


async def problem(response: Awaitable[httpx.Response], status: int, code: str) -> Any:
    """The document of a problem that must have this status and code."""
    answer = await response
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    document = answer.json()
    assert (answer.status_code, document["status"], document["code"]) == (status, status, code), answer.text
    return document
