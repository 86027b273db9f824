"""Which webhook ids were handled: the protocol that every memory of them follows, and one that lives in this process.

An id is claimed, then finished or released: one that was only marked on arrival would be lost when the work failed, because its
repetition would look like a duplicate. A claim whose process died runs out by itself. Called by `Inbox`; `seen_sqlite` and
`seen_redis` are the same for several processes.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from enum import StrEnum
from typing import Final, Protocol

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.errors import ConfigurationError

IDS_MAX: Final = 100_000
"""Ids remembered in memory: about 20 MB, and at 10 a second what three hours bring. The oldest goes first."""


class Seen(StrEnum):
    """What a memory says of an id that is claimed."""

    NEW = "new"
    """It is yours now: finish or release it."""
    BUSY = "busy"
    """Somebody handles it at this moment, or died in doing so: it is free again when the claim has run out."""
    DONE = "done"
    """It was handled."""


class SeenIds(Protocol):
    """A memory of ids. Each call is atomic; threads and processes may call at once. Times in seconds."""

    def claim(self, id: str, lease: float) -> Seen:  # noqa: A002 - the field's own name
        """Claim an id for `lease` seconds, unless it is done or claimed."""
        ...

    def finish(self, id: str, keep: float) -> None:  # noqa: A002
        """The work is done: remember the id for `keep` seconds."""
        ...

    def release(self, id: str) -> None:  # noqa: A002
        """The work failed: whoever comes next may claim the id, unless it is done."""
        ...


class AsyncSeenIds(Protocol):
    """The same for a memory that is asked over the network on an event loop."""

    async def claim(self, id: str, lease: float) -> Seen:  # noqa: A002
        """As in `SeenIds`."""
        ...

    async def finish(self, id: str, keep: float) -> None:  # noqa: A002
        """As in `SeenIds`."""
        ...

    async def release(self, id: str) -> None:  # noqa: A002
        """As in `SeenIds`."""
        ...


class MemorySeenIds:
    """Ids of this process, lost with it: for tests, and for one process whose handlers bear a repetition after a restart.

    Remembers at most `ids_max`. O(1) a call.
    """

    def __init__(self, *, ids_max: int = IDS_MAX, clock: Clock = SYSTEM_CLOCK) -> None:
        if ids_max < 1:
            raise ConfigurationError(f"ids_max={ids_max}: write 1 or more")
        self._ids_max = ids_max
        self._now = clock.monotonic
        self._lock = threading.Lock()
        self._until: OrderedDict[str, tuple[Seen, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def __repr__(self) -> str:
        return f"<MemorySeenIds {len(self)} of {self._ids_max}>"

    def claim(self, id: str, lease: float) -> Seen:  # noqa: A002
        """As in `SeenIds`."""
        check_seconds("lease", lease)
        now = self._now()
        with self._lock:
            found = self._until.get(id)
            if found is not None and found[1] > now:
                return found[0]
            self._keep(id, Seen.BUSY, now + lease)
            return Seen.NEW

    def finish(self, id: str, keep: float) -> None:  # noqa: A002
        """As in `SeenIds`."""
        check_seconds("keep", keep)
        with self._lock:
            self._keep(id, Seen.DONE, self._now() + keep)

    def release(self, id: str) -> None:  # noqa: A002
        """As in `SeenIds`."""
        with self._lock:
            found = self._until.get(id)
            if found is not None and found[0] is Seen.BUSY:  # done by another, after our claim had run out
                del self._until[id]

    def _keep(self, id: str, state: Seen, until: float) -> None:  # noqa: A002
        self._until[id] = (state, until)
        self._until.move_to_end(id)
        while len(self._until) > self._ids_max:
            self._until.popitem(last=False)


def check_seconds(name: str, value: float) -> None:
    """Raises `ConfigurationError` unless `value` is a time above 0."""
    if not (math.isfinite(value) and value > 0.0):
        raise ConfigurationError(f"{name}={value!r}: write seconds above 0")
