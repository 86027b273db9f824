"""FIFO lanes whose head failed keep their back-off over a restart, when it is long enough to matter.

The row of a FIFO head keeps its due time, which is its place in the order, so the store does not say when to try it again. A
back-off of over a minute is remembered with the endpoint; a shorter one is lost with its owner, and the head is tried early.
Called by `dispatch.dispatcher` when results are stored and when parts are won.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from gatepost.dispatch.endpoint_memory import EndpointMemory, Value
from gatepost.dispatch.settle import Result
from gatepost.store.rows import endpoint_of, lane_of

HOLD_MIN: Final = 60_000_000
"""Microseconds of back-off that are worth remembering."""
SECTION: Final = "fifo"
"""Sub-lane (as text) to the instant before which its head may not be tried, in UTC microseconds, and the head's delivery id: it may
be cancelled while nobody has it in memory. An instant alone is an older version's."""


def remember(memory: EndpointMemory, results: Sequence[Result], now: int) -> None:
    """Note the long back-offs among these results, which are stored now."""
    for result in results:
        start = result.start
        if result.due is not None and result.due - now > HOLD_MIN and start is not None and start.lane.fifo:
            number = endpoint_of(start.lane.id)
            holds = {sub: (until, head) for sub, until, head in _holds(memory, number) if until > now}
            holds[start.lane.id & 0xFF] = result.due, start.row.delivery_id
            kept: dict[str, Value] = {str(sub): [until, head] for sub, (until, head) in holds.items()}
            memory.put(number, SECTION, kept)


def restore(memory: EndpointMemory, numbers: Iterable[int], hold: Callable[[int, int, int], None], now: int) -> None:
    """Tell `hold` (lane, instant, head) of every back-off of these endpoints that has not ended."""
    for number in numbers:
        for sub, until, head in _holds(memory, number):
            if until > now:
                hold(lane_of(number, sub), until, head)


def _holds(memory: EndpointMemory, number: int) -> list[tuple[int, int, int]]:
    kept = memory.get(number, SECTION)
    found: list[tuple[int, int, int]] = []
    for sub, hold in kept.items() if isinstance(kept, dict) else ():
        if not sub.isdecimal():
            continue
        match hold:
            case [int(until), int(head)]:
                found.append((int(sub), until, head))
            case int(until):
                found.append((int(sub), until, 0))
    return found
