"""`gatepost serve` and `gatepost worker` as processes on one PostgreSQL database, and a receiver that keeps what it got."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from gatepost.clock import SYSTEM_CLOCK
from gatepost.testing.postgres_store import KEYS
from tests.service.served import Served, environment

PATIENCE = 120.0
"""Seconds a step may take on a busy machine."""


@contextmanager
def gatepost(directory: Path, database: str, *command: str, **settings: str) -> Iterator[Served]:
    """A process that listens; killed at the end if it still runs, and its children with it."""
    environ = environment(
        directory,
        GATEPOST_DATABASE=database,
        GATEPOST_SECURITY_KEYS=",".join(KEYS),
        GATEPOST_FLEET_NAME="m",
        **settings,
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "gatepost.service.cli", *command],
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    service = Served(process)
    try:
        service.url = str(service.wait_for("listening")["url"])
        yield service
    finally:
        if process.poll() is None:
            process.kill()  # its children drain when they hear of it
        process.wait()
        service.wait()


class Receiver:
    """Answers 200 after `delay` seconds and counts event ids by path."""

    def __init__(self, delay: float = 0.0) -> None:
        self.seen: Counter[tuple[str, str]] = Counter()
        self.at: dict[tuple[str, str], float] = {}
        lock = threading.Lock()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                threading.Event().wait(delay)
                with lock:
                    key = (self.path, self.headers["webhook-id"])
                    outer.seen[key] += 1
                    outer.at.setdefault(key, SYSTEM_CLOCK.monotonic())
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Says nothing."""

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)


@contextmanager
def receiver(delay: float = 0.0) -> Iterator[Receiver]:
    """A receiver, closed at the end."""
    made = Receiver(delay)
    try:
        yield made
    finally:
        made.close()


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that must happen soon."""
    started = SYSTEM_CLOCK.monotonic()
    while not condition():
        assert SYSTEM_CLOCK.monotonic() - started < PATIENCE, f"not within {PATIENCE:g} s: {what}"
        threading.Event().wait(0.05)


def fleet_of(url: str) -> dict[str, Any]:
    """What `/v1/fleet` says."""
    document: dict[str, Any] = httpx.get(f"{url}/v1/fleet").json()
    return document


def balanced(url: str, nodes: int) -> bool:
    """So many nodes are alive, all parts are held, and each node holds its share give or take one."""
    document = fleet_of(url)
    held = [node["parts"] for node in document["nodes"]]
    return len(held) == nodes and document["parts"]["free"] == 0 and max(held) - min(held) <= 1


def publish(url: str, count: int, kind: str = "a.b") -> list[str]:
    """Publish so many events; their ids."""
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        ids = []
        for number in range(count):
            answer = client.post("/v1/events", json={"type": kind, "payload": number})
            assert answer.status_code == 202, answer.text
            ids.append(answer.json()["event_id"])
        return ids
