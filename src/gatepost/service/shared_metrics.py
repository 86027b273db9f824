"""`/metrics` of all processes of one parent as one: whichever answers asks its siblings, and no counter goes backwards.

Every process writes its counters to a file of its own place before anybody is told them, and once more when it ends. A process
that hangs or is gone is told from its file; its successor reads that file and goes on counting from there. So what a scrape has
seen never falls until the parent itself is started anew, which Prometheus knows as a reset. Called by `service.api.health`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gatepost.service.host_labels import HostSeries, Labels, Series
from gatepost.service.metric_rows import Rows, Snapshot, from_json, lasting, merged, to_json
from gatepost.service.metric_table import METRICS
from gatepost.service.metrics import Metrics
from gatepost.service.metrics_exposition import read
from gatepost.service.siblings import Siblings

QUESTION: Final = "metrics"
"""What siblings are asked."""
UP: Final = "gatepost_process_up"
SEATED: Final[Mapping[str, str]] = {
    "host": "gatepost_host_attempts_total",
    "endpoint": "gatepost_endpoint_attempts_total",
}
"""Labels of bounded sets, and the counter by which a predecessor's members are ranked."""

_log = logging.getLogger("gatepost.metrics")


class SharedMetrics:
    """The figures of this process and of its siblings. `open` before the first scrape, `aclose` after the last attempt."""

    def __init__(self, metrics: Metrics, siblings: Siblings) -> None:
        self._metrics = metrics
        self._siblings = siblings
        self._before: Snapshot = {}
        """What predecessors in this place counted."""
        self._lock = asyncio.Lock()
        self._complained = False
        siblings.answer(QUESTION, self._answer)

    async def open(self) -> None:
        """Take over what a predecessor in this place has counted."""
        seat = self._siblings.seat
        if seat is None:
            return
        self._before = await asyncio.to_thread(_load, _file_of(seat.directory, seat.index))
        for label, labels in (("host", self._metrics.hosts), ("endpoint", self._metrics.endpoints)):
            labels.seat(_ranked(self._before.get(SEATED[label], {})), self._metrics.now())

    async def aclose(self) -> None:
        """Leave the last counts to the successor."""
        await self._own()

    async def here(self) -> Snapshot:
        """The figures of this process alone."""
        snapshot, _ = await self._own()
        return snapshot

    async def everywhere(self) -> Snapshot:
        """The figures of all processes of the parent, merged by the rules of `metric_table`."""
        seat = self._siblings.seat
        if seat is None or seat.count == 1:
            return await self.here()
        asking = asyncio.get_running_loop().create_task(self._siblings.ask(QUESTION), name="metrics of siblings")
        try:
            own, _ = await self._own()
        finally:
            heard = await asking
        return await asyncio.to_thread(_together, own, dict(heard.answers), heard.missing, seat.directory)

    async def _answer(self, argument: Any) -> bytes:
        _, written = await self._own()
        return written

    async def _own(self) -> tuple[Snapshot, bytes]:
        """Our figures, kept in our file before anybody hears them. One at a time: an older file must not replace a newer one."""
        async with self._lock:
            snapshot = read(self._metrics)
            seat = self._siblings.seat
            if seat is None:
                return snapshot, b""
            if self._before:
                self._forget_strangers()
                snapshot = merged((snapshot, self._before))
            return snapshot, await asyncio.to_thread(self._keep, _file_of(seat.directory, seat.index), snapshot)

    def _keep(self, path: Path, snapshot: Snapshot) -> bytes:
        written = to_json(snapshot)
        try:
            scratch = path.with_suffix(".new")
            scratch.write_bytes(to_json(lasting(snapshot)))
            os.replace(scratch, path)
        except OSError as error:
            if not self._complained:
                self._complained = True
                _log.warning("counters cannot be kept for the case that this process is killed: %s", error)
        return written

    def _forget_strangers(self) -> None:
        """A predecessor's host or endpoint that lost its label is gone for good: should it come back, it starts from zero, as it
        would have without a restart."""
        members: dict[str, Labels[HostSeries] | Labels[Series]] = {
            "host": self._metrics.hosts,
            "endpoint": self._metrics.endpoints,
        }
        for name, rows in self._before.items():
            labels = METRICS[name].labels
            for label, known in members.items():
                if label in labels:
                    place = labels.index(label)
                    gone = [key for key in rows if key[place] != known.other.name and not known.is_member(key[place])]
                    for key in gone:
                        del rows[key]


def _together(own: Snapshot, answers: Mapping[int, Any], missing: tuple[int, ...], directory: Path) -> Snapshot:
    snapshots, lost = [own], list(missing)
    for index, answer in answers.items():
        try:
            snapshots.append(from_json(answer))
        except ValueError:  # of another version, while all are replaced
            lost.append(index)
    snapshots += [_load(_file_of(directory, index)) for index in lost]
    snapshots.append({UP: {(str(index),): 0.0 for index in lost}})
    return merged(snapshots)


def _load(path: Path) -> Snapshot:
    """What a process left; nothing when it never told anybody."""
    try:
        return lasting(from_json(json.loads(path.read_bytes())))
    except (OSError, ValueError):
        return {}


def _ranked(rows: Rows) -> list[str]:
    """Members by attempts, the busiest first."""
    counts: dict[str, float] = {}
    for key, value in rows.items():
        assert not isinstance(value, list), "a counter"
        counts[key[0]] = counts.get(key[0], 0.0) + value
    return sorted(counts, key=lambda name: -counts[name])


def _file_of(directory: Path, index: int) -> Path:
    return directory / f"metrics.{index}.json"
