"""Metrics of several processes as one: by the rule of each metric, and without a counter that ever falls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gatepost.service.histogram import BOUNDS
from gatepost.service.host_labels import OTHER
from gatepost.service.metric_rows import Snapshot, exposed, from_json, merged
from gatepost.service.metric_table import METRICS, Kind, Merge
from gatepost.service.metrics import Metrics, labels_of
from gatepost.service.shared_metrics import SharedMetrics
from gatepost.service.siblings import Seat, Siblings, make_directory, remove_directory
from gatepost.testing.virtual import VirtualClock
from tests.service.test_metrics import attempt

HOST = "https://a.example:443"


@pytest.fixture
def directory() -> Iterator[Path]:
    """As a parent makes it."""
    made = make_directory()
    yield made
    remove_directory(made)


class Process:
    """One process as far as metrics are concerned. `kill` it, or leave it to the family's end."""

    def __init__(self, directory: Path, index: int, count: int) -> None:
        self.metrics = Metrics(clock=VirtualClock(), process=str(index), hosts=3)
        self.siblings = Siblings(Seat(directory, index, count))
        self.shared = SharedMetrics(self.metrics, self.siblings)
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """As `service.app` does."""
        await self.shared.open()
        self._stack.push_async_callback(self.shared.aclose)
        await self._stack.enter_async_context(self.siblings)

    async def stop(self) -> None:
        """A drain."""
        await self._stack.aclose()

    async def kill(self) -> None:
        """It ends without a word: nothing is written any more."""
        self._stack.pop_all()
        await self.siblings.__aexit__(None, None, None)


@asynccontextmanager
async def family(directory: Path, count: int) -> AsyncIterator[list[Process]]:
    """So many processes; those in the list at the end are stopped."""
    made = [Process(directory, index, count) for index in range(count)]
    for one in made:
        await one.start()
    try:
        yield made
    finally:
        for one in made:
            await one.stop()


def lasting_of(snapshot: Snapshot) -> Mapping[tuple[str, tuple[str, ...]], float]:
    """Counters, and the counts of histograms."""
    return {
        (name, key): sum(value[:-1]) if isinstance(value, list) else value
        for name, rows in snapshot.items()
        if METRICS[name].lasting
        for key, value in rows.items()
    }


def never_fell(before: Snapshot, after: Snapshot) -> None:
    """Every counter of the first scrape is in the second, and not lower."""
    later = lasting_of(after)
    fallen = {key: (value, later.get(key)) for key, value in lasting_of(before).items() if later.get(key, -1.0) < value}
    assert fallen == {}


async def test_whichever_process_answers_says_the_same_for_all(directory: Path) -> None:
    """They share one port: two scrapes in a row come to different processes."""
    async with family(directory, 3) as processes:
        for number, one in enumerate(processes):
            for _ in range(number + 1):
                one.metrics.attempt_finished(attempt(reused=number > 0, phases={"connect": 0.1, "wait": 0.02}))
            one.metrics.watch("gatepost_slots", lambda: 10)
            one.metrics.watch("gatepost_queue_waiting", lambda number=number: 100 + number)  # type: ignore[misc]  # a loop's value
            one.metrics.watch("gatepost_event_loop_lag_seconds", lambda number=number: number / 10)  # type: ignore[misc]  # same
        told = [await one.shared.everywhere() for one in processes]
    assert told[0].keys() == told[1].keys()
    for whole in told:
        assert whole["gatepost_attempts_total"][("response", "pointless", "endpoint")] == 6
        assert whole["gatepost_slots"] == {(): 30}
        assert whole["gatepost_queue_waiting"] == {(): 102}
        assert whole["gatepost_event_loop_lag_seconds"] == {("0",): 0.0, ("1",): 0.1, ("2",): 0.2}
        assert whole["connection_reuse_ratio"] == {(HOST,): [5.0, 6.0]}
        assert whole["gatepost_process_up"] == {("0",): 1, ("1",): 1, ("2",): 1}
        samples = {(s.name, s.labels.get("le")): s.value for family in exposed(whole) for s in family.samples}
        assert samples["gatepost_attempt_duration_seconds_bucket", "0.05"] == 6
        assert samples["connection_reuse_ratio", None] == 5 / 6


async def test_no_counter_falls_when_a_process_is_killed_hangs_drains_or_is_replaced(directory: Path) -> None:
    """Prometheus would take a sum that falls for a reset, and count all of it a second time: a peak that never was."""
    async with family(directory, 2) as processes:
        first, second = processes
        second.metrics.attempt_finished(attempt())
        second.metrics.attempt_finished(attempt("https://b.example:443", outcome="connect_timeout", status=None))
        seen = await first.shared.everywhere()
        second.metrics.attempt_finished(attempt())  # nobody has been told of this one
        await second.kill()
        gone = await first.shared.everywhere()
        never_fell(seen, gone)
        assert gone["gatepost_process_up"] == {("0",): 1, ("1",): 0}
        assert "1" not in {process for (process,) in gone["gatepost_process_start_time_seconds"]}

        processes[1] = second = Process(directory, 1, 2)
        await second.start()
        back = await second.shared.everywhere()
        never_fell(gone, back)
        assert back["gatepost_host_attempts_total"][("https://b.example:443", "connect_timeout")] == 1
        second.metrics.attempt_finished(attempt())
        more = await first.shared.everywhere()
        assert more["gatepost_host_attempts_total"][(HOST, "response")] == 2

        second.metrics.attempt_finished(attempt())
        await second.stop()  # it drains: what nobody was told yet is in its file
        processes[1] = second = Process(directory, 1, 2)
        await second.start()
        after = await first.shared.everywhere()
        never_fell(more, after)
        assert after["gatepost_host_attempts_total"][(HOST, "response")] == 3


async def test_a_predecessors_hosts_stay_within_the_bound_and_those_that_lose_their_label_are_gone(
    directory: Path,
) -> None:
    """Otherwise every restart would add series, and a crash loop would fill Prometheus."""
    hosts = [f"https://h{number}.example:443" for number in range(9)]
    for round_ in range(3):
        process = Process(directory, 0, 1)
        await process.start()
        for host in hosts[round_ * 3 : round_ * 3 + 3]:
            process.metrics.attempt_finished(attempt(host))
        told = await process.shared.here()
        assert {host for host, _ in told["gatepost_host_attempts_total"]} <= {*hosts[:3], OTHER}
        await process.stop()
    assert told["gatepost_attempts_delivered_total"] == {(): 9}
    assert told["gatepost_host_attempts_total"][(OTHER, "response")] == 6


def test_every_gauge_has_a_rule_that_fits_what_it_says() -> None:
    """What all processes read from one store must not be added up, and a share must not be averaged."""
    for one in METRICS.values():
        if one.lasting:
            assert one.merge is Merge.SUM, one.name
        if one.name.endswith("_ratio"):
            assert one.merge is Merge.RATIO, one.name
        assert (one.kind is Kind.COUNTER) == one.name.endswith("_total"), one.name
        assert one.help[-1] == ".", one.name
    assert {METRICS[name].merge for name in ("gatepost_queue_dead", "gatepost_store_size_bytes")} == {Merge.MAX}
    assert labels_of(100, 1) == labels_of(100, 2) == 100
    assert labels_of(100, 8) == 25


def test_figures_of_another_version_are_left_out_instead_of_added_wrongly() -> None:
    """While processes are replaced one after the other, two versions answer each other."""
    row = [0.0] * (len(BOUNDS) + 2)
    document = {
        "gatepost_slots": [[5], ["surplus", 5]],
        "gatepost_of_the_future_total": [[1]],
        "gatepost_attempt_duration_seconds": [["response", row], ["response", row[1:]]],
    }
    assert from_json(document) == {
        "gatepost_slots": {(): 5},
        "gatepost_attempt_duration_seconds": {("response",): row},
    }
    assert merged([{"gatepost_of_the_future_total": {(): 1.0}}]) == {}
    wrongs: list[Any] = [None, [1], {"gatepost_slots": 3}, {"gatepost_slots": [[]]}]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="no figures"):
            from_json(wrong)
