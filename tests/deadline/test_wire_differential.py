"""Header values read by a second implementation of the grammar, letter by letter and without patterns, for the same result."""

from __future__ import annotations

import random
from typing import Final

import pytest

from gatepost.deadline.policy import FORMATS, DeadlinePolicy
from gatepost.deadline.wire import ProblemKind, read_headers

DIGITS: Final = "0123456789"
UNITS: Final = {"H": 3600 * 10**9, "M": 60 * 10**9, "S": 10**9, "m": 10**6, "u": 10**3, "n": 1}
SEEDS: Final = (
    "0.25", "5", " 2 ", "0", "0.0", "-1", "+1", "1e3", "inf", "nan", "1_000", "0x10", "5.", ".5", "2s", "", "5, 2", "\u0663",
    "1.123456789", "1.0000000001", "99999999", "100000000", "140m", "1S", "99999999H", "100000000m", "00000001n", "0S", "5 S",
    "1234s", "0.25S", "5SS", "1S,bad,2S", "\u00b2", "\uff11", "5\n", "250",
)  # fmt: skip
LETTERS: Final = "0123456789.HMSmunhs+-eE_x, \t\u06630infa\u00b2\n\r\x00"
NAMES: Final = (*FORMATS, b"request-timeout", "Request-Timeout", b"Grpc-Timeout", "x-other")


def digits(text: str, most: int) -> bool:
    return 1 <= len(text) <= most and all(letter in DIGITS for letter in text)


def reference(name: str, text: str) -> int | None:
    """Nanoseconds of one member; None: invalid; -1: no information."""
    match name:
        case "request-timeout":
            whole, point, decimals = text.partition(".")
            if not digits(whole, 8) or (point and not digits(decimals, 9)):
                return None
            return int(whole) * 10**9 + (int(decimals) * 10 ** (9 - len(decimals)) if point else 0)
        case "grpc-timeout":
            return int(text[:-1]) * UNITS[text[-1]] if text[-1:] in (*UNITS,) and digits(text[:-1], 8) else None
        case _:
            return (int(text) * 10**6 or -1) if digits(text, 10) else None


def value(random_: random.Random) -> str | bytes:
    """Something like a header value, often nearly right."""
    seed = random_.choice(SEEDS)
    match random_.randrange(3):
        case 0:
            text = seed
        case 1:
            text = "".join(random_.choice(LETTERS) for _ in range(random_.randrange(12)))
        case _:
            at = random_.randrange(len(seed) + 1)
            text = seed[:at] + random_.choice(LETTERS) + seed[at + random_.randrange(2) :]
    if random_.random() < 0.2:
        text += "," + random_.choice(SEEDS)
    return text.encode() if random_.random() < 0.4 else text


@pytest.mark.parametrize(
    "policy",
    [
        DeadlinePolicy(queue_header=None),
        DeadlinePolicy(formats=FORMATS, queue_header=None, on_invalid="reject"),
        DeadlinePolicy(formats=FORMATS, queue_header=None, default=0.3, max=0.7),
    ],
    ids=["default", "reject", "tight"],
)
def test_any_headers_come_to_what_the_grammar_says(policy: DeadlinePolicy) -> None:
    """A value that two readers take differently is where two services disagree on a deadline."""
    random_ = random.Random(7)
    for _ in range(10_000):
        items = [(random_.choice(NAMES), value(random_)) for _ in range(random_.randrange(4))]
        least, source, invalid = None, "default", 0
        for raw_name, raw in items:
            name = (raw_name if isinstance(raw_name, str) else raw_name.decode("latin-1")).lower()
            if name not in policy.formats:
                continue
            for member in (raw if isinstance(raw, str) else raw.decode("latin-1")).split(","):
                found = reference(name, member.strip(" \t"))
                if found is None:
                    invalid += 1
                elif found >= 0 and (least is None or found < least):
                    least, source = found, name
        received = read_headers(items, policy, 0)
        assert sum(problem.kind is ProblemKind.INVALID for problem in received.problems) == invalid, items
        if invalid and policy.on_invalid == "reject":
            assert received.budget_ns is None, items
            continue
        asked = round(policy.default * 10**9) if least is None else least
        assert (received.budget_ns, received.source) == (min(asked, round(policy.max * 10**9)), source), items
        assert received.given is (least is not None)
