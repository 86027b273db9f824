"""The examples run as their own first lines say, and the typed project passes a strict type check as a user's would."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gatepost.clock import SYSTEM_CLOCK
from gatepost.net.client import DispatchClient
from gatepost.testing.receiver import Receiver
from gatepost.wire.egress import EgressPolicy
from gatepost.wire.signing import new_secret, sign

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OLD, NEW, STRANGER = (new_secret(bytes([value]) * 32) for value in (1, 2, 3))
BODY = b'{"type": "order.paid",  "data": {"number": 1001}}'  # two spaces: a re-serialised body would not verify
SERVERS = {
    "receiver_django": ["receiver_django.py", "runserver", "--noreload", "0"],
    "receiver_fastapi": ["-m", "uvicorn", "receiver_fastapi:app", "--port", "0"],
    "receiver_flask": ["-m", "flask", "--app", "receiver_flask", "run", "--port", "0"],
}


@contextmanager
def running(name: str, directory: Path) -> Iterator[int]:
    """The example as a process of its own, on a port that it chose, with its files in `directory`; yields the port."""
    process = subprocess.Popen(
        [sys.executable, "-u", *SERVERS[name]],
        cwd=EXAMPLES,
        env={**os.environ, "WEBHOOK_SECRETS": f"{NEW} {OLD}", "WEBHOOK_SEEN": str(directory / "seen.db")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        printed: list[str] = []
        for line in process.stdout:
            printed.append(line)
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found is not None:
                yield int(found.group(1))
                return
        raise AssertionError(f"{name} did not start: {''.join(printed)}")
    finally:
        process.terminate()
        process.communicate(timeout=20)


def post(port: int, headers: dict[str, str]) -> tuple[int, bytes]:
    """One POST of `BODY`; status and body of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", "/webhooks", body=BODY, headers={"content-type": "application/json", **headers})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.mark.parametrize("name", sorted(SERVERS))
async def test_a_receiver_takes_good_signatures_and_says_what_is_wrong_with_others(name: str, tmp_path: Path) -> None:
    """People copy these programs: they must check the raw body, allow rotation, and refuse the rest with a reason."""
    now = SYSTEM_CLOCK.wall_us() // 1_000_000
    with running(name, tmp_path) as port:
        for secret in (NEW, OLD):
            assert post(port, sign("evt_1", now, BODY, [secret])) == (204, b"")
        # The id came twice, under either secret: its work was done once, and the sender is told all is well.
        assert post(port, {})[0] == 401
        status, text = post(port, sign("evt_2", now, BODY, [STRANGER]))
        assert (status, b"no_match" in text) == (401, True)
        status, text = post(port, sign("evt_3", now - 3_600, BODY, [NEW]))
        assert (status, b"timestamp_too_old" in text) == (401, True)

        egress = EgressPolicy(schemes=("http",), allow_cidrs=("127.0.0.0/8",))
        async with DispatchClient(egress=egress) as client:
            headers = sign("evt_4", now, BODY, [NEW])
            attempt = await client.deliver(f"http://127.0.0.1:{port}/webhooks", BODY, headers)
        assert (attempt.delivered, attempt.status) == (True, 204)


async def test_the_typed_project_delivers(tmp_path: Path) -> None:
    """A program that only type-checks shows nothing."""
    spec = importlib.util.spec_from_file_location("orders", EXAMPLES / "user_project" / "orders.py")
    assert spec is not None
    assert spec.loader is not None
    orders = importlib.util.module_from_spec(spec)
    sys.modules["orders"] = orders  # dataclasses look their module up
    spec.loader.exec_module(orders)
    egress = EgressPolicy(schemes=("http",), allow_cidrs=("127.0.0.0/8",))
    async with Receiver() as receiver:
        assert orders.explain(await orders.probe(f"{receiver.url}/ok", egress)).startswith("delivered in ")
        assert (
            orders.explain(await orders.probe(f"{receiver.url}/status/500", egress))
            == "answered 500; it may have acted"
        )
        assert orders.explain(await orders.probe("https://10.0.0.1/")).startswith("not a public address (addr_private)")
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            program = group.create_task(
                orders.run(f"{receiver.url}/ok", f"sqlite:///{tmp_path / 'orders.db'}", stop, egress)
            )
            while not receiver.ledger:  # noqa: ASYNC110 - the receiver has no event to wait for
                await asyncio.sleep(0.01)
            stop.set()
        receipt = program.result()
        assert (receipt.duplicate, receipt.deliveries) == (False, 1)
        assert receiver.ledger == {receipt.event_id: 1}


def test_the_typed_project_passes_a_strict_check_outside_this_repository(tmp_path: Path) -> None:
    """`py.typed` and the annotations must hold for a user who only has the installed package."""
    shutil.copytree(EXAMPLES / "user_project", tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__"))
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "."],
        cwd=tmp_path / "project",
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout + result.stderr
