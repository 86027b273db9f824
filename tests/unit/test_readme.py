"""The first page's programs and commands do what it says, run as a newcomer would paste them."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
LIMIT = 30.0
"""Seconds for a program to say what it should."""


def python_blocks() -> list[str]:
    """The Python programs of the page, in order."""
    return re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def shell_lines(start: str) -> list[list[str]]:
    """Commands whose line begins with `start`, comments cut off, as a shell would split them."""
    return [shlex.split(line, comments=True) for line in README.splitlines() if line.startswith(start)]


@contextmanager
def running(command: list[str], directory: Path, environment: dict[str, str] | None = None) -> Iterator[None]:
    """A command in the background, ended by SIGTERM; its output goes to a file."""
    with (directory / "output.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=directory, env={**os.environ, **(environment or {})}, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(LIMIT) in (0, -signal.SIGTERM), (directory / "output.log").read_text()


def ask(url: str, body: str | None = None) -> Any:
    """What curl would print, parsed; waits for a server that is still starting."""
    parts = urlsplit(url)
    limit = time.monotonic() + LIMIT
    while True:
        connection = http.client.HTTPConnection(parts.netloc, timeout=LIMIT)
        try:
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            headers = {"content-type": "application/json", "accept": "application/json"}
            connection.request("GET" if body is None else "POST", target, body, headers)
            response = connection.getresponse()
            answer = response.read()
            assert 200 <= response.status < 300, answer
            return json.loads(answer)
        except ConnectionRefusedError:
            assert time.monotonic() < limit, "the server did not start"
            time.sleep(0.05)
        finally:
            connection.close()


def test_the_first_program_prints_how_the_attempt_ended(tmp_path: Path) -> None:
    """`deliver` never raises for the network: here the destination is refused, whatever network the test has."""
    program = python_blocks()[0].replace("https://example.com/webhooks", "https://10.0.0.1/webhooks")
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert result.stderr == ""
    assert re.fullmatch(r"False egress_denied admission addr_private \d\.\d{3} s\n", result.stdout), result.stdout


def test_the_second_program_stores_an_event_and_runs_until_it_is_interrupted(tmp_path: Path) -> None:
    """What `publish` acknowledged is in the file, and Ctrl-C drains."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", python_blocks()[1]],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert re.fullmatch(r"evt_\w{13} goes to 1 endpoint\(s\)\n", line), line + errors
    assert (tmp_path / "gatepost.db").exists()


def test_the_service_quick_start_delivers(tmp_path: Path) -> None:
    """Receiver, service, endpoint, event, delivery: the commands as they stand, on ports of this test's own."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"9000": str(one.getsockname()[1]), "8080": str(other.getsockname()[1])}

    def mine(words: list[str]) -> list[str]:
        for port, free in ports.items():
            words = [re.sub(rf"\b{port}\b", free, word) for word in words]
        return [word.replace(".venv/bin/", f"{Path(sys.executable).parent}/") for word in words]

    (receiver,) = [mine(words) for words in shell_lines(".venv/bin/python -m gatepost.testing.receiver")]
    (service,) = [mine(words) for words in shell_lines("GATEPOST_EGRESS_SCHEMES")]
    settings = dict(word.split("=", 1) for word in service if "=" in word)
    command = [word for word in service if "=" not in word]
    create, publish, deliveries, stats = [mine(words) for words in shell_lines("curl ")]

    with running(receiver, tmp_path), running(command, tmp_path, {**settings, "GATEPOST_LISTEN_PORT": ports["8080"]}):
        assert create[1] == publish[1] == "--json"
        assert ask(create[3], create[2])["secret"].startswith("whsec_")
        receipt = ask(publish[3], publish[2])
        assert receipt["deliveries"] == 1
        limit = time.monotonic() + LIMIT
        while ask(deliveries[1])["items"][0]["state"] != "delivered":
            assert time.monotonic() < limit, "not delivered"
            time.sleep(0.05)
        assert ask(stats[1])["unique_ids"] == 1
