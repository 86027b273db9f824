"""How attempts ended by the hour: where each is counted, that a day is kept, and that it survives being stored."""

from __future__ import annotations

from dataclasses import replace

from gatepost.admission.attempt_counts import checked, count, hours_of, new_counts
from gatepost.admission.outcome_hours import Ended, ended_as
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
    record = new_counts()
    ours = replace(FAILED, blame=Blame.US, outcome=Outcome.POOL_TIMEOUT, phase=Phase.POOL)
    late = replace(FAILED, outcome=Outcome.READ_TIMEOUT, phase=Phase.WAIT)
    start = 500_000 * HOUR
    assert hours_of(record).hours(start) == []
    for hour in range(40):
        if hour % 3:
            count(record, ANSWERED, start + hour * HOUR)
            count(record, ours, start + hour * HOUR + 5)
    count(record, late, start + 37 * HOUR)  # the clock went back
    now = start + 40 * HOUR
    shown = hours_of(record).hours(now)
    assert [hour.began_at for hour in shown] == [start + hour * HOUR for hour in range(17, 40) if hour % 3]
    assert shown[0].counts == (1, 0, 0, 0, 0, 0, 1)
    assert sum(hour.counts[Ended.TIMEOUT] for hour in shown) == 1
    assert hours_of(checked(bytes(record))).hours(now) == shown
    assert len(record) <= 150
    assert hours_of(record).hours(now + 25 * HOUR) == []
