"""Which delivery starts next, and which lanes to read: the owner's whole view of the queue, in memory and without a single await.

It decides order and limits only: it performs no read, starts no task and asks no time (`now` is UTC microseconds of the store's
clock, never going back). `dispatch.worker` drives it; everything in it is a copy of rows in the store and may be dropped.

Theory of operation. A turn is `take`. Tenants go round, within a tenant its endpoints, within an endpoint its lanes by weight;
each start costs one unit, so this is deficit round robin with equal quanta. First attempts go before retries, which have a
share of the busy slots and, when first attempts never end, one start in five. A start needs a slot, room in its tenant's share
while others have work, room at the endpoint (cap, rate) and at its host. Whoever lacks room leaves the round at no cost and is
put back by the event that makes room: a finished attempt, a settled row, a timer, a change of settings. The lanes of an
endpoint without room are not read either; they are `thirsty` until it has room. The round itself is in `dispatch.round`,
reading in `dispatch.reads`, one lane in `dispatch.lanes`, loading and unloading in `dispatch.roster`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gatepost.dispatch.lanes import IDLE_GRACE, Lane
from gatepost.dispatch.reads import ReadQueue
from gatepost.dispatch.roster import Directory, HostLimit, Roster
from gatepost.dispatch.round import Round, SchedulerLimits, Start
from gatepost.dispatch.seats import EndpointState
from gatepost.dispatch.timers import Timers
from gatepost.store.rows import LaneRows, LaneWant, Row


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """A snapshot."""

    in_flight: int
    retries_in_flight: int
    unsettled: int
    """Attempts that ended and are not settled."""
    buffered: int
    """Rows waiting in memory."""
    lanes: int
    endpoints: int
    tenants: int
    hosts: int
    reading: int
    """Lanes being read."""
    timers: int
    host_waits: int
    """Times an endpoint waited for its host, since the start."""
    sheds: dict[str, int]
    """By host: times an endpoint with due rows left the round because it was full, since the start."""


class LaneScheduler:
    """The queue as one process sees it. `directory` gives the settings of an endpoint, or None when it is unknown."""

    __slots__ = (
        "_head_holds",
        "_idle",
        "_outstanding",
        "_reads",
        "_roster",
        "_round",
        "_strict",
        "_timers",
        "ordered_by_store",
        "unsure",
    )

    def __init__(self, limits: SchedulerLimits, directory: Directory, host_limit: HostLimit = lambda _: None) -> None:
        self._timers: Timers[Lane | EndpointState] = Timers()
        self._reads = ReadQueue()
        self._round = Round(limits, self._reads, self._timers)
        self._roster = Roster(limits, directory, host_limit, self._round, self._timers)
        self._idle: list[tuple[int, int]] = []
        self._strict: dict[int, int] = {}
        """By part: when its FIFO lanes may start."""
        self._outstanding: dict[int, int] = {}
        """By part: attempts in flight or not settled; none is 0."""
        self._head_holds: dict[int, tuple[int, int]] = {}
        """By FIFO lane that is not loaded yet: when its head may be tried again, and which that is."""
        self.unsure: Collection[int] = ()
        """Parts whose lanes are not all discovered yet: one that is not loaded may have rows all the same."""
        self.ordered_by_store = False
        """Other processes store rows too: what is handed over for a FIFO lane may not be the oldest there, so it is read."""

    def __repr__(self) -> str:
        return (
            f"<LaneScheduler in_flight={self._round.in_flight}/{self._round.limit} buffered={self._reads.buffered} "
            f"unsettled={self._round.unsettled} lanes={len(self._roster.lanes)}>"
        )

    @property
    def in_flight(self) -> int:
        """Attempts under way."""
        return self._round.in_flight

    @property
    def unsettled(self) -> int:
        """Attempts that ended and are not settled."""
        return self._round.unsettled

    @property
    def buffered(self) -> int:
        """Rows waiting in memory."""
        return self._reads.buffered

    @property
    def limit(self) -> int:
        """Attempts in flight allowed now; the loop-lag guard lowers it below the slots."""
        return self._round.limit

    @limit.setter
    def limit(self, attempts: int) -> None:
        self._round.limit = attempts

    # --------------------------------------------------------------------------------- an attempt's life here

    def take(self, now: int) -> Start | None:
        """The next delivery to attempt, counted as in flight; None when nothing may start. O(1) amortised."""
        start = self._round.take(now)
        if start is not None:
            part = start.row.part
            self._outstanding[part] = self._outstanding.get(part, 0) + 1
        return start

    def finish(self, start: Start, now: int) -> None:
        """The attempt is over: its slots are free. Exactly one of `settled`, `retried` and `deferred` must follow."""
        self._round.finish(start, now)
        if not start.endpoint.lanes:
            self._roster.unload_if_idle(start.endpoint, now)
        if not start.host.endpoints:
            self._roster.release_host(start.host)

    def settled(self, start: Start, now: int) -> None:
        """The store took the result and the row is gone: delivered, dead or cancelled."""
        self._over(start)
        start.lane.forget(start.row)
        self._after(start.lane, now)

    def delivered(self, start: Start, now: int) -> None:
        """As `settled`, and the endpoint took it: one that was just resumed may get more."""
        if start.endpoint.took(now):
            self._round.activate(start.endpoint, now)
        self.settled(start, now)

    def retried(self, start: Start, attempt: int, due: int, now: int) -> None:
        """The store took the result and the row is due again at `due`; in a FIFO lane it stays the head."""
        lane = start.lane
        self._over(start)
        if lane.fifo:
            lane.not_before, lane.failed_head = due, start.row.delivery_id
            self._wait_again(lane, start.row._replace(attempt=attempt))
        else:
            lane.forget(start.row)
            if not lane.dropped:
                lane.expect(due)
                self._timers.arm(lane, due)
        self._after(lane, now)

    def deferred(self, start: Start, until: int, now: int) -> None:
        """The attempt came to nothing that counts, and nothing is written: the row waits as it was, its endpoint until `until`."""
        self._over(start)
        if until > now:
            start.endpoint.hold_until = max(start.endpoint.hold_until, until)
        self._wait_again(start.lane, start.row)
        self._after(start.lane, now)

    def abandoned(self, start: Start) -> None:
        """No store can take the result. The row stays held, so that it does not start again in this process."""
        self._over(start)
        start.lane.outstanding -= 1
        self._roster.lay_ghost(start.lane)

    def _over(self, start: Start) -> None:
        self._round.unsettled -= 1
        part = start.row.part
        left = self._outstanding[part] - 1
        if left:
            self._outstanding[part] = left
        else:
            del self._outstanding[part]

    def _wait_again(self, lane: Lane, row: Row) -> None:
        lane.put_back(row)
        if not lane.dropped:
            self._reads.buffered += 1
            if not lane.endpoint.open:
                self._reads.drop_rows(lane)

    # ------------------------------------------------------------------------------------------ rows coming in

    def hand_over(self, rows: Iterable[Row], now: int) -> None:
        """Rows that were just stored: those that fit are taken without a read, the others noted to be read."""
        reads = self._reads
        for row in rows:
            lane = self._roster.lanes.get(row.lane)
            if lane is None:
                # No marker was found for it at the last discovery, so it had no rows before this one.
                lane = self._load(row.lane, row.part, now, unread=row.part in self.unsure)
            if row.due_at > now:
                lane.expect(row.due_at)
                self._timers.arm(lane, row.due_at)
            elif (
                lane.unread
                or lane.reading
                or not lane.endpoint.open
                or (lane.fifo and self.ordered_by_store)
                or not reads.room(lane)
            ):
                if row.delivery_id not in lane.held:
                    lane.missed(row.due_at)
                    reads.consider(lane)
            elif lane.append(row):
                reads.buffered += 1
                self._round.offer(lane, now)

    def adopt(self, lanes: Iterable[tuple[int, int]], now: int) -> None:
        """(part, lane) found by discovery: unknown ones will be read as soon as their endpoint has room."""
        for part, number in lanes:
            if number not in self._roster.lanes:
                self._reads.consider(self._load(number, part, now, unread=True))

    def expect(self, part: int, number: int, due_at: int, now: int) -> None:
        """Somebody else put a row into the lane, due at `due_at` (a replay)."""
        lane = self._roster.lanes.get(number) or self._load(number, part, now, unread=part in self.unsure)
        if due_at > now:
            lane.expect(due_at)
            self._timers.arm(lane, due_at)
        else:
            lane.missed(due_at)
            self._reads.consider(lane)

    def _load(self, number: int, part: int, now: int, *, unread: bool) -> Lane:
        lane = self._roster.load_lane(number, part, now, unread=unread)
        if lane.fifo:
            lane.not_before, lane.failed_head = self._head_holds.pop(number, (0, 0))
            lane.strict_until = self._strict.get(part, 0)
        return lane

    def wants(self, now: int) -> list[LaneWant]:
        """What to read next; empty when nothing needs a read. `read` or `read_failed` must follow."""
        return self._reads.wants(now)

    @property
    def has_wants(self) -> bool:
        """`wants` may have something."""
        return bool(self._reads)

    def read(self, results: Sequence[LaneRows], asked_at: int, now: int) -> None:
        """What a read returned; `asked_at` is the `now` it was asked with."""
        for result in results:
            lane = self._roster.lanes.get(result.lane)
            if lane is None or not lane.reading:
                continue  # its part was lost meanwhile
            self._reads.reading -= 1
            self._reads.buffered += lane.end_read(result.rows, result.next_due, asked_at)
            if lane.next_due is not None:
                self._timers.arm(lane, lane.next_due)
            if not lane.endpoint.open:
                self._reads.drop_rows(lane)
            self._reads.consider(lane)
            self._after(lane, now)

    def read_failed(self, wants: Iterable[LaneWant]) -> None:
        """The store did not answer; the lanes queue to be read again. The caller waits before it asks."""
        for want in wants:
            lane = self._roster.lanes.get(want.lane)
            if lane is not None and lane.reading:
                self._reads.reading -= 1
                lane.fail_read()
                self._reads.consider(lane)

    # --------------------------------------------------------------------------------------------------- time

    def tick(self, now: int) -> None:
        """Act on every instant that has come: rows that are due, holds that end, lanes idle for long."""
        while (target := self._timers.due(now)) is not None:
            if isinstance(target, Lane):
                self._tick_lane(target, now)
            else:
                self._round.activate(target, now)
                self._roster.unload_if_idle(target, now)

    def next_at(self) -> int | None:
        """When `tick` has something to do next, or None."""
        return self._timers.next_at()

    def take_idle(self) -> list[tuple[int, int]]:
        """(part, lane) that ran empty a while ago: their markers may go. Each is returned once."""
        idle, self._idle = self._idle, []
        lanes = self._roster.lanes
        return [(part, lane) for part, lane in idle if lane not in lanes]  # it may have got rows since it was let go

    def _tick_lane(self, lane: Lane, now: int) -> None:
        if lane.next_due is not None:
            if lane.next_due <= now:
                lane.missed(lane.next_due)
                lane.next_due = None
                self._reads.consider(lane)
            else:
                self._timers.arm(lane, lane.next_due)
        self._after(lane, now)

    def _after(self, lane: Lane, now: int) -> None:
        """Something about the lane changed: offer what it has, and let it go when it has been empty for a while."""
        if lane.dropped:
            self._roster.lay_ghost(lane)
            return
        if lane.first or lane.retries:
            self._round.offer(lane, now)
        elif not lane.quiet:
            lane.idle_since = 0
        elif not lane.idle_since:
            lane.idle_since = now
            self._timers.arm(lane, now + IDLE_GRACE)
        elif now - lane.idle_since < IDLE_GRACE:
            self._timers.arm(lane, lane.idle_since + IDLE_GRACE)
        else:
            self._idle.append((lane.part, lane.id))
            self._roster.unload_lane(lane, now)

    # ------------------------------------------------------------------------------------------- from outside

    def endpoint_changed(self, number: int, now: int) -> None:
        """The directory has something new about an endpoint, or has lost it."""
        endpoint = self._roster.endpoints.get(number)
        if endpoint is None:
            return
        self._roster.refresh(endpoint, now)
        if endpoint.open:
            self._round.activate(endpoint, now)
        else:
            for lane in endpoint.lanes.values():
                self._reads.drop_rows(lane)

    def host_changed(self, host: str) -> None:
        """What a host's breaker allows has changed."""
        self._roster.host_changed(host)

    def host_in_flight(self, host: str) -> int:
        """Attempts under way to `scheme://host:port`."""
        return self._roster.host_in_flight(host)

    def set_host_cap(self, cap: int | None) -> None:
        """Attempts in flight per host from now on; None: automatic."""
        self._roster.set_host_cap(cap)

    def hold_back(self, number: int, now: int) -> None:
        """Start and read nothing of an endpoint until as many `let_go`: its rows are about to be cancelled."""
        self._roster.hold_back(number, 1)
        self.endpoint_changed(number, now)

    def let_go(self, number: int, now: int) -> None:
        """End of one `hold_back`."""
        self._roster.hold_back(number, -1)
        self.endpoint_changed(number, now)

    def forget(self, delivery_ids: Collection[int], now: int) -> None:
        """Rows that were cancelled in the store. O(lanes): an operator's action."""
        gone = frozenset(delivery_ids)
        for lane in list(self._roster.lanes.values()):
            dropped = lane.remove(gone)
            if dropped:
                self._reads.buffered -= dropped
                self._reads.consider(lane)
                self._after(lane, now)

    def hold_strict(self, until_us: Mapping[int, int]) -> None:
        """By part, start nothing in its FIFO lanes before an instant: its last owner may still be at work until then. O(lanes)."""
        self._strict.update(until_us)
        for lane in self._roster.lanes.values():
            if lane.fifo and lane.part in until_us:
                lane.strict_until = until_us[lane.part]
                if lane.strict_until:
                    self._timers.arm(lane, lane.strict_until)

    def hold_head(self, number: int, until_us: int, head: int = 0) -> None:
        """The head of a FIFO lane failed before this process read it, and may not be tried before `until_us`.

        `head`: its delivery id; 0 when that is not known.
        """
        lane = self._roster.lanes.get(number)
        if lane is None:
            self._head_holds[number] = until_us, head
        elif until_us > lane.not_before:
            lane.not_before, lane.failed_head = until_us, head
            self._timers.arm(lane, until_us)

    def drop_parts(self, parts: Collection[int], now: int) -> None:
        """These parts are not ours to work on any more: forget their rows at once. What is in flight ends by itself. O(lanes)."""
        gone = frozenset(parts)
        for part in gone:
            self._strict.pop(part, None)
        for lane in [lane for lane in self._roster.lanes.values() if lane.part in gone]:
            self._drop(lane, now)

    def recheck(self, lanes: Iterable[tuple[int, int]], now: int) -> None:
        """(part, lane) that may hold rows nobody told us of: read each, known or not, when it has room."""
        for part, number in lanes:
            lane = self._roster.lanes.get(number)
            if lane is None:
                self._reads.consider(self._load(number, part, now, unread=True))
            elif not lane.unread:
                idle_since = lane.idle_since
                lane.missed(lane.low_water)
                lane.idle_since = idle_since  # to look is no reason to keep it: else no lane would ever be let go
                self._reads.consider(lane)

    def reread(self, number: int) -> None:
        """Rows of an endpoint were removed from the store by another process: forget what waits here, and read again."""
        endpoint = self._roster.endpoints.get(number)
        if endpoint is not None:
            for lane in endpoint.lanes.values():
                lane.missed(0)
                self._reads.drop_rows(lane)

    def unload(self, number: int, now: int) -> None:
        """The endpoint is gone and so are its rows: forget its lanes. One with something in flight stays until the next call."""
        endpoint = self._roster.endpoints.get(number)
        if endpoint is not None:
            for lane in [lane for lane in endpoint.lanes.values() if not lane.outstanding]:
                self._drop(lane, now)

    def _drop(self, lane: Lane, now: int) -> None:
        self._reads.buffered -= lane.drop_rows()
        self._reads.reading -= lane.reading
        self._roster.unload_lane(lane, now)

    # ---------------------------------------------------------------------------------------------- looking in

    def closed_lanes(self) -> list[tuple[int, int]]:
        """(endpoint, lane) of the lanes that may start nothing: their endpoint is paused, disabled or unknown."""
        return [
            (endpoint.number, lane)
            for endpoint in self._roster.endpoints.values()
            if not endpoint.open
            for lane in endpoint.lanes
        ]

    def is_closed(self, number: int) -> bool:
        """The endpoint has lanes here and may start nothing."""
        endpoint = self._roster.endpoints.get(number)
        return endpoint is not None and not endpoint.open

    def outstanding_of(self, part: int) -> int:
        """Attempts of a part that are in flight or not settled; also of the time before it was lost and won again."""
        return self._outstanding.get(part, 0)

    def oldest_due(self) -> int | None:
        """When the row that waits longest in memory became due; None when nothing waits. O(lanes): for status."""
        first = [
            queue[0].due_at for lane in self._roster.lanes.values() for queue in (lane.first, lane.retries) if queue
        ]
        return min(first, default=None)

    def oldest_startable(self, now: int) -> int | None:
        """The same of those that only wait for us: their endpoint and its host are open, not held and have room. O(lanes)."""
        first = [
            queue[0].due_at
            for endpoint in self._roster.endpoints.values()
            if endpoint.open and endpoint.hold_until <= now and endpoint.in_flight < endpoint.cap
            if endpoint.host.in_flight < endpoint.host.cap
            for lane in endpoint.lanes.values()
            if not lane.fifo or lane.ready_kind(now) is not None
            for queue in (lane.first, lane.retries)
            if queue
        ]
        return min(first, default=None)

    def busy_with(self, number: int) -> int:
        """Rows of an endpoint that are in flight or not settled yet."""
        endpoint = self._roster.endpoints.get(number)
        return 0 if endpoint is None else sum(lane.outstanding for lane in endpoint.lanes.values())

    def statistics(self) -> SchedulerStatistics:
        """A snapshot; O(hosts)."""
        turns, roster = self._round, self._roster
        return SchedulerStatistics(
            in_flight=turns.in_flight,
            retries_in_flight=turns.retries_in_flight,
            unsettled=turns.unsettled,
            buffered=self._reads.buffered,
            lanes=len(roster.lanes),
            endpoints=len(roster.endpoints),
            tenants=roster.tenant_count,
            hosts=roster.host_count,
            reading=self._reads.reading,
            timers=len(self._timers),
            host_waits=turns.host_waits,
            sheds=dict(turns.sheds),
        )
