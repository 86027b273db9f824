"""The benchmark of telemetry does what it says it measures: each delivery is counted and has its line."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import generate_latest

from bench.telemetry import ENDPOINTS, TURNS, Line, attempts
from gatepost.service.logs import LogObserver, Logs
from gatepost.service.metrics import Metrics
from gatepost.service.observers import Observers


async def test_each_delivery_is_made_counted_and_logged(tmp_path: Path) -> None:
    """Deliveries that fail before they are told of cost nothing to tell of, and would look wonderful."""
    metrics = Metrics()
    log = tmp_path / "log"
    with log.open("w") as stream:
        logs = Logs("json", stream=stream)
        line = Line(Observers(metrics, LogObserver(logs)))
        await line.open()
        made = attempts()
        await line.run(made)
        logs.close()
    assert line.desk.results == len(made) == ENDPOINTS * TURNS
    assert (
        f"gatepost_attempts_delivered_total {sum(one.delivered for one in made)}.0"
        in generate_latest(metrics.registry).decode()
    )
    lines = log.read_text().splitlines()
    assert len([one for one in lines if '"event":"attempt"' in one]) == len(made)
    assert logs.dropped == 0
