"""Alerts on a change of an endpoint's own outcomes, and the recognition of trouble that is ours."""

from __future__ import annotations

import pytest

from gatepost.admission.alerts import AlertChange, OutcomeMix
from gatepost.admission.evidence import Sign
from gatepost.admission.fleet_trouble import FleetTrouble, family_of

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
MINUTE = 60 * SECOND


def minutes(
    mix: OutcomeMix, start: int, count: int, *, bad: int, of: int = 10, sign: Sign = Sign.SETUP
) -> list[tuple[int, AlertChange]]:
    """`count` minutes with `of` attempts each, `bad` of them failing; (minute, change) of every alert."""
    changes = []
    for minute in range(count):
        for number in range(of):
            now = start + minute * MINUTE + number * SECOND
            alert = mix.observe(sign if number < bad else Sign.OK, now)
            if alert is not None:
                changes.append((minute, alert.change))
    return changes


def test_a_change_from_none_to_forty_percent_within_five_minutes_is_an_alert() -> None:
    """The seed's own example: this endpoint, these five minutes."""
    mix = OutcomeMix()
    assert minutes(mix, NOW, 60, bad=0) == []
    later = NOW + 60 * MINUTE
    changes = minutes(mix, later, 5, bad=4)
    assert changes == [(3, AlertChange.RAISED)]
    assert mix.alarm is Sign.SETUP
    assert mix.share(Sign.SETUP) == pytest.approx(0.4, abs=0.1)
    assert minutes(mix, later + 5 * MINUTE, 20, bad=0) == [(3, AlertChange.CLEARED)]
    assert mix.alarm is None


def test_an_endpoint_that_was_always_like_that_is_no_news() -> None:
    """Somebody's staging system is down all the time."""
    mix = OutcomeMix()
    assert minutes(mix, NOW, 1, bad=9) == []
    [raised, cleared] = minutes(mix, NOW + MINUTE, 60 * 25, bad=9)
    assert raised[1] is AlertChange.RAISED
    assert cleared[1] is AlertChange.CLEARED
    assert abs(cleared[0] - 24 * 60) <= 5
    assert minutes(mix, NOW + 61 * 25 * MINUTE, 60, bad=9) == []


def test_few_attempts_raise_no_alert() -> None:
    """Nine failures out of nine may be one short hiccup."""
    mix = OutcomeMix()
    assert minutes(mix, NOW, 1, bad=9, of=9) == []
    assert mix.calls == 9


def test_silence_does_not_clear_an_alert() -> None:
    """No attempts, no evidence: the breaker may hold them back."""
    mix = OutcomeMix()
    minutes(mix, NOW, 30, bad=0)
    minutes(mix, NOW + 30 * MINUTE, 5, bad=10)
    assert mix.observe(Sign.SETUP, NOW + 90 * MINUTE) is None
    assert mix.alarm is Sign.SETUP
    assert mix.share(Sign.OK) == 0.0


def test_usual_shares_survive_a_restart() -> None:
    """Else every restart would alert on every endpoint that is always down."""
    mix = OutcomeMix()
    minutes(mix, NOW, 60 * 30, bad=9)
    again = OutcomeMix.from_bytes(mix.to_bytes())
    assert minutes(again, NOW + 60 * 31 * MINUTE, 10, bad=9) == []
    with pytest.raises(ValueError, match="mix"):
        OutcomeMix.from_bytes(b"x")


def test_a_clock_that_goes_back_does_no_harm() -> None:
    """Attempts then count in the minute they came from."""
    mix = OutcomeMix()
    minutes(mix, NOW, 5, bad=0)
    assert mix.observe(Sign.OK, NOW - 10 * MINUTE) is None
    assert mix.calls > 0


# ------------------------------------------------------------------------------------------------ fleet-wide


def fleet(answering: int, failing: int, *, now: int = NOW) -> FleetTrouble:
    """`answering` operators that answer, of which `failing` have just begun to fail."""
    watch = FleetTrouble()
    for number in range(answering):
        watch.answered(f"operator-{number}", now)
    for number in range(failing):
        watch.failed(f"operator-{number}", now + SECOND)
    return watch


@pytest.mark.parametrize(
    ("answering", "failing", "ours"), [(20, 10, True), (20, 9, False), (8, 8, True), (7, 7, False)]
)
def test_many_unrelated_hosts_at_once_are_our_trouble(answering: int, failing: int, ours: bool) -> None:
    """Half of all, and at least eight: nobody's operators fail together but through us."""
    assert fleet(answering, failing).suspected(NOW + 2 * SECOND) is ours


def test_hosts_that_were_down_before_do_not_count() -> None:
    """The background hum of a large fleet."""
    watch = fleet(2, 0)
    for number in range(100):
        watch.failed(f"always-down-{number}", NOW)
    assert not watch.suspected(NOW)


def test_trouble_ends_when_hosts_answer_again_or_nobody_tries() -> None:
    """Held breakers must not be held for ever."""
    watch = fleet(10, 10)
    assert watch.suspected(NOW + 2 * SECOND)
    for number in range(10):
        watch.answered(f"operator-{number}", NOW + 3 * SECOND)
    assert not watch.suspected(NOW + 4 * SECOND)
    watch = fleet(10, 10)
    assert watch.suspected(NOW + 60 * SECOND)
    assert not watch.suspected(NOW + 200 * SECOND)


def test_trouble_lasts_as_long_as_they_fail() -> None:
    """An outage of ours of half an hour must hold the breakers for half an hour."""
    watch = fleet(20, 20)
    for second in range(0, 1_800, 30):
        for number in range(20):
            watch.failed(f"operator-{number}", NOW + second * SECOND)
        assert watch.suspected(NOW + second * SECOND)


def test_quiet_hosts_do_not_hide_it() -> None:
    """Those that were not tried in the last minute say nothing either way."""
    watch = FleetTrouble()
    for number in range(100):
        watch.answered(f"quiet-{number}", NOW)
    later = NOW + 120 * SECOND
    for number in range(10):
        watch.answered(f"busy-{number}", later)
    for number in range(10):
        watch.failed(f"busy-{number}", later + SECOND)
    assert watch.suspected(later + SECOND)
    assert "turned=10" in repr(watch)
    for number in range(100):
        watch.failed(f"quiet-{number}", NOW + 700 * SECOND)
    assert "turned=10" in repr(watch)


def test_it_remembers_a_bounded_number() -> None:
    """Millions of hosts must not fill the memory of one process."""
    watch = fleet(12_000, 0)
    assert "fresh=2000" in repr(watch)


@pytest.mark.parametrize(
    ("host", "family"),
    [
        ("https://hooks.shop.example.com:443", "example.com"),
        ("https://a.shop.co.uk", "shop.co.uk"),
        ("https://example.com", "example.com"),
        ("http://10.1.2.3:8080", "10.1"),
        ("https://[2001:db8:1:2::3]:443", "2001:db8:1"),
        ("localhost", "localhost"),
        ("ep_1", "ep_1"),
    ],
)
def test_who_operates_a_host(host: str, family: str) -> None:
    """Ten thousand subdomains of one provider are one failure."""
    assert family_of(host) == family
