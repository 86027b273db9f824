"""What PostgreSQL is told about the time left, and when it must be told again. Decides; runs nothing.

One `Budget` for each connection remembers what was last set and where (in the transaction or for the session), so that a
transaction of many quick statements pays one more round trip, not one each. Used by the modules for SQLAlchemy, psycopg and
asyncpg beside it, which send what `plan` returns.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, assert_never

from gatepost.deadline.metrics import COUNTERS, Metric
from gatepost.deadline.value import Deadline, DeadlineExceeded
from gatepost.errors import ConfigurationError

RESERVE: Final = 0.010
"""Seconds of what is left that the statement does not get: the error must still travel back and be answered."""
LOCK_MAX: Final = 1.0
"""Longest wait for a lock in seconds: a queue of waiters on one row is better told early than late."""
CALL_MIN: Final = 0.001
"""Seconds below which no statement is sent."""
STALE_SHARE: Final = 0.2
"""Share by which what is left may have fallen since it was set."""
STALE_MAX: Final = 0.05
"""The same in seconds, which holds for long budgets: no statement overruns its deadline by more."""
LAST: Final = 0.25
"""Seconds before the end from which every millisecond is told."""
MS_MAX: Final = 2_147_483_647
"""What PostgreSQL can hold, 24 days."""
QUERY_CANCELED: Final = "57014"
"""SQLSTATE of a statement ended by its timeout or by a cancel request."""

_SETTINGS: Final = """\
SELECT g.s, g.l,
  set_config('statement_timeout', least(nullif((extract(epoch FROM g.s::interval) * 1000)::bigint, 0), g.sm)::text, g.o),
  set_config('lock_timeout', least(nullif((extract(epoch FROM g.l::interval) * 1000)::bigint, 0), g.lm)::text, g.o)
FROM (SELECT coalesce({}::text, current_setting('statement_timeout')) AS s,
             coalesce({}::text, current_setting('lock_timeout')) AS l,
             {}::bigint AS sm, {}::bigint AS lm, {}::boolean AS o OFFSET 0) AS g"""
# The least of what the operator set and what is left: a deadline never loosens a limit. Read and set in one round trip; the
# OFFSET keeps the planner from moving the reading behind the setting.
SET_NUMBERED: Final = _SETTINGS.format("$1", "$2", "$3", "$4", "$5")
SET_FORMATTED: Final = _SETTINGS.format("%s", "%s", "%s", "%s", "%s")
_RESTORE: Final = "SELECT set_config('statement_timeout', {}, {}), set_config('lock_timeout', {}, {})"
RESTORE_NUMBERED: Final = _RESTORE.format("$1::text", "$3::boolean", "$2::text", "$3::boolean")
RESTORE_FORMATTED: Final = _RESTORE.format("%s::text", "%s::boolean", "%s::text", "%s::boolean")

_FINISHES: Final = re.compile(r"\s*(?:commit|end|rollback|abort|release)\b[^;]*;?\s*", re.IGNORECASE)
_ENDS: Final = re.compile(
    r"\s*(?:commit|end|rollback|abort|prepare\s+transaction|set|reset|discard)\b|.*;.*\S", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Set:
    """Send `SET_…` with `values`; then tell `Budget.set_done` the first two columns of the answer."""

    values: tuple[str | None, str | None, int, int, bool]


@dataclass(frozen=True, slots=True)
class Restore:
    """Send `RESTORE_…` with these: no deadline is in force any more, and the limits are what they were."""

    statement: str
    lock: str
    local: bool


Plan = Set | Restore | None


def of_session(plan: Set | Restore) -> bool:
    """Whether it changes the session. Cut off before its answer came, nobody knows what the session's limits are, and they
    outlive all who know of them: the connection must be given up. Those of a transaction end with it."""
    match plan:
        case Set():
            return not plan.values[-1]
        case Restore():
            return not plan.local
        case _:
            assert_never(plan)


Limits = tuple[str, str]
"""`statement_timeout` and `lock_timeout` as PostgreSQL writes them."""


class Budget:
    """What one connection's server was last told. Not shared between threads, as the connection is not.

    In a transaction limits are set for it alone; outside of one (autocommit) there is only the session to set them for, so
    they must be undone before somebody else gets the connection. A transaction may begin while the session has limits of ours.
    """

    __slots__ = ("_asked", "_inner", "_lock_max", "_longest", "_reserve", "_session", "_set_ms")

    def __init__(self, *, reserve: float = RESERVE, lock_max: float = LOCK_MAX, longest: float | None = None) -> None:
        if not (math.isfinite(reserve) and reserve >= 0):
            raise ConfigurationError(f"reserve={reserve!r}: write seconds from 0, for example {RESERVE}")
        for name, value in (("lock_max", lock_max), ("longest", longest)):
            if value is not None and not (math.isfinite(value) and value >= CALL_MIN):
                raise ConfigurationError(f"{name}={value!r}: write seconds, for example {LOCK_MAX}")
        self._reserve = reserve
        self._lock_max = lock_max
        self._longest = longest
        self._session: Limits | None = None  # the operator's own, while the session has ours
        self._inner: Limits | None = None  # the same for the running transaction
        self._set_ms: int | None = None  # None: unknown, or the operator's own are in force
        self._asked: Set | None = None

    def plan(self, deadline: Deadline | None, *, transaction: bool) -> Plan:
        """What to send before the next statement. `transaction`: the statement is in one, or begins one.

        Raises `DeadlineExceeded` when less than a millisecond is left.
        """
        if self._inner is not None and not transaction:
            self.forget()  # it has ended
        if deadline is None and self._longest is None:
            return self._restore(transaction)
        left = math.inf
        if deadline is not None and (left := deadline.remaining()) < CALL_MIN:
            raise exceeded(deadline, "db")
        ms = self._milliseconds(left)
        known = self._inner if transaction else self._session
        if known is not None and self._set_ms is not None and not _stale(self._set_ms, ms):
            return None
        statement, lock = known or self._session or (None, None)
        self._asked = Set((statement, lock, ms, min(ms, round(self._lock_max * 1000)), transaction))
        return self._asked

    def set_done(self, statement: str, lock: str) -> None:
        """`Set` was sent; these are the limits that held before."""
        assert self._asked is not None
        *_, ms, _lock_ms, local = self._asked.values
        if local:
            self._inner = (statement, lock)
        else:
            self._session = (statement, lock)
        self._set_ms = ms

    def forget(self) -> None:
        """The transaction ended, a savepoint was rolled back, or somebody set limits by hand: know nothing about them."""
        self._inner = None
        self._set_ms = None

    def undo(self) -> Restore | None:
        """What to send before the connection goes back to its pool."""
        self.forget()
        return self._restore(False)

    def is_late(self, deadline: Deadline | None) -> bool:
        """Whether a statement that was cancelled just now was so because its time was up, and not by somebody else."""
        return deadline is not None and deadline.remaining() <= self._reserve + STALE_MAX

    def _restore(self, transaction: bool) -> Restore | None:
        if not transaction:
            if self._session is None:
                return None
            limits, self._session, self._set_ms = self._session, None, None
            return Restore(*limits, False)
        if self._inner is None:
            if self._session is None:
                return None
            self._inner, self._set_ms = self._session, None
        elif self._set_ms is None:
            return None  # done before in this transaction
        self._set_ms = None
        return Restore(*self._inner, True)

    def _milliseconds(self, left: float) -> int:
        ms = float(MS_MAX) if left == math.inf else max(1.0, (left - self._reserve) * 1000 + 1e-6)
        if self._longest is not None:
            ms = min(ms, self._longest * 1000)
        return min(math.floor(ms), MS_MAX)


def _stale(told_ms: int, ms: int) -> bool:
    fallen = told_ms - ms
    if fallen < 0:
        return True  # a scope with more time took over
    if ms <= LAST * 1000:
        return fallen > 0
    return fallen > min(told_ms * STALE_SHARE, STALE_MAX * 1000)


def exceeded(deadline: Deadline, where: str) -> DeadlineExceeded:
    """The error to raise, counted."""
    COUNTERS.count(Metric.EXCEEDED, where)
    return deadline.exceeded(where)


def ends_settings(sql: str) -> bool:
    """Whether the text may end the transaction, roll a savepoint back or change settings: then nothing is known after it."""
    return _ENDS.match(sql) is not None


def finishes(sql: str) -> bool:
    """Whether the text ends a transaction or savepoint and does nothing else: that is how cut work is cleaned up, so it runs."""
    return _FINISHES.fullmatch(sql) is not None
