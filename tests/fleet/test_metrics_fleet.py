"""`/metrics` of real processes that share one port: summed, never falling, and there when one of them is not."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gatepost.service.siblings import PREFIX
from gatepost.testing.postgres_store import gatepost_database
from tests.fleet.running import PATIENCE, balanced, gatepost, publish, receiver, until

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
EVENTS = 60


def scrape(url: str) -> Samples:
    """One scrape of whichever process takes the connection."""
    answer = httpx.get(f"{url}/metrics", timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def total(samples: Samples, name: str) -> float:
    """The sum over all labels."""
    return sum(value for (found, _), value in samples.items() if found == name)


def fallen(before: Samples, after: Samples) -> dict[object, object]:
    """Counters that went back."""
    return {
        key: (value, after.get(key))
        for key, value in before.items()
        if key[0].endswith(("_total", "_count", "_bucket")) and after.get(key, -1.0) < value
    }


def up(samples: Samples) -> dict[str, float]:
    """Which processes answered."""
    return {
        dict(labels)["process"]: value for (name, labels), value in samples.items() if name == "gatepost_process_up"
    }


def test_metrics_of_processes_that_share_a_port_add_up_and_never_fall(tmp_path: Path) -> None:
    """One process hangs, another is killed, all are replaced: each scrape tells of all of them, and none has counted backwards."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with (
        receiver() as target,
        gatepost(
            tmp_path,
            gatepost_database(8),
            "serve",
            GATEPOST_FLEET_PROCESSES="2",
            GATEPOST_DISPATCH_SHUTDOWN_GRACE="1.0",
            TMPDIR=str(scratch),
        ) as service,
    ):
        pids = [int(line["pid"]) for line in service.lines if line["event"] == "child_started"]
        until(lambda: balanced(service.url, 2), "two processes share the parts")
        for number in range(8):
            body = {"url": f"{target.url}/{number}"}
            assert httpx.post(f"{service.url}/v1/endpoints", json=body).status_code == 201
        delivered = 0.0

        def deliver() -> None:
            nonlocal delivered
            publish(service.url, EVENTS)
            delivered += EVENTS * 8
            until(lambda: total(scrape(service.url), "gatepost_attempts_delivered_total") >= delivered, "all counted")

        # The second process hears of the endpoints within two seconds; what is published then is fanned out to all.
        until(lambda: len(publish(service.url, 1)) == 1 and len({path for path, _ in target.seen}) == 8, "all reached")
        until(lambda: total(scrape(service.url), "gatepost_attempts_in_flight") == 0, "quiet")
        delivered = total(scrape(service.url), "gatepost_attempts_delivered_total")
        deliver()
        before = scrape(service.url)
        assert up(before) == {"0": 1.0, "1": 1.0}

        os.kill(pids[1], signal.SIGSTOP)
        until(lambda: set(up(scrape(service.url)).values()) == {0.0, 1.0}, "the one that hangs is named")
        hangs = scrape(service.url)
        assert fallen(before, hangs) == {}
        os.kill(pids[1], signal.SIGKILL)
        killed = scrape(service.url)
        assert fallen(hangs, killed) == {}
        until(lambda: up(scrape(service.url)) == {"0": 1.0, "1": 1.0}, "a successor answers")
        again = scrape(service.url)
        assert fallen(killed, again) == {}

        service.signal(signal.SIGHUP)
        service.wait_for("rolling_restart_done")
        assert fallen(again, scrape(service.url)) == {}
        service.signal(signal.SIGTERM)
        assert service.wait() == 0
    assert not any(scratch.glob(f"{PREFIX}*")), "the parent leaves nothing behind"


def test_orphans_remove_the_directory_that_their_parent_can_no_longer_remove(tmp_path: Path) -> None:
    """A parent that was killed must not leave files of every run in the machine's directory for such."""
    # Not below tmp_path: a socket's name has 107 bytes at most, and tests that run side by side have long ones.
    with (
        tempfile.TemporaryDirectory(prefix="gp-") as scratch,
        gatepost(tmp_path, gatepost_database(8), "worker", GATEPOST_FLEET_PROCESSES="2", TMPDIR=scratch) as service,
    ):
        until(lambda: len(list(Path(scratch).glob(f"{PREFIX}*/*.sock"))) == 2, "both listen")
        service.process.kill()
        until(lambda: not any(Path(scratch).iterdir()), "nothing is left")


def test_a_worker_shows_its_metrics_to_other_machines_only_with_a_key(tmp_path: Path) -> None:
    """Prometheus has to reach it; somebody who happens to be in the network must learn nothing."""
    database = gatepost_database(8)
    beyond = {"GATEPOST_FLEET_HOST": "0.0.0.0"}
    refused = pytest.raises(AssertionError, match=r"fleet\.host=0\.0\.0\.0 is reachable .* security\.admin_key")
    with refused, gatepost(tmp_path, database, "worker", **beyond):
        pass
    with gatepost(
        tmp_path, database, "worker", GATEPOST_SECURITY_ADMIN_KEY="k" * 32, GATEPOST_METRICS_PUBLIC="true", **beyond
    ) as worker:
        port = httpx.URL(worker.url).port
        url = f"http://127.0.0.1:{port}"
        assert up(scrape(url)) == {"0": 1.0}
        assert httpx.get(f"{url}/healthz").status_code == 200
        assert httpx.get(f"{url}/v1/fleet").status_code == 401
