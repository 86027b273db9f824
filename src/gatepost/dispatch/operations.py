"""`dispatcher.deliveries` and `dispatcher.dead_letters`: look into the queue, cancel, replay, purge.

Each call is cut into chunks, so that a million rows never stand in one transaction; what is being removed is held back from
starting first, and what is added is announced to the queue in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from gatepost.delivery.ids import DELIVERY, ENDPOINT, decode_id, encode_id
from gatepost.dispatch.keeper import Keeper
from gatepost.errors import ConfigurationError, NotFound
from gatepost.store.port import DeliveryStore
from gatepost.store.rows import AttemptRow, DeadFilter, DeadLetter, DeliveryFilter, DeliveryInfo, Page

CANCEL_CHUNK: Final = 1_000
COUNTED_MAX: Final = 1_000
"""Dead letters that are counted before somebody is told "or more": for a look, not for a report."""
COUNT_CHUNK: Final = 500
REPLAY_CHUNK: Final = 500
PURGE_CHUNK: Final = 1_000
"""Rows per transaction: a few tens of milliseconds each."""
REPLAY_RATE: Final = 50.0
"""Replayed deliveries a second by default: beside live traffic, not instead of it."""
REPLAY_RATE_MIN: Final = 0.001
"""One in a quarter of an hour: with less, letters would wait for years where nobody looks for them."""
REPLAY_RATE_MAX: Final = 10_000.0
AHEAD_MAX_US: Final = 30 * 86_400 * 1_000_000
"""Microseconds ahead that a portion of a replay may begin: as far as an event may be scheduled."""


class Replayed(NamedTuple):
    """What one portion of a replay moved."""

    moved: int
    next_due: int
    """When the next portion may begin for the rate to hold, in UTC microseconds."""
    died_before: int
    """Later deaths are left alone: letters that die again during a replay must not be taken twice."""
    more: bool
    """There may be more that match."""


StoreTime = Callable[[], int]
Registered = Callable[[int], bool]
"""Whether an endpoint is registered, by its number."""


class Deliveries:
    """Deliveries of any state."""

    def __init__(self, store: DeliveryStore, keeper: Keeper, store_time: StoreTime, registered: Registered) -> None:
        self._store = store
        self._keeper = keeper
        self._store_time = store_time
        self._registered = registered

    async def get(self, delivery_id: str) -> DeliveryInfo:
        """One delivery. Raises `NotFound`."""
        info = await self._store.delivery(_number(delivery_id))
        if info is None:
            raise NotFound(f"there is no delivery {delivery_id[:40]}")
        return info

    async def list(self, where: DeliveryFilter, after: str | None = None, limit: int = 100) -> Page[DeliveryInfo]:
        """Deliveries, newest first; an event, endpoint or tenant must be given."""
        return await self._store.deliveries(where, after, limit)

    async def attempts(self, delivery_id: str) -> Sequence[AttemptRow]:
        """The attempt log of a delivery, oldest first."""
        return await self._store.attempts_of(_number(delivery_id))

    async def cancel(self, where: DeliveryFilter | None = None, *, delivery_id: str | None = None) -> Sequence[int]:
        """Give up waiting deliveries without a dead letter; returns their numbers. An attempt in flight ends first."""
        if delivery_id is not None:
            info = await self.get(delivery_id)
            return await self._cancel(
                DeliveryFilter(endpoint=info.endpoint), info.delivery_id, frozenset({info.endpoint})
            )
        if where is None or (where.tenant is None and where.endpoint is None and where.event_id is None):
            raise ConfigurationError(
                "write what to cancel: delivery_id, or a filter with an event, an endpoint or a tenant"
            )
        return await self._cancel(where, None, await self._endpoints_of(where))

    async def replay(self, delivery_id: str) -> None:
        """Deliver a dead letter again at once, with a new window and the same ids.

        Raises `NotFound` when it is not dead, or its endpoint is gone.
        """
        number = _number(delivery_id)
        letter = await self._store.dead_letter(number)
        if letter is not None:
            _check_registered(letter.endpoint, self._registered)
        moved = await self._store.replay(DeadFilter(delivery_id=number), self._store_time(), 0, 1)
        if not moved:
            raise NotFound(f"there is no dead letter {delivery_id[:40]}: only dead letters are replayed")
        for part, lane, due_at in moved:
            self._keeper.expect(part, lane, due_at)

    async def withdraw(self, endpoint: int) -> int:
        """Cancel everything that waits for an endpoint."""
        return len(await self._cancel(DeliveryFilter(endpoint=endpoint), None, frozenset({endpoint})))

    async def _cancel(self, where: DeliveryFilter, delivery: int | None, endpoints: frozenset[int]) -> Sequence[int]:
        held: list[int] = []
        try:
            for endpoint in endpoints:
                self._keeper.hold_back(endpoint)
                held.append(endpoint)
            for endpoint in endpoints:
                await self._keeper.wait_quiet(endpoint)
            gone: list[int] = []
            while True:
                chunk = await self._store.cancel(where, delivery, CANCEL_CHUNK)
                self._keeper.forget(chunk)
                gone += chunk
                if len(chunk) < CANCEL_CHUNK:
                    return gone
        finally:
            self._keeper.rows_gone(held)
            for endpoint in held:
                self._keeper.let_go(endpoint)

    async def _endpoints_of(self, where: DeliveryFilter) -> frozenset[int]:
        if where.endpoint is not None:
            return frozenset({where.endpoint})
        found: set[int] = set()
        after: str | None = None
        waiting = DeliveryFilter(where.tenant, where.endpoint, where.event_id, "waiting")
        while True:
            page = await self._store.deliveries(waiting, after, CANCEL_CHUNK)
            found.update(info.endpoint for info in page.items)
            after = page.next
            if after is None:
                return frozenset(found)


class DeadLetters:
    """Deliveries that were given up."""

    def __init__(self, store: DeliveryStore, keeper: Keeper, store_time: StoreTime, registered: Registered) -> None:
        self._store = store
        self._keeper = keeper
        self._store_time = store_time
        self._registered = registered

    async def list(self, where: DeadFilter, after: str | None = None, limit: int = 100) -> Page[DeadLetter]:
        """Dead letters without bodies, newest first."""
        return await self._store.dead_letters(where, after, limit)

    async def count(
        self, where: DeadFilter, at_most: int = COUNTED_MAX, *, looks: int | None = None
    ) -> tuple[int, bool]:
        """How many match, and whether that is all of them: counting reads them, and stops at `at_most`, or after so many reads of
        the store (`looks`, None: as many as it takes), each of which passes over some thousands that do not match."""
        found, after, looked = 0, None, 0
        while found < at_most and (looks is None or looked < looks):
            looked += 1
            page = await self._store.dead_letters(where, after, min(COUNT_CHUNK, at_most - found))
            found, after = found + len(page.items), page.next
            if after is None:
                return found, True
        return found, False

    async def get(self, delivery_id: str) -> DeadLetter:
        """One with its body. Raises `NotFound`."""
        letter = await self._store.dead_letter(_number(delivery_id))
        if letter is None:
            raise NotFound(f"there is no dead letter {delivery_id[:40]}")
        return letter

    async def replay(self, where: DeadFilter, rate: float = REPLAY_RATE) -> int:
        """Deliver them again in the bulk lane, their starts spread to `rate` a second; returns how many.

        Raises `NotFound` when `where` names an endpoint that is gone. Letters of endpoints that are gone, where it names none,
        end as dead letters again.
        """
        count, due = 0, None
        while True:
            portion = await self.replay_some(where, rate, not_before=due, limit=REPLAY_CHUNK)
            count += portion.moved
            if not portion.more:
                return count
            where, due = replace(where, died_before=portion.died_before), portion.next_due

    async def replay_some(
        self, where: DeadFilter, rate: float = REPLAY_RATE, *, not_before: int | None = None, limit: int = REPLAY_CHUNK
    ) -> Replayed:
        """A portion of `replay`: up to `limit` letters, the first of them due at `not_before` (UTC microseconds) or now.

        Go on with `died_before` and `next_due` of the portion before. Raises as `replay`.
        """
        if where.endpoint is not None:
            _check_registered(where.endpoint, self._registered)
        if not REPLAY_RATE_MIN <= rate <= REPLAY_RATE_MAX:
            raise ConfigurationError(
                f"rate={rate}: write deliveries per second, {REPLAY_RATE_MIN:g} to {REPLAY_RATE_MAX:.0f}"
            )
        spacing = round(1_000_000 / rate)
        now = self._store_time()
        due = max(now, min(not_before or now, now + AHEAD_MAX_US))
        died_before = min(where.died_before or now, now)
        bounded = replace(where, died_before=died_before)
        count = 0
        while count < limit:
            chunk = min(REPLAY_CHUNK, limit - count)
            moved = await self._store.replay(bounded, due, spacing, chunk)
            for part, lane, due_at in moved:
                self._keeper.expect(part, lane, due_at)
            count += len(moved)
            due += spacing * len(moved)
            if len(moved) < chunk:
                return Replayed(count, due, died_before, more=False)
        return Replayed(count, due, died_before, more=True)

    async def purge(self, where: DeadFilter, limit: int | None = None) -> int:
        """Delete them for good, `limit` at most; returns how many."""
        count = 0
        while limit is None or count < limit:
            chunk = PURGE_CHUNK if limit is None else min(PURGE_CHUNK, limit - count)
            gone = await self._store.purge_dead(where, chunk)
            count += gone
            if gone < chunk:
                break
        return count


def _check_registered(endpoint: int, registered: Registered) -> None:
    if not registered(endpoint):
        raise NotFound(f"endpoint {encode_id(ENDPOINT, endpoint)} is gone: its dead letters can be read, not delivered")


def _number(delivery_id: str) -> int:
    try:
        return decode_id(DELIVERY, delivery_id)
    except ValueError as error:
        raise NotFound(str(error)) from None
