"""The operators' half of the store contract: looking, cancelling, dead letters, retention. See `store_contract`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from gatepost.delivery.ids import ENDPOINT, encode_id
from gatepost.delivery.records import ApiKey, Endpoint, Tenant
from gatepost.store.rows import (
    SUB_BULK,
    SUB_HIGH,
    Backlog,
    DeadFilter,
    DeadLetter,
    DeliveryFilter,
    DeliveryInfo,
    Retention,
    SettleBatch,
    TenantPurge,
    lane_of,
)
from gatepost.testing.contract_queue import DAY, ContractBase
from gatepost.testing.store_builder import SECOND, Owner

ERASED = tuple(field.name for field in fields(TenantPurge) if field.name != "more")
"""The counts of a `TenantPurge`, in its order."""


class OperatorContract(ContractBase):
    """Deliveries by endpoint, tenant, event and state; cancel, replay, purge, retention."""

    @staticmethod
    async def all_pages(owner: Owner, where: DeliveryFilter, limit: int = 3) -> list[DeliveryInfo]:
        """Every page to the last."""
        items: list[DeliveryInfo] = []
        after: str | None = None
        while True:
            page = await owner.store.deliveries(where, after, limit)
            assert len(page.items) <= limit
            items += page.items
            if page.next is None:
                return items
            after = page.next

    @staticmethod
    async def all_dead(owner: Owner, where: DeadFilter, limit: int = 3) -> list[DeadLetter]:
        """Every page to the last."""
        items: list[DeadLetter] = []
        after: str | None = None
        while True:
            page = await owner.store.dead_letters(where, after, limit)
            assert len(page.items) <= limit
            items += page.items
            if page.next is None:
                return items
            after = page.next

    @staticmethod
    async def one_in_each_state(owner: Owner) -> dict[str, int]:
        """Delivery ids by state, all of endpoint 1."""
        await owner.enqueue(*[owner.event(1) for _ in range(4)])
        waiting, delivered, dead, cancelled = await owner.rows(lane_of(1, 0))
        await owner.settle(owner.done(delivered))
        await owner.settle(owner.dead(dead))
        await owner.store.cancel(DeliveryFilter(), cancelled.delivery_id, 1)
        rows = {"waiting": waiting, "delivered": delivered, "dead": dead, "cancelled": cancelled}
        return {state: row.delivery_id for state, row in rows.items()}

    # -- looking

    async def test_a_delivery_is_found_whatever_became_of_it(self) -> None:
        """By id and in every list, with its state."""
        async with self.owned() as owner:
            ids = await self.one_in_each_state(owner)
            for state, number in ids.items():
                info = await owner.store.delivery(number)
                assert info is not None
                assert (info.delivery_id, info.state, info.endpoint, info.tenant) == (number, state, 1, "acme")
                assert info.event_type == "invoice.paid"
                assert (info.due_at is not None) == (state == "waiting")
                for where in (
                    DeliveryFilter(endpoint=1, state=info.state),
                    DeliveryFilter(tenant="acme", state=info.state),
                    DeliveryFilter(event_id=info.event_id),
                ):
                    assert await self.all_pages(owner, where) == [info]
            assert await owner.store.delivery(4711) is None

    async def test_a_delivery_shows_its_last_attempt(self) -> None:
        """Number, outcome, status and when."""
        async with self.owned() as owner:
            await owner.enqueue(owner.event(1))
            accepted = owner.now
            [row] = await owner.rows(lane_of(1, 0))
            info = await owner.store.delivery(row.delivery_id)
            assert info is not None
            assert (info.attempts, info.last_outcome, info.last_status, info.updated_at) == (0, None, None, accepted)
            owner.clock.advance(1)
            await owner.settle(owner.retry(row, delay=0))
            info = await owner.store.delivery(row.delivery_id)
            assert info is not None
            expected = (1, "read_timeout", None, owner.now, owner.now + 1_000)
            assert expected == (info.attempts, info.last_outcome, info.last_status, info.due_at, info.updated_at)
            [row] = await owner.rows(lane_of(1, 0))
            owner.clock.advance(1)
            await owner.settle(owner.done(row))
            info = await owner.store.delivery(row.delivery_id)
            assert info is not None
            assert (info.attempts, info.last_outcome, info.last_status) == (2, "response", 200)

    async def test_lists_come_newest_first_page_by_page(self) -> None:
        """Nothing left out, nothing twice, over all sub-lanes and endpoints."""
        async with self.owned() as owner:
            events = [owner.event(number % 3 + 1, sub=SUB_HIGH if number % 2 else 0) for number in range(20)]
            await owner.enqueue(*events)
            ids = [event.targets[0].delivery_id for event in events]
            found = await self.all_pages(owner, DeliveryFilter(tenant="acme"))
            assert [info.delivery_id for info in found] == ids[::-1]
            for state in (None, "waiting"):
                of_one = await self.all_pages(owner, DeliveryFilter(endpoint=2, state=state))
                assert [info.delivery_id for info in of_one] == ids[1::3][::-1]
            wide = owner.event(*range(1, 8))
            await owner.enqueue(wide)
            of_event = await self.all_pages(owner, DeliveryFilter(event_id=wide.event_id))
            assert [info.delivery_id for info in of_event] == [t.delivery_id for t in wide.targets][::-1]

    async def test_lists_are_narrowed_by_type_and_time(self) -> None:
        """What a support engineer knows of a missing event: its type, and about when; a time alone will do for a list."""
        async with self.owned() as owner:
            events = []
            for number in range(12):
                owner.clock.advance(60)
                events.append(owner.event(number % 2 + 1, type="a.b" if number % 3 else "c.d", created_at=owner.now))
            await owner.enqueue(*events)
            for row in (await owner.rows(lane_of(1, 0)))[:3]:
                await owner.settle(owner.done(row))
            start, end = events[3].created_at, events[9].created_at

            def expected(where: DeliveryFilter) -> list[int]:
                chosen = [
                    event.targets[0].delivery_id
                    for place, event in enumerate(events)
                    if where.endpoint in (None, event.targets[0].lane >> 8)
                    and where.event_type in (None, event.type)
                    and (where.accepted_from or 0) <= event.created_at < (where.accepted_before or 1 << 62)
                    and where.state in (None, "delivered" if place in (0, 2, 4) else "waiting")
                ]
                return chosen[::-1]

            for state in (None, "waiting", "delivered"):
                for event_type in (None, "c.d", "never"):
                    for tenant, endpoint in (("acme", None), (None, 1), ("acme", 1), (None, None)):
                        for since, before in ((start, end), (None, end), (start, None)):
                            where = DeliveryFilter(tenant, endpoint, None, state, event_type, since, before)
                            found = await self.all_pages(owner, where)
                            assert [info.delivery_id for info in found] == expected(where), where
            other = DeliveryFilter(tenant="other", accepted_from=start)
            assert await self.all_pages(owner, other) == []

    async def test_the_newest_attempts_at_an_endpoint_are_all_found(self) -> None:
        """Prompt or late, retried or given up, old deliveries or new ones: what the endpoint did last is what its page shows."""
        async with self.owned() as owner:
            expected: list[tuple[int, int]] = []

            async def settle(batch: SettleBatch) -> None:
                await owner.settle(batch)
                expected.extend((row.started_at, row.delivery_id) for row in batch.attempts if row.endpoint == 1)

            for number in range(30):
                await owner.enqueue(owner.event(1), owner.event(2))
                owner.clock.advance(1 if number % 5 else 30)
                rows = await owner.rows(lane_of(1, 0))
                match number % 6:
                    case 0 | 1 | 2:
                        await settle(owner.done(rows[-1]))
                    case 3:
                        await settle(owner.retry(rows[0], delay=5))
                    case 4:
                        await settle(owner.dead(rows[0]))
                    case _:
                        await settle(owner.done(*await owner.rows(lane_of(2, 0), 1)))
            expected.sort(reverse=True)
            for limit in (1, 4, 100):
                found = await owner.store.newest_attempts(1, limit)
                assert [(row.started_at, row.delivery_id) for row in found] == expected[:limit]
            assert [row.response for row in await owner.store.newest_attempts(1, 2)] == [b"ok", b"ok"]
            assert await owner.store.newest_attempts(3, 10) == []

    async def test_what_waits_for_an_endpoint_is_counted_over_its_lanes(self) -> None:
        """Up to a cap, with the time since when the oldest is due; an endpoint without a backlog is not named."""
        async with self.owned() as owner:
            first = owner.now
            await owner.enqueue(
                owner.event(1, 2), owner.event(1, sub=SUB_BULK, due_in=60), owner.event(2, sub=SUB_HIGH)
            )
            [row] = await owner.rows(lane_of(2, SUB_HIGH))
            await owner.settle(owner.done(row))
            await owner.settle(owner.done(*await owner.rows(lane_of(2, 0))))
            assert dict(await owner.store.backlogs([1, 2, 3])) == {1: Backlog(2, first)}
            assert (await owner.store.backlogs([1], 1))[1].depth == 1
            assert dict(await owner.store.backlogs([])) == {}

    async def test_tenants_see_only_their_own(self) -> None:
        """Whatever else the filter names."""
        async with self.owned() as owner:
            mine, other = owner.event(1), owner.event(2, tenant="other")
            await owner.enqueue(mine, other)
            for where in (
                DeliveryFilter(tenant="acme", endpoint=2),
                DeliveryFilter(tenant="acme", event_id=other.event_id),
                DeliveryFilter(tenant="nobody"),
                DeliveryFilter(tenant="acme", endpoint=1, event_id=other.event_id),
            ):
                assert await self.all_pages(owner, where) == []
            assert len(await self.all_pages(owner, DeliveryFilter(tenant="acme"))) == 1

    async def test_a_list_of_everything_and_a_foreign_cursor_are_refused(self) -> None:
        """Both would be mistakes of the caller."""
        async with self.owned() as owner:
            for where, after, limit in (
                (DeliveryFilter(), None, 10),
                (DeliveryFilter(state="dead"), None, 10),
                (DeliveryFilter(tenant="acme"), "nonsense", 10),
                (DeliveryFilter(tenant="acme"), None, 0),
            ):
                try:
                    await owner.store.deliveries(where, after, limit)
                except ValueError:
                    continue
                raise AssertionError(f"{where}, {after!r}, {limit} must be refused")

    # -- cancelling

    async def test_cancelling_takes_what_waits_and_nothing_else(self) -> None:
        """By endpoint, in chunks, until none is left."""
        async with self.owned() as owner:
            ids = await self.one_in_each_state(owner)
            await owner.enqueue(*[owner.event(1, due_in=number) for number in range(5)], owner.event(2))
            gone: list[int] = []
            while chunk := await owner.store.cancel(DeliveryFilter(endpoint=1), None, 2):
                assert len(chunk) <= 2
                gone += chunk
            assert len(set(gone)) == len(gone) == 6
            assert ids["waiting"] in gone
            assert len(await owner.rows(lane_of(2, 0))) == 1
            cancelled = await self.all_pages(owner, DeliveryFilter(endpoint=1, state="cancelled"))
            assert {info.delivery_id for info in cancelled} == {*gone, ids["cancelled"]}
            assert all(info.updated_at == owner.now for info in cancelled)
            assert await owner.store.backlog_of("acme") == 1

    async def test_one_delivery_is_cancelled_only_for_its_tenant(self) -> None:
        """The filter holds for a single id as well."""
        async with self.owned() as owner:
            await owner.enqueue(owner.event(1))
            [row] = await owner.rows(lane_of(1, 0))
            assert list(await owner.store.cancel(DeliveryFilter(tenant="other"), row.delivery_id, 1)) == []
            assert list(await owner.store.cancel(DeliveryFilter(tenant="acme"), row.delivery_id, 1)) == [
                row.delivery_id
            ]
            assert list(await owner.store.cancel(DeliveryFilter(tenant="acme"), row.delivery_id, 1)) == []

    async def test_a_result_that_comes_after_the_cancellation_changes_nothing(self) -> None:
        """I1: the delivery is in one state only."""
        async with self.owned() as owner:
            await owner.enqueue(*[owner.event(1) for _ in range(3)])
            rows = await owner.rows(lane_of(1, 0))
            await owner.store.cancel(DeliveryFilter(endpoint=1), None, 10)
            for batch in (owner.done(rows[0]), owner.retry(rows[1]), owner.dead(rows[2])):
                await owner.settle(batch)
            states = {info.state for info in await self.all_pages(owner, DeliveryFilter(endpoint=1))}
            assert states == {"cancelled"}
            assert await owner.store.backlog_of("acme") == 0

    # -- dead letters

    async def test_a_dead_letter_keeps_its_own_copy(self) -> None:
        """What would have been sent, and why it was not."""
        async with self.owned() as owner:
            event = owner.event(1, body=b"precious")
            await owner.enqueue(event)
            [row] = await owner.rows(lane_of(1, 0))
            await owner.settle(owner.dead(row, why="gone"))
            letter = await owner.store.dead_letter(row.delivery_id)
            assert letter == DeadLetter(
                row.delivery_id,
                event.event_id,
                "acme",
                1,
                "invoice.paid",
                "application/json",
                1,
                "gone",
                "response",
                500,
                owner.now,
                b"precious",
            )
            [listed] = (await owner.store.dead_letters(DeadFilter(), None, 10)).items
            assert (listed.delivery_id, listed.body) == (row.delivery_id, b"")
            assert await owner.store.dead_letter(4711) is None

    async def make_dead(self, owner: Owner, count: int = 12) -> Sequence[int]:
        """Dead letters of two endpoints, types, reasons and tenants, one a second; their delivery ids."""
        ids = []
        for number in range(count):
            owner.clock.advance(1)
            event = owner.event(
                number % 2 + 1,
                tenant="acme" if number % 2 else "other",
                type=f"type.{number % 3}",
                body=bytes([number]),
            )
            await owner.enqueue(event)
            [row] = await owner.rows(event.targets[0].lane)
            await owner.settle(owner.dead(row, why=f"why{number % 4}"))
            ids.append(row.delivery_id)
        return ids

    async def test_dead_letters_are_listed_by_every_filter(self) -> None:
        """Newest death first, page by page."""
        async with self.owned() as owner:
            begin = owner.now
            ids = await self.make_dead(owner)
            for where, expected in (
                (DeadFilter(), ids),
                (DeadFilter(endpoint=1), ids[::2]),
                (DeadFilter(tenant="acme"), ids[1::2]),
                (DeadFilter(event_type="type.1"), ids[1::3]),
                (DeadFilter(why="why3"), ids[3::4]),
                (DeadFilter(tenant="acme", endpoint=1), []),
                (DeadFilter(tenant="acme", why="why1", event_type="type.2"), ids[5:6]),
                (DeadFilter(delivery_id=ids[4]), ids[4:5]),
                (DeadFilter(delivery_id=ids[4], tenant="acme"), []),
                (DeadFilter(died_from=begin + 4 * SECOND, died_before=begin + 8 * SECOND), ids[3:7]),
            ):
                found = await self.all_dead(owner, where)
                assert [letter.delivery_id for letter in found] == list(expected)[::-1], where

    async def test_replay_puts_dead_letters_back_at_the_rate_asked(self) -> None:
        """I11: same ids, a new window, the bulk lane, oldest first."""
        async with self.owned() as owner:
            ids = await self.make_dead(owner, 6)
            first_due = owner.now + 10 * SECOND
            moved: list[tuple[int, int, int]] = []
            while chunk := await owner.store.replay(DeadFilter(endpoint=1), first_due + len(moved) * SECOND, SECOND, 2):
                moved += chunk
            lane = lane_of(1, SUB_BULK)
            assert moved == [(0, lane, first_due + at * SECOND) for at in range(3)]
            assert await owner.rows(lane) == []
            owner.clock.advance(30)
            rows = await owner.rows(lane)
            assert [row.delivery_id for row in rows] == list(ids[::2])
            assert all((row.attempt, row.born_at) == (0, row.due_at) for row in rows)
            assert len(await self.all_dead(owner, DeadFilter())) == 3
            assert await owner.store.backlog_of("other") == 3
            info = await owner.store.delivery(ids[0])
            assert info is not None
            assert (info.state, info.attempts) == ("waiting", 0)
            await owner.settle(owner.done(*rows))
            info = await owner.store.delivery(ids[0])
            assert info is not None
            assert info.state == "delivered"

    async def test_a_purged_dead_letter_is_forgotten(self) -> None:
        """I11: in chunks; what is purged cannot be replayed."""
        async with self.owned() as owner:
            ids = await self.make_dead(owner, 6)
            assert await owner.store.purge_dead(DeadFilter(tenant="acme"), 2) == 2
            assert await owner.store.purge_dead(DeadFilter(tenant="acme"), 2) == 1
            assert await owner.store.purge_dead(DeadFilter(tenant="acme"), 2) == 0
            assert await owner.store.delivery(ids[1]) is None
            assert list(await owner.store.replay(DeadFilter(delivery_id=ids[1]), 0, 0, 1)) == []
            assert (await owner.store.totals()).dead == 3

    # -- a tenant that goes

    async def test_a_purged_tenant_leaves_nothing_and_others_lose_nothing(self) -> None:
        """In chunks, until `more` is false: rows first, then its endpoints, keys and record."""
        async with self.owned() as owner:
            store = owner.store
            for tenant, number in (("acme", 1), ("other", 2)):
                await store.put_tenant(Tenant(tenant))
                endpoint = Endpoint(encode_id(ENDPOINT, number), tenant, "https://example.com/")
                await store.create_endpoint(endpoint)
                await store.put_api_key(ApiKey(tenant, tenant.encode() * 8, tenant, "ci", 1))
                events = [owner.event(number, tenant=tenant, key=f"k{n}", due_in=n // 3 * 60) for n in range(6)]
                await owner.enqueue(*events, owner.event(tenant=tenant, key="nobody"))
                await store.outbox_put([owner.outbox_event("o", tenant=tenant)])
                done, dead, _ = await owner.rows(lane_of(number, 0))
                await owner.settle(owner.done(done))
                await owner.settle(owner.dead(dead))
            _, cursor = await store.changes_since(0)
            erased: list[TenantPurge] = []
            while not erased or erased[-1].more:
                erased.append(await store.purge_tenant("acme", 4))
                assert len(erased) < 100
            assert len(erased) > 2
            total = [sum(getattr(purge, name) for purge in erased) for name in ERASED]
            assert total == [6, 7, 2, 1, 1, 7, 1, 1]
            changes, _ = await store.changes_since(cursor)
            assert set(changes) == {("tenant", "acme"), ("endpoint", encode_id(ENDPOINT, 1)), ("api_key", "acme")}
            again = await store.purge_tenant("acme", 4)
            assert again == TenantPurge()

            for where in (DeliveryFilter(tenant="acme"), DeliveryFilter(endpoint=1)):
                assert await self.all_pages(owner, where) == []
            assert await self.all_dead(owner, DeadFilter(tenant="acme")) == []
            assert await store.backlog_of("acme") == 0
            assert await owner.rows(lane_of(1, 0)) == []
            assert (await store.tenant("acme"), await store.endpoint(encode_id(ENDPOINT, 1))) == (None, None)
            assert [event.tenant for event in await store.outbox_peek(10)] == ["other"]
            [result] = await owner.enqueue(owner.event(1, key="k0", body=b"new"))
            assert (result.duplicate, result.conflict) == (False, False), "the key is free again"

            assert len(await self.all_pages(owner, DeliveryFilter(tenant="other"))) == 6
            assert len(await self.all_dead(owner, DeadFilter(tenant="other"))) == 1
            assert await store.backlog_of("other") == 4
            assert await store.endpoint(encode_id(ENDPOINT, 2)) is not None
            assert [key.id for key in await store.api_keys()] == ["other"]
            [result] = await owner.enqueue(owner.event(2, tenant="other", key="k0"))
            assert result.duplicate

    # -- retention

    async def test_what_is_past_its_time_goes_and_what_waits_stays(self) -> None:
        """Bodies are kept as long as a delivery needs them."""
        async with self.owned() as owner:
            done_event, waiting_event = owner.event(1), owner.event(2, due_in=3_600)
            await owner.enqueue(done_event, waiting_event)
            [row] = await owner.rows(lane_of(1, 0))
            await owner.settle(owner.done(row))
            owner.clock.advance(6 * DAY)
            await self.maintain(owner)
            assert len(await owner.store.load_events([done_event.event_id, waiting_event.event_id])) == 2
            assert len(await owner.store.attempts_of(row.delivery_id)) == 1
            owner.clock.advance(2 * DAY)
            await self.maintain(owner)
            assert list(await owner.store.load_events([done_event.event_id, waiting_event.event_id])) == [
                waiting_event.event_id
            ]
            assert list(await owner.store.attempts_of(row.delivery_id)) == []
            assert await owner.store.delivery(row.delivery_id) is None
            assert await self.all_pages(owner, DeliveryFilter(endpoint=1)) == []
            [late] = await owner.rows(lane_of(2, 0))
            await owner.settle(owner.done(late))
            await self.maintain(owner)
            assert await owner.store.delivery(late.delivery_id) is not None
            totals = await owner.store.totals()
            assert (totals.events, totals.attempts, totals.waiting) == (0, 1, 0)

    async def test_a_dead_letter_can_be_replayed_on_its_last_day(self) -> None:
        """Long after its event has gone."""
        async with self.owned() as owner:
            event = owner.event(1, 2, body=b"precious")
            await owner.enqueue(event)
            for endpoint in (1, 2):
                await owner.settle(owner.dead(*await owner.rows(lane_of(endpoint, 0))))
            owner.clock.advance(29.9 * DAY)
            await self.maintain(owner)
            assert await owner.store.load_events([event.event_id]) == {}
            assert len(await owner.store.replay(DeadFilter(), owner.now, 0, 10)) == 2
            await self.maintain(owner)
            for endpoint in (1, 2):
                [row] = await owner.rows(lane_of(endpoint, SUB_BULK))
                body = (await owner.store.load_events([row.event_id]))[row.event_id]
                assert (body.body, body.type, body.tenant) == (b"precious", "invoice.paid", "acme")
                await owner.settle(owner.done(row))
                await self.maintain(owner)

    async def test_dead_letters_expire(self) -> None:
        """With everything that is known of their deliveries."""
        async with self.owned() as owner:
            ids = await self.make_dead(owner, 3)
            owner.clock.advance(30 * DAY + 1)
            report = await owner.store.maintain(Retention(), owner.now, 2)
            assert 1 <= report.dead_letters <= 2
            assert report.more
            await self.maintain(owner)
            assert await self.all_dead(owner, DeadFilter()) == []
            assert await owner.store.delivery(ids[0]) is None
            assert list(await owner.store.attempts_of(ids[0])) == []

    async def test_an_idempotency_key_is_kept_for_its_time_and_then_forgotten(self) -> None:
        """At least the time asked for, at most twice that."""
        await self.key_is_kept_for(DAY)

    async def test_the_time_of_an_idempotency_key_is_the_one_asked_for(self) -> None:
        """An hour here; nothing in an engine may take a day for granted."""
        await self.key_is_kept_for(3_600.0)

    async def key_is_kept_for(self, window: float) -> None:
        """A key lives for one window at least, and is free after two."""
        kept = Retention(idempotency=window)
        async with self.owned() as owner:
            first = owner.event(1, key="k")
            await owner.enqueue(first)
            await self.maintain(owner, kept)
            owner.clock.advance(0.9 * window)
            await self.maintain(owner, kept)
            [result] = await owner.enqueue(owner.event(1, key="k"))
            assert result == (first.event_id, True, False)
            for _ in range(3):
                owner.clock.advance(1.01 * window)
                await self.maintain(owner, kept)
            again = owner.event(1, key="k", body=b"other")
            [result] = await owner.enqueue(again)
            assert result == (again.event_id, False, False)
