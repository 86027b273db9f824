"""A deadline as a value: the instant by which work must be done, who set it, and what is left of it.

Instants are integer nanoseconds of a monotonic clock, so no step of the wall clock and no rounding moves them. Nothing here
waits, cancels or knows a current deadline; `gatepost.deadline.context` does. The forms that travel are `gatepost.deadline.wire`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, NoReturn

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.deadline.policy import DEFAULT_POLICY, DeadlinePolicy
from gatepost.deadline.wire import (
    DeadlineMessage,
    HeaderFormat,
    Problem,
    Text,
    format_headers,
    read_headers,
    read_message,
    write_message,
)
from gatepost.errors import GatepostError

NANOSECONDS: Final = 1_000_000_000
MILLISECOND_NS: Final = 1_000_000
SECONDS_MAX: Final = 1e9
"""Longest deadline, 31 years: what comes near to the largest float is meant as "none", and locks cannot wait for that long."""
CHAIN_MAX: Final = 16
"""Limits remembered for error texts: the outermost, then the innermost ones. Recursion must not grow a chain for ever."""
LOCAL: Final = "local"
"""Origin of a deadline that this process set itself."""


class Limit(NamedTuple):
    """One limit on the way: who set it, how long it was and when it ends."""

    name: str
    """Empty when nobody gave a name."""
    seconds: float
    expires_ns: int
    """Monotonic nanoseconds."""


class DeadlineExceeded(GatepostError, TimeoutError):
    """There is no time left, or not enough to be worth starting. Raised by `check`, `timeout_for` and a cut async scope."""

    def __init__(self, where: str, overdue: float, chain: tuple[Limit, ...]) -> None:
        late = f"{overdue:.3f} s too late" if overdue >= 0.0005 else "just now"
        limits = " > ".join(f"{limit.name or 'unnamed'} {limit.seconds:g} s" for limit in chain)
        super().__init__(f"deadline exceeded at {where}, {late}; limits, outermost first: {limits}")
        self.where = where
        """The step that found out: the name of a scope, "call", "handler", …"""
        self.overdue = overdue
        """Seconds that were missing: past the deadline, or short of what was needed."""
        self.chain = chain
        """The limits in force, outermost first."""

    def __reduce__(self) -> tuple[type[DeadlineExceeded], tuple[str, float, tuple[Limit, ...]]]:
        return type(self), (self.where, self.overdue, self.chain)


@dataclass(frozen=True, slots=True)
class Deadline:
    """The instant by which the current work must be done. Made by `after` and narrowed by `within`, never widened.

    Safe after a fork, since parent and child read the same monotonic clock; not picklable, since other machines do not.
    """

    expires_ns: int
    """Monotonic nanoseconds of `clock`."""
    chain: tuple[Limit, ...]
    """The limits this one is the minimum of, outermost first; never empty."""
    clock: Clock = field(default=SYSTEM_CLOCK, compare=False, repr=False)
    origin: str = LOCAL
    """Who asked for it: `local`, the header it came in, `grpc`, `message`, or `default` when a request brought none."""

    @classmethod
    def after(cls, seconds: float, *, name: str = "", clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """`seconds` from now; 0 is a deadline that has passed.

        Raises `TypeError` for what is no number, `ValueError` for negative, NaN and infinite ones.
        """
        check_seconds(seconds)
        expires_ns = clock.monotonic_ns() + round(seconds * NANOSECONDS)
        return cls(expires_ns, (Limit(name, seconds, expires_ns),), clock)

    @classmethod
    def until(cls, expires_ns: int, *, name: str = "", clock: Clock = SYSTEM_CLOCK, origin: str = LOCAL) -> Deadline:
        """At `expires_ns` monotonic nanoseconds of `clock`."""
        seconds = (expires_ns - clock.monotonic_ns()) / NANOSECONDS
        return cls(expires_ns, (Limit(name, seconds, expires_ns),), clock, origin)

    @classmethod
    def from_headers(
        cls,
        items: Iterable[tuple[Text, Text]] | Mapping[str, str],
        policy: DeadlinePolicy | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> tuple[Deadline | None, list[Problem]]:
        """The deadline of a request received now, and what could not be taken as it stood.

        A request without a readable budget gets `policy.default`, never more than `policy.max`; a budget of 0 gives a deadline
        that has passed. None only when `policy.on_invalid` is `reject` and something was invalid: answer 400.
        """
        if policy is None:
            policy = DEFAULT_POLICY
        received = read_headers(items, policy, clock.wall_us())
        if received.budget_ns is None:
            return None, received.problems
        return cls.received(received.budget_ns, received.asked_ns, received.source, clock), received.problems

    @classmethod
    def received(
        cls, budget_ns: int, asked_ns: int, origin: str, clock: Clock = SYSTEM_CLOCK, now_ns: int | None = None
    ) -> Deadline:
        """`budget_ns` from now, for a caller that asked for `asked_ns` by `origin`; the difference is `max` of a policy.

        `now_ns`: monotonic nanoseconds of `clock`, for who has just asked it.
        """
        if now_ns is None:
            now_ns = clock.monotonic_ns()
        expires_ns = now_ns + budget_ns
        asked = Limit(origin, asked_ns / NANOSECONDS, now_ns + asked_ns)
        if asked_ns == budget_ns:
            return cls(expires_ns, (asked,), clock, origin)
        return cls(expires_ns, (Limit("max", budget_ns / NANOSECONDS, expires_ns), asked), clock, origin)

    @classmethod
    def from_message(
        cls, message: object, *, name: str = "message", clock: Clock = SYSTEM_CLOCK
    ) -> tuple[Deadline | None, list[Problem]]:
        """The deadline of a queue message received now, from what `to_message` made.

        The age by the wall clock is taken off; a message from the future has age 0, and counts as skew when it is more than
        a second ahead. None when there is no message form, or it is not readable.
        """
        left_ns, problems = read_message(message, clock.wall_us())
        if left_ns is None:
            return None, problems
        expires_ns = clock.monotonic_ns() + left_ns
        return cls(expires_ns, (Limit(name, left_ns / NANOSECONDS, expires_ns),), clock, "message"), problems

    def to_headers(self, fmt: HeaderFormat = "request-timeout") -> list[tuple[str, str]]:
        """Header fields that hand down what is left, floored to 1 ms: `request-timeout`, `grpc` or `both`.

        Raises `DeadlineExceeded` with less than 1 ms left: such a request must not be sent.
        """
        return format_headers(self._sendable_ns("call"), fmt)

    def to_message(self) -> DeadlineMessage:
        """What is left, for a queue message: `{"rt": seconds left, "at": wall time}`. Raises `DeadlineExceeded` below 1 ms."""
        return write_message(self._sendable_ns("queue"), self.clock.wall_us())

    def within(self, outer: Deadline | None) -> Deadline:
        """The earlier of the two, knowing both. Instants of another clock are carried over by what is left of them."""
        if outer is None:
            return self
        outer_chain = outer.chain
        outer_ns = outer.expires_ns
        if outer.clock is not self.clock:
            moved_ns = self.clock.monotonic_ns() - outer.clock.monotonic_ns()
            outer_ns += moved_ns
            outer_chain = tuple([Limit(name, seconds, at + moved_ns) for name, seconds, at in outer_chain])
        chain = outer_chain + self.chain
        if len(chain) > CHAIN_MAX:
            chain = (chain[0], *chain[1 - CHAIN_MAX :])
        if outer_ns < self.expires_ns:
            return Deadline(outer_ns, chain, self.clock, outer.origin)
        return Deadline(self.expires_ns, chain, self.clock, self.origin)

    def child(self, cap: float | None = None, reserve: float = 0.0, *, name: str = "", where: str = "call") -> Deadline:
        """The deadline to hand to a callee: what is left less `reserve`, at most `cap`; `reserve` stays with the caller.

        Raises `DeadlineExceeded` when less than 1 ms would be left.
        """
        seconds = self.timeout_for(SECONDS_MAX if cap is None else cap, reserve, where=where)
        return Deadline.after(seconds, name=name, clock=self.clock).within(self)

    @property
    def received_ns(self) -> int:
        """Monotonic nanoseconds at which the outermost limit was set."""
        outermost = self.chain[0]
        return outermost.expires_ns - round(outermost.seconds * NANOSECONDS)

    @property
    def clamped_by(self) -> Limit | None:
        """The limit that holds instead of what was asked last; None when what was asked holds."""
        tightest = min(self.chain, key=_expires)
        return tightest if tightest.expires_ns < self.chain[-1].expires_ns else None

    def remaining_ns(self) -> int:
        """Nanoseconds left; negative once it has passed."""
        return self.expires_ns - self.clock.monotonic_ns()

    def remaining(self) -> float:
        """Seconds left; negative once it has passed."""
        return (self.expires_ns - self.clock.monotonic_ns()) / NANOSECONDS

    @property
    def expired(self) -> bool:
        """Whether no time is left."""
        return self.expires_ns <= self.clock.monotonic_ns()

    def timeout_for(
        self, cap: float, reserve: float = 0.0, *, where: str = "call", policy: DeadlinePolicy = DEFAULT_POLICY
    ) -> float:
        """Seconds to give a call: what is left less `reserve`, at most `cap`; always above 0.

        `reserve` is time kept back for what follows the call. Raises `DeadlineExceeded` when less than
        `policy.min_useful` would be left, because 0 and negative numbers mean "no timeout" to most libraries.
        """
        if not (0 < cap < math.inf and 0 <= reserve < math.inf):
            check_cap(cap, reserve)
        left = (self.expires_ns - self.clock.monotonic_ns()) / NANOSECONDS - reserve
        if left < policy.min_useful:
            raise self.exceeded(where, max(0.0, -left))
        return min(left, cap)

    def check(self, need: float = 0.0, *, where: str = "handler") -> None:
        """Raise `DeadlineExceeded` unless `need` seconds (and any at all) are left."""
        if not 0 <= need < math.inf:
            raise ValueError(f"need={need!r}: write the seconds the work takes, for example its median")
        left = self.remaining()
        if left <= 0 or left < need:
            raise self.exceeded(where, need - left)

    def exceeded(self, where: str, overdue: float | None = None) -> DeadlineExceeded:
        """The error to raise; `overdue` is seconds, by default since this deadline."""
        return DeadlineExceeded(where, max(0.0, -self.remaining()) if overdue is None else overdue, self.chain)

    def _sendable_ns(self, where: str) -> int:
        left_ns = self.remaining_ns()
        if left_ns < MILLISECOND_NS:
            raise self.exceeded(where)
        return left_ns

    def __copy__(self) -> Deadline:
        return self

    def __deepcopy__(self, _memo: object) -> Deadline:
        return self

    def __reduce__(self) -> NoReturn:
        # A monotonic instant of one machine is a random number on another.
        raise TypeError(
            "a Deadline means nothing in another process; send `to_message()` and read it with `Deadline.from_message`, "
            "or pass on what is left (`remaining()`)"
        )


def check_seconds(seconds: float) -> None:
    """Raise `TypeError` or `ValueError` unless `seconds` can be the length of a deadline."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"a deadline of {seconds!r}: write seconds as a number, for example 0.5")
    if not 0 <= seconds <= SECONDS_MAX:  # false for NaN too
        raise ValueError(
            f"a deadline of {seconds!r} s: write seconds from 0, for example 0.5; for no deadline, open no scope"
        )


def check_cap(cap: float, reserve: float) -> None:
    """Raise `ValueError` for a cap or reserve that is no time at all."""
    if not (math.isfinite(cap) and cap > 0):
        raise ValueError(f"cap={cap!r}: write the longest this call may take in seconds, for example 1.0")
    if not (math.isfinite(reserve) and reserve >= 0):
        raise ValueError(f"reserve={reserve!r}: write the seconds kept back for what follows, for example 0.01")


def _expires(limit: Limit) -> int:
    return limit.expires_ns
