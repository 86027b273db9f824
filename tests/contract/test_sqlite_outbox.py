"""Publishers in any number of processes beside one dispatcher: nothing lost, nothing doubled, and noticed soon."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.ids import IdSource
from gatepost.errors import StoreError
from gatepost.store.rows import NewEvent, OutboxEvent, Target, lane_of
from gatepost.store.sqlite.outbox import SqliteOutbox
from gatepost.store.sqlite.store import SqliteStore

FORKER = """
import os, sys
from gatepost.dispatch.publisher import Publisher
with Publisher.open_sync(f"sqlite:///{sys.argv[1]}") as publisher:
    child = os.fork()
    try:
        publisher.publish_sync("t", b"x")
        outcome = "published"
    except RuntimeError as error:
        outcome = str(error)
    if child:
        os.waitpid(child, 0)
    print("parent" if child else "child", outcome, flush=True)
    if not child:
        publisher._outbox.close()
        os._exit(0)
    publisher.publish_sync("t", b"y")
"""
"""A publisher opened before a fork, as `gunicorn --preload` does it."""

CHILD = Path(__file__).with_name("publish_child.py")
LANE = lane_of(1, 0)


def outbox_event(ids: IdSource) -> OutboxEvent:
    """An event as a publisher writes it."""
    return OutboxEvent(0, ids.next(), "acme", None, "t", "text/plain", b"x", None, "normal", None, 1)


async def test_four_publisher_processes_and_one_dispatcher(tmp_path: Path) -> None:
    """Each event is fanned out exactly once, whatever the four and the dispatcher do at the same time."""
    path, writers, each = tmp_path / "gatepost.db", 4, 100
    store = SqliteStore.open(path)
    try:
        ids = IdSource(await store.new_node(), SYSTEM_CLOCK)
        children = [
            await asyncio.create_subprocess_exec(sys.executable, CHILD, path, str(each), stdout=asyncio.subprocess.PIPE)
            for _ in range(writers)
        ]
        seen: list[int] = []
        while len(seen) < writers * each:
            await store.wait_outbox()
            while batch := await store.outbox_peek(50):
                await store.enqueue([fan_out(event, ids) for event in batch])
                seen += [event.event_id for event in batch]
        published = [number for child in children for number in json.loads(await finish(child))]
        assert sorted(seen) == sorted(published)
        assert len(set(seen)) == writers * each
        assert (await store.lane_stats([LANE]))[0].depth == writers * each
        assert await store.outbox_peek(1) == []
    finally:
        await store.aclose()


async def finish(child: asyncio.subprocess.Process) -> bytes:
    """What a child printed; it must have ended well."""
    output, _ = await child.communicate()
    assert child.returncode == 0
    return output


def fan_out(event: OutboxEvent, ids: IdSource) -> NewEvent:
    """To one endpoint."""
    target = Target(LANE, 0, ids.next(), event.created_at)
    return NewEvent(
        event.event_id, event.tenant, event.key, event.type, event.content_type, event.body, event.created_at,
        (target,), event.outbox_id,
    )  # fmt: skip


async def test_a_dispatcher_hears_of_another_process_soon(tmp_path: Path) -> None:
    """Within 50 ms on an idle machine; the bound here leaves room for a busy one."""
    path = tmp_path / "gatepost.db"
    store = SqliteStore.open(path)
    outbox = SqliteOutbox(path)
    try:
        ids = IdSource(outbox.new_node(), SYSTEM_CLOCK)
        await store.wait_outbox()
        for _ in range(5):
            waiter = asyncio.ensure_future(store.wait_outbox())
            await asyncio.sleep(0.03)
            began = time.monotonic()
            await asyncio.to_thread(outbox.put, [outbox_event(ids)])
            async with asyncio.timeout(5):
                while not await store.outbox_peek(1):
                    await waiter
                    waiter = asyncio.ensure_future(store.wait_outbox())
            assert time.monotonic() - began < 2
            waiter.cancel()
            await store.outbox_drop([event.event_id for event in await store.outbox_peek(10)])
    finally:
        outbox.close()
        await store.aclose()


async def test_own_commits_do_not_wake_the_waiter_for_ever(tmp_path: Path) -> None:
    """Only other connections' commits count: a busy dispatcher must not poll because of itself."""
    store = SqliteStore.open(tmp_path / "gatepost.db")
    try:
        await store.wait_outbox()
        async with asyncio.timeout(0.2):
            await store.wait_outbox()  # the first look has nothing to compare with
        waiter = asyncio.ensure_future(store.wait_outbox())
        for _ in range(10):
            await store.ping()
            await asyncio.sleep(0.02)
        assert not waiter.done()
        waiter.cancel()
    finally:
        await store.aclose()


async def test_an_event_loop_publishes_in_groups(tmp_path: Path) -> None:
    """`put_async` from many tasks: all durable, in far fewer commits, from the file's creation on."""
    path = tmp_path / "gatepost.db"
    outbox = SqliteOutbox(path)
    ids = IdSource(outbox.new_node(), SYSTEM_CLOCK)
    events = [outbox_event(ids) for _ in range(200)]
    await asyncio.gather(*(outbox.put_async([event]) for event in events))
    await outbox.aclose()
    await outbox.aclose()
    raw = sqlite3.connect(path)
    assert raw.execute("SELECT count(*) FROM outbox").fetchone() == (200,)
    raw.close()
    with pytest.raises(StoreError, match="closed"):
        await outbox.put_async(events[:1])
    with pytest.raises(StoreError, match="closed"):
        outbox.put(events[:1])


def test_threads_may_share_an_outbox(tmp_path: Path) -> None:
    """A threaded web server has one per process."""
    path = tmp_path / "gatepost.db"
    outbox = SqliteOutbox(path)
    sources = [IdSource(outbox.new_node(), SYSTEM_CLOCK) for _ in range(4)]

    def publish(ids: IdSource) -> None:
        for _ in range(20):
            outbox.put([outbox_event(ids)])

    threads = [threading.Thread(target=publish, args=(ids,)) for ids in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outbox.close()
    raw = sqlite3.connect(path)
    assert raw.execute("SELECT count(*) FROM outbox").fetchone() == (80,)
    raw.close()


def test_a_publisher_is_refused_after_a_fork(tmp_path: Path) -> None:
    """Parent and child would make the same event ids: one event of each pair would pass for a repetition and be lost."""
    path = tmp_path / "gatepost.db"
    done = subprocess.run([sys.executable, "-c", FORKER, path], capture_output=True, text=True, check=True, timeout=60)
    child, parent = done.stdout.splitlines()
    assert parent == "parent published"
    assert child.startswith("child this publisher was opened before a fork")
    raw = sqlite3.connect(path)
    assert raw.execute("SELECT count(*) FROM outbox").fetchone() == (2,)
    raw.close()
