"""Ids: 63-bit time-ordered numbers inside, opaque prefixed words outside (`evt_…`, `dlv_…`, `ep_…`).

An event or delivery number is 41 bits of milliseconds since 2025, 12 bits of node and 10 bits of sequence. The store hands
every writing process its own node number, so that two processes cannot meet. Endpoint numbers are 55 random bits, because
a lane is `endpoint << 8 | sub`.
"""

from __future__ import annotations

from typing import Final

from gatepost.clock import Clock, Entropy

EPOCH_MS: Final = 1_735_689_600_000
"""2025-01-01T00:00:00Z."""
NODE_BITS: Final = 12
SEQUENCE_BITS: Final = 10
NODES: Final = 1 << NODE_BITS
SCATTER_BITS: Final = NODE_BITS + SEQUENCE_BITS
SCATTER_MASK: Final = (1 << SCATTER_BITS) - 1
SCATTER_STEP: Final = (1 << NODE_BITS) - 1
"""A step within a millisecond: a thousand events fit in one, and another process hardly steps on the same numbers."""
ENDPOINT_BITS: Final = 55
NUMBER_BITS: Final = 63
"""What a signed column of a database holds; 13 letters could say 65."""

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
_VALUES: Final = {char: value for value, char in enumerate(_ALPHABET)}
_PAIRS: Final = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
"""Two digits at a time: ids are written several times per delivery."""
_DIGITS: Final = 13
EVENT: Final = "evt_"
DELIVERY: Final = "dlv_"
ENDPOINT: Final = "ep_"


class IdSource:
    """Numbers that never repeat in this process and rise with time, also when the wall clock steps back."""

    __slots__ = ("_clock", "_last", "_node")

    def __init__(self, node: int, clock: Clock) -> None:
        if not 0 <= node < NODES:
            raise ValueError(f"node={node}: write 0 to {NODES - 1}")
        self._node = node << SEQUENCE_BITS
        self._clock = clock
        self._last = 0  # milliseconds << SEQUENCE_BITS | sequence

    def next(self) -> int:
        """The next number."""
        now = (self._clock.wall_us() // 1_000 - EPOCH_MS) << SEQUENCE_BITS
        # A full sequence runs into the next millisecond; a clock that steps back waits in place.
        last = self._last + 1 if now <= self._last else now
        self._last = last
        return (
            ((last >> SEQUENCE_BITS) << (NODE_BITS + SEQUENCE_BITS)) | self._node | (last & ((1 << SEQUENCE_BITS) - 1))
        )


class ScatteredIds:
    """Numbers for writers that no store has given a node: 41 bits of milliseconds and 22 random ones, rising in this process.

    Two processes may draw the same number: whoever stores it must refuse the second one, which then takes the next number.
    Not for several threads at once.
    """

    __slots__ = ("_clock", "_entropy", "_last")

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self._clock = clock
        self._entropy = entropy
        self._last = 0

    def next(self) -> int:
        """The next number."""
        random = int.from_bytes(self._entropy.token(3), "big")
        number = (self._clock.wall_us() // 1_000 - EPOCH_MS) << SCATTER_BITS | random & SCATTER_MASK
        # Within a millisecond, and when the clock steps back, a random step up: events keep the order of their publishing.
        if number <= self._last:
            number = self._last + 1 + (random & SCATTER_STEP)
        self._last = number
        return number


def id_time_us(number: int) -> int:
    """When the number was made, in UTC microseconds (to the millisecond)."""
    return ((number >> (NODE_BITS + SEQUENCE_BITS)) + EPOCH_MS) * 1_000


def first_id_at(time_us: int) -> int:
    """The lowest number that can be made at or after `time_us`: the edge for retention by id. The largest for a time that no id
    reaches (after the year 2094)."""
    return min(max(0, time_us // 1_000 - EPOCH_MS) << (NODE_BITS + SEQUENCE_BITS), (1 << NUMBER_BITS) - 1)


def new_endpoint_number(entropy: Entropy) -> int:
    """A random endpoint number, never 0."""
    return (int.from_bytes(entropy.token(8), "big") >> (64 - ENDPOINT_BITS)) or 1


def encode_id(prefix: str, number: int) -> str:
    """The public word for a number, for example `evt_0d3k9…`."""
    pairs = _PAIRS
    return (
        f"{prefix}{_ALPHABET[number >> 60 & 31]}{pairs[number >> 50 & 1023]}{pairs[number >> 40 & 1023]}"
        f"{pairs[number >> 30 & 1023]}{pairs[number >> 20 & 1023]}{pairs[number >> 10 & 1023]}{pairs[number & 1023]}"
    )


def decode_id(prefix: str, text: str) -> int:
    """The number behind a public word. Raises `ValueError` naming the expected form, also for numbers that no id can have."""
    body = text.removeprefix(prefix)
    if body != text and len(body) == _DIGITS and _VALUES.keys() >= set(body):
        number = 0
        for char in body:
            number = number << 5 | _VALUES[char]
        if not number >> (ENDPOINT_BITS if prefix == ENDPOINT else NUMBER_BITS):
            return number
    raise ValueError(f"{text[:40]!r} is not an id of the form {prefix}{'x' * _DIGITS}")
