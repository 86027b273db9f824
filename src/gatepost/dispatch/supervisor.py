"""Runs the loops of a dispatcher and ends them in order: stop starting, wait, settle, give the parts back.

It owns every long-lived task of `dispatch` and restarts one that fails; it knows nothing of deliveries. Called by
`dispatch.dispatcher`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from gatepost.dispatch.catalogue import Catalogue
from gatepost.dispatch.endpoint_memory import EndpointMemory
from gatepost.dispatch.leases import BEAT, LeaseKeeper
from gatepost.dispatch.limits import DispatchLimits
from gatepost.dispatch.loop_lag import LoopLag
from gatepost.dispatch.maintenance import Maintenance
from gatepost.dispatch.notices import Notices
from gatepost.dispatch.settle import SettleBuffer
from gatepost.dispatch.tasks import keep_running
from gatepost.dispatch.worker import Worker
from gatepost.errors import StoreError
from gatepost.store.port import DeliveryStore

IDLE_WARNING: Final = 10.0
"""Seconds after which due work that nobody runs is worth a warning: a forgotten `run()` looks like lost events."""
FOLLOW_EVERY: Final = 1.5
"""Seconds between looks at the registry's changes (the contract is two)."""

_log = logging.getLogger("gatepost.dispatch")


class Supervisor:
    """The lifetime of one dispatcher's loops."""

    def __init__(
        self,
        store: DeliveryStore,
        catalogue: Catalogue,
        worker: Worker,
        leases: LeaseKeeper,
        settle: SettleBuffer,
        maintenance: Maintenance,
        lag: LoopLag,
        notices: Notices,
        followers: Mapping[str, Callable[[], Awaitable[None]]],
        expand: Callable[[], Awaitable[None]],
        memory: EndpointMemory,
        limits: DispatchLimits,
        *,
        grace: float | None,
        attempt_budget: float,
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._worker = worker
        self._leases = leases
        self._settle = settle
        self._maintenance = maintenance
        self._lag = lag
        self._notices = notices
        self._followers = followers
        self._expand = expand
        self._memory = memory
        self._limits = limits
        self._grace = attempt_budget if grace is None else grace
        self._attempt_budget = attempt_budget
        self._shared = store.capabilities.shared
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._background: asyncio.Task[None] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_check: asyncio.Task[None] | None = None
        self._following: list[asyncio.Task[None]] = []
        self.running = False

    # ----------------------------------------------------------------------------------------------- running

    async def run(self) -> None:
        """Run until `drain`, or until cancelled, which drains too."""
        if self.running:
            raise RuntimeError("this Dispatcher is running already")
        self.running = True
        self._stop.clear()
        self._ended.clear()
        self._unwatch()
        await self._stop_following()
        self._leases.begin()
        loops = [self._start(name, loop) for name, loop in self._loops().items()]
        self._worker.open_gate()
        try:
            await self._stop.wait()
        finally:
            # Shielded, so that one cancellation drains; a second one, while we wait, ends at once.
            ending = asyncio.ensure_future(self._wind_down(loops))
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                ending.cancel()
                await asyncio.gather(ending, return_exceptions=True)
                await self._worker.cut()
                raise
            finally:
                self.running = False
                self._ended.set()

    def run_in_background(self) -> None:
        """`run` as a task."""
        self._background = self._own(self.run(), "gatepost dispatcher")
        self._background.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the dispatcher stopped; nothing is delivered any more", exc_info=error)
            self._notices.trouble("dispatcher_stopped", error)

    async def drain(self, grace: float | None) -> None:
        """End `run` in order; returns when it has ended."""
        if self._background is not None and not self.running:
            await asyncio.sleep(0)  # it may not have begun yet
        if grace is not None:
            self._grace = grace
        if self.running and self._grace < self._attempt_budget:
            _log.warning(
                "grace of %g s is shorter than the attempt budget of %g s: attempts may be cut short and made again",
                self._grace,
                self._attempt_budget,
            )
        self._stop.set()
        if self.running:
            await self._ended.wait()

    async def aclose(self) -> None:
        """Drain if running, and end whatever is left."""
        await self.drain(None)
        self._unwatch()
        await self._stop_following()
        if self._background is not None:
            await asyncio.gather(self._background, return_exceptions=True)

    def _loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "settle": self._settle.run,
            "leases": self._leases.run,
            **({"pokes": self._worker.take_pokes, "shares": self._leases.give_back_surplus} if self._shared else {}),
            "reads": self._worker.read_lanes,
            **self._followers,
            "fan-out": self._expand,
            "endpoint memory": self._memory.run,
            "limits": self._limits.run,
            "registry": self._follow_registry,
            "retention": self._maintenance.retain,
            "discovery": self._maintenance.rediscover,
            "expiry": self._maintenance.expire,
            "loop lag": self._watch_lag,
        }

    async def _wind_down(self, loops: Sequence[asyncio.Task[None]]) -> None:
        try:
            await self._drain()
            self._limits.save_all()
            await self._memory.save_quietly()  # the next owner reads it
            await self._leases.release()
        finally:
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    async def _drain(self) -> None:
        """Let what is in flight end; in a fleet, hand each part over as soon as nothing of it is."""
        self._worker.shut_gate()
        if not self._shared:
            await self._worker.drain(self._grace)
            return
        self._limits.save_all()
        await self._memory.save_quietly()  # before the first part has a new owner that reads it
        handing_over = self._own(self._leases.drain(), "gatepost hand-over")
        await asyncio.sleep(0)  # let it begin: from here on nothing is started, and the others are told
        try:
            await self._worker.drain(self._grace)
        finally:
            handing_over.cancel()
            await asyncio.gather(handing_over, return_exceptions=True)

    def _start(self, name: str, loop: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return self._own(
            keep_running(name, loop, lambda failed, error: self._notices.trouble(f"loop_{failed}", error)),
            f"gatepost {name}",
        )

    @staticmethod
    def _own(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, name=name)

    # ------------------------------------------------------------------------------------------------- loops

    async def _follow_registry(self) -> None:
        while True:
            try:
                await self._catalogue.follow()
            except StoreError as error:
                self._notices.trouble("registry_unreadable", error)
            await asyncio.sleep(FOLLOW_EVERY)

    async def _follow_clock(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            try:
                await self._leases.ask_time()
            except StoreError as error:
                self._notices.trouble("store_unreadable", error)

    async def _watch_lag(self) -> None:
        await self._lag.run(lambda: self._worker.in_flight)

    # ----------------------------------------------------------------------------------- a forgotten run()

    def prepare(self) -> None:
        """What a dispatcher does that only publishes: on a shared store others register endpoints, which it must know, and what
        it publishes is due by the store's clock, which it hears of by no heartbeat."""
        self.watch_idleness()
        if self._store.capabilities.shared and not self._following:
            self._following = [self._start("registry", self._follow_registry), self._start("clock", self._follow_clock)]

    async def _stop_following(self) -> None:
        following, self._following = self._following, []
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)

    def watch_idleness(self) -> None:
        """Warn in a while if there is work and still nobody runs it."""
        if self._idle_timer is None and not self.running and self._background is None:
            self._idle_timer = asyncio.get_running_loop().call_later(IDLE_WARNING, self._check_idleness)

    def _check_idleness(self) -> None:
        self._idle_timer = None
        if not self.running:
            self._idle_check = self._own(self._warn_if_idle(), "gatepost idleness")

    async def _warn_if_idle(self) -> None:
        try:
            if self._store.capabilities.shared and await self._store.nodes():
                return  # somebody else delivers
            totals = await self._store.totals()
        except StoreError:
            return
        if not self.running and (totals.waiting or totals.outbox):
            message = (
                f"{totals.waiting} deliveries wait and nothing delivers them: await dispatcher.run(), "
                "or open the dispatcher with run=True"
            )
            _log.warning("%s", message)
            self._notices.trouble("not_running", message)

    def _unwatch(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._idle_check is not None:
            self._idle_check.cancel()
            self._idle_check = None
