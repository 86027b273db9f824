"""How long the phases of an endpoint's attempts take and how they end, in one packed record: a few hundred bytes, in use and at rest.

It counts and judges nothing; `admission.phase_times` and `admission.outcome_hours` read a record. There is one for each of hundreds
of thousands of endpoints, so that it is a `bytearray` with functions and no object: kept and fed by `dispatch.policy_watch`. Pure.

Theory of operation. A record is *head*, *times*, *past*. The head has the hour that is being counted, seven counters of four
bytes for it, and the number of times. Times are three bytes each, in no order: a bucket that holds something and its count.
The past are finished hours, oldest first, each its hour, which counters it has, and those as numbers of seven bits a byte. Unpacking
it for every attempt would cost more than the attempt's limits do; so counting changes bytes in place, and only a new bucket or a
new hour moves any.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import Final

from gatepost.admission.outcome_hours import HOURS_MAX, Ended, Hour, OutcomeHours, ended_as
from gatepost.admission.phase_times import BOUNDS, STEPS, Budgeted, PhaseTimes
from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import Blame
from gatepost.wire.phases import Phase

TOTAL_MAX: Final = 1_000
"""Samples of a phase after which all are halved, to within 64 of a bucket: what is shown is of the last thousand or so."""

EVERY_ONE: Final = 32
ONE_IN: Final = 4
"""Of 256 attempts in an hour that end alike the first so many have their times counted, of the others one in so many: a busy endpoint
shows in minutes what it takes, and counting times is most of what watching it costs."""

_HOUR_US: Final = 3_600_000_000
_HOUR: Final = struct.Struct("<I")
_COUNTER: Final = 4
_COUNTS: Final = struct.Struct(f"<{len(Ended)}I")
_USED: Final = _HOUR.size + _COUNTS.size
"""Where the number of times stands."""
_TIMES: Final = _USED + 1
_ENTRY: Final = 3
_BUCKETS: Final = STEPS * len(Budgeted)
_HALVED: Final = 64
"""A bucket asks for the sum of its phase each time it has so many more."""
_SEVEN: Final = 0x7F

_POOL: Final = Phase.POOL
_DNS: Final = Phase.DNS
_CONNECT: Final = Phase.CONNECT
_TLS: Final = Phase.TLS
_WRITE: Final = Phase.WRITE
_WAIT: Final = Phase.WAIT
_READ: Final = Phase.READ
_US: Final = Blame.US
_SENT: Final = frozenset({Phase.WRITE, Phase.WAIT, Phase.READ})
_FIRST: Final = {
    Phase.POOL: Budgeted.POOL * STEPS,
    Phase.DNS: Budgeted.DNS * STEPS,
    Phase.CONNECT: Budgeted.CONNECT * STEPS,
    Phase.TLS: Budgeted.TLS * STEPS,
    Phase.WRITE: Budgeted.WRITE * STEPS,
}
"""First bucket of a phase that has a budget of its own."""
_SETUP_FIRST: Final = Budgeted.SETUP * STEPS
_ANSWER_FIRST: Final = Budgeted.ANSWER * STEPS


def new_counts() -> bytearray:
    """A record of nothing."""
    return bytearray(_TIMES)


def count(record: bytearray, attempt: Attempt, now: int) -> None:
    """Count one attempt; `now` is UTC microseconds. O(buckets in use), a microsecond or two.

    Phases that it did not come to, and the one in which it was cut off, have no time; nor has an attempt that was ours to blame.
    Of a busy endpoint's attempts a sample has its times counted.
    """
    hour = now // _HOUR_US
    if hour > (
        counted := _HOUR.unpack_from(record)[0]
    ):  # a clock that went back a little counts in the hour it came from
        _turn(record, counted, hour)
    at = _COUNTER + _COUNTER * ended_as(attempt)
    low = record[at]
    if low != 0xFF:
        record[at] = low + 1
    else:
        _carry(record, at)
    if (low >= EVERY_ONE and low % ONE_IN) or attempt.lagged or (attempt.blame is _US and not attempt.delivered):
        return
    phases = attempt.phases
    whole = attempt.status is not None
    ended = attempt.phase
    for phase, seconds in phases.items():
        first = _FIRST.get(phase)
        if first is not None and (whole or phase is not ended):
            _add(record, first, seconds)
    if whole:
        _add(record, _ANSWER_FIRST, phases.get(_WAIT, 0.0) + phases.get(_READ, 0.0))
    connect = phases.get(_CONNECT)
    if connect is not None and (whole or ended in _SENT):
        _add(record, _SETUP_FIRST, connect + phases.get(_DNS, 0.0) + phases.get(_TLS, 0.0))


def times_of(record: bytes | bytearray) -> PhaseTimes:
    """The times of a record, as they are now."""
    end = _TIMES + _ENTRY * record[_USED]
    return PhaseTimes(
        {record[at]: record[at + 1] | record[at + 2] << 8 for at in range(_TIMES, end, _ENTRY)},
    )


def hours_of(record: bytes | bytearray) -> OutcomeHours:
    """The hours of a record, as they are now."""
    found = [Hour(hour * _HOUR_US, counts) for hour, counts, _ in _past(record)]
    counts = _COUNTS.unpack_from(record, _HOUR.size)
    if any(counts):
        found.append(Hour(_HOUR.unpack_from(record)[0] * _HOUR_US, counts))
    return OutcomeHours(tuple(found))


def checked(stored: bytes) -> bytearray:
    """A record that was stored. Raises `ValueError` for anything else."""
    fault = ValueError(f"{len(stored)} bytes are no stored counts of attempts")
    if len(stored) < _TIMES or stored[_USED] > _BUCKETS:
        raise fault
    at = _TIMES + _ENTRY * stored[_USED]
    places = stored[_TIMES:at:_ENTRY]
    if at > len(stored) or len(set(places)) < len(places) or any(place >= _BUCKETS for place in places):
        raise fault
    try:
        hours = len(_past(stored))
    except IndexError:
        raise fault from None
    if hours > HOURS_MAX:
        raise fault
    return bytearray(stored)


# ----------------------------------------------------------------------------------------------------- helpers


def _add(record: bytearray, first: int, seconds: float) -> None:
    """One more in the bucket of these seconds, of the phase whose first bucket is `first`."""
    place = first + bisect_right(BOUNDS, seconds)
    end = _TIMES + _ENTRY * record[_USED]
    at = record.find(place, _TIMES, end)
    while at >= 0 and (at - _TIMES) % _ENTRY:  # it was a byte of a count
        at = record.find(place, at + 1, end)
    if at < 0:
        record[end:end] = bytes((place, 1, 0))
        record[_USED] += 1
        return
    low = record[at + 1] + 1
    if low > 0xFF:
        record[at + 2] += 1
    record[at + 1] = low & 0xFF
    if not low % _HALVED:
        _halve(record, first, end)


def _halve(record: bytearray, first: int, end: int) -> None:
    """Halve a phase that has enough; buckets that are empty by it go."""
    ours = [at for at in range(_TIMES, end, _ENTRY) if first <= record[at] < first + STEPS]
    if sum(record[at + 1] | record[at + 2] << 8 for at in ours) < TOTAL_MAX:
        return
    for at in reversed(ours):
        half = (record[at + 1] | record[at + 2] << 8) >> 1
        if half:
            record[at + 1 : at + _ENTRY] = half.to_bytes(2, "little")
        else:
            del record[at : at + _ENTRY]
            record[_USED] -= 1


def _carry(record: bytearray, at: int) -> None:
    value = int.from_bytes(record[at : at + _COUNTER], "little")
    record[at : at + _COUNTER] = min(value + 1, (1 << 8 * _COUNTER) - 1).to_bytes(_COUNTER, "little")


def _turn(record: bytearray, counted: int, hour: int) -> None:
    """An hour is over: it joins the past if it had attempts, and what is older than a day goes."""
    counts = _COUNTS.unpack_from(record, _HOUR.size)
    if any(counts):
        record.append(min(hour - counted, 0xFF))
        record.append(sum(1 << place for place, number in enumerate(counts) if number))
        for number in counts:
            while number > _SEVEN:
                record.append(number & _SEVEN | 0x80)
                number >>= 7
            if number:
                record.append(number)
    _HOUR.pack_into(record, 0, hour)
    _COUNTS.pack_into(record, _HOUR.size, *(0,) * len(Ended))
    start = end = _TIMES + _ENTRY * record[_USED]
    for old, _, behind in _past(record):
        if old <= hour - HOURS_MAX:
            end = behind
    del record[start:end]


def _past(record: bytes | bytearray) -> list[tuple[int, tuple[int, ...], int]]:
    """Finished hours, oldest first: the hour, its counts, and where in the record the next one begins."""
    rows = []
    at = _TIMES + _ENTRY * record[_USED]
    while at < len(record):
        before, mask = record[at], record[at + 1]
        at += 2
        counts = []
        for place in range(len(Ended)):
            number = shift = 0
            if mask >> place & 1:
                while (byte := record[at]) > _SEVEN:
                    number |= (byte & _SEVEN) << shift
                    shift += 7
                    at += 1
                number |= byte << shift
                at += 1
            counts.append(number)
        rows.append((before, tuple(counts), at))
    hour = _HOUR.unpack_from(record)[0]
    found = []
    for before, ended, at in reversed(rows):
        hour -= before
        found.append((hour, ended, at))
    found.reverse()
    return found
