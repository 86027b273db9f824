"""The policy of a fleet of real processes on a real PostgreSQL: a change, a shadow, a canary and a way back, each across processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from gatepost.clock import SYSTEM_CLOCK
from gatepost.testing.postgres_store import gatepost_database
from tests.fleet.running import PATIENCE, balanced, fleet_of, gatepost, publish, receiver, until

ENDPOINTS: Final = 12
AT_ONCE: Final = 2.0
"""Seconds within which a change is in force everywhere, as promised."""
SLACK: Final = 3.0
"""What a busy machine may add to it."""


@pytest.fixture
def database() -> str:
    """A database with the schema and a few parts."""
    return gatepost_database(16)


def ask(url: str, path: str) -> dict[str, Any]:
    """A document of the API."""
    answer = httpx.get(f"{url}/v1/policies{path}", timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def tell(url: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A change by the API."""
    answer = httpx.post(f"{url}/v1/policies{path}", json={"why": "a test", **body}, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def in_force(page: str, limit: str) -> float:
    """What a process really runs, by its own gauge: asking for the policy would have it read."""
    for line in httpx.get(f"{page}/metrics", timeout=PATIENCE).text.splitlines():
        if line.startswith("gatepost_policy_limit{") and f'limit="{limit}"' in line:
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"{page} says nothing of {limit}")


def within(seconds: float, condition: Callable[[], bool], what: str) -> None:
    """It comes true so soon, give or take a busy machine."""
    began = SYSTEM_CLOCK.monotonic()
    until(condition, what)
    took = SYSTEM_CLOCK.monotonic() - began
    assert took < seconds + SLACK, f"{took:.1f} s: {what}"


def test_a_policy_is_one_for_all_processes(tmp_path: Path, database: str) -> None:
    """Set at one and in force at the other; judged by both and reported by one; a canary that is one of two of the same name; taken
    back for one endpoint and for all; and a history of all of it."""
    with (
        receiver(delay=0.3) as target,
        gatepost(tmp_path, database, "serve") as one,
        gatepost(tmp_path, database, "serve") as other,
    ):
        pages = (one.url, other.url)
        ids = []
        for number in range(ENDPOINTS):
            answer = httpx.post(f"{one.url}/v1/endpoints", json={"url": f"{target.url}/{number}", "concurrency": 4})
            assert answer.status_code == 201, answer.text
            ids.append(answer.json()["id"])
        until(lambda: balanced(one.url, 2), "two processes share the parts")
        threading.Event().wait(AT_ONCE)  # both follow the registry

        before = in_force(one.url, "read_timeout")

        tell(one.url, "/set", {"limits": {"write_timeout": {"value": 4.0}}})
        within(AT_ONCE, lambda: in_force(other.url, "write_timeout") == 4.0, "set at one, in force at the other")
        tell(other.url, "/rollback", {})
        within(AT_ONCE, lambda: in_force(one.url, "write_timeout") == 5.0, "taken back by the other")

        tell(one.url, "/rollout", {"limits": {"read_timeout": {"value": 0.2}}, "force": True})
        threading.Event().wait(AT_ONCE)
        publish(one.url, 3)

        def judged() -> bool:
            return all(ask(page, "/shadow")["judged"] == 3 * ENDPOINTS for page in pages)

        within(10.0, judged, "what both processes judged is in the report of each")
        report = ask(other.url, "/shadow")
        assert (report["lost"], report["endpoints_losing"], len(report["endpoints"])) == (
            3 * ENDPOINTS,
            ENDPOINTS,
            ENDPOINTS,
        )

        tell(one.url, "/rollout:advance", {"step": 0})
        refused = httpx.post(f"{other.url}/v1/policies/rollout:advance", json={"why": "me too", "step": 0})
        assert refused.status_code == 409, "who says so for a stage that is over is asked to look again"
        within(
            AT_ONCE,
            lambda: sorted(in_force(page, "read_timeout") for page in pages) == [0.2, before],
            "the canary is one process, though both have one name",
        )
        rollout = ask(one.url, "/rollout")["rollout"]
        assert rollout["canary"] in {node["name"] for node in fleet_of(one.url)["nodes"]}
        publish(one.url, 3)

        def compared() -> bool:
            verdict = ask(one.url, "/rollout")["verdict"]
            counted: bool = (
                verdict["attempts_with"] >= 3 and verdict["endpoints_with"] + verdict["endpoints_without"] == ENDPOINTS
            )
            return counted

        until(compared, "the verdict counts what the other process saw")

        for step in range(1, 5):  # three cohorts, and all
            tell(one.url, "/rollout:advance", {"step": step})
        within(AT_ONCE, lambda: in_force(other.url, "read_timeout") == 0.2, "all have it")
        own = tell(other.url, "/rollback", {"endpoint_id": ids[0]})
        assert own["overrides"] == {"read_timeout": before}

        def limit_of(page: str, endpoint_id: str) -> float:
            limits = ask(page, f"/explain/{endpoint_id}")["limits"]
            return next(float(row["value"]) for row in limits if row["limit"] == "read_timeout")

        within(AT_ONCE, lambda: limit_of(one.url, ids[0]) == before, "one endpoint has its old value back everywhere")
        assert limit_of(one.url, ids[1]) == 0.2
        tell(one.url, "/rollout:abort", {})
        within(AT_ONCE, lambda: in_force(other.url, "read_timeout") == before, "all have the old value back")
        history = [version["action"].partition(" ep_")[0] for version in ask(other.url, "/history")["items"]]
        assert history == [
            "rollout abort",
            "override",
            *["rollout advance"] * 5,
            "rollout start read_timeout=0.2",
            "roll back to 0",
            "set fleet write_timeout=4.0",
        ]
