"""A real Chromium for tests of the console: one per test session, a page of its own per use, and what must hold of every page.

A test that asks for the fixture `browser` is a coroutine and runs on the browser's own event loop (`conftest.py` sees to that), so it
may open a service there too. Without a chromium on PATH it is skipped, saying so; with REQUIRE_CHROMIUM=1, as in CI, it
fails instead.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from playwright.async_api import Browser as Chromium
from playwright.async_api import Page, Playwright, async_playwright

Result = TypeVar("Result")

NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
ARGUMENTS: Final = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
PATIENCE_MS: Final = 20_000
"""What a step may take on a busy machine."""
NARROW: Final = 360
_SCRIPT: Final = Path(__file__).with_name("page_checks.js")


class Browser:
    """Starts when first asked for a page; `close` ends it. Its loop runs in a thread of its own."""

    def __init__(self, executable: str) -> None:
        self._executable = executable
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="browser", daemon=True)
        self._thread.start()
        self._playwright: Playwright | None = None
        self._chromium: Chromium | None = None

    def run(self, work: Coroutine[Any, Any, Result], limit: float) -> Result:
        """Run a coroutine on the browser's loop, at most `limit` seconds."""

        async def bounded() -> Result:
            async with asyncio.timeout(limit):
                return await work

        return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result()

    @asynccontextmanager
    async def page(
        self, *, width: int = 1280, dark: bool = False, javascript: bool = True, expect_faults: bool = False
    ) -> AsyncIterator[Page]:
        """A page with its own cookies. Errors of scripts and anything the content security policy refused fail the test at the end,
        unless `expect_faults`."""
        context = await (await self._started()).new_context(
            viewport={"width": width, "height": 800},
            color_scheme="dark" if dark else "light",
            java_script_enabled=javascript,
        )
        context.set_default_timeout(PATIENCE_MS)
        faults: list[str] = []
        try:
            page = await context.new_page()
            page.on("pageerror", lambda error: faults.append(f"script: {error}"))
            page.on(
                "console",
                lambda message: (
                    faults.append(message.text)
                    if message.type == "error" and "Failed to load resource" not in message.text
                    else None
                ),
            )
            page.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
            yield page
            assert expect_faults or not faults, faults
        finally:
            await context.close()

    def close(self) -> None:
        """End it."""
        self.run(self._close(), 30.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        self._loop.close()

    async def _started(self) -> Chromium:
        if self._chromium is None:
            self._playwright = await async_playwright().start()
            self._chromium = await self._playwright.chromium.launch(
                executable_path=self._executable, args=list(ARGUMENTS)
            )
        return self._chromium

    async def _close(self) -> None:
        if self._chromium is not None and self._playwright is not None:
            await self._chromium.close()
            await self._playwright.stop()


def find_chromium() -> str:
    """The system's chromium. Skips the test that needs it, or fails it in CI."""
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    reason = "no chromium on PATH: install it (Debian: apt install chromium) to test the console in a real browser"
    if os.environ.get("REQUIRE_CHROMIUM") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


async def sign_in(page: Page, url: str, key: str) -> None:
    """Open the console and sign in, as a person does."""
    await page.goto(f"{url}/console/")
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("heading", level=1, name="Overview").wait_for()


async def page_faults(page: Page) -> list[str]:
    """What is wrong with this page for people with a keyboard, a screen reader or weak eyes: names of controls, order of headings,
    landmarks, tables, unique ids, contrast. Our own checks; none means that these found nothing."""
    found: list[str] = await page.evaluate(f"{_SCRIPT.read_text()}\nfaultsOfPage()")
    return found


async def scrolls_sideways(page: Page) -> bool:
    """Whether the page is wider than its window."""
    wider: bool = await page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    return wider
