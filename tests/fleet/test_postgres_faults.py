"""The queue on PostgreSQL when connections break, servers crash and commits come late: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gatepost.clock import SYSTEM_CLOCK
from gatepost.delivery.ids import IdSource
from gatepost.dispatch.settle import Result, SettleBuffer
from gatepost.errors import ConfigurationError, StoreError
from gatepost.store.postgres import enqueue
from gatepost.store.postgres.address import postgres_address
from gatepost.store.postgres.pool import Connection, Pool, PoolLimits, connect
from gatepost.store.postgres.settle import IDLE_WAIT
from gatepost.store.postgres.store import PostgresStore
from gatepost.store.rows import (
    AttemptRow,
    DoneRow,
    EnqueueResult,
    LaneWant,
    NewEvent,
    Node,
    Poke,
    RetryRow,
    Row,
    SettleBatch,
    Target,
    lane_of,
)
from gatepost.testing.cut_proxy import CutProxy
from gatepost.testing.postgres import PostgresServer
from gatepost.testing.postgres_store import gatepost_database, new_postgres, open_postgres
from gatepost.testing.store_builder import key_of
from gatepost.testing.virtual import SeededEntropy, VirtualClock

A, B = Node("node-a"), Node("node-b")
PART = 3
LANE = lane_of(8 + PART, 0)
SHORT = PoolLimits(connections=2, call=1.0, repeat_for=0.5)


class Bench:
    """A store, ids and times."""

    def __init__(self, store: PostgresStore, ids: IdSource) -> None:
        self.store = store
        self.ids = ids

    def event(self, body: bytes = b"{}", *, key: str | None = None, lane: int = LANE) -> NewEvent:
        """One event for one lane of `PART`, due now."""
        now = SYSTEM_CLOCK.wall_us()
        target = Target(lane, PART, self.ids.next(), now)
        return NewEvent(self.ids.next(), "acme", key, "t", "text/plain", body, now, (target,))

    async def rows(self, lane: int = LANE) -> Sequence[Row]:
        """What is due, as the database says."""
        [found] = await self.store.peek([LaneWant(lane, 1_000, 0)], SYSTEM_CLOCK.wall_us() + 60_000_000)
        return found.rows

    async def raw(self) -> Connection:
        """A connection of its own, to play another process with."""
        return await connect(postgres_address(self.store.url))


@asynccontextmanager
async def bench(clock: VirtualClock | None = None) -> AsyncIterator[Bench]:
    """On a new database."""
    store = await new_postgres(clock, 8)
    try:
        yield Bench(store, IdSource(await store.new_node(), SYSTEM_CLOCK))
    finally:
        await store.aclose()


@asynccontextmanager
async def cut_bench(limits: PoolLimits | None = None) -> AsyncIterator[tuple[Bench, CutProxy, Bench]]:
    """A store behind a proxy, and one that is not."""
    async with bench() as direct, CutProxy.before(direct.store.url) as proxy:
        store = await open_postgres(proxy.url(direct.store.url), limits=limits)
        try:
            yield Bench(store, direct.ids), proxy, direct
        finally:
            proxy.restore()
            await store.aclose()


# ------------------------------------------------------------------------------------------- commits of unknown outcome


async def test_an_enqueue_whose_answer_is_lost_is_stored_once_and_is_no_duplicate() -> None:
    """Whoever published must start the delivery: told "duplicate", nobody would."""
    async with cut_bench() as (through, proxy, direct):
        for number, key in enumerate((None, "order-7")):
            event = through.event(b"precious-%d" % number, key=key)
            proxy.cut_answer(b"precious-%d" % number)
            assert await through.store.enqueue([event]) == [EnqueueResult(event.event_id, False, False)]
            assert proxy.cuts == number + 1
            assert [row.event_id for row in await direct.rows()].count(event.event_id) == 1
            assert await through.store.enqueue([event]) == [EnqueueResult(event.event_id, True, False)]
        assert through.store.statistics().repeated == 2


async def test_an_enqueue_that_never_arrived_is_sent_again() -> None:
    """The same for the caller, who cannot know which it was."""
    async with cut_bench() as (through, proxy, direct):
        event = through.event(b"precious")
        proxy.cut_request(b"precious")
        assert await through.store.enqueue([event]) == [EnqueueResult(event.event_id, False, False)]
        assert [row.event_id for row in await direct.rows()] == [event.event_id]
        assert proxy.cuts == 1


async def test_a_settle_whose_answer_is_lost_counts_one_attempt() -> None:
    """I8: what was moved is not moved again."""
    async with cut_bench() as (through, proxy, direct):
        await direct.store.enqueue([direct.event(), direct.event()])
        first, second = await direct.rows()
        epoch = (await through.store.heartbeat(A, {}, 8)).leases[PART].epoch
        marker = key_of(first).delivery_id.to_bytes(8, "big")
        proxy.cut_answer(marker)
        due = first.due_at + 30_000_000
        batch = SettleBatch(
            {PART: epoch},
            done=[DoneRow(key_of(second), second.event_id)],
            retry=[RetryRow(key_of(first), PART, 0, 1, due)],
        )
        assert (await through.store.settle(batch)).fenced == frozenset()
        assert proxy.cuts == 1
        assert await direct.rows() == [first._replace(due_at=due, attempt=1)]


async def test_under_cuts_at_random_every_accepted_event_is_stored_exactly_once() -> None:
    """I1 and I7 over some hundred lost answers."""
    async with cut_bench() as (through, proxy, direct):
        dice = SeededEntropy(7)
        proxy.answer_lost = lambda: dice.uniform() < 0.1  # a fixed beat could hit the same moment of every try
        accepted: list[int] = []

        async def publish(number: int) -> None:
            event = through.event(b"%d" % number, key=f"k{number}")
            for _ in range(20):
                try:
                    [result] = await through.store.enqueue([event])
                except StoreError:
                    continue
                assert not result.conflict
                accepted.append(result.event_id)
                return
            raise AssertionError("never accepted")

        await asyncio.gather(*(publish(number) for number in range(150)))
        proxy.restore()
        assert proxy.cuts > 20
        assert sorted(row.event_id for row in await direct.rows()) == sorted(accepted)


# ------------------------------------------------------------------------------------------- silence and cancellation


async def test_a_black_hole_hangs_nobody_and_the_store_recovers() -> None:
    """A network that swallows everything must end in an error within the limit, on the pool and on the session."""
    async with cut_bench(SHORT) as (through, proxy, _):
        epoch = (await through.store.heartbeat(A, {}, 8)).leases[PART].epoch
        waiter = asyncio.ensure_future(through.store.wait_pokes())
        await asyncio.sleep(0)
        proxy.black_hole()
        started = SYSTEM_CLOCK.monotonic()
        with pytest.raises(StoreError, match="did not answer in time"):
            await through.store.enqueue([through.event()])
        with pytest.raises(StoreError, match="did not answer in time"):
            await through.store.heartbeat(A, {PART: epoch}, 0)
        assert SYSTEM_CLOCK.monotonic() - started < 20
        with pytest.raises(StoreError, match="session was lost"):
            await waiter
        proxy.cut_all()
        proxy.restore()
        assert (await through.store.heartbeat(A, {PART: epoch}, 0)).leases[PART].epoch == epoch
        await through.store.enqueue([through.event()])


async def test_a_cancelled_caller_leaves_no_broken_connection_behind() -> None:
    """Publishers give up all the time; a connection in mid-statement would poison the next call."""
    async with bench() as it:
        await asyncio.gather(*(it.store.new_node() for _ in range(8)))
        events = [it.event(b"%d" % number) for number in range(60)]
        for number, event in enumerate(events):
            call = asyncio.ensure_future(it.store.enqueue([event]))
            for _ in range(number % 12):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        results = await it.store.enqueue(events)
        assert not any(result.conflict for result in results)
        assert sorted(row.event_id for row in await it.rows()) == sorted(event.event_id for event in events)
        async with asyncio.timeout(10):
            while it.store.statistics().idle < it.store.statistics().open:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        statistics = it.store.statistics()
        assert (statistics.lost, statistics.open <= 8) == (0, True)


async def test_calls_wait_for_a_connection_in_order_and_a_lost_one_is_replaced() -> None:
    """More callers than connections is the usual case."""
    async with bench() as it:
        pool = Pool(postgres_address(it.store.url), PoolLimits(connections=1))
        try:
            order: list[int] = []

            async def work(connection: Connection, number: int) -> None:
                await connection.fetchval("SELECT 1")
                order.append(number)

            async def call(number: int) -> None:
                await pool.run(lambda connection: work(connection, number))

            await asyncio.gather(*(call(number) for number in range(20)))
            assert order == sorted(order)
            victim = await pool.fetch("SELECT pg_backend_pid()")
            raw = await it.raw()
            await raw.execute("SELECT pg_terminate_backend($1)", victim[0][0])
            await raw.close()
            await asyncio.gather(*(call(number) for number in range(20)))
            assert pool.statistics().open == 1
        finally:
            await pool.aclose()
        with pytest.raises(StoreError, match="closed"):
            await pool.fetch("SELECT 1")


# ------------------------------------------------------------------------------------------- a server that crashes


async def test_an_immediate_restart_under_load_loses_nothing() -> None:
    """`pg_ctl -m immediate` in the middle of enqueues and settles."""
    server = await asyncio.to_thread(PostgresServer)  # a killed server loses nothing that it wrote, synced or not
    try:
        store = await open_postgres(await asyncio.to_thread(gatepost_database, 8, server))
        it = Bench(store, IdSource(await store.new_node(), SYSTEM_CLOCK))
        beat = await store.heartbeat(A, {}, 8)
        epochs = {part: lease.epoch for part, lease in beat.leases.items()}
        accepted: set[int] = set()
        settled: set[int] = set()
        doubtful: set[int] = set()
        stop = asyncio.Event()

        async def produce() -> None:
            while not stop.is_set():
                events = [it.event(key=str(it.ids.next())) for _ in range(20)]
                while True:
                    try:
                        results = await store.enqueue(events)
                    except StoreError:
                        await asyncio.sleep(0.05)
                    else:
                        break
                assert not any(result.conflict for result in results)
                accepted.update(event.targets[0].delivery_id for event in events)

        async def consume() -> None:
            while not stop.is_set():
                rows: Sequence[Row] = ()
                try:
                    rows = (await it.rows())[:30]
                    done = [DoneRow(key_of(row), row.event_id) for row in rows]
                    await store.settle(SettleBatch({PART: epochs[PART]}, done=done))
                except StoreError:
                    doubtful.update(row.delivery_id for row in rows)  # the dispatcher would settle them again
                    await asyncio.sleep(0.05)
                else:
                    settled.update(row.delivery_id for row in rows)

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            group.create_task(produce())
            group.create_task(consume())
            for _ in range(2):
                await asyncio.sleep(0.4)
                await asyncio.to_thread(server.restart, "immediate")
            await asyncio.sleep(0.4)
            stop.set()
        waiting = {row.delivery_id for row in await it.rows()}
        while more := await it.rows():
            waiting.update(row.delivery_id for row in more)
            await store.settle(SettleBatch({}, done=[DoneRow(key_of(row), row.event_id) for row in more]))
        assert accepted - waiting - settled <= doubtful
        assert waiting | settled <= accepted
        assert not waiting & settled
        assert len(accepted) > 100
        back = await _until_answered(store, epochs)
        assert back == epochs, "the node was back before anybody could take its parts"
        await store.aclose()
    finally:
        await asyncio.to_thread(server.close)


async def _until_answered(store: PostgresStore, held: dict[int, int]) -> dict[int, int]:
    while True:
        try:
            beat = await store.heartbeat(A, held, 0)
        except StoreError:
            continue
        return {part: lease.epoch for part, lease in beat.leases.items()}


# ------------------------------------------------------------------------------------------- one key, two connections


@pytest.mark.parametrize("committed", [True, False])
async def test_of_two_enqueues_with_one_key_the_second_waits_for_the_first(committed: bool) -> None:
    """I7: it is a duplicate if the first one commits, and the first if it does not."""
    async with bench() as it:
        raw = await it.raw()
        first, second = it.event(b"same", key="k"), it.event(b"same", key="k")
        transaction = raw.transaction()
        await transaction.start()
        await enqueue.enqueue(raw, [first], repeated=False, now=None)
        call = asyncio.ensure_future(it.store.enqueue([second]))
        await asyncio.sleep(0.2)
        assert not call.done()
        await (transaction.commit() if committed else transaction.rollback())
        winner = first if committed else second
        assert await call == [EnqueueResult(winner.event_id, duplicate=committed, conflict=False)]
        assert [row.event_id for row in await it.rows()] == [winner.event_id]
        await raw.close()


async def test_batches_with_the_same_keys_in_opposite_orders_end_without_a_deadlock() -> None:
    """Keys and markers are taken in one order whatever the batch's."""
    async with bench() as it:
        lanes = [lane_of(8 * number + PART, 0) for number in range(1, 40)]

        def batch(names: Sequence[int]) -> list[NewEvent]:
            return [it.event(b"x", key=f"k{name}", lane=lanes[name % len(lanes)]) for name in names]

        batches = [batch(range(60)) if number % 2 else batch(range(59, -1, -1)) for number in range(8)]
        found = await asyncio.gather(*(it.store.enqueue(events) for events in batches))
        assert sum(not result.duplicate for results in found for result in results) == 60
        assert it.store.statistics().repeated == 0


# ------------------------------------------------------------------------------------------- fencing


async def test_a_part_is_not_taken_while_its_owner_settles_and_then_fences_it() -> None:
    """The one moment in which a stale retry could move a row that somebody else delivers."""
    async with bench() as it:
        await it.store.enqueue([it.event()])
        [row] = await it.rows()
        held = {part: lease.epoch for part, lease in (await it.store.heartbeat(A, {}, 8)).leases.items()}
        await it.store.release(held)
        raw = await it.raw()
        settling = raw.transaction()
        await settling.start()
        locked = await raw.fetchval("SELECT epoch FROM gp_part WHERE part = $1 FOR SHARE", PART)
        assert locked == held[PART]
        assert set((await it.store.heartbeat(B, {}, 8)).leases) == set(range(8)) - {PART}
        await settling.commit()
        mine = (await it.store.heartbeat(B, {}, 8)).leases[PART]

        taking = raw.transaction()
        await taking.start()
        await raw.execute("UPDATE gp_part SET epoch = epoch + 1 WHERE part = $1", PART)
        retry = RetryRow(key_of(row), PART, 0, 1, row.due_at + 1)
        call = asyncio.ensure_future(it.store.settle(SettleBatch({PART: mine.epoch}, retry=[retry])))
        await asyncio.sleep(0.2)
        assert not call.done(), "it waits for the takeover"
        await taking.commit()
        assert (await call).fenced == {PART}
        assert await it.rows() == [row]
        await raw.close()


# ------------------------------------------------------------------------------------------- markers


@asynccontextmanager
async def marked_lane() -> AsyncIterator[tuple[Bench, VirtualClock, SettleBatch, Connection]]:
    """A lane that ran empty, what its owner says of it, and another process."""
    clock = VirtualClock()
    async with bench(clock) as it:
        held = {part: lease.epoch for part, lease in (await it.store.heartbeat(A, {}, 8)).leases.items()}
        await it.store.enqueue([it.event()])
        [row] = await it.rows()
        await it.store.settle(SettleBatch(held, done=[DoneRow(key_of(row), row.event_id)]))
        raw = await it.raw()
        yield it, clock, SettleBatch(held, idle=[(PART, LANE)]), raw
        await raw.close()


async def test_a_marker_goes_when_its_lane_stays_empty() -> None:
    """In two steps; each time the owner says that the lane is idle."""
    async with marked_lane() as (it, clock, idle, _):
        for _ in range(2):
            await it.store.settle(idle)
            assert list(await it.store.discover([PART])) == [(PART, LANE)]
        clock.advance(IDLE_WAIT / 1e6 + 1)
        await it.store.settle(replace(idle, epochs={PART: idle.epochs[PART] - 1}))
        assert list(await it.store.discover([PART])) == [(PART, LANE)], "a stale owner removes nothing"
        await it.store.settle(idle)
        assert list(await it.store.discover([PART])) == []
        await it.store.enqueue([it.event()])
        assert list(await it.store.discover([PART])) == [(PART, LANE)]


async def test_an_enqueue_that_commits_after_its_lane_was_called_idle_keeps_its_wake_up() -> None:
    """I10: it saw the marker and wrote none, and nobody sees its rows until it commits."""
    async with marked_lane() as (it, clock, idle, raw):
        late = raw.transaction()
        await late.start()
        await enqueue.enqueue(raw, [it.event()], repeated=False, now=None)
        await it.store.settle(idle)
        clock.advance(IDLE_WAIT / 1e6 - 1)
        await it.store.settle(idle)
        await late.commit()
        clock.advance(2)
        await it.store.settle(idle)
        assert list(await it.store.discover([PART])) == [(PART, LANE)]
        assert len(await it.rows()) == 1


async def test_an_enqueue_into_a_lane_called_idle_takes_that_back() -> None:
    """Its commit may come after the wait, so the marker must not go while it runs: the removal waits, and finds it set again."""
    async with marked_lane() as (it, clock, idle, raw):
        await it.store.settle(idle)
        clock.advance(IDLE_WAIT / 1e6 + 1)
        late = raw.transaction()
        await late.start()
        await enqueue.enqueue(raw, [it.event()], repeated=False, now=None)
        removal = asyncio.ensure_future(it.store.settle(idle))
        await asyncio.sleep(0.2)
        assert not removal.done()
        await late.commit()
        await removal
        assert list(await it.store.discover([PART])) == [(PART, LANE)]


async def test_an_enqueue_that_meets_the_removal_of_its_marker_writes_a_new_one() -> None:
    """The other order: the marker is going when the enqueue looks."""
    async with marked_lane() as (it, _, _, raw):
        await raw.execute("UPDATE gp_active SET idle_at = 1")
        removal = raw.transaction()
        await removal.start()
        await raw.execute("DELETE FROM gp_active WHERE part = $1", PART)
        call = asyncio.ensure_future(it.store.enqueue([it.event()]))
        await asyncio.sleep(0.2)
        assert not call.done()
        await removal.commit()
        await call
        assert list(await it.store.discover([PART])) == [(PART, LANE)]


# ------------------------------------------------------------------------------------------- pokes and addresses


async def test_more_pokes_than_a_message_holds_arrive() -> None:
    """A message has 8,000 bytes; a call is one statement all the same."""
    async with bench() as it:
        other = await open_postgres(it.store.url)
        try:
            await other.heartbeat(B, {}, 0)
            sent = {Poke(number % 8, lane_of(number, 0), number) for number in range(1, 1_000)}
            await it.store.poke(sent)
            heard: set[Poke] = set()
            async with asyncio.timeout(10):
                while heard != sent:
                    heard.update(await other.wait_pokes())
        finally:
            await other.aclose()


async def test_without_sessions_everything_but_pokes_and_quick_takeover_works() -> None:
    """Behind a pooler that shares connections by transaction; here the server itself stands in for it."""
    url = await asyncio.to_thread(gatepost_database, 8)
    store = await open_postgres(url + "?pooling=transaction")
    try:
        it = Bench(store, IdSource(await store.new_node(), SYSTEM_CLOCK))
        held = {part: lease.epoch for part, lease in (await store.heartbeat(A, {}, 8)).leases.items()}
        await store.enqueue([it.event(key="k")])
        assert (await store.enqueue([it.event(key="k")]))[0].duplicate
        [row] = await it.rows()
        assert not (await store.settle(SettleBatch(held, done=[DoneRow(key_of(row), row.event_id)]))).fenced
        await store.poke([Poke(PART, LANE, 0)])
        assert [info.node.name for info in await store.nodes()] == [A.name]
    finally:
        await store.aclose()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://host/", "names no database"),
        ("postgresql://host:99999/db", "not a number up to"),
        ("postgresql://host/db?pooling=statement", "write pooling=transaction"),
        ("mysql://host/db", "does not name a PostgreSQL"),
        ("postgresql://me:12/34@host/db", "write %2F"),
    ],
)
def test_a_url_that_cannot_be_right_says_what_to_write(url: str, message: str) -> None:
    """Before anything is connected to."""
    with pytest.raises(ConfigurationError, match=message):
        postgres_address(url)


def test_an_address_shows_no_password() -> None:
    """It stands in every error."""
    address = postgres_address("postgresql://me:secret@db.example:6432/gatepost?sslmode=require&pooling=transaction")
    assert "secret" not in repr(address)
    assert address.place == "postgresql://db.example:6432/gatepost"
    assert address.url == "postgresql://me:secret@db.example:6432/gatepost?sslmode=require"


async def test_a_server_that_is_not_there_is_a_store_error_that_names_it() -> None:
    """And a database that is not there is a mistake in the URL."""
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1/gatepost"):
        await open_postgres("postgresql://me@127.0.0.1:1/gatepost", limits=SHORT)
    url = await asyncio.to_thread(gatepost_database, 8)
    with pytest.raises(ConfigurationError, match="3D000"):
        await open_postgres(url + "_not", limits=SHORT)


async def test_a_result_that_no_database_can_hold_does_not_hold_back_the_others() -> None:
    """A zero byte in one line of the log must not be tried for ever, while all that was delivered waits behind it."""
    store = await new_postgres()
    try:
        lines = [
            AttemptRow(
                number, 1, 1, 1, "acme", 1, "response", "body", why, "safe", "none", 200, 1, "", None, b"", "d", "w"
            )
            for number, why in ((1, "fine"), (2, "zero\0byte"), (3, "fine"))
        ]
        stored: list[Result] = []
        rejected: list[str] = []
        buffer = SettleBuffer(store, stored.extend, lambda _: None, lambda name, _: rejected.append(name))
        with pytest.raises(ValueError, match="cannot store"):
            await store.settle(SettleBatch(epochs={}, attempts=lines))
        assert store.statistics().lost == 0, "the connection is as good as before"
        for line in lines:
            buffer.add(Result(None, 0, None, line))
        running = asyncio.get_running_loop().create_task(buffer.run())
        async with asyncio.timeout(10.0):
            await buffer.flush()
        running.cancel()
        assert [result.rejected for result in stored] == [False, True, False]
        assert "settle_rejected" in rejected
        assert [len(await store.attempts_of(number)) for number in (1, 2, 3)] == [1, 0, 1]
    finally:
        await store.aclose()
