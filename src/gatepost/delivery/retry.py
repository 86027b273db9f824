"""When the next attempt is due: schedules, jitter, `Retry-After`, and the check that a schedule fits its window.

Pure arithmetic on seconds and UTC microseconds; the die (`u`) and `now` are arguments. It decides no outcome: `delivery.decide`
picks the schedule, `dispatch.endpoints` refuses impossible ones at registration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gatepost.delivery.records import DEFAULT_JITTER, DEFAULT_SCHEDULE, DEFAULT_WINDOW, SLOW_SCHEDULE, Endpoint
from gatepost.errors import ConfigurationError

FAST_RETRY_MAX: Final = 1.0
"""Seconds within which a first attempt that failed safely in set-up is tried once more: a lost SYN or a resolver hiccup is over by then."""
ATTEMPTS_MAX: Final = 100
"""Longest schedule accepted. The store keeps attempt numbers in 16 bits; a hundred tries already say that nobody listens."""
WINDOW_MAX: Final = 30 * 86_400.0
"""Longest delivery window in seconds: as long as dead letters are kept."""
RETRY_AFTER_DIGITS_MAX: Final = 10
"""Ten digits of seconds are three centuries; more is an attack on our arithmetic."""

_MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Backoff:
    """The schedule of one endpoint, in force for one generation."""

    schedule: tuple[float, ...] = DEFAULT_SCHEDULE
    """Seconds before each attempt, counted from the end of the previous one; its length is the number of attempts."""
    slow: tuple[float, ...] = SLOW_SCHEDULE
    """Seconds after the first, second … attempt whose outcome the owner must mend."""
    window: float = DEFAULT_WINDOW
    """Seconds from acceptance within which a delivery is tried."""
    jitter: float = DEFAULT_JITTER
    """A delay is drawn evenly from ± this share."""

    def normal_delay(self, used: int, u: float) -> float | None:
        """Seconds until the next attempt after `used` ones; None: the schedule is exhausted."""
        if used >= len(self.schedule):
            return None
        return jittered(self.schedule[used], self.jitter, u)

    def slow_delay(self, used: int, u: float) -> float | None:
        """The same on the slow schedule. An endpoint with fewer attempts in its own schedule gets no more here."""
        if used > len(self.slow) or used >= len(self.schedule):
            return None
        return jittered(self.slow[used - 1], self.jitter, u)

    def window_end(self, born_at: int) -> int:
        """The last instant at which an attempt may start, in UTC microseconds."""
        return born_at + round(self.window * _MICROSECONDS)


def backoff_of(endpoint: Endpoint) -> Backoff:
    """The schedule in force for an endpoint; what it does not give is resolved here and nowhere else.

    A window without a schedule keeps as many of the default attempts as fit it; a schedule without a window gets the default one.
    """
    window = DEFAULT_WINDOW if endpoint.window is None else endpoint.window
    schedule = DEFAULT_SCHEDULE if endpoint.schedule is None else endpoint.schedule
    if endpoint.schedule is None:
        while len(schedule) > 1 and longest_sum(schedule) > window:
            schedule = schedule[:-1]
    return Backoff(schedule=schedule, window=window)


def jittered(delay: float, jitter: float, u: float) -> float:
    """`delay` moved by up to ± `jitter` of itself; `0 <= u < 1`."""
    return delay * (1.0 + jitter * (2.0 * u - 1.0))


def longest_sum(schedule: Sequence[float], jitter: float = DEFAULT_JITTER) -> float:
    """Seconds from acceptance to the start of the last attempt when every delay is drawn longest and attempts take no time."""
    return sum(schedule) * (1.0 + jitter)


@dataclass(frozen=True, slots=True)
class ScheduleCheck:
    """A schedule that fits its window; `str()` is the line to print."""

    attempts: int
    total: float
    """Seconds to the end of the last attempt, with maximal jitter and every attempt as long as its budget."""
    window: float
    """Seconds."""

    def __str__(self) -> str:
        return (
            f"{self.attempts} attempts end at most {describe_seconds(self.total)} after acceptance, "
            f"within the delivery window of {describe_seconds(self.window)}"
        )


def check_schedule(
    schedule: Sequence[float] = DEFAULT_SCHEDULE,
    window: float = DEFAULT_WINDOW,
    attempt_budget: float = 0.0,
    jitter: float = DEFAULT_JITTER,
) -> ScheduleCheck:
    """Refuse a schedule that cannot be kept, before any delivery relies on it.

    `attempt_budget` is the seconds one attempt may last. Raises `ConfigurationError` for an empty or overlong schedule, a delay
    or window that is negative or no number, and a sum (with maximal jitter) that does not fit the window.
    """
    if not schedule or len(schedule) > ATTEMPTS_MAX:
        raise ConfigurationError(
            f"schedule has {len(schedule)} delays: write 1 to {ATTEMPTS_MAX}, one before each attempt, the first usually 0"
        )
    for delay in schedule:
        if not _is_number(delay) or not 0 <= delay <= WINDOW_MAX:
            raise ConfigurationError(f"schedule holds {delay!r}: write seconds from 0 to {WINDOW_MAX:.0f}")
    if not _is_number(window) or not 0 < window <= WINDOW_MAX:
        raise ConfigurationError(f"window={window!r}: write seconds, more than 0 and at most {WINDOW_MAX:.0f}")
    total = longest_sum(schedule, jitter) + len(schedule) * attempt_budget
    if total > window:
        raise ConfigurationError(
            f"the schedule's {len(schedule)} attempts take up to {describe_seconds(total)} (±{jitter:.0%} jitter and "
            f"{attempt_budget:g} s an attempt included), which does not fit the delivery window of {describe_seconds(window)}: "
            f"write window={math.ceil(total)} or a shorter schedule"
        )
    return ScheduleCheck(len(schedule), total, window)


def describe_seconds(seconds: float) -> str:
    """`327066.0` as `3 d 18 h 51 min`, for people."""
    rest = round(seconds)
    words = []
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        count, rest = divmod(rest, size)
        if count:
            words.append(f"{count} {unit}")
    return " ".join(words[:3]) or "0 s"


# ---------------------------------------------------------------------------------------------- Retry-After

_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), start=1
    )
}
_TIME: Final = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_DATE_FORMS: Final = tuple(
    re.compile(form, re.ASCII | re.IGNORECASE)
    for form in (
        rf"[a-z]{{3}}, (?P<day>\d\d) (?P<month>[a-z]{{3}}) (?P<year>\d{{4}}) {_TIME} gmt",  # IMF-fixdate
        rf"[a-z]{{6,9}}, (?P<day>\d\d)-(?P<month>[a-z]{{3}})-(?P<year>\d\d) {_TIME} gmt",  # RFC 850
        rf"[a-z]{{3}} (?P<month>[a-z]{{3}}) (?P<day>[ \d]\d) {_TIME} (?P<year>\d{{4}})",  # asctime
    )
)
"""The three forms of HTTP-date that a recipient must accept (RFC 9110 section 5.6.7)."""


def parse_retry_after(value: str | None, now: int, date: str | None = None) -> float | None:
    """Seconds from `now` (UTC microseconds) that a `Retry-After` asks for; None for none, nonsense, or an instant gone by.

    RFC 9110 section 10.2.3: a whole number of seconds or an HTTP-date. `date` is the response's own `Date`: an instant is
    counted from it, when it can be read, so that a server whose clock is wrong still gets the pause it asked for.
    """
    text = (value or "").strip(" \t")
    if text.isascii() and text.isdigit():
        return float(text) if len(text) <= RETRY_AFTER_DIGITS_MAX else None
    instant = _http_date(text, now)
    if instant is None:
        return None
    said_at = _http_date((date or "").strip(" \t"), now) or now
    return None if instant <= said_at else (instant - said_at) / _MICROSECONDS


def _http_date(text: str, now: int) -> int | None:
    """An HTTP-date as UTC microseconds, None for anything else; `now` tells the century of two digits."""
    for form in _DATE_FORMS:
        match = form.fullmatch(text)
        if match is not None:
            return _instant(match, now)
    return None


def _instant(match: re.Match[str], now: int) -> int | None:
    month = _MONTHS.get(match["month"].lower())
    if month is None:
        return None
    year = int(match["year"])
    if len(match["year"]) == 2:
        # RFC 9110: a two-digit year that seems more than 50 years ahead is the past one of these digits.
        this_year = datetime.fromtimestamp(now / _MICROSECONDS, UTC).year
        year += this_year // 100 * 100
        if year > this_year + 50:
            year -= 100
    # A leap second reads as the second before it.
    second = min(int(match["second"]), 59)
    try:
        moment = datetime(year, month, int(match["day"]), int(match["hour"]), int(match["minute"]), second, tzinfo=UTC)
    except ValueError:
        return None
    return round(moment.timestamp()) * _MICROSECONDS


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
