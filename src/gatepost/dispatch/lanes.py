"""One lane in the owner's memory: which of its rows are here, which are under way, and where the next read begins.

A lane holds copies of rows, never the only ones: dropping everything here loses nothing. Pure bookkeeping; when to read and
whom to start is decided in `dispatch.scheduler`, its only caller.

Theory of operation. The rows here are always the *oldest* due rows of the lane that are not settled yet (`held`), because a
lane with anything unread behind them takes no fresh rows by hand-over: it notes `unread` and reads them in order later. A
read may have begun before a settle or an enqueue was committed, so while one is under way every row that is settled goes to
`skip` (the read may still return it) and every row that is not taken in marks the lane to be read again.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from gatepost.store.rows import SUB_BULK, SUB_FIFO_FIRST, SUB_HIGH, LaneWant, Row

if TYPE_CHECKING:
    from gatepost.dispatch.seats import EndpointState

OVERLAP: Final = 100_000
"""Microseconds a usual read steps back behind the low-water mark: rows of the same instant, and clocks of other writers."""
DEEP_EVERY: Final = 2_000_000
DEEP_OVERLAP: Final = 10_000_000
"""Every two seconds a lane is read from as far back as an enqueue transaction may last before it commits."""
FULL_EVERY: Final = 60_000_000
"""Once a minute a lane is read from its beginning: heals whatever the marks assumed wrongly."""

IDLE_GRACE: Final = 60_000_000
"""Microseconds a lane is kept, and its marker left in the store, after it ran empty: no writes for a lane that is used at times."""

WINDOW_MIN: Final = 16
WINDOW_MAX: Final = 256
WINDOW_PER_SLOT: Final = 4
"""Rows held per lane: four for each attempt it may have in flight, so that a refill comes before it runs dry."""


class Kind(IntEnum):
    """First attempts and retries queue apart, since retries have only a share of the slots."""

    FIRST = 0
    RETRY = 1


class Rank(IntEnum):
    """Priority of a lane within its endpoint."""

    HIGH = 0
    NORMAL = 1
    BULK = 2


RANKS: Final = tuple(Rank)
RANK_WEIGHTS: Final = (8, 4, 1)
"""Starts per round by rank; never 0, so that bulk never starves."""


class Lane:
    """The owner's view of one lane. Instants are UTC microseconds."""

    __slots__ = (
        "_read_deep_at",
        "_read_full_at",
        "again",
        "cancelled",
        "dropped",
        "endpoint",
        "failed_head",
        "fifo",
        "first",
        "held",
        "id",
        "idle_since",
        "in_ring",
        "low_water",
        "lowered",
        "next_due",
        "not_before",
        "outstanding",
        "part",
        "rank",
        "read_queued",
        "reading",
        "retries",
        "skip",
        "strict_until",
        "timer_at",
        "unread",
    )

    def __init__(self, lane: int, part: int, endpoint: EndpointState, *, unread: bool) -> None:
        sub = lane & 0xFF
        self.id = lane
        self.part = part
        self.endpoint = endpoint
        self.fifo = sub >= SUB_FIFO_FIRST
        self.rank = Rank.HIGH if sub == SUB_HIGH else Rank.BULK if sub == SUB_BULK else Rank.NORMAL
        self.first: deque[Row] = deque()
        """First attempts that are due; in a FIFO lane, all rows, in order."""
        self.retries: deque[Row] | None = None
        """Made when the first one comes: most lanes have none."""
        self.held: set[int] = set()
        """Delivery ids that are here: waiting above, in flight, or not settled yet."""
        self.outstanding = 0
        """Rows in flight or not settled yet."""
        self.in_ring = [False, False]
        """By kind: whether the endpoint's ring holds this lane."""
        self.not_before = 0
        """FIFO only: the head failed and may not be tried before."""
        self.failed_head = 0
        """Delivery id of that head: another one waits for nothing, as when this one was cancelled. 0: whichever it is."""
        self.strict_until = 0
        """FIFO only: nothing starts before, because the part's last owner may still be at work."""
        self.low_water = 0
        """No unread row is due before this instant."""
        self.unread = unread
        """The store may hold due rows that are not here."""
        self.read_queued = False
        self.reading = False
        self.again = False
        """Something came up during a read: it must be repeated."""
        self.lowered: int | None = None
        """Lowest due time, noted during a read, of a row the read may have missed."""
        self.skip: set[tuple[int, int]] | None = None
        """(due_at, delivery_id) settled during a read."""
        self.cancelled: frozenset[int] | None = None
        """Delivery ids cancelled in the store during a read."""
        self.next_due: int | None = None
        """When the first row after the due ones is due."""
        self.idle_since = 0
        """When it was first found quiet; 0 while it is not."""
        self.timer_at = 0
        self.dropped = False
        """Unloaded: what is in flight ends, and nothing else happens here."""
        self._read_deep_at = 0
        self._read_full_at = 0

    def __repr__(self) -> str:
        return (
            f"<Lane {self.id:#x} rows={self.buffered} outstanding={self.outstanding} unread={self.unread} "
            f"reading={self.reading} next_due={self.next_due}>"
        )

    @property
    def buffered(self) -> int:
        """Rows waiting here."""
        return len(self.first) + (len(self.retries) if self.retries else 0)

    @property
    def quiet(self) -> bool:
        """Nothing is here, under way, or known to come."""
        return not (self.held or self.unread or self.reading or self.next_due is not None or self.outstanding)

    # ------------------------------------------------------------------------------------------ taking rows

    @property
    def opens_at(self) -> int:
        """FIFO: before it the head may not start."""
        if self.failed_head and self.first and self.first[0].delivery_id != self.failed_head:
            return self.strict_until
        return max(self.not_before, self.strict_until)

    def ready_kind(self, now: int) -> Kind | None:
        """FIFO: the kind of its head if that may start now."""
        if not self.first or self.outstanding or self.opens_at > now:
            return None
        return Kind.RETRY if self.first[0].attempt else Kind.FIRST

    def ready(self, kind: Kind, now: int) -> bool:
        """Whether a row of this kind may start."""
        if self.fifo:
            return self.ready_kind(now) is kind
        return bool(self.first) if kind is Kind.FIRST else bool(self.retries)

    def pop(self, kind: Kind) -> Row:
        """The oldest row of that kind; only when `ready`."""
        self.outstanding += 1
        if kind is Kind.FIRST or self.fifo:
            return self.first.popleft()
        assert self.retries is not None, "ready() said that a retry is here"
        return self.retries.popleft()

    def append(self, row: Row) -> bool:
        """Take a due row in; False when it is here already."""
        if row.delivery_id in self.held:
            return False
        self.held.add(row.delivery_id)
        self.idle_since = 0
        queue = self._queue_of(row)
        if self.fifo and queue and row < queue[-1]:
            insort(queue, row)  # committed late by another writer: the order of a FIFO lane is by due_at and id
        else:
            queue.append(row)
        return True

    def put_back(self, row: Row) -> None:
        """A row that was taken and not settled waits again, first in its queue."""
        self.outstanding -= 1
        self._queue_of(row).appendleft(row)

    def forget(self, row: Row) -> None:
        """A row that was taken is settled (gone, or moved to another due time)."""
        self.outstanding -= 1
        self.held.discard(row.delivery_id)
        if self.reading:  # the answer may still hold the row as it was
            if self.skip is None:
                self.skip = set()
            self.skip.add((row.due_at, row.delivery_id))

    def remove(self, delivery_ids: frozenset[int]) -> int:
        """Drop waiting rows that were cancelled in the store; returns how many."""
        before = self.buffered
        if not self.held.isdisjoint(delivery_ids):
            if self.fifo and self.first and self.first[0].delivery_id in delivery_ids:
                self.not_before = 0  # the head that had to wait is gone
            for queue in filter(None, (self.first, self.retries)):
                kept = [row for row in queue if row.delivery_id not in delivery_ids]
                self.held.difference_update(row.delivery_id for row in queue if row.delivery_id in delivery_ids)
                queue.clear()
                queue.extend(kept)
        if self.reading:
            self.cancelled = delivery_ids | (self.cancelled or frozenset())
        return before - self.buffered

    def drop_rows(self) -> int:
        """Forget all waiting rows (they are in the store) and read them again later; returns how many."""
        dropped = self.buffered
        for queue in filter(None, (self.first, self.retries)):
            self.missed(min(row.due_at for row in queue))
            self.held.difference_update(row.delivery_id for row in queue)
            queue.clear()
        return dropped

    def revive(self, endpoint: EndpointState) -> None:
        """The part is ours again while attempts of the time before are still under way: they count, and all else is read."""
        self.drop_rows()  # what has come back to wait here meanwhile
        if self.endpoint is not endpoint:
            self.in_ring = [False, False]
        self.endpoint = endpoint
        self.dropped = False
        self.unread = True
        self.low_water = self.idle_since = 0
        self.next_due = None
        self._end()

    def _queue_of(self, row: Row) -> deque[Row]:
        if self.fifo or not row.attempt:
            return self.first
        if self.retries is None:
            self.retries = deque()
        return self.retries

    # --------------------------------------------------------------------------------------------- reading

    def missed(self, due_at: int) -> None:
        """A due row of the store is not here: the lane must be read from there on."""
        self.unread = True
        self.idle_since = 0
        self.low_water = min(self.low_water, due_at)
        if self.reading:
            self.again = True
            self.lowered = due_at if self.lowered is None else min(self.lowered, due_at)

    def expect(self, due_at: int) -> None:
        """A row of the store will be due then."""
        self.idle_since = 0
        if self.next_due is None or due_at < self.next_due:
            self.next_due = due_at
        self.low_water = min(self.low_water, due_at)
        if self.reading:
            self.lowered = due_at if self.lowered is None else min(self.lowered, due_at)

    def begin_read(self, room: int, now: int) -> LaneWant:
        """What to ask the store for; `room` rows beyond those that are held."""
        self.reading = True
        low_water = max(0, self.low_water - OVERLAP)
        if now - self._read_full_at >= FULL_EVERY:
            self._read_full_at = self._read_deep_at = now
            low_water = 0
        elif now - self._read_deep_at >= DEEP_EVERY:
            self._read_deep_at = now
            low_water = max(0, self.low_water - DEEP_OVERLAP)
        # Rows that are held, or were settled while we wait for the answer, come back first and are filtered out.
        return LaneWant(self.id, room + len(self.held), low_water)

    def end_read(self, rows: Sequence[Row], next_due: int | None, asked_at: int) -> int:
        """Take in what a read returned; returns how many rows are new. `asked_at` is the `now` of the peek."""
        taken = 0
        skip = self.skip
        for row in rows:
            if skip is not None and (row.due_at, row.delivery_id) in skip:
                continue
            if self.cancelled is not None and row.delivery_id in self.cancelled:
                continue
            taken += self.append(row)
        more = next_due is not None and next_due <= asked_at
        self.unread = self.again or more
        if rows:
            self.low_water = rows[-1].due_at
        if self.lowered is not None:
            self.low_water = min(self.low_water, self.lowered)
        if next_due is not None and not more:
            # Rows moved to a later due time during the read are in `next_due` already, by `expect`.
            self.next_due = next_due if self.next_due is None else min(self.next_due, next_due)
        self._end()
        return taken

    def fail_read(self) -> None:
        """The store did not answer: the lane is as unread as before."""
        self.unread = True
        self._end()

    def _end(self) -> None:
        self.reading = self.again = False
        self.skip = self.lowered = self.cancelled = None


def window_of(cap: int) -> int:
    """Rows to hold for a lane whose endpoint may have `cap` attempts in flight."""
    return max(WINDOW_MIN, min(WINDOW_PER_SLOT * cap, WINDOW_MAX))
