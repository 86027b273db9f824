"""Schedules, jitter, windows and `Retry-After`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies

from gatepost.delivery.records import DEFAULT_JITTER, DEFAULT_SCHEDULE, DEFAULT_WINDOW, SLOW_SCHEDULE, Endpoint
from gatepost.delivery.retry import (
    ATTEMPTS_MAX,
    WINDOW_MAX,
    Backoff,
    backoff_of,
    check_schedule,
    describe_seconds,
    jittered,
    longest_sum,
    parse_retry_after,
)
from gatepost.errors import ConfigurationError

NOW = round(datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC).timestamp()) * 1_000_000
LONGEST_ATTEMPT = 18.0


def _endpoint(schedule: tuple[float, ...] | None = None, window: float | None = None) -> Endpoint:
    return Endpoint(id="ep_0000000000001", tenant="t", url="https://example.com/", schedule=schedule, window=window)


def test_the_default_schedule_fits_the_default_window_with_maximal_jitter() -> None:
    """The promise on the first page: twelve attempts, all inside four days, however the dice fall."""
    check = check_schedule(attempt_budget=LONGEST_ATTEMPT)
    assert check.attempts == 12
    assert sum(DEFAULT_SCHEDULE) * 1.2 + 12 * LONGEST_ATTEMPT == pytest.approx(check.total)
    assert check.total < DEFAULT_WINDOW == 4 * 86_400
    assert str(check) == "12 attempts end at most 3 d 18 h 54 min after acceptance, within the delivery window of 4 d"


def test_the_slow_schedule_fits_the_default_window_too() -> None:
    """A delivery on the slow schedule must end by exhaustion, after the owner had every chance, not by the window."""
    assert longest_sum(SLOW_SCHEDULE) + 7 * LONGEST_ATTEMPT < DEFAULT_WINDOW


@pytest.mark.parametrize(
    ("schedule", "window", "budget", "message"),
    [
        ((), 60.0, 0.0, "write 1 to 100"),
        ((1.0,) * (ATTEMPTS_MAX + 1), DEFAULT_WINDOW, 0.0, "write 1 to 100"),
        ((-1.0,), 60.0, 0.0, "seconds from 0"),
        ((float("nan"),), 60.0, 0.0, "seconds from 0"),
        ((float("inf"),), 60.0, 0.0, "seconds from 0"),
        ((True,), 60.0, 0.0, "seconds from 0"),
        (("5",), 60.0, 0.0, "seconds from 0"),
        ((0.0,), 0.0, 0.0, "more than 0"),
        ((0.0,), -5.0, 0.0, "more than 0"),
        ((0.0,), WINDOW_MAX + 1, 0.0, "more than 0"),
        ((0.0,), float("nan"), 0.0, "more than 0"),
        ((0.0, 60.0), 71.0, 0.0, "write window=72"),
        ((0.0, 60.0), 90.0, 10.0, "write window=92"),
    ],
)
def test_an_impossible_schedule_is_refused_and_told_what_to_write(
    schedule: tuple[float, ...], window: float, budget: float, message: str
) -> None:
    """Found out at registration, not four days later in the dead letters."""
    with pytest.raises(ConfigurationError, match=message):
        check_schedule(schedule, window, budget)


def test_a_schedule_that_just_fits_is_accepted() -> None:
    """The bound itself is allowed: 60 s with 20 % jitter and two attempts of 10 s are 92 s."""
    assert check_schedule((0.0, 60.0), 92.0, 10.0).total == pytest.approx(92.0)


def test_what_an_endpoint_does_not_give_is_resolved() -> None:
    """A short window alone cuts the default schedule; nothing given means the defaults."""
    assert backoff_of(_endpoint()) == Backoff()
    assert backoff_of(_endpoint(schedule=(0.0, 1.0), window=10.0)) == Backoff(schedule=(0.0, 1.0), window=10.0)
    assert backoff_of(_endpoint(window=3_600.0)).schedule == DEFAULT_SCHEDULE[:6]
    assert backoff_of(_endpoint(window=1.0)).schedule == (0.0,)
    assert backoff_of(_endpoint(schedule=(0.0, 1.0))).window == DEFAULT_WINDOW


def test_delays_come_from_the_schedule_until_it_is_exhausted() -> None:
    """The number of delays is the number of attempts: after the twelfth there is none."""
    backoff = Backoff()
    delays = [backoff.normal_delay(used, 0.5) for used in range(13)]
    assert delays == [*DEFAULT_SCHEDULE, None]


def test_slow_delays_count_from_the_first_attempt() -> None:
    """One minute after the first 404, dead after the seventh attempt."""
    backoff = Backoff()
    assert [backoff.slow_delay(used, 0.5) for used in range(1, 8)] == [*SLOW_SCHEDULE, None]


def test_the_slow_schedule_never_gives_more_attempts_than_the_endpoint_asked_for() -> None:
    """Who wrote a schedule of two attempts must not see seven."""
    backoff = Backoff(schedule=(0.0, 5.0))
    assert backoff.slow_delay(1, 0.5) == 60.0
    assert backoff.slow_delay(2, 0.5) is None


@given(delay=strategies.floats(0, 1e6), u=strategies.floats(0, 1, exclude_max=True))
def test_jitter_stays_within_its_share(delay: float, u: float) -> None:
    """±20 %, or the sum that was checked is not the sum that happens."""
    moved = jittered(delay, DEFAULT_JITTER, u)
    assert delay * 0.8 <= moved * (1 + 1e-9)
    assert moved <= delay * 1.2 * (1 + 1e-9)


def test_the_ends_of_the_jitter() -> None:
    """The die is drawn from [0, 1): its ends are the ends of the spread."""
    assert jittered(100.0, 0.2, 0.0) == pytest.approx(80.0)
    assert jittered(100.0, 0.2, 0.5) == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        ("  7\t", 7.0),
        ("0", 0.0),
        ("Mon, 30 Nov 2026 12:02:00 GMT", 120.0),
        ("mon, 30 nov 2026 12:02:00 gmt", 120.0),
        ("Monday, 30-Nov-26 12:02:00 GMT", 120.0),
        ("Mon Nov 30 12:02:00 2026", 120.0),
        ("Tue Dec  1 12:00:00 2026", 86_400.0),
        ("Thu, 31 Dec 2026 23:59:60 GMT", (31 * 24 + 12) * 3_600.0 - 1.0),
    ],
)
def test_retry_after_is_seconds_or_any_http_date(value: str, seconds: float) -> None:
    """RFC 9110 section 5.6.7: a recipient must accept all three forms of date."""
    assert parse_retry_after(value, NOW) == seconds


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "soon",
        "-5",
        "+5",
        "1.5",
        "٣",
        "1e3",
        "99999999999",
        "Mon, 30 Nov 2026 12:00:00 GMT",
        "Mon, 30 Nov 2026 11:00:00 GMT",
        "Mon, 30 Nov 2026 12:02:00 CET",
        "Mon, 31 Feb 2027 12:02:00 GMT",
        "Mon, 30 Foo 2026 12:02:00 GMT",
        "Mon, 30 Nov 2026 25:02:00 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "120, 120",
    ],
)
def test_nonsense_and_the_past_are_ignored(value: str | None) -> None:
    """A broken receiver must not be able to stop or hasten our schedule."""
    assert parse_retry_after(value, NOW) is None


def test_a_two_digit_year_is_at_most_fifty_years_ahead() -> None:
    """RFC 9110 section 5.6.7: beyond that it means the past one with these digits."""
    in_2076 = parse_retry_after("Monday, 30-Nov-76 12:00:00 GMT", NOW)
    assert in_2076 is not None
    assert in_2076 > 49 * 365 * 86_400
    assert parse_retry_after("Monday, 30-Nov-77 12:00:00 GMT", NOW) is None


@given(value=strategies.text(max_size=60))
def test_any_text_is_read_without_an_error(value: str) -> None:
    """The header is written by somebody else."""
    found = parse_retry_after(value, NOW)
    assert found is None or found >= 0


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.0, "0 s"), (59.6, "1 min"), (327_066.0, "3 d 18 h 51 min"), (90_061.0, "1 d 1 h 1 min")]
)
def test_durations_read_like_a_person_says_them(seconds: float, words: str) -> None:
    """The sum is printed at start for an operator."""
    assert words == describe_seconds(seconds)
