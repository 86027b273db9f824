"""Drives the scheduler: starts attempts, reads lanes, hears of results. The only place where the queue in memory meets tasks.

It decides nothing: `dispatch.scheduler` says what starts and what is read, leases say whether anything may start at all.
Event-driven: whatever may have made room pokes it, and one turn per loop iteration does all there is to do; with nothing to do
it costs nothing. It is the `Keeper` of operators' calls and the `Desk` of attempts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gatepost.clock import Clock
from gatepost.delivery.decide import OUR_FAULT_DELAY
from gatepost.dispatch.attempt import AttemptRunner
from gatepost.dispatch.bodies import Bodies
from gatepost.dispatch.catalogue import Listed
from gatepost.dispatch.leases import STRICT_BUDGET_MAX, LeaseKeeper
from gatepost.dispatch.loop_lag import LoopLag
from gatepost.dispatch.notices import Notices
from gatepost.dispatch.round import Start
from gatepost.dispatch.scheduler import LaneScheduler
from gatepost.dispatch.settle import Result, SettleBuffer
from gatepost.dispatch.store_time import StoreTime
from gatepost.dispatch.tasks import TaskSet
from gatepost.errors import StoreError
from gatepost.store.port import DeliveryStore
from gatepost.store.rows import (
    POKE_PART_FREE,
    POKE_ROWS_GONE,
    DeadRow,
    DeliveryFilter,
    DoneRow,
    Poke,
    Row,
    endpoint_of,
    lane_of,
)

READ_RETRY: Final = 0.5
"""Seconds before a read that the store did not answer is repeated."""
POKE_RETRY: Final = 0.5
"""Seconds before listening for pokes again after the session was lost."""
POKE_PAUSE: Final = 0.005
"""Seconds between one message of pokes and the next: the first goes at once, under load one says what would have been three."""
POKES_WAITING_MAX: Final = 10_000
"""Pokes that wait while one message is on its way; beyond it they are left to polling."""
HELD_BACK: Final = 0.2
"""Seconds before a row is offered again whose part had no right to start it: a heartbeat is under way, or the part is going."""
SETTLE_PATIENCE: Final = 10.0
"""Seconds a drain waits for a store that does not take the last results; they are attempted again after the next start."""

_log = logging.getLogger("gatepost.dispatch")


@dataclass(slots=True)
class WorkerCounts:
    """Since the start."""

    started: int = 0
    delivered: int = 0
    retried: int = 0
    dead: int = 0
    deferred: int = 0


class Worker:
    """One process' share of the queue. Nothing starts before `open_gate`, and nothing after `shut_gate`."""

    def __init__(
        self,
        store: DeliveryStore,
        scheduler: LaneScheduler,
        leases: LeaseKeeper,
        settle: SettleBuffer,
        tasks: TaskSet,
        bodies: Bodies,
        lag: LoopLag,
        notices: Notices,
        store_time: StoreTime,
        clock: Clock,
        slots: int,
        disable: Callable[[str, str, int], Awaitable[bool]],
        mark_verified: Callable[[str, int], Awaitable[bool]],
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._leases = leases
        self._settle = settle
        self._tasks = tasks
        self._bodies = bodies
        self._lag = lag
        self._notices = notices
        self._store_time = store_time
        self._clock = clock
        self._slots = slots
        self._disable = disable
        self._mark_verified = mark_verified
        self.runner: AttemptRunner | None = None
        """Set once, by whoever wires both: attempts report to this worker."""
        self.counts = WorkerCounts()
        self._open = False
        self._poked = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._reading = asyncio.Event()
        self._flying: dict[Start, float] = {}
        self._disabling: set[int] = set()
        self._verifying: set[int] = set()
        self._quiet_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._part_waiters: list[asyncio.Future[None]] = []
        self._pokes: dict[tuple[int, int], Poke] = {}
        self._poking = False
        self._shared = scheduler.ordered_by_store = store.capabilities.shared
        scheduler.unsure = leases.unseen

    @property
    def in_flight(self) -> int:
        """Attempts under way."""
        return self._scheduler.in_flight

    @property
    def oldest_seconds(self) -> float:
        """Age of the oldest attempt under way."""
        started = next(iter(self._flying.values()), None)
        return 0.0 if started is None else self._clock.monotonic() - started

    # ---------------------------------------------------------------------------------------------- the turn

    def open_gate(self) -> None:
        """Start whatever is due from now on."""
        self._open = True
        self.poke()

    def shut_gate(self) -> None:
        """Start nothing more."""
        self._open = False

    def poke(self) -> None:
        """Something may be able to start or be read: have a turn in this iteration of the loop."""
        if not self._poked:
            self._poked = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._poked = False
        scheduler = self._scheduler
        now = self._store_time()
        scheduler.tick(now)
        idle = scheduler.take_idle()
        if idle:
            self._settle.add_idle(idle, self._leases.epochs)
        if self._open and self._leases.safe:
            scheduler.limit = self._lag.ceiling(self._slots)
            # What is taken here is asked for its right to start once more when its attempt is about to begin.
            while not self._bodies.full and (start := scheduler.take(now)) is not None:
                self._begin(start)
            if scheduler.has_wants:
                self._reading.set()
        self._arm()

    def _begin(self, start: Start) -> None:
        assert self.runner is not None, "wired before the gate opens"
        self.counts.started += 1
        if not self._flying:
            self._lag.wake()
        self._flying[start] = self._clock.monotonic()
        # The part may have been lost since the row was read; then its epoch is unknown and the result will be fenced.
        epoch = self._leases.epochs.get(start.row.part, 0)
        self._tasks.start(self._attempt(self.runner, start, epoch))

    async def _attempt(self, runner: AttemptRunner, start: Start, epoch: int) -> None:
        try:
            await runner.run(start, epoch)
        finally:
            if start in self._flying:  # it failed where it should not; the slots must come back all the same
                self._give_up(start)

    def _give_up(self, start: Start) -> None:
        self.finished(start)
        self.deferred(start, self._store_time() + round(OUR_FAULT_DELAY * 1e6))

    def _arm(self) -> None:
        """Have a turn when the next timer of the scheduler comes up. A turn too early does no harm."""
        when = self._scheduler.next_at()
        if when is None or (self._timer is not None and self._timer_at <= when):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        delay = max(0.0, (when - self._store_time()) / 1e6)
        self._timer = asyncio.get_running_loop().call_later(delay, self._timed_turn)

    def _timed_turn(self) -> None:
        self._timer = None
        self.poke()

    # ----------------------------------------------------------------------------------------------- reading

    async def read_lanes(self) -> None:
        """Read what the scheduler wants, one batch of lanes at a time, until cancelled."""
        while True:
            await self._reading.wait()
            self._reading.clear()
            while self._open and self._leases.safe:
                asked_at = self._store_time()
                wants = self._scheduler.wants(asked_at)
                if not wants:
                    break
                try:
                    results = await self._store.peek(wants, asked_at)
                except BaseException as error:
                    self._scheduler.read_failed(wants)
                    if not isinstance(error, StoreError):
                        raise
                    self._notices.trouble("store_unreadable", error)
                    await asyncio.sleep(READ_RETRY)
                    continue
                self._scheduler.read(results, asked_at, self._store_time())
                self.poke()

    async def adopt(self, parts: Collection[int]) -> None:
        """Parts were won: find their lanes."""
        now, monotonic = self._store_time(), self._clock.monotonic()
        waits = {part: self._leases.strict_from(part) - monotonic for part in parts}
        strict = {part: now + round(wait * 1e6) for part, wait in waits.items() if wait > 0}
        if strict:
            self._scheduler.hold_strict(strict)
        await self.rediscover(parts)

    async def rediscover(self, parts: Collection[int]) -> None:
        """Find lanes that nobody told us of. Raises `StoreError`."""
        works_on = self._leases.works_on
        lanes = [found for found in await self._store.discover(parts) if works_on(found[0])]
        self._scheduler.adopt(lanes, self._store_time())
        self.poke()

    async def recheck(self) -> None:
        """Read every lane that may hold rows: a poke may have been lost. Raises `StoreError`."""
        works_on = self._leases.works_on
        parts = [part for part in self._leases.epochs if works_on(part)]
        lanes = [found for found in await self._store.discover(parts) if works_on(found[0])]
        self._scheduler.recheck(lanes, self._store_time())
        self.poke()

    def drop(self, parts: Collection[int]) -> None:
        """Parts were lost, or are being given back."""
        self._scheduler.drop_parts(parts, self._store_time())
        self._tell_quiet()

    def outstanding(self, part: int) -> int:
        """Attempts of a part in flight or not settled."""
        return self._scheduler.outstanding_of(part)

    async def wait_part_quiet(self, parts: Collection[int]) -> None:
        """Until nothing of at least one of these parts is outstanding; at once when none is given."""
        while parts and all(self._scheduler.outstanding_of(part) for part in parts):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._part_waiters.append(waiter)
            await waiter

    # ------------------------------------------------------------------------------- rows that others stored

    def hand_over(self, rows: Sequence[Row]) -> None:
        """Rows that were just stored. The owners of those that are not ours hear of them."""
        works_on = self._leases.works_on
        mine = rows if all(works_on(row.part) for row in rows) else [row for row in rows if works_on(row.part)]
        if mine:
            self._scheduler.hand_over(mine, self._store_time())
            self.poke()
        if self._shared and len(mine) < len(rows):
            self.tell_owners(row for row in rows if not works_on(row.part))

    def tell_owners(self, rows: Iterable[Row]) -> None:
        """Poke whoever owns these rows' parts."""
        self._send_pokes(Poke(row.part, row.lane, row.due_at) for row in rows)

    def rows_gone(self, endpoints: Collection[int]) -> None:
        """Rows of these endpoints were removed from the store: their owners must forget what they hold of them."""
        parts = self._store.capabilities.parts
        self._send_pokes(
            Poke(number % parts, lane_of(number, 0), POKE_ROWS_GONE)
            for number in endpoints
            if not self._leases.works_on(number % parts)
        )

    def _send_pokes(self, pokes: Iterable[Poke]) -> None:
        """One message for all that is stored in one go, and for what comes while it is on its way."""
        if not self._shared:
            return
        waiting = self._pokes
        for poke in pokes:
            key = (poke.part, poke.lane)
            known = waiting.get(key)
            if known is None:
                if len(waiting) >= POKES_WAITING_MAX:
                    break
                waiting[key] = poke
            elif poke.due_at < known.due_at:
                waiting[key] = poke
        if waiting and not self._poking:
            self._poking = True
            self._tasks.start(self._poke_others())

    async def _poke_others(self) -> None:
        try:
            while self._pokes:
                pokes, self._pokes = list(self._pokes.values()), {}
                await self._store.poke(pokes)
                await asyncio.sleep(POKE_PAUSE)
        except StoreError as error:
            self._pokes.clear()
            self._notices.trouble("pokes_lost", error)  # the owners look by themselves
        finally:
            self._poking = False

    async def take_pokes(self) -> None:
        """Hear of rows that other processes stored, until cancelled. No longer being able to hear is to have lost the session."""
        while True:
            try:
                pokes = await self._store.wait_pokes()
            except StoreError as error:
                self._leases.session_lost()
                self._notices.trouble("session_lost", error)
                await asyncio.sleep(POKE_RETRY)
                continue
            now = self._store_time()
            for poke in pokes:
                if poke.lane == POKE_PART_FREE:
                    self._leases.look_now()
                elif not self._leases.works_on(poke.part):
                    continue
                elif poke.due_at == POKE_ROWS_GONE:
                    self._scheduler.reread(endpoint_of(poke.lane))
                else:
                    self._scheduler.expect(poke.part, poke.lane, poke.due_at, now)
            self.poke()

    # ------------------------------------------------------------------------------- Desk: attempts report here

    def finished(self, start: Start) -> None:
        """The attempt is over."""
        del self._flying[start]
        self._scheduler.finish(start, self._store_time())
        self.poke()
        if self._idle_waiters and not self._flying:
            _wake_all(self._idle_waiters)

    def right_until(self, start: Start, epoch: int, budget: float) -> float | None:
        """Monotonic seconds until which this attempt may start; 0.0: not now. None: nobody could take its part from us.

        `budget`: seconds that an attempt on a FIFO lane may take, since it must end while the part is ours.
        """
        part, leases = start.row.part, self._leases
        if part in leases.unseen:
            return 0.0  # what is known of its endpoints is not read yet: a held one would be tried, and its state forgotten
        until = leases.right_until(part, epoch)
        if not until or not self._shared:
            return None if until else 0.0
        if start.lane.fifo:
            now = self._clock.monotonic()
            if now < leases.strict_from(part):
                return 0.0
            if until - now < min(budget, STRICT_BUDGET_MAX - 1.0):
                leases.renew_now()
                return 0.0
        return until

    def held_back(self, start: Start) -> None:
        """The attempt had no right to start: its row waits as it was."""
        self.finished(start)
        self.deferred(start, self._store_time() + round(HELD_BACK * 1e6))

    def deferred(self, start: Start, until: int) -> None:
        """The row waits as it was."""
        self.counts.deferred += 1
        self._scheduler.deferred(start, until, self._store_time())
        self._tell_quiet()

    def result(self, result: Result) -> None:
        """To be stored."""
        self._settle.add(result)

    def disable(self, listed: Listed, code: str) -> None:
        """Disable an endpoint, once for however many attempts say so."""
        if listed.number not in self._disabling:
            self._disabling.add(listed.number)
            self._tasks.start(self._disable_endpoint(listed, code))

    async def _disable_endpoint(self, listed: Listed, code: str) -> None:
        try:
            if await self._disable(listed.endpoint.id, code, listed.endpoint.generation):
                self._notices.disabled(listed.endpoint.tenant, listed.endpoint.id, code)
        except Exception as error:  # noqa: BLE001 - the next attempt that says so tries again
            self._notices.trouble("endpoint_not_disabled", error)
        finally:
            self._disabling.discard(listed.number)

    def verified(self, listed: Listed) -> None:
        """Note that an endpoint's certificate was right, once for however many attempts say so."""
        if listed.number not in self._verifying:
            self._verifying.add(listed.number)
            self._tasks.start(self._verify_endpoint(listed))

    async def _verify_endpoint(self, listed: Listed) -> None:
        try:
            await self._mark_verified(listed.endpoint.id, listed.endpoint.generation)
        except Exception as error:  # noqa: BLE001 - the next attempt that says so tries again
            self._notices.trouble("endpoint_not_verified", error)
        finally:
            self._verifying.discard(listed.number)

    def event_missing(self, start: Start) -> None:
        """Only damage to the store can do this: there is nothing to send, and nothing to keep."""
        self._notices.trouble("event_missing", f"delivery {start.row.delivery_id} has no event and is cancelled")
        self._tasks.start(self._cancel_missing(start))

    async def _cancel_missing(self, start: Start) -> None:
        where = DeliveryFilter(endpoint=endpoint_of(start.row.lane))
        try:
            await self._store.cancel(where, start.row.delivery_id, 1)
        finally:
            self._scheduler.settled(start, self._store_time())
            self._tell_quiet()

    # ----------------------------------------------------------------------------- what the store has taken

    def stored(self, results: Sequence[Result]) -> None:
        """These results are durable."""
        scheduler, counts, now = self._scheduler, self.counts, self._store_time()
        for result in results:
            start = result.start
            if start is None:
                continue
            if result.rejected:
                scheduler.abandoned(start)
            elif result.due is not None:
                counts.retried += 1
                attempt = getattr(result.change, "next_attempt", start.row.attempt + 1)
                scheduler.retried(start, attempt, result.due, now)
            elif isinstance(result.change, DoneRow):
                counts.delivered += 1
                scheduler.delivered(start, now)
            else:
                counts.dead += isinstance(result.change, DeadRow)
                scheduler.settled(start, now)
        self._tell_quiet()
        self.poke()

    # ------------------------------------------------------------------------------ Keeper: operators ask here

    def hold_back(self, endpoint: int) -> None:
        """Start and read nothing of an endpoint until as many `let_go`."""
        self._scheduler.hold_back(endpoint, self._store_time())

    def let_go(self, endpoint: int) -> None:
        """End of one `hold_back`."""
        self._scheduler.let_go(endpoint, self._store_time())
        self.poke()

    async def wait_quiet(self, endpoint: int) -> None:
        """Until nothing of the endpoint is in flight or unsettled."""
        while self._scheduler.busy_with(endpoint):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._quiet_waiters.append((endpoint, waiter))
            await waiter

    def forget(self, delivery_ids: Collection[int]) -> None:
        """These rows are gone from the store."""
        self._scheduler.forget(delivery_ids, self._store_time())

    def expect(self, part: int, lane: int, due_at: int) -> None:
        """A row was added to a lane."""
        if self._leases.works_on(part):
            self._scheduler.expect(part, lane, due_at, self._store_time())
            self.poke()
        else:
            self._send_pokes([Poke(part, lane, due_at)])

    def endpoint_changed(self, number: int) -> None:
        """The catalogue has something new about an endpoint."""
        self._scheduler.endpoint_changed(number, self._store_time())
        self.poke()

    def host_changed(self, host: str) -> None:
        """What a host's breaker allows has changed."""
        self._scheduler.host_changed(host)
        self.poke()

    def _tell_quiet(self) -> None:
        if self._part_waiters:
            _wake_all(self._part_waiters)
        if self._quiet_waiters:
            still = []
            for endpoint, waiter in self._quiet_waiters:
                if self._scheduler.busy_with(endpoint):
                    still.append((endpoint, waiter))
                elif not waiter.done():
                    waiter.set_result(None)
            self._quiet_waiters = still

    # ------------------------------------------------------------------------------------------------- drain

    async def drain(self, grace: float) -> int:
        """Stop starting, wait for attempts up to `grace` seconds, end the rest, and store what is left to store.

        Returns how many attempts were cut short. Their rows are untouched and start again with the next owner.
        """
        self.shut_gate()
        cut = 0
        if await _within(self._wait_idle(), grace):
            await _within(self._tasks.wait_empty(), SETTLE_PATIENCE)  # errands such as disabling an endpoint
        else:
            cut = len(self._flying)
            _log.warning("%d attempts are cut short after %g s of grace; they will be made again", cut, grace)
        await self.cut()
        if not await _within(self._settle.flush(), SETTLE_PATIENCE):
            _log.error("%d results could not be stored; their deliveries will be made again", len(self._settle))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return cut

    async def cut(self) -> None:
        """End what is in flight now."""
        self.shut_gate()
        self._tasks.cancel()
        await self._tasks.wait_empty()
        for start in list(self._flying):  # cancelled before its first step
            self._give_up(start)

    async def _wait_idle(self) -> None:
        while self._flying:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(waiter)
            await waiter


def _wake_all(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()


async def _within(work: Awaitable[None], seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return False
    return True
