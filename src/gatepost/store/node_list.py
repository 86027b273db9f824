"""The nodes of a store that one process owns, in memory: who has shown itself within a part lease.

Shared by the engines for one process; a second node appears there only while one dispatcher takes over from another.
"""

from __future__ import annotations

from collections.abc import Sequence

from gatepost.clock import Clock
from gatepost.store.rows import PART_LEASE, Node, NodeInfo


class NodeList:
    """Nodes by name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[float, int, Node]] = {}

    def seen(self, node: Node) -> None:
        """It sent a heartbeat."""
        self._seen[node.name] = (self._clock.monotonic(), self._clock.wall_us(), node)

    def alive(self, owner: str | None) -> Sequence[NodeInfo]:
        """Those whose last heartbeat is younger than a part lease, by name; `owner` holds the one part."""
        since = self._clock.monotonic() - PART_LEASE
        self._seen = {name: entry for name, entry in self._seen.items() if entry[0] > since}
        return [NodeInfo(node, at, int(name == owner)) for name, (_, at, node) in sorted(self._seen.items())]
