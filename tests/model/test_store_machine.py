"""Random histories of a store keep the queue's invariants, and every engine answers as the one in memory does.

The machine holds its own small model (which delivery is in which state, which key was used first) for I1 and I6 to I11, and
compares all else with `MemoryStore`. A crash drops what the owner held; on SQLite the file is copied as it lies on the disk
and opened anew. I2, I4 and I5 are the dispatcher's. GATEPOST_LONG_TESTS=1 runs longer histories, seeded anew each time.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gatepost.store.memory import MemoryStore
from gatepost.store.port import Store
from gatepost.store.rows import (
    PART_LEASE,
    SUB_BULK,
    SUB_FIFO_FIRST,
    SUB_HIGH,
    SUB_NORMAL,
    DeadFilter,
    DeliveryFilter,
    DeliveryInfo,
    EnqueueResult,
    FanOut,
    LaneWant,
    NewEvent,
    Retention,
    Row,
    SettleBatch,
    Target,
    lane_of,
)
from gatepost.store.sqlite.store import SqliteStore
from gatepost.testing.postgres import shared_server
from gatepost.testing.postgres_store import gatepost_database, open_postgres
from gatepost.testing.store_builder import Owner, key_of
from gatepost.testing.virtual import VirtualClock

LONG = bool(os.environ.get("GATEPOST_LONG_TESTS"))
SETTINGS = settings(
    max_examples=400 if LONG else 25,
    stateful_step_count=80 if LONG else 30,
    derandomize=not LONG,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
ENDPOINTS = {1: "acme", 2: "acme", 3: "globex"}
SUBS = (SUB_NORMAL, SUB_HIGH, SUB_FIFO_FIRST)
LANES = [lane_of(endpoint, sub) for endpoint in ENDPOINTS for sub in (*SUBS, SUB_BULK)]
FAR = 1 << 60
NO_EXPIRY = 1e9  # seconds: keys never expire here, since engines may keep them for different times
T = TypeVar("T")

drafts = st.lists(
    st.tuples(
        st.sampled_from(["acme", "globex"]),
        st.integers(0, 3),  # which of the tenant's endpoints, as bits
        st.sampled_from([None, None, "a", "b", "c"]),
        st.sampled_from([b"1", b"2"]),
        st.sampled_from(SUBS),
        st.sampled_from([0, 0, 5]),
    ),
    min_size=1,
    max_size=4,
)
fates = st.lists(st.sampled_from(["done", "retry", "stay", "dead", "keep"]), min_size=1, max_size=8)


class StoreMachine(RuleBasedStateMachine):
    """Drives the subject and the oracle with the same calls."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp())
        self.clock = VirtualClock()
        self.generation = 0

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    def open_subject(self) -> Store:
        """The engine under test, new."""
        return MemoryStore(self.clock)

    def reopen(self, subject: Store) -> Store:
        """The engine after its process was killed."""
        return subject

    @initialize()
    def start(self) -> None:
        self.subject = self.run(self.opened())
        self.oracle: Store = MemoryStore(self.clock)
        self.owner = self.run(Owner.take(self.subject, self.clock))
        self.spec = self.run(Owner.take(self.oracle, self.clock))
        self.states: dict[int, str] = {}
        self.rows: dict[int, Row] = {}  # as they wait, or last waited
        self.tenants: dict[int, str] = {}
        self.keys: dict[tuple[str, str], NewEvent] = {}
        self.stored: dict[int, NewEvent] = {}
        self.ever: dict[int, NewEvent] = {}  # every event that was accepted, also those that retention took
        self.cursors: dict[int, FanOut] = {}
        self.held: dict[int, Row] = {}
        self.stale: tuple[int, list[Row]] = (0, [])  # what an owner before held, and its epoch
        self.batches: list[tuple[SettleBatch, SettleBatch]] = []

    async def opened(self) -> Store:
        return self.open_subject()

    def teardown(self) -> None:
        if hasattr(self, "subject"):
            self.look()
            self.run(self.subject.aclose())
        self.runner.close()
        shutil.rmtree(self.directory)

    # -- producing

    @rule(batch=drafts, seconds=st.integers(0, 3))
    def enqueue(self, batch: Sequence[tuple[str, int, str | None, bytes, int, int]], seconds: int) -> None:
        self.clock.advance(seconds)
        events = []
        for tenant, bits, key, body, sub, due_in in batch:
            own = [endpoint for endpoint, owner in ENDPOINTS.items() if owner == tenant]
            chosen = [endpoint for at, endpoint in enumerate(own) if bits >> at & 1]
            events.append(self.owner.event(*chosen, tenant=tenant, key=key, body=body, sub=sub, due_in=due_in))
        self.accept(events)

    @precondition(lambda self: self.stored)
    @rule(pick=st.integers(0, 1 << 20))
    def enqueue_again(self, pick: int) -> None:
        """A commit of unknown outcome, repeated."""
        known = list(self.stored.values())
        self.accept([known[pick % len(known)]])

    @rule(key=st.sampled_from([None, "a", "d"]), body=st.sampled_from([b"1", b"2"]))
    def put_into_outbox(self, key: str | None, body: bytes) -> None:
        event = self.owner.outbox_event(key, body)
        for store in (self.subject, self.oracle):
            self.run(store.outbox_put([event]))

    @rule(limit=st.integers(1, 5))
    def fan_out(self, limit: int) -> None:
        found = self.run(self.subject.outbox_peek(limit))
        assert found == self.run(self.oracle.outbox_peek(limit))
        events = []
        for event in found:
            lane = lane_of(1, SUB_HIGH)
            target = Target(lane, 0, self.owner.ids.next(), self.owner.now)
            events.append(
                NewEvent(
                    event.event_id,
                    event.tenant,
                    event.key,
                    event.type,
                    event.content_type,
                    event.body,
                    event.created_at,
                    (target,),
                    event.outbox_id,
                )
            )
        results = self.accept(events)
        conflicts = [event.event_id for event, result in zip(events, results, strict=True) if result.conflict]
        if conflicts:
            for store in (self.subject, self.oracle):
                self.run(store.outbox_drop(conflicts))

    def accept(self, events: Sequence[NewEvent]) -> Sequence[EnqueueResult]:
        """I7 by the model, and then what the engines say."""
        expected = [self.accept_in_model(event) for event in events]
        results = self.run(self.subject.enqueue(events))
        assert list(results) == expected
        assert list(self.run(self.oracle.enqueue(events))) == expected
        return results

    def accept_in_model(self, event: NewEvent) -> EnqueueResult:
        if event.event_id in self.stored:
            return EnqueueResult(event.event_id, True, False)
        if event.key is not None:
            first = self.keys.setdefault((event.tenant, event.key), event)
            if first is not event:
                # Once retention has taken the first event there is nothing to compare with.
                conflict = first.event_id in self.stored and first.body != event.body
                return EnqueueResult(first.event_id, not conflict, conflict)
        self.stored[event.event_id] = event
        self.ever[event.event_id] = event
        for target in event.targets:
            number = target.delivery_id
            self.rows[number] = Row(target.lane, target.due_at, number, event.event_id, 0, event.created_at, 0)
            self.states[number] = "waiting"
            self.tenants[number] = event.tenant
        return EnqueueResult(event.event_id, False, False)

    @rule(first=st.sampled_from([(), (1,)]), key=st.sampled_from([None, "a", "w"]))
    def enqueue_wide(self, first: Sequence[int], key: str | None) -> None:
        """More targets than one transaction takes: the rest stands behind a cursor."""
        event = self.owner.event(*first, tenant="acme", key=key)
        cursor = FanOut(event.event_id, 0, "acme", event.type, SUB_NORMAL, self.owner.now, max(first, default=0))
        [result] = self.accept([replace(event, fan_out=cursor)])
        if not result.duplicate and not result.conflict:
            self.cursors[event.event_id] = cursor

    @precondition(lambda self: self.cursors)
    @rule(
        pick=st.integers(0, 1 << 20),
        endpoints=st.sampled_from([(), (1,), (1, 2)]),
        end=st.booleans(),
        stale=st.booleans(),
    )
    def extend(self, pick: int, endpoints: Sequence[int], end: bool, stale: bool) -> None:
        """The cursor moves with its deliveries, from where it stands and from nowhere else."""
        cursor = list(self.cursors.values())[pick % len(self.cursors)]
        after = None if end else cursor.after + 1
        targets = [
            Target(lane_of(number, SUB_NORMAL), 0, self.owner.ids.next(), self.owner.now) for number in endpoints
        ]
        asked = cursor._replace(after=cursor.after + 7) if stale else cursor
        for store in (self.subject, self.oracle):
            assert self.run(store.extend(asked, targets, after)) is not stale
        if stale:
            return
        event = self.ever[cursor.event_id]
        for lane, part, number, due_at in targets:
            self.rows[number] = Row(lane, due_at, number, event.event_id, 0, event.created_at, part)
            self.states[number] = "waiting"
            self.tenants[number] = event.tenant
        if after is None:
            del self.cursors[cursor.event_id]
        else:
            self.cursors[cursor.event_id] = cursor._replace(after=after)

    @invariant()
    def every_unfinished_fan_out_is_found(self) -> None:
        """With its event, whose body the deliveries to come will need."""
        if not hasattr(self, "subject"):
            return
        expected = [cursor for _, cursor in sorted(self.cursors.items())]
        assert list(self.run(self.subject.fan_outs([0], 1_000))) == expected
        assert set(self.run(self.subject.load_events(self.cursors))) == set(self.cursors)

    # -- owning

    @rule(lane=st.sampled_from(LANES), limit=st.integers(1, 6), seconds=st.integers(0, 40))
    def peek(self, lane: int, limit: int, seconds: int) -> None:
        self.clock.advance(seconds)
        now = self.owner.now
        found = self.run(self.subject.peek([LaneWant(lane, limit, 0)], now))
        expected = self.run(self.oracle.peek([LaneWant(lane, limit, 0)], now))
        assert found == expected
        for row in found[0].rows:
            assert row.due_at <= now, "I9: never early"
            assert row == self.rows[row.delivery_id]
            self.held[row.delivery_id] = row

    @precondition(lambda self: self.held)
    @rule(chosen=fates, delay=st.integers(1, 90))
    def settle(self, chosen: Sequence[str], delay: int) -> None:
        rows = list(self.held.values())[: len(chosen)]
        self.clock.advance(1)
        batches = self.batch(rows, chosen, delay)
        self.batches.append(batches)
        self.apply(batches, fenced=False)
        for row, fate in zip(rows, chosen, strict=False):
            if fate != "keep":
                del self.held[row.delivery_id]

    @precondition(lambda self: self.batches)
    @rule(pick=st.integers(0, 1 << 20))
    def settle_again(self, pick: int) -> None:
        """I8: a settle of unknown outcome, repeated, perhaps after an owner has changed."""
        batches = self.batches[pick % len(self.batches)]
        self.apply(batches, fenced=batches[0].epochs[0] != self.owner.epoch)

    @precondition(lambda self: self.stale[1])
    @rule(chosen=fates, delay=st.integers(1, 90))
    def settle_as_a_stale_owner(self, chosen: Sequence[str], delay: int) -> None:
        """I8: a zombie can report what it delivered, and no more."""
        offset, rows = self.stale
        batches = [replace(batch, epochs={0: batch.epochs[0] - offset}) for batch in self.batch(rows, chosen, delay)]
        self.apply((batches[0], batches[1]), fenced=True)

    def batch(self, rows: Sequence[Row], chosen: Sequence[str], delay: int) -> tuple[SettleBatch, SettleBatch]:
        """The same results under the subject's and the oracle's epoch."""
        made = []
        for owner in (self.owner, self.spec):
            by_fate = {
                fate: [row for row, its in zip(rows, chosen, strict=False) if its == fate]
                for fate in ("done", "retry", "stay", "dead")
            }
            done, dead = owner.done(*by_fate["done"]), owner.dead(*by_fate["dead"])
            retry, stay = owner.retry(*by_fate["retry"], delay=delay), owner.retry(*by_fate["stay"])
            in_place = [row._replace(new_due=row.key.due_at) for row in stay.retry]
            attempts = [*done.attempts, *retry.attempts, *stay.attempts, *dead.attempts]
            made.append(
                SettleBatch(
                    {0: owner.epoch}, done=done.done, retry=[*retry.retry, *in_place], dead=dead.dead, attempts=attempts
                )
            )
        return made[0], made[1]

    def apply(self, batches: tuple[SettleBatch, SettleBatch], *, fenced: bool) -> None:
        batches = (self.without_forgotten(batches[0]), self.without_forgotten(batches[1]))
        expected = frozenset({0}) if fenced else frozenset()
        assert self.run(self.subject.settle(batches[0])).fenced == expected
        assert self.run(self.oracle.settle(batches[1])).fenced == expected
        for done in batches[0].done:
            if self.waits_at(done.key):
                self.states[done.key.delivery_id] = "delivered"
        for retry in () if fenced else batches[0].retry:
            row = self.rows[retry.key.delivery_id]
            if self.waits_at(retry.key) and row.attempt == retry.attempt:
                self.rows[row.delivery_id] = row._replace(due_at=retry.new_due, attempt=retry.next_attempt)
        for dead in () if fenced else batches[0].dead:
            if self.waits_at(dead.key) and self.rows[dead.key.delivery_id].attempt == dead.attempt:
                self.states[dead.key.delivery_id] = "dead"

    def without_forgotten(self, batch: SettleBatch) -> SettleBatch:
        """What is logged for a delivery after it was forgotten goes sometime: no engine must say when."""
        kept = [attempt for attempt in batch.attempts if self.states[attempt.delivery_id] != "forgotten"]
        return replace(batch, attempts=kept)

    def waits_at(self, key: Any) -> bool:
        return self.states.get(key.delivery_id) == "waiting" and key_of(self.rows[key.delivery_id]) == key

    @rule()
    def crash(self) -> None:
        """I6: what the owner held is lost with it, what waits is there for the next one."""
        self.stale = (1, list(self.held.values()))
        self.held = {}
        self.clock.advance(PART_LEASE + 1)
        before = (self.owner.epoch, self.spec.epoch)
        self.subject = self.run(self.reopened())
        self.owner = self.run(Owner.take(self.subject, self.clock, "node-b"))
        self.spec = self.run(Owner.take(self.oracle, self.clock, "node-b"))
        assert self.owner.epoch > before[0]
        assert self.spec.epoch > before[1]

    async def reopened(self) -> Store:
        return self.reopen(self.subject)

    # -- operating

    @rule(
        endpoint=st.sampled_from([None, 1, 2, 3]), tenant=st.sampled_from(["acme", "globex"]), limit=st.integers(1, 3)
    )
    def cancel(self, endpoint: int | None, tenant: str, limit: int) -> None:
        where = DeliveryFilter(tenant=tenant, endpoint=endpoint)
        waiting = [
            number
            for number, row in self.rows.items()
            if self.states[number] == "waiting" and self.tenants[number] == tenant and endpoint in (None, row.lane >> 8)
        ]
        chosen = list(self.run(self.subject.cancel(where, None, limit)))
        assert len(chosen) == min(limit, len(waiting))
        assert set(chosen) <= set(waiting)
        for number in chosen:
            assert list(self.run(self.oracle.cancel(DeliveryFilter(), number, 1))) == [number]
            self.states[number] = "cancelled"
            self.held.pop(number, None)

    @rule(endpoint=st.sampled_from([None, 1, 3]), limit=st.integers(1, 3), spacing=st.integers(0, 5))
    def replay(self, endpoint: int | None, limit: int, spacing: int) -> None:
        """I11."""
        where = DeadFilter(endpoint=endpoint)
        dead = [letter.delivery_id for letter in self.run(self.oracle.dead_letters(where, None, 1_000)).items][::-1]
        first_due, spacing_us = self.owner.now + 1_000_000, spacing * 1_000_000
        moved = self.run(self.subject.replay(where, first_due, spacing_us, limit))
        assert list(moved) == list(self.run(self.oracle.replay(where, first_due, spacing_us, limit)))
        assert len(moved) == min(limit, len(dead))
        for number, (_, lane, due) in zip(dead, moved, strict=False):
            self.states[number] = "waiting"
            event_id = self.rows[number].event_id
            self.rows[number] = Row(lane, due, number, event_id, 0, due, 0)
            self.stored[event_id] = self.ever[event_id]  # the dead letter's copy brings it back

    @rule(tenant=st.sampled_from([None, "acme"]), limit=st.integers(1, 2))
    def purge(self, tenant: str | None, limit: int) -> None:
        """I11: purged is forgotten."""
        where = DeadFilter(tenant=tenant)
        dead = [letter.delivery_id for letter in self.run(self.oracle.dead_letters(where, None, 1_000)).items][::-1]
        assert self.run(self.subject.purge_dead(where, limit)) == min(limit, len(dead))
        assert self.run(self.oracle.purge_dead(where, limit)) == min(limit, len(dead))
        for number in dead[:limit]:
            self.states[number] = "forgotten"

    @rule(days=st.sampled_from([0, 1, 8, 31]), budget=st.sampled_from([1, 3, 1_000]))
    def keep_house(self, days: int, budget: int) -> None:
        self.clock.advance(days * 86_400)
        for store in (self.subject, self.oracle):
            for _ in range(1_000):
                report = self.run(store.maintain(Retention(idempotency=NO_EXPIRY), self.owner.now, budget))
                if not report.more:
                    break
            else:
                raise AssertionError("maintain never ends")
        for number, state in self.states.items():
            if state != "forgotten" and self.run(self.oracle.delivery(number)) is None:
                assert state != "waiting", "what waits is never forgotten"
                self.states[number] = "forgotten"
        kept = self.run(self.oracle.load_events(self.stored))
        self.stored = {event_id: event for event_id, event in self.stored.items() if event_id in kept}

    # -- looking

    @rule()
    def look(self) -> None:
        """All lists agree, whatever the page size."""
        filters = [
            *[DeliveryFilter(endpoint=endpoint) for endpoint in ENDPOINTS],
            *[DeliveryFilter(endpoint=1, state=state) for state in ("waiting", "delivered", "dead", "cancelled")],
            *[
                DeliveryFilter(tenant="acme", state=state)
                for state in (None, "waiting", "delivered", "dead", "cancelled")
            ],
            *[DeliveryFilter(event_id=event_id) for event_id in list(self.stored)[:3]],
        ]
        for where in filters:
            if where.event_id is not None and where.event_id not in self.run(self.oracle.load_events([where.event_id])):
                continue  # engines may forget which deliveries an event had together with the event
            for limit in (2, 1_000):
                assert self.pages(self.subject, where, limit) == self.pages(self.oracle, where, limit), where
        for filter_ in (DeadFilter(), DeadFilter(endpoint=1), DeadFilter(tenant="globex")):
            found = self.run(self.subject.dead_letters(filter_, None, 1_000))
            assert found == self.run(self.oracle.dead_letters(filter_, None, 1_000))
        for number in list(self.states)[:20]:
            assert list(self.run(self.subject.attempts_of(number))) == list(self.run(self.oracle.attempts_of(number)))

    def pages(self, store: Store, where: DeliveryFilter, limit: int) -> list[DeliveryInfo]:
        items: list[DeliveryInfo] = []
        after: str | None = None
        while True:
            page = self.run(store.deliveries(where, after, limit))
            items += page.items
            if page.next is None:
                return items
            after = page.next

    @invariant()
    def each_delivery_is_in_one_state(self) -> None:
        """I1: never none, never two; and the numbers that metrics and limits use are right."""
        if not hasattr(self, "subject"):
            return
        waiting = {number: self.rows[number] for number, state in self.states.items() if state == "waiting"}
        found = self.run(self.subject.peek([LaneWant(lane, 1_000, 0) for lane in LANES], FAR))
        rows = [row for lane in found for row in lane.rows]
        assert {row.delivery_id: row for row in rows} == waiting
        assert len(rows) == len(waiting)
        totals, expected = self.run(self.subject.totals()), self.run(self.oracle.totals())
        assert replace(totals, size_bytes=0) == replace(expected, size_bytes=0)
        assert totals.waiting == len(waiting)
        assert totals.dead == sum(state == "dead" for state in self.states.values())
        for tenant in ("acme", "globex"):
            expected_backlog = sum(self.tenants[number] == tenant for number in waiting)
            assert self.run(self.subject.backlog_of(tenant)) == expected_backlog
        for number, state in list(self.states.items())[-12:]:
            info = self.run(self.subject.delivery(number))
            assert (info.state if info else "forgotten") == state
        bodies = self.run(self.subject.load_events({row.event_id for row in rows}))
        assert {event_id: body.body for event_id, body in bodies.items()} == {
            row.event_id: self.ever[row.event_id].body for row in rows
        }

    @invariant()
    def every_lane_with_rows_can_be_found(self) -> None:
        """I10: no wake-up is lost."""
        if not hasattr(self, "subject"):
            return
        lanes = {self.rows[number].lane for number, state in self.states.items() if state == "waiting"}
        assert lanes <= {lane for _, lane in self.run(self.subject.discover([0]))}


class SqliteMachine(StoreMachine):
    """On a file whose indexes lag behind by two rows, so that their rounds run all the time."""

    def open_subject(self) -> Store:
        return SqliteStore.open(self.directory / "0.db", clock=self.clock, index_lag_max=2)

    def reopen(self, subject: Store) -> Store:
        old, self.generation = self.generation, self.generation + 1
        for suffix in ("", "-wal", ".key"):
            file = self.directory / f"{old}.db{suffix}"
            if file.exists():
                shutil.copyfile(file, self.directory / f"{self.generation}.db{suffix}")
        (self.directory / f"{self.generation}.db.key").chmod(0o600)
        return SqliteStore.open(self.directory / f"{self.generation}.db", clock=self.clock, index_lag_max=2)

    async def reopened(self) -> Store:
        killed = self.subject
        subject = self.reopen(killed)
        await killed.aclose()
        return subject


class PostgresMachine(StoreMachine):
    """On a database of its own; a crash drops the connections, and the next process finds what was committed."""

    def __init__(self) -> None:
        super().__init__()
        self.url = gatepost_database(1)

    async def opened(self) -> Store:
        return await open_postgres(self.url, self.clock)

    async def reopened(self) -> Store:
        killed = self.subject
        subject = await self.opened()
        await killed.aclose()
        return subject

    def teardown(self) -> None:
        super().teardown()
        shared_server().drop_database(self.url)


TestMemory = StoreMachine.TestCase
TestMemory.settings = SETTINGS
TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = SETTINGS
TestPostgres = PostgresMachine.TestCase
TestPostgres.settings = settings(
    SETTINGS, max_examples=100 if LONG else 6
)  # a database and some thousand round trips each
