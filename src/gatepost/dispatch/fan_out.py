"""Who gets an event: one target for each endpoint of the tenant that takes its type, a portion at a time when they are many.

The first portion is stored with the event; the rest stands behind a cursor (`FanOut`) that the owner of the cursor's part moves,
a transaction for each portion, until every endpoint that was registered when the event was published has its delivery. It stores
no event and starts nothing. Called by `dispatch.intake`; `run` is a loop of `dispatch.supervisor`.

Theory of operation. The cursor goes through the endpoints in order of their random numbers, so an endpoint that comes or goes
meanwhile moves nobody else's place. It moves in the transaction that adds the deliveries, so a crash repeats or leaves out
nothing. All cursors of a tenant have one owner, which takes them in order of their events. An ordered event that comes while an
ordered fan-out of its tenant is unfinished, whoever began that, queues behind it with all its targets, else it would overtake.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from gatepost.delivery.ids import IdSource, id_time_us
from gatepost.dispatch.catalogue import Catalogue, Listed
from gatepost.dispatch.notices import Notices
from gatepost.errors import StoreError
from gatepost.store.port import DeliveryStore
from gatepost.store.rows import SUB_FIFO_FIRST, FanOut, LaneWant, Row, Target, lane_of, part_of_tenant

PORTION: Final = 500
"""Targets in one transaction: some milliseconds of the store's time."""
PAUSE: Final = 0.005
"""Seconds between portions, in which others' publishes and results are stored."""
POLL_EVERY: Final = 1.0
"""Seconds between looks for cursors that another process stored; our own are begun at once. Also after a store that failed."""
LOOK_EVERY: Final = 30.0
"""Seconds between looks where nobody else stores any: for those that were there when the parts were won."""
CURSORS_MAX: Final = 1_000
"""Cursors read at a time, each a hundred bytes; a tenant with more unfinished fan-outs has others' newer ones behind it."""
ORDERED_FOR_US: Final = 10_000_000
"""Microseconds an ordered fan-out is believed to be on its way into the store although it is not found there: longer than any
publish waits."""
FIRST_STEP: Final = 1_000
"""Rows looked at in one read when the end of a lane is searched."""
FOR_EVER_US: Final = (1 << 63) - 1


class Plan(NamedTuple):
    """Where an event goes."""

    targets: Sequence[Target]
    """Stored with it."""
    rest: FanOut | None
    """The cursor for the others."""
    deliveries: int
    """All of them, also those still to be made."""


NOBODY: Final = Plan((), None, 0)
"""An event that is kept and goes nowhere."""


class FanOuts:
    """Makes plans, and carries out what a plan left over. `store_time` is the store's clock in UTC microseconds."""

    def __init__(
        self,
        store: DeliveryStore,
        catalogue: Catalogue,
        ids: IdSource,
        owned: Callable[[], Collection[int]],
        hand_over: Callable[[Sequence[Row]], None],
        notices: Notices,
        store_time: Callable[[], int],
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._ids = ids
        self._owned = owned
        self._hand_over = hand_over
        self._notices = notices
        self._store_time = store_time
        self._parts = store.capabilities.parts
        self._news = asyncio.Event()
        self._ordered: dict[str, dict[int, int]] = {}
        """By tenant: ordered fan-outs that may be unfinished, and when each was planned."""
        self._floors: dict[int, int] = {}
        """By FIFO lane: no row may be put before this instant, since one waits there (a clock has stepped back)."""

    # --------------------------------------------------------------------------------------------- planning

    def plan(self, event_id: int, tenant: str, event_type: str, sub: int, due_at: int) -> Plan:
        """The targets of a new event; call `look` when its cursor is stored, `dropped` when it is not."""
        takers = self._catalogue.takers(tenant, event_type)
        if sub >= SUB_FIFO_FIRST and tenant in self._ordered:
            return self._plan_behind(event_id, tenant, event_type, sub, due_at, takers)
        if len(takers) <= PORTION:
            return Plan(self._targets(takers, sub, due_at), None, len(takers))
        takers = _registered_before(takers, event_id)
        first, after = takers[:PORTION], takers[PORTION - 1].number
        if len(takers) <= PORTION:
            return Plan(self._targets(takers, sub, due_at), None, len(takers))
        rest = FanOut(event_id, self._part_of(tenant), tenant, event_type, sub, due_at, after)
        self._note_order(rest)
        return Plan(self._targets(first, sub, due_at), rest, len(takers))

    async def learn_order(self, tenants: Collection[str]) -> None:
        """Ask the store for unfinished ordered fan-outs of these tenants: before an ordered event is planned, since another process,
        or an earlier life of this one, may have begun one. Nothing is asked for a tenant too small to have any. Raises `StoreError`.
        """
        large = {
            tenant
            for tenant in tenants
            if tenant not in self._ordered and len(self._catalogue.endpoints_of(tenant)) > PORTION
        }
        if large:
            for fan_out in await self._store.fan_outs({self._part_of(tenant) for tenant in large}, CURSORS_MAX):
                if fan_out.tenant in large and fan_out.sub >= SUB_FIFO_FIRST:
                    # It was seen in the store: once it is not there any more, it is finished.
                    self._ordered.setdefault(fan_out.tenant, {}).setdefault(fan_out.event_id, 0)

    def look(self) -> None:
        """There may be cursors to move: one was stored, or parts were won."""
        self._news.set()

    def dropped(self, rest: FanOut) -> None:
        """The event was not stored."""
        self._forget_order(rest.tenant, rest.event_id)

    def _plan_behind(
        self, event_id: int, tenant: str, event_type: str, sub: int, due_at: int, takers: Sequence[Listed]
    ) -> Plan:
        takers = _registered_before(takers, event_id)
        if not takers:
            return Plan((), None, 0)
        rest = FanOut(event_id, self._part_of(tenant), tenant, event_type, sub, due_at, 0)
        self._note_order(rest)
        return Plan((), rest, len(takers))

    def _targets(self, takers: Sequence[Listed], sub: int, due_at: int) -> list[Target]:
        parts, next_id = self._parts, self._ids.next
        if sub >= SUB_FIFO_FIRST and self._floors:
            return [
                Target(lane, listed.number % parts, next_id(), self._place(lane, due_at))
                for listed in takers
                for lane in (lane_of(listed.number, sub),)
            ]
        return [Target(lane_of(listed.number, sub), listed.number % parts, next_id(), due_at) for listed in takers]

    def _part_of(self, tenant: str) -> int:
        return part_of_tenant(tenant, self._parts)

    # ------------------------------------------------------------------------------------------------ order

    def _note_order(self, rest: FanOut) -> None:
        if rest.sub >= SUB_FIFO_FIRST:
            self._ordered.setdefault(rest.tenant, {})[rest.event_id] = self._store_time()

    def _forget_order(self, tenant: str, event_id: int) -> None:
        known = self._ordered.get(tenant)
        if known is not None:
            known.pop(event_id, None)
            if not known:
                del self._ordered[tenant]

    def _place(self, lane: int, due_at: int) -> int:
        floor = self._floors.get(lane)
        if floor is None:
            return due_at
        if floor < due_at:
            del self._floors[lane]
            return due_at
        self._floors[lane] = floor + 1
        return floor + 1

    async def look_ahead(self) -> None:
        """Learn where FIFO lanes end that reach into the future: the clock has stepped back since their rows were stored.

        New rows go behind those, whatever the clock says now. Costs one probe of each FIFO lane; a store that does not answer
        is taken to hold none.
        """
        try:
            await self._find_floors()
        except StoreError as error:
            self._notices.trouble("store_unreadable", error)

    async def _find_floors(self) -> None:
        now = self._store_time()
        lanes = [lane for _, lane in await self._store.discover(range(self._parts))]
        wants = {lane: now for lane in lanes if lane & 0xFF >= SUB_FIFO_FIRST}
        while wants:
            asked = [LaneWant(lane, FIRST_STEP, low) for lane, low in list(wants.items())[:FIRST_STEP]]
            for found in await self._store.peek(asked, FOR_EVER_US):
                if found.rows:
                    last = found.rows[-1].due_at
                    self._floors[found.lane] = max(last, self._floors.get(found.lane, 0))
                if len(found.rows) == FIRST_STEP and found.rows[-1].due_at > wants[found.lane]:
                    wants[found.lane] = found.rows[-1].due_at
                else:
                    del wants[found.lane]

    # -------------------------------------------------------------------------------------------- expanding

    async def run(self) -> None:
        """Move the cursors of the parts that are ours, until cancelled."""
        while True:
            self._news.clear()
            patience = POLL_EVERY if self._store.capabilities.shared else LOOK_EVERY
            try:
                more = await self._expand_some()
            except StoreError as error:
                self._notices.trouble("fan_out_waits", error)
                more, patience = False, POLL_EVERY
            if not more:
                try:
                    async with asyncio.timeout(patience):
                        await self._news.wait()
                except TimeoutError:
                    pass

    async def _expand_some(self) -> bool:
        """One portion for each tenant that has a cursor here; False when there is none."""
        owned = self._owned()
        parts = {*owned, *(self._part_of(tenant) for tenant in self._ordered)}
        if not parts:
            return False
        found = await self._store.fan_outs(parts, CURSORS_MAX)
        self._check_order(found)
        oldest: dict[str, FanOut] = {}
        for fan_out in found:
            if fan_out.part in owned:
                oldest.setdefault(fan_out.tenant, fan_out)
        if not oldest:
            return False
        # An endpoint that another process registered before the event must be known before the cursor passes its number.
        await self._catalogue.follow()
        for fan_out in oldest.values():
            await self._expand(fan_out)
            await asyncio.sleep(PAUSE)
        return True

    async def _expand(self, fan_out: FanOut) -> None:
        takers = _registered_before(self._catalogue.takers(fan_out.tenant, fan_out.type), fan_out.event_id)
        at = bisect_right(takers, fan_out.after, key=_number)
        portion = takers[at : at + PORTION]
        after = portion[-1].number if at + PORTION < len(takers) else None
        # Due from now on, not from the event: what was due long ago would lie behind where the lane's owner reads.
        targets = self._targets(portion, fan_out.sub, max(fan_out.due_at, self._store_time()))
        if not await self._store.extend(fan_out, targets, after):
            return  # somebody else was first, and goes on
        if after is None:
            self._forget_order(fan_out.tenant, fan_out.event_id)
        if targets:
            self._hand_over(
                [
                    Row(lane, due, number, fan_out.event_id, 0, fan_out.due_at, part)
                    for lane, part, number, due in targets
                ]
            )

    def _check_order(self, found: Sequence[FanOut]) -> None:
        """Forget ordered fan-outs that another process has finished, or that never reached the store."""
        if not self._ordered:
            return
        unfinished = {fan_out.event_id for fan_out in found}
        if len(found) == CURSORS_MAX:
            return  # there may be more of them
        since = self._store_time() - ORDERED_FOR_US
        for tenant, known in list(self._ordered.items()):
            for event_id, planned_at in list(known.items()):
                if event_id not in unfinished and planned_at < since:
                    self._forget_order(tenant, event_id)

    def statistics(self) -> Mapping[str, int]:
        """How many ordered fan-outs are waited for, by tenant."""
        return {tenant: len(known) for tenant, known in self._ordered.items()}


def _number(listed: Listed) -> int:
    return listed.number


def _registered_before(takers: Sequence[Listed], event_id: int) -> Sequence[Listed]:
    """Those that were there when the event was published, in order of number; to the millisecond, as an event id has no more."""
    published = id_time_us(event_id) + 1_000
    return sorted((listed for listed in takers if listed.endpoint.created_at < published), key=_number)
