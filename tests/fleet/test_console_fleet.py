"""The console of a fleet: whichever process answers, one is signed in, sees all processes, and can go on with what was begun."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import httpx
import pytest

from gatepost.delivery.records import Secret
from gatepost.service.console.session import COOKIE
from gatepost.testing.postgres_store import KEYS, gatepost_database
from gatepost.testing.receiver import Receiver
from tests.console.visitor import visiting
from tests.fleet.running import PATIENCE, balanced, gatepost, receiver
from tests.fleet.running import until as wait_until
from tests.service.running import ADMIN_KEY, EGRESS, POLICY, api, ok, until

LETTERS = 505
"""A portion and a little more."""
_HIDDEN = re.compile(r'<input type="hidden" name="([a-z_]+)" value="([^"]*)">')


@pytest.fixture
def database() -> str:
    """A database with the schema and a few parts."""
    return gatepost_database(8)


async def test_a_session_and_a_replay_go_on_in_another_process(database: str, tmp_path: Path) -> None:
    """A load balancer sends each request where it likes: the session's signature and the replay's form hold everywhere."""
    keys = tuple(Secret(key) for key in KEYS)
    fleet = {"database": database, "keys": keys, "keyed": True, "policy": POLICY, "egress": EGRESS}
    async with Receiver() as receiver, api(tmp_path, **fleet) as one, api(tmp_path, **fleet) as other:
        receiver.answer("/hooks", 400)
        body = {"url": f"{receiver.url}/hooks", "probe": False, "status_rules": {"400": "final"}}
        endpoint = await ok(one.client.post("/v1/endpoints", json=body), 201)

        async def known_to_both() -> bool:
            seen = [await api.client.get(f"/v1/policies/explain/{endpoint['id']}") for api in (one, other)]
            return all(answer.status_code == 200 for answer in seen)

        await until(known_to_both)
        for count in (LETTERS - 500, 500):
            events = [{"type": "a.b", "payload": number} for number in range(count)]
            await ok(one.client.post("/v1/events:batch", json={"events": events}), 202)

        async def all_dead() -> bool:
            return len((await ok(one.client.get("/v1/dead-letters?limit=1000")))["items"]) == LETTERS

        await until(all_dead)
        receiver.answer("/hooks", 200)
        async with visiting(one.running.url, ADMIN_KEY) as here, visiting(other.running.url) as there:
            there.client.cookies.set(COOKIE, here.cookie, path="/console")
            names = set()
            for visitor in (here, there):
                page = (await visitor.get("/fleet")).text
                names.add(re.findall(r"<dt>Name</dt><dd><bdi class=\"given\">([^<]+)", page)[0])
                for api_ in (one, other):
                    assert api_.running.dispatcher.statistics().node in page
            assert len(names) == 2
            begun = await here.post("/dead-letters/replay", {"rate": "5000", "endpoint": endpoint["id"]})
            page = (await there.client.get(begun.headers["location"])).text
            form = dict(_HIDDEN.findall(page.partition("data-step")[2].partition("</form>")[0]))
            assert (form["moved"], form["more"]) == ("500", "1")
            ended = await there.post("/dead-letters/replay", {**form, "part": "1"}, token=form.pop("csrf"))
            assert f"{LETTERS}, all that matched" in ended.text

        async def delivered() -> bool:
            return receiver.statistics().requests == 2 * LETTERS

        async with asyncio.timeout(45):
            await until(delivered)
        assert (await ok(one.client.get("/v1/dead-letters")))["items"] == []


def test_one_overview_shows_all_processes_of_a_machine(database: str, tmp_path: Path) -> None:
    """Each process attempts its own endpoints, and the kernel picks one to answer: its figures alone would be half the truth."""
    with receiver() as target, gatepost(tmp_path, database, "serve", "--processes", "2") as serving:
        wait_until(lambda: balanced(serving.url, 2), "two processes that share the parts")
        with httpx.Client(base_url=serving.url, timeout=PATIENCE) as client:
            for number in range(12):
                body = {"url": f"{target.url}/{number}", "event_types": [f"t.{number}"], "probe": False}
                assert client.post("/v1/endpoints", json=body).status_code == 201
            threading.Event().wait(2.5)  # every process follows the registry within two seconds
            events = [{"type": f"t.{number % 12}", "payload": number} for number in range(60)]
            assert client.post("/v1/events:batch", json={"events": events}).status_code == 202
            wait_until(lambda: len(target.seen) == 60, "60 deliveries")
        for _ in range(3):  # whichever process answers
            with httpx.Client(base_url=serving.url, timeout=PATIENCE) as browser:
                wait_until(lambda: shows_both(browser), "the sum of both processes")


def shows_both(browser: httpx.Client) -> bool:
    """Overview and fleet know of two processes; on a busy machine one may not answer the other in time."""
    overview, fleet = browser.get("/console/").text, browser.get("/console/fleet/live").text
    rows = [row for row in fleet.split("<tr>") if '<span class="badge good">alive</span>' in row]
    return (
        "60 in five minutes" in overview
        and "Rates are those of 2 processes of this machine." in overview
        and len(rows) == 2
        and not any('<td class="number">-</td>' in row for row in rows)
    )
