"""Keeps this process' parts: renews their leases, takes and gives back its share, and knows until when attempts may start.

Fences itself: the right to start ends by this process' own monotonic clock, a margin before the store gives the part to
somebody else, whether or not the store can be reached to say so; it ends at once when the session is lost by which the others
know that this process lives. It starts nothing and decides no share (`dispatch.share` does). The worker asks before every
start, and hears of parts won, closed and lost through callbacks.

Theory of operation. A part is held (its epoch is in `epochs`) from the heartbeat that won it until it is given back or lost. It
is *working* unless it is being given back; a part that closes starts nothing, and goes when what it had under way is settled.
Every half second a look at the nodes alive tells what to take or give; what is free is taken by a heartbeat at once, others'
renewals are every eight seconds. A part that stays free although its share is somebody else's is taken all the same: that
somebody may hang.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, Protocol

from gatepost.clock import Clock
from gatepost.dispatch.share import Plan, plan_for
from gatepost.dispatch.store_time import SKEW_WARNING_US, StoreTime
from gatepost.errors import StoreError
from gatepost.store.port import DeliveryStore
from gatepost.store.rows import PART_LEASE, POKE_PART_FREE, Heartbeat, Node, NodeInfo, Poke

BEAT: Final = 8.0
"""Seconds between renewals: a lease of 30 s survives two that are lost."""
BEAT_AFTER_FAILURE: Final = 1.0
BEAT_PATIENCE: Final = 5.0
"""Seconds for one heartbeat to a shared store: a connection that hangs must leave time for another before the lease ends."""
LEASE_MARGIN: Final = 2.0
"""Seconds before the end of a lease at which we stop starting: clocks drift, and a start takes a moment."""
STRICT_BUDGET_MAX: Final = PART_LEASE - LEASE_MARGIN
"""Seconds that an attempt on a FIFO lane must stay below: it has to end within the lease it began under."""

LOOK_EVERY: Final = 0.5
"""Seconds between looks for free parts in a fleet: one cheap query, and a drained stop is noticed within it."""
LOOK_HUNGRY: Final = 0.2
"""Seconds between looks of a node that has less than its share: others are about to give parts back."""
LOOK_PAUSE: Final = 0.05
"""Seconds between two looks at least, however many pokes say that something is free."""
WON_AT_ONCE: Final = 64
"""Parts whose lanes are looked for in one go. A store may take longer than a heartbeat's patience for a million lanes: what was
found by then must not be looked for again."""
ORPHAN_LOOKS: Final = 3
"""Looks after which a free part is taken by whoever sees it, whatever the shares: a second and a half."""
GIVE_AT_ONCE: Final = 16
"""Parts closing at once: few endpoints pause at any time, and a thousand parts move within seconds."""

RELEASE_PATIENCE: Final = 5.0
"""Seconds to wait for a store when giving parts back: the end of a process must not hang on it."""
SKEW_REPEAT: Final = 60.0
"""Seconds between warnings that the clocks differ."""

_log = logging.getLogger("gatepost.dispatch")


class PartLoad(Protocol):
    """What is under way by part, as the worker knows it."""

    def outstanding(self, part: int) -> int:
        """Attempts in flight or not settled."""
        ...

    async def wait_part_quiet(self, parts: Collection[int]) -> None:
        """Until nothing of at least one of these parts is outstanding."""
        ...


class _Held:
    __slots__ = ("safe_until", "strict_from")

    def __init__(self) -> None:
        self.safe_until = 0.0
        """Monotonic: nothing may start from then on."""
        self.strict_from = 0.0
        """Monotonic: FIFO lanes start nothing before it."""


class LeaseKeeper:
    """The parts of one process.

    `on_won` hears parts that are now ours to work on, `on_lost` those that are not any more (lost, or closing), `on_renewed` of
    each renewal; `epochs` is what is held.
    """

    def __init__(
        self,
        store: DeliveryStore,
        node: Node,
        clock: Clock,
        store_time: StoreTime,
        on_won: Callable[[Collection[int]], Awaitable[None]],
        on_lost: Callable[[Collection[int]], None],
        on_renewed: Callable[[], None],
    ) -> None:
        self._store = store
        self._node = node
        self._clock = clock
        self._store_time = store_time
        self._on_won = on_won
        self._on_lost = on_lost
        self._on_renewed = on_renewed
        self._shared = store.capabilities.shared
        self._count = store.capabilities.parts
        self.load: PartLoad | None = None
        """Set once, by whoever wires both; only needed where parts are given back."""
        self.epochs: dict[int, int] = {}
        """Part to the epoch under which it is held."""
        self._held: dict[int, _Held] = {}
        self._closing: set[int] = set()
        self.unseen: set[int] = set()
        """Won, and `on_won` has not gone through yet: what waits in them is not known."""
        self._given: dict[int, int] = {}
        """Part to the epoch under which it was given back or lost: an answer under way may still call it ours."""
        self._safe_until = 0.0
        self._suspended = False
        """The session is lost: nothing starts before the store has said again what is ours."""
        self._losses = 0
        """Times it was lost since the start."""
        self._wall_ahead_us = 0
        """Wall clock less monotonic, at the last heartbeat."""
        self._nodes: Sequence[NodeInfo] = ()
        self._introduced = False
        self._announced = node
        self._beat_at = 0.0
        self._orphan_looks = 0
        self._beating = asyncio.Lock()
        self._wake = asyncio.Event()
        self._surplus = asyncio.Event()
        self._skew_warned_at = float("-inf")

    def __repr__(self) -> str:
        return f"<LeaseKeeper {self._node.name} parts={len(self.epochs)} margin={self.seconds_left:.1f}s>"

    # ----------------------------------------------------------------------------------------- what may start

    @property
    def node(self) -> Node:
        """As it introduces itself."""
        return self._node

    @property
    def safe(self) -> bool:
        """Attempts of some part may start."""
        return self._clock.monotonic() < self._safe_until and self._may_start_at_all()

    def works_on(self, part: int) -> bool:
        """The part is ours and not being given back: its rows are ours to hold and to start."""
        return part in self.epochs and part not in self._closing

    def right_until(self, part: int, epoch: int) -> float:
        """Monotonic seconds until which an attempt of this part may start; 0.0 when it may not start now.

        Ask again after every await: the process may have been stopped meanwhile, for any time.
        """
        if self.epochs.get(part) != epoch or part in self._closing or not self._may_start_at_all():
            return 0.0
        until = self._held[part].safe_until
        return until if self._clock.monotonic() < until else 0.0

    def strict_from(self, part: int) -> float:
        """Monotonic seconds before which FIFO lanes of this part start nothing."""
        held = self._held.get(part)
        return 0.0 if held is None else held.strict_from

    @property
    def seconds_left(self) -> float:
        """Seconds until this process fences itself."""
        return 0.0 if self._suspended else max(0.0, self._safe_until - self._clock.monotonic())

    def _may_start_at_all(self) -> bool:
        return self._store_time.trusted and not self._suspended and not self._slept()

    def _slept(self) -> bool:
        """The machine was suspended: its monotonic clock stood still while leases ran on, and only the wall clock shows it."""
        if not self._shared:
            return False
        slept = self._clock.wall_us() - self._clock.monotonic_ns() // 1_000 - self._wall_ahead_us
        if slept < LEASE_MARGIN * 1e6:
            return False
        self.session_lost()
        return True

    # ------------------------------------------------------------------------------------------------ renewing

    async def run(self) -> None:
        """Renew until cancelled. A store that fails is asked again each second; the leases then run out by themselves."""
        while True:
            self._wake.clear()
            pause = BEAT_AFTER_FAILURE
            try:
                if self._shared:
                    async with asyncio.timeout(BEAT_PATIENCE):
                        await self._look()
                    pause = LOOK_EVERY if self.balanced else LOOK_HUNGRY
                else:
                    await self.beat()
                    pause = BEAT if self.epochs else BEAT_AFTER_FAILURE
            except (StoreError, TimeoutError) as error:
                _log.warning("heartbeat failed, %.1f s of the leases are left: %r", self.seconds_left, error)
                await asyncio.sleep(BEAT_AFTER_FAILURE)
                continue
            await self._rest(pause)

    async def _rest(self, seconds: float) -> None:
        """Until something woke us, or the time is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        await asyncio.sleep(LOOK_PAUSE)

    async def _look(self) -> None:
        """Heartbeat if one is due, or if there is something to take; else only look."""
        now = self._clock.monotonic()
        if self._suspended or self.unseen or now >= self._beat_at or self._announced != self._introduction():
            await self.beat()
            return
        self._nodes = await self._store.nodes()
        known = any(info.node.name == self._node.name for info in self._nodes)
        if not known or self._want() > 0:
            await self.beat()
        self._plan_surplus()

    def _introduction(self) -> Node:
        """Who we say that we are. While our clock is not trusted we start nothing, so our share is the others'."""
        return self._node if self._store_time.trusted else replace(self._node, draining=True)

    def _plan(self) -> Plan:
        return plan_for(self._node.name, len(self.epochs), self._nodes, self._count)

    def _want(self) -> int:
        """Parts to take now: of what is free, as many as our share allows."""
        if not self._shared:
            return self._count - len(self.epochs)
        if not self._introduced or self._introduction().draining:
            return 0
        free = self._count - sum(info.parts for info in self._nodes)
        if free <= 0:
            self._orphan_looks = 0
            return 0
        self._orphan_looks += 1
        if self._orphan_looks > ORPHAN_LOOKS:
            return free
        return min(free, self._plan().take)

    async def beat(self) -> None:
        """Renew what is held and take what is free and ours to take. Raises `StoreError`."""
        async with self._beating:  # an answer that overtook another would undo what that one won
            await self._beat()

    async def _beat(self) -> None:
        want = self._want()
        clock = self._clock
        asked_ns = clock.monotonic_ns()
        wall_ahead_us = clock.wall_us() - asked_ns // 1_000
        held, losses = dict(self.epochs), self._losses
        announced = self._introduction()
        beat = await self._store.heartbeat(announced, held, want)
        self._announced = announced
        self._beat_at = asked_ns / 1e9 + BEAT
        self._store_time.correct(beat.store_time, asked_ns)
        self._warn_of_skew()
        self._wall_ahead_us = wall_ahead_us
        self._suspended = self._losses != losses  # lost since the question: ask again
        self._nodes = beat.nodes
        if not self._introduced:
            # The others of a fleet that starts are heard of first, so that nobody takes all and gives most of it back.
            self._introduced = True
        if self._take_over(beat, held, asked_ns / 1e9):
            self._orphan_looks = 0
        while won := list(islice((part for part in self.unseen if self.works_on(part)), WON_AT_ONCE)):
            await self._on_won(won)
            self.unseen.difference_update(won)
        self._plan_surplus()
        self._on_renewed()

    def _take_over(self, beat: Heartbeat, asked: Mapping[int, int], sent_at: float) -> bool:
        """Believe a heartbeat's answer, counted from its sending; True when parts were won."""
        epochs: dict[int, int] = {}
        for part, lease in beat.leases.items():
            if lease.epoch <= self._given.get(part, -1):
                continue  # given back while the question was under way
            held = self._held.get(part)
            if held is None or self.epochs.get(part) != lease.epoch:
                held = self._held[part] = _Held()
            epochs[part] = lease.epoch
            held.safe_until = sent_at + lease.valid_for - LEASE_MARGIN
            held.strict_from = max(held.strict_from, sent_at + lease.strict_in) if lease.strict_in else held.strict_from
        lost = [part for part, epoch in self.epochs.items() if epochs.get(part) != epoch]
        won = [part for part, epoch in epochs.items() if self.epochs.get(part) != epoch]
        self.epochs.clear()
        self.epochs.update(epochs)
        for part in [part for part in self._held if part not in epochs]:
            del self._held[part]
        self._closing.intersection_update(epochs)
        self._closing.difference_update(won)
        self._safe_until = max((held.safe_until for held in self._held.values()), default=0.0)
        if lost:
            self._on_lost(frozenset(lost))
            self.unseen.difference_update(lost)
        self.unseen.update(won)
        return bool(won)

    async def ask_time(self) -> None:
        """Set our idea of the store's clock right without a heartbeat: before the first, and where none is made. Raises
        `StoreError`."""
        asked_ns = self._clock.monotonic_ns()
        self._store_time.correct(await self._store.store_time(), asked_ns)
        self._warn_of_skew()

    def session_lost(self) -> None:
        """The others can no longer tell that we live, and may take our parts: start nothing, and ask at once what is ours."""
        if self._shared:
            self._losses += 1
            if not self._suspended:
                self._suspended = True
                self._wake.set()

    def look_now(self) -> None:
        """Something may be free."""
        self._wake.set()

    def renew_now(self) -> None:
        """An attempt needs more time than the lease has left."""
        self._beat_at = 0.0
        self._wake.set()

    def fenced(self, epochs: Mapping[int, int]) -> None:
        """The store refused results under these epochs: those parts have another owner, whatever the lease says."""
        lost = [part for part, epoch in epochs.items() if self.epochs.get(part) == epoch]
        regained = [part for part, epoch in epochs.items() if self.epochs.get(part, epoch) != epoch]
        for part in lost:
            self._given[part] = self.epochs[part]  # a heartbeat under way may still call it ours
            self._forget(part)
        if lost or regained:
            self._on_lost(frozenset([*lost, *regained]))
        if (
            regained
        ):  # ours again under a newer epoch: what was refused is in the store as it was, and must be read again
            self.unseen.update(regained)
            self.renew_now()
        if lost:
            self.look_now()

    def _forget(self, part: int) -> None:
        del self.epochs[part]
        self._held.pop(part, None)
        self._closing.discard(part)
        self.unseen.discard(part)
        if not self._held:
            self._safe_until = 0.0

    def _warn_of_skew(self) -> None:
        skew = self._store_time.skew_us
        now = self._clock.monotonic()
        if abs(skew) > SKEW_WARNING_US and now - self._skew_warned_at >= SKEW_REPEAT:
            self._skew_warned_at = now
            _log.warning(
                "the store's clock differs from this machine's by %.1f s%s",
                skew / 1e6,
                "" if self._store_time.trusted else ": nothing is signed, and nothing started, until they agree",
            )

    # -------------------------------------------------------------------------------------------- giving back

    @property
    def share(self) -> Plan:
        """What this node should hold, and what it lacks or has too much."""
        return self._plan()

    @property
    def balanced(self) -> bool:
        """The share is reached, and ours to work on."""
        if not self._shared:
            return bool(self.epochs)
        if not self._introduced or self.unseen or self._closing or self._introduction() != self._announced:
            return False
        plan = self._plan()
        return self._store_time.trusted and not plan.give and len(self.epochs) >= plan.share.floor

    @property
    def nodes(self) -> Sequence[NodeInfo]:
        """The nodes alive, at the last look."""
        return self._nodes

    def _plan_surplus(self) -> None:
        if self._shared and not self._node.draining and self._plan().give:
            self._surplus.set()

    async def give_back_surplus(self) -> None:
        """Give parts back that are others' share, each when it is quiet, until cancelled."""
        while True:
            await self._surplus.wait()
            self._surplus.clear()
            while not self._node.draining and (surplus := self._plan().give):
                self._close(min(surplus, GIVE_AT_ONCE) - len(self._closing))
                if not self._closing:
                    break
                if not await self._release_quiet():
                    assert self.load is not None, "wired before parts are given back"
                    await self.load.wait_part_quiet(set(self._closing))
            self._reopen()

    def _close(self, count: int) -> None:
        """Stop starting on `count` more parts, those with the least under way first."""
        if count <= 0:
            return
        load = self.load
        assert load is not None, "wired before parts are given back"
        working = [part for part in self.epochs if part not in self._closing]
        chosen = sorted(working, key=load.outstanding)[:count]
        self._closing.update(chosen)
        self.unseen.difference_update(chosen)
        self._on_lost(frozenset(chosen))

    def _reopen(self) -> None:
        """Nobody wants what is closing any more, or the store would not take it back: go on working on it."""
        if self._closing and not self._node.draining:
            self.unseen.update(self._closing)
            self._closing.clear()
            self.renew_now()

    async def _release_quiet(self) -> bool:
        """Give back what closes and is quiet; False when nothing was, or the store failed."""
        load = self.load
        assert load is not None, "wired before parts are given back"
        quiet = {part: self.epochs[part] for part in self._closing if not load.outstanding(part)}
        if not quiet:
            return False
        try:
            async with asyncio.timeout(RELEASE_PATIENCE):
                self._given.update(quiet)
                await self._store.release(quiet)
        except (StoreError, TimeoutError) as error:
            # It may be done later, when nobody thinks of it any more: under this epoch the parts are not ours again. The next
            # heartbeat gives them up, or takes them under another one.
            self._forget_given(quiet)
            _log.warning("whether %d parts were given back is not known: %r", len(quiet), error)
            await asyncio.sleep(BEAT_AFTER_FAILURE)
            self.renew_now()
            return False
        self._forget_given(quiet)
        await self._tell_free(min(quiet))
        return True

    def _forget_given(self, given: Mapping[int, int]) -> None:
        for part, epoch in given.items():
            if self.epochs.get(part) == epoch:
                self._forget(part)

    async def _tell_free(self, part: int) -> None:
        if not self._shared:
            return
        try:
            async with asyncio.timeout(RELEASE_PATIENCE):
                await self._store.poke([Poke(part, POKE_PART_FREE, 0)])
        except (StoreError, TimeoutError):
            return  # the others look twice a second

    async def drain(self) -> None:
        """Stop working on all parts and give each back as it falls quiet, until all are gone. Cancel it at the end of grace."""
        self._node = replace(self._node, draining=True)
        closing = [part for part in self.epochs if part not in self._closing]
        self._closing.update(closing)
        self.unseen.clear()
        self._on_lost(frozenset(closing))
        try:
            async with asyncio.timeout(BEAT_PATIENCE):
                await self.beat()  # from now on the others count without us
        except (StoreError, TimeoutError) as error:
            _log.warning("the others were not told that this process drains: %r", error)
        while self.epochs:
            if not await self._release_quiet():
                assert self.load is not None, "wired before parts are given back"
                await self.load.wait_part_quiet(set(self._closing))

    async def release(self) -> None:
        """Give all parts back, with nothing in flight or unsettled. A store that fails or hangs lets the leases run out."""
        epochs = dict(self.epochs)
        self._given.update(epochs)
        self.epochs.clear()
        self._held.clear()
        self._closing.clear()
        self.unseen.clear()
        self._safe_until = 0.0
        if not epochs:
            return
        self._on_lost(frozenset(epochs))
        try:
            async with asyncio.timeout(RELEASE_PATIENCE):
                await self._store.release(epochs)
        except (StoreError, TimeoutError) as error:
            _log.warning("parts were not given back, they are free when their leases end: %r", error)
            return
        await self._tell_free(min(epochs))

    def begin(self) -> None:
        """A new run after a drain."""
        self._node = replace(self._node, draining=False)
        self._introduced = False
        self._beat_at = 0.0
