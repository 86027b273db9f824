"""Ids: numbers that rise and never repeat, and public words that say exactly one number each."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing

import pytest
from hypothesis import given, strategies

from gatepost.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from gatepost.delivery.ids import (
    DELIVERY,
    ENDPOINT,
    ENDPOINT_BITS,
    EPOCH_MS,
    EVENT,
    NODES,
    NUMBER_BITS,
    SEQUENCE_BITS,
    IdSource,
    decode_id,
    encode_id,
    first_id_at,
    id_time_us,
    new_endpoint_number,
)
from gatepost.testing.virtual import VirtualClock

START_US = EPOCH_MS * 1_000 + 10**15


def test_numbers_rise_when_the_clock_stands_still_and_when_it_steps_back() -> None:
    """A time server that sets the clock back by an hour must not make an old id again."""
    clock = VirtualClock(start_wall_us=START_US)
    source = IdSource(7, clock)
    numbers = [source.next() for _ in range(3 << SEQUENCE_BITS)]
    clock.step_wall(-3_600.0)
    numbers += [source.next() for _ in range(10)]
    clock.step_wall(7_200.0)
    numbers.append(source.next())
    assert numbers == sorted(set(numbers))
    assert id_time_us(numbers[0]) == START_US
    assert id_time_us(numbers[-1]) == START_US + 3_600_000_000
    assert max(numbers).bit_length() <= NUMBER_BITS


def test_threads_that_share_a_source_never_get_one_number_twice() -> None:
    """Synchronous publishers are used from thread pools."""
    source = IdSource(0, SYSTEM_CLOCK)
    taken: list[list[int]] = [[] for _ in range(8)]

    def take(numbers: list[int]) -> None:
        for _ in range(5_000):
            numbers.append(source.next())

    threads = [threading.Thread(target=take, args=(numbers,)) for numbers in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({number for numbers in taken for number in numbers}) == 40_000


def test_two_nodes_never_meet() -> None:
    """Each writing process has its own node number."""
    clock = VirtualClock(start_wall_us=START_US)
    assert IdSource(0, clock).next() != IdSource(NODES - 1, clock).next()
    for node in (-1, NODES):
        with pytest.raises(ValueError, match="write 0 to"):
            IdSource(node, clock)


def test_the_edge_for_retention_lies_below_the_first_number_of_its_moment() -> None:
    """Partitions are dropped by id: nothing of the kept time may lie below the edge."""
    clock = VirtualClock(start_wall_us=START_US)
    assert first_id_at(START_US) <= IdSource(0, clock).next() < first_id_at(START_US + 1_000)
    assert first_id_at(0) == 0
    assert first_id_at(253_402_300_799_000_000) == (1 << NUMBER_BITS) - 1, (
        "the end of 9999, which a store compares with"
    )


@given(strategies.integers(0, (1 << NUMBER_BITS) - 1))
def test_a_word_says_the_number_it_was_made_of(number: int) -> None:
    """And sorts as the number does, since listings page by it."""
    word = encode_id(EVENT, number)
    assert decode_id(EVENT, word) == number
    assert word <= encode_id(EVENT, number | 1)


WRONG = ["", "evt_", "dlv_000000000000", "dlv_00000000000000", "dlv_000000000000u", "dlv_000000000000A", "0" * 13]


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_id_is_refused_with_the_form(text: str) -> None:
    """It came from a URL: the message says what an id looks like."""
    with pytest.raises(ValueError, match=f"dlv_{'x' * 13}"):
        decode_id(DELIVERY, text)


def test_a_word_for_a_number_that_no_column_holds_is_no_id() -> None:
    """Thirteen letters say up to 65 bits: such an id reached the database and came back as an internal error."""
    for prefix, bits in ((DELIVERY, NUMBER_BITS), (EVENT, NUMBER_BITS), (ENDPOINT, ENDPOINT_BITS)):
        largest = (1 << bits) - 1
        assert decode_id(prefix, encode_id(prefix, largest)) == largest
        for number in (largest + 1, (1 << 65) - 1):
            with pytest.raises(ValueError, match="is not an id"):
                decode_id(prefix, encode_id(prefix, number))
    lane = decode_id(ENDPOINT, encode_id(ENDPOINT, (1 << ENDPOINT_BITS) - 1)) << 8 | 255
    with closing(sqlite3.connect(":memory:")) as database:
        assert database.execute("SELECT ?", (lane,)).fetchone() == (lane,)


def test_endpoint_numbers_leave_room_for_the_lane() -> None:
    """A lane is the endpoint's number with eight bits behind it."""
    numbers = {new_endpoint_number(SYSTEM_ENTROPY) for _ in range(1_000)}
    assert len(numbers) == 1_000
    assert min(numbers) > 0
    assert max(numbers) < 1 << ENDPOINT_BITS
