"""The queue's half of the store contract: accepting, owning, reading, settling. See `store_contract`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from gatepost.clock import Clock
from gatepost.errors import StoreError
from gatepost.store.port import Store
from gatepost.store.rows import (
    PART_LEASE,
    SUB_FIFO_FIRST,
    DeliveryFilter,
    EnqueueResult,
    FanOut,
    LaneWant,
    NewEvent,
    Node,
    Retention,
    RetryRow,
    SettleBatch,
    Target,
    lane_of,
)
from gatepost.testing.store_builder import SECOND, Owner, key_of
from gatepost.testing.virtual import VirtualClock

DAY = 86_400.0
TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 vendor='x\"y"
"""What a publisher sent along."""


class ContractBase:
    """Opens the store under test. Subclasses give the engine."""

    async def open_store(self, clock: Clock) -> Store:
        """A new, empty store whose time is `clock`'s."""
        raise NotImplementedError("return a new, empty store of the engine under test")

    @asynccontextmanager
    async def owned(self) -> AsyncIterator[Owner]:
        """An owner of a new store; closed at the end."""
        clock = VirtualClock()
        store = await self.open_store(clock)
        try:
            yield await Owner.take(store, clock)
        finally:
            await store.aclose()

    @staticmethod
    async def maintain(owner: Owner, retention: Retention | None = None) -> None:
        """Run retention to its end."""
        for _ in range(2_000):
            report = await owner.store.maintain(retention or Retention(), owner.now, 1_000)
            if not report.more:
                return
        raise AssertionError("maintain has more to do for ever")


class QueueContract(ContractBase):
    """Enqueue, own, peek, settle, outbox."""

    # -- enqueue

    async def test_an_event_waits_in_each_lane_it_was_made_for(self) -> None:
        """Fan-out: one body, one row per endpoint, ready at its due time."""
        async with self.owned() as owner:
            event = owner.event(7, 8, body=b"payload", trace=TRACE)
            assert await owner.enqueue(event) == [EnqueueResult(event.event_id, False, False)]
            for target in event.targets:
                [row] = await owner.rows(target.lane)
                assert (row.lane, row.due_at, row.delivery_id) == (target.lane, target.due_at, target.delivery_id)
                assert (row.event_id, row.attempt, row.born_at, row.part) == (event.event_id, 0, event.created_at, 0)
            bodies = await owner.store.load_events([event.event_id, 12345])
            assert list(bodies) == [event.event_id]
            body = bodies[event.event_id]
            assert body == (event.event_id, "acme", "invoice.paid", "application/json", b"payload", TRACE)

    async def test_an_event_without_targets_is_kept(self) -> None:
        """Nobody subscribes yet: the event is accepted all the same, and its key counts."""
        async with self.owned() as owner:
            event = owner.event(key="k")
            await owner.enqueue(event)
            assert event.event_id in await owner.store.load_events([event.event_id])
            [again] = await owner.enqueue(owner.event(1, key="k"))
            assert again == EnqueueResult(event.event_id, duplicate=True, conflict=False)

    async def test_an_id_that_is_another_events_is_a_conflict_and_names_itself(self) -> None:
        """Publishers without a node draw ids at random: of two that meet, none may pass for a repetition and be lost."""
        async with self.owned() as owner:
            event = owner.event()
            others = [replace(owner.event(body=b"other"), event_id=event.event_id), replace(event, tenant="else")]
            await owner.enqueue(event)
            taken = EnqueueResult(event.event_id, duplicate=False, conflict=True)
            assert list(await owner.enqueue(*others)) == [taken, taken]
            fresh = owner.event()
            met = replace(owner.event(body=b"other"), event_id=fresh.event_id)
            results = list(await owner.enqueue(fresh, fresh, met))
            assert [(result.duplicate, result.conflict) for result in results] == [
                (False, False),
                (True, False),
                (False, True),
            ]

    async def test_a_key_used_again_with_the_same_event_is_a_duplicate(self) -> None:
        """A producer that retries gets the first event's id, and nothing is delivered twice."""
        async with self.owned() as owner:
            first = owner.event(1, key="order-7")
            await owner.enqueue(first)
            again = owner.event(1, key="order-7")
            assert await owner.enqueue(again) == [EnqueueResult(first.event_id, True, False)]
            assert len(await owner.rows(first.targets[0].lane)) == 1

    async def test_a_key_used_again_with_another_event_is_a_conflict(self) -> None:
        """Type, content type and every byte of the body count."""
        async with self.owned() as owner:
            first = owner.event(1, key="order-7", body=b"a")
            await owner.enqueue(first)
            conflict = EnqueueResult(first.event_id, False, True)
            others = (
                owner.event(1, key="order-7", body=b"b"),
                owner.event(1, key="order-7", body=b"a", type="invoice.void"),
                owner.event(1, key="order-7", body=b"a", content_type="text/plain"),
            )
            assert await owner.enqueue(*others) == [conflict] * 3
            assert len(await owner.rows(first.targets[0].lane)) == 1

    async def test_keys_of_different_tenants_have_nothing_to_do_with_each_other(self) -> None:
        """Also where tenant and key would join to the same text."""
        async with self.owned() as owner:
            events = [
                owner.event(1, key="bc", tenant="a", body=b"1"),
                owner.event(2, key="c", tenant="ab", body=b"2"),
            ]
            results = await owner.enqueue(*events)
            assert [(result.duplicate, result.conflict) for result in results] == [(False, False)] * 2

    async def test_repeats_within_one_batch_are_told_apart(self) -> None:
        """Coalesced requests may hold the same key twice."""
        async with self.owned() as owner:
            first = owner.event(1, key="k", body=b"1")
            same = owner.event(1, key="k", body=b"1")
            other = owner.event(1, key="k", body=b"2")
            results = await owner.enqueue(first, same, other, first)
            assert results == [
                EnqueueResult(first.event_id, False, False),
                EnqueueResult(first.event_id, True, False),
                EnqueueResult(first.event_id, False, True),
                EnqueueResult(first.event_id, True, False),
            ]
            assert len(await owner.rows(first.targets[0].lane)) == 1

    async def test_an_enqueue_of_unknown_outcome_can_be_repeated(self) -> None:
        """The same call twice stores once, with and without a key, also after the delivery is over."""
        async with self.owned() as owner:
            events = (owner.event(1), owner.event(1, key="k"))
            await owner.enqueue(*events)
            lane = events[0].targets[0].lane
            for _ in range(2):
                results = await owner.enqueue(*events)
                assert results == [EnqueueResult(event.event_id, True, False) for event in events]
            assert len(await owner.rows(lane)) == 2
            await owner.settle(owner.done(*await owner.rows(lane)))
            await owner.enqueue(*events)
            assert await owner.rows(lane) == []

    async def test_concurrent_enqueues_with_one_key_store_one_event(self) -> None:
        """I7: whatever the interleaving."""
        async with self.owned() as owner:
            events = [owner.event(1, key=f"k{number % 5}") for number in range(50)]
            results = [result for [result] in await asyncio.gather(*(owner.enqueue(event) for event in events))]
            assert sum(not result.duplicate for result in results) == 5
            assert len({result.event_id for result in results}) == 5
            assert len(await owner.rows(lane_of(1, 0))) == 5

    async def test_many_events_at_once(self) -> None:
        """Batches longer than any statement."""
        async with self.owned() as owner:
            events = [owner.event(number % 7 + 1, key=f"k{number}") for number in range(777)]
            results = await owner.enqueue(*events)
            assert [result.event_id for result in results] == [event.event_id for event in events]
            found = [row for number in range(1, 8) for row in await owner.rows(lane_of(number, 0))]
            assert sorted(row.event_id for row in found) == [event.event_id for event in events]
            await owner.settle(owner.done(*found))
            assert (await owner.store.totals()).waiting == 0

    # -- fan-outs too large for one transaction

    @staticmethod
    def wide(owner: Owner, *first: int, key: str | None = None) -> tuple[NewEvent, FanOut]:
        """An event with more targets than are stored with it, and its cursor."""
        event = owner.event(*first, key=key)
        cursor = FanOut(event.event_id, 0, event.tenant, event.type, 0, owner.now, max(first, default=0))
        return replace(event, fan_out=cursor), cursor

    async def test_a_fan_out_is_extended_until_it_is_done(self) -> None:
        """Each portion adds rows that are as good as those stored with the event, and moves the cursor."""
        async with self.owned() as owner:
            event, cursor = self.wide(owner, 1, 2)
            await owner.enqueue(event)
            assert list(await owner.store.fan_outs([0], 10)) == [cursor]
            later = owner.event(3, 4, 5).targets
            assert await owner.store.extend(cursor, later[:2], 4)
            assert list(await owner.store.fan_outs([0], 10)) == [cursor._replace(after=4)]
            assert await owner.store.extend(cursor._replace(after=4), later[2:], None)
            assert list(await owner.store.fan_outs([0], 10)) == []
            for number, target in zip((1, 2, 3, 4, 5), (*event.targets, *later), strict=True):
                [row] = await owner.rows(lane_of(number, 0))
                assert row == (target.lane, target.due_at, target.delivery_id, event.event_id, 0, event.created_at, 0)
            assert await owner.store.backlog_of(event.tenant) == 5
            assert {(0, lane_of(number, 0)) for number in range(1, 6)} <= set(await owner.store.discover([0]))
            page = await owner.store.deliveries(DeliveryFilter(event_id=event.event_id), None, 10)
            assert len(page.items) == 5
            [row] = await owner.rows(lane_of(5, 0))
            await owner.settle(owner.dead(row))
            letter = await owner.store.dead_letter(row.delivery_id)
            assert letter is not None
            assert letter.body == event.body

    async def test_a_cursor_moves_once_from_where_it_stands(self) -> None:
        """Of two that expand the same fan-out, one is refused and stores nothing; no endpoint gets an event twice."""
        async with self.owned() as owner:
            event, cursor = self.wide(owner)
            await owner.enqueue(event)
            portions = [owner.event(1, 2).targets for _ in range(4)]
            moved = await asyncio.gather(*(owner.store.extend(cursor, targets, 2) for targets in portions))
            assert sorted(moved) == [False, False, False, True]
            assert [len(await owner.rows(lane_of(number, 0))) for number in (1, 2)] == [1, 1]
            assert not await owner.store.extend(cursor._replace(event_id=cursor.event_id + 1), portions[0], None)
            assert await owner.store.extend(cursor._replace(after=2), (), None), "nobody is left: the cursor just goes"
            assert not await owner.store.extend(cursor._replace(after=2), portions[0], None)
            assert (await owner.store.totals()).waiting == 2

    async def test_fan_outs_are_listed_by_part_the_oldest_event_first(self) -> None:
        """A tenant's events are expanded in their order."""
        async with self.owned() as owner:
            cursors = []
            for number in range(4):
                event, cursor = self.wide(owner, number + 1)
                await owner.enqueue(event)
                cursors.append(cursor)
            assert list(await owner.store.fan_outs([0], 10)) == cursors
            assert list(await owner.store.fan_outs([0], 2)) == cursors[:2]
            assert list(await owner.store.fan_outs([], 10)) == []

    async def test_a_repeated_event_begins_no_second_fan_out(self) -> None:
        """Neither by its id nor by its key, also when the first one is done."""
        async with self.owned() as owner:
            event, cursor = self.wide(owner, 1, key="k")
            await owner.enqueue(event)
            again, _ = self.wide(owner, 1, key="k")
            assert [result.duplicate for result in await owner.enqueue(event, again)] == [True, True]
            assert list(await owner.store.fan_outs([0], 10)) == [cursor]
            assert await owner.store.extend(cursor, (), None)
            assert [result.duplicate for result in await owner.enqueue(event, again)] == [True, True]
            assert list(await owner.store.fan_outs([0], 10)) == []

    async def test_retention_keeps_an_event_until_its_fan_out_is_done(self) -> None:
        """Its deliveries need the body, whenever they are made."""
        async with self.owned() as owner:
            event, cursor = self.wide(owner, 1)
            await owner.enqueue(event)
            await owner.settle(owner.done(*await owner.rows(lane_of(1, 0))))
            owner.clock.advance(8 * DAY)
            await self.maintain(owner)
            assert event.event_id in await owner.store.load_events([event.event_id])
            assert await owner.store.extend(cursor, owner.event(2).targets, None)
            await self.maintain(owner)
            assert event.event_id in await owner.store.load_events([event.event_id])
            await owner.settle(owner.done(*await owner.rows(lane_of(2, 0))))
            owner.clock.advance(8 * DAY)
            await self.maintain(owner)
            assert event.event_id not in await owner.store.load_events([event.event_id])

    # -- what is learned about endpoints

    async def test_what_was_learned_about_endpoints_is_kept(self) -> None:
        """Opaque bytes by endpoint; a later value replaces an earlier one, an empty one takes it away, what was never kept is
        left out."""
        async with self.owned() as owner:
            learned = {number: bytes([number % 256]) * 40 for number in range(1, 200)}
            await owner.store.save_states(learned)
            await owner.store.save_states({7: b"newer", 300: b"", 8: b""})
            del learned[8]
            assert await owner.store.load_states(range(1, 400)) == {**learned, 7: b"newer"}
            assert await owner.store.load_states([7, 999]) == {7: b"newer"}
            await owner.store.save_states({7: b"", 9: b""})
            assert await owner.store.load_states([7, 9, 10]) == {10: learned[10]}
            assert await owner.store.load_states([]) == {}

    # -- ownership

    async def test_a_part_has_one_owner(self) -> None:
        """A second node gets nothing while the first keeps beating."""
        async with self.owned() as owner:
            for _ in range(4):
                owner.clock.advance(PART_LEASE / 2)
                mine = await owner.store.heartbeat(Node("node-a"), {0: owner.epoch}, 0)
                assert mine.leases[0].epoch == owner.epoch
                assert 0 < mine.leases[0].valid_for <= PART_LEASE
                assert (await owner.store.heartbeat(Node("node-b"), {}, 1)).leases == {}

    async def test_a_part_that_is_not_renewed_can_be_taken_with_a_higher_epoch(self) -> None:
        """I6: after a crash others go on; the old owner learns that it lost."""
        async with self.owned() as owner:
            owner.clock.advance(PART_LEASE + 1)
            other = await owner.store.heartbeat(Node("node-b"), {}, 1)
            assert other.leases[0].epoch > owner.epoch
            late = await owner.store.heartbeat(Node("node-a"), {0: owner.epoch}, 0)
            assert (late.leases, late.lost) == ({}, frozenset({0}))

    async def test_a_released_part_can_be_taken_at_once(self) -> None:
        """Drain hands over without waiting; a stale release changes nothing."""
        async with self.owned() as owner:
            await owner.store.release({0: owner.epoch - 1})
            assert (await owner.store.heartbeat(Node("node-b"), {}, 1)).leases == {}
            await owner.store.release({0: owner.epoch})
            assert 0 in (await owner.store.heartbeat(Node("node-b"), {}, 1)).leases

    async def test_a_node_that_restarts_under_its_name_gets_a_new_epoch(self) -> None:
        """What it read before must not count any more."""
        async with self.owned() as owner:
            again = await owner.store.heartbeat(Node("node-a"), {}, 1)
            assert again.leases[0].epoch > owner.epoch

    async def test_the_heartbeat_tells_the_stores_time(self) -> None:
        """Due times follow the store's clock."""
        async with self.owned() as owner:
            assert (await owner.store.heartbeat(Node("node-a"), {0: owner.epoch}, 0)).store_time == owner.now

    async def test_nodes_get_different_numbers(self) -> None:
        """Two processes must not make the same ids."""
        async with self.owned() as owner:
            numbers = [await owner.store.new_node() for _ in range(20)]
            assert len(set(numbers)) == 20
            assert all(0 <= number < 4_096 for number in numbers)

    # -- reading

    async def test_rows_come_in_order_of_due_time_and_never_early(self) -> None:
        """I9; `next_due` says when to look again."""
        async with self.owned() as owner:
            events = [owner.event(1, due_in=delay) for delay in (30, 10, 0, 20)]
            await owner.enqueue(*events)
            lane = lane_of(1, 0)
            [found] = await owner.store.peek([LaneWant(lane, 10, 0)], owner.now)
            assert [row.event_id for row in found.rows] == [events[2].event_id]
            assert found.next_due == owner.now + 10 * SECOND
            owner.clock.advance(20)
            [found] = await owner.store.peek([LaneWant(lane, 10, 0)], owner.now)
            assert [row.event_id for row in found.rows] == [events[at].event_id for at in (2, 1, 3)]
            assert found.next_due == owner.now + 10 * SECOND

    async def test_a_limit_cuts_and_the_rest_is_announced(self) -> None:
        """A row beyond the limit is due already: `next_due` is in the past or now."""
        async with self.owned() as owner:
            await owner.enqueue(*[owner.event(1) for _ in range(5)])
            [found] = await owner.store.peek([LaneWant(lane_of(1, 0), 3, 0)], owner.now)
            assert len(found.rows) == 3
            assert found.next_due is not None
            assert found.next_due <= owner.now
            [found] = await owner.store.peek([LaneWant(lane_of(1, 0), 5, 0)], owner.now)
            assert (len(found.rows), found.next_due) == (5, None)

    async def test_a_low_water_mark_leaves_earlier_rows_out(self) -> None:
        """The owner holds those already; reading them again would be waste."""
        async with self.owned() as owner:
            early, late = owner.event(1), owner.event(1, due_in=5)
            await owner.enqueue(early, late)
            owner.clock.advance(10)
            rows = await owner.rows(lane_of(1, 0), low_water=early.targets[0].due_at + 1)
            assert [row.event_id for row in rows] == [late.event_id]
            future = owner.now + 100 * SECOND
            [found] = await owner.store.peek([LaneWant(lane_of(1, 0), 10, future)], owner.now)
            assert (list(found.rows), found.next_due) == ([], None)

    async def test_one_answer_per_want_in_the_order_asked(self) -> None:
        """Empty lanes included, and a lane may be asked for twice."""
        async with self.owned() as owner:
            await owner.enqueue(owner.event(3))
            lanes = [lane_of(9, 0), lane_of(3, 0), lane_of(3, 0)]
            found = await owner.store.peek([LaneWant(lane, 4, 0) for lane in lanes], owner.now)
            assert [answer.lane for answer in found] == lanes
            assert [len(answer.rows) for answer in found] == [0, 1, 1]
            assert await owner.store.peek([], owner.now) == []

    async def test_every_lane_with_rows_is_discovered(self) -> None:
        """I10: also lanes whose rows lie in the future, and not those of other parts."""
        async with self.owned() as owner:
            await owner.enqueue(owner.event(1), owner.event(2, due_in=3_600), owner.event(3, sub=SUB_FIFO_FIRST))
            expected = {(0, lane_of(1, 0)), (0, lane_of(2, 0)), (0, lane_of(3, SUB_FIFO_FIRST))}
            assert expected <= set(await owner.store.discover([0]))
            assert await owner.store.discover([]) == []

    # -- settling

    async def test_a_delivered_row_is_gone_for_good(self) -> None:
        """I1; and the log says so."""
        async with self.owned() as owner:
            await owner.enqueue(owner.event(1))
            [row] = await owner.rows(lane_of(1, 0))
            await owner.settle(owner.done(row))
            assert await owner.rows(lane_of(1, 0)) == []
            [attempt] = await owner.store.attempts_of(row.delivery_id)
            assert attempt == owner.attempt(row)

    async def test_a_retry_moves_the_row_and_keeps_its_window(self) -> None:
        """I9: not before its new time, with one attempt more."""
        async with self.owned() as owner:
            await owner.enqueue(owner.event(1))
            [row] = await owner.rows(lane_of(1, 0))
            owner.clock.advance(2)
            await owner.settle(owner.retry(row, delay=60))
            assert await owner.rows(lane_of(1, 0)) == []
            owner.clock.advance(60)
            [again] = await owner.rows(lane_of(1, 0))
            assert again == row._replace(due_at=owner.now, attempt=1)

    async def test_a_retry_may_stay_in_its_place(self) -> None:
        """A FIFO lane keeps its order: only the attempt number rises."""
        async with self.owned() as owner:
            await owner.enqueue(owner.event(1, sub=SUB_FIFO_FIRST))
            lane = lane_of(1, SUB_FIFO_FIRST)
            [row] = await owner.rows(lane)
            stay = SettleBatch({0: owner.epoch}, retry=[RetryRow(key_of(row), 0, 0, 1, row.due_at)])
            await owner.settle(stay)
            await owner.settle(stay)
            assert await owner.rows(lane) == [row._replace(attempt=1)]

    async def test_a_batch_settled_twice_changes_nothing_more(self) -> None:
        """I8: a commit of unknown outcome is simply repeated."""
        async with self.owned() as owner:
            await owner.enqueue(*[owner.event(1) for _ in range(40)])
            rows = await owner.rows(lane_of(1, 0))
            for batch in (owner.done(*rows[:20]), owner.retry(*rows[20:30]), owner.dead(*rows[30:])):
                await owner.settle(batch)
                before = (await owner.store.totals(), await owner.store.lane_stats([lane_of(1, 0)]))
                await owner.settle(batch)
                assert before[0] == replace(await owner.store.totals(), size_bytes=before[0].size_bytes)
                assert before[1] == await owner.store.lane_stats([lane_of(1, 0)])
            totals = await owner.store.totals()
            assert (totals.waiting, totals.dead, totals.attempts) == (10, 10, 40)
            assert await owner.store.backlog_of("acme") == 10

    async def test_a_row_that_moved_on_is_not_touched(self) -> None:
        """Key and attempt must be as they were read."""
        async with self.owned() as owner:
            await owner.enqueue(owner.event(1))
            [row] = await owner.rows(lane_of(1, 0))
            owner.clock.advance(1)
            await owner.settle(owner.retry(row, delay=0))
            [moved] = await owner.rows(lane_of(1, 0))
            for stale in (owner.done(row), owner.retry(row), owner.dead(row)):
                await owner.settle(replace(stale, attempts=()))
            wrong_attempt = replace(owner.retry(moved._replace(attempt=5)), attempts=())
            await owner.settle(wrong_attempt)
            assert await owner.rows(lane_of(1, 0)) == [moved]
            assert (await owner.store.totals()).dead == 0

    async def test_a_stale_owner_can_only_report_success(self) -> None:
        """I8: its retries and dead letters are not applied, it learns that it is fenced, what it delivered is delivered."""
        async with self.owned() as old:
            await old.enqueue(*[old.event(1) for _ in range(3)])
            rows = await old.rows(lane_of(1, 0))
            old.clock.advance(PART_LEASE + 1)
            new = await Owner.take(old.store, old.clock, "node-b")
            for batch in (old.retry(rows[0]), old.dead(rows[1]), old.done(rows[2])):
                assert (await old.settle(batch)).fenced == frozenset({0})
            assert await new.rows(lane_of(1, 0)) == rows[:2]
            assert (await new.settle(new.done(*rows[:2]))).fenced == frozenset()
            assert await new.rows(lane_of(1, 0)) == []

    async def test_attempts_that_used_up_no_number_are_all_logged(self) -> None:
        """A cancelled attempt leaves its number to the next one; the log is in order of time."""
        async with self.owned() as owner:
            await owner.enqueue(owner.event(1))
            [row] = await owner.rows(lane_of(1, 0))
            log = []
            for outcome in ("cancelled", "cancelled", "response"):
                owner.clock.advance(1)
                log.append(owner.attempt(row, outcome, None))
                await owner.settle(SettleBatch({0: owner.epoch}, attempts=[log[-1]]))
            assert await owner.store.attempts_of(row.delivery_id) == log

    async def test_settles_that_wait_together_are_all_answered(self) -> None:
        """Group commit must not mix them up."""
        async with self.owned() as owner:
            await owner.enqueue(*[owner.event(number, key=str(number)) for number in range(1, 61)])
            rows = [row for number in range(1, 61) for row in await owner.rows(lane_of(number, 0))]
            batches = [owner.done(row) if row.lane % 3 else owner.retry(row) for row in rows]
            await asyncio.gather(*(owner.settle(batch) for batch in batches))
            retried = sum(not row.lane % 3 for row in rows)
            assert (await owner.store.totals()).waiting == retried

    # -- depth

    async def test_depth_and_backlog_follow_every_change(self) -> None:
        """What limits and metrics are made of."""
        async with self.owned() as owner:
            await owner.enqueue(*[owner.event(1) for _ in range(6)], owner.event(2, tenant="other"))
            lane = lane_of(1, 0)
            rows = await owner.rows(lane)
            [stat] = await owner.store.lane_stats([lane])
            assert stat == (lane, 6, rows[0].due_at)
            assert (await owner.store.lane_stats([lane], depth_cap=4))[0].depth == 4
            await owner.settle(owner.done(rows[0]))
            await owner.settle(owner.dead(rows[1]))
            await owner.settle(owner.retry(rows[2]))
            await owner.store.cancel(DeliveryFilter(), rows[3].delivery_id, 1)
            assert (await owner.store.lane_stats([lane]))[0].depth == 3
            assert [await owner.store.backlog_of(name) for name in ("acme", "other", "nobody")] == [3, 1, 0]
            assert await owner.store.lane_stats([lane_of(99, 0)]) == [(lane_of(99, 0), 0, None)]

    # -- outbox

    async def test_outbox_rows_wait_until_they_are_enqueued(self) -> None:
        """In the order they came, complete, and gone with the commit that fans them out."""
        async with self.owned() as owner:
            events = [owner.outbox_event(body=bytes([number]), trace=TRACE if number else None) for number in range(3)]
            await owner.store.outbox_put(events)
            found = await owner.store.outbox_peek(10)
            assert found == [replace(event, outbox_id=event.event_id) for event in events]
            assert await owner.store.outbox_peek(2) == found[:2]
            first = found[0]
            target = Target(lane_of(1, 0), 0, owner.ids.next(), owner.now)
            fanned_out = replace(
                owner.event(), event_id=first.event_id, body=first.body, targets=(target,), outbox_id=first.outbox_id
            )
            await owner.enqueue(fanned_out)
            assert await owner.store.outbox_peek(10) == found[1:]
            assert (await owner.store.totals()).outbox == 2

    async def test_an_outbox_row_put_twice_is_one(self) -> None:
        """A publisher repeats a put of unknown outcome."""
        async with self.owned() as owner:
            event = owner.outbox_event()
            await owner.store.outbox_put([event])
            await owner.store.outbox_put([event])
            assert len(await owner.store.outbox_peek(10)) == 1

    async def test_a_duplicate_leaves_the_outbox_and_a_conflict_waits_to_be_dropped(self) -> None:
        """The dispatcher first says what went wrong, then drops it."""
        async with self.owned() as owner:
            await owner.enqueue(owner.event(1, key="k", body=b"1"))
            await owner.store.outbox_put([owner.outbox_event("k", b"1"), owner.outbox_event("k", b"2")])
            rows = await owner.store.outbox_peek(10)
            results = await owner.enqueue(
                *[
                    replace(owner.event(1, key="k", body=row.body), event_id=row.event_id, outbox_id=row.outbox_id)
                    for row in rows
                ]
            )
            assert [(result.duplicate, result.conflict) for result in results] == [(True, False), (False, True)]
            assert await owner.store.outbox_peek(10) == rows[1:]
            await owner.store.outbox_drop([rows[1].outbox_id])
            assert await owner.store.outbox_peek(10) == []

    async def test_a_waiter_hears_of_new_outbox_rows(self) -> None:
        """At once for the first call, then when something was put; a cancelled wait loses nothing."""
        async with self.owned() as owner:
            async with asyncio.timeout(5):
                await owner.store.wait_outbox()
            waiter = asyncio.ensure_future(owner.store.wait_outbox())
            await asyncio.sleep(0)
            waiter.cancel()
            await asyncio.gather(waiter, return_exceptions=True)
            waiter = asyncio.ensure_future(owner.store.wait_outbox())
            await owner.store.outbox_put([owner.outbox_event()])
            async with asyncio.timeout(5):
                await waiter

    # -- closing

    async def test_a_closed_store_says_so(self) -> None:
        """And closing twice is no error."""
        async with self.owned() as owner:
            await owner.store.ping()
            await owner.store.aclose()
            await owner.store.aclose()
            for call in (
                owner.store.ping(),
                owner.enqueue(owner.event(1)),
                owner.store.peek([LaneWant(lane_of(1, 0), 1, 0)], 0),
                owner.settle(SettleBatch({0: owner.epoch})),
            ):
                try:
                    await call
                except StoreError:
                    continue
                raise AssertionError("a closed store must raise StoreError")
