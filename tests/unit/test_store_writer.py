"""The writer's thread by itself: it answers everybody, whatever happens between BEGIN and COMMIT."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gatepost.errors import StoreError
from gatepost.store.sqlite.connection import connect
from gatepost.store.sqlite.writer import CallWork, Kind, Operation, Reply, WriterThread


class Broken(CallWork):
    """Work whose memory fails after the commit: a bug of ours."""

    def committed(self) -> None:
        """Fail."""
        raise RuntimeError("a bug")


class Logged(CallWork):
    """Work that remembers how groups were applied."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self.groups: list[int] = []
        self.rollbacks = 0

    def apply(self, group: Sequence[Operation]) -> Sequence[Reply]:
        """Apply and remember."""
        self.groups.append(len(group))
        return super().apply(group)

    def rolled_back(self) -> None:
        """Remember."""
        self.rollbacks += 1


def insert(connection: sqlite3.Connection, value: int) -> int:
    """A call that returns something."""
    connection.execute("INSERT INTO t VALUES (?)", (value,))
    return value


def refuse(connection: sqlite3.Connection, value: int) -> None:
    """A call that writes and then finds that it must not."""
    insert(connection, value)
    raise LookupError("no")


def open_writer(path: Path, work: type[CallWork]) -> WriterThread:
    """A writer on a file with one table of unique numbers."""
    connection = connect(path)
    connection.execute("CREATE TABLE IF NOT EXISTS t (x INTEGER PRIMARY KEY)")
    return WriterThread(connection, str(path), work(connection))


async def gathered(writer: WriterThread, *calls: asyncio.Future[Any]) -> list[object]:
    """Start the thread once all calls wait, and collect the answers."""
    writer.start()
    async with asyncio.timeout(10):
        return list(await asyncio.gather(*calls, return_exceptions=True))


def rows(path: Path) -> list[int]:
    """What is in the table."""
    connection = sqlite3.connect(path)
    try:
        return [row[0] for row in connection.execute("SELECT x FROM t ORDER BY x")]
    finally:
        connection.close()


async def test_a_refused_call_undoes_itself_alone(tmp_path: Path) -> None:
    """One transaction, one sync, one caller that hears no."""
    path = tmp_path / "t.db"
    writer = open_writer(path, Logged)
    answers = await gathered(writer, writer.call(1, insert, 1), writer.call(1, refuse, 2), writer.call(1, insert, 3))
    writer.begin_close()
    writer.join()
    assert answers[0::2] == [1, 3]
    assert isinstance(answers[1], LookupError)
    assert rows(path) == [1, 3]
    assert isinstance(writer.work, Logged)
    assert (writer.work.groups, writer.work.rollbacks) == ([3], 0)


async def test_an_error_of_sqlite_makes_each_try_alone(tmp_path: Path) -> None:
    """It may have ended the transaction, so the others begin anew."""
    path = tmp_path / "t.db"
    writer = open_writer(path, Logged)
    answers = await gathered(writer, writer.call(1, insert, 1), writer.call(1, insert, 1), writer.call(1, insert, 3))
    writer.begin_close()
    writer.join()
    assert answers[0::2] == [1, 3]
    assert isinstance(answers[1], StoreError)
    assert rows(path) == [1, 3]
    assert isinstance(writer.work, Logged)
    assert writer.work.groups == [3, 1, 1, 1]


async def test_a_bug_answers_everybody_and_refuses_what_comes_after(tmp_path: Path) -> None:
    """Silence would be the worst answer: callers would wait for ever."""
    writer = open_writer(tmp_path / "t.db", Broken)
    answers = await gathered(
        writer, writer.call(400, insert, 1), writer.call(400, insert, 2), writer.call(400, insert, 3)
    )
    assert [type(answer) for answer in answers] == [StoreError] * 3
    assert "RuntimeError('a bug')" in str(answers[0])
    with pytest.raises(StoreError, match="restart the process"):
        writer.submit(Kind.CALL, None, 1)
    writer.begin_close()
    writer.join()


async def test_what_waits_behind_the_end_is_carried_out(tmp_path: Path) -> None:
    """`begin_close` accepts no more, and drops nothing that it had accepted."""
    path = tmp_path / "t.db"
    writer = open_writer(path, Logged)
    calls = [writer.call(1, insert, number) for number in range(40)]
    writer.begin_close()
    answers = await gathered(writer, *calls)
    writer.join()
    assert answers == list(range(40))
    assert rows(path) == list(range(40))
    with pytest.raises(StoreError, match="closed"):
        writer.call(1, insert, 41)
