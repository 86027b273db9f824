"""When something must be looked at again: a heap of instants with one live entry per target.

Pure: the caller says what time it is. Arming a target for an earlier instant leaves the later entry behind as litter, which is
skipped when it comes up and swept out before it outgrows the live ones. Called by `dispatch.scheduler` only.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, Generic, Protocol, TypeVar

LITTER_MIN: Final = 64
"""Dead entries below this number are not worth a sweep."""


class Timed(Protocol):
    """What can be armed: `timer_at` belongs to this file, 0 means not armed."""

    timer_at: int


Target = TypeVar("Target", bound=Timed)


class Timers(Generic[Target]):
    """`arm` and `due`, O(log n) each; memory is at most twice the number of armed targets."""

    __slots__ = ("_heap", "_live", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Target]] = []
        self._live = 0
        self._sequence = 0  # so that targets are never compared

    def __len__(self) -> int:
        return self._live

    def arm(self, target: Target, when: int) -> None:
        """Wake `target` at `when` (microseconds, more than 0), or earlier if it is armed for an earlier instant."""
        if target.timer_at:
            if target.timer_at <= when:
                return
        else:
            self._live += 1
        target.timer_at = when
        self._sequence += 1
        heappush(self._heap, (when, self._sequence, target))
        if len(self._heap) > 2 * self._live + LITTER_MIN:
            self._sweep()

    def disarm(self, target: Target) -> None:
        """Forget `target`; its entry becomes litter."""
        if target.timer_at:
            target.timer_at = 0
            self._live -= 1

    def next_at(self) -> int | None:
        """The earliest instant armed, or None."""
        heap = self._heap
        while heap:
            when, _, target = heap[0]
            if target.timer_at == when:
                return when
            heappop(heap)
        return None

    def due(self, now: int) -> Target | None:
        """One target whose instant has come, disarmed; None when there is none. Call until None."""
        when = self.next_at()
        if when is None or when > now:
            return None
        target = heappop(self._heap)[2]
        target.timer_at = 0
        self._live -= 1
        return target

    def _sweep(self) -> None:
        # A target armed twice for the same instant has two equal entries; the sequence keeps one.
        kept: dict[int, tuple[int, int, Target]] = {}
        for entry in self._heap:
            if entry[2].timer_at == entry[0]:
                kept[id(entry[2])] = entry
        self._heap = list(kept.values())
        heapify(self._heap)
