"""Keeps this process' parts: renews their leases, and knows until when it may start attempts on them.

Fences itself: the right to start ends by this process' own monotonic clock, a margin before the store gives the part to
somebody else, whether or not the store can be reached to say so. The worker asks `safe` before every turn; it hears of parts
won and lost through callbacks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from gatepost.clock import Clock
from gatepost.dispatch.store_time import SKEW_WARNING_US, StoreTime
from gatepost.errors import StoreError
from gatepost.store.port import DeliveryStore
from gatepost.store.rows import Node

BEAT: Final = 8.0
"""Seconds between renewals: a lease of 30 s survives two that are lost."""
BEAT_AFTER_FAILURE: Final = 1.0
LEASE_MARGIN: Final = 2.0
"""Seconds before the end of a lease at which we stop starting: clocks drift, and a start takes a moment."""

RELEASE_PATIENCE: Final = 5.0
"""Seconds to wait for a store when giving parts back: the end of a process must not hang on it."""

_log = logging.getLogger("gatepost.dispatch")


class LeaseKeeper:
    """The parts of one process.

    `on_won` and `on_lost` hear the parts of each change, `on_renewed` of each renewal; `epochs` is what is held.
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
        self._unseen: set[int] = set()
        """Won, and `on_won` has not gone through yet."""
        self._safe_until = 0.0
        self.epochs: dict[int, int] = {}
        """Part to the epoch under which it is held."""

    def __repr__(self) -> str:
        return f"<LeaseKeeper {self._node.name} parts={len(self.epochs)} margin={self.seconds_left:.1f}s>"

    @property
    def safe(self) -> bool:
        """Attempts may start."""
        return self._clock.monotonic() < self._safe_until and self._store_time.trusted

    @property
    def seconds_left(self) -> float:
        """Seconds until this process fences itself."""
        return max(0.0, self._safe_until - self._clock.monotonic())

    async def run(self) -> None:
        """Renew until cancelled. A store that fails is asked again each second; the leases then run out by themselves."""
        while True:
            try:
                await self.beat()
            except StoreError as error:
                _log.warning("heartbeat failed, %.1f s of the leases are left: %s", self.seconds_left, error)
                await asyncio.sleep(BEAT_AFTER_FAILURE)
            else:
                await asyncio.sleep(BEAT if self.epochs else BEAT_AFTER_FAILURE)

    async def beat(self) -> None:
        """Renew what is held and take what is free. Raises `StoreError`."""
        asked_ns = self._clock.monotonic_ns()
        want = self._store.capabilities.parts - len(self.epochs)
        beat = await self._store.heartbeat(self._node, dict(self.epochs), want)
        self._store_time.correct(beat.store_time, asked_ns)
        if abs(self._store_time.skew_us) > SKEW_WARNING_US:
            _log.warning("the store's clock differs from this machine's by %.1f s", self._store_time.skew_us / 1e6)
        epochs = {part: lease.epoch for part, lease in beat.leases.items()}
        lost = [part for part, epoch in self.epochs.items() if epochs.get(part) != epoch]
        won = [part for part, epoch in epochs.items() if self.epochs.get(part) != epoch]
        self.epochs = epochs
        shortest = min((lease.valid_for for lease in beat.leases.values()), default=0.0)
        # Counted from the sending: the store may have counted from any moment after it.
        self._safe_until = asked_ns / 1e9 + shortest - LEASE_MARGIN if epochs else 0.0
        if lost:
            self._on_lost(lost)
        self._unseen.update(won)
        self._unseen.intersection_update(epochs)
        if self._unseen:
            await self._on_won(self._unseen)
            self._unseen = set()
        self._on_renewed()

    def fenced(self, parts: Collection[int]) -> None:
        """The store said that these parts have another owner: they are lost now, whatever the lease says."""
        lost = [part for part in parts if self.epochs.pop(part, None) is not None]
        if lost:
            self._on_lost(lost)

    async def release(self) -> None:
        """Give all parts back, with nothing in flight or unsettled. A store that fails or hangs lets the leases run out."""
        epochs, self.epochs = self.epochs, {}
        self._safe_until = 0.0
        self._on_lost(list(epochs))
        try:
            async with asyncio.timeout(RELEASE_PATIENCE):
                await self._store.release(epochs)
        except (StoreError, TimeoutError) as error:
            _log.warning("parts were not given back, they are free when their leases end: %r", error)
