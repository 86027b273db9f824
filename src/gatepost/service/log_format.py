"""How a log line looks: one JSON object, or `key=value` words for people. It formats values and writes nothing.

Lines are ASCII and hold no header value, payload, secret or query: observations carry none. Used by `service.logs`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii
from typing import Final, Protocol

from gatepost.telemetry import AttemptObservation, DeliveryObservation
from gatepost.wire.trace_context import read_context

Value = str | int | float | bool | None

quote = encode_basestring_ascii

LIMITS_KEPT_MAX: Final = 4_096
"""Texts of limits remembered, as many as the dispatcher keeps sets of limits; emptied when full."""
WORDS_KEPT_MAX: Final = 1_024
"""Texts of either part of a line remembered, at most some 1 kB each; emptied when full. There are tens in practice: kinds of ends, and
sets of limits with event types."""
NAMES_KEPT_MAX: Final = 8_192
"""Texts of who was called, some 300 bytes each, one for an endpoint and address; emptied when full."""


class LineFormat(Protocol):
    """Turns values into one line without a newline."""

    def attempt(
        self,
        stamp: str,
        level: str,
        observation: AttemptObservation,
        decision: DeliveryObservation | None,
        sample_rate: float,
    ) -> str:
        """The wide line of one attempt. `sample_rate`: the share of such lines that is written."""
        ...

    def entry(self, stamp: str, level: str, event: str, message: str, fields: Mapping[str, Value]) -> str:
        """Any other line."""
        ...


class Stamp:
    """UTC times as RFC 3339 text; the part down to the second is formatted once a second."""

    __slots__ = ("_began", "_text")

    def __init__(self) -> None:
        self._began = -1_000_000
        """Of the second whose text is kept, in microseconds."""
        self._text = ""

    def __call__(self, wall_us: int) -> str:
        micro = wall_us - self._began
        if not 0 <= micro < 1_000_000:
            second, micro = divmod(wall_us, 1_000_000)
            self._began = wall_us - micro
            self._text = datetime.datetime.fromtimestamp(second, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return "%s.%06dZ" % (self._text, micro)  # noqa: UP031 - a third of what the same costs in an f-string


class JsonFormat:
    """One JSON object a line.

    Much of a line says the same for attempt after attempt: those words are written once and remembered, in four parts (how it ended;
    who was called; which phases there were; what was decided under which limits), and only figures and ids are new.
    """

    __slots__ = ("_decisions", "_due", "_ends", "_limits", "_names", "_times")

    def __init__(self) -> None:
        self._due = Stamp()
        self._limits: dict[int, tuple[Mapping[str, tuple[float, str]], str]] = {}
        """Texts of limits, by the identity of what is told with attempt after attempt."""
        self._ends: dict[tuple[object, ...], str] = {}
        self._decisions: dict[tuple[object, ...], str] = {}
        self._times: dict[tuple[object, ...], str] = {}
        """By the phases entered: words with a place for each figure. Filling it costs half of writing name after name."""
        self._names: dict[tuple[object, ...], str] = {}
        """Who was called, and for whom."""

    def attempt(
        self,
        stamp: str,
        level: str,
        observation: AttemptObservation,
        decision: DeliveryObservation | None,
        sample_rate: float,
    ) -> str:
        """Written by hand: a quarter of the cost of building a dict for `json.dumps`."""
        o = observation
        end = (
            level,
            o.outcome,
            o.reason,
            o.status,
            o.phase,
            o.retry_safety,
            o.blame,
            o.delivered,
            o.reused,
            o.stale_retry,
            o.body_fault,
            o.lagged,
            sample_rate,
        )
        words = self._ends.get(end)
        if words is None:
            words = _kept(self._ends, end, _end_words(level, o, sample_rate))
        called = (o.endpoint_id, o.address, o.host, o.tenant)
        names = self._names.get(called)
        if names is None:
            names = _kept(self._names, called, _names_words(o), NAMES_KEPT_MAX)
        entered = (*o.phases,)
        places = self._times.get(entered)
        if places is None:
            phases = ",".join([f'"{phase}":%.3f' for phase in entered])
            places = _kept(self._times, entered, f'"elapsed_ms":%.3f,"phases_ms":{{{phases}}}')
        times = places % (o.elapsed * 1e3, *[seconds * 1e3 for seconds in o.phases.values()])
        line = f'{{"at":"{stamp}",{words},{names},{times},"bytes_sent":{o.bytes_sent}'
        if decision is None:
            return line + "}"
        d = decision
        told = self._limits.get(id(d.limits))
        limits = told[1] if told is not None and told[0] is d.limits else self._limits_text(d.limits)
        decided = (
            d.event_type,
            d.attempt_number,
            d.decision,
            d.why,
            d.policy_version,
            limits,
            d.breaker,
            d.cap,
            d.worker,
        )
        words = self._decisions.get(decided)
        if words is None:
            words = _kept(self._decisions, decided, _decision_words(d, limits))
        if d.delay is None and d.due_at is None:
            later = '"delay_s":null,"due_at":null'
        else:
            delay = "null" if d.delay is None else f"{d.delay:.3f}"
            due = "null" if d.due_at is None else f'"{self._due(d.due_at)}"'
            later = f'"delay_s":{delay},"due_at":{due}'
        trace = _NO_TRACE if d.span is None and d.trace is None else _trace_words(d)
        return (
            f'{line},"event_id":"{d.event_id}","delivery_id":"{d.delivery_id}","waited_ms":{d.waited * 1e3:.3f},'
            f'{later},{words},"part":{d.part},"epoch":{d.epoch},"body_bytes":{d.body_bytes},{trace}}}'
        )

    def _limits_text(self, limits: Mapping[str, tuple[float, str]] | None) -> str:
        if limits is None:
            return "null"
        if len(self._limits) >= LIMITS_KEPT_MAX:
            self._limits.clear()
        text = json.dumps({name: list(value) for name, value in limits.items()}, separators=(",", ":"))
        self._limits[id(limits)] = (limits, text)
        return text

    def entry(self, stamp: str, level: str, event: str, message: str, fields: Mapping[str, Value]) -> str:
        """A line with `fields` beside the fixed ones; a field never replaces a fixed one."""
        fixed = {"at": stamp, "level": level, "event": event, "message": message}
        return json.dumps({**fixed, **fields, **fixed}, default=str)


_LEVELS: Final = {"debug": "DBG", "info": "INF", "warning": "WRN", "error": "ERR"}


class ConsoleFormat:
    """`time LEVEL event key=value …`, for a terminal. What the other form says of limits, owners and traces is left out."""

    __slots__ = ()

    def attempt(
        self,
        stamp: str,
        level: str,
        observation: AttemptObservation,
        decision: DeliveryObservation | None,
        sample_rate: float,
    ) -> str:
        """The outcome and the slowest phase first, ids last."""
        o = observation
        phases = " ".join([f"{phase}={seconds * 1e3:.1f}" for phase, seconds in o.phases.items() if seconds >= 5e-5])
        words = [
            f"{stamp[11:23]} {_LEVELS.get(level, level)} attempt {o.outcome}",
            str(o.status) if o.status is not None else f"{o.phase}/{o.reason}",
            _plain(o.host),
            f"{o.elapsed * 1e3:.1f}ms ({phases})",
        ]
        if not o.delivered:
            words.append(f"{o.retry_safety} blame={o.blame}")
        for name, there in (("reused", o.reused), ("stale_retry", o.stale_retry), ("lagged", o.lagged)):
            if there:
                words.append(name)
        if o.body_fault is not None:
            words.append(f"body={o.body_fault}")
        if decision is not None:
            d = decision
            words.append(f"attempt={d.attempt_number} {d.decision}({d.why})")
            if d.delay is not None:
                words.append(f"in={d.delay:.1f}s")
            words.append(f"type={_plain(d.event_type)} event_id={d.event_id} delivery_id={d.delivery_id}")
        if o.endpoint_id is not None:
            words.append(f"endpoint_id={_plain(o.endpoint_id)}")
        if o.tenant is not None:
            words.append(f"tenant={_plain(o.tenant)}")
        if sample_rate != 1.0:
            words.append(f"sample_rate={sample_rate:g}")
        return " ".join(words)

    def entry(self, stamp: str, level: str, event: str, message: str, fields: Mapping[str, Value]) -> str:
        """A line with its message first."""
        pairs = "".join(f" {name}={_plain(str(value))}" for name, value in fields.items() if value is not None)
        shown = message if message.isprintable() else quote(message)
        return f"{stamp[11:23]} {_LEVELS.get(level, level)} {event} {shown}{pairs}"


def _end_words(level: str, o: AttemptObservation, sample_rate: float) -> str:
    """How an attempt ended."""
    status = "null" if o.status is None else o.status
    fault = "null" if o.body_fault is None else f'"{o.body_fault}"'
    return (
        f'"level":"{level}","event":"attempt","outcome":"{o.outcome}",'
        f'"delivered":{_flag(o.delivered)},"status":{status},"phase":"{o.phase}","reason":"{o.reason}",'
        f'"retry_safety":"{o.retry_safety}","blame":"{o.blame}","reused":{_flag(o.reused)},'
        f'"stale_retry":{_flag(o.stale_retry)},"body_fault":{fault},"lagged":{_flag(o.lagged)},'
        f'"sample_rate":{sample_rate:g}'
    )


def _names_words(o: AttemptObservation) -> str:
    """Who was called, and for whom."""
    address = "null" if o.address is None else f'"{o.address}"'
    return f'"host":{quote(o.host)},"address":{address},"endpoint_id":{_text(o.endpoint_id)},"tenant":{_text(o.tenant)}'


def _decision_words(d: DeliveryObservation, limits: str) -> str:
    """What was decided, and under which limits."""
    breaker = "null" if d.breaker is None else f'"{d.breaker}"'
    cap = "null" if d.cap is None else d.cap
    return (
        f'"event_type":{quote(d.event_type)},"attempt":{d.attempt_number},"decision":"{d.decision}","why":"{d.why}",'
        f'"policy_version":{d.policy_version},"limits":{limits},"breaker":{breaker},"cap":{cap},'
        f'"worker":{quote(d.worker)}'
    )


def _kept(words: dict[tuple[object, ...], str], key: tuple[object, ...], text: str, most: int = WORDS_KEPT_MAX) -> str:
    if len(words) >= most:
        words.clear()
    words[key] = text
    return text


_NO_TRACE: Final = '"trace_id":null,"span_id":null'


def _trace_words(observation: DeliveryObservation) -> str:
    """Where the attempt is found among traces: its own span, or the publisher's trace where nobody makes spans here."""
    span = observation.span
    if span is not None:
        return f'"trace_id":"{span.trace_id:032x}","span_id":"{span.attempt:016x}"'
    publisher = read_context(observation.trace)
    return _NO_TRACE if publisher is None else f'"trace_id":"{publisher.trace_id:032x}","span_id":null'


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _text(value: str | None) -> str:
    return "null" if value is None else quote(value)


def _plain(text: str) -> str:
    """A word that cannot forge a second line or field."""
    return text if text.isprintable() and " " not in text and text.isascii() else quote(text)
