"""One call of a client: its limit, what is told to the other side, and how its failure is named.

The limit is the earlier of the ambient deadline and the tier's total, fixed when the call starts and kept by it to the last
byte of the body, wherever that is read. Used by the modules beside it; nothing here touches a socket or a library.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol

from gatepost.clock import SYSTEM_CLOCK
from gatepost.deadline.context import current
from gatepost.deadline.metrics import COUNTERS, Metric
from gatepost.deadline.tiers import Tier
from gatepost.deadline.value import NANOSECONDS, Deadline, DeadlineExceeded, Limit
from gatepost.deadline.wire import DEADLINE_EXCEEDED_HEADER, REQUEST_TIMEOUT, parse_request_timeout

STATUS_TIMED_OUT: Final = 504
CALL_MIN: Final = 0.001
"""Seconds below which nothing is sent."""
STAGES: Final = frozenset({"arrival", "admission", "handler"})


class Headers(Protocol):
    """Header fields of any library; names are found whatever their case."""

    def get(self, name: str, /) -> Any:
        """The value, None without one."""
        ...


class CallExceeded(DeadlineExceeded):
    """A call ran out of time, here or at the service called. Each client raises a kind that is also its library's timeout."""

    def __init__(
        self,
        where: str,
        overdue: float,
        chain: tuple[Limit, ...],
        stage: str | None = None,
        retry_allowed: bool = False,
    ) -> None:
        DeadlineExceeded.__init__(self, where, overdue, chain)
        self.stage = stage
        """Where the service called gave up ("arrival", "admission", "handler"); None when it was us."""
        self.retry_allowed = retry_allowed
        """False when the call had been given all the time that was left: a retry can only fail in the same way."""

    def __reduce__(self) -> tuple[type[CallExceeded], tuple[object, ...]]:  # type: ignore[override]  # more arguments
        return type(self), (self.where, self.overdue, self.chain, self.stage, self.retry_allowed)


class Call:
    """A call in progress. Making one raises `CallExceeded` when too little time is left to send anything."""

    __slots__ = ("_counted", "_error", "deadline", "host", "tier", "whole")

    def __init__(self, tier: Tier, error: type[CallExceeded] = CallExceeded) -> None:
        ambient = current()
        clock = SYSTEM_CLOCK if ambient is None else ambient.clock
        own = Deadline.after(tier.total, name=f"{tier.name} total", clock=clock)
        self.tier = tier
        self.whole = ambient is not None and ambient.expires_ns <= own.expires_ns
        """Whether the call has all the time that is left, so that another try could not have any."""
        # When the ambient deadline is the tighter one, it alone belongs into error texts.
        self.deadline = ambient if ambient is not None and self.whole else own.within(ambient)
        self.host: str | None = None
        """The host first called, where a client follows redirects within one call."""
        self._error = error
        self._counted = False
        left = self.deadline.remaining()
        if ambient is not None:
            COUNTERS.remaining("call", left)
            if self.whole:
                COUNTERS.count(Metric.SHORTENED, tier.name)
        if left < CALL_MIN:
            raise self.exceeded("before the call")

    def __repr__(self) -> str:
        return f"<Call {self.tier.name} {self.deadline.remaining():.3f} s left>"

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

    def exceeded(self, where: str) -> CallExceeded:
        """The error to raise, of the class that the library's users catch."""
        self._count()
        return self._error(where, max(0.0, -self.deadline.remaining()), self.deadline.chain, None, not self.whole)

    def headers(self, sent: Headers) -> list[tuple[str, str]]:
        """Headers to set beside those `sent` anyway: the time left less the tier's reserve; none outside internal tiers.

        A shorter `Request-Timeout` that the caller wrote stays.
        """
        if not self.tier.internal:
            return []
        reserve = self.tier.reserve_for(self.deadline.remaining())
        given_ns = self.deadline.expires_ns - round(reserve * NANOSECONDS)
        given = Deadline(given_ns, self.deadline.chain, self.deadline.clock)
        left_ns = given.remaining_ns()
        if left_ns < CALL_MIN * NANOSECONDS:
            raise self.exceeded("before the call")
        written = sent.get(REQUEST_TIMEOUT)
        if (
            written is not None
            and (asked := parse_request_timeout(written.strip(" \t"))) is not None
            and asked < left_ns
        ):
            return []
        return given.to_headers()

    def refused(self, status: int, headers: Headers) -> CallExceeded | None:
        """The error an answer stands for when the other side ran out of time, None for every other answer."""
        if status != STATUS_TIMED_OUT or (stage := headers.get(DEADLINE_EXCEEDED_HEADER)) is None:
            return None
        # A header's text is somebody else's: only words we know get into the error.
        stage = stage if stage in STAGES else "unknown"
        self._count()
        late = max(0.0, -self.deadline.remaining())
        return self._error(f"the service called ({stage})", late, self.deadline.chain, stage, not self.whole)

    def _count(self) -> None:
        if not self._counted:
            self._counted = True
            COUNTERS.count(Metric.EXCEEDED, "call")


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


def find_exceeded(error: BaseException) -> CallExceeded | None:
    """The `CallExceeded` behind an error that a library wrapped, None when there is none."""
    return next((cause for cause in _causes(error) if isinstance(cause, CallExceeded)), None)


def caused_by(error: BaseException, *kinds: type[BaseException]) -> bool:
    """Whether an error of one of `kinds` is behind this one, or it is one."""
    return any(isinstance(cause, kinds) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
