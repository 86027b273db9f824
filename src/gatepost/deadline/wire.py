"""Deadlines on the wire: reads and writes the headers that carry a budget, and the message form for queues. Pure.

Budgets travel as durations, never as instants, because clocks differ; text is read by exact ASCII grammars, never by
`float`, which takes `nan`, `1e3` and Arabic digits. Nothing here yields "no limit": what cannot be read is a `Problem` and
the default holds. Called by `Deadline.from_headers`, `from_message` and their inverses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, NamedTuple, TypedDict, assert_never

from gatepost.deadline.policy import DeadlinePolicy

REQUEST_TIMEOUT: Final = "request-timeout"
"""Seconds with up to nine decimals; its integers are those of draft-thomson-hybi-http-timeout-00."""
GRPC_TIMEOUT: Final = "grpc-timeout"
"""gRPC over HTTP/2, section "Requests": up to eight digits and a unit."""
ENVOY_TIMEOUT: Final = "x-envoy-expected-rq-timeout-ms"
"""Whole milliseconds from an Envoy proxy; 0 means that it knows no limit, hence nothing."""
DEADLINE_EXCEEDED_HEADER: Final = "deadline-exceeded"
"""In an answer: where the server found the deadline passed, `arrival`, `admission` or `handler`."""
MEMBERS_MAX: Final = 32
"""Comma-separated values of one header field. Proxies add one each; a field with more is not read at all."""
QUEUE_AGE_MAX: Final = 60.0
"""Seconds. A request that old has left every proxy's patience, so the two clocks disagree or the header is nonsense."""
SKEW_TOLERANCE: Final = 1.0
"""Seconds by which a message may come from the future before it counts as skew: what NTP leaves between healthy hosts."""
MESSAGE_SECONDS_MAX: Final = 1e9
"""Longest budget of a message, as for any deadline."""
TIME_MAX: Final = 1e12
"""A number of seconds in a message above this, the year 33658, is no time that anybody meant."""
VALUE_CHARS_MAX: Final = 64
"""Of a bad value, as much as is worth a log line."""

_REQUEST_TIMEOUT_ASGI: Final = REQUEST_TIMEOUT.encode()
"""As servers hand it to ASGI apps, lower-case."""
_SECOND_NS: Final = 1_000_000_000
_MS_NS: Final = 1_000_000
_WHOLE_DIGITS_MAX: Final = 8
_DECIMALS_MAX: Final = 9
_GRPC: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_GRPC_UNITS_NS: Final = {
    "H": 3_600 * _SECOND_NS,
    "M": 60 * _SECOND_NS,
    "S": _SECOND_NS,
    "m": _MS_NS,
    "u": 1_000,
    "n": 1,
}
_MILLISECONDS: Final = re.compile(r"[0-9]{1,10}")
_STARTED: Final = re.compile(r"(?:t=)?([0-9]{9,20})(?:\.([0-9]{1,9}))?")
_GRPC_DIGITS_MAX: Final = 99_999_999

Text = str | bytes
HeaderFormat = Literal["request-timeout", "grpc", "both"]


class ProblemKind(StrEnum):
    """What was wrong with a value."""

    INVALID = "invalid"
    """It is not of the header's form, and was left out."""
    CLAMPED = "clamped"
    """It asked for more than the policy's `max` and got that."""
    SKEW = "skew"
    """It speaks of a time that cannot be, so the two clocks differ; no age was taken off."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One value that was not taken as it stood."""

    header: str
    """Lower-case name of the header, or the key of the message."""
    value: str
    """What it said, cut to `VALUE_CHARS_MAX`."""
    kind: ProblemKind

    def __str__(self) -> str:
        match self.kind:
            case ProblemKind.INVALID:
                return f"{self.header}: {self.value!r} is not readable; {_FORMS.get(self.header, 'see the reference')}"
            case ProblemKind.CLAMPED:
                return f"{self.header}: {self.value!r} is over the longest budget and was cut to it"
            case ProblemKind.SKEW:
                return f"{self.header}: {self.value!r} cannot be by this clock; its age was not counted"
            case _ as never:
                assert_never(never)


_FORMS: Final = {
    REQUEST_TIMEOUT: "write seconds such as 2 or 0.25",
    GRPC_TIMEOUT: "write up to eight digits and one of H M S m u n, such as 250m",
    ENVOY_TIMEOUT: "write whole milliseconds",
    "rt": "write the seconds left as a number",
    "at": "write seconds since 1970 as a number",
}


class Received(NamedTuple):
    """What a request's headers come to."""

    budget_ns: int | None
    """What is left on arrival, 0 for expired; None: an unreadable value, and the policy is to refuse it."""
    source: str
    """The header that set it, or `default`."""
    asked_ns: int
    """The same before the policy's `max`."""
    problems: list[Problem]
    given: bool
    """Whether a readable budget came at all."""


class DeadlineMessage(TypedDict):
    """A deadline in a queue message: `rt` seconds were left at wall time `at` (seconds since 1970)."""

    rt: float
    at: float


def read_headers(
    items: Iterable[tuple[Text, Text]] | Mapping[str, str],
    policy: DeadlinePolicy,
    wall_us: int,
    known: tuple[str, int] | None = None,
) -> Received:
    """The budget in a request's headers, by `policy`; `wall_us` is now in UTC microseconds.

    `known` is a source and nanoseconds that came another way, as gRPC's own deadline does. The least of all readable values
    holds, the age in the proxy's queue and the allowance are taken off, then `max` holds.
    """
    problems: list[Problem] = []
    source, least = ("default", None) if known is None else known
    age_ns = 0
    pairs = items.items() if isinstance(items, Mapping) else items
    for raw_name, raw_value in pairs:
        if raw_name == _REQUEST_TIMEOUT_ASGI and REQUEST_TIMEOUT in policy.formats:  # nearly always the only one
            name = REQUEST_TIMEOUT
            budget = parse_request_timeout(raw_value if isinstance(raw_value, str) else raw_value.decode("latin-1"))
            if budget is not None:
                if least is None or budget < least:
                    least, source = budget, name
                continue
        else:
            name = (raw_name if isinstance(raw_name, str) else raw_name.decode("latin-1")).lower()
        if name in policy.formats:
            for budget_ns in _read_members(name, _text(raw_value), problems):
                if least is None or budget_ns < least:
                    least, source = budget_ns, name
        elif name == policy.queue_header:
            age_ns = max(age_ns, _queue_age_ns(name, _text(raw_value), wall_us, problems))
    if policy.on_invalid == "reject" and any(problem.kind is ProblemKind.INVALID for problem in problems):
        return Received(None, source, 0, problems, least is not None)
    left_ns = round(policy.default * _SECOND_NS) if least is None else least
    if age_ns or policy.allowance:
        left_ns = max(0, left_ns - age_ns - round(policy.allowance * _SECOND_NS))
    budget_ns = left_ns
    if left_ns > policy.max * _SECOND_NS:
        budget_ns = round(policy.max * _SECOND_NS)
        problems.append(Problem(source, f"{left_ns / _SECOND_NS:g}", ProblemKind.CLAMPED))
    return Received(budget_ns, source, left_ns, problems, least is not None)


def parse_request_timeout(text: str) -> int | None:
    """Nanoseconds of a `Request-Timeout` value, None when it is none: `1*8DIGIT [ "." 1*9DIGIT ]` seconds."""
    # Without a regular expression, which costs a server three times as much for each request.
    whole, point, decimals = text.partition(".")
    if not (text.isascii() and whole.isdigit() and len(whole) <= _WHOLE_DIGITS_MAX):
        return None
    if not point:
        return int(whole) * _SECOND_NS
    if not (decimals.isdigit() and len(decimals) <= _DECIMALS_MAX):
        return None
    return int(whole) * _SECOND_NS + int(decimals.ljust(_DECIMALS_MAX, "0"))


def parse_grpc_timeout(text: str) -> int | None:
    """Nanoseconds of a `grpc-timeout` value, None when it is none: `1*8DIGIT` and one of `H M S m u n`."""
    match = _GRPC.fullmatch(text)
    return None if match is None else int(match[1]) * _GRPC_UNITS_NS[match[2]]


def parse_envoy_timeout(text: str) -> int | None:
    """Nanoseconds of Envoy's whole milliseconds, None when it is none. 0 says nothing: see `ENVOY_TIMEOUT`."""
    return int(text) * _MS_NS if _MILLISECONDS.fullmatch(text) else None


def parse_request_start(text: str) -> int | None:
    """UTC microseconds of an `X-Request-Start` value, None when it is none.

    Proxies write seconds, milliseconds, microseconds or nanoseconds since 1970, with or without `t=`; the number of digits
    before the point tells which.
    """
    match = _STARTED.fullmatch(text)
    if match is None:
        return None
    whole, decimals = match.groups()
    per_unit = 10 ** (6 - 3 * ((len(whole) - 9) // 3))  # 9-11 digits: s, 12-14: ms, 15-17: µs, 18-20: ns
    number = int(whole) * 10**9 + (int(decimals.ljust(9, "0")) if decimals else 0)
    return round(number * per_unit / 10**9) if per_unit >= 1 else int(whole) // 1_000


def format_headers(left_ns: int, fmt: HeaderFormat) -> list[tuple[str, str]]:
    """Header fields for `left_ns`, floored to milliseconds: what is handed down is never more than what is left.

    `left_ns` must be at least a millisecond; less is for the caller to refuse. gRPC's own libraries round up instead.
    """
    ms = left_ns // _MS_NS
    match fmt:
        case "request-timeout":
            return [("Request-Timeout", format_seconds(ms))]
        case "grpc":
            return [("grpc-timeout", _format_grpc(ms))]
        case "both":
            return [("Request-Timeout", format_seconds(ms)), ("grpc-timeout", _format_grpc(ms))]
        case _:
            raise ValueError(f"fmt={fmt!r}: write 'request-timeout', 'grpc' or 'both'")


def format_seconds(ms: int) -> str:
    """Milliseconds as the shortest decimal of seconds: `0.25`, `1.234`, `12`."""
    whole, rest = divmod(ms, 1_000)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def read_message(message: object, wall_us: int) -> tuple[int | None, list[Problem]]:
    """Nanoseconds left of a message's deadline, 0 for expired; None for a message without one or with an unreadable one."""
    if message is None:
        return None, []
    if not isinstance(message, Mapping):
        return None, [_problem("rt", repr(message))]
    problems = [_problem(key, repr(message.get(key))) for key in ("rt", "at") if not _is_time(message.get(key))]
    if problems:
        return None, problems
    left_ns = round(min(message["rt"], MESSAGE_SECONDS_MAX) * _SECOND_NS)
    age_ns = wall_us * 1_000 - round(message["at"] * _SECOND_NS)
    if age_ns < -SKEW_TOLERANCE * _SECOND_NS:
        problems.append(Problem("at", repr(message["at"]), ProblemKind.SKEW))
    return max(0, left_ns - max(0, age_ns)), problems


def write_message(left_ns: int, wall_us: int) -> DeadlineMessage:
    """The message form, floored to milliseconds."""
    return {"rt": left_ns // _MS_NS / 1_000, "at": wall_us / 1e6}


def _format_grpc(ms: int) -> str:
    for amount, unit in ((ms, "m"), (ms // 1_000, "S"), (ms // 60_000, "M")):
        if amount <= _GRPC_DIGITS_MAX:
            return f"{amount}{unit}"
    return f"{ms // 3_600_000}H"


def _read_members(name: str, text: str, problems: list[Problem]) -> Iterable[int]:
    members = text.split(",")
    if len(members) > MEMBERS_MAX:
        problems.append(_problem(name, text))
        return
    for member in members:
        member = member.strip(" \t")
        match name:
            case "request-timeout":
                budget_ns = parse_request_timeout(member)
            case "grpc-timeout":
                budget_ns = parse_grpc_timeout(member)
            case _:
                budget_ns = parse_envoy_timeout(member)
                if budget_ns == 0:
                    continue
        if budget_ns is None:
            problems.append(_problem(name, member))
        else:
            yield budget_ns


def _queue_age_ns(name: str, text: str, wall_us: int, problems: list[Problem]) -> int:
    age_ns = 0
    for member in text.split(",")[:MEMBERS_MAX]:
        started_us = parse_request_start(member.strip(" \t"))
        if started_us is None:
            problems.append(_problem(name, member))
            continue
        age_us = wall_us - started_us
        if 0 <= age_us <= QUEUE_AGE_MAX * 1e6:
            age_ns = max(age_ns, age_us * 1_000)
        else:
            problems.append(Problem(name, member[:VALUE_CHARS_MAX], ProblemKind.SKEW))
    return age_ns


def _is_time(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value <= TIME_MAX


def _problem(header: str, value: str) -> Problem:
    return Problem(header, value[:VALUE_CHARS_MAX], ProblemKind.INVALID)


def _text(value: Text) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
