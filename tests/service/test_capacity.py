"""`gatepost capacity`: its fixed keys, its answers to people, what it reads from our metrics; and the page that explains it runs."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from typer.testing import CliRunner, Result

from gatepost.admission.capacity import Load, plan
from gatepost.errors import ConfigurationError
from gatepost.service.capacity_metrics import read_metrics
from gatepost.service.cli.capacity_svg import draw
from gatepost.service.cli.root import app
from gatepost.service.metrics import Metrics
from gatepost.telemetry import AttemptObservation

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "size-a-fleet.md"
EXAMPLE = ("--rate", "1000", "--mean", "0.25", "--bad-share", "0.02")


def run(*arguments: str) -> Result:
    """One command, in this process."""
    return CliRunner().invoke(app, ["capacity", *arguments])


def json_of(*arguments: str) -> dict[str, Any]:
    """What the command prints for programs."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stdout.isascii()
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    return document


def test_the_fixed_keys_carry_the_figures_of_the_example() -> None:
    """Outside checks rely on these."""
    found = json_of(*EXAMPLE, "--bad-timeout", "30")
    fixed = (
        "offered_erlangs",
        "healthy_slots",
        "bad_slots",
        "p_wait",
        "p99_wait",
        "throughput_healthy",
        "slots_recommended",
    )
    assert set(fixed) <= set(found)
    assert (found["offered_erlangs"], found["healthy_slots"], found["bad_slots"]) == pytest.approx((845, 245, 600))
    assert json_of(*EXAMPLE, "--bad-timeout", "5")["offered_erlangs"] == pytest.approx(345)
    for timeout in ("5", "30"):
        assert json_of(*EXAMPLE, "--bad-timeout", timeout, "--cap", "6")["bad_slots"] == 6
    full = json_of(*EXAMPLE, "--bad-timeout", "30", "--slots", "256")
    assert (full["stable"], full["p_wait"], full["p99_wait"]) == (False, 1.0, None)
    assert json_of("--rate", "980", "--mean", "0.25", "--processes", "8")["slots_recommended"] == 334


def test_people_get_the_answer_in_words() -> None:
    """How many slots and processes, what a timeout costs, how long a backlog lasts."""
    text = run(*EXAMPLE, "--bad-timeout", "30", "--slots", "256").output
    assert "256 slots are not enough" in text
    assert "0.55 s at most" in text
    text = run(*EXAMPLE, "--bad-timeout", "30", "--cap", "6", "--processes", "8").output
    assert "8 processes, each with its own part of the queue: 57 slots each, 456 in all" in text
    text = run(*EXAMPLE, "--bad-timeout", "5", "--compare-timeout", "30").output
    assert "30 s instead of 5 s costs +532 slots" in text
    assert (
        "cost nothing in slots" in run(*EXAMPLE, "--bad-timeout", "5", "--compare-timeout", "30", "--cap", "6").output
    )
    text = run(*EXAMPLE, "--bad-timeout", "30", "--cap", "6", "--slots", "350", "--backlog", "1000000").output
    assert "done after 42 min" in text
    assert "never done" in run(*EXAMPLE, "--bad-timeout", "30", "--slots", "256", "--backlog", "1").output
    text = run("--rate", "1024", "--mean", "0.25", "--slots", "256", "--processes", "8", "--hosts", "1").output
    assert "of 32 attempts of a process, hosts in flight 1: 8 have a connection, 24 wait" in text


def test_checks_that_do_not_hold_exit_1() -> None:
    """They may stand in a deployment's script."""
    assert run("--rate", "10", "--mean", "0.25", "--visibility", "30").exit_code == 0
    assert run("--rate", "10", "--mean", "0.25", "--visibility", "18").exit_code == 1
    result = run("--rate", "10", "--mean", "0.25", "--attempt-budget", "20", "--attempts", "6", "--window", "60")
    assert (result.exit_code, "120 s, 60 s allowed: DOES NOT FIT" in result.output) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--rate"),
        (("--rate", "10"), "--mean"),
        (("--rate", "10", "--mean", "0.25", "--compare-timeout", "5"), "--bad-share"),
        (("--from-metrics", "/nowhere"), "/nowhere"),
        (("--from-metrics", "http://127.0.0.1:9/", "--from-metrics", "b"), "one URL"),
        (("--from-metrics", "a", "--over", "0"), "--over"),
    ],
)
def test_what_is_missing_is_named(arguments: tuple[str, ...], words: str) -> None:
    """Exit 2, with what to write."""
    result = run(*arguments)
    assert (result.exit_code, words in result.output) == (2, True), result.output


def test_a_simulation_says_the_same_each_time_and_draws(tmp_path: Path) -> None:
    """In JSON, as a column of the table, and as a point of the picture."""
    options = (*EXAMPLE, "--bad-timeout", "30", "--cap", "6", "--slots", "280", "--simulate", "--duration", "5")
    first, again = json_of(*options), json_of(*options)
    assert first == again
    assert first["simulation"]["shed"] > 0
    picture = tmp_path / "capacity.svg"
    result = run(*options, "--svg", str(picture))
    assert "simulated" in result.output
    root = ElementTree.fromstring(picture.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "simulated: " in picture.read_text()
    missing = run(*options, "--svg", str(tmp_path / "no" / "capacity.svg"))
    assert isinstance(missing.exception, ConfigurationError)


def test_a_long_run_shows_a_bar_on_a_terminal() -> None:
    """And only there: where nobody looks, standard error stays empty."""
    command = [
        sys.executable,
        "-m",
        "gatepost.service.cli",
        "capacity",
        "--rate",
        "4000",
        "--mean",
        "0.1",
        "--simulate",
    ]
    reader, writer = pty.openpty()
    shown = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, stderr=writer, check=True, timeout=60)
    os.close(writer)
    text = os.read(reader, 100_000)
    os.close(reader)
    assert b"simulating" in text
    quiet = subprocess.run([*command, "--json"], capture_output=True, check=True, timeout=60)
    assert (quiet.stdout, quiet.stderr) == (shown.stdout, b"")


def test_the_picture_marks_the_load_and_what_is_recommended() -> None:
    """The curve falls from everybody to nobody between them."""
    load = Load(rate=1_000.0, mean=0.25)
    text = draw(load, plan(load), None)
    assert "load: 250" in text
    assert "recommended: 298" in text
    assert "1000/s, 0.25 s each" in text


# ----------------------------------------------------------------------------------------------------- metrics


def page(attempts: int) -> str:
    """Our own exposition after so many attempts: of 50, 49 took a quarter of a second and one ran into 10 s."""
    metrics = Metrics()
    metrics.watch("gatepost_slots", lambda: 64)
    metrics.watch("gatepost_queue_waiting", lambda: 17)
    metrics.limits = {"read_timeout": 10.0, "per_endpoint_concurrency": 6.0}
    for number in range(attempts):
        hangs = number % 50 == 49
        metrics.attempt_finished(
            AttemptObservation(
                outcome="read_timeout" if hangs else "response",
                delivered=not hangs,
                phase="wait",
                reason="ok",
                retry_safety="ambiguous",
                blame="endpoint",
                status=None if hangs else 200,
                host="https://a.example:443",
                endpoint_id=None,
                tenant=None,
                address=None,
                elapsed=10.0 if hangs else 0.25,
                phases={},
                reused=True,
                stale_retry=False,
                bytes_sent=1,
                body_fault=None,
                lagged=False,
            )
        )
    return generate_latest(metrics.registry).decode()


@contextmanager
def serving(*pages: str) -> Iterator[str]:
    """A service whose /metrics says one page after the other."""
    left = list(pages)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = left.pop(0).encode() if self.path == "/metrics" else b""
            self.send_response(200 if body else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_our_own_metrics_say_what_arrives_and_what_hangs() -> None:
    """By their outcome: what ran into a limit is bad, what never held a slot is left out."""
    found = read_metrics(page(200))
    assert (found.attempts, found.bad_share, found.bad_timeout) == (200.0, 0.02, 10.0)
    assert found.mean == pytest.approx(0.25)
    assert (found.slots, found.cap, found.read_timeout, found.waiting) == (64, 6, 10.0, 17)
    later = read_metrics(page(300)).since(found)
    assert (later.attempts, later.slots) == (100.0, 64)
    with pytest.raises(ConfigurationError, match="restarted"):
        found.since(read_metrics(page(300)))
    assert read_metrics(page(0)).mean is None


@pytest.mark.parametrize("text", ["", "<html>", "gatepost_slots x\n", "up 1\n"])
def test_what_is_no_page_of_ours_is_refused(text: str) -> None:
    """Not answered with zeros."""
    with pytest.raises(ConfigurationError, match="/metrics"):
        read_metrics(text)


def test_a_running_service_is_read_twice() -> None:
    """The difference is what arrives now; what is written on the line beats what was read."""
    with serving(page(100), page(200)) as url:
        found = json_of("--from-metrics", url, "--over", "0.5")
    assert found["load"]["rate"] == pytest.approx(200.0)
    assert (found["load"]["bad_share"], found["load"]["bad_timeout"]) == pytest.approx((0.02, 10.0))
    assert (found["slots"], found["cap"], found["bad_slots"]) == (64, 6, 6.0)
    with serving(page(100)) as url:
        found = json_of("--from-metrics", f"{url}/metrics", "--rate", "1000", "--cap", "3")
    assert (found["load"]["rate"], found["cap"]) == (1_000.0, 3)
    with serving(page(0), page(0)) as url:
        assert run("--from-metrics", url, "--over", "0.01").exit_code == 1


def test_saved_pages_are_read_too(tmp_path: Path) -> None:
    """Two of them have a rate, one has none."""
    before, after = tmp_path / "before.txt", tmp_path / "after.txt"
    before.write_text(page(100))
    after.write_text(page(1_100))
    found = json_of("--from-metrics", str(before), "--from-metrics", str(after), "--over", "10")
    assert found["load"]["rate"] == pytest.approx(100.0)
    alone = run("--from-metrics", str(after))
    assert (alone.exit_code, "--rate" in alone.output) == (2, True)
    assert json_of("--from-metrics", str(after), "--rate", "50")["load"]["mean"] == pytest.approx(0.25)


# --------------------------------------------------------------------------------------------------- the page


def commands() -> list[str]:
    """Every command of the page."""
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_page_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands, but for the address of the service and the time between two readings of it."""
    monkeypatch.chdir(tmp_path)
    for name, count in (("before.txt", 100), ("after.txt", 5_000)):
        Path(name).write_text(page(count))
    program, word, *arguments = shlex.split(command)
    assert (program, word) == ("gatepost", "capacity")
    with serving(page(100), page(200)) as url:
        if "http://127.0.0.1:8080/metrics" in arguments:
            arguments[arguments.index("http://127.0.0.1:8080/metrics")] = f"{url}/metrics"
            arguments[arguments.index("--over") + 1] = "0.1"
        result = run(*arguments)
    assert result.exit_code == 0, result.output


def test_the_figures_of_the_page_are_those_of_the_command() -> None:
    """845, 245, 600 and 30 % are said in prose."""
    text = PAGE.read_text()
    found = json_of(*EXAMPLE, "--bad-timeout", "30", "--slots", "256")
    assert f"{found['healthy_slots']:.0f} busy slots" in text
    assert f"= {found['bad_slots']:.0f} for the dead one, {found['offered_erlangs']:.0f} in" in text
    assert f"gets {found['throughput_healthy'] / 980:.0%} of its deliveries".replace("%", " %") in text
