"""Reads the body of `POST /v1/events` and `/v1/events:batch`, keeping the exact bytes of each payload.

The outer object is walked by hand with the standard library's scanner, so the text between a payload's first and last
character is delivered as it came: key order, spaces and number spellings stay what the producer signed or hashed. Refuses
unknown and repeated fields; it touches neither store nor network.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from json.decoder import scanstring  # type: ignore[attr-defined]  # in the module since 2.6, absent from the stubs
from typing import Any, Final, NoReturn

from gatepost.service.api.problems import Problem

BATCH_EVENTS_MAX: Final = 500
"""Events in one batch: one transaction of the store, whose writer must not be held for longer than some milliseconds."""
TEXT_CHARS_MAX: Final = 256
"""Length of type, keys and content type: index entries, not documents."""

FIELDS: Final = (
    "type",
    "payload",
    "payload_base64",
    "content_type",
    "tenant",
    "idempotency_key",
    "ordering_key",
    "priority",
    "not_before",
)
PRIORITIES: Final = ("high", "normal", "bulk")

_SPACE: Final = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True)
class EventBody:
    """One event as the producer wrote it."""

    type: str
    payload: bytes = field(repr=False)
    content_type: str
    tenant: str | None
    idempotency_key: str | None
    ordering_key: str | None
    priority: str
    not_before: datetime | None


def read_event(body: bytes) -> EventBody:
    """The event in a request body. Raises `Problem`."""
    text = _decode(body)
    event, end = _scan_event(text, _skip(text, 0))
    _expect_end(text, end)
    return event


def read_batch(body: bytes) -> list[EventBody]:
    """The events of `{"events": […]}`, in order. Raises `Problem`, also for an empty or too long list."""
    text = _decode(body)
    place = _skip(text, 0)
    _expect(text, place, "{", 'a batch is an object: {"events": [...]}')
    place = _skip(text, place + 1)
    if not text.startswith('"events"', place):
        raise Problem("invalid_request", 'a batch has exactly one field, "events"')
    place = _skip(text, place + len('"events"'))
    _expect(text, place, ":", 'a colon must follow "events"')
    place = _skip(text, place + 1)
    _expect(text, place, "[", "events is a list")
    place = _skip(text, place + 1)
    events: list[EventBody] = []
    while True:
        if not events and text.startswith("]", place):
            raise Problem("invalid_request", "events is empty; write at least one")
        if len(events) >= BATCH_EVENTS_MAX:
            raise Problem("invalid_request", f"a batch has at most {BATCH_EVENTS_MAX} events; send several")
        try:
            event, place = _scan_event(text, place)
        except Problem as problem:
            raise Problem(problem.code, f"events[{len(events)}]: {problem.detail}", problem.extra) from None
        events.append(event)
        place = _skip(text, place)
        if text.startswith("]", place):
            break
        _expect(text, place, ",", "a comma must stand between two events")
        place = _skip(text, place + 1)
    place = _skip(text, place + 1)
    _expect(text, place, "}", 'a batch has exactly one field, "events"')
    _expect_end(text, place + 1)
    return events


def _refuse_constant(name: str) -> NoReturn:
    raise Problem("invalid_json", f"{name} is not JSON (RFC 8259); write null or a string")


_scan_value: Final = json.JSONDecoder(parse_constant=_refuse_constant).scan_once  # type: ignore[attr-defined]


def _scan_event(text: str, start: int) -> tuple[EventBody, int]:
    """The event whose object starts at `start`, and the place behind it."""
    _expect(text, start, "{", "an event is an object")
    values: dict[str, Any] = {}
    payload: bytes | None = None
    place = _skip(text, start + 1)
    while not (not values and text.startswith("}", place)):
        _expect(text, place, '"', "a field name in double quotes must stand here")
        name, place = _scan(scanstring, text, place + 1)
        if name not in FIELDS:
            raise _unknown(name)
        if name in values:
            raise Problem("invalid_request", f"{name} is given twice")
        place = _skip(text, place)
        _expect(text, place, ":", f"a colon must follow {name}")
        place = _skip(text, place + 1)
        begin = place
        values[name], place = _scan(_scan_value, text, place)
        if name == "payload":
            payload = text[begin:place].encode()
            values[name] = None
        place = _skip(text, place)
        if text.startswith("}", place):
            break
        _expect(text, place, ",", "a comma must stand between two fields")
        place = _skip(text, place + 1)
    return _build(values, payload), place + 1


def _build(values: dict[str, Any], payload: bytes | None) -> EventBody:
    encoded = values.get("payload_base64")
    if encoded is not None:
        if payload is not None:
            raise Problem("invalid_request", "payload and payload_base64 are both given; leave one out")
        payload = _unbase64(encoded)
    if payload is None:
        raise Problem("invalid_request", "payload is missing; write any JSON value, or payload_base64 for other bytes")
    event_type = _text(values, "type")
    if event_type is None:
        raise Problem("invalid_request", 'type is missing; write for example "invoice.paid"')
    content_type = _text(values, "content_type")
    if content_type is None:
        content_type = "application/json" if encoded is None else "application/octet-stream"
    priority = values.get("priority", "normal")
    if priority not in PRIORITIES:
        raise Problem("invalid_request", f"priority is one of {', '.join(PRIORITIES)}")
    return EventBody(
        type=event_type,
        payload=payload,
        content_type=content_type,
        tenant=_text(values, "tenant"),
        idempotency_key=_text(values, "idempotency_key"),
        ordering_key=_text(values, "ordering_key"),
        priority=priority,
        not_before=_time(values.get("not_before")),
    )


def _text(values: dict[str, Any], name: str) -> str | None:
    value = values.get(name)
    if value is None:
        return None
    return check_text(name, value)


def check_text(name: str, value: object) -> str:
    """A short text of visible characters. Raises `Problem` naming the field."""
    if not isinstance(value, str) or not value or len(value) > TEXT_CHARS_MAX or not value.isprintable():
        raise Problem("invalid_request", f"{name} is a text of 1 to {TEXT_CHARS_MAX} visible characters")
    return value


def _time(value: object) -> datetime | None:
    if value is None:
        return None
    try:
        at = datetime.fromisoformat(value)  # type: ignore[arg-type]  # another type is the TypeError below
    except (TypeError, ValueError):
        at = None
    if at is None or at.tzinfo is None:
        raise Problem("invalid_request", 'not_before is a time with its zone, for example "2027-01-31T12:00:00Z"')
    return at


def _unbase64(value: object) -> bytes:
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            pass
    raise Problem("invalid_request", "payload_base64 is standard base64 with padding (RFC 4648 section 4)")


def _unknown(name: str) -> Problem:
    close = difflib.get_close_matches(name, FIELDS, n=1)
    hint = f"; write {close[0]}" if close else f"; an event has {', '.join(FIELDS)}"
    return Problem("invalid_request", f"{name[:60]!r} is no field of an event{hint}")


def _decode(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise Problem("invalid_json", f"the body is not UTF-8 (byte {error.start})") from None


def _scan(scanner: Any, text: str, place: int) -> tuple[Any, int]:
    try:
        value, end = scanner(text, place)
    except StopIteration as stop:
        raise Problem("invalid_json", f"a JSON value must stand at character {stop.value}") from None
    except json.JSONDecodeError as error:
        raise Problem("invalid_json", f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise Problem("invalid_json", "the payload is nested too deeply") from None
    return value, end


def _skip(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    assert match is not None, "the pattern matches the empty string"
    return match.end()


def _expect(text: str, place: int, char: str, meaning: str) -> None:
    if not text.startswith(char, place):
        raise Problem("invalid_json", f"{meaning} (character {place})")


def _expect_end(text: str, place: int) -> None:
    end = _skip(text, place)
    if end != len(text):
        raise Problem("invalid_json", f"something follows the object (character {end})")
