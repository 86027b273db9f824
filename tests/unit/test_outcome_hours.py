"""How attempts ended by the hour: where each is counted, that a day is kept, and that it survives being stored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gatepost.admission.outcome_hours import HOURS_MAX, Ended, OutcomeHours, ended_as
from gatepost.delivery.outcome import Blame, Outcome
from gatepost.wire.phases import Phase
from tests.unit.test_evidence import ANSWERED

HOUR = 3_600_000_000
FAILED = replace(ANSWERED, delivered=False, status=None)


def test_each_end_has_its_place_in_the_picture() -> None:
    """A legend of seven words must say whose fault it was and how bad: every outcome has one."""
    for status, ended in ((404, Ended.REJECTED), (302, Ended.REJECTED), (429, Ended.BUSY), (503, Ended.BUSY)):
        assert ended_as(replace(FAILED, status=status)) is ended
    assert ended_as(ANSWERED) is Ended.DELIVERED
    assert ended_as(replace(FAILED, status=500)) is Ended.FAILED
    for outcome, phase, ended in (
        (Outcome.READ_TIMEOUT, Phase.WAIT, Ended.TIMEOUT),
        (Outcome.WRITE_TIMEOUT, Phase.WRITE, Ended.TIMEOUT),
        (Outcome.DEADLINE_EXCEEDED, Phase.READ, Ended.TIMEOUT),
        (Outcome.DEADLINE_EXCEEDED, Phase.TLS, Ended.SETUP),
        (Outcome.CONNECT_TIMEOUT, Phase.DNS, Ended.SETUP),
        (Outcome.TRANSPORT_ERROR, Phase.CONNECT, Ended.SETUP),
        (Outcome.TRANSPORT_ERROR, Phase.WAIT, Ended.FAILED),
        (Outcome.EGRESS_DENIED, Phase.CONNECT, Ended.SETUP),
    ):
        assert ended_as(replace(FAILED, outcome=outcome, phase=phase)) is ended
    assert ended_as(replace(FAILED, outcome=Outcome.POOL_TIMEOUT, phase=Phase.POOL, blame=Blame.US)) is Ended.OURS


def test_a_day_of_hours_is_kept_and_stored() -> None:
    """Bounded, whatever comes; an hour without attempts takes no room; what is older than a day is not shown."""
    hours = OutcomeHours()
    assert not hours
    start = 500_000 * HOUR
    for hour in range(40):
        if hour % 3:
            hours.add(Ended.DELIVERED, start + hour * HOUR)
            hours.add(Ended.OURS, start + hour * HOUR + 5)
    hours.add(Ended.TIMEOUT, start + 38 * HOUR)  # the clock went back
    now = start + 40 * HOUR
    shown = hours.hours(now)
    assert [hour.began_at for hour in shown] == [start + hour * HOUR for hour in range(17, 40) if hour % 3]
    assert shown[0].counts == (1, 0, 0, 0, 0, 0, 1)
    assert sum(hour.counts[Ended.TIMEOUT] for hour in shown) == 1
    again = OutcomeHours.from_bytes(hours.to_bytes())
    assert again.hours(now) == shown
    assert len(hours.to_bytes()) <= HOURS_MAX * 13 + 4
    assert hours.hours(now + 25 * HOUR) == []


@pytest.mark.parametrize("damage", [b"x", b"\0" * 7, b"\0\0\0\0\x80\0\0\0\0", b"\0\0\0\0\0" * (HOURS_MAX + 1)])
def test_what_another_version_stored_is_refused(damage: bytes) -> None:
    """It starts anew then, instead of showing nonsense."""
    with pytest.raises(ValueError, match="no stored hours"):
        OutcomeHours.from_bytes(damage)
