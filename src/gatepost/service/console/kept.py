"""Answers that are worth sharing for some seconds between everybody who looks: sums over the store, reports over all endpoints.

One answer per name is kept, and made anew when it is too old or of something else. In the memory of a process; used by pages whose
cost should not grow with the number of people in front of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from gatepost.clock import Clock

Result = TypeVar("Result")


class Kept:
    """Few names, each with its last answer."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._answers: dict[str, tuple[object, float, Any]] = {}

    async def get(self, name: str, of: object, seconds: float, make: Callable[[], Awaitable[Result]]) -> Result:
        """The answer of this name, at most `seconds` old and for the same `of`; else `make` makes it. Raises what that raises."""
        known = self._answers.get(name)
        if known is not None and known[0] == of and self._monotonic() - known[1] <= seconds:
            found: Result = known[2]
            return found
        made = await make()
        self._answers[name] = (of, self._monotonic(), made)
        return made
