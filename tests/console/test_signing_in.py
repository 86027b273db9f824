"""The console's door in a real browser: keys, sessions, forms, and who sees what."""

from __future__ import annotations

from pathlib import Path

from tests.console.browser import Browser, page_faults, sign_in
from tests.service.running import ADMIN_KEY, api


async def test_one_signs_in_with_a_key_and_out_again(browser: Browser, tmp_path: Path) -> None:
    """The way in for a person on call: a wrong key says so, the right one opens, signing out closes."""
    async with api(tmp_path, keyed=True) as service, browser.page() as page:
        url = service.running.url
        await page.goto(f"{url}/console/")
        assert page.url.startswith(f"{url}/console/login")
        assert await page_faults(page) == []
        await page.get_by_label("API key").fill("gpk_wrong")
        await page.keyboard.press("Enter")
        await page.get_by_role("alert").wait_for()
        assert await page.get_by_role("alert").text_content() == "This API key is unknown or was revoked."
        await sign_in(page, url, ADMIN_KEY)
        assert await page_faults(page) == []
        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_text("You are signed out.").wait_for()
        await page.goto(f"{url}/console/")
        assert "/console/login" in page.url
