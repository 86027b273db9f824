"""`gatepost serve` as a process: what it says at start, how it drains, and with which code it ends."""

from __future__ import annotations

import base64
import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from gatepost.service.cli.root import run
from tests.service.served import PATIENCE, environment, served


def refuse(directory: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """A start that must fail."""
    return subprocess.run(
        [sys.executable, "-m", "gatepost.service.cli", "serve"],
        cwd=directory,
        env=environment(directory, **settings),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


class Slow:
    """A receiver that answers 200 after it was told to."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/"
        self.arrived = threading.Event()
        self.answer = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self.listener.accept()
        with connection:
            connection.recv(65_536)
            self.arrived.set()
            self.answer.wait(PATIENCE)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def close(self) -> None:
        """End the thread."""
        self.answer.set()
        self._thread.join(PATIENCE)
        self.listener.close()


def test_a_drain_lets_the_attempt_in_flight_finish_and_settles_it(tmp_path: Path) -> None:
    """A deploy must neither cut an attempt off nor forget that it succeeded: that would be a duplicate."""
    slow = Slow()
    with served(tmp_path) as service:
        endpoint = httpx.post(f"{service.url}/v1/endpoints", json={"url": slow.url}).json()
        receipt = httpx.post(f"{service.url}/v1/events", json={"type": "a", "payload": 1}).json()
        assert slow.arrived.wait(PATIENCE)
        service.signal(signal.SIGTERM)
        draining = service.wait_for("draining")
        assert draining["in_flight"] == 1
        slow.answer.set()
        assert service.wait() == 0
        attempts = [line for line in service.lines if line["event"] == "attempt"]
        assert [(line["outcome"], line["delivered"]) for line in attempts] == [("response", True)]
        assert service.lines[-1]["event"] == "stopped"
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{service.url}/healthz")
    slow.close()
    with served(tmp_path) as service:
        page = httpx.get(f"{service.url}/v1/deliveries", params={"event_id": receipt["event_id"]}).json()
        assert [(item["state"], item["attempts"]) for item in page["items"]] == [("delivered", 1)]
        assert page["items"][0]["endpoint_id"] == endpoint["id"]
        service.signal(signal.SIGINT)
        assert service.wait() == 0


def test_no_secret_reaches_log_or_metrics(tmp_path: Path) -> None:
    """Logs are copied to where nobody guards them: no signing secret, header value, payload, path or query."""
    canary = "canary7391"
    secret = "whsec_" + base64.b64encode(canary.encode() * 3).decode()
    with served(tmp_path) as service, socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        port = refusing.getsockname()[1]
        for host, path in ((f"127.0.0.1:{port}", canary), (f"127.0.0.1:{port}", f"in?token={canary}")):
            body = {
                "url": f"http://{host}/{path}",
                "secret": secret,
                "headers": {"X-Token": canary},
                "schedule": [0, 0.05],
            }
            assert httpx.post(f"{service.url}/v1/endpoints", json=body).status_code == 201
        httpx.post(f"{service.url}/v1/events", json={"type": "a", "payload": {"card": canary}})
        while sum(line["event"] == "attempt" for line in service.lines) < 4:
            service.wait_for("attempt")
        endpoint = httpx.get(f"{service.url}/v1/endpoints").json()["items"][0]["id"]
        httpx.post(f"{service.url}/v1/endpoints/{endpoint}/test")
        metrics = httpx.get(f"{service.url}/metrics").text
        assert f"127.0.0.1:{port}" in metrics
        assert canary not in metrics
        service.signal(signal.SIGTERM)
        assert service.wait() == 0
        said = json.dumps(service.lines) + "".join(service.other)
        assert canary not in said
        assert secret not in said


def test_a_second_signal_leaves_at_once_and_the_event_is_not_lost(tmp_path: Path) -> None:
    """Whoever presses Ctrl-C twice means it; what was in flight is attempted again after the next start."""
    slow = Slow()
    with served(tmp_path) as service:
        httpx.post(f"{service.url}/v1/endpoints", json={"url": slow.url})
        receipt = httpx.post(f"{service.url}/v1/events", json={"type": "a", "payload": 1}).json()
        assert slow.arrived.wait(PATIENCE)
        service.signal(signal.SIGTERM)
        service.wait_for("draining")
        service.signal(signal.SIGTERM)
        assert service.wait() == 128 + signal.SIGTERM
    slow.close()
    with served(tmp_path) as service:
        page = httpx.get(f"{service.url}/v1/deliveries", params={"event_id": receipt["event_id"]}).json()
        assert [item["state"] for item in page["items"]] == ["waiting"]


def test_the_effective_policy_is_logged_at_start(tmp_path: Path) -> None:
    """The seed's checklist: print the effective limits, all phases, before the first attempt."""
    with served(tmp_path, GATEPOST_POLICY_WRITE_TIMEOUT="1.5") as service:
        (policy,) = (line for line in service.lines if line["event"] == "effective_policy")
        assert policy["phase write"] == 1.5
        phases = ("admission", "pool", "dns", "connect", "tls", "write", "wait", "read")
        assert all(f"phase {name}" in policy for name in phases)
        (memory,) = (line for line in service.lines if line["event"] == "connections")
        assert "43 KiB for each idle TLS connection" in memory["message"]


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        ({"GATEPOST_POLICY_READ_TIMOUT": "3"}, 2, "write GATEPOST_POLICY_READ_TIMEOUT"),
        ({"GATEPOST_LISTEN_HOST": "0.0.0.0"}, 2, "set security.admin_key"),
        ({"GATEPOST_LISTEN_HOST": "192.0.2.1"}, 2, "write a free port"),
        ({"GATEPOST_LISTEN_HOST": "no such host"}, 2, "write an address of this machine"),
        ({"GATEPOST_DATABASE": "mysql://x"}, 2, "does not name a store"),
        ({"GATEPOST_SECURITY_KEYS": "nonsense"}, 2, "keys"),
        ({"GATEPOST_DATABASE": "sqlite:////nowhere/at/all.db"}, 1, ""),
    ],
)
def test_what_cannot_start_says_why_with_an_exit_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    settings: dict[str, str],
    code: int,
    says: str,
) -> None:
    """An orchestrator shows the last line; it must be the one that helps."""
    monkeypatch.chdir(tmp_path)
    for name, value in environment(tmp_path, **settings).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        run(["serve"])
    said = capfd.readouterr().err
    assert ended.value.code == code, said
    assert says in said
    assert "Traceback" not in said


def test_a_taken_port_and_a_taken_file_are_refused(tmp_path: Path) -> None:
    """Two dispatchers on one SQLite file would deliver everything twice."""
    with served(tmp_path) as service:
        port = service.url.rpartition(":")[2]
        ended = refuse(tmp_path, GATEPOST_LISTEN_PORT=port)
        assert ended.returncode == 2
        assert "write a free port" in ended.stderr
        ended = refuse(tmp_path)
        assert ended.returncode == 1
        assert "Traceback" not in ended.stderr
        assert ended.stderr.strip()
