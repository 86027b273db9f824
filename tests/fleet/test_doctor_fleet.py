"""`gatepost doctor` against fleets on a real PostgreSQL: what only several processes, or a database elsewhere, can have."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from gatepost.delivery.ids import ENDPOINT, decode_id
from gatepost.delivery.records import Secret
from gatepost.testing.cut_proxy import CutProxy
from gatepost.testing.postgres_store import KEYS, gatepost_database
from tests.fleet.running import PATIENCE, balanced, gatepost, until
from tests.service.doctored import codes, examined, finding, publish, register
from tests.service.running import POLICY, Api, api
from tests.service.running import until as until_async
from tests.service.served import environment

PARTS = 8


async def database() -> str:
    """A new one with the schema."""
    return await asyncio.to_thread(gatepost_database, PARTS)


def fleet_api(tmp_path: Path, url: str, **changes: Any) -> AbstractAsyncContextManager[Api]:
    """A service on that database, in this process."""
    return api(tmp_path, database=url, keys=tuple(map(Secret, KEYS)), **changes)


async def execute(url: str, *statements: str) -> None:
    """As the database's owner."""
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


def holding(service: Api, parts: int) -> Callable[[], Awaitable[bool]]:
    """Whether it holds so many parts."""

    async def holds() -> bool:
        return service.running.dispatcher.statistics().parts == parts

    return holds


async def test_a_budget_above_the_part_lease_and_a_store_that_answers_late_are_found(tmp_path: Path) -> None:
    """An attempt that outlasts its lease runs beside its successor's; a database a quarter of a second away makes everything wait."""
    url = await database()
    policy = POLICY.evolve(read_timeout=40.0)
    async with (
        CutProxy.before(url) as proxy,
        fleet_api(tmp_path, proxy.url(url), policy=policy, shutdown_grace=50.0) as service,
    ):
        await until_async(holding(service, PARTS))
        evidence = finding(await examined(service.running.url), "budget_above_lease", "warning")
        assert "an attempt may take 41.6 s" in evidence
        proxy.delay = 0.4
        document = await examined(service.running.url)
        proxy.restore()
        assert codes(document) == ["budget_above_lease", "store_slow"]
        assert document["findings"][1]["evidence"][0].startswith("small writes took ")


FAST_CLOCK = """
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
 $$ SELECT pg_catalog.clock_timestamp() + interval '5 seconds' $$"""


async def test_a_database_whose_clock_is_ahead_is_found(tmp_path: Path) -> None:
    """Due times are the database's, signatures this machine's."""
    url = await database()
    await execute(url, FAST_CLOCK, f"ALTER DATABASE {url.rpartition('/')[2]} SET search_path = public, pg_catalog")
    async with fleet_api(tmp_path, url) as service:
        await until_async(holding(service, PARTS))
        evidence = finding(await examined(service.running.url), "clock_skew", "warning")
        assert evidence.startswith("the store's clock is +")


GHOST = """
INSERT INTO gp_node (name, address, weight, draining, seen_at, lease_until)
 SELECT 'ghost-0001', NULL, 1, false, t.now - 20000000, t.now + 3600000000
  FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now) AS t"""
"""A process that hangs: its lease runs on, and no heartbeat has come for twenty seconds."""


async def test_due_work_in_a_part_whose_owner_hangs_is_found(tmp_path: Path) -> None:
    """Nobody else may deliver it before the lease ends, so somebody has to end the owner."""
    url = await database()
    await execute(url, GHOST, "UPDATE gp_part SET owner = 'ghost-0001', epoch = epoch + 1 WHERE part > 0")
    async with fleet_api(tmp_path, url) as service:
        await until_async(holding(service, 1))
        document = await examined(service.running.url)
        assert codes(document) == ["process_dead"], "nothing is due there yet"
        endpoint = 0
        while endpoint % PARTS == 0:
            endpoint = decode_id(ENDPOINT, await register(service, "http://127.0.0.1:65000/", event_types=["late"]))
        await publish(service, 1, "late")
        await execute(url, "UPDATE gp_delivery SET due_at = due_at - 60000000")
        document = await examined(service.running.url)
        assert codes(document) == ["part_stuck", "process_dead"]
        stuck, dead = document["findings"]
        assert stuck["severity"] == "critical"
        assert any(line.startswith(f"part {endpoint % PARTS}: 1 deliveries, due for 6") for line in stuck["evidence"])
        assert "owner ghost-0001 is not at work" in stuck["evidence"][0]
        assert re.fullmatch(r"ghost-0001: no heartbeat for [2-9]\d s, 7 parts", dead["evidence"][0])
        assert document["not_asked"] == [{"name": "ghost-0001", "why": "it tells no address that others can use"}]


def test_every_process_of_a_machine_is_asked_and_they_are_put_together(tmp_path: Path) -> None:
    """Behind one port there are several, each with its own client: one answer is not the fleet's."""
    url = gatepost_database(PARTS)
    settings = {"GATEPOST_POLICY_FOLLOW_REDIRECTS": "true"}
    with gatepost(tmp_path, url, "serve", "--processes", "2", **settings) as parent:
        until(lambda: balanced(parent.url, 2), "two processes share the parts")
        ended = subprocess.run(
            [sys.executable, "-m", "gatepost.service.cli", "doctor", "--json", "--url", parent.url],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env=environment(tmp_path),
        )
        assert ended.returncode == 1, ended.stderr
        document = json.loads(ended.stdout)
        assert sorted(name.rpartition("-")[0] for name in document["asked"]) == ["m.0", "m.1"]
        assert document["not_asked"] == []
        evidence = finding(document, "redirects_on", "warning")
        assert evidence == "follow_redirects is true in the running process"
        assert sorted(document["findings"][0]["processes"]) == sorted(document["asked"])
        # Behind a load balancer nobody reaches the pages of single processes: whoever answers asks the others.
        answer = httpx.get(f"{parent.url}/v1/doctor", timeout=PATIENCE).json()
        (sibling,) = answer["siblings"]
        assert {answer["answered_by"], sibling["answered_by"]} == set(document["asked"])
        alone = httpx.get(f"{parent.url}/v1/doctor", params={"fleet": "false"}, timeout=PATIENCE).json()
        assert (alone["siblings"], alone["fleet"]) == ([], None)
