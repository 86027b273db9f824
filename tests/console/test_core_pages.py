"""The overview, dead letters, policy and fleet pages in a real browser: what moves, what is asked first, and who can use them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

from playwright.async_api import Locator, Page, expect

from gatepost.testing.receiver import Receiver
from tests.console.browser import NARROW, Browser, page_faults, scrolls_sideways, sign_in
from tests.service.running import ADMIN_KEY, Api, api, ok, until

HOSTILE = "\"><script>document.title='owned'</script><img src=x onerror=alert(1)>\u202egnp.exe'{{7919*7907}}"
LONG_TYPE = "W" * 128
"""A type has letters only, and as many as this."""
EVERY_MS = 2_100
"""A little more than the overview's interval."""
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
PAGES = (
    "/",
    "/dead-letters",
    "/dead-letters/replay",
    "/dead-letters/replaying?rate=1&moved=9&began=1&next_due=9000001&more=0",
    "/dead-letters/purge?why=refused",
    "/policy",
    "/policy/history",
    "/policy/rollout",
    "/policy/shadow",
    "/fleet",
    "/audit",
    "/nothing",
)


@dataclass(slots=True)
class Stage:
    """A service with one endpoint at a receiver."""

    service: Api
    receiver: Receiver
    endpoint: str

    @property
    def url(self) -> str:
        """Where the service is."""
        return self.service.running.url

    async def publish(self, count: int, event_type: str = "order.paid") -> None:
        """So many events."""
        events = [{"type": event_type, "payload": number} for number in range(count)]
        for first in range(0, count, 500):
            batch = {"events": events[first : first + 500]}
            results = (await ok(self.service.client.post("/v1/events:batch", json=batch), 202))["results"]
            assert all(result["deliveries"] == 1 for result in results), results[0]

    async def give_up(self, count: int, event_type: str = "order.paid") -> None:
        """So many dead letters: the receiver says that it will never take them."""
        self.receiver.answer("/hooks", 400)
        before = await self.dead()
        await self.publish(count, event_type)

        async def all_dead() -> bool:
            return await self.dead() == before + count

        await until(all_dead)
        self.receiver.answer("/hooks", 200)

    async def dead(self) -> int:
        """Dead letters there are, up to a thousand."""
        return len((await ok(self.service.client.get("/v1/dead-letters?limit=1000")))["items"])


@asynccontextmanager
async def stage(directory: Path, **endpoint: Any) -> AsyncIterator[Stage]:
    """A service, a receiver and an endpoint that gives up at a 400."""
    async with Receiver() as receiver, api(directory, keyed=True) as service:
        body = {"url": f"{receiver.url}/hooks", "probe": False, "status_rules": {"400": "final"}, **endpoint}
        made = await ok(service.client.post("/v1/endpoints", json=body), 201)
        yield Stage(service, receiver, made["id"])


async def figure(page: Page, name: str) -> str:
    """The value of a figure of the overview."""
    return await page.locator(".figures div", has=page.locator("dt", has_text=name)).locator("dd").first.inner_text()


async def refreshed(page: Page, wanted: Locator) -> bool:
    """Let the page refresh once, and tell whether it shows this then."""
    live = page.locator("#overview-live")
    seen = await live.get_attribute("data-refreshes")
    await page.clock.run_for(EVERY_MS)
    await expect(live).not_to_have_attribute("data-refreshes", seen or "")
    return await wanted.is_visible()


async def test_the_overview_moves_while_one_looks_and_stops_when_told(browser: Browser, tmp_path: Path) -> None:
    """The page that hangs on the wall: figures and worst endpoints come by themselves; somebody who reads can hold them still."""
    async with stage(tmp_path) as it, browser.page() as page:
        await page.clock.install()  # timers of the page run when we say so
        await sign_in(page, it.url, ADMIN_KEY)
        assert "0 in five minutes" in await figure(page, "Delivered")
        await page.evaluate("window.stays = true")
        await it.publish(3)
        await until(lambda: refreshed(page, page.locator(".figures").get_by_text("3 in five minutes")))
        it.receiver.answer("/hooks", 500)
        await it.publish(1)
        worst = page.get_by_role("region", name="Worst endpoints now")
        await until(lambda: refreshed(page, worst.get_by_role("link", name=it.endpoint)))
        await expect(worst.get_by_text("1 of 4")).to_be_visible()
        assert await page.evaluate("window.stays"), "it was not loaded again"
        assert await page_faults(page) == []
        # What has the focus keeps it over a refresh.
        await worst.get_by_role("link", name=it.endpoint).focus()
        live = page.locator("#overview-live")
        seen = await live.get_attribute("data-refreshes")
        await page.clock.run_for(EVERY_MS)
        await expect(live).not_to_have_attribute("data-refreshes", seen or "")
        assert it.endpoint in await page.evaluate("document.activeElement.textContent")
        # And what is marked to be copied stays marked.
        await page.evaluate("getSelection().selectAllChildren(document.querySelector('#overview-live .id'))")
        seen = await live.get_attribute("data-refreshes")
        await page.clock.run_for(EVERY_MS)
        assert await live.get_attribute("data-refreshes") == seen
        assert await page.evaluate("getSelection().toString()") == it.endpoint
        await page.evaluate("getSelection().removeAllRanges()")
        await page.get_by_role("button", name="Pause updates").click()
        held = await live.get_attribute("data-refreshes")
        await page.clock.run_for(3 * EVERY_MS)
        assert await live.get_attribute("data-refreshes") == held


async def test_dead_letters_are_found_replayed_at_a_rate_and_purged_when_confirmed(
    browser: Browser, tmp_path: Path
) -> None:
    """The work after an outage, by keyboard alone: filter, replay, watch it go, and delete what nobody wants."""
    async with stage(tmp_path) as it, browser.page() as page:
        await it.give_up(520)
        await it.give_up(2, "order.lost")
        delivered = it.receiver.statistics().requests - 522
        await sign_in(page, it.url, ADMIN_KEY)
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Skip to the content"
        assert (await page.locator(".skip").bounding_box() or {"x": -1})["x"] >= 0, "it is seen when it has the focus"
        await tab_to(page, "Dead letters")
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", level=1, name="Dead letters").wait_for()
        assert await page.locator("[aria-current=page]").all_inner_texts() == ["Dead letters"]
        await page.get_by_label("Event type").focus()
        await page.keyboard.type("order.paid")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**type=order.paid**")
        await expect(page.get_by_role("table").get_by_role("row")).to_have_count(51)
        await tab_to(page, "Replay these…")
        await page.keyboard.press("Enter")
        await page.get_by_text("520", exact=True).wait_for()
        await page.get_by_label("Starts per second at most").focus()
        await page.keyboard.press("Control+A")
        await page.keyboard.type("2000")
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", level=1, name="Replaying dead letters").wait_for()
        await expect(page.get_by_text("520, all that matched")).to_be_visible()
        await expect(page.get_by_text("All of them have been started.")).to_be_visible()
        assert await page.get_by_label("520 of 520 have started by plan").get_attribute("value") == "520"
        assert await page_faults(page) == []

        async def arrived() -> bool:
            return it.receiver.statistics().requests - delivered - 522 == 520

        await until(arrived)
        await page.goto(f"{it.url}/console/dead-letters")
        await expect(page.get_by_role("table").get_by_role("row")).to_have_count(3)
        await page.get_by_role("button", name="Replay").first.click()
        await expect(page.get_by_role("status")).to_contain_text("is delivered again.")
        await page.get_by_label("Event type").fill("order.lost")
        await page.keyboard.press("Enter")
        await page.get_by_role("link", name="Purge these…").click()
        await page.get_by_label("Write purge to confirm").fill("yes")
        await page.get_by_role("button", name="Purge").click()
        await expect(page.get_by_role("alert")).to_contain_text("Nothing was purged")
        assert await page_faults(page) == []
        await page.get_by_label("Write purge to confirm").fill("purge")
        await page.get_by_role("button", name="Purge").click()
        await expect(page.get_by_role("status")).to_have_text("1 dead letters were purged.")
        assert await it.dead() == 0


async def tab_to(page: Page, name: str) -> None:
    """Press Tab until what has this text has the focus; what has it must be seen to."""
    for _ in range(60):
        await page.keyboard.press("Tab")
        if (await page.evaluate("document.activeElement.textContent")).strip() == name:
            assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            return
    raise AssertionError(f"no Tab leads to {name!r}")


async def test_everything_works_without_scripts(browser: Browser, tmp_path: Path) -> None:
    """A terminal browser on a jump host, or a proxy that strips scripts: one presses the button that the script would press."""
    async with stage(tmp_path) as it, browser.page(javascript=False) as page:
        await it.give_up(501)
        await sign_in(page, it.url, ADMIN_KEY)
        await page.get_by_role("link", name="Dead letters", exact=True).click()
        export = await page.get_by_role("link", name="Export as JSON lines").get_attribute("href")
        text = await (await page.request.get(f"{it.url}{export}")).text()
        lines = [json.loads(line) for line in text.splitlines()]
        assert sorted(int(line["payload"]) for line in lines) == list(range(501))
        await page.get_by_role("link", name="Replay these…").click()
        await page.get_by_label("Starts per second at most").fill("5000")
        await page.get_by_role("button", name="Replay").click()
        await expect(page.get_by_text("moving more")).to_be_visible()
        await page.get_by_role("button", name="Move the next portion").click()
        await expect(page.get_by_text("501, all that matched")).to_be_visible()
        assert await it.dead() == 0


async def test_what_others_wrote_is_shown_and_never_run(browser: Browser, tmp_path: Path) -> None:
    """Descriptions, reasons and what stands in a link are a stranger's text: markup, quotes, text that turns round, and no end of it."""
    async with stage(tmp_path, description=HOSTILE, event_types=["*"]) as it, browser.page(width=NARROW) as page:
        await it.give_up(1, LONG_TYPE)
        set_it = {"limits": {"read_timeout": {"value": 1.5}}, "why": HOSTILE + "W" * 200}
        await ok(it.service.client.post("/v1/policies/set", json=set_it))
        await sign_in(page, it.url, ADMIN_KEY)
        for path, shown in (
            ("/", ""),
            ("/dead-letters", "WWWW"),
            (f"/dead-letters?type={quote(HOSTILE)}&tenant={quote(HOSTILE)}", ""),
            (f"/dead-letters/purge?type={quote(HOSTILE)}", "onerror=alert(1)"),
            (f"/fleet?endpoint={quote(HOSTILE[:60])}", ""),
            ("/policy", "onerror=alert(1)"),
            ("/policy/history", "onerror=alert(1)"),
            (f"/login?next={quote(HOSTILE)}", ""),
        ):
            await page.goto(f"{it.url}/console{path}")
            text = await page.locator("main").inner_text()
            assert shown in text, path
            assert "\u202e" not in text, path
            assert "62615533" not in text, path
            assert await page.title() != "owned"
            assert await page.locator("main img, main script").count() == 0
            assert not await scrolls_sideways(page), path
            assert await page_faults(page) == []


async def test_the_pages_fit_a_phone_the_dark_and_a_screen_reader(browser: Browser, tmp_path: Path) -> None:
    """Three in the morning, on the phone, in the dark."""
    async with stage(tmp_path) as it:
        await it.give_up(1)
        begin = {"limits": {"read_timeout": {"value": 1.5}}, "why": "smaller"}
        await ok(it.service.client.post("/v1/policies/rollout", json=begin))
        async with browser.page(width=NARROW) as page:
            await sign_in(page, it.url, ADMIN_KEY)
            for path in PAGES:
                await page.goto(f"{it.url}/console{path}")
                assert not await scrolls_sideways(page), path
                grounds = set()
                for scheme in SCHEMES:
                    await page.emulate_media(color_scheme=scheme)
                    assert await page_faults(page) == [], (path, scheme)
                    grounds.add(await page.evaluate("getComputedStyle(document.body).backgroundColor"))
                assert len(grounds) == 2, "the dark is dark"


async def test_limits_are_changed_with_a_reason_and_taken_back(browser: Browser, tmp_path: Path) -> None:
    """A change in an incident, and the way back from it; the history says who and why."""
    async with stage(tmp_path) as it, browser.page() as page:
        await sign_in(page, it.url, ADMIN_KEY)
        await page.get_by_role("link", name="Policy").click()
        await page.get_by_label("Limit", exact=True).select_option("read_timeout")
        await page.get_by_label("Value").fill("1.25")
        await page.get_by_label("Why", exact=True).fill("the partner is slow today")
        await page.get_by_role("button", name="Set", exact=True).click()
        await expect(page.get_by_role("status")).to_contain_text("Version 1, in force everywhere within two seconds.")
        row = page.get_by_role("region", name="Limits in force").get_by_role("row", name="read_timeout")
        await expect(row).to_contain_text("1.25")
        await expect(row).to_contain_text("the partner is slow today")
        await page.get_by_role("link", name="Rollout").click()
        await page.get_by_label("Limits").fill("read_timeout=1.4")
        await page.get_by_label("Why").fill("try it slowly")
        await page.get_by_role("button", name="Begin").click()
        await expect(page.locator("#rollout-live").get_by_text("shadow", exact=True)).to_be_visible()
        await page.get_by_label("Why end it").fill("not today")
        await page.get_by_role("button", name="End it, old values in force").click()
        await expect(page.locator("#rollout-live").get_by_text("aborted", exact=True)).to_be_visible()
        await page.get_by_role("link", name="History").click()
        await page.get_by_label("Why to go back to version 1").fill("calm again")
        await page.get_by_role("button", name="Go back to version 1").click()
        await expect(page.get_by_role("region", name="Policy history")).to_contain_text("calm again")
        await page.get_by_role("link", name="Shadow").click()
        await page.get_by_label("Limits").fill("nonsense")
        await page.get_by_label("Why").fill("x")
        await page.get_by_role("button", name="Try in shadow").click()
        await expect(page.locator("main")).to_contain_text("is not FIELD=VALUE")
        await page.get_by_role("link", name="Fleet").click()
        await page.get_by_label("Who owns the endpoint").fill(it.endpoint)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=2, name=it.endpoint)).to_be_visible()
