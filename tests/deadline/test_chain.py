"""The example of three processes keeps its promises: FastAPI → gRPC → PostgreSQL under one budget."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pytest

from gatepost.testing.postgres import empty_database, shared_server

HERE = Path(__file__).resolve().parents[2] / "examples" / "deadlines"
CLIENT = """
import socket, sys
host, port, path = sys.argv[1:]
with socket.create_connection((host, int(port))) as sock:
    sock.sendall(f"GET {path} HTTP/1.1\\r\\nHost: x\\r\\nRequest-Timeout: 0.5\\r\\n\\r\\n".encode())
    print("sent", flush=True)
    sock.recv(1)
"""


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("deadlines_run", HERE / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def running(example: Any) -> Iterator[tuple[str, IO[str]]]:
    before = os.environ.get("DATABASE_URL")
    os.environ["DATABASE_URL"] = empty_database()
    try:
        with example.chain() as (url, output):
            yield url, output
    finally:
        if before is None:
            del os.environ["DATABASE_URL"]
        else:
            os.environ["DATABASE_URL"] = before


def queries() -> int:
    """Queries of the stock service that PostgreSQL runs now."""
    return int(
        shared_server().run_sql(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%stock_query%' "
            "AND pid <> pg_backend_pid()"
        )
    )


def begun(output: IO[str]) -> int:
    """Queries that the stock service has begun since the last look."""
    count = 0
    while select.select([output], [], [], 0.05)[0]:
        count += os.read(output.fileno(), 65_536).count(b"query")  # beneath the text, which would read ahead
    return count


def test_a_budget_shrinks_from_hop_to_hop(running: tuple[str, IO[str]], example: Any) -> None:
    """Each service is told less than the one before, the database included."""
    url, output = running
    example.ask(url, 5.0, 0.0)  # connections are made by the first
    status, refused, body = example.ask(url, 0.5, 0.02)
    assert (status, refused) == (200, None), body
    answer = json.loads(body)
    told = int(answer["database_was_told"].removesuffix("ms"))
    assert 500 >= answer["front_had_ms"] > answer["stock_had_ms"] > told > 0
    assert answer["items"] == 42
    assert begun(output) == 2


def test_the_last_hop_refuses_dead_work(running: tuple[str, IO[str]], example: Any) -> None:
    """With 70 ms for all three, no query is begun whose answer nobody would see."""
    url, output = running
    begun(output)
    for _ in range(3):
        status, refused, _body = example.ask(url, 0.07, 0.02)
        assert (status, refused is not None) == (504, True)
    assert begun(output) == 0


def test_a_slow_query_is_cut_in_the_database(running: tuple[str, IO[str]], example: Any) -> None:
    """The caller gets its 504 in time, and the database is free again."""
    url, _ = running
    started = time.monotonic()
    status, refused, _body = example.ask(url, 0.5, 20.0)
    assert (status, refused) == (504, "handler")
    assert time.monotonic() - started < 1.0
    time.sleep(max(0.0, started + 0.6 - time.monotonic()))
    assert queries() == 0


def test_a_killed_client_leaves_no_query_behind(running: tuple[str, IO[str]]) -> None:
    """Killed 100 ms into a budget of 500 ms: at 600 ms PostgreSQL runs nothing for it."""
    parts = urlsplit(running[0])
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(parts.hostname), str(parts.port), f"{parts.path}?query_seconds=20"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    assert client.stdout.readline() == "sent\n"
    sent = time.monotonic()
    time.sleep(0.1)
    client.kill()
    client.wait()
    client.stdout.close()
    seen = False
    while not seen and time.monotonic() < sent + 0.4:
        seen = queries() == 1
    assert seen, "the query never ran: the test shows nothing"
    time.sleep(max(0.0, sent + 0.6 - time.monotonic()))
    assert queries() == 0


def test_one_command_shows_it_all() -> None:
    """As the file's first line says."""
    done = subprocess.run(
        [sys.executable, str(HERE / "run.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "DATABASE_URL": empty_database()},
    )
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert "-> 200" in first or "-> 504" in first  # the first request pays for all connections
    assert "-> 504" in second
    assert "-> 504" in third
