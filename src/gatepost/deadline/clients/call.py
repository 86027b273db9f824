"""One call of a client: its limit, what is told to the other side, and how its failure is named.

The limit is the earlier of the ambient deadline and the tier's total, fixed when the call starts and kept by it to the last
byte of the body, wherever that is read. Used by the modules beside it; nothing here touches a socket or a library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from gatepost.deadline.context import current
from gatepost.deadline.tiers import Tier
from gatepost.deadline.value import NANOSECONDS, Deadline, DeadlineExceeded

REQUEST_TIMEOUT: Final = "Request-Timeout"
DEADLINE_EXCEEDED: Final = "Deadline-Exceeded"
STATUS_TIMED_OUT: Final = 504
CALL_MIN: Final = 0.001
"""Seconds below which nothing is sent."""


class Call:
    """A call in progress. Raises `DeadlineExceeded` where it is made when too little time is left to send anything."""

    __slots__ = ("_error", "deadline", "tier", "whole")

    def __init__(self, tier: Tier, error: type[DeadlineExceeded] = DeadlineExceeded) -> None:
        ambient = current()
        own = (
            Deadline.after(tier.total, name=f"{tier.name} total")
            if ambient is None
            else Deadline.after(tier.total, name=f"{tier.name} total", clock=ambient.clock)
        )
        self.tier = tier
        self.whole = ambient is not None and ambient.expires_ns <= own.expires_ns
        """Whether the call has all the time that is left, so that another try could not have any."""
        # An ambient deadline that is the tighter one is named alone in error texts.
        self.deadline = ambient if ambient is not None and self.whole else own.within(ambient)
        self._error = error
        if self.deadline.remaining() < CALL_MIN:
            raise self.exceeded("before the call")

    def seconds(self, own: float | None, where: str) -> float:
        """Seconds for the next step: its `own` limit, at most what is left, always above 0."""
        left = self.deadline.remaining()
        if left <= 0:
            raise self.exceeded(where)
        return left if own is None else min(own, left)

    @property
    def expired(self) -> bool:
        """Whether no time is left."""
        return self.deadline.expired

    def exceeded(self, where: str) -> DeadlineExceeded:
        """The error to raise, of the class that the library's users catch."""
        return self._error(where, max(0.0, -self.deadline.remaining()), self.deadline.chain)

    def headers(self) -> list[tuple[str, str]]:
        """What to tell the other side: the time left less the tier's reserve, and nothing outside internal tiers."""
        if not self.tier.internal:
            return []
        left = self.deadline.remaining()
        given_ns = self.deadline.expires_ns - round(self.tier.reserve_for(left) * NANOSECONDS)
        given = Deadline(given_ns, self.deadline.chain, self.deadline.clock)
        if given.remaining() < CALL_MIN:
            raise self.exceeded("before the call")
        return given.to_headers()

    def refused(self, status: int, headers: Mapping[str, str]) -> PeerExceeded | None:
        """The error an answer stands for when the other side ran out of time, None for every other answer."""
        if status != STATUS_TIMED_OUT or (stage := headers.get(DEADLINE_EXCEEDED)) is None:
            return None
        # Nothing but a word of ours may get into error texts from a header.
        return PeerExceeded(stage if stage in STAGES else "unknown", self.whole, self.deadline)


STAGES: Final = frozenset({"arrival", "admission", "handler"})


class PeerExceeded(DeadlineExceeded):
    """The other side answered 504 with `Deadline-Exceeded`: our time, or the part we gave it, was too short for it."""

    def __init__(self, stage: str, whole: bool, deadline: Deadline) -> None:
        super().__init__(f"the service called ({stage})", max(0.0, -deadline.remaining()), deadline.chain)
        self.stage = stage
        """Where it gave up: "arrival", "admission" or "handler"."""
        self.retry_allowed = not whole
        """False when the call had been given all the time that was left: a retry can only fail in the same way."""
        self._deadline = deadline

    def __reduce__(self) -> tuple[type[DeadlineExceeded], tuple[str, float, tuple[object, ...]]]:  # type: ignore[override]
        # Another process has no use for the deadline, and the plain error says all the rest.
        return DeadlineExceeded, (self.where, self.overdue, self.chain)


_call: ContextVar[Call | None] = ContextVar("gatepost_call", default=None)


def call_in_force() -> Call | None:
    """The call that the running code works for, None outside of any."""
    return _call.get()


@contextmanager
def working_for(call: Call) -> Iterator[None]:
    """Let the network code below know for which call it works."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


def find_exceeded(error: BaseException | None) -> DeadlineExceeded | None:
    """The `DeadlineExceeded` behind an error that a library wrapped, None when there is none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, DeadlineExceeded):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
