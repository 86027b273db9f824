"""What the doctor's tests share: the command asked about a running service, and traffic to one receiver of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from typer.testing import CliRunner, Result

from gatepost.service.cli.root import app
from gatepost.testing.hostile import HostileServer
from tests.service.running import Api, ok, until


async def gatepost(*arguments: str) -> Result:
    """The command, in a thread: the service it asks runs in this loop."""
    # The tests' own variable is no setting, and settings that nobody knows are refused.
    return await asyncio.to_thread(CliRunner(env={"GATEPOST_TEST_LOOP": None}).invoke, app, list(arguments))


async def examined(url: str, *arguments: str, code: int = 1) -> dict[str, Any]:
    """What `gatepost doctor --json` says of the service at `url`; `code` is how it must exit."""
    ended = await gatepost("doctor", "--json", "--url", url, *arguments)
    assert ended.exit_code == code, ended.output
    assert ended.stdout.isascii()
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def codes(document: dict[str, Any]) -> list[str]:
    """Of its findings."""
    return [finding["code"] for finding in document["findings"]]


def finding(document: dict[str, Any], code: str, severity: str) -> str:
    """The evidence of the only finding, which must be this one and whole."""
    (found,) = document["findings"]
    assert (found["code"], found["severity"]) == (code, severity), found
    assert found["what"].endswith(".")
    assert found["todo"]
    return "\n".join(found["evidence"])


async def register(service: Api, url: str, **fields: Any) -> str:
    """A new endpoint; its id."""
    made = await ok(service.client.post("/v1/endpoints", json={"url": url, **fields}), 201)
    return str(made["id"])


async def publish(service: Api, count: int, kind: str = "a.b") -> None:
    """So many events."""
    events = [{"type": kind, "payload": number} for number in range(count)]
    await ok(service.client.post("/v1/events:batch", json={"events": events}), 202)


async def deliver(service: Api, server: HostileServer, count: int, **fields: Any) -> None:
    """Register the receiver and wait until it has had so many requests."""
    await register(service, server.url, **fields)
    await publish(service, count, fields.get("event_types", ["a.b"])[0])

    async def had() -> bool:
        return server.request_count >= count and not service.running.dispatcher.client.statistics().in_flight

    await until(had)
