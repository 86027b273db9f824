"""The log: one wide line per attempt, JSON that parses, nothing secret, and never in the way."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gatepost.service.line_writer import BUFFER_LINES_MAX, LineWriter
from gatepost.service.log_format import Stamp
from gatepost.service.logs import LogObserver, Logs
from gatepost.service.observers import Observers
from gatepost.telemetry import AttemptObservation, DeliveryObservation, OperationalObservation
from tests.service.test_metrics import attempt


def decided(observation: AttemptObservation | None, event_type: str = "invoice.paid") -> DeliveryObservation:
    """A decision after an attempt."""
    return DeliveryObservation(
        "evt_1", "dlv_1", "ep_1", "default", event_type, 2, "retry_at", "read_timeout", 29.5, 0.004, observation
    )


def lines_of(path: Path, write: Callable[[Logs], None], style: Any = "json") -> list[str]:
    """What `write` put into the log."""
    with path.open("w") as stream:
        logs = Logs(style, stream=stream)
        write(logs)
        logs.close()
    return path.read_text().splitlines()


def test_an_attempt_is_one_json_line_with_every_decision_in_it(tmp_path: Path) -> None:
    """Grep by event, endpoint, phase or decision: one line has them all."""

    def write(logs: Logs) -> None:
        observer = LogObserver(logs)
        failed = replace(attempt(outcome="read_timeout", status=None), delivered=False, address="192.0.2.1:443")
        observer.attempt_finished(failed)
        observer.delivery_decided(decided(failed))

    (line,) = lines_of(tmp_path / "log", write)
    entry = json.loads(line)
    assert line.isascii()
    assert entry["event"] == "attempt"
    assert entry["level"] == "warning"
    assert entry["outcome"] == "read_timeout"
    assert entry["phases_ms"]["wait"] == 20.0
    assert entry["status"] is None
    assert (entry["event_id"], entry["delivery_id"], entry["attempt"]) == ("evt_1", "dlv_1", 2)
    assert (entry["decision"], entry["why"], entry["delay_s"]) == ("retry_at", "read_timeout", 29.5)


@pytest.mark.parametrize("style", ["json", "console"])
def test_text_from_users_cannot_forge_a_line(tmp_path: Path, style: str) -> None:
    """Event types and ids are chosen by callers; a line break in one must not become a second line."""
    evil = 'x"\n{"event":"attempt"} \u2028ü'

    def write(logs: Logs) -> None:
        observed = replace(attempt(), tenant=evil, endpoint_id=evil)
        LogObserver(logs).delivery_decided(decided(observed, evil))
        LogObserver(logs).operational(OperationalObservation("kind", evil, fields={"n": 1}))

    lines = lines_of(tmp_path / "log", write, style)
    assert len(lines) == 2
    if style == "json":
        assert json.loads(lines[0])["event_type"] == evil
        assert json.loads(lines[1])["message"] == evil


def test_a_bare_client_logs_when_the_attempt_ends(tmp_path: Path) -> None:
    """Without a dispatcher nobody decides, and the line must still be written."""

    def write(logs: Logs) -> None:
        LogObserver(logs, with_decisions=False).attempt_finished(attempt())

    (line,) = lines_of(tmp_path / "log", write)
    assert json.loads(line)["delivered"] is True


@pytest.mark.parametrize(("attempts", "count"), [("all", 2), ("failures", 1), ("none", 0)])
def test_attempt_lines_can_be_turned_down(tmp_path: Path, attempts: Any, count: int) -> None:
    """Thousands of healthy lines a second are someone's bill."""

    def write(logs: Logs) -> None:
        observer = LogObserver(logs, attempts=attempts)
        observer.delivery_decided(decided(attempt()))
        observer.delivery_decided(decided(replace(attempt(status=500), delivered=False)))

    assert len(lines_of(tmp_path / "log", write)) == count


def test_the_standard_librarys_log_and_warnings_come_out_in_the_same_form(tmp_path: Path) -> None:
    """One stream, one format: a parser that meets a bare traceback drops it."""

    def write(logs: Logs) -> None:
        logs.take_over()
        try:
            raise ValueError("boom")
        except ValueError:
            logging.getLogger("somewhere").exception("it failed")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(True)
            warnings.warn("careful", stacklevel=1)
            logging.captureWarnings(False)

    before = logging.getLogger().handlers[:]
    first, second = lines_of(tmp_path / "log", write)
    entry = json.loads(first)
    assert (entry["level"], entry["logger"], entry["message"]) == ("error", "somewhere", "it failed")
    assert "ValueError: boom" in entry["traceback"]
    assert "careful" in json.loads(second)["message"]
    assert logging.getLogger().handlers == before


def test_a_stalled_output_loses_lines_and_says_how_many() -> None:
    """A terminal that was stopped with Ctrl-S must not stop deliveries."""
    read_end, write_end = os.pipe()
    writer = LineWriter(write_end)
    line = "x" * 200
    for _ in range(BUFFER_LINES_MAX * 2):
        writer.write(line)
    assert writer.dropped > 0
    os.close(read_end)
    writer.close()
    os.close(write_end)


def test_nothing_is_lost_on_close(tmp_path: Path) -> None:
    """The last lines before an exit are the ones that matter."""

    def write(logs: Logs) -> None:
        for number in range(1_000):
            logs.entry("info", "tick", str(number))

    assert len(lines_of(tmp_path / "log", write)) == 1_000


def test_times_are_utc_with_microseconds() -> None:
    """Lines of several machines are sorted by this text."""
    stamp = Stamp()
    assert stamp(1_000_000) == "1970-01-01T00:00:01.000000Z"
    assert stamp(1_000_001) == "1970-01-01T00:00:01.000001Z"
    assert stamp(1_800_000_000_000_000) == "2027-01-15T08:00:00.000000Z"


class Broken:
    """An observer with a bug."""

    def attempt_finished(self, observation: AttemptObservation) -> None:
        raise ZeroDivisionError

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        raise ZeroDivisionError

    def operational(self, observation: OperationalObservation) -> None:
        raise ZeroDivisionError


def test_a_broken_observer_is_logged_once_and_the_others_still_hear(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in someone's telemetry must cost neither deliveries nor a log full of it."""

    def write(logs: Logs) -> None:
        both = Observers(Broken(), LogObserver(logs, with_decisions=False))
        for _ in range(3):
            both.attempt_finished(attempt())
        both.delivery_decided(decided(None))
        both.operational(OperationalObservation("kind", "text"))

    assert len(lines_of(tmp_path / "log", write)) == 5
    assert len([record for record in caplog.records if record.name == "gatepost.observers"]) == 1
