"""Who owns which part, in memory: the executable specification of leases, epochs, sessions, takeover and pokes.

It says which parts a heartbeat renews and which it may take, and from when FIFO lanes of a taken part may start; it knows no
rows. Time is the store's wall clock, as in a database: it may jump. Held by `store.memory`, one for all the stores that share
a queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gatepost.clock import Clock
from gatepost.errors import StoreError
from gatepost.store.rows import (
    PART_LEASE,
    SESSION_SETTLED,
    STRICT_AFTER_EXPIRY,
    Heartbeat,
    Lease,
    Node,
    NodeInfo,
    PartInfo,
    Poke,
)

POKES_MAX: Final = 10_000
"""Pokes kept for one process that does not fetch them; the oldest go first, and polling heals what is lost."""

_US: Final = 1_000_000


@dataclass(slots=True)
class _Part:
    owner: str | None = None
    epoch: int = 0
    until: int = 0
    """UTC microseconds at which the lease ends."""
    strict_from: int = 0
    """Before it an earlier owner may still be at work on a FIFO lane, however many owners came since."""


class MemorySession:
    """One process' connection: while it lives, so do the nodes that beat over it."""

    def __init__(self, opened_at: float) -> None:
        self.opened_at = opened_at
        """Monotonic seconds, which the store's wall clock does not move."""
        self.nodes: dict[str, tuple[int, Node]] = {}
        """By name: when it was last heard of (UTC microseconds), and who it is."""
        self.lost = False
        self._pokes: dict[tuple[int, int], Poke] = {}
        self._news = asyncio.Event()

    def put(self, pokes: Collection[Poke]) -> None:
        """Pokes by another process."""
        for poke in pokes:
            known = self._pokes.pop((poke.part, poke.lane), poke)
            self._pokes[poke.part, poke.lane] = min(known, poke)
        while len(self._pokes) > POKES_MAX:
            del self._pokes[next(iter(self._pokes))]
        self._news.set()

    def lose(self) -> None:
        """The connection is gone."""
        self.lost = True
        self.nodes.clear()
        self._news.set()

    def reopen(self, now: float) -> None:
        """A new connection in place of one that was lost."""
        self.lost = False
        self.opened_at = now
        self._news.clear()

    async def wait(self) -> Sequence[Poke]:
        """Pokes since the last call. Raises `StoreError` when the connection is lost."""
        while not self._pokes:
            if self.lost:
                raise StoreError("the session is lost")
            await self._news.wait()
            if not self.lost:
                self._news.clear()
        pokes, self._pokes = list(self._pokes.values()), {}
        return pokes


class MemoryParts:
    """All parts of one queue, and all sessions of the processes that share it."""

    def __init__(self, clock: Clock, count: int) -> None:
        self._clock = clock
        self._parts = [_Part() for _ in range(count)]
        self._sessions: list[MemorySession] = []
        self._numbers = 0

    def open_session(self) -> MemorySession:
        """A process connects."""
        session = MemorySession(self._clock.monotonic())
        self._sessions.append(session)
        return session

    def end_session(self, session: MemorySession) -> None:
        """A process disconnects in order."""
        session.lose()
        if session in self._sessions:
            self._sessions.remove(session)

    def next_number(self, below: int) -> int:
        """A number for an `IdSource`."""
        self._numbers = (self._numbers + 1) % below
        return self._numbers

    def epoch(self, part: int) -> int:
        """Of the last acquisition."""
        return self._parts[part].epoch

    def beat(self, session: MemorySession, node: Node, held: Mapping[int, int], want: int) -> Heartbeat:
        """Renew, then take what is free: given back first, then of owners that lost their session, then expired."""
        now = self._clock.wall_us()
        if session.lost:
            session.reopen(self._clock.monotonic())
        session.nodes[node.name] = (now, node)
        until = now + round(PART_LEASE * _US)
        leases: dict[int, Lease] = {}
        for number, epoch in held.items():
            part = self._parts[number]
            if part.owner == node.name and part.epoch == epoch:
                part.until = until
                leases[number] = Lease(epoch, PART_LEASE)
        for number, strict_from in self._free(session, node.name, now) if want > 0 else ():
            if number in leases:
                continue
            part = self._parts[number]
            # No owner is at work for longer than a lease from now: what says so was written before the clock stepped back.
            part.strict_from = min(max(part.strict_from, strict_from), until)
            part.owner, part.epoch, part.until = node.name, part.epoch + 1, until
            leases[number] = Lease(part.epoch, PART_LEASE, max(0.0, (part.strict_from - now) / _US))
            want -= 1
            if not want:
                break
        for number, part in enumerate(self._parts):
            if part.owner == node.name and number not in leases:
                part.owner = None  # the answer that gave it was lost, or it was given back without one
        lost = frozenset(part for part, epoch in held.items() if part not in leases or leases[part].epoch != epoch)
        return Heartbeat(leases, lost, now, self.nodes())

    def _free(self, session: MemorySession, name: str, now: int) -> Iterator[tuple[int, int]]:
        """Parts that may be taken, and from when the FIFO lanes of each may start."""
        orphaned: list[tuple[int, int]] = []
        expired: list[tuple[int, int]] = []
        settled = self._clock.monotonic() - session.opened_at >= SESSION_SETTLED
        alive = {info.node.name for info in self.nodes()}
        for number, part in enumerate(self._parts):
            if part.owner in (None, name):
                yield number, 0
            elif part.until <= now:
                expired.append((number, now + round(STRICT_AFTER_EXPIRY * _US)))
            elif part.owner not in alive and settled:
                orphaned.append((number, part.until))
        yield from orphaned
        yield from expired

    def release(self, parts: Mapping[int, int]) -> None:
        """Give parts back, each if the epoch is still right."""
        for number, epoch in parts.items():
            if self._parts[number].epoch == epoch:
                self._parts[number].owner = None

    def parts(self) -> Sequence[PartInfo]:
        """In order of part."""
        now = self._clock.wall_us()
        return [
            PartInfo(number, part.owner, part.epoch, 0.0 if part.owner is None else max(0.0, (part.until - now) / _US))
            for number, part in enumerate(self._parts)
        ]

    def nodes(self) -> Sequence[NodeInfo]:
        """Those alive, by name."""
        since = self._clock.wall_us() - round(PART_LEASE * _US)
        counts: dict[str | None, int] = {}
        for part in self._parts:
            counts[part.owner] = counts.get(part.owner, 0) + 1
        known = {name: entry for session in self._sessions for name, entry in session.nodes.items()}
        return [
            NodeInfo(node, seen_at, counts.get(name, 0))
            for name, (seen_at, node) in sorted(known.items())
            if seen_at > since
        ]

    def poke(self, session: MemorySession, pokes: Collection[Poke]) -> None:
        """Tell all other processes."""
        for other in self._sessions:
            if other is not session and not other.lost:
                other.put(pokes)
