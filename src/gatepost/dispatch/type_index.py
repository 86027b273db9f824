"""Who of one tenant takes an event type, without asking every endpoint: exact filters are looked up, only patterns are tried.

A tenant may have thousands of endpoints with a type each, and endpoints change while events are published; asking all of them
again for every type after every change took more CPU than the deliveries. It holds what `dispatch.catalogue` puts in.
"""

from __future__ import annotations

from gatepost.delivery.records import Endpoint


class TypeIndex:
    """Endpoints of one tenant by what they take."""

    __slots__ = ("_exact", "_patterns")

    def __init__(self) -> None:
        self._exact: dict[str, dict[int, None]] = {}
        """Numbers by filter without a `*`, which takes exactly that type."""
        self._patterns: dict[int, Endpoint] = {}
        """By number, those with a filter that has one."""

    def put(self, endpoint: Endpoint) -> None:
        """One more; the same endpoint's earlier generation must be dropped first."""
        number = endpoint.number
        for pattern in endpoint.event_types:
            if "*" in pattern:
                self._patterns[number] = endpoint
            else:
                self._exact.setdefault(pattern, {})[number] = None

    def drop(self, endpoint: Endpoint) -> None:
        """One less, exactly as it was put."""
        number = endpoint.number
        self._patterns.pop(number, None)
        for pattern in endpoint.event_types:
            named = self._exact.get(pattern)
            if named is not None:
                named.pop(number, None)
                if not named:
                    del self._exact[pattern]

    def takers(self, event_type: str) -> list[int]:
        """Numbers of those that take it, in order; O(those that name it, and all patterns)."""
        found = set(self._exact.get(event_type, ()))
        found.update(number for number, endpoint in self._patterns.items() if endpoint.accepts(event_type))
        return sorted(found)
