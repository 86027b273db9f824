"""No statement reads a table from end to end: what the store costs must not grow with its history."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gatepost.clock import SYSTEM_CLOCK
from gatepost.store.rows import (
    AttemptRow,
    DeadFilter,
    DeadRow,
    DeliveryFilter,
    DoneRow,
    LaneWant,
    NewEvent,
    OutboxEvent,
    RetryRow,
    RowKey,
    SettleBatch,
    Target,
    lane_of,
)
from gatepost.store.sqlite import maintenance, operate, reads, views
from gatepost.store.sqlite.connection import connect
from gatepost.store.sqlite.finder import NEWEST, find, matching
from gatepost.store.sqlite.identity import FileIdentity
from gatepost.store.sqlite.intake import drop_outbox, put_outbox
from gatepost.store.sqlite.schema import prepare
from gatepost.store.sqlite.settle import settle
from gatepost.store.sqlite.space import SpaceGuard
from gatepost.store.sqlite.work import QueueWork

SCAN = re.compile(r"\bSCAN (\S+)")
BOUNDED = (
    "part",  # one row
    "outbox",  # in its own order, up to a LIMIT
    "dead USING INDEX dead_died",  # likewise; replay and purge by reason alone may read all, on the lists' thread
    "dead USING COVERING INDEX dead_died",
    "l",  # a subquery with a LIMIT
)


@contextmanager
def traced(path: Path) -> Iterator[tuple[sqlite3.Connection, QueueWork, list[str]]]:
    """A new file, the writer's memory, and the statements that run on it."""
    connection = connect(path)
    prepare(connection, path, SYSTEM_CLOCK, may_migrate=True)
    work = QueueWork(connection, FileIdentity(path), SpaceGuard(connection, path), index_lag_max=1)
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    try:
        yield connection, work, statements
    finally:
        connection.set_trace_callback(None)
        connection.close()


def test_every_statement_finds_its_rows_by_a_key(tmp_path: Path) -> None:
    """All of them, from the enqueue to retention, as SQLite means to run them."""
    with traced(tmp_path / "gatepost.db") as (connection, work, statements):
        lane = lane_of(1, 0)
        events = [
            NewEvent(number, "acme", f"k{number}", "t", "text/plain", b"x", 1, (Target(lane, 0, number + 100, 1),))
            for number in range(1, 30)
        ]
        for batch in (events, events, [NewEvent(99, "acme", "k1", "t", "text/plain", b"y", 1, ())]):
            work.intake.enqueue(batch)
            work.keys.write_strips()
            work.listing.write_strips()
            work.tally.write(connection)
            work.committed()
        keys = [RowKey(lane, 1, number + 100) for number in range(1, 30)]
        attempt = AttemptRow(101, 1, 1, 1, "acme", 1, "o", "p", "r", "s", "b", 200, 1, "", None, b"", "complete", "w")
        settle(
            connection,
            work.tally,
            [
                SettleBatch(
                    {0: 0},
                    done=[DoneRow(key, 1) for key in keys[:5]],
                    retry=[RetryRow(key, 0, 0, 1, 50) for key in keys[5:8]],
                    dead=[DeadRow(key, 0, 0, 1, 1, "gone", None, None, 5) for key in keys[8:14]],
                    attempts=[attempt],
                )
            ],
        )
        work.tally.doubt([lane])
        work.tally.write(connection)
        reads.peek(connection, [LaneWant(lane, 5, 0)], 100)
        reads.load_events(connection, [1, 2, 3])
        reads.lane_stats(connection, work.tally, [lane], 10)
        reads.totals(connection, work.tally, str(tmp_path / "gatepost.db"))
        event = OutboxEvent(0, 7, "acme", None, "t", "text/plain", b"", None, "normal", None, 1)
        put_outbox(connection, work.identity, work.space, [event])
        reads.outbox_peek(connection, 5)
        drop_outbox(connection, [7])
        for state in (None, "waiting", "delivered", "dead", "cancelled"):
            for where in (
                DeliveryFilter(tenant="acme", state=state),
                DeliveryFilter(endpoint=1, state=state),
                DeliveryFilter(tenant="acme", endpoint=1, state=state),
                DeliveryFilter(event_id=1, state=state),
            ):
                find(connection, work.tally, where, NEWEST, 5)
                find(connection, work.tally, replace(where, event_type="t", accepted_from=1), NEWEST, 5)
            find(connection, work.tally, DeliveryFilter(state=state, accepted_from=1), NEWEST, 5)
        matching(connection, DeliveryFilter(tenant="acme"), [101])
        views.show(connection, [101, 102])
        views.attempts_of(connection, 101)
        views.newest_attempts(connection, 1, 5)
        reads.backlogs(connection, work.tally, [1], 10)
        for dead in (DeadFilter(), DeadFilter(tenant="acme"), DeadFilter(endpoint=1, died_from=1), DeadFilter(why="x")):
            views.dead_letters(connection, dead, None, 5)
            views.dead_letters(connection, dead, "5.5", 5)
            views.dead_ids(connection, dead, 5)
        views.dead_letter(connection, 109)
        operate.cancel(connection, work.tally, [120], 9)
        operate.replay(connection, work.tally, [109], 10, 1)
        operate.purge_dead(connection, work.tally, [110])
        maintenance._dead_before(connection, 1 << 50, 5)
        maintenance._ended_in_stretch(connection, 0, 1 << 60, 5)
        maintenance._events_in_stretch(connection, 0, 1 << 60, 5)
        maintenance._listed_in_vain(connection, 0, NEWEST)
        maintenance._delete_listed(connection, [1, 101])
        maintenance._DELETE_EVENTS.run(connection, [1])
        maintenance._DELETE_HISTORY.run(connection, [101])
        connection.execute(maintenance._DELETE_ATTEMPTS, (0, 500))
        work.keys.expire(1 << 50, 1, 5)
        work.keys.expire(1 << 51, 1, 5)
        plans = {statement: explain(connection, statement) for statement in set(statements)}
    scans = {
        (line, statement)
        for statement, lines in plans.items()
        for line in lines
        if (table := SCAN.search(line)) and not harmless(line, table.group(1))
    }
    assert not scans, "\n\n".join(f"{line}\n{statement}" for line, statement in sorted(scans))
    assert len(plans) > 60


def explain(connection: sqlite3.Connection, statement: str) -> list[str]:
    """How SQLite means to run it."""
    if not statement.lstrip().upper().startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")):
        return []
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]


def harmless(line: str, table: str) -> bool:
    """A scan of something small: a subquery's result, a JSON list, a list of values, a table in the order of a LIMIT."""
    if table.startswith("(") or table.isdigit() or table == "CONSTANT" or "VIRTUAL TABLE" in line:
        return True
    return line.removeprefix("SCAN ") in BOUNDED
