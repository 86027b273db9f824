"""Nothing that was acknowledged is lost when the process is killed or the log is cut short."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from gatepost.delivery.records import Endpoint
from gatepost.store.rows import DeliveryFilter, LaneWant, NewEvent, lane_of
from gatepost.store.sqlite.store import SqliteStore
from gatepost.testing.contract_registry import FULL
from gatepost.testing.store_builder import Owner
from gatepost.testing.virtual import VirtualClock

CHILD = Path(__file__).with_name("crash_child.py")
LANE = lane_of(1, 0)


def integrity(path: Path) -> str:
    """What SQLite says of the file."""
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        connection.close()


def run_and_kill(path: Path, output: Path, size: int) -> list[str]:
    """Run the child until it has reported so many bytes, kill it, and return its whole lines."""
    with output.open("w") as file, subprocess.Popen([sys.executable, CHILD, path], stdout=file) as child:
        began = time.monotonic()
        while output.stat().st_size < size:
            assert child.poll() is None
            assert time.monotonic() - began < 20
            time.sleep(0.005)
        child.send_signal(signal.SIGKILL)
    return [line for line in output.read_text().splitlines(keepends=True) if line.endswith("\n")]


async def test_a_killed_process_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    """SIGKILL at random moments of enqueue and settle, several times on one file."""
    path = tmp_path / "gatepost.db"
    stored: dict[int, int] = {}  # event to delivery
    settled: set[int] = set()
    for run in range(4):
        for line in run_and_kill(path, tmp_path / f"{run}.log", 2_000 * (run + 1)):
            word, *numbers = line.split()
            if word == "stored":
                stored[int(numbers[0])] = int(numbers[1])
            else:
                settled.add(int(numbers[0]))
    assert stored
    assert settled
    assert integrity(path) == "ok"
    store = SqliteStore.open(path)
    try:
        [waiting] = await store.peek([LaneWant(LANE, 1_000_000, 0)], 1 << 60)
        left = {row.delivery_id for row in waiting.rows}
        assert set(await store.load_events(list(stored))) == set(stored)
        assert not settled & left
        unsettled = set(stored.values()) - settled
        for delivery_id in unsettled - left:
            info = await store.delivery(delivery_id)
            assert info is not None
            assert info.state == "delivered", "a settle was durable before its acknowledgement was read"
        assert await store.backlog_of("acme") == len(left)
        assert (await store.lane_stats([LANE], 1_000_000))[0].depth == len(left)
        newest = await store.deliveries(DeliveryFilter(endpoint=1), None, 50)
        assert newest.items[0].delivery_id >= max(stored.values())
    finally:
        await store.aclose()


async def test_a_log_cut_anywhere_gives_a_prefix_of_what_was_committed(tmp_path: Path) -> None:
    """A torn write-ahead log: the file stays sound and no event is half there."""
    clock = VirtualClock()
    path = tmp_path / "gatepost.db"
    store = SqliteStore.open(path, clock=clock, index_lag_max=5)
    try:
        owner = await Owner.take(store, clock)
        events = [owner.event(1, 2, key=str(number), body=b"x" * 700) for number in range(40)]
        for event in events:
            await owner.enqueue(event)
        whole = {suffix: (tmp_path / f"gatepost.db{suffix}").read_bytes() for suffix in ("", "-wal")}
    finally:
        await store.aclose()
    for number in range(12):
        torn = tmp_path / f"torn{number}.db"
        torn.write_bytes(whole[""])
        length = len(whole["-wal"]) * (number + 2) // 13 - number * 7
        (tmp_path / f"torn{number}.db-wal").write_bytes(whole["-wal"][:length])
        shutil.copy(tmp_path / "gatepost.db.key", tmp_path / f"torn{number}.db.key")
        copy = SqliteStore.open(torn, clock=clock)
        try:
            found = await copy.load_events([event.event_id for event in events])
            count = len(found)
            assert list(found) == [event.event_id for event in events[:count]]
            for endpoint in (1, 2):
                [rows] = await copy.peek([LaneWant(lane_of(endpoint, 0), 1_000, 0)], clock.wall_us())
                assert [row.event_id for row in rows.rows] == list(found)
            totals = await copy.totals()
            assert (totals.events, totals.waiting) == (count, 2 * count)
            again = await copy.enqueue(events)
            assert [result.duplicate for result in again] == [at < count for at in range(len(events))]
        finally:
            await copy.aclose()
        assert integrity(torn) == "ok"


async def test_keys_and_lists_survive_a_restart_in_the_middle_of_a_round(tmp_path: Path) -> None:
    """Indexes that lag behind are made whole from the tables they follow."""
    clock = VirtualClock()
    path = tmp_path / "gatepost.db"
    events: list[NewEvent] = []
    for lag in (1_000, 3, 40, 1_000):
        store = SqliteStore.open(path, clock=clock, index_lag_max=lag)
        try:
            owner = await Owner.take(store, clock, f"node-{lag}")
            for _ in range(25):
                clock.advance(1)
                events.append(owner.event(len(events) % 3 + 1, key=f"k{len(events)}"))
                await owner.enqueue(events[-1])
            again = await store.enqueue([owner.event(1, key=f"k{number}") for number in range(len(events))])
            assert [result.event_id for result in again] == [event.event_id for event in events]
            for endpoint in (1, 2, 3):
                page = await store.deliveries(DeliveryFilter(endpoint=endpoint), None, 1_000)
                assert [info.event_id for info in page.items] == [
                    event.event_id for event in events[endpoint - 1 :: 3]
                ][::-1]
        finally:
            await store.aclose()


def contents(directory: Path) -> list[bytes]:
    """Of all its files."""
    return [file.read_bytes() for file in directory.iterdir()]


async def test_an_endpoint_survives_a_restart_with_its_secrets(tmp_path: Path) -> None:
    """And neither they nor header values can be read in the file."""
    path = tmp_path / "gatepost.db"
    store = SqliteStore.open(path)
    await store.create_endpoint(FULL)
    await store.aclose()
    for raw in contents(tmp_path):
        assert b"whsec" not in raw
        assert b"bmV3" not in raw
        assert b"Bearer abc" not in raw
    store = SqliteStore.open(path)
    try:
        stored: Endpoint | None = await store.endpoint(FULL.id)
        assert stored == FULL
        assert stored.secrets[0].secret.reveal() == FULL.secrets[0].secret.reveal()
    finally:
        await store.aclose()
    assert os.stat(f"{path}.key").st_mode & 0o777 == 0o600


async def test_a_key_of_an_older_event_survives_when_a_round_begins_with_it(tmp_path: Path) -> None:
    """An outbox event is fanned out late, so its id is below those of newer keys: whichever moment the round begins."""
    for lag in range(5):
        clock = VirtualClock()
        path = tmp_path / f"{lag}.db"
        store = SqliteStore.open(path, clock=clock, index_lag_max=lag)
        owner = await Owner.take(store, clock)
        late = [owner.event(1, key=f"late{number}") for number in range(4)]
        for number in range(4):
            await owner.enqueue(owner.event(1, key=f"k{number}"))
            await owner.enqueue(late[number])
        await store.aclose()
        store = SqliteStore.open(path, clock=clock, index_lag_max=1_000)
        try:
            again = await store.enqueue([owner.event(1, key=f"late{number}") for number in range(4)])
            assert [result.event_id for result in again] == [event.event_id for event in late]
        finally:
            await store.aclose()
