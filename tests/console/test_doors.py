"""The console's walls, over plain HTTP: sessions, form tokens, headers, portal links, and what a service without keys lets in."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from gatepost.clock import SYSTEM_ENTROPY
from gatepost.service.console.session import ANONYMOUS_SESSION, COOKIE, KEY_SESSION, LINK_SECONDS_MAX, Sessions
from gatepost.store.secretbox import SecretBox
from gatepost.testing.virtual import VirtualClock
from tests.console.visitor import visiting
from tests.service.running import ADMIN_KEY, Api, api, ok, problem

NEEDED_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
}


async def tenant_key(service: Api, tenant: str) -> tuple[str, str]:
    """A new tenant's key, and the key's id."""
    await ok(service.client.post("/v1/tenants", json={"name": tenant}), 201)
    made = await ok(service.client.post("/v1/api-keys", json={"name": "test", "tenant": tenant}), 201)
    return str(made["key"]), str(made["id"])


async def test_every_answer_tells_the_browser_to_load_nothing_from_elsewhere_and_to_keep_nothing(
    tmp_path: Path,
) -> None:
    """The second wall behind escaping, and pages about customers do not stay on a shared machine; error pages are no exception."""
    async with api(tmp_path, keyed=True) as service, visiting(service.running.url) as visitor:
        answers = [await visitor.get("/login"), await visitor.get("/"), await visitor.post("/login", token="x")]
        await visitor.sign_in(ADMIN_KEY)
        answers += [await visitor.get(path) for path in ("/", "/nothing", "/endpoints/x", "/dead-letters?since=x")]
        assert [answer.status_code for answer in answers] == [200, 303, 403, 200, 404, 404, 422]
        for answer in answers:
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self';" in policy
            assert "style-src 'self';" in policy
            assert "form-action 'self'; frame-ancestors 'none'; base-uri 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["cache-control"] == "no-store"
            assert {name: answer.headers[name] for name in NEEDED_HEADERS} == NEEDED_HEADERS
        page = answers[3].text
        assert "<script>" not in page
        assert " style=" not in page
        styles = page.partition('rel="stylesheet" href="')[2].partition('"')[0]
        sheet = await visitor.client.get(styles)
        assert sheet.headers["cache-control"] == "public, max-age=31536000, immutable"
        older = await visitor.client.get("/console/static/0123456789abcdef/console.css")
        assert (older.status_code, older.headers["cache-control"]) == (200, "no-cache")
        assert (await visitor.client.get("/console/static/0123456789abcdef/console.py")).status_code == 404
        assert (await visitor.client.get("/console")).headers["location"] == "/console/"


async def test_the_cookie_holds_no_key_is_kept_from_scripts_and_from_other_sites(tmp_path: Path) -> None:
    """Whoever reads the cookie must not have the API key, and a page elsewhere must not send it with a form."""
    async with api(tmp_path, keyed=True) as service, visiting(service.running.url) as visitor:
        answer = await visitor.post("/login", {"key": ADMIN_KEY})
        attributes = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")[1:]}
        assert {"httponly", "samesite=lax", "path=/console", f"max-age={KEY_SESSION - 1:.0f}"} <= attributes
        assert "secure" not in attributes  # it came over plain HTTP
        assert ADMIN_KEY not in answer.headers["set-cookie"]
        over_tls = await visitor.post("/login", {"key": ADMIN_KEY}, x_forwarded_proto="https")
        assert "secure" in over_tls.headers["set-cookie"].lower()


async def test_signing_in_begins_a_new_session_and_old_ones_get_no_rights(tmp_path: Path) -> None:
    """Session fixation: a cookie that somebody planted before must stay nobody's."""
    async with api(tmp_path, keyed=True) as service, visiting(service.running.url) as visitor:
        await visitor.get("/login")
        planted = visitor.cookie
        token = await visitor.token()
        await visitor.sign_in(ADMIN_KEY)
        assert visitor.cookie != planted
        assert (await visitor.post("/logout", token=token)).status_code == 403  # a token of the session before
        async with visiting(service.running.url) as other:
            other.client.cookies.set(COOKIE, planted, path="/console")
            assert (await other.get("/")).headers["location"].startswith("/console/login")


async def test_a_post_without_its_token_from_elsewhere_or_in_another_form_does_nothing(tmp_path: Path) -> None:
    """Cross-site request forgery, by each way in."""
    async with api(tmp_path, keyed=True) as service, visiting(service.running.url, ADMIN_KEY) as visitor:
        url = service.running.url
        made = await ok(
            service.client.post("/v1/endpoints", json={"url": "https://hooks.example.com/", "probe": False}), 201
        )
        path = f"/endpoints/{made['id']}/pause"
        async with visiting(url, ADMIN_KEY) as other:
            foreign = await other.token()
        for answer in (
            await visitor.post(path, token=""),
            await visitor.post(path, token=foreign),
            await visitor.post(path, sec_fetch_site="cross-site"),
            await visitor.post(path, sec_fetch_site="same-site"),
        ):
            assert answer.status_code == 403, answer.text
        token = await visitor.token()
        as_json = await visitor.client.post(f"/console{path}", json={"csrf": token})
        too_long = await visitor.client.post(f"/console{path}", data={"csrf": token, "x": "x" * 70_000})
        assert (as_json.status_code, too_long.status_code) == (422, 413)
        assert (await ok(service.client.get(f"/v1/endpoints/{made['id']}")))["status"] == "active"
        assert (await visitor.post(path, sec_fetch_site="same-origin")).status_code == 303
        assert (await ok(service.client.get(f"/v1/endpoints/{made['id']}")))["status"] == "paused"


async def test_a_session_ends_with_its_key_and_outlives_a_restart(tmp_path: Path) -> None:
    """Revoking a key is how one ends what it opened; a deploy must not sign everybody out."""
    async with api(tmp_path, keyed=True) as service, visiting(service.running.url) as visitor:
        key, key_id = await tenant_key(service, "acme")
        await visitor.sign_in(key)
        cookie = visitor.cookie
        assert (await visitor.get("/")).status_code == 200
    async with api(tmp_path, keyed=True) as service, visiting(service.running.url) as visitor:
        visitor.client.cookies.set(COOKIE, cookie, path="/console")
        assert (await visitor.get("/")).status_code == 200
        assert (await service.client.delete(f"/v1/api-keys/{key_id}")).status_code == 204
        assert (await visitor.get("/")).headers["location"].startswith("/console/login")
        assert (await visitor.post("/login", {"key": key})).status_code == 403


@pytest.mark.parametrize("change", ["first", "middle", "last"])
def test_an_altered_cookie_is_nobodys(change: str) -> None:
    """The signature covers all of it."""
    sessions = Sessions([b"k" * 32], VirtualClock(), SYSTEM_ENTROPY)
    sealed = sessions.seal(sessions.signed_in("key_0123456789abcdef"))
    place = {"first": 1, "middle": len(sealed) // 2, "last": len(sealed) - 1}[change]
    altered = sealed[:place] + ("A" if sealed[place] != "A" else "Q") + sealed[place + 1 :]
    assert sessions.open(sealed) is not None
    assert sessions.open(altered) is None
    assert sessions.open_link(sealed) is None, "a session is no link"
    assert sessions.open("") is None
    assert sessions.open("x" * 10_000) is None


def test_sessions_end_by_the_clock_and_survive_a_new_signing_key() -> None:
    """Twelve hours, whatever the browser keeps; and rotating keys, newest first, signs nobody out."""
    clock = VirtualClock()
    old, new = SecretBox.new_key(), SecretBox.new_key()
    before = Sessions(SecretBox([old]).derive("console"), clock, SYSTEM_ENTROPY)
    session = before.signed_in("key_1")
    cookie, token = before.seal(session), before.form_token(session)
    after = Sessions(SecretBox([new, old]).derive("console"), clock, SYSTEM_ENTROPY)
    assert after.open(cookie) == session
    assert after.is_form_token(session, token)
    assert not after.is_form_token(after.signed_in("key_1"), token)
    assert Sessions(SecretBox([new]).derive("console"), clock, SYSTEM_ENTROPY).open(cookie) is None
    assert Sessions(SecretBox([old]).derive("other"), clock, SYSTEM_ENTROPY).open(cookie) is None
    clock.advance(KEY_SESSION - 1)
    assert after.open(cookie) == session
    clock.advance(2)
    assert after.open(cookie) is None
    assert replace(session, id="other") != session
    assert ANONYMOUS_SESSION > KEY_SESSION, "a login page left open over a shift still works"


async def test_the_overview_is_there_while_the_store_is_not(tmp_path: Path) -> None:
    """It is the page that one opens then; other pages say what is wrong."""
    async with api(tmp_path, keyed=True) as service, visiting(service.running.url, ADMIN_KEY) as visitor:
        await service.running.dispatcher.store.aclose()
        page = await visitor.get("/")
        assert page.status_code == 200
        assert "The store does not answer" in page.text
        other = await visitor.get("/dead-letters")
        assert (other.status_code, "The store does not answer" in other.text) == (503, True)
        download = await visitor.get("/dead-letters/export")
        assert download.status_code == 503, "never a download that ends at once and looks whole"


async def test_without_keys_the_console_is_open_to_this_machine_and_to_no_rebound_name(tmp_path: Path) -> None:
    """A laptop needs no login; a web page that points its own name at loopback must see nothing and do nothing."""
    async with api(tmp_path) as service, visiting(service.running.url) as visitor:
        page = await visitor.get("/")
        assert page.status_code == 200
        assert "no API keys: loopback only" in page.text
        rebound = await visitor.get("/", host="rebound.example.com")
        assert (rebound.status_code, rebound.headers["cache-control"]) == (421, "no-store")
        token = await visitor.token()
        assert (await visitor.post("/policy/set", token=token, host="rebound.example.com")).status_code == 421
        assert (await visitor.post("/policy/set", token="x")).status_code == 403
        assert (await visitor.post("/policy/set", token=token, sec_fetch_site="cross-site")).status_code == 403
        # Forms of our pages say `Origin: null`, since they send no referrer.
        set_it = {"limit": "read_timeout", "value": "1.5", "why": "test"}
        assert (await visitor.post("/policy/set", set_it, origin="null")).status_code == 303
        await problem(service.client.post("/v1/tenants/default/portal-links", json={}), 409, "conflict")


async def test_a_portal_link_shows_one_tenant_and_changes_nothing(tmp_path: Path) -> None:
    """What a support engineer gives to a customer: their pages, for an hour, and no buttons."""
    async with api(tmp_path, keyed=True) as service:
        url = service.running.url
        key, key_id = await tenant_key(service, "acme")
        await tenant_key(service, "other")
        async with service.as_key(key) as acme:
            mine = await ok(acme.post("/v1/endpoints", json={"url": "https://a.example.com/", "probe": False}), 201)
            link = await ok(acme.post("/v1/tenants/acme/portal-links", json={"expires_in": 600}), 201)
            await problem(acme.post("/v1/tenants/other/portal-links", json={}), 404, "not_found")
            wrong = {"expires_in": LINK_SECONDS_MAX + 1}
            await problem(acme.post("/v1/tenants/acme/portal-links", json=wrong), 422, "invalid_request")
        theirs = await ok(
            service.client.post(
                "/v1/endpoints", json={"url": "https://b.example.com/", "probe": False, "tenant": "other"}
            ),
            201,
        )
        await problem(service.client.post("/v1/tenants/nobody/portal-links", json={}), 404, "not_found")
        assert link["url"] == url + link["path"]
        assert link["revoked_with"] == key_id
        async with visiting(url) as visitor:
            assert (await visitor.client.get(link["path"])).headers["location"] == "/console/"
            page = await visitor.get("/")
            assert "Read only, through a portal link" in page.text
            assert "/console/fleet" not in page.text
            own = await visitor.get(f"/endpoints/{mine['id']}")
            assert own.status_code == 200
            assert own.text.count("<form") == 1, "only the one that signs out"
            assert (await visitor.get(f"/endpoints/{theirs['id']}")).status_code == 404
            assert (await visitor.get("/fleet")).status_code == 404
            for path in (
                f"/endpoints/{mine['id']}/pause",
                "/dead-letters/replay",
                "/dead-letters/purge",
                "/policy/set",
            ):
                refused = await visitor.post(path, {"confirmation": "purge", "why": "x"})
                assert refused.status_code == 403, path
                assert "portal link" in refused.text
            assert (await visitor.client.get(link["path"] + "x")).status_code == 410
            assert (await visitor.get("/")).status_code == 200
            # The link stands on the key that made it.
            assert (await service.client.delete(f"/v1/api-keys/{key_id}")).status_code == 204
            assert (await visitor.get("/")).headers["location"].startswith("/console/login")
        async with visiting(url) as late:
            assert (await late.client.get(link["path"])).status_code == 410
        async with visiting(url, ADMIN_KEY) as admin:
            made = await ok(service.client.post("/v1/tenants/acme/portal-links", json={}), 201)
            assert (await admin.client.get(made["path"])).status_code == 409, "it would take the admin's session away"
            assert "admin" in (await admin.get("/")).text


def test_a_portal_link_ends_at_its_time() -> None:
    """An hour is an hour, for the session that it opened too."""
    clock = VirtualClock()
    sessions = Sessions([b"k" * 32], clock, SYSTEM_ENTROPY)
    token, expires_at = sessions.portal_link("acme", "key_1", 600.0)
    link = sessions.open_link(token)
    assert link is not None
    assert (link.tenant, link.expires_at) == ("acme", expires_at)
    clock.advance(599)
    cookie = sessions.seal(sessions.visiting(link))
    assert sessions.open(cookie) is not None
    clock.advance(2)
    assert sessions.open(cookie) is None
    assert sessions.open_link(token) is None


async def test_a_form_that_breaks_off_is_no_fault_of_ours(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Strangers reach the login's form: hanging up in the middle of it wrote a traceback of a hundred lines each time."""
    async with api(tmp_path, keyed=True) as service:
        place = httpx.URL(service.running.url)
        for _ in range(3):
            _, writer = await asyncio.open_connection(place.host, place.port)
            writer.write(
                b"POST /console/login HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n"
                b"content-type: application/x-www-form-urlencoded\r\n\r\nkey="
            )
            await writer.drain()
            await asyncio.sleep(0.1)  # so that it is being read when we hang up
            writer.close()
            await writer.wait_closed()
        async with visiting(service.running.url) as visitor:
            assert (await visitor.get("/login")).status_code == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_numbers_that_nobody_wrote_are_refused_in_words(tmp_path: Path) -> None:
    """A form may be altered; what comes back is a page with a status that says whose mistake it is, never a fault of ours."""
    async with api(tmp_path, keyed=True) as service, visiting(service.running.url, ADMIN_KEY) as visitor:
        for step in ("9" * 5_000, "-1", "\u00b2", "x"):
            assert (await visitor.post("/policy/rollout/advance", {"why": "x", "step": step})).status_code == 422, step
        for before in ("9" * 30, "-1", "nan"):
            assert (await visitor.get(f"/policy/history?before={before}")).status_code == 422, before
            await problem(service.client.get(f"/v1/policies/history?before={before}"), 422, "invalid_request")
        assert (await visitor.get("/deliveries?since=9999-12-31T23:59:59")).status_code == 200


async def test_after_signing_in_one_goes_on_where_one_was_going_and_nowhere_else(tmp_path: Path) -> None:
    """A link in an alert leads through the login to its page; a link of somebody else's leads to no other site."""
    elsewhere = (
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "/x\r\nset-cookie: a=b",
        "",
        "/" + "a" * 5_000,
    )
    async with api(tmp_path, keyed=True) as service:
        for wanted, location in (
            ("/endpoints?tenant=a", "/console/endpoints?tenant=a"),
            *((one, "/console/") for one in elsewhere),
        ):
            async with visiting(service.running.url) as visitor:
                answer = await visitor.post("/login", {"key": ADMIN_KEY, "next": wanted})
                assert (answer.status_code, answer.headers["location"]) == (303, location)
                again = await visitor.client.get("/console/login", params={"next": wanted})
                assert (again.status_code, again.headers["location"]) == (303, location)
