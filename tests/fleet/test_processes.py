"""Real processes on a real PostgreSQL: crashes, freezes, restarts and rolling restarts, with nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatepost.clock import SYSTEM_CLOCK
from gatepost.service.processes import RESTART_MAX, restart_delay
from gatepost.store.rows import PART_LEASE
from gatepost.testing.postgres import PostgresServer
from gatepost.testing.postgres_store import gatepost_database
from tests.fleet.running import PATIENCE, balanced, fleet_of, gatepost, publish, receiver, until
from tests.service.served import environment

PARTS = 32
ENDPOINTS = 16


@pytest.fixture
def database() -> str:
    """A database with the schema and a few parts."""
    return gatepost_database(PARTS)


def register(url: str, receiver_url: str) -> None:
    """Endpoints over many parts."""
    for number in range(ENDPOINTS):
        body: dict[str, Any] = {"url": f"{receiver_url}/{number}", "concurrency": 4}
        answer = httpx.post(f"{url}/v1/endpoints", json=body)
        assert answer.status_code == 201, answer.text
    threading.Event().wait(2.5)  # every process follows the registry within two seconds


def owners_of(url: str) -> dict[str, int]:
    """Parts by node."""
    return {node["name"]: node["parts"] for node in fleet_of(url)["nodes"]}


def status(directory: Path, url: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of `gatepost status --json`."""
    ended = subprocess.run(
        [sys.executable, "-m", "gatepost.service.cli", "status", "--json", "--url", url],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=environment(directory),
    )
    assert ended.stdout, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return ended.returncode, document


def test_a_killed_worker_is_followed_and_nothing_is_lost(tmp_path: Path, database: str) -> None:
    """kill -9 of one of two workers under load: the other delivers what was its share, within seconds."""
    with (
        receiver(delay=0.02) as target,
        gatepost(tmp_path, database, "serve") as api,
        gatepost(tmp_path, database, "worker") as victim,
        gatepost(tmp_path, database, "worker") as survivor,
    ):
        register(api.url, target.url)
        until(lambda: balanced(api.url, 3), "three nodes share the parts")
        assert httpx.get(f"{victim.url}/readyz").status_code == 200
        assert httpx.get(f"{victim.url}/v1/endpoints").status_code == 404, "a worker has no API"
        threading.Event().wait(6.0)  # sessions old enough to be believed
        ids = publish(api.url, 20)
        victim.process.kill()
        killed = SYSTEM_CLOCK.monotonic()
        ids += publish(api.url, 20)
        until(lambda: len(target.seen) == ENDPOINTS * len(ids), "all is delivered")
        took = SYSTEM_CLOCK.monotonic() - killed
        assert took < PART_LEASE, f"{took:.1f} s: the parts were taken over before their leases ended"
        doubled = sum(target.seen.values()) - len(target.seen)
        assert doubled <= ENDPOINTS * 4, "only what was in flight"
        until(lambda: balanced(api.url, 2), "two nodes share the parts")
        survivor.signal(signal.SIGTERM)
        assert survivor.wait() == 0
        api.signal(signal.SIGTERM)
        assert api.wait() == 0


def test_a_frozen_worker_starts_nothing_after_its_lease(tmp_path: Path, database: str) -> None:
    """SIGSTOP for longer than a lease: when it goes on, its first look at the clock stops it."""
    with (
        receiver() as target,
        gatepost(tmp_path, database, "serve") as api,
        gatepost(tmp_path, database, "worker") as frozen,
    ):
        register(api.url, target.url)
        until(lambda: balanced(api.url, 2), "two nodes share the parts")
        frozen.signal(signal.SIGSTOP)
        ids = publish(api.url, 5)
        until(lambda: len(target.seen) == ENDPOINTS * len(ids), "the leases end, and the other takes over")
        frozen.signal(signal.SIGCONT)
        ids += publish(api.url, 5)
        until(lambda: len(target.seen) == ENDPOINTS * len(ids), "all is delivered")
        until(lambda: balanced(api.url, 2), "it gets its share back")
        assert set(target.seen.values()) == {1}, "nothing was in flight, so nothing is doubled"


def test_processes_of_one_parent_are_replaced_one_after_the_other_without_a_gap(tmp_path: Path, database: str) -> None:
    """SIGHUP: requests are always accepted, nothing is lost, nothing is doubled; SIGTERM drains all."""
    with receiver() as target, gatepost(tmp_path, database, "serve", "--processes", "2") as parent:
        url = parent.url
        until(lambda: balanced(url, 2), "two processes share the parts")
        register(url, target.url)
        before = {node["name"] for node in fleet_of(url)["nodes"]}
        assert {name.rpartition("-")[0] for name in before} == {"m.0", "m.1"}
        pages = [node["address"] for node in fleet_of(url)["nodes"]]
        assert all(httpx.get(f"{page}/metrics").status_code == 200 for page in pages)
        ids: list[str] = []
        done = threading.Event()

        def produce() -> None:
            while not done.is_set():
                ids.extend(publish(url, 1))

        producer = threading.Thread(target=produce)
        producer.start()
        parent.signal(signal.SIGHUP)
        until(lambda: any(line["event"] == "rolling_restart_done" for line in parent.lines), "all were replaced")
        done.set()
        producer.join(PATIENCE)
        until(lambda: len(target.seen) == ENDPOINTS * len(ids), "all is delivered")
        assert set(target.seen.values()) == {1}
        until(lambda: balanced(url, 2), "two processes share the parts")
        after = {node["name"] for node in fleet_of(url)["nodes"]}
        assert not before & after
        parent.signal(signal.SIGTERM)
        assert parent.wait() == 0
        assert parent.lines[-1]["message"] == "all processes have ended"


def test_a_child_that_dies_is_said_and_started_again(tmp_path: Path, database: str) -> None:
    """The parent answers no request and opens no store, so that what kills a child does not kill it."""
    with gatepost(tmp_path, database, "serve", "--processes", "2") as parent:
        until(lambda: balanced(parent.url, 2), "two processes share the parts")
        started = [line for line in parent.lines if line["event"] == "child_started"]
        os.kill(int(started[0]["pid"]), signal.SIGKILL)
        died = parent.wait_for("child_died")
        assert "SIGKILL" in died["message"]
        until(lambda: balanced(parent.url, 2), "it has a successor")
        until(lambda: status(tmp_path, parent.url)[0] == 0, "all parts are held")
        shown = status(tmp_path, parent.url)[1]
        assert [node["alive"] for node in shown["nodes"]] == [True, True]
        assert shown["parts"]["all"] == PARTS
        parent.process.kill()
        children = [int(line["pid"]) for line in parent.lines if line["event"] == "child_started"]
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "the children end with their parent")


def test_a_child_that_dies_again_and_again_is_started_less_and_less_often() -> None:
    """What kills it at once must not become a busy loop, and must not be given up either."""
    delays = [restart_delay(failures) for failures in range(1, 12)]
    assert delays[:4] == [0.5, 1.0, 2.0, 4.0]
    assert delays == sorted(delays)
    assert delays[-1] == RESTART_MAX


def test_a_crash_of_the_database_under_load_loses_nothing(tmp_path: Path) -> None:
    """All sessions end at once, and recovery takes a moment: owners come back to what they had, and nobody takes from nobody."""
    server = PostgresServer(fsync=True)
    try:
        database = gatepost_database(PARTS, server)
        with (
            receiver(delay=0.02) as target,
            gatepost(tmp_path, database, "serve") as api,
            gatepost(tmp_path, database, "worker") as worker,
        ):
            register(api.url, target.url)
            until(lambda: balanced(api.url, 2), "two nodes share the parts")
            owners = owners_of(api.url)
            accepted: list[str] = []
            done = threading.Event()

            def produce() -> None:
                with httpx.Client(base_url=api.url, timeout=PATIENCE) as client:
                    number = 0
                    while not done.is_set():
                        number += 1
                        answer = client.post("/v1/events", json={"type": "a.b", "payload": number})
                        if answer.status_code == 202:
                            accepted.append(answer.json()["event_id"])
                        else:
                            assert answer.status_code == 503, answer.text
                            done.wait(0.1)

            producer = threading.Thread(target=produce)
            producer.start()
            until(lambda: len(accepted) > 30, "load")
            server.restart("immediate")
            before = len(accepted)
            until(lambda: len(accepted) > before + 30, "events are accepted again")
            done.set()
            producer.join(PATIENCE)
            until(
                lambda: all(target.seen[f"/{n}", event] for n in range(ENDPOINTS) for event in accepted),
                "all that was accepted is delivered",
            )
            known = [count for (_, event), count in target.seen.items() if event in set(accepted)]
            assert sum(known) - len(known) <= ENDPOINTS * 8, "only what was in flight or unsettled at the crash"
            until(lambda: balanced(api.url, 2), "two nodes share the parts")
            assert owners_of(api.url) == owners, "each has what it had"
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
            api.signal(signal.SIGTERM)
            assert api.wait() == 0
    finally:
        server.close()
