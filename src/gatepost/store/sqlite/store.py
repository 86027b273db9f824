"""The store on one SQLite file: puts the writer, two readers and the memory beside them together behind the two ports.

One process owns the file (`lock`); writes are grouped by one thread (`writer`), due rows and lists are read by two others, so
that neither waits for the other. Opened by `gatepost.store.open`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.delivery.ids import NODES
from gatepost.store.node_list import NodeList
from gatepost.store.paging import check_filter, check_limit
from gatepost.store.port import StoreCapabilities
from gatepost.store.rows import (
    PART_LEASE,
    AttemptRow,
    Backlog,
    DeadFilter,
    DeadLetter,
    DeliveryFilter,
    DeliveryInfo,
    EnqueueResult,
    EventBody,
    FanOut,
    Heartbeat,
    LaneRows,
    LaneStat,
    LaneWant,
    Lease,
    MaintenanceReport,
    NewEvent,
    Node,
    NodeInfo,
    OutboxEvent,
    Page,
    PartInfo,
    Poke,
    Retention,
    SettleBatch,
    SettleResult,
    StoreTotals,
    Target,
    TenantPurge,
)
from gatepost.store.secretbox import SecretBox
from gatepost.store.sqlite import fan_out as fan_outs
from gatepost.store.sqlite import operate, reads, views
from gatepost.store.sqlite import states as endpoint_states
from gatepost.store.sqlite.connection import connect, store_error
from gatepost.store.sqlite.finder import NEWEST, find, matching
from gatepost.store.sqlite.identity import FileIdentity
from gatepost.store.sqlite.intake import drop_outbox, put_outbox
from gatepost.store.sqlite.keycheck import check_keys
from gatepost.store.sqlite.lock import FileLock
from gatepost.store.sqlite.maintenance import Maintenance
from gatepost.store.sqlite.meta import next_node
from gatepost.store.sqlite.purge import Purge
from gatepost.store.sqlite.reader import ReaderThread
from gatepost.store.sqlite.registry import SqliteRegistry
from gatepost.store.sqlite.schema import prepare
from gatepost.store.sqlite.space import SpaceGuard
from gatepost.store.sqlite.strips import INDEX_LAG_MAX
from gatepost.store.sqlite.work import QueueWork
from gatepost.store.sqlite.writer import Kind, WriterStatistics, WriterThread

PART = operate.PART


class SqliteStore(SqliteRegistry):
    """Both ports on one file. Make it with `open`."""

    capabilities = StoreCapabilities(durability="fsync", parts=1, shared=False)

    def __init__(
        self,
        path: str,
        clock: Clock,
        lock: FileLock,
        writer: WriterThread,
        work: QueueWork,
        hot: ReaderThread,
        lists: ReaderThread,
        box: SecretBox,
        epoch: int,
    ) -> None:
        super().__init__(writer, hot, lists, box)
        self._path = path
        self._clock = clock
        self._lock = lock
        self._work = work
        self._maintenance = Maintenance(writer, lists, work)
        self._purge = Purge(writer, lists, work)
        self._owner: str | None = None
        self._epoch = epoch
        self._lease_end = 0.0  # monotonic seconds
        self._node_list = NodeList(clock)
        self._outbox_news = asyncio.Event()
        self._outbox_news.set()
        self._watching = False

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        box: SecretBox | None = None,
        clock: Clock = SYSTEM_CLOCK,
        max_bytes: int | None = None,
        reserve_bytes: int | None = None,
        index_lag_max: int = INDEX_LAG_MAX,
    ) -> SqliteStore:
        """Open or create the file and become its owner. Blocks for the time it takes to count what waits.

        `box` None: the key file beside it (`SecretBox.for_sqlite`). `max_bytes` and `reserve_bytes` as in `SpaceGuard`.
        `index_lag_max` is how many rows may wait for their index (`strips`).
        Raises `StoreLocked`, `SchemaMismatch`, `StoreError`, `ConfigurationError`.
        """
        # SQLite follows links, so must the lock: one file under two names has one owner.
        name = os.path.realpath(path)
        with ExitStack() as undo:
            lock = FileLock(name)
            undo.callback(lock.release)
            connection = connect(name)
            undo.callback(connection.close)
            prepare(connection, name, SYSTEM_CLOCK, may_migrate=True)
            if box is None:
                box = SecretBox.for_sqlite(name)
            try:
                check_keys(connection, box)
                epoch = _first_epoch(connection)
                space = SpaceGuard(connection, name, max_bytes=max_bytes, reserve_bytes=reserve_bytes)
                work = QueueWork(connection, FileIdentity(name), space, index_lag_max)
            except sqlite3.Error as error:
                raise store_error(error, name) from error
            hot = connect(name, query_only=True)
            undo.callback(hot.close)
            lists = connect(name, query_only=True)
            undo.pop_all()
        writer = WriterThread(connection, name, work)
        writer.start()
        return cls(
            name,
            clock,
            lock,
            writer,
            work,
            ReaderThread(hot, name, "reader"),
            ReaderThread(lists, name, "lists"),
            box,
            epoch,
        )

    def __repr__(self) -> str:
        return f"SqliteStore({self._path}, epoch {self._epoch}, {sum(self._work.tally.backlog.values())} waiting)"

    def statistics(self) -> WriterStatistics:
        """How the writer has been doing."""
        return self._writer.statistics()

    # -- producers

    async def new_node(self) -> int:
        return await self._writer.call(1, next_node, NODES)

    async def enqueue(self, batch: Sequence[NewEvent]) -> Sequence[EnqueueResult]:
        if not batch:
            return []
        rows = sum(1 + len(event.targets) for event in batch)
        results: Sequence[EnqueueResult] = await self._writer.submit(Kind.ENQUEUE, batch, rows)
        return results

    async def outbox_put(self, events: Sequence[OutboxEvent]) -> None:
        await self._writer.call(len(events), put_outbox, self._work.identity, self._work.space, events)
        self._outbox_news.set()

    async def outbox_peek(self, limit: int) -> Sequence[OutboxEvent]:
        check_limit(limit)
        return await self._hot.run(reads.outbox_peek, limit)

    async def outbox_drop(self, outbox_ids: Collection[int]) -> None:
        await self._writer.call(len(outbox_ids), drop_outbox, tuple(outbox_ids))

    async def wait_outbox(self) -> None:
        if not self._watching:
            self._watching = True
            self._writer.watch(partial(_tell, asyncio.get_running_loop(), self._outbox_news))
        await self._outbox_news.wait()
        self._outbox_news.clear()

    # -- ownership: in memory, because the file's lock already keeps other processes out; only the epoch must outlive us

    async def heartbeat(self, node: Node, held: Mapping[int, int], want: int) -> Heartbeat:
        self._lock.check()
        now = self._clock.monotonic()
        mine = self._owner == node.name and held.get(PART) == self._epoch
        if not mine and want > 0 and (self._owner in (None, node.name) or now >= self._lease_end):
            self._owner = None  # nobody owns it until the new epoch is durable
            self._epoch = await self._writer.call(1, _raise_epoch)
            self._owner, mine = node.name, True
        if mine:
            self._lease_end = now + PART_LEASE
        leases = {PART: Lease(self._epoch, PART_LEASE)} if mine else {}
        lost = frozenset(part for part, epoch in held.items() if part not in leases or leases[part].epoch != epoch)
        self._node_list.seen(node)
        return Heartbeat(leases, lost, self._clock.wall_us(), self._node_list.alive(self._owner))

    async def parts(self) -> Sequence[PartInfo]:
        left = 0.0 if self._owner is None else max(0.0, self._lease_end - self._clock.monotonic())
        return [PartInfo(PART, self._owner, self._epoch, left)]

    async def nodes(self) -> Sequence[NodeInfo]:
        return self._node_list.alive(self._owner)

    async def poke(self, pokes: Collection[Poke]) -> None:
        """Nobody to tell: one process owns everything."""

    async def wait_pokes(self) -> Sequence[Poke]:
        await asyncio.get_running_loop().create_future()  # nobody else pokes
        return ()

    async def release(self, parts: Mapping[int, int]) -> None:
        if parts.get(PART) == self._epoch:
            self._owner = None

    # -- owner reads

    async def discover(self, parts: Collection[int]) -> Sequence[tuple[int, int]]:
        return [(PART, lane) for lane in list(self._work.tally.depth)] if PART in parts else []

    async def peek(self, wants: Sequence[LaneWant], now: int) -> Sequence[LaneRows]:
        return await self._hot.run(reads.peek, wants, now)

    async def load_events(self, ids: Collection[int]) -> Mapping[int, EventBody]:
        return await self._hot.run(reads.load_events, ids)

    # -- fan-outs too large for one transaction

    async def fan_outs(self, parts: Collection[int], limit: int) -> Sequence[FanOut]:
        check_limit(limit)
        return await self._hot.run(fan_outs.unfinished, limit) if PART in parts else ()

    async def extend(self, fan_out: FanOut, targets: Sequence[Target], after: int | None) -> bool:
        rows = 1 + len(targets)
        return await self._writer.call(rows, self._work.extend, fan_out, targets, after)

    # -- what is learned about endpoints

    async def save_states(self, states: Mapping[int, bytes]) -> None:
        await self._writer.call(len(states), endpoint_states.save, dict(states))

    async def load_states(self, endpoints: Collection[int]) -> Mapping[int, bytes]:
        return await self._hot.run(endpoint_states.load, endpoints)

    # -- owner writes

    async def settle(self, batch: SettleBatch) -> SettleResult:
        rows = len(batch.done) + 2 * len(batch.retry) + 3 * len(batch.dead) + len(batch.attempts)
        result: SettleResult = await self._writer.submit(Kind.SETTLE, batch, rows)
        return result

    # -- operators

    async def deliveries(self, where: DeliveryFilter, after: str | None, limit: int) -> Page[DeliveryInfo]:
        return await self._lists.run(views.deliveries, self._work.tally, where, after, limit)

    async def delivery(self, delivery_id: int) -> DeliveryInfo | None:
        found = await self._lists.run(views.show, [delivery_id])
        return found[0] if found else None

    async def attempts_of(self, delivery_id: int) -> Sequence[AttemptRow]:
        return await self._lists.run(views.attempts_of, delivery_id)

    async def newest_attempts(self, endpoint: int, limit: int) -> Sequence[AttemptRow]:
        return await self._lists.run(views.newest_attempts, endpoint, limit)

    async def backlogs(self, endpoints: Collection[int], depth_cap: int = 1_000) -> Mapping[int, Backlog]:
        return await self._lists.run(reads.backlogs, self._work.tally, endpoints, depth_cap)

    async def cancel(self, where: DeliveryFilter, delivery_id: int | None, limit: int) -> Sequence[int]:
        check_limit(limit)
        if where.state not in (None, "waiting"):
            return ()
        where = replace(where, state="waiting")
        if delivery_id is not None:
            return await self._cancel(await self._lists.run(matching, where, [delivery_id]))
        check_filter(where)
        before: int | None = NEWEST
        while before is not None:
            found = await self._lists.run(find, self._work.tally, where, before, limit)
            cancelled = await self._cancel(found.ids)
            if cancelled:
                return cancelled
            before = found.ids[-1] if found.ids else found.resume
        return ()

    async def _cancel(self, ids: Sequence[int]) -> Sequence[int]:
        if not ids:
            return ()
        return await self._writer.call(2 * len(ids), operate.cancel, self._work.tally, ids, self._clock.wall_us())

    async def dead_letters(self, where: DeadFilter, after: str | None, limit: int) -> Page[DeadLetter]:
        return await self._lists.run(views.dead_letters, where, after, limit)

    async def dead_letter(self, delivery_id: int) -> DeadLetter | None:
        return await self._lists.run(views.dead_letter, delivery_id)

    # Dead letters are found off the writer's thread, and again when others were quicker to take those found.

    async def replay(
        self, where: DeadFilter, first_due: int, spacing_us: int, limit: int
    ) -> Sequence[tuple[int, int, int]]:
        check_limit(limit)
        while ids := await self._lists.run(views.dead_ids, where, limit):
            moved = await self._writer.call(4 * len(ids), operate.replay, self._work.tally, ids, first_due, spacing_us)
            if moved:
                return moved
        return ()

    async def purge_dead(self, where: DeadFilter, limit: int) -> int:
        check_limit(limit)
        while ids := await self._lists.run(views.dead_ids, where, limit):
            purged = await self._writer.call(4 * len(ids), operate.purge_dead, self._work.tally, ids)
            if purged:
                return purged
        return 0

    async def purge_tenant(self, tenant: str, limit: int) -> TenantPurge:
        return await self._purge.run(tenant, limit)

    async def lane_stats(self, lanes: Collection[int], depth_cap: int = 10_000) -> Sequence[LaneStat]:
        return await self._lists.run(reads.lane_stats, self._work.tally, lanes, depth_cap)

    async def backlog_of(self, tenant: str) -> int:
        return self._work.tally.backlog.get(tenant, 0)

    async def totals(self) -> StoreTotals:
        return await self._lists.run(reads.totals, self._work.tally, self._path)

    async def maintain(self, retention: Retention, now: int, budget: int) -> MaintenanceReport:
        return await self._maintenance.run(retention, now, budget)

    async def store_time(self) -> int:
        return self._clock.wall_us()

    async def ping(self) -> None:
        # A write, because a disk that is full or read-only still answers reads.
        await self._writer.call(1, _touch, self._work.identity)

    async def aclose(self) -> None:
        # The writer last: the connection that closes last empties the write-ahead log.
        threads = (self._hot, self._lists, self._writer)
        for thread in threads:
            thread.begin_close()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        self._lock.release()


def _tell(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> None:
    """From the writer's thread: another process may have put outbox rows."""
    try:
        loop.call_soon_threadsafe(news.set)
    except RuntimeError:
        pass  # the loop is closed, nobody waits any more


def _first_epoch(connection: sqlite3.Connection) -> int:
    """Fences everything that was read before this process started."""
    connection.execute("BEGIN IMMEDIATE")
    epoch = _raise_epoch(connection)
    connection.execute("COMMIT")
    return epoch


def _raise_epoch(connection: sqlite3.Connection) -> int:
    row = connection.execute("UPDATE part SET epoch = epoch + 1 WHERE part = ? RETURNING epoch", (PART,)).fetchone()
    return int(row[0])


def _touch(connection: sqlite3.Connection, identity: FileIdentity) -> None:
    identity.check()
    connection.execute("UPDATE part SET epoch = epoch")
