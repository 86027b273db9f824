"""The endpoint's and the delivery's pages in a real browser: what one sees of a real receiver, and every action end to end."""

from __future__ import annotations

import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Page, expect

from gatepost.testing.scripted_receiver import ScriptedAnswer, ScriptedReceiver
from tests.console.browser import NARROW, Browser, page_faults, scrolls_sideways, sign_in
from tests.service.running import ADMIN_KEY, api, ok, until

HOSTILE_WORDS = '"><script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'
HOSTILE_BODY = (
    b'{"a": "</pre><script>document.title=\'owned\'</script>", "b": "<svg/onload=document.title=1>",'
    b' "c": "\xe2\x80\xae gnp.exe", "d": "\\u003cscript\\u003e", "e": "{{ 7*7 }} ${7*7} &lt;b&gt;", "f": 1e400}'
)


async def made(client: httpx.AsyncClient, receiver: ScriptedReceiver, **fields: Any) -> dict[str, Any]:
    """An endpoint at the receiver, one attempt and then a dead letter unless `fields` say otherwise."""
    body = {"url": receiver.url, "secret": receiver.secret, "probe": False, **fields}
    endpoint: dict[str, Any] = await ok(client.post("/v1/endpoints", json=body), 201)
    return endpoint


async def published(client: httpx.AsyncClient, body: bytes = b'{"n": 1}', **fields: str) -> str:
    """The event's id."""
    event = {"type": "invoice.paid", "payload_base64": b64encode(body).decode(), **fields}
    receipt = await ok(client.post("/v1/events", json=event), 202)
    event_id: str = receipt["event_id"]
    return event_id


async def in_state(client: httpx.AsyncClient, event_id: str, state: str) -> str:
    """The event's only delivery, once it is in this state."""
    found: list[dict[str, Any]] = []

    async def arrived() -> bool:
        page = await ok(client.get("/v1/deliveries", params={"event_id": event_id}))
        found[:] = page["items"]
        return [item["state"] for item in found] == [state]

    await until(arrived)
    delivery_id: str = found[0]["id"]
    return delivery_id


async def check(page: Page) -> None:
    """What must hold of every page, and nothing that came from outside has run."""
    assert await page_faults(page) == []
    assert await page.title() != "owned"


async def test_an_endpoint_is_looked_at_and_acted_on(browser: Browser, tmp_path: Path) -> None:
    """Three in the morning: find the endpoint, see what it does and why, pause it, test it, rotate, resume, replay. Everything that
    was written by others is shown and not run."""
    with ScriptedReceiver() as receiver:
        receiver.script(204, ScriptedAnswer(500, b"<script>document.title='owned'</script>"))
        async with api(tmp_path, keyed=True) as service, browser.page() as page:
            url, client = service.running.url, service.client
            endpoint = await made(client, receiver, description=HOSTILE_WORDS, schedule=[0])
            await in_state(client, await published(client), "delivered")
            dead = await in_state(client, await published(client, HOSTILE_BODY), "dead")

            await sign_in(page, url, ADMIN_KEY)
            await page.goto(f"{url}/console/endpoints")
            await check(page)
            await page.get_by_label("Id, URL, tenant or description").fill("owned")
            await page.keyboard.press("Enter")
            await page.get_by_role("link", name=receiver.url).click()
            await expect(page.get_by_role("heading", level=1)).to_have_text(receiver.url)
            await expect(page.get_by_text("onerror=")).to_be_visible()
            await check(page)
            attempts = page.get_by_role("region", name="Newest attempts")
            await expect(attempts.get_by_role("row")).to_have_count(3)
            await expect(attempts).to_contain_text("dead letter")
            await expect(page.get_by_role("img", name=re.compile("Attempts by the hour"))).to_be_visible()
            await expect(page.get_by_role("region", name="Phases and their limits")).to_contain_text("answer")
            limits = page.get_by_role("region", name="Limits in force")
            await expect(limits.get_by_role("row", name=re.compile("^read_timeout"))).to_contain_text("2.0")

            await page.get_by_label("Why it is paused").fill("they asked <b>us</b> to")
            await page.get_by_role("button", name="Pause").click()
            await expect(page.get_by_role("status")).to_contain_text("Paused.")
            await expect(page.get_by_text("they asked <b>us</b> to")).to_be_visible()
            waiting = await in_state(client, await published(client), "waiting")
            await page.get_by_role("button", name="Send a test event").click()
            await expect(page.get_by_role("status")).to_contain_text("The test event was delivered: status 204")

            await page.get_by_role("link", name="Rotate the secret").click()
            await check(page)
            await page.get_by_label("The old secret goes on for").select_option("a day")
            await page.get_by_role("button", name="Make a new secret").click()
            secret = await page.get_by_label("The new secret").text_content()
            assert secret is not None
            assert secret.startswith("whsec_")
            await check(page)
            await page.get_by_role("link", name="Back to the endpoint").click()
            assert secret not in await page.content()
            await expect(page.get_by_text("whsec_***" + secret[-4:])).to_be_visible()

            await page.get_by_role("button", name="Resume").click()
            await expect(page.get_by_role("status")).to_contain_text("Resumed.")
            await until(lambda: _is(client, waiting, "delivered"))
            await page.get_by_role("button", name="Replay dead letters").click()
            await expect(page.get_by_role("status")).to_contain_text("1 dead letters wait again")
            await until(lambda: _is(client, dead, "delivered"))
            assert receiver.messages[-1].body == HOSTILE_BODY
            entries = (await service.running.service.store.audit_log("default", None, 20)).items
            done = {entry.action for entry in entries if entry.subject == endpoint["id"]}
            assert done == {f"endpoint.{word}" for word in ("create", "pause", "resume", "rotate_secret", "test")} | {
                "dead_letter.replay"
            }
            await page.set_viewport_size({"width": NARROW, "height": 800})
            await page.reload()
            assert not await scrolls_sideways(page)
            await check(page)


async def test_a_delivery_tells_its_whole_story_and_is_replayed(browser: Browser, tmp_path: Path) -> None:
    """What support is asked for: what did you send, what did they say, send it again. The payload is hostile, and only shown."""
    with ScriptedReceiver() as receiver:
        answer = ScriptedAnswer(500, b"<img src=x onerror=alert(1)>" + b"x" * 2_000)
        receiver.script(503, answer, 204, 204)
        async with api(tmp_path, keyed=True) as service, browser.page() as page:
            url, client = service.running.url, service.client
            headers = {"x-token": "very-secret-value"}
            await made(client, receiver, headers=headers, schedule=[0, 0])
            event_id = await published(client, HOSTILE_BODY, type="order.shipped")
            delivery_id = await in_state(client, event_id, "dead")

            await sign_in(page, url, ADMIN_KEY)
            await page.goto(f"{url}/console/deliveries")
            await check(page)
            await page.get_by_label("Event type").fill("order.shipped")
            await page.get_by_label("State").select_option("dead")
            await page.get_by_role("button", name="Filter").click()
            await page.get_by_role("link", name=delivery_id).click()
            await expect(page.get_by_role("heading", level=1)).to_contain_text(delivery_id)
            await check(page)
            await expect(page.locator("ol.attempts > li")).to_have_count(2)
            await expect(page.get_by_label("Response body").last).to_contain_text("<img src=x onerror=alert(1)>")
            await expect(page.get_by_text("Response body, its first 1.0 KiB")).to_be_visible()
            head = await page.get_by_label("Request head").text_content()
            _same_request(head or "", dict(receiver.received[0].headers), event_id)
            whole = await page.content()
            assert "very-secret-value" not in whole
            assert receiver.secret not in whole
            assert receiver.received[0].headers["webhook-signature"] not in whole
            payload = page.get_by_label("Payload", exact=True)
            await expect(payload).to_contain_text("</pre><script>document.title='owned'</script>")
            await expect(payload).to_contain_text(r"\u202e gnp.exe")
            await expect(payload).to_contain_text('"f": 1e400')
            await expect(payload).to_contain_text("{{ 7*7 }}")

            await page.get_by_role("button", name="Replay").click()
            await expect(page.get_by_role("status")).to_contain_text("It waits again")
            await until(lambda: _is(client, delivery_id, "delivered"))
            assert receiver.messages[-1].body == HOSTILE_BODY
            assert {one.id for one in receiver.received} == {event_id}
            await page.reload()
            await expect(page.locator("ol.attempts > li")).to_have_count(3)
            await page.get_by_role("link", name=event_id).click()
            await expect(page.get_by_role("region", name="Deliveries")).to_contain_text("delivered")
            await check(page)

            big = b"<script>document.title='owned'</script>" * 26_000
            large = await published(client, big)
            await in_state(client, large, "delivered")
            await page.goto(f"{url}/console/deliveries?q={large}")
            await expect(page.get_by_text("Only its beginning is shown.")).to_be_visible()
            assert len(await page.content()) < 200_000
            await check(page)


async def test_a_waiting_delivery_is_cancelled_after_being_asked(browser: Browser, tmp_path: Path) -> None:
    """It cannot be undone, so the page asks; and it works without any script."""
    with ScriptedReceiver() as receiver:
        async with api(tmp_path, keyed=True) as service, browser.page(javascript=False) as page:
            url, client = service.running.url, service.client
            endpoint = await made(client, receiver)
            await ok(client.post(f"/v1/endpoints/{endpoint['id']}/pause"))
            delivery_id = await in_state(client, await published(client), "waiting")
            await sign_in(page, url, ADMIN_KEY)
            await page.goto(f"{url}/console/deliveries/{delivery_id}")
            await page.get_by_role("link", name="Cancel it").click()
            await page.get_by_role("button", name="Cancel the delivery").click()
            await expect(page.get_by_role("status")).to_contain_text("Cancelled.")
            assert await _is(client, delivery_id, "cancelled")


async def test_a_tenant_sees_nothing_of_another(tmp_path: Path) -> None:
    """Every page and every action, with a real session of the other tenant: the same answer as for what does not exist."""
    with ScriptedReceiver() as receiver:
        async with api(tmp_path, keyed=True) as service:
            client = service.client
            mine = await made(client, receiver, tenant="acme")
            event_id = await published(client, tenant="acme")
            delivery_id = await in_state(client, event_id, "delivered")
            key = await ok(client.post("/v1/api-keys", json={"tenant": "other", "name": "k"}), 201)
            async with httpx.AsyncClient(base_url=f"{service.running.url}/console", timeout=20.0) as other:
                token = await _signed_in(other, key["key"])
                for path in (
                    f"/endpoints/{mine['id']}",
                    f"/endpoints/{mine['id']}/rotate",
                    f"/deliveries/{delivery_id}",
                    f"/deliveries/{delivery_id}/cancel",
                    f"/events/{event_id}",
                    "/deliveries?tenant=acme",
                    "/endpoints?tenant=acme",
                ):
                    assert (await other.get(path)).status_code == 404, path
                for path in ("pause", "resume", "test", "rotate", "replay"):
                    answer = await other.post(f"/endpoints/{mine['id']}/{path}", data={"csrf": token, "overlap": "0"})
                    assert answer.status_code == 404, path
                for path in ("replay", "cancel"):
                    answer = await other.post(f"/deliveries/{delivery_id}/{path}", data={"csrf": token})
                    assert answer.status_code == 404, path
                for path in (
                    "/deliveries",
                    f"/deliveries?endpoint={mine['id']}",
                    f"/deliveries?event={event_id}",
                    "/endpoints",
                ):
                    answer = await other.get(path)
                    assert answer.status_code == 200
                    assert "acme" not in answer.text
                    assert receiver.url not in answer.text
                    assert delivery_id not in answer.text
                for path in (
                    "/deliveries?state=odd",
                    "/deliveries?since=noon",
                    "/deliveries?q=what",
                    "/endpoints?state=odd",
                    "/endpoints?after=1",
                    "/deliveries?after=z",
                ):
                    assert (await other.get(path)).status_code == 422, path
                assert (await other.get(f"/deliveries?q={delivery_id}")).status_code == 303


async def _signed_in(client: httpx.AsyncClient, key: str) -> str:
    """Sign in; the token of the session's forms."""
    login = await client.get("/login")
    token = _token(login.text)
    assert (await client.post("/login", data={"csrf": token, "key": key})).status_code == 303
    return _token((await client.get("/")).text)


def _token(page: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found is not None
    return found[1]


async def _is(client: httpx.AsyncClient, delivery_id: str, state: str) -> bool:
    return bool((await ok(client.get(f"/v1/deliveries/{delivery_id}")))["state"] == state)


def _same_request(shown: str, received: dict[str, str], event_id: str) -> None:
    """Line by line what the receiver got, but for what is masked."""
    first, *lines = shown.split("\n")
    assert first == "POST /webhooks HTTP/1.1"
    fields = dict(line.split(": ", 1) for line in lines)
    assert fields.keys() == received.keys()
    assert fields["webhook-id"] == event_id
    assert fields["x-token"] == "***"
    assert fields["webhook-signature"] == "v1,***"
    for name in ("host", "content-type", "content-length", "user-agent", "accept-encoding"):
        assert fields[name] == received[name]
