"""One dispatcher per file, files of the right kind and schema only, keys that fit: all told when opening."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gatepost.clock import SYSTEM_CLOCK
from gatepost.errors import ConfigurationError, SchemaMismatch, StoreError, StoreLocked
from gatepost.store.rows import NewEvent, Node, OutboxEvent
from gatepost.store.secretbox import SecretBox
from gatepost.store.sqlite.connection import connect
from gatepost.store.sqlite.outbox import SqliteOutbox
from gatepost.store.sqlite.schema import migrations, prepare
from gatepost.store.sqlite.store import SqliteStore
from gatepost.testing.contract_registry import FULL

HOLDER = """
import sys
from gatepost.store.sqlite.store import SqliteStore
store = SqliteStore.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that owns the file."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        yield holder


async def close(path: Path, **options: object) -> None:
    """Open and close a store."""
    store = SqliteStore.open(path, **options)  # type: ignore[arg-type]  # options of open, given by tests
    await store.aclose()


async def test_a_second_dispatcher_is_refused_and_told_who_holds_the_file(tmp_path: Path) -> None:
    """Also one in the same process; a publisher needs no ownership."""
    path = tmp_path / "gatepost.db"
    store = SqliteStore.open(path)
    try:
        with pytest.raises(StoreLocked, match=rf"process {os.getpid()}.*Publisher\.open"):
            SqliteStore.open(path)
        SqliteOutbox(path).close()
    finally:
        await store.aclose()
    await close(path)


async def test_an_owner_whose_lock_file_was_removed_stops(tmp_path: Path) -> None:
    """Removing "stale" lock files is a habit; both owners took the parts from each other then, and delivered everything twice."""
    path = tmp_path / "gatepost.db"
    first = SqliteStore.open(path)
    try:
        held = {part: lease.epoch for part, lease in (await first.heartbeat(Node("first"), {}, 1)).leases.items()}
        lock = tmp_path / "gatepost.db.lock"
        lock.unlink()
        assert (await first.heartbeat(Node("first"), held, 1)).leases, "nobody else has come: it locks anew"
        with pytest.raises(StoreLocked):
            SqliteStore.open(path)
        lock.unlink()
        second = SqliteStore.open(path)
        try:
            (epoch,) = [lease.epoch for lease in (await second.heartbeat(Node("second"), {}, 1)).leases.values()]
            with pytest.raises(StoreLocked, match="owned by process"):
                await first.heartbeat(Node("first"), {}, 1)
            beat = await second.heartbeat(Node("second"), {0: epoch}, 1)
            assert [lease.epoch for lease in beat.leases.values()] == [epoch]
        finally:
            await second.aclose()
    finally:
        await first.aclose()


async def test_a_file_under_a_second_name_has_the_same_owner(tmp_path: Path) -> None:
    """SQLite follows a symbolic link to the one file; two dispatchers on it would deliver everything twice."""
    path, link = tmp_path / "gatepost.db", tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)
    store = SqliteStore.open(path)
    try:
        with pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
            SqliteStore.open(link)
    finally:
        await store.aclose()
    await close(link)
    assert sorted(found.name for found in link.parent.iterdir()) == ["link.db"], (
        "key and lock stand beside the real file"
    )


async def test_a_file_that_was_removed_or_replaced_takes_nothing_more(tmp_path: Path) -> None:
    """SQLite would go on committing into the nameless file: accepted, answered as durable, and gone with the process."""
    path, away = tmp_path / "gatepost.db", tmp_path / "away.db"
    store = SqliteStore.open(path)
    outbox = SqliteOutbox(path)
    event = NewEvent(1 << 40, "acme", None, "t", "text/plain", b"x", 1, [])
    put = OutboxEvent(0, 2 << 40, "acme", None, "t", "text/plain", b"x", None, "normal", None, 1)
    try:
        path.rename(away)
        for replace in (False, True):
            if replace:
                path.write_bytes(away.read_bytes())
            with pytest.raises(StoreError, match="removed or replaced"):
                await store.enqueue([event])
            with pytest.raises(StoreError, match="removed or replaced"):
                await store.ping()
            with pytest.raises(StoreError, match="removed or replaced"):
                await store.outbox_put([put])
            with pytest.raises(StoreError, match="removed or replaced"):
                outbox.put([put])
        away.rename(path)
        await store.ping()
        outbox.put([put])
        assert [result.duplicate for result in await store.enqueue([event])] == [False]
    finally:
        outbox.close()
        await store.aclose()


async def test_a_file_is_free_again_when_its_owner_was_killed(tmp_path: Path) -> None:
    """The lock dies with the process."""
    path = tmp_path / "gatepost.db"
    with holding(path) as holder:
        with pytest.raises(StoreLocked, match=f"process {holder.pid}"):
            SqliteStore.open(path)
        holder.kill()
        holder.wait()
    await close(path)


async def test_a_schema_that_is_newer_is_used_only_when_it_says_so(tmp_path: Path) -> None:
    """Schema N runs code N and N - 1."""
    path = tmp_path / "gatepost.db"
    await close(path)
    latest = migrations()[-1].number
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version = {latest + 1}")
    raw.commit()
    await close(path)
    raw.execute("UPDATE meta SET value = ? WHERE name = 'oldest_code'", (latest + 1,))
    raw.commit()
    raw.close()
    with pytest.raises(SchemaMismatch, match="run the newer Gatepost"):
        SqliteStore.open(path)
    with pytest.raises(SchemaMismatch):
        SqliteOutbox(path)


async def test_files_of_something_else_are_left_alone(tmp_path: Path) -> None:
    """Another application's database, and no database at all."""
    other = tmp_path / "other.db"
    raw = sqlite3.connect(other)
    raw.execute("CREATE TABLE theirs (x)")
    raw.commit()
    raw.close()
    text = tmp_path / "text.db"
    text.write_text("not a database " * 100)
    for path, message in ((other, "something else"), (text, "not an SQLite file")):
        before = path.read_bytes()
        with pytest.raises(ConfigurationError, match=message):
            SqliteStore.open(path)
        with pytest.raises(ConfigurationError, match=message):
            SqliteOutbox(path)
        assert path.read_bytes() == before


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    """The usual mistake in a configuration file."""
    with pytest.raises(StoreError, match="missing"):
        SqliteStore.open(tmp_path / "missing" / "gatepost.db")
    with pytest.raises(StoreError, match="missing"):
        SqliteOutbox(tmp_path / "missing" / "gatepost.db")


async def test_many_openers_of_a_new_file_create_it_once(tmp_path: Path) -> None:
    """Workers of a web server that start together."""
    path = tmp_path / "gatepost.db"
    outboxes = await asyncio.gather(*(asyncio.to_thread(SqliteOutbox, path) for _ in range(8)))
    nodes = [outbox.new_node() for outbox in outboxes]
    for outbox in outboxes:
        outbox.close()
    assert len(set(nodes)) == 8


def test_the_file_is_set_up_for_durability(tmp_path: Path) -> None:
    """WAL with a sync per commit, and its own mark."""
    path = tmp_path / "gatepost.db"
    connection = connect(path)
    try:
        prepare(connection, path, SYSTEM_CLOCK, may_migrate=True)
        settings = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "auto_vacuum", "user_version", "application_id")
        }
    finally:
        connection.close()
    latest = migrations()[-1].number
    assert settings == {
        "journal_mode": "wal",
        "synchronous": 2,
        "auto_vacuum": 2,
        "user_version": latest,
        "application_id": 0x47505354,
    }


def test_migrations_are_numbered_without_a_gap_and_say_when_they_run() -> None:
    """Before ("pre") or after ("post") the code is deployed."""
    found = migrations()
    assert [migration.number for migration in found] == list(range(1, len(found) + 1))
    assert all(migration.name[4:].startswith(("_pre_", "_post_")) for migration in found)


async def test_keys_can_be_changed_by_putting_a_new_one_first(tmp_path: Path) -> None:
    """Old secrets open with the old key, new ones are sealed with the new one."""
    path = tmp_path / "gatepost.db"
    old, new = SecretBox.new_key(), SecretBox.new_key()
    store = SqliteStore.open(path, box=SecretBox([old]))
    await store.create_endpoint(FULL)
    await store.aclose()
    store = SqliteStore.open(path, box=SecretBox([new, old]))
    assert await store.endpoint(FULL.id) == FULL
    await store.update_endpoint(FULL, FULL.generation)
    await store.aclose()
    store = SqliteStore.open(path, box=SecretBox([new]))
    assert await store.endpoint(FULL.id) == FULL
    await store.aclose()


async def test_wrong_keys_are_found_when_opening(tmp_path: Path) -> None:
    """Not at the first delivery that needs a secret."""
    path = tmp_path / "gatepost.db"
    await close(path)
    key_id = SecretBox.for_sqlite(path).key_ids[0]
    with pytest.raises(ConfigurationError, match=f"sealed with key '{key_id}'.*restore the old key"):
        SqliteStore.open(path, box=SecretBox([SecretBox.new_key()]))
    impostor = f"{key_id}:{SecretBox.new_key().partition(':')[2]}"
    with pytest.raises(ConfigurationError, match=f"key '{key_id}' of the setting `keys` is not the key of that id"):
        SqliteStore.open(path, box=SecretBox([impostor]))
    await close(path)
