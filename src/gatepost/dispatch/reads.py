"""Which lanes to read next, and how many rows: the part of the scheduler that fills its buffer.

Blocked means free: a lane is queued for a read only while its endpoint could start what it finds; else it is `thirsty` until the
endpoint has room. Pure bookkeeping for `dispatch.scheduler` and `dispatch.round`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from gatepost.dispatch.lanes import Kind, Lane
from gatepost.store.rows import LaneWant

BUFFER_ROWS_MAX: Final = 50_000
"""Rows held in memory over all lanes: about 150 bytes each. Beyond it only lanes with nothing here get `BUFFER_LAST`."""
BUFFER_LAST: Final = 2
"""Rows for a lane when the buffer, or its host, is full: enough to take its turn, so that nobody starves behind full buffers."""
READ_LANES_MAX: Final = 256
"""Lanes in one read: about 3 ms of the store's time."""


class ReadQueue:
    """Lanes to be read, in order of asking, and the count of rows in memory."""

    __slots__ = ("_queue", "buffered", "reading")

    def __init__(self) -> None:
        self.buffered = 0
        """Rows waiting in memory, over all lanes."""
        self.reading = 0
        """Lanes in a read under way."""
        self._queue: deque[Lane] = deque()

    def __bool__(self) -> bool:
        """Some lane is queued."""
        return bool(self._queue)

    @staticmethod
    def readable(lane: Lane) -> bool:
        """Whether the lane's endpoint could start what a read finds."""
        endpoint = lane.endpoint
        return endpoint.open and endpoint.in_flight < endpoint.cap and not endpoint.hold_until

    def consider(self, lane: Lane) -> None:
        """Queue the lane if it has something unread and room for it; O(1)."""
        if not lane.unread or lane.reading or lane.read_queued or lane.dropped:
            return
        endpoint = lane.endpoint
        if not self.readable(lane):
            if endpoint.thirsty is None:
                endpoint.thirsty = {}
            endpoint.thirsty[lane.id] = lane
        elif lane.buffered <= endpoint.window // 2:  # else the next starts come back to it
            lane.read_queued = True
            self._queue.append(lane)

    def room(self, lane: Lane) -> int:
        """Rows the lane may take in now."""
        window, host = lane.endpoint.window, lane.endpoint.host
        if self.buffered >= BUFFER_ROWS_MAX or (host.free <= 0 and host.waiting[Kind.FIRST]):
            window = BUFFER_LAST
        return max(0, window - lane.buffered)

    def wants(self, now: int) -> list[LaneWant]:
        """The next read: at most `READ_LANES_MAX` lanes that have room."""
        wants: list[LaneWant] = []
        while self._queue and len(wants) < READ_LANES_MAX:
            lane = self._queue.popleft()
            lane.read_queued = False
            if lane.dropped:
                continue
            if not self.readable(lane):
                self.consider(lane)  # to be thirsty
                continue
            room = self.room(lane)
            if room:
                wants.append(lane.begin_read(room, now))
        self.reading += len(wants)
        return wants

    def drop_rows(self, lane: Lane) -> None:
        """Forget the lane's waiting rows; they are read again when it has room."""
        self.buffered -= lane.drop_rows()
        self.consider(lane)
