"""Takes the pictures of the console that the pages show: `python -m docs.screenshots`, a minute, a chromium on PATH.

A real service on a fresh file, a good receiver, a slow one, one that hangs and one that fails, real deliveries to all of them, and a
browser. It writes docs/images/*.png and changes nothing else; pictures differ a little each time, so take them when a page changed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.async_api import Browser, async_playwright

from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.records import Secret
from gatepost.service.app import open_service
from gatepost.service.config import ListenSettings, Settings
from gatepost.testing.hostile import HostileServer
from gatepost.testing.scripted_receiver import ScriptedAnswer, ScriptedReceiver
from gatepost.wire.egress import EgressPolicy

IMAGES: Final = Path(__file__).parent / "images"
WIDTH: Final = 1_120
HEIGHT: Final = 900
PHONE: Final = 380
BYTES_MAX: Final = 150_000
"""Of one picture: a page with several of them must still open quickly."""
KEY: Final = "admin-key-of-the-screenshots-0123456789"
EVENTS: Final = 400
PAUSE: Final = 0.03
"""Seconds between events: half a minute of traffic, so that breakers, learning and dead letters have something to show."""
SETTLE: Final = 12.0
CHROMIUM: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


@dataclass(frozen=True, slots=True)
class Shop:
    """What is running, and what the pictures are of."""

    url: str
    client: httpx.AsyncClient
    endpoints: dict[str, str]
    """Id by name."""


def main() -> int:
    """Take them all; 1 when one is too large."""
    IMAGES.mkdir(exist_ok=True)
    asyncio.run(_run())
    large = [path.name for path in IMAGES.glob("*.png") if path.stat().st_size > BYTES_MAX]
    if large:
        sys.stderr.write(f"larger than {BYTES_MAX} bytes: {', '.join(large)}\n")
    return 1 if large else 0


async def _run() -> None:
    async with _shop() as shop, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox", "--disable-gpu"])
        delivery = await _delivery(shop)
        pages = {
            "overview": "/console/",
            "endpoint": f"/console/endpoints/{shop.endpoints['failing']}",
            "delivery": f"/console/deliveries/{delivery}",
            "dead-letters": "/console/dead-letters",
        }
        for dark in (False, True):
            for name, path in pages.items():
                await _take(browser, shop, path, f"console-{name}{'-dark' if dark else ''}", dark=dark)
        await _take(browser, shop, pages["endpoint"], "console-endpoint-phone", width=PHONE)
        await browser.close()


async def _take(browser: Browser, shop: Shop, path: str, name: str, *, dark: bool = False, width: int = WIDTH) -> None:
    context = await browser.new_context(
        viewport={"width": width, "height": HEIGHT}, color_scheme="dark" if dark else "light"
    )
    page = await context.new_page()
    await page.goto(f"{shop.url}/console/login")
    await page.get_by_label("API key").fill(KEY)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("heading", level=1, name="Overview").wait_for()
    await page.goto(f"{shop.url}{path}")
    await page.wait_for_timeout(2_500)  # the live part has been refreshed once
    await page.screenshot(path=IMAGES / f"{name}.png")
    await context.close()


@asynccontextmanager
async def _shop() -> AsyncIterator[Shop]:
    """The service with a life behind it."""
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="gatepost-pictures-"))
        good, slow, failing, choosy = (stack.enter_context(ScriptedReceiver(signed=False)) for _ in range(4))
        for _ in range(4):
            choosy.script(200, 200, ScriptedAnswer(422, b'{"error": "total must be a number"}'), 200, 200, 200, 200)
        slow.always(ScriptedAnswer(200, b"thank you", delay=0.35))
        for _ in range(40):
            failing.script(
                200, 200, ScriptedAnswer(503, b"maintenance"), 200, ScriptedAnswer(500, b'{"error": "no such order"}')
            )
        failing.script(*[ScriptedAnswer(500, b'{"error": "database is locked"}')] * 60)
        failing.always(200)
        hangs = await stack.enter_async_context(HostileServer("silence"))
        settings = Settings(
            database=f"sqlite:///{Path(directory) / 'gatepost.db'}",
            listen=ListenSettings("127.0.0.1", 0),
            policy=ClientPolicy(connect_timeout=0.6, write_timeout=1.0, read_timeout=2.0),
            egress=EgressPolicy(schemes=("https", "http"), allow_cidrs=("127.0.0.0/8",)),
            admin_key=Secret(KEY),
            slots=128,
        )
        running = await stack.enter_async_context(open_service(settings))
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=running.url, headers={"authorization": f"Bearer {KEY}"}, timeout=30.0)
        )
        endpoints = {}
        for name, url, description in (
            ("good", good.url.replace("webhooks", "acme/hooks"), "Acme, orders"),
            ("slow", slow.url.replace("webhooks", "globex/inbox"), "Globex, batch importer"),
            ("failing", failing.url.replace("webhooks", "initech/events"), "Initech, since the move"),
            ("choosy", choosy.url.replace("webhooks", "hooli/v2"), "Hooli, validates"),
            ("hangs", hangs.url, "Umbrella, nobody answers"),
        ):
            body: dict[str, Any] = {
                "url": url,
                "description": description,
                "probe": False,
                "schedule": [0.0, 1.0, 2.0, 4.0],
            }
            if name == "choosy":
                body["status_rules"] = {"422": "final"}
            endpoints[name] = (await _ok(client.post("/v1/endpoints", json=body)))["id"]
        change = {
            "layer": "fleet",
            "limits": {"read_timeout": {"value": 1.5}},
            "why": "receivers agreed to answer within a second",
        }
        await _ok(client.post("/v1/policies/set", json=change))
        for number in range(EVENTS):
            payload = {
                "order": 4_000 + number,
                "total": f"{number % 90 + 9}.90",
                "items": [{"sku": f"A-{number % 17}", "count": 2}],
            }
            event = {"type": ("order.paid", "order.shipped")[number % 2], "payload": payload}
            await _ok(client.post("/v1/events", json=event))
            await asyncio.sleep(PAUSE)
        await asyncio.sleep(SETTLE)
        yield Shop(running.url, client, endpoints)


async def _delivery(shop: Shop) -> str:
    """One that took several attempts."""
    query = {"endpoint_id": shop.endpoints["failing"], "limit": "500"}
    items = (await _ok(shop.client.get("/v1/deliveries", params=query)))["items"]
    best = max(items, key=lambda item: (item["state"] == "dead", item["attempts"]))
    chosen: str = best["id"]
    return chosen


async def _ok(response: Any) -> Any:
    answer = await response
    answer.raise_for_status()
    return answer.json()


def _chromium() -> str:
    from shutil import which

    found = next((path for name in CHROMIUM if (path := which(name))), None)
    if found is None:
        raise SystemExit("no chromium on PATH: install it (Debian: apt install chromium)")
    return found


if __name__ == "__main__":
    sys.exit(main())
