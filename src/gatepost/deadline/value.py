"""A deadline as a value: the instant by which work must be done, who set it, and what is left of it.

Instants are integer nanoseconds of a monotonic clock, so no step of the wall clock and no rounding moves them. Nothing here
waits, cancels or knows a current deadline; `gatepost.deadline.context` does, and the wire formats build on this value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NoReturn

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.errors import ConfigurationError, GatepostError

NANOSECONDS: Final = 1_000_000_000
SECONDS_MAX: Final = 1e9
"""Longest deadline, 31 years: what comes near to the largest float is meant as "none", and locks cannot wait for that long."""
CHAIN_MAX: Final = 16
"""Limits remembered for error texts: the outermost, then the innermost ones. Recursion must not grow a chain for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePolicy:
    """What is the same for all deadlines of an application."""

    min_useful: float = 0.001
    """Seconds below which no call is started: a timeout that short only fails after work was done on both sides."""

    def __post_init__(self) -> None:
        value = self.min_useful
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
            raise ConfigurationError(
                f"min_useful={value!r}: write seconds above 0, for example 0.001; 0 would let through timeouts that most "
                "libraries read as 'none'"
            )


DEFAULT_POLICY: Final = DeadlinePolicy()


@dataclass(frozen=True, slots=True)
class Limit:
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
    """The instant by which the current work must be done. Made by `after` and narrowed by `within`, never widened."""

    expires_ns: int
    """Monotonic nanoseconds of `clock`."""
    chain: tuple[Limit, ...]
    """The limits this one is the minimum of, outermost first; never empty."""
    clock: Clock = field(default=SYSTEM_CLOCK, compare=False, repr=False)

    @classmethod
    def after(cls, seconds: float, *, name: str = "", clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """`seconds` from now; 0 is a deadline that has passed.

        Raises `TypeError` for what is no number, `ValueError` for negative, NaN and infinite ones.
        """
        check_seconds(seconds)
        return cls.until(clock.monotonic_ns() + round(seconds * NANOSECONDS), name=name, clock=clock)

    @classmethod
    def until(cls, expires_ns: int, *, name: str = "", clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """At `expires_ns` monotonic nanoseconds of `clock`."""
        seconds = (expires_ns - clock.monotonic_ns()) / NANOSECONDS
        return cls(expires_ns, (Limit(name, seconds, expires_ns),), clock)

    def within(self, outer: Deadline | None) -> Deadline:
        """The earlier of the two, knowing both. Instants of another clock are carried over by what is left of them."""
        if outer is None:
            return self
        moved_ns = 0 if outer.clock is self.clock else self.clock.monotonic_ns() - outer.clock.monotonic_ns()
        chain = (*outer.chain, *self.chain)
        if len(chain) > CHAIN_MAX:
            chain = (chain[0], *chain[1 - CHAIN_MAX :])
        return Deadline(min(self.expires_ns, outer.expires_ns + moved_ns), chain, self.clock)

    def remaining_ns(self) -> int:
        """Nanoseconds left; negative once it has passed."""
        return self.expires_ns - self.clock.monotonic_ns()

    def remaining(self) -> float:
        """Seconds left; negative once it has passed."""
        return (self.expires_ns - self.clock.monotonic_ns()) / NANOSECONDS

    @property
    def expired(self) -> bool:
        """Whether no time is left."""
        return self.remaining_ns() <= 0

    def timeout_for(
        self, cap: float, reserve: float = 0.0, *, where: str = "call", policy: DeadlinePolicy = DEFAULT_POLICY
    ) -> float:
        """Seconds to give a call: what is left less `reserve`, at most `cap`; always above 0.

        `reserve` is time kept back for what follows the call. Raises `DeadlineExceeded` when less than
        `policy.min_useful` would be left, because 0 and negative numbers mean "no timeout" to most libraries.
        """
        check_cap(cap, reserve)
        left = self.remaining() - reserve
        if left < policy.min_useful:
            raise self.exceeded(where, max(0.0, -left))
        return min(cap, left)

    def check(self, need: float = 0.0, *, where: str = "handler") -> None:
        """Raise `DeadlineExceeded` unless `need` seconds (and any at all) are left."""
        if not (math.isfinite(need) and need >= 0):
            raise ValueError(f"need={need!r}: write the seconds the work takes, for example its median")
        left = self.remaining()
        if left <= 0 or left < need:
            raise self.exceeded(where, need - left)

    def exceeded(self, where: str, overdue: float | None = None) -> DeadlineExceeded:
        """The error to raise; `overdue` is seconds, by default since this deadline."""
        return DeadlineExceeded(where, max(0.0, -self.remaining()) if overdue is None else overdue, self.chain)

    def __copy__(self) -> Deadline:
        return self

    def __deepcopy__(self, _memo: object) -> Deadline:
        return self

    def __reduce__(self) -> NoReturn:
        # A monotonic instant of one machine is a random number on another.
        raise TypeError(
            "a Deadline means nothing in another process; pass on what is left of it (`remaining()`) instead"
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
